"""Where the paper's corpora can be fetched: addresses, sizes, checksums."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, kw_only=True)
class WebFile:
    """A file at an address; its size and SHA-256 where they are known."""

    url: str
    size: int | None = None
    sha256: str | None = None

    @property
    def name(self) -> str:
        """Give the name under which it is kept."""
        return self.url.rpartition("/")[2]

    @property
    def address(self) -> str:
        """Give what a person can open in a browser."""
        return self.url


@dataclass(frozen=True, kw_only=True)
class HubFolder:
    """The parquet files of one folder of a dataset on the Hub, and the splits that they must give."""

    repository: str
    revision: str
    folder: str
    splits: tuple[str, ...] = ("train", "validation", "test")

    @property
    def address(self) -> str:
        """Give what a person can open in a browser."""
        return f"{endpoint()}/datasets/{self.repository}/tree/{quote(self.revision, safe='')}/{self.folder}"


@dataclass(frozen=True, kw_only=True)
class Mirrors:
    """Where a corpus is.

    Attributes:
        sources: any one of them is enough; tried in order.
        also: addresses of one file that the corpus can do without; the first that works is enough.
    """

    sources: tuple[WebFile | HubFolder, ...]
    also: tuple[WebFile, ...] = ()


def endpoint() -> str:
    """Give the address of the Hub, as `HF_ENDPOINT` says now."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


# The checksums of all archives and of lm1b's vocabulary are those in github.com/quantapix/qnarre,
# qnarre/feeds/data/{wikitext,enwik8,text8,penn,1b_word}.py. Other public repositories state the same ones: of lm1b's
# archive tensorflow/datasets (tensorflow_datasets/url_checksums/lm1b.txt, with its size).
_WIKITEXT_REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
_ENWIK8_SHA256 = "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc"
_VOCABULARY_SHA256 = "c758fee313a5c952995f391a659fe31cde50f2b11f5fae6c0e75a0a6e79fa34d"

MIRRORS: dict[str, Mirrors] = {
    "wikitext103": Mirrors(
        sources=(
            HubFolder(repository="Salesforce/wikitext", revision=_WIKITEXT_REVISION, folder="wikitext-103-v1"),
            WebFile(
                url="https://wikitext.smerity.com/wikitext-103-v1.zip",
                sha256="242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
            ),
        )
    ),
    "wikitext2": Mirrors(
        sources=(
            HubFolder(repository="Salesforce/wikitext", revision=_WIKITEXT_REVISION, folder="wikitext-2-v1"),
            WebFile(
                url="https://wikitext.smerity.com/wikitext-2-v1.zip",
                sha256="92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
            ),
        )
    ),
    "enwik8": Mirrors(
        sources=(
            WebFile(url="http://mattmahoney.net/dc/enwik8.zip", size=36_445_475, sha256=_ENWIK8_SHA256),
            WebFile(url="https://data.deepai.org/enwik8.zip", size=36_445_475, sha256=_ENWIK8_SHA256),
        )
    ),
    "text8": Mirrors(
        sources=(
            WebFile(
                url="http://mattmahoney.net/dc/text8.zip",
                size=31_344_016,
                sha256="a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
            ),
            HubFolder(repository="afmck/text8", revision="main", folder="data"),
        )
    ),
    "lm1b": Mirrors(
        sources=(
            WebFile(
                url="http://www.statmt.org/lm-benchmark/1-billion-word-language-modeling-benchmark-r13output.tar.gz",
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
        also=(
            WebFile(
                url="https://github.com/rafaljozefowicz/lm/raw/master/1b_word_vocab.txt", sha256=_VOCABULARY_SHA256
            ),
            WebFile(
                url="https://raw.githubusercontent.com/rafaljozefowicz/lm/master/1b_word_vocab.txt",
                sha256=_VOCABULARY_SHA256,
            ),
        ),
    ),
    "ptb": Mirrors(
        sources=(
            HubFolder(
                repository="ptb-text-only/ptb_text_only", revision="refs/convert/parquet", folder="penn_treebank"
            ),
            WebFile(
                url="http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
                size=34_869_662,
                sha256="7d4fe4bd080182dd8423e32557cdbc3e5a967f7eb4a2a598be8ada7b66bd1de7",
            ),
        )
    ),
}
