"""Typed schema of the group `data`: corpora and made-up tasks; the numbers stand in `conf/`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

TOKENIZERS = ("byte", "char", "word", "wikitext", "bpe")
"""Those that a corpus makes by itself; any other name is a tokenizer that another program trained."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What every corpus has: lanes, segments, and a folder for the token files."""

    kind: str
    batch_size: int
    segment_len: int
    segment_len_sd: float
    half_segments: float
    loss: Literal["full", "half"]
    lane_chunks: int

    @property
    def longest_segment(self) -> int:
        """Give the length at which drawn lengths are cut: three deviations above the mean, as published."""
        return int(self.segment_len + 3 * self.segment_len_sd)


@dataclass(frozen=True, kw_only=True)
class StoredConfig(DataConfig):
    """A corpus on disk, turned once into token files below `cache_dir`, and what of it is one document."""

    cache_dir: str
    rebuild: bool
    documents: Literal["none", "file", "blank_line", "marker", "record"]
    end_of_document: bool
    reset_memory: Literal["document", "never"]
    order: Literal["as_is", "shuffled"]


@dataclass(frozen=True, kw_only=True)
class CorpusConfig(StoredConfig):
    """A corpus of text."""

    tokenizer: str
    newline: Literal["keep", "drop"]
    document_marker: str | None


@dataclass(frozen=True, kw_only=True)
class CountedConfig(CorpusConfig):
    """A text whose vocabulary may be cut: of words and characters by count, of sub-words by size."""

    min_count: int
    max_size: int | None
    lower_case: bool
    bpe_size: int


@dataclass(frozen=True, kw_only=True)
class StdlibConfig(CountedConfig):
    """The source of Python's standard library, split by a hash of each file's path."""

    kind: Literal["stdlib"]
    valid_fraction: float
    test_fraction: float


@dataclass(frozen=True, kw_only=True)
class TextConfig(CountedConfig):
    """A text file, a folder of them, or a glob."""

    kind: Literal["text"]
    path: str | None
    format: Literal["auto", "text", "jsonl", "csv", "parquet"]
    field: str
    encoding: str
    errors: Literal["strict", "replace"]
    split: Literal["auto", "files", "fraction", "hash"]
    valid_fraction: float
    test_fraction: float
    max_eval_tokens: int | None


@dataclass(frozen=True, kw_only=True)
class PublishedConfig(CorpusConfig):
    """One of the paper's corpora, downloaded once, or from its published files in the folder `dir`."""

    kind: Literal["wikitext103", "wikitext2", "enwik8", "text8", "lm1b", "ptb"]
    dir: str | None
    download: bool


@dataclass(frozen=True, kw_only=True)
class TokensConfig(StoredConfig):
    """Token ids that another program wrote: `.npy`, raw numbers, JSON lines, or text with blanks between them."""

    kind: Literal["tokens"]
    path: str | None
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] | None
    vocab_size: int | None
    vocabulary: str | None
    split: Literal["auto", "files", "fraction", "hash"]
    valid_fraction: float
    test_fraction: float
    max_eval_tokens: int | None


@dataclass(frozen=True, kw_only=True)
class RecallConfig(DataConfig):
    """Blocks of random symbols, each followed by its copy: a task that only memory solves."""

    kind: Literal["recall"]
    n_symbols: int
    block_len: int
    train_tokens: int
    eval_tokens: int


AnyDataConfig: TypeAlias = StdlibConfig | TextConfig | PublishedConfig | TokensConfig | RecallConfig
