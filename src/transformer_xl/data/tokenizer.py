"""Vocabularies of every kind, and reading them back from plain JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from transformer_xl.data.vocabularies.base import FORMAT, Vocabulary
from transformer_xl.data.vocabularies.characters import ByteVocabulary, CharVocabulary, RankedByteVocabulary
from transformer_xl.data.vocabularies.symbols import SymbolVocabulary
from transformer_xl.data.vocabularies.wikitext import WikitextVocabulary
from transformer_xl.data.vocabularies.words import (
    EOS,
    UNK,
    ListedWords,
    Looked,
    SentenceVocabulary,
    WordVocabulary,
    split_words,
)
from transformer_xl.errors import UserError

__all__ = [
    "EOS",
    "UNK",
    "ByteVocabulary",
    "CharVocabulary",
    "ListedWords",
    "Looked",
    "RankedByteVocabulary",
    "SentenceVocabulary",
    "SymbolVocabulary",
    "Vocabulary",
    "WikitextVocabulary",
    "WordVocabulary",
    "load_vocabulary",
    "split_words",
    "vocabulary_from_json",
]

_OF_SYMBOLS = {cls.kind: cls for cls in (CharVocabulary, WordVocabulary, WikitextVocabulary, SentenceVocabulary)}
_KINDS = [ByteVocabulary.kind, RankedByteVocabulary.kind, *_OF_SYMBOLS]


def vocabulary_from_json(data: Mapping[str, object]) -> Vocabulary:
    """Build the vocabulary that `to_json` described; `UserError` saying what is wrong with it."""
    kind = data.get("kind")
    if data.get("format") != FORMAT:
        raise UserError(f"a vocabulary has format {data.get('format')!a}, and this version reads format {FORMAT}")
    if kind == ByteVocabulary.kind:
        return ByteVocabulary()
    if kind == RankedByteVocabulary.kind:
        values = data.get("values")
        if not isinstance(values, list) or not all(type(value) is int for value in values):
            raise UserError(f"a {kind} vocabulary needs a list of numbers under 'values'")
        return RankedByteVocabulary(values)
    if kind == SymbolVocabulary.kind:
        size = data.get("size")
        if type(size) is not int:
            raise UserError(f"a symbol vocabulary has size {size!a}, and must have a whole number")
        return SymbolVocabulary(size)
    if isinstance(kind, str) and kind in _OF_SYMBOLS:
        symbols = data.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise UserError(f"a {kind} vocabulary needs a list of strings under 'symbols'")
        if kind == WordVocabulary.kind:
            return WordVocabulary(symbols, lower_case=data.get("lower_case") is True)
        return _OF_SYMBOLS[kind](symbols)
    raise UserError(f"a vocabulary has kind {kind!a}, and must have {', '.join(_KINDS)} or symbol")


def load_vocabulary(path: str | os.PathLike[str]) -> Vocabulary:
    """Read a vocabulary that `Vocabulary.save` wrote; `UserError` naming the file where it is missing or malformed."""
    try:
        data = json.loads(Path(path).read_bytes())
        if not isinstance(data, dict):
            raise UserError("it must be a JSON object")
        return vocabulary_from_json(data)
    except OSError as error:
        raise UserError(f"the vocabulary {os.fspath(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{os.fspath(path)!r} is not a vocabulary that this program wrote: {error}") from error
