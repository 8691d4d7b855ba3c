"""Continuing a text with a model, token by token, for Python code: `generate`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.errors import UserError
from transformer_xl.inference.continuation import Continuation, continued, first_tokens
from transformer_xl.inference.drawing_rule import DrawingRule
from transformer_xl.inference.reading_on import ReadingRule
from transformer_xl.inference.text_writing import Growing, NumberWriter, TextWriter
from transformer_xl.model.base import LanguageModel
from transformer_xl.settings import Count, Seed, Settings, parse


class GenerationSettings(TypedDict, total=False):
    """What `generate` takes beside the prompt."""

    n_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    seed: int
    stop: str | Sequence[str]
    end_at_document: bool
    segment_len: int
    mem_len: int | None
    clamp_len: int | Literal["model"] | None
    same_length: bool | None


class _EndingRule(Settings):
    """When a text ends, and the seed of its draws."""

    n_tokens: Count
    seed: Seed
    stop: list[str] | str
    end_at_document: bool

    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    def rules(self) -> Iterator[str]:
        if "" in self.stops():
            yield f"stop is {self.stop!r}, and must hold texts of at least 1 character"


@overload
def generate(
    model: LanguageModel, prompt: str | None = None, **settings: Unpack[GenerationSettings]
) -> Iterator[str]: ...


@overload
def generate(
    model: LanguageModel, prompt: Iterable[int] | Tensor, **settings: Unpack[GenerationSettings]
) -> Iterator[int]: ...


def generate(
    model: LanguageModel,
    prompt: str | Iterable[int] | Tensor | None = None,
    *,
    n_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int = 1,
    stop: str | Sequence[str] = (),
    end_at_document: bool = True,
    segment_len: int = 128,
    mem_len: int | None = None,
    clamp_len: int | Literal["model"] | None = "model",
    same_length: bool | None = None,
) -> Iterator[str] | Iterator[int]:
    """Continue a text, token by token.

    Args:
        model: in evaluation mode, as `load_model` gives it.
        prompt: a text, or the ids of one, as a tensor (T) or (1, T); None or "": a text is begun, after what
            `first_tokens` says.
        n_tokens: the most tokens that are drawn.
        temperature: divides log-probabilities; 0: always the likeliest token. See `DrawingRule` for this and the next.
        top_k: only the k likeliest tokens are drawn; None: all.
        top_p: only the likeliest tokens that have this probability together (Holtzman et al., 2019); None: all.
        min_p: only tokens at least so likely, as a share of the likeliest (Nguyen et al., 2024); None: all.
        repetition_penalty: multiplies the log-probabilities of tokens that are there already (Keskar et al., 2019).
        seed: of the draws; global random state is neither used nor changed.
        stop: texts at which generation ends; no part of them is given. For a prompt of text only.
        end_at_document: whether the id that ends a document, where the vocabulary has one, ends the text.
        segment_len: the most tokens of a prompt that are read at once; those that a model without memory sees.
        mem_len: how many tokens from before are seen; None: as many as the model's own memory holds.
        clamp_len: distances above it count as it; None: no limit; "model": the model's own.
        same_length: whether every query sees `mem_len` keys; None: the model's own.

    Returns:
        What follows the prompt: for a text pieces of text, as soon as they are whole characters; for ids the ids.

    Raises:
        UserError: a setting makes no sense, or the vocabulary cannot say the prompt.
        ValueError: the model is in training mode, or cannot follow `mem_len`, `clamp_len` or `same_length`.
    """
    drawing = parse(
        DrawingRule,
        _plain(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty),
    )
    reading = parse(
        ReadingRule,
        _plain(segment_len=segment_len, mem_len=mem_len, clamp_len=clamp_len, same_length=same_length),
    )
    ending = parse(_EndingRule, _plain(n_tokens=n_tokens, seed=seed, stop=stop, end_at_document=end_at_document))
    if model.training:
        raise ValueError("generating needs weights that stay as they are: call eval() on the model first")
    continuation = Continuation(model, drawing=drawing, reading=reading, seeds=[ending.seed])
    vocabulary: Tokenizer | None = model.vocabulary
    end = vocabulary.end_of_document if vocabulary is not None and ending.end_at_document else None
    if prompt is None or isinstance(prompt, str):
        if vocabulary is None:
            raise UserError("the model has no vocabulary, and a prompt must be ids")
        tokens = vocabulary.encode(prompt or "").tolist() or first_tokens(vocabulary)
        writer = TextWriter(vocabulary, after=tokens, stops=ending.stops())
        return filter(None, continued(continuation, tokens, Growing(writer, n_tokens=ending.n_tokens, end=end)))
    if ending.stops():
        raise UserError(f"stop is {ending.stop!r} with a prompt of ids, and needs a prompt that is text")
    tokens = checked_ids(_whole_numbers(prompt), vocab_size=model.vocab_size)
    return _ids(continuation, tokens, Growing(NumberWriter(), n_tokens=ending.n_tokens, end=end))


def checked_ids(ids: Sequence[int], *, vocab_size: int) -> Sequence[int]:
    """Give ids back.

    Raises:
        UserError: there are none, or one is not in [0, V).
    """
    if not ids:
        raise UserError("there is no id, and there must be at least one")
    for number in ids:
        if not 0 <= number < vocab_size:
            raise UserError(f"the id {number} is none of the model's, which are 0 to {vocab_size - 1}")
    return ids


def _ids(continuation: Continuation, prompt: Sequence[int], growing: Growing) -> Iterator[int]:
    for _ in continued(continuation, prompt, growing):
        if growing.ended != "document":
            yield growing.tokens[-1]


def _plain(**values: object) -> dict[str, object]:
    """Give settings as plain values, which those of numpy's types are not."""
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def _whole_numbers(ids: Iterable[int] | Tensor | NDArray[np.generic]) -> list[int]:
    """Give ids as plain numbers, those of a tensor (1, T) as its row.

    Raises:
        UserError: they are no whole numbers, or lie in several rows.
    """
    if isinstance(ids, Tensor | np.ndarray):
        if ids.ndim == 2 and ids.shape[0] == 1:
            ids = ids[0]
        if ids.ndim != 1:
            raise UserError(f"prompt has the shape {tuple(ids.shape)}, and must have (T) or (1, T): one text")
        ids = ids.tolist()
    try:
        return [operator.index(number) for number in ids]
    except TypeError as error:
        raise UserError(f"prompt is {ids!r:.100}, and must be a text, or ids, which are whole numbers") from error
