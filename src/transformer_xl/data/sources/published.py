"""The paper's corpora in the files in which they were published."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from transformer_xl.config import PublishedConfig
from transformer_xl.data.building.cutting import cut_by_bytes
from transformer_xl.data.sources.files import SPLITS, Piece, SourceFile, Sources, describe, reading_setting, whole_files
from transformer_xl.errors import UserError

_NAMES = {
    "wikitext103": ("wiki.{}.tokens",),
    "wikitext2": ("wiki.{}.tokens",),
    "ptb": ("{}.txt", "ptb.{}.txt"),
}
"""Of the files of corpora that have one a split; the first that is there counts."""
_CUT_BYTES = 100_000_000
"""Size of enwik8 and of text8, which are one file each."""
_LM1B_FOLDER = "1-billion-word-language-modeling-benchmark-r13output"
_LM1B_TRAINING = "training-monolingual.tokenized.shuffled"
_LM1B_HELD_OUT = "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050"
_LM1B_VOCABULARY = "1b_word_vocab.txt"
_LM1B_PARTS = 99
_LM1B_PART = re.compile(r"news\.en-(?!00000)\d{5}-of-00100")
"""A training file's name. Part 00000 is the held-out text, whole."""


def published_sources(config: PublishedConfig) -> Sources:
    """Find a published corpus's files in `data.dir`; `UserError` saying which it must hold where some are missing."""
    wanted = _wanted(config.kind)
    setting = "data.dir is not set" if config.dir is None else f"data.dir is {config.dir!r}"
    if not config.dir:
        raise UserError(f"{setting}, and must name {wanted}")
    folder = Path(os.path.expanduser(config.dir))
    if not folder.is_dir():
        raise UserError(f"{setting}, which is no folder here, and must name {wanted}")
    with reading_setting(setting, wanted=wanted):
        if config.kind in _NAMES:
            sources = _file_a_split(folder, names=_NAMES[config.kind], setting=setting, wanted=wanted)
        elif config.kind == "lm1b":
            sources = _lm1b(folder, setting=setting, wanted=wanted)
        else:
            sources = _cut_file(folder, name=config.kind, setting=setting, wanted=wanted)
        empty = [file.name for file in sources.files if not file.size]
        if empty:
            raise UserError(f"{setting}, where {', '.join(empty)} is empty, and must name {wanted}")
    return sources


def _wanted(kind: str) -> str:
    if kind in _NAMES:
        listed = " or ".join(", ".join(name.format(split) for split in SPLITS) for name in _NAMES[kind])
        return f"the folder that holds {kind}'s {listed}"
    if kind == "lm1b":
        return (
            f"the folder that holds lm1b's {_LM1B_TRAINING}/news.en-00001-of-00100 to -00099-of-00100 and "
            f"{_LM1B_HELD_OUT} (and {_LM1B_VOCABULARY}, if the published vocabulary is to be used)"
        )
    return f"the folder that holds the file {kind}, unpacked"


def _file_a_split(folder: Path, *, names: tuple[str, ...], setting: str, wanted: str) -> Sources:
    found = {
        split: [path for path in (folder / name.format(split) for name in names) if path.is_file()] for split in SPLITS
    }
    _require([names[0].format(split) for split in SPLITS if not found[split]], setting=setting, wanted=wanted)
    splits = {split: [describe(paths[0], name=paths[0].name)] for split, paths in found.items()}
    files = [file for split in SPLITS for file in splits[split]]
    return whole_files(setting=setting, location=folder.resolve(), splits=splits, files=files)


def _cut_file(folder: Path, *, name: str, setting: str, wanted: str) -> Sources:
    path = folder / name
    _require([] if path.is_file() else [name], setting=setting, wanted=wanted)
    file = describe(path, name=name)
    note = (
        f"{name} has {file.size:,} bytes here, and {_CUT_BYTES:,} where it was published; it is cut at 90 and 95 in a "
        "hundred of them all the same, and its scores compare with no others"
    )
    ranges = cut_by_bytes(file.size)
    return Sources(
        setting=setting,
        location=folder.resolve(),
        files=(file,),
        splits={
            split: (Piece(path, part.start, part.stop),) if part.start < part.stop else ()
            for split, part in zip(SPLITS, ranges, strict=True)
        },
        notes=(note,) if file.size != _CUT_BYTES else (),
    )


def _lm1b(folder: Path, *, setting: str, wanted: str) -> Sources:
    root = folder / _LM1B_FOLDER if (folder / _LM1B_FOLDER).is_dir() else folder
    training = root / _LM1B_TRAINING
    names = sorted(os.listdir(training)) if training.is_dir() else []
    parts = [name for name in names if _LM1B_PART.fullmatch(name)]
    missing = [f"{_LM1B_TRAINING}/news.en-00001-of-00100"] if not parts else []
    missing += [] if (root / _LM1B_HELD_OUT).is_file() else [_LM1B_HELD_OUT]
    _require(missing, setting=setting, wanted=wanted)
    train = [describe(training / name, name=f"{_LM1B_TRAINING}/{name}") for name in parts]
    held_out = describe(root / _LM1B_HELD_OUT, name=_LM1B_HELD_OUT)
    # The published preparation takes the same file for validation and for test.
    splits = {"train": train, "valid": [held_out], "test": [held_out]}
    vocabulary = _described_if_there([folder / _LM1B_VOCABULARY, root / _LM1B_VOCABULARY])
    sources = whole_files(
        setting=setting,
        location=folder.resolve(),
        splits=splits,
        files=[*train, held_out, *([vocabulary] if vocabulary else [])],
    )
    notes = []
    if len(parts) != _LM1B_PARTS:
        notes.append(f"lm1b has {len(parts)} of its {_LM1B_PARTS} training files here")
    if vocabulary is None:
        notes.append(f"lm1b's {_LM1B_VOCABULARY} is not here; the vocabulary is counted in the training files")
    return replace(sources, notes=tuple(notes), vocabulary=vocabulary)


def _described_if_there(paths: list[Path]) -> SourceFile | None:
    for path in paths:
        if path.is_file():
            return describe(path, name=path.name)
    return None


def _require(missing: list[str], *, setting: str, wanted: str) -> None:
    if missing:
        raise UserError(f"{setting}, where {', '.join(missing)} cannot be found, and must name {wanted}")
