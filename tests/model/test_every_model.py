"""What every kind of model promises, whatever it is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model.kinds import (
    INVARIANT,
    KINDS,
    RECURRENT,
    TRANSFORMERS,
    aged,
    config_of,
    contents,
    model_of,
    one_reset,
)
from tests.model.tiny import SEGMENT_LEN, V, assert_equal_to, difference, random_tokens, read
from transformer_xl.model.base import make_model
from transformer_xl.model.memory import join_lanes, memory_from_state_dict

EXACT = 1e-9
ADAPTIVE = {"cutoffs": [8, 20], "div_val": 2, "d_embed": 12}
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.parametrize("vocabulary", [{}, ADAPTIVE], ids=["one softmax", "adaptive"])
def test_probabilities_sum_to_one_and_losses_are_theirs(kind: str, vocabulary: dict[str, Any]) -> None:
    model = model_of(kind, **vocabulary)
    (memory,) = aged(model, 9)
    tokens_BT, targets_BT = random_tokens(1, SEGMENT_LEN), random_tokens(1, SEGMENT_LEN, seed=2)
    targets_BT[0, 1] = -100
    log_probs_BTV, after = model.log_probs(tokens_BT, memory)
    nll_BT, after_nll = model.nll(tokens_BT, targets_BT, memory)
    assert log_probs_BTV.shape == (1, SEGMENT_LEN, V)
    assert model(tokens_BT, memory).hidden_BTD.shape == (1, SEGMENT_LEN, 16)
    assert_equal_to(log_probs_BTV.exp().sum(-1), torch.ones(1, SEGMENT_LEN, dtype=torch.float64), within=1e-12)
    counted = targets_BT >= 0
    expected_BT = -log_probs_BTV.gather(-1, targets_BT.clamp(min=0)[..., None])[..., 0] * counted
    assert_equal_to(nll_BT, expected_BT, within=1e-12)
    assert torch.equal(contents(after_nll), contents(after))
    assert difference(contents(after), contents(memory)) > 1e-3


@every_kind
def test_a_token_changes_no_prediction_before_it_and_all_from_it_on(kind: str) -> None:
    model = model_of(kind)
    (memory,) = aged(model, 9)
    tokens_BT = random_tokens(1, SEGMENT_LEN, seed=2)
    expected, _ = model.log_probs(tokens_BT, memory)
    for t in range(SEGMENT_LEN):
        changed = tokens_BT.clone()
        changed[0, t] = (changed[0, t] + 1) % V
        moved_T = (model.log_probs(changed, memory).log_probs_BTV - expected).abs().amax(dim=-1)[0]
        assert not moved_T[:t].any()
        assert moved_T[t:].min() > 1e-4


@every_kind
def test_lanes_of_different_age_in_one_batch_equal_each_alone(kind: str) -> None:
    model = model_of(kind)
    alone = aged(model, 0, 2, 5, 9)
    together = join_lanes(alone)
    assert together.batch_size == 4
    for seed in (10, 11):
        tokens_BT = random_tokens(4, SEGMENT_LEN, seed=seed)
        log_probs_BTV, together = model.log_probs(tokens_BT, together)
        for lane in range(4):
            expected, alone[lane] = model.log_probs(tokens_BT[lane : lane + 1], alone[lane])
            assert_equal_to(log_probs_BTV[lane : lane + 1], expected, within=EXACT)


@every_kind
def test_lanes_cut_and_joined_again_read_on_as_if_they_never_were(kind: str) -> None:
    model = model_of(kind)
    memory = join_lanes(aged(model, 2, 5, 9))
    joined = join_lanes([memory.lanes(slice(0, 2)), memory.lanes(slice(2, 3)).to("cpu")])
    tokens_BT = random_tokens(3, SEGMENT_LEN)
    assert torch.equal(model(tokens_BT, joined).hidden_BTD, model(tokens_BT, memory).hidden_BTD)
    part = memory.lanes(slice(0, 1))
    before = contents(memory).clone()
    contents(part).fill_(7.0)
    assert torch.equal(contents(memory), before)


@every_kind
def test_memory_survives_a_checkpoint_that_can_hold_no_code(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    (memory,) = aged(model, 9)
    torch.save(memory.state_dict(), tmp_path / "memory.pt")
    loaded = memory_from_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    assert type(loaded) is type(memory)
    assert loaded.state_dict().keys() == memory.state_dict().keys()
    tokens_BT = random_tokens(1, SEGMENT_LEN)
    assert torch.equal(model(tokens_BT, loaded).hidden_BTD, model(tokens_BT, memory).hidden_BTD)


@every_kind
def test_a_call_leaves_its_input_memory_unchanged(kind: str) -> None:
    model = model_of(kind).train()
    memory = join_lanes(aged(model, 9, 5))
    before = contents(memory).clone()
    tokens_BT = random_tokens(2, SEGMENT_LEN)
    losses, after = model.nll(tokens_BT, tokens_BT, memory, one_reset(2, SEGMENT_LEN, lane=1, place=2))
    losses.sum().backward()
    contents(after).fill_(7.0)
    assert torch.equal(contents(memory), before)


@every_kind
def test_a_reset_at_a_segments_first_token_reads_as_the_document_alone(kind: str) -> None:
    model = model_of(kind)
    memory = join_lanes(aged(model, 9, 9))
    tokens_BT = random_tokens(2, 2 * SEGMENT_LEN)
    resets_BT = one_reset(2, 2 * SEGMENT_LEN, lane=1, place=0)
    pieces = [SEGMENT_LEN, SEGMENT_LEN]
    actual, after = read(model, tokens_BT, memory, pieces, resets_BT)
    undisturbed, _ = read(model, tokens_BT, memory, pieces)
    alone, after_alone = read(model, tokens_BT[1:], model.empty_memory(1), pieces)
    assert_equal_to(actual[1:], alone, within=EXACT)
    assert_equal_to(actual[:1], undisturbed[:1], within=EXACT)
    assert difference(actual[1], undisturbed[1]) > 1e-3
    assert_equal_to(contents(after)[:, 1:], contents(after_alone), within=EXACT)


@every_kind
@pytest.mark.parametrize("border", [1, SEGMENT_LEN - 1])
def test_nothing_before_a_reset_matters_after_it_to_its_lane_and_all_to_the_others(kind: str, border: int) -> None:
    model = model_of(kind)
    (first, second) = aged(model, 9, 5)
    resets_BT = one_reset(2, SEGMENT_LEN, lane=1, place=border)
    tokens_BT = random_tokens(2, SEGMENT_LEN)
    changed = tokens_BT.clone()
    changed[:, :border] = (changed[:, :border] + 1) % V
    follow_up = random_tokens(2, 3, seed=3)
    results = []
    for text, memory in ((tokens_BT, join_lanes([first, second])), (changed, join_lanes([second, first]))):
        log_probs_BTV, after = model.log_probs(text, memory, resets_BT)
        results.append(torch.cat([log_probs_BTV[:, border:], model.log_probs(follow_up, after).log_probs_BTV], dim=1))
    assert_equal_to(results[0][1], results[1][1], within=EXACT)
    assert difference(results[0][0], results[1][0]) > 1e-3


@pytest.mark.parametrize("kind", INVARIANT)
@pytest.mark.parametrize("border", [1, SEGMENT_LEN - 1])
def test_a_reset_inside_a_segment_reads_as_the_document_alone(kind: str, border: int) -> None:
    model = model_of(kind)
    tokens_BT = random_tokens(2, 3 * SEGMENT_LEN)
    resets_BT = one_reset(2, 3 * SEGMENT_LEN, lane=1, place=border)
    resets_BT[0, 0] = True
    empty = model.empty_memory(2, mem_len=3 * SEGMENT_LEN)
    actual, memory = read(model, tokens_BT, empty, [SEGMENT_LEN] * 3, resets_BT)
    document = tokens_BT[1:, border:]
    alone, memory_alone = read(
        model, document, model.empty_memory(1, mem_len=3 * SEGMENT_LEN), [SEGMENT_LEN - border, 5, 5]
    )
    assert_equal_to(actual[1:, border:], alone, within=EXACT)
    kept = contents(memory_alone)
    assert_equal_to(contents(memory)[:, 1:, -kept.shape[2] :], kept, within=EXACT)


@every_kind
def test_without_memory_every_segment_is_read_as_the_first(kind: str) -> None:
    model = model_of(kind, mem_len=0)
    memory = model.empty_memory(2)
    for seed in range(3):
        tokens_BT = random_tokens(2, SEGMENT_LEN, seed=seed)
        log_probs_BTV, memory = model.log_probs(tokens_BT, memory)
        fresh = model.log_probs(tokens_BT, model.empty_memory(2, mem_len=7)).log_probs_BTV
        assert torch.equal(log_probs_BTV, fresh)
        assert not contents(memory).any()
    assert model.memory_size(0) == 0


@every_kind
def test_with_memory_a_segment_is_read_otherwise_than_the_first(kind: str) -> None:
    model = model_of(kind, mem_len=1)
    (memory,) = aged(model, 9)
    tokens_BT = random_tokens(1, SEGMENT_LEN)
    with_memory = model.log_probs(tokens_BT, memory).log_probs_BTV
    assert difference(with_memory, model.log_probs(tokens_BT, model.empty_memory(1)).log_probs_BTV) > 1e-3


@every_kind
def test_a_full_memory_holds_as_many_numbers_as_said(kind: str) -> None:
    model = model_of(kind)
    assert contents(aged(model, 20)[0]).numel() == model.memory_size(7) > 0
    assert contents(model.zero_memory(1)).numel() == model.memory_size(7)


@every_kind
def test_a_negative_mem_len_and_lanes_that_differ_are_refused(kind: str) -> None:
    model = model_of(kind)
    with pytest.raises(ValueError, match="mem_len is -1"):
        model.empty_memory(2, mem_len=-1)
    with pytest.raises(ValueError, match=r"3 lanes .* 2"):
        model(random_tokens(3, SEGMENT_LEN), model.empty_memory(2))


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"transformer_xl", "shaw"}))
def test_a_clamp_len_is_refused_by_models_that_know_no_distances(kind: str) -> None:
    model = model_of(kind)
    twin = model.with_context(clamp_len=3, same_length=False)
    with pytest.raises(ValueError, match="clamp_len is 3, and must be null for "):
        twin(random_tokens(1, SEGMENT_LEN), model.empty_memory(1))


@pytest.mark.parametrize("kind", RECURRENT)
def test_same_length_is_refused_by_models_that_know_no_keys(kind: str) -> None:
    model = model_of(kind).with_context(clamp_len=None, same_length=True)
    with pytest.raises(ValueError, match=f"same_length is true, and must be false for {kind}"):
        model(random_tokens(1, SEGMENT_LEN), model.empty_memory(1))


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_same_length_hides_what_is_further_than_mem_len(kind: str) -> None:
    model = model_of(kind, n_layer=1).with_context(clamp_len=None, same_length=True)
    tokens_BT, changed = random_tokens(1, SEGMENT_LEN), random_tokens(1, SEGMENT_LEN)
    changed[0, 0] = (changed[0, 0] + 1) % V
    empty = model.empty_memory(1, mem_len=3)
    moved = (model.log_probs(tokens_BT, empty).log_probs_BTV - model.log_probs(changed, empty).log_probs_BTV).abs()
    assert moved[0, :3].amax(-1).min() > 1e-4
    assert not moved[0, 3:].any()


@every_kind
def test_a_half_precision_model_still_scores_in_float32(kind: str) -> None:
    model = model_of(kind, dtype=torch.bfloat16)
    tokens_BT, memory = random_tokens(2, SEGMENT_LEN), model.empty_memory(2)
    for _ in range(2):
        log_probs_BTV, memory = model.log_probs(tokens_BT, memory)
        assert contents(memory).dtype == torch.bfloat16
        assert log_probs_BTV.dtype == torch.float32


@every_kind
def test_no_number_is_fetched_from_the_device_to_read_a_segment_without_resets(kind: str) -> None:
    with torch.device("meta"):
        model = make_model(config_of(kind), vocab_size=V)
        memory = model.empty_memory(2)
        for _ in range(2):
            nll_BT, memory = model.nll(random_tokens_on_meta(), random_tokens_on_meta(), memory)
    assert nll_BT.shape == (2, SEGMENT_LEN)


def random_tokens_on_meta() -> torch.Tensor:
    return torch.empty(2, SEGMENT_LEN, dtype=torch.int64, device="meta")
