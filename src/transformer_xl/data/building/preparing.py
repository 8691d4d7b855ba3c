"""From a corpus's sources to the text of its splits, as documents in files of UTF-8."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.building.documents import document_rows, map_rows
from transformer_xl.data.building.extraction import extract_many
from transformer_xl.data.building.parallel import in_order
from transformer_xl.data.building.reading import Reading, is_raw
from transformer_xl.data.building.splitting import split_text
from transformer_xl.data.building.text import Stretch, read_chunks, total_size
from transformer_xl.data.sources.files import SPLITS, Origin, Sources
from transformer_xl.data.tokenizer import character_border
from transformer_xl.data_config import CorpusConfig, TextConfig
from transformer_xl.errors import UserError

_EXTRACTED_TOGETHER = 64 << 20
_BYTES_A_CHARACTER = 4
_BYTES_A_TOKEN = 16
"""No more bytes make a token on average, in any text: validation and test are cut at so many, then at tokens."""
_LOOKED_AT_FILES = 1000
_LOOKED_AT_BYTES = 1 << 13
_SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The text of each split, in order.

    Attributes:
        splits: train, valid, test.
        documents: how many there are in all.
        notes: what was unusual.
        folder: of files that are of no use any more when the text is encoded.
    """

    splits: Mapping[str, Sequence[Stretch]]
    documents: int
    notes: tuple[str, ...]
    folder: Path

    def beginning(self, split: str) -> str:
        """Give the first characters of a split."""
        for stretch in self.splits[split]:
            for chunk in read_chunks(stretch, find_cut=character_border, chunk_bytes=_SAMPLE_BYTES):
                return chunk.data[:_SAMPLE_BYTES].decode(errors="ignore")
        return ""

    def remove_files(self) -> None:
        """Remove the text that was unpacked."""
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()


def prepare(
    config: CorpusConfig, sources: Sources, reading: Reading, *, folder: Path, announce: Callable[[str], None]
) -> Prepared:
    """Unpack, decode, find documents, and split.

    Args:
        config: of the corpus.
        sources: its files.
        reading: how it becomes symbols.
        folder: where unpacked text may be kept for a while.
        announce: gets a line now and then.

    Raises:
        UserError: a file is damaged or holds what its encoding forbids; no text is left.
    """
    unpacked = folder / "text"
    unpacked.mkdir()
    texts: dict[Origin, _Text] = {}
    origins = list(dict.fromkeys([*sources.whole, *(origin for split in sources.splits.values() for origin in split)]))
    for found in in_order(
        _prepare_files, _jobs(origins, config, reading, unpacked), doing="unpacking", announce=announce
    ):
        texts |= {origin: prepared.text() for origin, prepared in found.items()}
    of_split = {split: [texts[origin] for origin in sources.splits.get(split, ())] for split in SPLITS}
    whole = [texts[origin] for origin in sources.whole]
    if sources.cut is None:
        splits = {
            split: [text.stretch for text in found if len(text.stretch.rows)] for split, found in of_split.items()
        }
    else:
        splits = split_text(
            _stretches(whole),
            sources.cut,
            are_documents=reading.are_documents,
            max_eval_bytes=_max_eval_bytes(config, reading),
        )
    is_for_evaluation = getattr(config, "test_fraction", 0) == 1  # and read with a trained model's vocabulary
    if not total_size(splits["train"]) and not is_for_evaluation:
        raise UserError(f"{sources.setting}, which has no text for training")
    return Prepared(
        splits=splits,
        documents=sum(len(text.stretch.rows) for text in texts.values()),
        notes=tuple(_notes(config, texts.values())),
        folder=unpacked,
    )


def _stretches(texts: Sequence[_Text]) -> list[Stretch]:
    return [text.stretch for text in texts if len(text.stretch.rows)]


class _Text(NamedTuple):
    """A file's text, and what its decoding did."""

    stretch: Stretch
    replaced: int


class _Found(NamedTuple):
    """What one process sends to another of a file's text: many documents as the file that lists them."""

    path: Path
    rows: NDArray[np.int64] | None
    table: Path
    source: Path
    replaced: int

    def text(self) -> _Text:
        rows = map_rows(self.table) if self.rows is None else self.rows
        return _Text(Stretch(path=self.path, rows=rows, source=self.source), self.replaced)


class _Job(NamedTuple):
    """Files that one process unpacks; `number` is the first one's."""

    origins: list[Origin]
    number: int
    config: CorpusConfig
    raw: bool
    folder: Path


def _jobs(origins: Sequence[Origin], config: CorpusConfig, reading: Reading, folder: Path) -> list[_Job]:
    raw = is_raw(config, reading)
    groups: list[list[Origin]] = []
    size = 0
    for origin in origins:
        same_archive = bool(groups) and groups[-1][-1].file == origin.file
        if not groups or (size + origin.file.size > _EXTRACTED_TOGETHER and not same_archive):
            groups.append([])
            size = 0
        groups[-1].append(origin)
        size += 0 if same_archive else origin.file.size
    firsts = accumulate(map(len, groups[:-1]), initial=0)
    return [_Job(group, first, config, raw, folder) for group, first in zip(groups, firsts, strict=True)]


def _prepare_files(job: _Job) -> dict[Origin, _Found]:
    config = job.config
    targets = [job.folder / f"{job.number + place}.txt" for place in range(len(job.origins))]
    extracted = extract_many(
        job.origins,
        encoding=config.encoding if isinstance(config, TextConfig) else "utf-8",
        errors=config.errors if isinstance(config, TextConfig) else "strict",
        raw=job.raw,
        ends_records=config.documents != "record",
        targets=targets,
    )
    texts = {}
    for origin, found, target in zip(job.origins, extracted, targets, strict=True):
        rows = document_rows(
            found.path,
            size=found.size,
            rule=config.documents,
            marker=config.document_marker,
            records=found.records,
            table=target.with_suffix(".rows"),
        )
        is_listed = isinstance(rows, np.memmap)
        texts[origin] = _Found(
            path=found.path,
            rows=None if is_listed else rows,
            table=target.with_suffix(".rows"),
            source=origin.file.path,
            replaced=found.replaced,
        )
    return texts


def _max_eval_bytes(config: CorpusConfig, reading: Reading) -> int | None:
    limit = config.max_eval_tokens if isinstance(config, TextConfig) else None
    if limit is None:
        return None
    if reading.tokenizer.any_bytes:
        return limit
    return limit * (_BYTES_A_CHARACTER if reading.kind == "char" else _BYTES_A_TOKEN)


def _notes(config: CorpusConfig, texts: Collection[_Text]) -> list[str]:
    replaced = sum(text.replaced for text in texts)
    notes = [*_notes_on_documents(config, texts), *_notes_on_files(config, texts)]
    if replaced:
        notes.append(f"data.errors=replace put U+FFFD in {replaced:,} places")
    return notes


def _notes_on_documents(config: CorpusConfig, texts: Collection[_Text]) -> list[str]:
    if config.documents not in ("blank_line", "marker") or any(len(text.stretch.rows) > 1 for text in texts):
        return []
    what = "a blank line" if config.documents == "blank_line" else f"the line {config.document_marker!r}"
    return [f"data.documents is {config.documents!r}, and no text has {what} between two documents"]


def _notes_on_files(config: CorpusConfig, texts: Collection[_Text]) -> list[str]:
    """Say so if plain files seem to be no text in an encoding of bytes."""
    if not isinstance(config, TextConfig) or config.encoding.lower().startswith(("utf-16", "utf-32", "utf16", "utf32")):
        return []
    plain = [text.stretch.path for text in texts if text.stretch.path == text.stretch.source]
    found = [path.name for path in plain[:_LOOKED_AT_FILES] if _holds_nul(path)]
    if not found:
        return []
    return [
        f"NUL bytes, which text has not, are in {len(found):,} of the files, such as {found[0]!r}: data.path may be a "
        "glob that leaves them out, and data.encoding=utf-16 reads that kind of text"
    ]


def _holds_nul(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" in file.read(_LOOKED_AT_BYTES)
