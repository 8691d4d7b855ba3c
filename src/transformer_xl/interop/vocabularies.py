"""Vocabulary files of other programs: `vocab.json`, `vocab.pkl`, `vocab.bin`."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_xl.data.tokenizer import (
    EOS,
    UNK,
    CharVocabulary,
    RankedByteVocabulary,
    SentenceVocabulary,
    Vocabulary,
    WikitextVocabulary,
    WordVocabulary,
    vocabulary_from_json,
)
from transformer_xl.errors import UserError
from transformer_xl.interop.files import naming, read_json, write_bytes, write_json
from transformer_xl.interop.pickles import read_pickle

FILES = ("vocab.json", "vocabulary.json", "vocab.pkl", "vocab.bin")
"""Where a vocabulary may be, the first that is there being taken."""


def read_vocabulary(folder: Path, *, vocab_size: int) -> Vocabulary | None:
    """Read the vocabulary of a folder of `transformers`.

    Returns:
        The vocabulary; None where there is no file, or, with a warning, where its symbols are of no kind known here.

    Raises:
        UserError: the file is damaged, holds code, or has another number of symbols than the model.
    """
    path = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if path is None:
        return None
    value = read_json(path) if path.suffix == ".json" else read_pickle(path)
    with naming(path):
        if isinstance(value, dict) and isinstance(value.get("kind"), str):
            vocabulary = vocabulary_from_json(value)
            require_size(vocabulary.size, vocab_size=vocab_size)
            return vocabulary
        attributes = value if isinstance(value, dict) and "idx2sym" in value else {"sym2idx": value}
        symbols = symbols_of(attributes)
        require_size(len(symbols), vocab_size=vocab_size)
        return make_vocabulary(symbols, attributes, source=path, moses=True)


def write_vocabulary(vocabulary: Vocabulary | None, folder: Path) -> int | None:
    """Write `vocab.json`, which is read here, and for words `vocab.pkl`, which TransfoXLTokenizer reads.

    Returns:
        The id of `<eos>`, where there is one.
    """
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    if vocabulary is None:
        return None
    description = vocabulary.to_json()
    write_json(folder / "vocab.json", description)
    symbols = description.get("symbols")
    if not isinstance(symbols, list) or EOS not in symbols:
        return None
    ids = {symbol: number for number, symbol in enumerate(symbols)}
    attributes = {
        "special": [EOS],
        "lower_case": description.get("lower_case", False),
        "delimiter": None,
        "idx2sym": symbols,
        "sym2idx": ids,
        "eos_idx": ids[EOS],
        "unk_idx": ids.get(UNK),
    }
    write_bytes(folder / "vocab.pkl", pickle.dumps(attributes, protocol=2))
    return ids[EOS]


def require_size(size: int, *, vocab_size: int) -> None:
    """Refuse a vocabulary of another size than the model's.

    Raises:
        UserError: with both numbers.
    """
    if size != vocab_size:
        raise UserError(f"the vocabulary has {size} symbols, and the model has {vocab_size}")


def symbols_of(attributes: Mapping[str, Any]) -> list[str]:
    """Give the symbols by id, from the attributes of a published vocabulary.

    Args:
        attributes: with `idx2sym`, or with a list of symbols or a mapping of symbols to ids as `sym2idx`.

    Raises:
        UserError: they are no list of texts, or the ids are not 0, 1, 2 and so on.
    """
    symbols = attributes.get("idx2sym", attributes.get("sym2idx"))
    if isinstance(symbols, dict):
        ids = list(symbols.values())
        if not all(type(number) is int for number in ids) or sorted(ids) != list(range(len(ids))):
            raise UserError(f"the ids of its {len(ids)} symbols must be 0 to {len(ids) - 1}, each once")
        symbols = sorted(symbols, key=symbols.__getitem__)
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise UserError("it must hold a list of symbols, or a mapping of symbols to ids")
    return symbols


def make_vocabulary(
    symbols: list[str], attributes: Mapping[str, Any], *, source: Path, moses: bool
) -> Vocabulary | None:
    """Choose the kind of vocabulary that splits text as its program did.

    Args:
        symbols: by id.
        attributes: of the published vocabulary: `lower_case`, `delimiter`.
        source: for warnings.
        moses: whether the program split text as TransfoXLTokenizer does, not by white space.

    Returns:
        The vocabulary; None, with a warning, where none here reads text as the symbols need it.

    Raises:
        UserError: a symbol stands twice.
    """
    lower_case, delimiter = attributes.get("lower_case") is True, attributes.get("delimiter")
    if symbols and all(len(symbol) == 1 for symbol in symbols):
        # text8 as it was published: characters with blanks between them, and `_` for a blank
        blank = {"_": " "} if not moses and delimiter is None and " " not in symbols else {}
        return CharVocabulary([blank.get(symbol, symbol) for symbol in symbols])
    if symbols and not moses and all(symbol.isascii() and symbol.isdigit() and len(symbol) <= 3 for symbol in symbols):
        return RankedByteVocabulary(list(map(int, symbols)))  # enwik8 as it was published
    if delimiter is None and symbols[:1] == [EOS] and UNK in symbols:
        split_by_moses = moses and not lower_case
        return WikitextVocabulary(symbols) if split_by_moses else WordVocabulary(symbols, lower_case=lower_case)
    if delimiter is None and not moses and SentenceVocabulary.end in symbols and SentenceVocabulary.unknown in symbols:
        return SentenceVocabulary(symbols)
    warnings.warn(
        f"{source}: its symbols are neither characters nor words that begin with {EOS} and hold {UNK}, so the model "
        "has no vocabulary here",
        stacklevel=2,
    )
    return None
