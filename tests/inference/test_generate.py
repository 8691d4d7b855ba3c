"""`txl.generate` and what it is made of: samples, texts made together against each alone, stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

import transformer_xl as txl
from tests.conftest import REPOSITORY
from tests.model.kinds import INVARIANT, KINDS, OF_PLACES, model_of
from tests.model.tiny import V, random_tokens
from transformer_xl.data.characters import ByteTokenizer, CharTokenizer, SymbolTokenizer
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data.words import SentenceTokenizer, WordTokenizer
from transformer_xl.errors import UserError
from transformer_xl.inference.generate import (
    Continuation,
    Session,
    filtered,
    first_tokens,
    generate,
    sample,
)
from transformer_xl.inference_config import SamplingParams
from transformer_xl.model.base import LanguageModel

SEGMENT_LEN = 5
PROMPT = [3, 1, 4, 1, 5, 9, 2]
SAMPLED = 8
GREEDY = {"temperature": 0.0}
WARM = {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.1}


def params_of(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "n_tokens": 99, **changes})


def continued(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    how: dict[str, float] = GREEDY,
    n_tokens: int = SAMPLED,
    **lengths: Any,
) -> list[list[int]]:
    context = model.own_context(segment_len=SEGMENT_LEN).resolved(**lengths)
    params = params_of(**how, n_tokens=n_tokens)
    session = Session(model, context, params, seed=7, tokenizer=None, samples=[0] * len(prompts))
    assert len(list(session.continued(prompts))) == n_tokens
    return [text.tokens for text in session.texts]


LETTERS = CharTokenizer([*"\nabcdefghijklmnopqrstuvwxyz .,", "<eod>", "<unk>"])
assert LETTERS.size == V


def writer_of_letters(**changes: Any) -> Any:
    model = model_of("transformer_xl", **changes)
    model.vocabulary = LETTERS
    return model


@pytest.mark.parametrize("same_length", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_of_a_long_prompt_no_more_is_read_than_the_next_token_can_depend_on(kind: str, same_length: bool) -> None:
    """And it is the token that reading all of it gives."""
    model = model_of(kind, mem_len=7)
    if same_length and not model.attends:
        pytest.skip("a state sees all")
    prompt = random_tokens(203).tolist()
    reader = model.with_context(clamp_len=model.clamp_len, same_length=same_length)
    memory, starts = reader.empty_memory(1), range(0, 203, SEGMENT_LEN)
    if model.relative:  # whose pieces end where the prompt does
        starts = range(-2, 203, SEGMENT_LEN)
    with torch.no_grad():
        for start in starts:
            piece = torch.tensor([prompt[max(start, 0) : start + SEGMENT_LEN]])
            log_probs, memory = reader.log_probs(piece, memory)
    expected = int(log_probs[0, -1].argmax())
    read: list[int] = []
    model.embedding.register_forward_hook(lambda _, inputs, output: read.append(inputs[0].shape[1]))
    assert continued(model, [prompt], n_tokens=1, same_length=same_length) == [[expected]]
    if model.attends:
        assert sum(read) <= (1 + 2 * 2) * SEGMENT_LEN  # two layers that look back over two segments each
    else:
        assert read == [203]


@pytest.mark.parametrize("kind", INVARIANT)
def test_texts_of_unequal_length_go_on_together_as_each_does_alone(kind: str) -> None:
    model = model_of(kind)
    prompts = [random_tokens(length, seed=length).tolist() for length in (13, 1, 6, 20)]
    for mem_len in (3, 40):
        alone = [continued(model, [prompt], how=WARM, mem_len=mem_len)[0] for prompt in prompts]
        assert continued(model, prompts, how=WARM, mem_len=mem_len) == alone
        assert continued(model, prompts[::-1], how=WARM, mem_len=mem_len) == alone[::-1]
    assert len(set(map(tuple, alone))) > 1


@pytest.mark.parametrize("kind", OF_PLACES)
def test_texts_of_equal_length_go_on_together_as_each_does_alone(kind: str) -> None:
    model = model_of(kind)
    prompts = [random_tokens(12, seed=seed).tolist() for seed in (1, 2, 3)]
    alone = [continued(model, [prompt], how=WARM)[0] for prompt in prompts]
    assert continued(model, prompts, how=WARM) == alone


def plain_probabilities(log_probs: list[float], params: SamplingParams) -> dict[int, float]:
    """Follow the definitions word by word."""
    scores = torch.tensor(log_probs, dtype=torch.float64) / params.temperature
    order = sorted(range(len(log_probs)), key=lambda token: -log_probs[token])
    left = order[: params.top_k or len(order)]

    def share() -> dict[int, float]:
        return dict(zip(left, scores[left].softmax(0).tolist(), strict=True))

    if params.top_p is not None:
        together, nucleus = 0.0, []
        for token, probability in share().items():
            nucleus.append(token)
            together += probability
            if together >= params.top_p:
                break
        left = nucleus
    if params.min_p is not None:
        shares = share()
        left = [token for token in left if shares[token] >= params.min_p * max(shares.values())]
    return share()


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 0.7},
        {"temperature": 1.5, "top_k": 6},
        {"top_p": 0.5},
        {"top_p": 1e-9},
        {"temperature": 1.3, "min_p": 0.2},
        {"temperature": 2.0, "top_k": 20, "top_p": 0.8, "min_p": 0.3},
    ],
    ids=str,
)
def test_filters_leave_what_their_definitions_leave(how: dict[str, Any]) -> None:
    params = params_of(**how)
    log_probs = (2 * random_tokens(V, seed=4).double().sin()).log_softmax(dim=-1)
    log_probs += 1e-3 * torch.arange(V)  # no two alike
    tokens, weights = filtered(log_probs, params)
    expected = plain_probabilities(log_probs.tolist(), params)
    left = {int(token): float(weight) for token, weight in zip(tokens, weights, strict=True) if weight > 0}
    assert left.keys() == expected.keys()
    total = sum(left.values())
    for token, probability in expected.items():
        assert left[token] / total == pytest.approx(probability, rel=1e-9)


def drawn(log_probs: torch.Tensor, present: list[int], **how: Any) -> int:
    held = torch.zeros(len(log_probs), dtype=torch.bool)
    held[present] = True
    return int(sample(log_probs, held, params_of(**how), torch.Generator().manual_seed(1)))


def test_the_penalty_multiplies_log_probabilities_of_what_the_text_holds() -> None:
    log_probs = torch.tensor([0.5, 0.3, 0.2]).log()
    found = [drawn(log_probs, held, temperature=0.0, repetition_penalty=2.0) for held in ([], [0], [0, 1], [0, 1, 2])]
    assert found == [0, 1, 0, 0]  # 0.5 becomes 0.25, 0.3 becomes 0.09


@pytest.mark.parametrize("temperature", [5e-324, 1e-46, 1e-37])
def test_at_a_temperature_too_small_for_float32_the_likeliest_token_is_taken(temperature: float) -> None:
    log_probs = torch.randn(V, generator=torch.Generator().manual_seed(3)).log_softmax(dim=-1)
    assert drawn(log_probs, [], temperature=temperature, top_p=0.9, min_p=0.1) == int(log_probs.argmax())


def test_predictions_that_are_no_numbers_are_named() -> None:
    model = model_of("transformer_xl")
    with torch.no_grad():
        model.embedding.weights[0].fill_(torch.nan)
    with pytest.raises(UserError, match="predicts NaN"):
        continued(model, [PROMPT], n_tokens=1)


def up_to_a_stop(text: str, stops: list[str]) -> str:
    """Look at longer and longer beginnings of the text."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


BYTES = ByteTokenizer(end_of_document=True)


def grown(
    tokenizer: Tokenizer, ids: Sequence[int], *, stops: list[str], n_tokens: int = 99
) -> tuple[str, Continuation]:
    end = tokenizer.end_of_document
    continuation = Continuation(tokenizer, params_of(n_tokens=n_tokens, stop=stops), end=end)
    text = ""
    for number in ids:
        text += continuation.append(number)
        if continuation.ended is not None:
            break
    return text, continuation


@given(
    text=st.text("ab\u4e16", min_size=1, max_size=30),
    stops=st.lists(st.text("ab\u4e16", min_size=1, max_size=4), max_size=3),
)
def test_nothing_of_a_stop_string_nor_after_it_passes(text: str, stops: list[str]) -> None:
    ids = [*text.encode()]
    found, continuation = grown(BYTES, ids, stops=stops, n_tokens=len(ids))
    assert found == up_to_a_stop(text, stops)
    assert continuation.ended == ("stop" if any(stop in text for stop in stops) else "n_tokens")


def test_only_what_could_begin_a_stop_string_waits() -> None:
    continuation = Continuation(BYTES, params_of(stop=["<end>", "\n\n"]))
    assert [continuation.append(number) for number in b"e\nt<en<"] == ["e", "", "\nt", "", "", "", "<en"]


def test_a_text_ends_by_length_stop_or_document_and_gives_all_that_waits() -> None:
    half = list("ab\u4e16".encode())[:-1]
    text, found = grown(BYTES, half, stops=["bc"], n_tokens=4)
    assert (text, found.ended, found.tokens) == ("ab\ufffd", "n_tokens", half)
    text, found = grown(BYTES, [*b"ab", 256, *b"c"], stops=["bc"])
    assert (text, found.ended, found.tokens) == ("ab", "document", [*b"ab"])
    text, found = grown(BYTES, [*b"abcd"], stops=["bc"])
    assert (text, found.ended, found.tokens) == ("a", "stop", [*b"abc"])
    text, found = grown(BYTES, [*b"abc"], stops=["bc"], n_tokens=3)
    assert (text, found.ended) == ("a", "stop")
    words = WordTokenizer(["<eos>", "<unk>", "the", "end"])
    text, found = grown(words, [2, 2, 3, 2], stops=["the end"])
    assert (text, found.ended) == ("the ", "stop")


def test_a_text_is_continued_with_text_and_ids_with_the_same_ids() -> None:
    model = writer_of_letters()
    text = "".join(generate(model, "once upon", n_tokens=20, temperature=1.0, seed=3, end_at_document=False))
    ids = list(
        generate(model, LETTERS.encode("once upon"), n_tokens=20, temperature=1.0, seed=3, end_at_document=False)
    )
    assert len(ids) == 20
    assert text == LETTERS.decode(ids)
    for same in (torch.tensor([1, 2]), torch.tensor([[1, 2]]), np.array([1, 2]), (1, 2)):
        assert list(generate(model, same, n_tokens=3)) == list(generate(model, [1, 2], n_tokens=3))
    assert txl.generate is generate


VOCABULARIES: list[tuple[Tokenizer, list[int]]] = [
    (ByteTokenizer(), [10]),
    (ByteTokenizer(end_of_document=True), [256]),
    (CharTokenizer(["a", "\n"]), [1]),
    (CharTokenizer(["a", " "]), [1]),
    (WordTokenizer(["<eos>", "<unk>", "a"]), [0]),
    (SentenceTokenizer(["a", "<S>", "<UNK>"]), [1]),
    (SymbolTokenizer(4, end_of_document=True), [3]),
]


@pytest.mark.parametrize(("vocabulary", "expected"), VOCABULARIES, ids=lambda value: getattr(value, "kind", ""))
def test_a_text_without_a_prompt_begins_after_a_document_or_line(vocabulary: Tokenizer, expected: list[int]) -> None:
    assert first_tokens(vocabulary) == expected


def test_without_anything_to_begin_after_a_prompt_is_asked_for() -> None:
    for vocabulary in (CharTokenizer(["a", "<unk>"]), SymbolTokenizer(4)):
        with pytest.raises(UserError, match="give a prompt"):
            first_tokens(vocabulary)
    model = writer_of_letters()
    begun = "".join(generate(model, n_tokens=5, seed=2))
    assert begun == "".join(generate(model, "", n_tokens=5, seed=2))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"n_tokens": 0}, "n_tokens is 0"),
        ({"mem_len": -1}, "mem_len is -1"),
        ({"stop": [""]}, "stop"),
        ({"seed": 1.5, "top_k": "x"}, "top_k is 'x', .*; seed is 1.5, and must be a whole number$"),
        ({"same_length": 1}, "^same_length is 1, and must be true or false$"),
    ],
    ids=str,
)
def test_nonsense_is_refused_at_once(settings: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        generate(writer_of_letters(), "a", **settings)


def test_prompts_that_the_model_cannot_read_are_refused_at_once() -> None:
    model = writer_of_letters()
    with pytest.raises(UserError, match=r"U\+00E9"):
        generate(writer_without_unknown(), "caf\u00e9")
    with pytest.raises(UserError, match=r"^prompt is .*, and must be a text, or a row of ids from 0 to 31$"):
        generate(model, [1, 32])
    for prompt in ([], [1.7, 2], 5, ["a"], torch.tensor([1.0])):
        with pytest.raises(UserError, match=r"^prompt is .*, and must be a text, or a row of ids from 0 to 31$"):
            generate(model, prompt)
    with pytest.raises(UserError, match="a prompt of ids"):
        generate(model, [1], stop="a")
    with pytest.raises(ValueError, match="eval"):
        generate(model_of("transformer_xl").train(), [1])
    model.vocabulary = None
    with pytest.raises(UserError, match="no vocabulary"):
        generate(model, "a")


def writer_without_unknown() -> Any:
    model = model_of("transformer_xl")
    model.vocabulary = CharTokenizer([*"abcdefghijklmnopqrstuvwxyz .,\n;:"])
    return model


def test_what_python_takes_by_default_is_what_the_command_does() -> None:
    sampling = yaml.safe_load((REPOSITORY / "conf" / "generate.yaml").read_text())["sampling"]
    defaults = {name: default for name, default in (generate.__kwdefaults__ or {}).items() if name in sampling}
    own = {"stop": (), "segment_len": 128}
    assert defaults == {name: sampling[name] for name in defaults if name not in own} | own
