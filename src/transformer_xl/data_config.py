"""All settings of the group `data`: names, types, and beside them the rules; the numbers stand in `conf/data/`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from transformer_xl.registry import nearest, outside
from transformer_xl.settings import Amount, Count, Settings, Share, by_kind

_TOKENIZERS = ("byte", "char", "word", "wikitext", "bpe")


def tokenizers() -> list[str]:
    """Return the tokenizers that a corpus makes by itself; any other name is one that another program trained."""
    return [*_TOKENIZERS, *(entry.name for entry in outside("tokenizer"))]


def _where_it_lies(name: str) -> str:
    path = os.path.expanduser(name)
    return os.path.abspath(path) if name not in tokenizers() and os.path.exists(path) else name


HomePath = Annotated[str, AfterValidator(os.path.expanduser)]
"""A path whose leading `~` is the home folder."""
TokenizerName = Annotated[str, AfterValidator(_where_it_lies)]
"""The name of a tokenizer, or the absolute path of its file: a resume may come from another folder."""


class DataConfig(Settings):
    """What every corpus has: lanes, segments, and a folder for the token files."""

    kind: str
    batch_size: Count
    segment_len: Count
    segment_len_sd: Amount
    half_segments: Annotated[float, Field(ge=0, le=1)]
    loss: Literal["full", "half"]
    lane_chunks: Count

    @property
    def longest_segment(self) -> int:
        """The length at which drawn lengths are cut: three deviations above the mean, as published."""
        return int(self.segment_len + 3 * self.segment_len_sd)

    def rules(self) -> Iterator[str]:
        if self.segment_len_sd > self.segment_len:
            yield (
                f"segment_len_sd is {self.segment_len_sd}, and must be at least 0 and at most data.segment_len "
                f"{self.segment_len}"
            )
        if self.loss == "half" and self.segment_len < 2:
            yield f"loss is 'half' with data.segment_len {self.segment_len}, and needs at least 2"


class StoredConfig(DataConfig):
    """A corpus on disk, turned once into token files below `cache_dir`, and what of it is one document."""

    base: ClassVar[str] = "_stored"
    """The file of `conf/data/` that a corpus from outside begins from."""

    cache_dir: HomePath
    rebuild: bool
    documents: Literal["none", "file", "blank_line", "marker", "record"]
    end_of_document: bool
    reset_memory: Literal["document", "never"]
    order: Literal["as_is", "shuffled"]

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        if self.documents not in self._documents():
            yield f"documents is {self.documents!r}, and must be {' or '.join(self._documents())} for {self.kind}"
        if self.documents == "none" and self.reset_memory == "document":
            yield "reset_memory is 'document' with data.documents 'none', and must be 'never'"
        if self.documents == "none" and self.order == "shuffled":
            yield "order is 'shuffled' with data.documents 'none', and needs documents to shuffle"

    def _documents(self) -> tuple[str, ...]:
        return ("none", "file", "blank_line", "marker", "record")


class CorpusConfig(StoredConfig):
    """A corpus of text."""

    tokenizer: TokenizerName
    newline: Literal["keep", "drop"]
    document_marker: str | None

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        marker = self.document_marker
        if self.documents == "marker" and not _is_line(marker or ""):
            yield f"document_marker is {_shown(marker)}, and must be the line between two documents"
        if self.documents != "marker" and marker is not None:
            yield f"document_marker is {marker!r} with data.documents {self.documents!r}: set marker"
        yield from self._tokenizer_rules()
        if self.newline == "drop" and (self.tokenizer not in ("byte", "char", "word") or self.kind == "lm1b"):
            yield (
                f"newline is 'drop' with data.tokenizer {self.tokenizer!r} and data {self.kind}, and must be 'keep': "
                "line ends can be left out by byte, char and word"
            )

    def _tokenizer_rules(self) -> Iterator[str]:
        name = self.tokenizer
        if name in tokenizers():
            return
        if not os.path.exists(name):
            if "/" not in name:
                yield (
                    f"tokenizer is {name!r}, and must be one of {', '.join(tokenizers())}, a tokenizer.json that "
                    f"exists, owner/name on the Hub, or a plugin's (plugins=[FILE]); {nearest(name, tokenizers())}"
                )
        elif not os.path.isfile(name) and not os.path.isdir(name):
            yield f"tokenizer is {name!r}, which is no regular file"


class CountedConfig(CorpusConfig):
    """A text whose vocabulary may be cut: of words and characters by count, of sub-words by size."""

    base: ClassVar[str] = "_text"

    min_count: Count
    max_size: Count | None
    lower_case: bool
    bpe_size: int

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        name = self.tokenizer
        if self.min_count > 1 and name not in ("char", "word", "wikitext"):
            yield f"min_count is {self.min_count} with data.tokenizer {name!r}, and must be 1"
        if self.lower_case and name not in ("char", "word"):
            yield f"lower_case is true with data.tokenizer {name!r}, and belongs to char and word"
        if name == "byte" and self.max_size is not None and self.max_size < 256:
            yield f"max_size is {self.max_size} with data.tokenizer 'byte', which always has 256"
        if name != "bpe":
            return
        if not 256 <= self.bpe_size <= 1_000_000:
            yield f"bpe_size is {self.bpe_size}, and must be at least 256 and at most 1000000"
        if self.max_size is not None and self.max_size < self.bpe_size:
            yield (
                f"max_size is {self.max_size} with data.tokenizer 'bpe', whose size is data.bpe_size {self.bpe_size}: "
                "set that"
            )


class StdlibConfig(CountedConfig):
    """The source of Python's standard library, split by a hash of each file's path."""

    kind: Literal["stdlib"]
    valid_fraction: Share
    test_fraction: Share

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        yield from _share_rules(self.valid_fraction, self.test_fraction)


class TextConfig(CountedConfig):
    """A text file, a folder of them, or a glob."""

    kind: Literal["text"]
    path: HomePath | None
    format: Literal["auto", "text", "jsonl", "csv", "parquet"]
    field: str
    encoding: str
    errors: Literal["strict", "replace"]
    split: Literal["auto", "files", "fraction", "hash"]
    valid_fraction: Share
    test_fraction: Share
    max_eval_tokens: Annotated[int, Field(ge=2)] | None

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        yield from _file_rules(self.path, self.split, self.documents, what="text")
        yield from _share_rules(self.valid_fraction, self.test_fraction)


class PublishedConfig(CorpusConfig):
    """One of the paper's corpora, downloaded once, or from its published files in the folder `dir`."""

    kind: Literal["wikitext103", "wikitext2", "enwik8", "text8", "lm1b", "ptb"]
    dir: HomePath | None
    download: bool

    def _documents(self) -> tuple[str, ...]:
        return ("none", "blank_line", "marker")  # the others would hang on the form in which the files are here

    def _tokenizer_rules(self) -> Iterator[str]:
        allowed = {"enwik8": ("char", "byte"), "text8": ("char", "byte"), "lm1b": ("word",)}
        names = allowed.get(self.kind, ("word", "char", "byte"))  # their words stand in the files, or there are none
        if self.tokenizer not in names:
            yield f"tokenizer is {self.tokenizer!r}, and must be {' or '.join(names)} for {self.kind}"


class TokensConfig(StoredConfig):
    """Token ids that another program wrote: `.npy`, raw numbers, JSON lines, or text with blanks between them."""

    kind: Literal["tokens"]
    path: HomePath | None
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] | None
    vocab_size: Annotated[int, Field(ge=1, le=1 << 31)] | None
    vocabulary: HomePath | None
    split: Literal["auto", "files", "fraction", "hash"]
    valid_fraction: Share
    test_fraction: Share
    max_eval_tokens: Annotated[int, Field(ge=2)] | None

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        yield from _file_rules(self.path, self.split, self.documents, what="token")
        yield from _share_rules(self.valid_fraction, self.test_fraction)
        if (self.vocab_size is None) == (self.vocabulary is None):
            yield (
                f"vocab_size is {_shown(self.vocab_size)} and data.vocabulary is {_shown(self.vocabulary)}, and one of "
                "them must say how many ids there are"
            )

    def _documents(self) -> tuple[str, ...]:
        return ("none", "file", "record")


class RecallConfig(DataConfig):
    """Blocks of random symbols, each followed by its copy: a task that only memory solves."""

    kind: Literal["recall"]
    n_symbols: Annotated[int, Field(ge=2)]
    block_len: Count
    train_tokens: int
    eval_tokens: int

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        for name, tokens in (("train_tokens", self.train_tokens), ("eval_tokens", self.eval_tokens)):
            if tokens < 2 * self.block_len:
                yield f"{name} is {tokens}, and must be at least {2 * self.block_len}, two blocks"


def _file_rules(path: str | None, split: str, documents: str, *, what: str) -> Iterator[str]:
    if path is None:
        yield f"path is null, and must name a {what} file, a folder of them, or a glob"
    if split == "hash" and documents == "none":
        yield "split is 'hash' with data.documents 'none', and needs documents"


def _share_rules(valid_fraction: float, test_fraction: float) -> Iterator[str]:
    if valid_fraction + test_fraction >= 1:
        yield (
            f"valid_fraction {valid_fraction} and data.test_fraction {test_fraction} leave no training text, and must "
            "add up to less than 1"
        )


def _is_line(text: str) -> bool:
    return bool(text.strip()) and len(text.strip().splitlines()) == 1 and text.isprintable()


def _shown(value: object) -> str:
    return "null" if value is None else repr(value)


_CORPORA: dict[str, type[DataConfig]] = {
    "stdlib": StdlibConfig,
    "text": TextConfig,
    **dict.fromkeys(("wikitext103", "wikitext2", "enwik8", "text8", "lm1b", "ptb"), PublishedConfig),
    "tokens": TokensConfig,
    "recall": RecallConfig,
}
Data = Annotated[DataConfig, by_kind("corpus", DataConfig, _CORPORA, without=CountedConfig)]
