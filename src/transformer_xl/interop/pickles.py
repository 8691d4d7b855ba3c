"""Pickled vocabularies, read by an unpickler that imports nothing and calls nothing but containers.

A pickle names the classes and functions that it wants called. Here a name never leads to an import: it stands for a
built-in container, or for a class whose objects keep and do nothing, or the file is refused.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

from transformer_xl.errors import UserError, first_line

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
