"""What every vocabulary can do, whatever its symbols are."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl.errors import UserError

FORMAT = 1
"""Of a vocabulary's JSON."""


class Vocabulary(ABC):
    """The symbols of a corpus, numbered from 0."""

    kind: ClassVar[str]
    unit: ClassVar[str]
    """Name of the score that belongs to these symbols: `bpc` or `ppl`."""
    by_frequency: ClassVar[bool]
    """Whether frequent symbols have small numbers, as an adaptive softmax needs; appended ones stand at the end."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Count the symbols."""

    @abstractmethod
    def encode(self, text: str) -> NDArray[np.int64]:
        """Turn a text into ids; `UserError` where the vocabulary cannot say it."""

    @abstractmethod
    def decode(self, ids: ArrayLike) -> str:
        """Turn ids (one dimension, each in [0, size)) into text."""

    @abstractmethod
    def to_json(self) -> dict[str, object]:
        """Describe the vocabulary as plain JSON values, which `vocabulary_from_json` reads."""

    def hash(self) -> str:
        """Return the sha256, in hex, of the vocabulary's canonical JSON."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary as JSON to a temporary name beside `path`, then rename it."""
        target = Path(path)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            temporary.write_text(json.dumps(self.to_json(), ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def require_symbols(symbols: Sequence[str]) -> None:
    """Raise `UserError` for a list of symbols that is empty or names one twice."""
    if not symbols:
        raise UserError("a vocabulary has no symbols, and must have at least 1")
    if len(set(symbols)) != len(symbols):
        raise UserError("a vocabulary names a symbol twice, and each must be named once")


def flat_ids(ids: ArrayLike, *, size: int) -> NDArray[np.int64]:
    """Return ids as one flat array, each in [0, size)."""
    numbers = np.asarray(ids, np.int64).reshape(-1)
    assert not len(numbers) or (int(numbers.min()) >= 0 and int(numbers.max()) < size), "ids lie in [0, size)"
    return numbers
