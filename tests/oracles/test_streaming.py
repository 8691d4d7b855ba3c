"""The memory's promises, for every network, in float64: cuts, documents, sessions, lanes, generation."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_xl as txl
from tests.oracles import adapter, tiny

EXACT, V = 1e-9, 32
PLACES = ["al_rfou", "vaswani"]
RECURRENT = ["gru", "lstm", "rnn"]
VARIANTS: dict[str, tuple[str, list[str]]] = {
    **{network: (network, []) for network in tiny.NETWORKS},
    "txl published": ("txl", ["model.pre_norm=false", "model.untie_r=true"]),
    "txl clamped": ("txl", ["model.clamp_len=3"]),
    "txl adaptive": ("txl", ["model.cutoffs=[8,20]", "model.div_val=2", "model.d_embed=12"]),
    "txl blockwise": ("txl", ["model.attention=blockwise", "model.untie_r=true"]),
    "shaw clamped": ("shaw", ["model.clamp_len=2", "model.pre_norm=false"]),
    "lstm adaptive": ("lstm", ["model.cutoffs=[8,20]", "model.div_val=2", "model.d_embed=12"]),
}
INVARIANT = [name for name, (network, _) in VARIANTS.items() if network not in PLACES]
ATTENTIVE = [name for name in INVARIANT if VARIANTS[name][0] not in RECURRENT]
MEM_LEN = 7
PENALTY = 3.0


@cache
def model_of(name: str, *changes: str, dtype: torch.dtype = torch.float64) -> Any:
    """Return a model in evaluation mode, its weights far from their small initial values."""
    network, own = VARIANTS[name]
    model = adapter.build_model(*tiny.NETWORKS[network], *own, *changes, vocab_size=V).to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(float(parameter_name.endswith("norm.weight")) + 0.25 * noise)
    return model.requires_grad_(False)


def tokens(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(seed))


def resets(lanes: int, length: int, *, seed: int) -> Tensor:
    return torch.rand(lanes, length, generator=torch.Generator().manual_seed(seed)) < 0.12


def no_resets_but(lanes: int, length: int, *, lane: int, place: int) -> Tensor:
    resets_BT = torch.zeros(lanes, length, dtype=torch.bool)
    resets_BT[lane, place] = True
    return resets_BT


def cut(pieces: Sequence[int]) -> Iterator[slice]:
    start = 0
    for piece in pieces:
        yield slice(start, start + piece)
        start += piece


def read(
    model: Any, tokens_BT: Tensor, memory: Any, pieces: Sequence[int], resets_BT: Tensor | None = None
) -> tuple[Tensor, Any]:
    """Read a text in pieces; return all log-probabilities and the last memory."""
    log_probs = []
    for piece in cut(pieces):
        part = None if resets_BT is None else resets_BT[:, piece]
        log_probs_BTV, memory = model.log_probs(tokens_BT[:, piece], memory, part)
        log_probs.append(log_probs_BTV)
    return torch.cat(log_probs, dim=1), memory


def read_session(session: Any, tokens_BT: Tensor, pieces: Sequence[int], resets_BT: Tensor | None = None) -> Tensor:
    parts = [
        session.log_probs(tokens_BT[:, piece], None if resets_BT is None else resets_BT[:, piece])
        for piece in cut(pieces)
    ]
    return torch.cat(parts, dim=1)


def close(actual: Tensor, expected: Tensor, *, within: float = EXACT) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=within)


def difference(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max())


CUTS = [[random.Random(seed).randint(1, 6) for _ in range(random.Random(-seed).randint(2, 5))] for seed in range(1, 7)]


@pytest.mark.parametrize("name", INVARIANT)
def test_with_memory_for_the_whole_text_any_cut_equals_one_pass(name: str) -> None:
    model = model_of(name)
    for number, pieces in enumerate(CUTS):
        length = sum(pieces)
        tokens_BT, resets_BT = tokens(2, length), resets(2, length, seed=number)
        empty = model.empty_memory(2, mem_len=length + number % 3)
        expected, at_once = read(model, tokens_BT, empty, [length], resets_BT)
        actual, memory = read(model, tokens_BT, empty, pieces, resets_BT)
        close(actual, expected)
        close(adapter.contents(memory), adapter.contents(at_once))


@pytest.mark.parametrize("name", ATTENTIVE)
def test_with_same_length_any_cut_equals_one_pass_at_any_mem_len(name: str) -> None:
    model = model_of(name)
    model = model.with_context(clamp_len=model.clamp_len, same_length=True)
    for number, pieces in enumerate(CUTS):
        length, mem_len = sum(pieces), [1, 2, 3, 5, 8, 30][number]
        tokens_BT, resets_BT = tokens(2, length), resets(2, length, seed=number)
        empty = model.empty_memory(2, mem_len=mem_len)
        expected, at_once = read(model, tokens_BT, empty, [length], resets_BT)
        actual, memory = read(model, tokens_BT, empty, pieces, resets_BT)
        close(actual, expected)
        close(adapter.contents(memory), adapter.contents(at_once))


@pytest.mark.parametrize("name", PLACES)
def test_networks_of_places_in_the_segment_read_it_otherwise_when_cut(name: str) -> None:
    model, tokens_BT = model_of(name), tokens(2, 15)
    empty = model.empty_memory(2, mem_len=15)
    at_once, _ = read(model, tokens_BT, empty, [15])
    in_pieces, _ = read(model, tokens_BT, empty, [5, 5, 5])
    close(in_pieces[:, :5], at_once[:, :5])
    assert difference(in_pieces[:, 5:], at_once[:, 5:]) > 1e-3


@pytest.mark.parametrize("name", VARIANTS)
def test_a_session_reads_as_the_model_does(name: str) -> None:
    model = model_of(name)
    for number, pieces in enumerate(CUTS):
        length, mem_len = sum(pieces), [0, 1, 4, 7, 9, 30][number]
        same_length = number % 2 == 1 and name.partition(" ")[0] not in RECURRENT
        tokens_BT, resets_BT = tokens(2, length), resets(2, length, seed=number)
        reader = model.with_context(clamp_len=model.clamp_len, same_length=same_length)
        expected, _ = read(reader, tokens_BT, model.empty_memory(2, mem_len=mem_len), pieces, resets_BT)
        session = txl.stream(model, batch_size=2, mem_len=mem_len, same_length=same_length)
        close(read_session(session, tokens_BT, pieces, resets_BT), expected)


@pytest.mark.parametrize("name", tiny.NETWORKS)
def test_in_float32_a_session_is_within_1e_5_token_by_token(name: str) -> None:
    model, tokens_BT = model_of(name, dtype=torch.float32), tokens(2, 20)
    expected, _ = read(model, tokens_BT, model.empty_memory(2), [1] * 20)
    close(read_session(txl.stream(model, batch_size=2), tokens_BT, [1] * 20), expected, within=1e-5)


@pytest.mark.parametrize("name", tiny.NETWORKS)
def test_lanes_reset_alone_begin_anew_and_the_others_go_on(name: str) -> None:
    model, tokens_BT = model_of(name), tokens(3, 14)
    session, undisturbed = txl.stream(model, batch_size=3), txl.stream(model, batch_size=3)
    for reader in (session, undisturbed):
        read_session(reader, tokens_BT[:, :9], [4, 5])
    session.reset([0, 2])
    new = read_session(txl.stream(model, batch_size=3), tokens_BT[:, 9:], [2, 3])
    old = read_session(undisturbed, tokens_BT[:, 9:], [2, 3])
    actual = read_session(session, tokens_BT[:, 9:], [2, 3])
    close(actual[[0, 2]], new[[0, 2]])
    close(actual[1], old[1])
    assert difference(new[0], old[0]) > 1e-3


@pytest.mark.parametrize("name", VARIANTS)
def test_losses_are_the_log_probabilities_of_the_targets_that_count(name: str) -> None:
    model, tokens_BT, targets_BT = model_of(name), tokens(2, 12), tokens(2, 12, seed=5)
    targets_BT[0, 3] = -100
    memory = other = model.empty_memory(2)
    session = txl.stream(model, batch_size=2)
    for piece in cut([5, 1, 6]):
        log_probs_BTV, memory = model.log_probs(tokens_BT[:, piece], memory)
        nll_BT, other = model.nll(tokens_BT[:, piece], targets_BT[:, piece], other)
        counted_BT = targets_BT[:, piece] >= 0
        target_BT1 = targets_BT[:, piece].clamp(min=0)[..., None]
        close(log_probs_BTV.exp().sum(-1), torch.ones_like(nll_BT))
        close(nll_BT, -log_probs_BTV.gather(-1, target_BT1)[..., 0] * counted_BT)
        close(session.nll(tokens_BT[:, piece], targets_BT[:, piece]), nll_BT)
        assert bool((nll_BT[~counted_BT] == 0).all())
    close(adapter.contents(memory), adapter.contents(other))


@pytest.mark.parametrize("name", tiny.NETWORKS)
@pytest.mark.parametrize("border", [0, 1, 4])
def test_nothing_before_a_documents_first_token_matters_to_its_lane_and_all_to_the_others(
    name: str, border: int
) -> None:
    model, tokens_BT, later = model_of(name), tokens(2, 5), tokens(2, 3, seed=3)
    resets_BT = no_resets_but(2, 5, lane=1, place=border)
    changed = tokens_BT.clone()
    changed[:, :border] = (changed[:, :border] + 1) % V
    results = []
    for text, age in ((tokens_BT, 5), (changed, 9)):
        memory = model(tokens(2, age, seed=age), model.empty_memory(2)).memory
        log_probs_BTV, memory = model.log_probs(text, memory, resets_BT)
        results.append(torch.cat([log_probs_BTV[:, border:], model.log_probs(later, memory).log_probs_BTV], dim=1))
    close(results[0][1], results[1][1])
    assert difference(results[0][0], results[1][0]) > 1e-3


@pytest.mark.parametrize("name", [name for name in INVARIANT if name in tiny.NETWORKS])
def test_a_document_that_begins_inside_a_segment_is_read_as_if_alone(name: str) -> None:
    model, tokens_BT = model_of(name), tokens(2, 15)
    empty = model.empty_memory(2, mem_len=15)
    actual, memory = read(model, tokens_BT, empty, [5, 5, 5], no_resets_but(2, 15, lane=1, place=3))
    alone, memory_alone = read(model, tokens_BT[1:, 3:], model.empty_memory(1, mem_len=15), [2, 5, 5])
    close(actual[1:, 3:], alone)
    kept = adapter.contents(memory_alone)
    close(adapter.contents(memory)[..., 1:, -kept.shape[-2] :, :], kept)


@pytest.mark.parametrize("name", tiny.NETWORKS)
def test_lanes_are_independent(name: str) -> None:
    model, tokens_BT = model_of(name), tokens(3, 12)
    together, _ = read(model, tokens_BT, model.empty_memory(3), [5, 7])
    for lane in range(3):
        alone, _ = read(model, tokens_BT[lane : lane + 1], model.empty_memory(1), [5, 7])
        close(together[lane : lane + 1], alone)


@pytest.mark.parametrize("name", tiny.NETWORKS)
def test_a_token_changes_no_prediction_before_it_and_all_within_reach_after_it(name: str) -> None:
    model, tokens_BT = model_of(name), tokens(1, 5)
    memory = model(tokens(1, 9, seed=9), model.empty_memory(1)).memory
    expected = model.log_probs(tokens_BT, memory).log_probs_BTV
    for place in range(5):
        changed = tokens_BT.clone()
        changed[0, place] = (changed[0, place] + 1) % V
        moved_T = (model.log_probs(changed, memory).log_probs_BTV - expected).abs().amax(dim=-1)[0]
        assert not moved_T[:place].any()
        assert moved_T[place:].min() > 1e-4


@pytest.mark.parametrize("name", ["txl", "txl adaptive", "shaw", "transformer_rope", "vaswani", "al_rfou"])
def test_a_memory_of_zeros_is_attended_to_and_an_empty_one_has_none(name: str) -> None:
    model, tokens_BT = model_of(name), tokens(2, 5)
    empty, zeros = model.empty_memory(2), model.zero_memory(2)
    assert empty.length_B.tolist() == [0, 0]
    assert zeros.length_B.tolist() == [MEM_LEN, MEM_LEN]
    assert not adapter.contents(zeros).any()
    assert empty.mem_len == zeros.mem_len == MEM_LEN
    assert difference(model.log_probs(tokens_BT, empty)[0], model.log_probs(tokens_BT, zeros)[0]) > 1e-3


def likeliest(model: Any, ids: list[int], *, segment_len: int, by_places: bool) -> int:
    """Read everything again, in the segments in which it was read, and return the likeliest, old ones penalised."""
    memory, held = model.empty_memory(1), sorted(set(ids))
    while by_places and len(ids) > segment_len:
        memory = model(torch.tensor([ids[:segment_len]]), memory).memory
        ids = ids[segment_len:]
    log_probs_V = model.log_probs(torch.tensor([ids]), memory).log_probs_BTV[0, -1].clone()
    log_probs_V[held] *= PENALTY
    return int(log_probs_V.argmax())


@pytest.mark.parametrize("name", [*tiny.NETWORKS, "txl adaptive", "txl clamped"])
def test_generated_tokens_are_those_of_reading_all_again(name: str) -> None:
    mem_len = 1 if name in RECURRENT else 20
    model = model_of(name, f"model.mem_len={mem_len}", "model.tie_weights=false")  # tied, it repeats itself
    prompt = ids = [3, 1, 4, 1, 5, 9, 2]
    for _ in range(8):
        ids = [*ids, likeliest(model, ids, segment_len=5, by_places=name in PLACES)]
    state = torch.get_rng_state()
    for end in range(len(prompt), len(ids)):
        drawn = txl.generate(
            model, ids[:end], n_tokens=len(ids) - end, temperature=0, segment_len=5, repetition_penalty=PENALTY
        )
        assert list(drawn) == ids[end:]
    assert torch.equal(torch.get_rng_state(), state)
    assert len(set(ids[len(prompt) :])) > 3


@pytest.mark.parametrize("same_length", [False, True])
def test_generation_with_a_short_memory_is_that_of_a_session(same_length: bool) -> None:
    model, prompt = model_of("txl"), tokens(12).tolist()
    session = txl.stream(model, batch_size=1, mem_len=3, same_length=same_length)
    for piece in (prompt[:2], prompt[2:7], prompt[7:]):
        log_probs = session.log_probs(torch.tensor([piece]))
    expected = []
    for _ in range(8):
        expected.append(int(log_probs[0, -1].argmax()))
        log_probs = session.log_probs(torch.tensor([expected[-1:]]))
    drawn = txl.generate(model, prompt, n_tokens=8, temperature=0, segment_len=5, mem_len=3, same_length=same_length)
    assert list(drawn) == expected
