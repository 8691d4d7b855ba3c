"""Reading texts that grow, and giving what a model expects after the last token of each.

A model that knows distances reads each token once. One that knows places within a segment reads its segment again as it
grows, and one without memory the last `segment_len` tokens: a token costs the same however long the text is.

Letters: B texts, T tokens, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from transformer_xl.model.base import LanguageModel
from transformer_xl.model.streaming import stream
from transformer_xl.settings import Length, Settings

_PADDING = 0


class ReadingRule(Settings):
    """How texts are read.

    Attributes:
        segment_len: the most tokens that are read at once; those that a model without memory sees. A model that can
            read fewer at once reads fewer.
        mem_len: how many tokens from before what is read are seen; None: as many as the model's own memory holds.
        clamp_len: distances above it count as it; None: no limit; "model": the model's own.
        same_length: whether every query sees `mem_len` keys; None: the model's own.
    """

    segment_len: Annotated[int, Field(ge=1, lt=1 << 31)]
    mem_len: Length | None = None
    clamp_len: Length | Literal["model"] | None = "model"
    same_length: bool | None = None


class GrowingTexts(ABC):
    """Texts that are read together, each to be continued."""

    @abstractmethod
    def read(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Read the next tokens of each text; give log-probabilities (B, V) of the token after them.

        Args:
            texts: at least one token of each; of all as many, but for the first time where `takes_unequal` says so.
        """


def takes_unequal(model: LanguageModel, rule: ReadingRule) -> bool:
    """Say whether texts of unequal length can be read together: whether each token is read once, wherever it stands."""
    return model.relative and (model.mem_len if rule.mem_len is None else rule.mem_len) > 0


def growing_texts(model: LanguageModel, rule: ReadingRule, *, texts: int) -> GrowingTexts:
    """Begin to read so many texts with a model in evaluation mode."""
    return (_ReadOnce if takes_unequal(model, rule) else _ReadAgain)(model, rule, texts=texts)


class _ReadOnce(GrowingTexts):
    """Reads in pieces that end where the text does, so that texts read together are cut as each would be alone.

    A text that is shorter than another begins later; what is read in its lane before is no text, and forgotten there.
    """

    def __init__(self, model: LanguageModel, rule: ReadingRule, *, texts: int) -> None:
        self._segment_len = rule.segment_len
        self._device = next(model.parameters()).device
        self._session = stream(
            model,
            batch_size=texts,
            mem_len=rule.mem_len,
            clamp_len=rule.clamp_len,
            same_length=rule.same_length,
            fixed_shapes=self._device.type == "cuda",
        )
        self._has_read = False

    def read(self, texts: Sequence[Sequence[int]]) -> Tensor:
        longest = max(map(len, texts))
        tokens = torch.full((len(texts), longest), _PADDING)
        resets = torch.zeros_like(tokens, dtype=torch.bool)
        for lane, text in enumerate(texts):
            tokens[lane, longest - len(text) :] = torch.as_tensor(text)
            resets[lane, longest - len(text)] = len(text) < longest
        is_unequal = bool(resets.any())
        assert not (is_unequal and self._has_read), "texts that have begun go on together"
        self._has_read = True
        first = longest % self._segment_len
        for start in range(first - self._segment_len if first else 0, longest, self._segment_len):
            piece = slice(max(start, 0), start + self._segment_len)
            begun = resets[:, piece].to(self._device) if is_unequal else None
            log_probs = self._session.next_log_probs(tokens[:, piece].to(self._device), begun)
        return log_probs


class _ReadAgain(GrowingTexts):
    """Reads the last segment again as it grows, after those before it; without memory, the last tokens."""

    def __init__(self, model: LanguageModel, rule: ReadingRule, *, texts: int) -> None:
        self._model = model.with_context(
            clamp_len=model.clamp_len if rule.clamp_len == "model" else rule.clamp_len,
            same_length=model.same_length if rule.same_length is None else rule.same_length,
        )
        self._mem_len = model.mem_len if rule.mem_len is None else rule.mem_len
        self._segment_len = min(rule.segment_len, model.max_segment_len or rule.segment_len)
        self._memory = model.empty_memory(texts, self._mem_len)
        self._segment = torch.empty(texts, 0, dtype=torch.int64, device=next(model.parameters()).device)

    @torch.no_grad()
    def read(self, texts: Sequence[Sequence[int]]) -> Tensor:
        new = torch.tensor([list(text) for text in texts], device=self._segment.device)
        segment = torch.cat([self._segment, new], dim=1)
        if self._mem_len == 0:
            segment = segment[:, -self._segment_len :]
        while segment.shape[1] > self._segment_len:
            self._memory = self._model(segment[:, : self._segment_len], self._memory).memory
            segment = segment[:, self._segment_len :]
        self._segment = segment
        hidden = self._model(segment, self._memory).hidden_BTD
        return self._model.head_log_probs(hidden[:, -1:])[:, 0]
