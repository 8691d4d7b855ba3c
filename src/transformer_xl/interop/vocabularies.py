"""Tokenizer files of other programs: `vocab.json`, `vocab.pkl`, `vocab.bin`.

A pickle names the classes and functions that it wants called. Here a name never leads to an import: it stands for a
built-in container, or for a class whose objects keep and do nothing, or the file is refused.
"""

from __future__ import annotations

import io
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_xl.data.characters import CharTokenizer, RankedByteTokenizer
from transformer_xl.data.tokenizer import UNK, Tokenizer, tokenizer_from_json
from transformer_xl.data.words import EOS, SentenceTokenizer, WikitextTokenizer, WordTokenizer
from transformer_xl.errors import UserError, atomic_write, first_line
from transformer_xl.interop.native import naming, read_json, write_json

FILES = ("vocab.json", "vocabulary.json", "vocab.pkl", "vocab.bin")
"""Where a vocabulary may be, the first that is there being taken."""
_CONTAINERS: dict[str, Any] = {
    "collections.OrderedDict": dict,
    "collections.Counter": dict,
    "builtins.set": set,
    "__builtin__.set": set,
    "builtins.frozenset": frozenset,
}
_TOKENIZERS = ("transformers", "tokenizers", "sacremoses")
"""Packages whose objects lie beside the symbols in what TransfoXLTokenizer saves."""
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C
_PICKLES_BEFORE = 3
"""In `torch.save`'s old format: a magic number, a version, and the machine's sizes."""


def read_vocabulary(folder: Path, *, vocab_size: int) -> Tokenizer | None:
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
            vocabulary = tokenizer_from_json(value)
            require_size(vocabulary.size, vocab_size=vocab_size)
            return vocabulary
        attributes = value if isinstance(value, dict) and "idx2sym" in value else {"sym2idx": value}
        symbols = symbols_of(attributes)
        require_size(len(symbols), vocab_size=vocab_size)
        return make_vocabulary(symbols, attributes, source=path, moses=True)


def write_vocabulary(vocabulary: Tokenizer | None, folder: Path) -> int | None:
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
    with atomic_write(folder / "vocab.pkl", "wb") as file:
        pickle.dump(attributes, file, protocol=2)
    return ids[EOS]


def require_size(size: int, *, vocab_size: int) -> None:
    """Refuse a vocabulary of another size than the model's.

    Raises:
        UserError: with both numbers.
    """
    if size != vocab_size:
        raise UserError(f"the vocabulary has {size} symbols, and the model has {vocab_size}")


def symbols_of(attributes: Mapping[str, Any]) -> list[str]:
    """Return the symbols by id, from the attributes of a published vocabulary.

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
) -> Tokenizer | None:
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
        return CharTokenizer([blank.get(symbol, symbol) for symbol in symbols])
    if symbols and not moses and all(symbol.isascii() and symbol.isdigit() and len(symbol) <= 3 for symbol in symbols):
        return RankedByteTokenizer(list(map(int, symbols)))  # enwik8 as it was published
    if delimiter is None and symbols[:1] == [EOS] and UNK in symbols:
        split_by_moses = moses and not lower_case
        return WikitextTokenizer(symbols) if split_by_moses else WordTokenizer(symbols, lower_case=lower_case)
    if delimiter is None and not moses and SentenceTokenizer.end in symbols and SentenceTokenizer.unk in symbols:
        return SentenceTokenizer(symbols)
    warnings.warn(
        f"{source}: its symbols are neither characters nor words that begin with {EOS} and hold {UNK}, so the model "
        "has no vocabulary here",
        stacklevel=2,
    )
    return None


def read_pickle(path: Path) -> Any:
    """Read one pickled value of plain containers, written by `pickle` or by either format of `torch.save`.

    Returns:
        The value; ordered and counting dictionaries become dictionaries, objects of a tokenizer empty.

    Raises:
        UserError: the file is damaged, or names anything but containers and a tokenizer's own parts.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
                return _Unpickler(io.BytesIO(archive.read(name))).load()
        with path.open("rb") as file:
            value = _Unpickler(file).load()
            if value == _TORCH_MAGIC:
                value = [_Unpickler(file).load() for _ in range(_PICKLES_BEFORE)][-1]
            return value
    except _Refused as error:
        raise UserError(f"{path} names {error}, which is code, and this program runs no code from a file") from error
    except Exception as error:  # an unpickler raises whatever a damaged stream makes it stumble over
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise UserError(f"{path} is damaged: {first_line(error)}") from error


class _Refused(pickle.UnpicklingError):
    """A name that is not on the list."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any) -> None:
        super().__init__(file, encoding="utf-8")

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in _CONTAINERS:
            return _CONTAINERS[full]
        if module.partition(".")[0] in _TOKENIZERS or full == "re._compile":
            return _Inert
        raise _Refused(full)

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("a tensor")


class _Inert:
    """An object that keeps nothing; its `__setstate__` also keeps a pickle from setting attributes of the class."""

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        return super().__new__(cls)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass
