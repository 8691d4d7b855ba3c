"""Which files a corpus is made of and which of them belong to which split: one's own texts, and the paper's corpora."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from transformer_xl import registry
from transformer_xl.data.download import HubFolder, WebFile, fetch_first, remove_parts
from transformer_xl.data.files import Cut, Source, SourceFile, Sources, describe, source_of, sources_of_path, walk
from transformer_xl.data.lanes import SPLITS
from transformer_xl.data.text import check_encoding
from transformer_xl.data_config import PublishedConfig, StdlibConfig, TextConfig
from transformer_xl.errors import UserError, first_line, locked

_STDLIB_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_WANTED = "a text file, a folder of text files, or a glob such as 'logs/**/*.txt'"
_ENWIK_BYTES = 100_000_000
"""Size of enwik8 and of text8, which are one file each."""
_LM1B = "1-billion-word-language-modeling-benchmark-r13output"
_LM1B_TRAINING = "training-monolingual.tokenized.shuffled/news.en-"
_LM1B_HELD_OUT = "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050"
_LM1B_WORDS = "1b_word_vocab.txt"


@registry.register("corpus", "text", TextConfig)
def text_sources(config: TextConfig, *, announce: Callable[[str], None]) -> Sources:
    """Find the files that `data.path` names, and their splits; `UserError` where they are missing or unclear."""
    setting = f"data.path is {config.path!r}"
    if not config.path:
        raise UserError(f"{setting}, and must name {_WANTED}")
    if problem := check_encoding(config.encoding):
        raise UserError(problem)

    def source(file: SourceFile) -> Source:
        return source_of(file, format=config.format, field=config.field, setting=setting)

    return sources_of_path(config, source, setting=setting, wanted=_WANTED)


@registry.register("corpus", "stdlib", StdlibConfig)
def stdlib_sources(config: StdlibConfig, *, announce: Callable[[str], None]) -> Sources:
    """Find the source of Python's standard library; each file's split hangs on its own name alone."""
    root = Path(sysconfig.get_paths()["stdlib"])
    setting = f"data=stdlib reads *.py below {str(root)!r}"
    try:
        found = walk(root, keep_folder=lambda name: name not in _STDLIB_SKIPPED)
        paths = {path.relative_to(root).as_posix(): path for path in found if path.suffix == ".py" and path.is_file()}
        files = [describe(path, name=name) for name, path in sorted(paths.items())]
    except OSError as error:
        raise UserError(f"{setting}, which cannot be read: {first_line(error)}") from error
    if not files:
        raise UserError(f"{setting}, which holds none; name a text of your own with data=text data.path=...")
    splits: dict[str, list[Source]] = {split: [] for split in SPLITS}
    for file in files:
        # other Python versions share most of it
        share = int.from_bytes(hashlib.sha256(os.fsencode(file.name)).digest()[:8], "big") / 2**64
        is_train = share < 1 - (config.valid_fraction + config.test_fraction)
        splits["train" if is_train else "valid" if share < 1 - config.test_fraction else "test"].append(
            Source(file=file)
        )
    texts = {split: tuple(found) for split, found in splits.items()}
    return Sources(setting=setting, location=root.resolve(), files=tuple(files), splits=texts)


# --- the paper's corpora ---


class Form(NamedTuple):
    """One of the forms in which a corpus may lie in a folder.

    Attributes:
        splits: for each split globs of its files; the first that matches any counts.
        members: of the archive that all splits name, by split.
        field: the column of Parquet files.
        cut: how the text is divided, where `train` names all of it.
    """

    splits: Mapping[str, tuple[str, ...]]
    members: Mapping[str, tuple[str, ...]] | None = None
    field: str | None = None
    cut: Cut | None = None


@dataclass(frozen=True, kw_only=True)
class Published:
    """A corpus of the paper.

    Attributes:
        wanted: what a folder must hold, for messages.
        forms: of which the first that is whole counts; plain files come before archives.
        limit: bytes of one file when unpacked, with room.
        addresses: any one of them is enough; tried in order.
        words: addresses of its list of words, which it can do without.
        tokenizer: the published one.
        tokenizer_classes: the registered name of a tokenizer where it is another.
        lower_case: it is published in lower case.
        counts_all: its vocabulary is counted over all splits.
        expected: by `data.newline` the published numbers of tokens, by split, and of symbols.
    """

    wanted: str
    forms: tuple[Form, ...]
    limit: int
    addresses: tuple[WebFile | HubFolder, ...]
    words: tuple[WebFile, ...] = ()
    tokenizer: str = "word"
    tokenizer_classes: Mapping[str, str] = field(default_factory=dict)
    lower_case: bool = False
    counts_all: bool = False
    expected: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def _plain(below: str, *names: str) -> Form:
    return Form({split: tuple(below + name.format(split) for name in names) for split in SPLITS})


def _archive(name: str, member: str) -> Form:
    return Form(dict.fromkeys(SPLITS, (name,)), members={split: (member.format(split),) for split in SPLITS})


def _tables(place: str, field: str, **changes: str) -> tuple[Form, Form]:
    """Return the Hub's files, in the folder itself or in the one that the Hub has them in."""
    names = {"train": ("train",), "valid": ("validation", "valid"), "test": ("test",)} | {
        split: (name,) for split, name in changes.items()
    }
    endings = ("*.parquet", "/*.parquet")

    def form(below: str) -> Form:
        globs = {split: tuple(below + name + end for name in names[split] for end in endings) for split in SPLITS}
        return Form(globs, field=field)

    return form(""), form(place)


def _cut_file(name: str) -> tuple[Form, Form]:
    cut = Cut("bytes", valid=0.05, test=0.05)
    return Form({"train": (name,)}, cut=cut), Form({"train": (f"{name}.zip",)}, members={"train": (name,)}, cut=cut)


def _lm1b(below: str) -> Form:
    held_out = (below + _LM1B_HELD_OUT,)  # the published preparation takes the same file for validation and for test
    return Form({"train": (f"{below}{_LM1B_TRAINING}*-of-00100",), "valid": held_out, "test": held_out})


# The checksums of all archives and of lm1b's vocabulary are those in github.com/quantapix/qnarre,
# qnarre/feeds/data/{wikitext,enwik8,text8,penn,1b_word}.py. Other public repositories state the same ones: of lm1b's
# archive tensorflow/datasets (tensorflow_datasets/url_checksums/lm1b.txt, with its size).
_WIKITEXT_REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
_ENWIK8_SHA256 = "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc"
_LM1B_WORDS_SHA256 = "c758fee313a5c952995f391a659fe31cde50f2b11f5fae6c0e75a0a6e79fa34d"
_ENWIK_COUNTS = {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}


def _wikitext(kind: str, title: str, *, sha256: str, limit: int, expected: dict[str, int]) -> Published:
    return Published(
        wanted=f"{kind}'s wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens (or train.txt, valid.txt, test.txt), "
        f"or {title}-v1.zip, or the Hub's {title}-v1/*.parquet",
        forms=(
            *(_plain(below, "wiki.{}.tokens", "{}.txt") for below in ("", f"{title}/")),
            _archive(f"{title}-v1.zip", f"{title}/wiki.{{}}.tokens"),
            *_tables(f"{title}-v1/", "text"),
        ),
        limit=limit,
        addresses=(
            HubFolder(repository="Salesforce/wikitext", revision=_WIKITEXT_REVISION, folder=f"{title}-v1"),
            WebFile(url=f"https://wikitext.smerity.com/{title}-v1.zip", sha256=sha256),
        ),
        counts_all=kind == "wikitext2",
        expected={"keep": expected | {"valid": 217_646, "test": 245_569}},
    )


PUBLISHED: dict[str, Published] = {
    "wikitext103": _wikitext(
        "wikitext103",
        "wikitext-103",
        sha256="242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
        limit=700_000_000,
        expected={"train": 103_227_021, "vocabulary": 267_735},
    ),
    "wikitext2": _wikitext(
        "wikitext2",
        "wikitext-2",
        sha256="92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
        limit=20_000_000,
        expected={"train": 2_088_628, "vocabulary": 33_278},
    ),
    "enwik8": Published(
        wanted="the file enwik8 or enwik8.zip",
        forms=_cut_file("enwik8"),
        limit=_ENWIK_BYTES + (1 << 16),
        addresses=(
            WebFile(url="http://mattmahoney.net/dc/enwik8.zip", size=36_445_475, sha256=_ENWIK8_SHA256),
            WebFile(url="https://data.deepai.org/enwik8.zip", size=36_445_475, sha256=_ENWIK8_SHA256),
        ),
        tokenizer="char",
        tokenizer_classes={"char": "ranked_byte"},  # the published preparation takes its bytes for characters
        expected={"drop": {"vocabulary": 204}, "keep": _ENWIK_COUNTS | {"vocabulary": 205}},
    ),
    "text8": Published(
        wanted="the file text8 or text8.zip, or the Hub's data/*.parquet",
        forms=(*_cut_file("text8"), *_tables("data/", "text")),
        limit=_ENWIK_BYTES + (1 << 16),
        addresses=(
            WebFile(
                url="http://mattmahoney.net/dc/text8.zip",
                size=31_344_016,
                sha256="a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
            ),
            HubFolder(repository="afmck/text8", revision="main", folder="data"),
        ),
        tokenizer="char",
        expected={"drop": _ENWIK_COUNTS | {"vocabulary": 27}},
    ),
    "ptb": Published(
        wanted="ptb's train.txt, valid.txt, test.txt or ptb.train.txt, ptb.valid.txt, ptb.test.txt, or "
        "simple-examples.tgz, or the Hub's penn_treebank/*/*.parquet",
        forms=(
            *(_plain(below, "{}.txt", "ptb.{}.txt") for below in ("", "data/", "simple-examples/data/")),
            _archive("simple-examples.tgz", "simple-examples/data/ptb.{}.txt"),
            *_tables("penn_treebank/", "sentence"),
        ),
        limit=10_000_000,
        addresses=(
            HubFolder(
                repository="ptb-text-only/ptb_text_only", revision="refs/convert/parquet", folder="penn_treebank"
            ),
            WebFile(
                url="http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
                size=34_869_662,
                sha256="7d4fe4bd080182dd8423e32557cdbc3e5a967f7eb4a2a598be8ada7b66bd1de7",
            ),
        ),
        lower_case=True,
        counts_all=True,
        # 9,999 words, `<unk>` and N among them, and `<eos>`
        expected={"keep": {"train": 929_589, "valid": 73_760, "test": 82_430, "vocabulary": 10_000}},
    ),
    "lm1b": Published(
        wanted=f"lm1b's {_LM1B_TRAINING}00001-of-00100 to -00099-of-00100 and {_LM1B_HELD_OUT}, or {_LM1B}.tar.gz, or "
        f"the Hub's plain_text/*/*.parquet (and {_LM1B_WORDS}, if the published vocabulary is to be used)",
        forms=(
            _lm1b(""),
            _lm1b(f"{_LM1B}/"),
            Form(
                dict.fromkeys(SPLITS, (f"{_LM1B}.tar.gz",)),
                members={
                    "train": tuple(f"{_LM1B}/{_LM1B_TRAINING}{number:05}-of-00100" for number in range(1, 100)),
                    "valid": (f"{_LM1B}/{_LM1B_HELD_OUT}",),
                    "test": (f"{_LM1B}/{_LM1B_HELD_OUT}",),
                },
            ),
            *_tables("plain_text/", "text", valid="test"),
        ),
        limit=5_000_000_000,
        addresses=(
            WebFile(
                url=f"http://www.statmt.org/lm-benchmark/{_LM1B}.tar.gz",
                size=1_792_209_805,
                sha256="01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
            ),
            HubFolder(
                repository="billion-word-benchmark/lm1b",
                revision="refs/convert/parquet",
                folder="plain_text",
                splits=("train", "test"),
            ),
        ),
        words=tuple(
            WebFile(url=f"https://{place}/{_LM1B_WORDS}", sha256=_LM1B_WORDS_SHA256)
            for place in (
                "github.com/rafaljozefowicz/lm/raw/master",
                "raw.githubusercontent.com/rafaljozefowicz/lm/master",
            )
        ),
        tokenizer_classes={"word": "sentence"},
        expected={"keep": {"vocabulary": 793_471}},
    ),
}


def published_sources(config: PublishedConfig, *, announce: Callable[[str], None]) -> Sources:
    """Find a published corpus's files in `data.dir`, or fetch them once below `data.cache_dir`.

    `UserError` where files are missing, empty or out of reach; it says which file goes where.
    """
    kind, corpus = config.kind, PUBLISHED[config.kind]
    folder = Path(os.path.expanduser(config.cache_dir)) / "downloads" / kind
    setting = f"data.dir is not set, so that data={kind} is read from {str(folder)!r}"
    wanted = f"must name the folder that holds {corpus.wanted}"
    if config.dir is not None:
        folder, setting = Path(os.path.expanduser(config.dir)), f"data.dir is {config.dir!r}"
        if not config.dir or not folder.is_dir():
            raise UserError(f"{setting}{', which is no folder here' if config.dir else ''}, and {wanted}")
    try:
        found = _find(kind, folder, setting=setting)
    except OSError as error:
        raise UserError(f"{setting}, which cannot be read: {first_line(error)}") from error
    if isinstance(found, list) and config.dir is not None:
        raise UserError(f"{setting}, where {', '.join(found)} cannot be found, and {wanted}")
    if isinstance(found, list) and not config.download:
        lacks = f"{', '.join(found)} cannot be found; {_by_hand(kind, folder)}"
        raise UserError(f"data.download is false and {setting}, where {lacks}")
    if isinstance(found, list):
        found = _fetched(config, folder, setting=setting, announce=announce)
    if empty := [file.name for file in found.files if not file.size]:
        raise UserError(f"{setting}, where {', '.join(empty)} is empty: it must be {corpus.wanted}")
    return found


for _kind in PUBLISHED:
    registry.register("corpus", _kind, PublishedConfig)(published_sources)


def _fetched(config: PublishedConfig, folder: Path, *, setting: str, announce: Callable[[str], None]) -> Sources:
    kind, corpus = config.kind, PUBLISHED[config.kind]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock", announce, f"data: waiting for another process that fetches {kind} into {folder}"):
            found = _find(kind, folder, setting=setting)  # the other process may have fetched it
            if isinstance(found, Sources):
                return found
            # Before the corpus itself: with it alone a later run would find nothing amiss, and count its own words.
            if corpus.words and not (folder / _LM1B_WORDS).is_file():
                failure = fetch_first(corpus.words, folder, announce=announce)
                if failure is not None:
                    announce(f"data: {failure}; {kind} is fetched without {_LM1B_WORDS}")
            failure = fetch_first(corpus.addresses, folder, announce=announce)
            if failure is None:
                remove_parts(folder)
            found = _find(kind, folder, setting=setting)
    except OSError as error:
        room = "with room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "that can be written"
        raise UserError(
            f"data.cache_dir is {config.cache_dir!r}, where data={kind} cannot be kept: {error.strerror or error} "
            f"({os.fsdecode(error.filename or folder)!r}); it must name a folder {room}"
        ) from error
    if isinstance(found, list):
        reason = failure or f"what came lacks {', '.join(found)}"
        raise UserError(f"data={kind} cannot be fetched ({reason}); {_by_hand(kind, folder)}")
    return found


def _by_hand(kind: str, folder: Path) -> str:
    corpus = PUBLISHED[kind]
    addresses = [source.address for source in (*corpus.addresses, *corpus.words)]
    return (
        f"put its files into {os.path.abspath(folder)!r}, or into any folder named by data.dir\n\n"
        f"  files  {corpus.wanted}\n" + "\n".join(f"  from   {address}" for address in addresses)
    )


def _find(kind: str, folder: Path, *, setting: str) -> Sources | list[str]:
    """Find a corpus in the first of its forms that is whole, else what lacks to the form of which most is there."""
    corpus = PUBLISHED[kind]
    lacking: list[tuple[int, list[str]]] = []
    for form in corpus.forms:
        found = {split: _first_match(folder, globs) for split, globs in form.splits.items()}
        missing = [form.splits[split][0] for split, paths in found.items() if not paths]
        if missing:
            lacking.append((sum(map(bool, found.values())), list(dict.fromkeys(missing))))
            continue
        described = {path: describe(folder / path, name=path) for paths in found.values() for path in paths}
        texts = {
            split: tuple(_text_in(described[path], form, split, corpus.limit) for path in paths)
            for split, paths in found.items()
        }
        if form.members is not None:
            texts = {
                split: tuple(replace(some[0], member=member) for member in form.members[split])
                for split, some in texts.items()
            }
        words = next((name for name in (_LM1B_WORDS, f"{_LM1B}/{_LM1B_WORDS}") if (folder / name).is_file()), None)
        vocabulary = describe(folder / words, name=words) if corpus.words and words else None
        files = (*described.values(), *([] if vocabulary is None else [vocabulary]))
        return Sources(
            setting=setting,
            location=folder.resolve(),
            files=files,
            splits=texts,
            cut=form.cut,
            notes=tuple(_notes(kind, form, found, files)),
            vocabulary=vocabulary,
        )
    return max(lacking, key=lambda form: form[0])[1]


def _first_match(folder: Path, globs: tuple[str, ...]) -> list[str]:
    for glob in globs:
        paths = sorted(path.relative_to(folder).as_posix() for path in folder.glob(glob) if path.is_file())
        # part 00000 of lm1b is the held-out text, whole
        kept = [path for path in paths if not path.endswith("news.en-00000-of-00100")]
        tables = re.search(r"-of-(\d+)\.parquet$", kept[0]) if kept else None
        if kept and (tables is None or len(kept) == int(tables[1])):
            return kept
    return []


def _text_in(file: SourceFile, form: Form, split: str, limit: int) -> Source:
    packed = form.field is not None or form.members is not None
    format = "text" if form.field is None else "parquet"
    return Source(file=file, format=format, field=form.field, limit=limit if packed else None)


def _notes(kind: str, form: Form, found: Mapping[str, list[str]], files: tuple[SourceFile, ...]) -> Iterator[str]:
    if form.cut is not None and form.members is None and files[0].size != _ENWIK_BYTES:
        yield (
            f"{kind} has {files[0].size:,} bytes here, and {_ENWIK_BYTES:,} where it was published; it is cut at 90 "
            "and 95 in a hundred of them all the same, and its scores compare with no others"
        )
    if kind != "lm1b":
        return
    if form.field is not None:
        yield (
            "lm1b's validation and test here are the whole held-out text, of which the published preparation takes the "
            "first of 50 files; scores compare with no others"
        )
    elif form.members is None and len(found["train"]) != 99:
        yield f"lm1b has {len(found['train'])} of its 99 training files here"
    if files[-1].name.rpartition("/")[2] != _LM1B_WORDS:
        yield f"lm1b's {_LM1B_WORDS} is not here; the vocabulary is counted in the training files"


def deviations(config: PublishedConfig, counts: Mapping[str, int]) -> list[str]:
    """Return a sentence for each figure of a corpus that is not the published one.

    `counts`: tokens of `train`, `valid` and `test`, and symbols of the `vocabulary`. Nothing is compared where
    tokenizer, line ends or documents are not the published ones.
    """
    corpus = PUBLISHED[config.kind]
    expected = corpus.expected.get(config.newline, {})
    if config.tokenizer != corpus.tokenizer or config.documents != "none":
        return []
    what = {"train": "training tokens", "valid": "validation tokens", "test": "test tokens"}
    return [
        f"{config.kind} has {counts[name]:,} {what.get(name, 'symbols in its vocabulary')} here, and {number:,} where "
        "it was published"
        for name, number in expected.items()
        if counts[name] != number
    ]
