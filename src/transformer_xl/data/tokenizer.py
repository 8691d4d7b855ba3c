"""Vocabularies of every kind, and reading them back from plain JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from transformer_xl.data.vocabularies.base import EOD, FORMAT, UNK, Looked, Vocabulary
from transformer_xl.data.vocabularies.characters import ByteVocabulary, CharVocabulary, RankedByteVocabulary
from transformer_xl.data.vocabularies.foreign import load_tokenizer
from transformer_xl.data.vocabularies.subword_training import train_bpe
from transformer_xl.data.vocabularies.subwords import SubwordVocabulary
from transformer_xl.data.vocabularies.symbols import SymbolVocabulary
from transformer_xl.data.vocabularies.wikitext import WikitextVocabulary
from transformer_xl.data.vocabularies.words import (
    EOS,
    ListedWords,
    SentenceVocabulary,
    WordVocabulary,
    split_words,
)
from transformer_xl.errors import UserError

__all__ = [
    "EOD",
    "EOS",
    "UNK",
    "ByteVocabulary",
    "CharVocabulary",
    "ListedWords",
    "Looked",
    "RankedByteVocabulary",
    "SentenceVocabulary",
    "SubwordVocabulary",
    "SymbolVocabulary",
    "Vocabulary",
    "WikitextVocabulary",
    "WordVocabulary",
    "load_tokenizer",
    "load_vocabulary",
    "split_words",
    "train_bpe",
    "vocabulary_from_json",
]

_OF_SYMBOLS = {cls.kind: cls for cls in (CharVocabulary, WordVocabulary, WikitextVocabulary, SentenceVocabulary)}
_KINDS = [ByteVocabulary.kind, RankedByteVocabulary.kind, *_OF_SYMBOLS, SubwordVocabulary.kind]


def vocabulary_from_json(data: Mapping[str, object]) -> Vocabulary:
    """Build the vocabulary that `to_json` described; `UserError` saying what is wrong with it."""
    kind = data.get("kind")
    if data.get("format") != FORMAT:
        raise UserError(f"a vocabulary has format {data.get('format')!a}, and this version reads format {FORMAT}")
    if kind == ByteVocabulary.kind:
        return ByteVocabulary(end_of_document=_flag(data, "end_of_document", default=False))
    if kind == RankedByteVocabulary.kind:
        values = data.get("values")
        if not isinstance(values, list) or not all(type(value) is int for value in values):
            raise UserError(f"a {kind} vocabulary needs a list of numbers under 'values'")
        return RankedByteVocabulary(values)
    if kind == SymbolVocabulary.kind:
        size = data.get("size")
        if type(size) is not int:
            raise UserError(f"a symbol vocabulary has size {size!a}, and must have a whole number")
        return SymbolVocabulary(size, end_of_document=_flag(data, "end_of_document", default=False))
    if kind == SubwordVocabulary.kind:
        tokenizer, end = data.get("tokenizer"), data.get("end_of_document")
        if not isinstance(tokenizer, dict) or not (end is None or type(end) is int):
            raise UserError(f"a {kind} vocabulary needs a tokenizer.json under 'tokenizer', and an id or null for ends")
        return SubwordVocabulary(tokenizer, end_of_document=end)
    if isinstance(kind, str) and kind in _OF_SYMBOLS:
        return _of_symbols(kind, data)
    raise UserError(f"a vocabulary has kind {kind!a}, and must have {', '.join(_KINDS)} or symbol")


def _of_symbols(kind: str, data: Mapping[str, object]) -> Vocabulary:
    symbols = data.get("symbols")
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise UserError(f"a {kind} vocabulary needs a list of strings under 'symbols'")
    lower_case = _flag(data, "lower_case", default=False)
    if kind == CharVocabulary.kind:
        return CharVocabulary(symbols, lower_case=lower_case)
    if kind == WordVocabulary.kind:
        return WordVocabulary(symbols, lower_case=lower_case, line_ends=_flag(data, "line_ends", default=True))
    return _OF_SYMBOLS[kind](symbols)


def _flag(data: Mapping[str, object], name: str, *, default: bool) -> bool:
    value = data.get(name, default)
    if not isinstance(value, bool):
        raise UserError(f"a vocabulary has {value!a} under '{name}', and must have true or false")
    return value


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
