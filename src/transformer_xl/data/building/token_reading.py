"""Token ids that another program wrote, read a few megabytes at a time and checked one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.building.token_refusals import (
    LINE_BLANKS,
    LONGEST_NUMBER,
    quoted,
    refuse_id,
    refuse_line,
    refuse_words,
)
from transformer_xl.data.sources.files import Origin, reading_setting
from transformer_xl.errors import UserError

CHUNK_IDS = 1 << 20
CHUNK_BYTES = 1 << 20

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANKS = b" \t\r\n\v\f"
_DIGITS = b"0123456789"


class TokenChunk(NamedTuple):
    """Token ids that stand together in a file.

    Attributes:
        ids: of at most about a million tokens.
        starts: places in `ids` where a document begins, ascending; 0 among them unless one is continued.
    """

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]


def read_tokens(
    origin: Origin, *, vocab_size: int, documents: Literal["none", "file", "record"]
) -> Iterator[TokenChunk]:
    """Yield the ids of a file in order; memory does not grow with the file, nor with a line of it.

    Args:
        origin: of format `npy`, `raw`, `json_ids` or `ids`.
        vocab_size: every id is below it.
        documents: what begins a document: nothing, the file, or a record, which is a list of `json_ids` and else the
            file. An empty list is none.

    Raises:
        UserError: the file cannot be read, or something in it is no id; it names the place.
    """
    nothing, beginning = np.zeros(0, np.int64), np.zeros(1, np.int64)
    by_record = documents == "record" and origin.format == "json_ids"
    continued = documents == "none"
    with reading_setting(f"data.path names {str(origin.file.path)!r}"):
        for chunk in _READERS[origin.format](origin, vocab_size=vocab_size):
            if by_record:
                yield chunk
            else:
                yield TokenChunk(chunk.ids, nothing if continued else beginning)
            continued = True


class _Layout(NamedTuple):
    """Where the numbers of a file lie."""

    dtype: np.dtype[Any]
    offset: int
    length: int


def _npy_layout(origin: Origin) -> _Layout:
    """Let NumPy read the header of a .npy file; nothing in it is unpickled."""
    name = repr(str(origin.file.path))
    try:
        array = np.load(origin.file.path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(f"{name} cannot be read as .npy, and must be as numpy.save writes integers: {error}") from error
    if not isinstance(array, np.memmap) or array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(f"{name} must hold integers in one dimension; documents are told apart in .jsonl, one a line")
    return _Layout(array.dtype, array.offset, len(array))


def _raw_layout(origin: Origin) -> _Layout:
    assert origin.dtype is not None
    dtype = np.dtype(origin.dtype).newbyteorder("<")
    return _Layout(dtype, 0, origin.file.size // dtype.itemsize)


def _read_numbers(origin: Origin, *, layout: Callable[[Origin], _Layout], vocab_size: int) -> Iterator[TokenChunk]:
    dtype, offset, length = layout(origin)
    with origin.file.path.open("rb") as file:
        file.seek(offset)
        for start in range(0, length, CHUNK_IDS):
            numbers = np.fromfile(file, dtype, min(CHUNK_IDS, length - start))
            if len(numbers) < min(CHUNK_IDS, length - start):
                raise UserError(f"{str(origin.file.path)!r} became shorter while it was read; start again")
            if int(numbers.min()) < 0 or int(numbers.max()) >= vocab_size:
                place = int(np.argmax((numbers < 0) | (numbers >= vocab_size)))
                refuse_id(origin.file.path, str(numbers[place]), vocab_size=vocab_size, token=start + place)
            yield TokenChunk(numbers.astype(np.int64), np.zeros(0, np.int64))


def _read_words(origin: Origin, *, vocab_size: int) -> Iterator[TokenChunk]:
    """Read numbers between blanks."""
    path, before, rest = origin.file.path, 0, b""
    with _open_text(path) as file:
        while True:
            read = file.read(CHUNK_BYTES)
            text = rest + read
            # A number may go on in what is read next.
            end = max(map(text.rfind, _BLANKS)) + 1 if read else len(text)
            text, rest = text[:end], text[end:]
            if text.strip():
                if text.translate(None, _DIGITS + _BLANKS):
                    refuse_words(path, text.split(), vocab_size=vocab_size, before=before)
                # Numbers too large become the largest, which is no id either.
                ids = np.fromstring(text, np.int64, sep=" ")
                if int(ids.max()) >= vocab_size:
                    refuse_words(path, text.split(), vocab_size=vocab_size, before=before)
                yield TokenChunk(ids, np.zeros(0, np.int64))
                before += len(ids)
            if len(rest) > LONGEST_NUMBER:
                refuse_words(path, [rest], vocab_size=vocab_size, before=before)
            if not read:
                return


def _read_lists(origin: Origin, *, vocab_size: int) -> Iterator[TokenChunk]:
    """Read lists of JSON, one a line."""
    path, before = origin.file.path, 0
    ids: list[int] = []
    starts: list[int] = []
    for part in _list_parts(path):
        words = part.text.split(b",")
        try:
            numbers = [] if part.text.translate(None, _DIGITS + b"," + LINE_BLANKS) else list(map(int, words))
        except ValueError:
            numbers = []
        if not numbers or max(numbers) >= vocab_size:
            refuse_words(path, words, vocab_size=vocab_size, before=before + len(ids), line=part.line)
        if part.begins:
            starts.append(len(ids))
        ids += numbers
        if len(ids) >= CHUNK_IDS:
            yield TokenChunk(np.array(ids, np.int64), np.array(starts, np.int64))
            before += len(ids)
            ids, starts = [], []
    if ids:
        yield TokenChunk(np.array(ids, np.int64), np.array(starts, np.int64))


class _ListPart(NamedTuple):
    """Some of the numbers of a list, with commas between them; `begins`: the first ones."""

    text: bytes
    line: int
    begins: bool


def _list_parts(path: Path) -> Iterator[_ListPart]:
    """Yield what stands in the lists, long lists in several parts; empty ones and blank lines are left out."""
    line, inside, first, rest = 1, False, False, b""
    with _open_text(path) as file:
        # The last line need not end.
        for read in chain(iter(partial(file.readline, CHUNK_BYTES), b""), [b"\n"]):
            text = rest + read
            rest = b""
            if not inside:
                text = text.lstrip(LINE_BLANKS)
                if text and not text.startswith(b"["):
                    refuse_line(path, line, f"begins with {quoted(text)}")
                inside = first = bool(text)
                text = text[1:]
            if inside and read.endswith(b"\n"):
                text = text.rstrip(LINE_BLANKS)
                if not text.endswith(b"]"):
                    refuse_line(path, line, "does not end with ]")
                text = text[:-1]
                if not first or text.strip(LINE_BLANKS):
                    yield _ListPart(text, line, first)
            elif inside:
                end = text.rfind(b",")
                rest = text[end + 1 :]
                if len(rest) > LONGEST_NUMBER:
                    refuse_line(path, line, f"holds {quoted(rest)} without a comma behind it")
                if end >= 0:
                    yield _ListPart(text[:end], line, first)
                    first = False
            if read.endswith(b"\n"):
                line, inside = line + 1, False


def _open_text(path: Path) -> BinaryIO:
    file = path.open("rb")
    if file.read(len(_BYTE_ORDER_MARK)) != _BYTE_ORDER_MARK:
        file.seek(0)
    return file


_READERS: Mapping[str, Callable[..., Iterator[TokenChunk]]] = {
    "npy": partial(_read_numbers, layout=_npy_layout),
    "raw": partial(_read_numbers, layout=_raw_layout),
    "json_ids": _read_lists,
    "ids": _read_words,
}
