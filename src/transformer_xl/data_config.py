"""All settings of the group `data`: names, types, and beside them the rules; the numbers stand in `conf/data/`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from transformer_xl.registry import nearest, outside
from transformer_xl.settings import Amount, Count, Settings, Share, by_kind


def tokenizers() -> list[str]:
    """Return the tokenizers that a corpus makes by itself; any other name is one that another program trained."""
    return ["byte", "char", "word", "wikitext", "bpe", *(entry.name for entry in outside("tokenizer"))]


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
    bptt_segments: Count = 1


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
        if self.documents == "none" and (self.reset_memory == "document" or self.order == "shuffled"):
            yield "documents is 'none', and data.reset_memory=document and data.order=shuffled need documents"


class CorpusConfig(StoredConfig):
    """A corpus of text."""

    tokenizer: TokenizerName
    newline: Literal["keep", "drop"]
    document_marker: str | None

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        name, marker = self.tokenizer, self.document_marker
        if (self.documents == "marker") != bool(marker):
            yield f"document_marker is {marker!r}, and belongs to data.documents=marker: the line between two"
        if self.newline == "drop" and (name not in ("byte", "char", "word") or self.kind == "lm1b"):
            yield f"newline is 'drop', and must be 'keep' with data.tokenizer {name!r} and data={self.kind}"
        if name not in tokenizers() and "/" not in name:
            yield (
                f"tokenizer is {name!r}, and must be one of {', '.join(tokenizers())}, a tokenizer.json that exists, "
                f"owner/name on the Hub, or a plugin's (plugins=[FILE]); {nearest(name, tokenizers())}"
            )


class CountedConfig(CorpusConfig):
    """A text whose vocabulary may be cut: of words and characters by count, of sub-words by size."""

    base: ClassVar[str] = "_text"

    min_count: Count
    max_size: Count | None
    lower_case: bool
    bpe_size: Annotated[int, Field(ge=256, le=1_000_000)]

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        if self.min_count > 1 and self.tokenizer not in ("char", "word", "wikitext"):
            yield f"min_count is {self.min_count}, and must be 1 with data.tokenizer {self.tokenizer!r}"
        if self.lower_case and self.tokenizer not in ("char", "word"):
            yield f"lower_case is true, and must be false with data.tokenizer {self.tokenizer!r}"


class SplitConfig(StoredConfig):
    """A corpus of which shares may be split off for validation and test."""

    valid_fraction: Share
    test_fraction: Share

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        if self.valid_fraction + self.test_fraction >= 1:
            yield f"test_fraction is {self.test_fraction}, and leaves no training text beside data.valid_fraction"


class FilesConfig(SplitConfig):
    """A file, a folder of them, or a glob."""

    path: HomePath | None
    split: Literal["auto", "files", "fraction", "hash"]
    max_eval_tokens: Annotated[int, Field(ge=2)] | None

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        if self.path is None:
            yield f"path is null, and must name a {self.kind.removesuffix('s')} file, a folder of them, or a glob"
        if self.split == "hash" and self.documents == "none":
            yield "split is 'hash' with data.documents 'none', and needs documents"


class StdlibConfig(SplitConfig, CountedConfig):
    """The source of Python's standard library, split by a hash of each file's path."""

    kind: Literal["stdlib"]


class TextConfig(FilesConfig, CountedConfig):
    """Text in files."""

    kind: Literal["text"]
    format: Literal["auto", "text", "jsonl", "csv", "parquet"]
    field: str
    encoding: str
    errors: Literal["strict", "replace"]


class TokensConfig(FilesConfig):
    """Token ids that another program wrote: `.npy`, raw numbers, JSON lines, or text with blanks between them."""

    kind: Literal["tokens"]
    documents: Literal["none", "file", "record"]
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] | None
    vocab_size: Annotated[int, Field(ge=1, le=1 << 31)] | None
    vocabulary: HomePath | None

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        if (self.vocab_size is None) == (self.vocabulary is None):
            yield "vocab_size must say how many ids there are, or data.vocabulary what they stand for: one of the two"


class PublishedConfig(CorpusConfig):
    """One of the paper's corpora, downloaded once, or from its published files in the folder `dir`."""

    kind: Literal["wikitext103", "wikitext2", "enwik8", "text8", "lm1b", "ptb"]
    documents: Literal["none", "blank_line", "marker"]
    dir: HomePath | None
    download: bool

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        allowed = {"enwik8": ("char", "byte"), "text8": ("char", "byte"), "lm1b": ("word",)}
        names = allowed.get(self.kind, ("word", "char", "byte"))  # their words stand in the files, or there are none
        if self.tokenizer not in names:
            yield f"tokenizer is {self.tokenizer!r}, and must be {' or '.join(names)} for {self.kind}"


class TaskConfig(DataConfig):
    """A made-up task that only memory solves; see `data/recall.py`."""

    train_tokens: Count
    eval_tokens: Count


class RecallConfig(TaskConfig):
    """Blocks of random symbols, each followed by its copy at a distance."""

    kind: Literal["recall"]
    n_symbols: Annotated[int, Field(ge=2)]
    block_len: Count
    distance: Count | None = None

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        if self.distance is not None and self.distance < self.block_len:
            yield f"distance is {self.distance}, and must be at least {self.block_len}, the data.block_len"


class MqarConfig(TaskConfig):
    """Multi-query associative recall: pairs of a key and a value, then each key again, whose value is asked for."""

    kind: Literal["mqar"]
    vocab_size: Annotated[int, Field(ge=4)]
    n_pairs: Count
    example_len: Count
    power_a: Annotated[float, Field(gt=0)]

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        if 4 * self.n_pairs > self.example_len:
            yield f"example_len is {self.example_len}, and must be at least {4 * self.n_pairs}, 4 * data.n_pairs"
        if self.vocab_size // 2 <= self.n_pairs:
            yield f"vocab_size is {self.vocab_size}, and must be at least {2 * self.n_pairs + 2}, 2 * data.n_pairs + 2"


_CORPORA: dict[str, type[DataConfig]] = {
    "stdlib": StdlibConfig,
    "text": TextConfig,
    **dict.fromkeys(("wikitext103", "wikitext2", "enwik8", "text8", "lm1b", "ptb"), PublishedConfig),
    "tokens": TokensConfig,
    "recall": RecallConfig,
    "mqar": MqarConfig,
}
Data = Annotated[DataConfig, by_kind("corpus", DataConfig, _CORPORA, without=CountedConfig)]
