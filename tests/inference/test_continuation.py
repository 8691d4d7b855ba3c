"""Tokens drawn one by one, against reading everything again for each, and texts made together against each alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import transformer_xl as txl
from tests.model.kinds import INVARIANT, KINDS, OF_PLACES, model_of
from tests.model.tiny import V, random_tokens
from transformer_xl.errors import UserError
from transformer_xl.inference.continuation import Continuation, sample_tokens
from transformer_xl.inference.drawing import Drawer, choices, seed_of_text
from transformer_xl.inference.drawing_rule import DrawingRule
from transformer_xl.inference.reading_on import ReadingRule
from transformer_xl.model.base import LanguageModel

SEGMENT_LEN = 5
PROMPT = [3, 1, 4, 1, 5, 9, 2]
DRAWN = 8
GREEDY = DrawingRule(temperature=0.0)
DRAWING = DrawingRule(temperature=1.0, top_p=0.9, repetition_penalty=1.1)


def drawn(model: LanguageModel, prompt: list[int], n_tokens: int) -> list[int]:
    return sample_tokens(model, prompt, n_tokens=n_tokens, segment_len=SEGMENT_LEN, drawing=GREEDY, seed=1)


def continued(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    drawing: DrawingRule = GREEDY,
    reading: ReadingRule | None = None,
    n_tokens: int = DRAWN,
) -> list[list[int]]:
    reading = reading or ReadingRule(segment_len=SEGMENT_LEN)
    continuation = Continuation(model, drawing=drawing, reading=reading, seeds=[7] * len(prompts))
    continuation.add(prompts)
    texts: list[list[int]] = [[] for _ in prompts]
    for _ in range(n_tokens):
        tokens = continuation.draw()
        continuation.add([[token] for token in tokens])
        for text, token in zip(texts, tokens, strict=True):
            text.append(token)
    return texts


@torch.no_grad()
def likeliest(model: LanguageModel, tokens: list[int]) -> int:
    """Read everything at once with the memory of nothing, or what the model can see of it."""
    if model.mem_len == 0:
        tokens = tokens[-SEGMENT_LEN:]
    memory = model.empty_memory(1)
    if not model.relative:
        while len(tokens) > SEGMENT_LEN:
            memory = model(torch.tensor([tokens[:SEGMENT_LEN]]), memory).memory
            tokens = tokens[SEGMENT_LEN:]
    return int(model.log_probs(torch.tensor([tokens]), memory).log_probs_BTV[0, -1].argmax())


@pytest.mark.parametrize(("kind", "mem_len"), [*((kind, 20) for kind in KINDS), ("transformer_xl", 0), ("lstm", 0)])
def test_greedy_tokens_are_those_of_reading_all_again_wherever_the_prompt_ends(kind: str, mem_len: int) -> None:
    model = model_of(kind, mem_len=mem_len)
    tokens = list(PROMPT)
    for _ in range(DRAWN):
        tokens.append(likeliest(model, tokens))
    for end in range(len(PROMPT), len(tokens)):
        assert drawn(model, tokens[:end], len(tokens) - end) == tokens[end:]
        # in pieces
        assert continued(model, [tokens[:end]], n_tokens=len(tokens) - end) == [tokens[end:]]


@pytest.mark.parametrize("same_length", [False, True])
def test_with_a_memory_shorter_than_the_text_they_are_those_of_a_session_that_reads_the_same_pieces(
    same_length: bool,
) -> None:
    model, prompt = model_of("transformer_xl", mem_len=30), random_tokens(12).tolist()
    session = txl.stream(model, batch_size=1, mem_len=3, same_length=same_length)
    expected = []
    piece = [prompt[:2], prompt[2:7], prompt[7:]]
    log_probs = [session.log_probs(torch.tensor([tokens])) for tokens in piece][-1]
    for _ in range(DRAWN):
        expected.append(int(log_probs[0, -1].argmax()))
        log_probs = session.log_probs(torch.tensor([expected[-1:]]))
    reading = ReadingRule(segment_len=SEGMENT_LEN, mem_len=3, same_length=same_length)
    assert continued(model, [prompt], reading=reading) == [expected]


@pytest.mark.parametrize("kind", INVARIANT)
def test_a_model_of_distances_reads_each_token_once(kind: str) -> None:
    model = model_of(kind)
    read: list[int] = []
    model.embedding.register_forward_hook(lambda _, inputs, output: read.append(inputs[0].shape[1]))
    drawn(model, PROMPT, 4)
    assert read == [len(PROMPT), 1, 1, 1]
    read.clear()
    continued(model, [PROMPT], n_tokens=3)
    assert read == [2, 5, 1, 1]


@pytest.mark.parametrize("kind", OF_PLACES)
def test_a_model_of_places_reads_no_more_than_a_segment_for_a_token(kind: str) -> None:
    model = model_of(kind)
    read: list[int] = []
    model.embedding.register_forward_hook(lambda _, inputs, output: read.append(inputs[0].shape[1]))
    continued(model, [PROMPT], n_tokens=5)
    assert read == [5, 2, 3, 4, 5, 5, 1]


@pytest.mark.parametrize("drawing", [GREEDY, DRAWING], ids=["greedy", "drawn"])
@pytest.mark.parametrize("kind", INVARIANT)
def test_texts_of_unequal_length_go_on_together_as_each_does_alone(kind: str, drawing: DrawingRule) -> None:
    model = model_of(kind)
    prompts = [random_tokens(length, seed=length).tolist() for length in (13, 1, 6, 20)]
    for mem_len in (3, 40):
        reading = ReadingRule(segment_len=SEGMENT_LEN, mem_len=mem_len)
        alone = [continued(model, [prompt], drawing=drawing, reading=reading)[0] for prompt in prompts]
        assert continued(model, prompts, drawing=drawing, reading=reading) == alone
        assert continued(model, prompts[::-1], drawing=drawing, reading=reading) == alone[::-1]
    assert len(set(map(tuple, alone))) > 1


@pytest.mark.parametrize("kind", OF_PLACES)
def test_texts_of_equal_length_go_on_together_as_each_does_alone(kind: str) -> None:
    model = model_of(kind)
    prompts = [random_tokens(12, seed=seed).tolist() for seed in (1, 2, 3)]
    alone = [continued(model, [prompt], drawing=DRAWING)[0] for prompt in prompts]
    assert continued(model, prompts, drawing=DRAWING) == alone


def test_draws_follow_their_seed_and_leave_global_randomness_alone() -> None:
    model, before = model_of("transformer_xl"), torch.get_rng_state()
    drawing = DrawingRule(temperature=1.0, top_k=9)
    texts = [
        sample_tokens(model, PROMPT, n_tokens=9, segment_len=SEGMENT_LEN, drawing=drawing, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_each_number_has_a_seed_of_its_own_and_the_first_the_given_one() -> None:
    seeds = [seed_of_text(5, number) for number in range(100)]
    assert seeds[0] == 5
    assert len(set(seeds) | {seed_of_text(6, number) for number in range(100)}) == 200


@pytest.mark.parametrize("top_k", [None, 5])
def test_a_seed_draws_what_it_has_always_drawn(top_k: int | None) -> None:
    """Training's samples, as they were before there were other rules."""
    log_probs, rule = torch.randn(40, V, generator=torch.Generator().manual_seed(3)).log_softmax(dim=-1), 0.8
    generator, expected = torch.Generator().manual_seed(11), []
    for row in log_probs:
        kept, tokens = row.topk(top_k or V)
        choice = torch.multinomial(((kept - kept.max()) / rule).softmax(dim=-1), 1, generator=generator)
        expected.append(int(tokens[choice]))
    drawer = Drawer(DrawingRule(temperature=rule, top_k=top_k), seed=11, vocab_size=V)
    assert [drawer.draw(row) for row in log_probs] == expected


def plain_probabilities(log_probs: list[float], rule: DrawingRule) -> dict[int, float]:
    """Follow the definitions word by word."""
    scores = torch.tensor(log_probs, dtype=torch.float64) / rule.temperature
    order = sorted(range(len(log_probs)), key=lambda token: -log_probs[token])
    left = order[: rule.top_k or len(order)]

    def share() -> dict[int, float]:
        return dict(zip(left, scores[left].softmax(0).tolist(), strict=True))

    if rule.top_p is not None:
        together, nucleus = 0.0, []
        for token, probability in share().items():
            nucleus.append(token)
            together += probability
            if together >= rule.top_p:
                break
        left = nucleus
    if rule.min_p is not None:
        shares = share()
        left = [token for token in left if shares[token] >= rule.min_p * max(shares.values())]
    return share()


@pytest.mark.parametrize(
    "rule",
    [
        DrawingRule(temperature=0.7),
        DrawingRule(temperature=1.5, top_k=6),
        DrawingRule(temperature=1.0, top_p=0.5),
        DrawingRule(temperature=1.0, top_p=1e-9),
        DrawingRule(temperature=1.0, top_p=1.0),
        DrawingRule(temperature=1.3, min_p=0.2),
        DrawingRule(temperature=1.0, min_p=1.0),
        DrawingRule(temperature=2.0, top_k=20, top_p=0.8, min_p=0.3),
    ],
    ids=str,
)
def test_filters_leave_what_their_definitions_leave(rule: DrawingRule) -> None:
    log_probs = (2 * random_tokens(V, seed=4).double().sin()).log_softmax(dim=-1)
    log_probs += 1e-3 * torch.arange(V)  # no two alike
    tokens, weights = choices(log_probs, rule)
    expected = plain_probabilities(log_probs.tolist(), rule)
    left = {int(token): float(weight) for token, weight in zip(tokens, weights, strict=True) if weight > 0}
    assert left.keys() == expected.keys()
    total = sum(left.values())
    for token, probability in expected.items():
        assert left[token] / total == pytest.approx(probability, rel=1e-9)


def test_the_penalty_multiplies_log_probabilities_of_what_the_text_holds() -> None:
    log_probs = torch.tensor([0.5, 0.3, 0.2]).log()
    drawer = Drawer(DrawingRule(temperature=0.0, repetition_penalty=2.0), seed=1, vocab_size=3)
    assert drawer.draw(log_probs) == 0
    drawer.hold([0])  # 0.5 becomes 0.25
    assert drawer.draw(log_probs) == 1
    drawer.hold([1])  # 0.3 becomes 0.09, 0.2 stays
    assert drawer.draw(log_probs) == 0
    drawer.hold([2])
    assert drawer.draw(log_probs) == 0


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-46, 1e-39, 1e-37])
def test_at_a_temperature_too_small_for_float32_the_likeliest_token_is_taken(temperature: float) -> None:
    log_probs = torch.randn(V, generator=torch.Generator().manual_seed(3)).log_softmax(dim=-1)
    drawer = Drawer(DrawingRule(temperature=temperature, top_p=0.9, min_p=0.1), seed=1, vocab_size=V)
    assert {drawer.draw(log_probs) for _ in range(5)} == {int(log_probs.argmax())}


@pytest.mark.parametrize("penalty", [1e-6, 1e6])
def test_the_strongest_penalties_leave_something_to_draw_where_the_text_holds_all(penalty: float) -> None:
    rule = DrawingRule(temperature=0.8, repetition_penalty=penalty)
    assert rule.problems() == []
    drawer = Drawer(rule, seed=1, vocab_size=V)
    drawer.hold(range(V))
    drawn = drawer.draw((100 * torch.randn(V, generator=torch.Generator().manual_seed(3))).log_softmax(dim=-1))
    assert 0 <= drawn < V


def test_predictions_that_are_no_numbers_are_named() -> None:
    model = model_of("transformer_xl")
    with torch.no_grad():
        model.embedding.weights[0].fill_(torch.nan)
    with pytest.raises(UserError, match="predicts NaN"):
        drawn(model, PROMPT, 1)
