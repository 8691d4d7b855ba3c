"""Which files a corpus has and which of them belong to which split: one's own texts, and the paper's corpora."""

from __future__ import annotations

import hashlib
import os
import shutil
import sysconfig
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from transformer_xl import hub, registry
from transformer_xl.data.files import Cut, Source, Sources, describe, locked, walk
from transformer_xl.data.lanes import SPLITS
from transformer_xl.data_config import PublishedConfig, StdlibConfig
from transformer_xl.errors import UserError, first_line

_STDLIB_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_TIMEOUTS_S = (10.0, 60.0)
"""To connect, and without a byte."""
_BLOCK_BYTES = 1 << 16
_SECONDS_BETWEEN_LINES = 10.0
_HEADERS = {
    # some mirrors turn away whatever calls itself Python
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/125.0 Safari/537.36",
    "Accept-Encoding": "identity",
}


@registry.register("corpus", "stdlib", StdlibConfig)
def stdlib_sources(config: StdlibConfig, *, announce: Callable[[str], None]) -> Sources:
    """Find the source of Python's standard library; each file's split depends on its own name alone."""
    root = Path(sysconfig.get_paths()["stdlib"])
    setting = f"data=stdlib reads *.py below {str(root)!r}"
    try:
        found = walk(root, without=_STDLIB_SKIPPED)
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
        splits["train" if is_train else "valid" if share < 1 - config.test_fraction else "test"].append(file)
    return Sources(setting=setting, location=root.resolve(), splits=splits)


# --- the paper's corpora ---


class WebFile(NamedTuple):
    """A text file or an archive of text files at an address, with its SHA-256."""

    address: str
    sha256: str

    def fetch(self, folder: Path, announce: Callable[[str], None]) -> None:
        """Write the text files into a folder; `UserError`, or what `requests` raises, where they are not to be had."""
        import requests

        path, digest = folder / self.address.rpartition("/")[2], hashlib.sha256()
        with requests.get(self.address, headers=_HEADERS, stream=True, timeout=_TIMEOUTS_S) as response:
            response.raise_for_status()
            total, said = int(response.headers.get("Content-Length", 0)) / 1e6, time.monotonic()
            announce(f"data: fetching {self.address} ({total:,.1f} MB)")
            with path.open("wb") as target:
                for block in response.iter_content(_BLOCK_BYTES):
                    target.write(block)
                    digest.update(block)
                    if time.monotonic() - said > _SECONDS_BETWEEN_LINES:
                        said = time.monotonic()
                        announce(f"data: {path.name}: {target.tell() / 1e6:,.1f} of {total:,.1f} MB")
        if digest.hexdigest() != self.sha256:
            raise UserError(f"its SHA-256 is {digest.hexdigest()}, and must be {self.sha256}")
        if path.suffix in (".zip", ".gz", ".tgz"):
            filters = {} if path.suffix == ".zip" else {"filter": "data"}
            shutil.unpack_archive(path, folder, **filters)  # type: ignore[arg-type]
            path.unlink()


class HubTables(NamedTuple):
    """The Parquet files of one folder of a dataset on the Hub, whose rows are lines of a text.

    Attributes:
        address: `owner/name@revision`.
        folder: in it are `train*`, `validation*` and `test*`, with one column.
        file: the text file, `{}` in it standing for `train`, `valid` or `test`.
        line_end: what ends a row that does not end with it.
    """

    address: str
    folder: str
    file: str
    line_end: str = "\n"

    def fetch(self, folder: Path, announce: Callable[[str], None]) -> None:
        """Write the text files into a folder; `UserError` where the Hub does not give them."""
        from pyarrow import parquet

        announce(f"data: fetching {self.folder} of {self.address} from the Hugging Face Hub")
        tables = hub.fetch(self.address, [f"{self.folder}/*.parquet"], kind="dataset") / self.folder
        for split, named in (("train", "train"), ("validation", "valid"), ("test", "test")):
            paths = sorted([*tables.glob(f"{split}*.parquet"), *tables.glob(f"{split}/*.parquet")])
            with (folder / self.file.format(named)).open("a", encoding="utf-8", newline="") as target:
                for batch in chain.from_iterable(parquet.ParquetFile(path).iter_batches() for path in paths):
                    rows = batch.column(0).to_pylist()
                    target.writelines(row.removesuffix(self.line_end) + self.line_end for row in rows)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A corpus of the paper, as text files.

    Attributes:
        files: by split a glob, or several with ` or ` between them; `train` alone where one file is cut at 90 and 95 %.
        inside: the folder that its archive unpacks to; the files may be in it or not.
        addresses: any one of them is enough; tried in order.
        words: its list of words, which it can do without.
        tokenizer: the published one.
        tokenizer_classes: the registered name of a tokenizer where it is another.
        lower_case: it is published in lower case.
        counts_all: its vocabulary is counted over all splits.
        expected: by `data.newline` the published numbers of tokens, by split, and of symbols.
    """

    files: Mapping[str, str]
    inside: str = ""
    addresses: tuple[WebFile | HubTables, ...]
    words: WebFile | None = None
    tokenizer: str = "word"
    tokenizer_classes: Mapping[str, str] = field(default_factory=dict)
    lower_case: bool = False
    counts_all: bool = False
    expected: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def missing(self, folder: Path) -> str:
        """Return the files that a folder lacks or that are empty in it, for messages; empty where it has all."""
        return ", ".join(dict.fromkeys(glob for glob in self.files.values() if not self.paths(folder, glob)))

    def paths(self, folder: Path, names: str) -> list[Path]:
        """Return the files, in order, that match the first of some globs that matches any."""
        for glob in names.split(" or "):
            found = sorted({*folder.glob(glob), *(folder / self.inside).glob(glob)})
            # part 00000 of lm1b is the held-out text, whole
            kept = [
                path for path in found if path.name != _LM1B_ALL_HELD_OUT and path.is_file() and path.stat().st_size
            ]
            if kept:
                return kept
        return []

    def fetch(self, folder: Path, announce: Callable[[str], None]) -> None:
        """Put what a folder lacks into it, from the first address that gives it; the others are announced."""
        part = folder / "part"
        # the list of words first: with the text alone a later run would find nothing amiss, and count its own
        for source in (*([self.words] if self.words else []), *self.addresses):
            if not self.missing(folder):
                break
            shutil.rmtree(part, ignore_errors=True)  # of a killed process
            part.mkdir()
            try:
                source.fetch(part, announce)
                for found in part.iterdir():
                    shutil.rmtree(folder / found.name, ignore_errors=True)
                    found.replace(folder / found.name)
            except Exception as error:  # whatever the clients of the Web, of the Hub and of archives raise
                announce(f"data: {source.address} fails: {first_line(error)}")
            finally:
                shutil.rmtree(part)


# The checksums of all archives and of lm1b's vocabulary are those in github.com/quantapix/qnarre,
# qnarre/feeds/data/{wikitext,enwik8,text8,penn,1b_word}.py. Other public repositories state the same ones: of lm1b's
# archive tensorflow/datasets (tensorflow_datasets/url_checksums/lm1b.txt).
_WIKITEXT = "Salesforce/wikitext@b08601e04326c79dfdd32d625aee71d232d685c3"
_ENWIK8_SHA256 = "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc"
_ENWIK_COUNTS = {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}
_LM1B = "1-billion-word-language-modeling-benchmark-r13output"
_LM1B_HELD_OUT = "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050"
_LM1B_ALL_HELD_OUT = "news.en-00000-of-00100"
_LM1B_WORDS = "1b_word_vocab.txt"


def _wikitext(title: str, *, sha256: str, counts_all: bool, expected: dict[str, int]) -> Published:
    return Published(
        files={split: f"wiki.{split}.tokens or {split}.txt" for split in SPLITS},
        inside=title,
        addresses=(
            HubTables(_WIKITEXT, f"{title}-v1", "wiki.{}.tokens"),
            WebFile(f"https://wikitext.smerity.com/{title}-v1.zip", sha256),
        ),
        counts_all=counts_all,
        expected={"keep": expected | {"valid": 217_646, "test": 245_569}},
    )


PUBLISHED: dict[str, Published] = {
    "wikitext103": _wikitext(
        "wikitext-103",
        sha256="242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
        counts_all=False,
        expected={"train": 103_227_021, "vocabulary": 267_735},
    ),
    "wikitext2": _wikitext(
        "wikitext-2",
        sha256="92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
        counts_all=True,
        expected={"train": 2_088_628, "vocabulary": 33_278},
    ),
    "enwik8": Published(
        files={"train": "enwik8"},
        addresses=(
            WebFile("http://mattmahoney.net/dc/enwik8.zip", _ENWIK8_SHA256),
            WebFile("https://data.deepai.org/enwik8.zip", _ENWIK8_SHA256),
        ),
        tokenizer="char",
        tokenizer_classes={"char": "ranked_byte"},  # the published preparation takes its bytes for characters
        expected={"drop": {"vocabulary": 204}, "keep": _ENWIK_COUNTS | {"vocabulary": 205}},
    ),
    "text8": Published(
        files={"train": "text8"},
        addresses=(
            WebFile(
                "http://mattmahoney.net/dc/text8.zip",
                "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
            ),
            HubTables("afmck/text8@main", "data", "text8", line_end=""),
        ),
        tokenizer="char",
        expected={"drop": _ENWIK_COUNTS | {"vocabulary": 27}},
    ),
    "ptb": Published(
        files={split: f"ptb.{split}.txt or {split}.txt" for split in SPLITS},
        inside="simple-examples/data",
        addresses=(
            HubTables("ptb-text-only/ptb_text_only@refs/convert/parquet", "penn_treebank", "ptb.{}.txt"),
            WebFile(
                "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
                "7d4fe4bd080182dd8423e32557cdbc3e5a967f7eb4a2a598be8ada7b66bd1de7",
            ),
        ),
        lower_case=True,
        counts_all=True,
        # 9,999 words, `<unk>` and N among them, and `<eos>`
        expected={"keep": {"train": 929_589, "valid": 73_760, "test": 82_430, "vocabulary": 10_000}},
    ),
    "lm1b": Published(
        # the published preparation takes the same file for validation and for test
        files={
            "train": "training-monolingual.tokenized.shuffled/news.en-*-of-00100",
            "valid": _LM1B_HELD_OUT,
            "test": _LM1B_HELD_OUT,
        },
        inside=_LM1B,
        addresses=(
            WebFile(
                f"http://www.statmt.org/lm-benchmark/{_LM1B}.tar.gz",
                "01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
            ),
        ),
        words=WebFile(
            f"https://raw.githubusercontent.com/rafaljozefowicz/lm/master/{_LM1B_WORDS}",
            "c758fee313a5c952995f391a659fe31cde50f2b11f5fae6c0e75a0a6e79fa34d",
        ),
        tokenizer_classes={"word": "sentence"},
        expected={"keep": {"vocabulary": 793_471}},
    ),
}


def published_sources(config: PublishedConfig, *, announce: Callable[[str], None]) -> Sources:
    """Find a published corpus's text files in `data.dir`, or fetch them once below `data.cache_dir`.

    `UserError` where files are missing or empty; it says which file goes where.
    """
    corpus = PUBLISHED[config.kind]
    folder, setting = Path(os.path.expanduser(config.dir or "")), f"data.dir is {config.dir!r}"
    if config.dir is None:
        folder = Path(os.path.expanduser(config.cache_dir)) / "downloads" / config.kind
        setting = f"data={config.kind} is read from {str(folder)!r}"
        if config.download and corpus.missing(folder):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"data.cache_dir is {config.cache_dir!r}, which cannot be written: {error}") from error
            waiting = f"data: waiting for another process that fetches {config.kind} into {folder}"
            with locked(folder / "lock", announce, waiting):
                corpus.fetch(folder, announce)
    if missing := corpus.missing(folder):
        addresses = " or ".join(source.address for source in corpus.addresses)
        raise UserError(f"{setting}, which lacks {missing}: put them there, or into data.dir=FOLDER, from {addresses}")
    splits = {
        split: [describe(path, name=path.relative_to(folder).as_posix()) for path in corpus.paths(folder, glob)]
        for split, glob in corpus.files.items()
    }
    words = corpus.paths(folder, _LM1B_WORDS) if corpus.words else []
    return Sources(
        setting=setting,
        location=folder.resolve(),
        splits=splits,
        cut=Cut("bytes", valid=0.05, test=0.05) if len(splits) == 1 else None,
        vocabulary=describe(words[0], name=_LM1B_WORDS) if words else None,
    )


for _kind in PUBLISHED:
    registry.register("corpus", _kind, PublishedConfig)(published_sources)


def published_counts(config: PublishedConfig) -> Mapping[str, int]:
    """Return the published numbers of tokens, by split, and of symbols, of a corpus that is read as it was."""
    corpus = PUBLISHED[config.kind]
    is_as_published = config.tokenizer == corpus.tokenizer and config.documents == "none"
    return corpus.expected.get(config.newline, {}) if is_as_published else {}


def deviations(config: PublishedConfig, counts: Mapping[str, int]) -> list[str]:
    """Return a sentence for each number of tokens of a split, or of symbols, that is not the published one."""
    return [
        f"{config.kind} has {counts[name]:,} {'symbols' if name == 'vocabulary' else f'{name} tokens'} here, and "
        f"{number:,} where it was published"
        for name, number in published_counts(config).items()
        if counts[name] != number
    ]
