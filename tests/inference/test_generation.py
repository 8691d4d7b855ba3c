"""`txl.generate`: text or ids, token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import yaml

import transformer_xl as txl
from tests.conftest import REPOSITORY
from tests.model.kinds import model_of
from tests.model.tiny import V
from transformer_xl.data.characters import ByteTokenizer, CharTokenizer, SymbolTokenizer
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data.words import SentenceTokenizer, WordTokenizer
from transformer_xl.errors import UserError
from transformer_xl.inference.continuation import first_tokens
from transformer_xl.inference.generation import GenerationSettings, generate

LETTERS = CharTokenizer([*"\nabcdefghijklmnopqrstuvwxyz .,", "<eod>", "<unk>"])
assert LETTERS.size == V


def writer_of_letters(**changes: Any) -> Any:
    model = model_of("transformer_xl", **changes)
    model.vocabulary = LETTERS
    return model


def test_a_text_is_continued_with_text_and_ids_with_the_same_ids() -> None:
    model = writer_of_letters()
    text = "".join(generate(model, "once upon", n_tokens=20, temperature=1.0, seed=3, end_at_document=False))
    ids = list(
        generate(model, LETTERS.encode("once upon"), n_tokens=20, temperature=1.0, seed=3, end_at_document=False)
    )
    assert len(ids) == 20
    assert text == LETTERS.decode(ids)
    for same in (torch.tensor([1, 2]), torch.tensor([[1, 2]]), np.array([1, 2]), (1, 2)):
        assert list(generate(model, same, n_tokens=np.int64(3))) == list(generate(model, [1, 2], n_tokens=3))
    assert txl.generate is generate


def test_it_is_made_as_it_is_asked_for() -> None:
    model = writer_of_letters()
    read: list[int] = []
    model.embedding.register_forward_hook(lambda _, inputs, output: read.append(inputs[0].shape[1]))
    pieces = generate(model, "once", n_tokens=1_000_000)
    assert read == []
    next(pieces)
    next(pieces)
    assert len(read) <= 3


def test_the_end_of_a_document_ends_the_text_unless_told_otherwise() -> None:
    model = writer_of_letters()
    settings: GenerationSettings = {"n_tokens": 100, "temperature": 4.0, "seed": 1}
    whole = list(generate(model, [1], **settings, end_at_document=False))
    assert LETTERS.end_of_document in whole[1:]
    assert list(generate(model, [1], **settings)) == whole[: whole.index(LETTERS.end_of_document)]
    text = "".join(generate(model, LETTERS.decode([1]), **settings, end_at_document=False))
    assert text == LETTERS.decode(whole)
    assert "".join(generate(model, LETTERS.decode([1]), **settings)) == text.partition("<eod>")[0]


def test_a_stop_string_ends_the_text_before_it() -> None:
    model = writer_of_letters()
    whole = "".join(generate(model, "a", n_tokens=80, temperature=2.0, end_at_document=False))
    stop = whole[50:53]
    settings: GenerationSettings = {"n_tokens": 80, "temperature": 2.0, "end_at_document": False}
    pieces = list(generate(model, "a", **settings, stop=stop))
    assert "".join(pieces) == whole.partition(stop)[0]
    assert "" not in pieces
    assert "".join(generate(model, "a", **settings, stop=["never there", stop])) == whole.partition(stop)[0]


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
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": -1.0}, "min_p is -1.0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"n_tokens": 0}, "n_tokens is 0"),
        ({"segment_len": 0}, "segment_len is 0"),
        ({"mem_len": -1}, "mem_len is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"stop": [""]}, "stop is"),
        ({"repetition_penalty": 1e39}, "repetition_penalty is 1e.39"),
        ({"mem_len": 2**31}, "mem_len is 2147483648"),
        ({"n_tokens": 2.5}, "^n_tokens is 2.5, and must be a whole number$"),
        (
            {"seed": 1.5, "stop": None},
            "^seed is 1.5, and must be a whole number; stop is null, and must be a list or a",
        ),
        ({"top_k": 2.5}, "^top_k is 2.5, and must be a whole number or null$"),
        ({"temperature": "hot"}, "^temperature is 'hot', and must be a number$"),
        ({"same_length": 1}, "^same_length is 1, and must be true or false or null$"),
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
    with pytest.raises(UserError, match="the id 32 is none of the model's, which are 0 to 31"):
        generate(model, [1, 32])
    with pytest.raises(UserError, match="no id"):
        generate(model, [])
    for prompt in ([1.7, 2], torch.tensor([1.0]), 5, ["a"]):
        with pytest.raises(UserError, match=r"^prompt is .*, and must be a text, or ids, which are whole numbers$"):
            generate(model, prompt)  # type: ignore[call-overload]
    with pytest.raises(UserError, match=r"^prompt has the shape \(2, 3\)"):
        generate(model, torch.ones(2, 3))
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
    assert set(GenerationSettings.__annotations__) == set(generate.__kwdefaults__ or {})
