"""The forms in which people have the paper's corpora: as unpacked, as archives, as the Hub's parquet files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from transformer_xl.data.sources.files import SPLITS, Cut, Origin, SourceFile, describe

_CUT_BYTES = 100_000_000
"""Size of enwik8 and of text8, which are one file each."""
_UNPACKED_LIMITS = {
    "wikitext103": 700_000_000,
    "wikitext2": 20_000_000,
    "enwik8": _CUT_BYTES + (1 << 16),
    "text8": _CUT_BYTES + (1 << 16),
    "ptb": 10_000_000,
    "lm1b": 5_000_000_000,
}
"""Of one file of a corpus, with room: the largest have 540, 11, 100, 100 and 5 million bytes; all of lm1b is 4.2 GB."""
_CUT = Cut(by="bytes", valid=0.05, test=0.05)
_PARQUET = re.compile(r"(?P<split>train|validation|valid|test)(?:/\d+|-\d+-of-\d+)?\.parquet")
_SPLIT_OF = {"train": "train", "validation": "valid", "valid": "valid", "test": "test"}
LM1B_FOLDER = "1-billion-word-language-modeling-benchmark-r13output"
LM1B_TRAINING = "training-monolingual.tokenized.shuffled"
LM1B_HELD_OUT = "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050"
LM1B_VOCABULARY = "1b_word_vocab.txt"
_LM1B_PARTS = 99
_LM1B_PART_LIMIT = 200_000_000
"""Of one training file, with room: they have 42 million bytes."""
_LM1B_PART = re.compile(r"news\.en-(?!00000)\d{5}-of-00100")
"""A training file's name. Part 00000 is the held-out text, whole."""


class Found(NamedTuple):
    """A corpus in one form, whole."""

    files: tuple[SourceFile, ...]
    splits: Mapping[str, tuple[Origin, ...]]
    whole: tuple[Origin, ...] = ()
    cut: Cut | None = None
    notes: tuple[str, ...] = ()
    vocabulary: SourceFile | None = None


class Missing(NamedTuple):
    """A form of a corpus of which not all is there: what lacks, and how many of its files there are."""

    names: list[str]
    present: int


def find_form(kind: str, folder: Path) -> Found | Missing:
    """Find a corpus in a folder in the first of its forms that is whole; plain files come before archives.

    Returns:
        The corpus, else what lacks to the form of which most is there, else to the first.
    """
    missing: list[Missing] = []
    for form in _FORMS[kind](folder):
        if isinstance(form, Found):
            return form
        missing.append(form)
    return max(missing, key=lambda form: form.present)


def _plain(folder: Path, *, below: tuple[str, ...], names: tuple[str, ...]) -> Iterator[Found | Missing]:
    """One text file a split, in the folder or one below it; of its names the first that is there counts."""
    for place in below:
        candidates = {split: [place + name.format(split) for name in names] for split in SPLITS}
        found = {
            split: next((name for name in listed if (folder / name).is_file()), None)
            for split, listed in candidates.items()
        }
        lacking = [candidates[split][0] for split, name in found.items() if name is None]
        if lacking:
            yield Missing(lacking, len(SPLITS) - len(lacking))
            continue
        files = {split: describe(folder / name, name=name) for split, name in found.items() if name is not None}
        yield Found(tuple(files.values()), {split: (Origin(file=file),) for split, file in files.items()})


def _archive(folder: Path, *, name: str, member: str, limit: int) -> Iterator[Found | Missing]:
    """An archive with one text file a split."""
    if not (folder / name).is_file():
        yield Missing([name], 0)
        return
    file = describe(folder / name, name=name)
    yield Found(
        (file,),
        {split: (Origin(file=file, member=member.format(split), unpacked_limit=limit),) for split in SPLITS},
    )


def _parquet(
    folder: Path, *, place: str, field: str, limit: int, splits: tuple[str, ...] = SPLITS
) -> Iterator[Found | Missing]:
    """The Hub's files: a table or several a split, in the folder or in the one that the Hub has them in."""
    for below in ("", place):
        found = _parquet_files(folder, below)
        listed = [files[0] for files in found.values()]
        lacking = [name for files in found.values() for name in _gaps(files)]
        lacking += [
            f"{below}{'validation' if split == 'valid' else split}*.parquet" for split in splits if split not in found
        ]
        if lacking:
            yield Missing(lacking, len(listed))
            continue
        files = {split: [describe(folder / name, name=name) for name in found[split]] for split in splits}
        yield Found(
            tuple(file for split in splits for file in files[split]),
            {
                split: tuple(
                    Origin(file=file, format="parquet", field=field, unpacked_limit=limit) for file in files[split]
                )
                for split in splits
            },
        )


def _parquet_files(folder: Path, below: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for where in ("", "train/", "validation/", "valid/", "test/"):
        place = folder / below / where
        for name in sorted(os.listdir(place)) if place.is_dir() else []:
            match = _PARQUET.fullmatch(where + name)
            if match and (place / name).is_file():
                found.setdefault(_SPLIT_OF[match["split"]], []).append(f"{below}{where}{name}")
    return found


def _gaps(names: list[str]) -> list[str]:
    """Name what lacks of a split's tables, as far as their numbers tell."""
    lacking = []
    for name in names:
        numbered = re.fullmatch(r"(?P<head>.*-)(?P<index>\d+)-of-(?P<count>\d+)\.parquet", name)
        if numbered:
            width, count = len(numbered["index"]), int(numbered["count"])
            wanted = [f"{numbered['head']}{i:0{width}}-of-{numbered['count']}.parquet" for i in range(count)]
            lacking += [other for other in wanted if other not in names and other not in lacking]
    return lacking


def _one_file(folder: Path, *, name: str) -> Iterator[Found | Missing]:
    """A text in one file, packed or not, that is cut."""
    if (folder / name).is_file():
        file = describe(folder / name, name=name)
        note = (
            f"{name} has {file.size:,} bytes here, and {_CUT_BYTES:,} where it was published; it is cut at 90 and 95 "
            "in a hundred of them all the same, and its scores compare with no others"
        )
        notes = (note,) if file.size != _CUT_BYTES else ()
        yield Found((file,), {}, whole=(Origin(file=file),), cut=_CUT, notes=notes)
        return
    yield Missing([name], 0)
    if (folder / f"{name}.zip").is_file():
        file = describe(folder / f"{name}.zip", name=f"{name}.zip")
        origin = Origin(file=file, member=name, unpacked_limit=_UNPACKED_LIMITS[name])
        yield Found((file,), {}, whole=(origin,), cut=_CUT)


def _wikitext(folder: Path, *, kind: str, title: str) -> Iterator[Found | Missing]:
    limit = _UNPACKED_LIMITS[kind]
    yield from _plain(folder, below=("", f"{title}/"), names=("wiki.{}.tokens", "{}.txt"))
    yield from _archive(folder, name=f"{title}-v1.zip", member=f"{title}/wiki.{{}}.tokens", limit=limit)
    yield from _parquet(folder, place=f"{title}-v1/", field="text", limit=limit)


def _ptb(folder: Path) -> Iterator[Found | Missing]:
    limit = _UNPACKED_LIMITS["ptb"]
    yield from _plain(folder, below=("", "data/", "simple-examples/data/"), names=("{}.txt", "ptb.{}.txt"))
    member = "simple-examples/data/ptb.{}.txt"
    yield from _archive(folder, name="simple-examples.tgz", member=member, limit=limit)
    yield from _parquet(folder, place="penn_treebank/", field="sentence", limit=limit)


def _text8(folder: Path) -> Iterator[Found | Missing]:
    yield from _one_file(folder, name="text8")
    yield from _parquet(folder, place="data/", field="text", limit=_UNPACKED_LIMITS["text8"])


def _lm1b(folder: Path) -> Iterator[Found | Missing]:
    vocabulary = next(
        (
            describe(folder / name, name=name)
            for name in (LM1B_VOCABULARY, f"{LM1B_FOLDER}/{LM1B_VOCABULARY}")
            if (folder / name).is_file()
        ),
        None,
    )
    for form in _lm1b_forms(folder):
        if isinstance(form, Missing):
            yield form
            continue
        notes = form.notes
        if vocabulary is None:
            notes += (f"lm1b's {LM1B_VOCABULARY} is not here; the vocabulary is counted in the training files",)
        files = form.files if vocabulary is None else (*form.files, vocabulary)
        yield form._replace(files=files, notes=notes, vocabulary=vocabulary)


def _lm1b_forms(folder: Path) -> Iterator[Found | Missing]:
    yield from _lm1b_plain(folder, "")
    yield from _lm1b_plain(folder, f"{LM1B_FOLDER}/")
    archive = f"{LM1B_FOLDER}.tar.gz"
    if (folder / archive).is_file():
        file = describe(folder / archive, name=archive)
        origin = partial(Origin, file=file, unpacked_limit=_LM1B_PART_LIMIT)
        parts = [f"{LM1B_TRAINING}/news.en-{number:05}-of-00100" for number in range(1, _LM1B_PARTS + 1)]
        held_out = (origin(member=f"{LM1B_FOLDER}/{LM1B_HELD_OUT}"),)
        train = tuple(origin(member=f"{LM1B_FOLDER}/{part}") for part in parts)
        yield Found((file,), {"train": train, "valid": held_out, "test": held_out})
    limit = _UNPACKED_LIMITS["lm1b"]
    for form in _parquet(folder, place="plain_text/", field="text", limit=limit, splits=("train", "test")):
        if isinstance(form, Missing):
            yield form
            continue
        note = (
            "lm1b's validation and test here are the whole held-out text, of which the published preparation takes "
            "the first of 50 files; scores compare with no others"
        )
        yield form._replace(splits={**form.splits, "valid": form.splits["test"]}, notes=(note,))


def _lm1b_plain(folder: Path, below: str) -> Iterator[Found | Missing]:
    training = folder / below / LM1B_TRAINING
    names = sorted(os.listdir(training)) if training.is_dir() else []
    parts = [f"{below}{LM1B_TRAINING}/{name}" for name in names if _LM1B_PART.fullmatch(name)]
    held_out = below + LM1B_HELD_OUT
    lacking = [f"{below}{LM1B_TRAINING}/news.en-00001-of-00100"] if not parts else []
    lacking += [] if (folder / held_out).is_file() else [held_out]
    if lacking:
        yield Missing(lacking, 2 - len(lacking))
        return
    train = [describe(folder / part, name=part) for part in parts]
    held = describe(folder / held_out, name=held_out)
    # The published preparation takes the same file for validation and for test.
    splits = {"train": tuple(Origin(file=file) for file in train), "valid": (Origin(file=held),)}
    notes = (f"lm1b has {len(parts)} of its {_LM1B_PARTS} training files here",) if len(parts) != _LM1B_PARTS else ()
    yield Found((*train, held), {**splits, "test": splits["valid"]}, notes=notes)


_FORMS: dict[str, Callable[[Path], Iterator[Found | Missing]]] = {
    "wikitext103": partial(_wikitext, kind="wikitext103", title="wikitext-103"),
    "wikitext2": partial(_wikitext, kind="wikitext2", title="wikitext-2"),
    "enwik8": partial(_one_file, name="enwik8"),
    "text8": _text8,
    "ptb": _ptb,
    "lm1b": _lm1b,
}
