"""The checks of a corpus's settings: what cannot work is refused before any file is read."""

from __future__ import annotations

import difflib
import os

from transformer_xl.data_config import (
    TOKENIZERS,
    CorpusConfig,
    CountedConfig,
    PublishedConfig,
    StdlibConfig,
    StoredConfig,
    TextConfig,
    TokensConfig,
)
from transformer_xl.model_checks import at_least, within

_TOKENIZERS = {
    "wikitext103": ("word", "char", "byte"),
    "wikitext2": ("word", "char", "byte"),
    "ptb": ("word", "char", "byte"),
    "enwik8": ("char", "byte"),
    "text8": ("char", "byte"),
    "lm1b": ("word",),
}
"""What the published corpora can be split into: their words stand in the files, or there are none."""
_BYTES = 256
_MOST_IDS = 2**31
_MOST_SUBWORDS = 1_000_000


def check_corpus(data: StoredConfig) -> list[str]:
    """Give a sentence for each setting of a corpus on disk that cannot work."""
    problems = _check_documents(data)
    if isinstance(data, CorpusConfig):
        problems += _check_tokenizer(data)
    if isinstance(data, CountedConfig):
        problems += _check_counts(data)
    if isinstance(data, StdlibConfig | TextConfig | TokensConfig):
        problems += _check_shares(data)
    if isinstance(data, TextConfig | TokensConfig):
        problems += at_least(2, data__max_eval_tokens=data.max_eval_tokens)
        if data.path is None:
            kind = "text" if isinstance(data, TextConfig) else "token"
            problems.append(f"data.path is null, and must name a {kind} file, a folder of them, or a glob")
        if data.split == "hash" and data.documents == "none":
            problems.append("data.split is 'hash' with data.documents 'none', and needs documents")
    if isinstance(data, TokensConfig):
        problems += at_least(1, data__vocab_size=data.vocab_size)
        if data.vocab_size is not None and data.vocab_size > _MOST_IDS:
            problems.append(f"data.vocab_size is {data.vocab_size}, and must be at most {_MOST_IDS}")
        if (data.vocab_size is None) == (data.vocabulary is None):
            problems.append(
                f"data.vocab_size is {_shown(data.vocab_size)} and data.vocabulary is {_shown(data.vocabulary)}, and "
                "one of them must say how many ids there are"
            )
    return problems


def _check_documents(data: StoredConfig) -> list[str]:
    problems = []
    allowed: tuple[str, ...] = ("none", "file", "blank_line", "marker", "record")
    if isinstance(data, PublishedConfig):
        allowed = ("none", "blank_line", "marker")  # the others would hang on the form in which the files are here
    if isinstance(data, TokensConfig):
        allowed = ("none", "file", "record")
    if data.documents not in allowed:
        problems.append(f"data.documents is {data.documents!r}, and must be {' or '.join(allowed)} for {data.kind}")
    if data.documents == "none":
        if data.reset_memory == "document":
            problems.append("data.reset_memory is 'document' with data.documents 'none', and must be 'never'")
        if data.order == "shuffled":
            problems.append("data.order is 'shuffled' with data.documents 'none', and needs documents to shuffle")
    if isinstance(data, CorpusConfig):
        marker = data.document_marker
        if data.documents == "marker" and (not (marker or "").strip() or not _is_line(str(marker))):
            problems.append(f"data.document_marker is {_shown(marker)}, and must be the line between two documents")
        if data.documents != "marker" and marker is not None:
            problems.append(f"data.document_marker is {marker!r} with data.documents {data.documents!r}: set marker")
    return problems


def _check_tokenizer(data: CorpusConfig) -> list[str]:
    problems = []
    name = data.tokenizer
    if isinstance(data, PublishedConfig):
        if name not in _TOKENIZERS[data.kind]:
            problems.append(
                f"data.tokenizer is {name!r}, and must be {' or '.join(_TOKENIZERS[data.kind])} for {data.kind}"
            )
    elif name not in TOKENIZERS and "/" not in name and not os.path.exists(os.path.expanduser(name)):
        close = difflib.get_close_matches(name, TOKENIZERS, n=1)
        problems.append(
            f"data.tokenizer is {name!r}, and must be one of {', '.join(TOKENIZERS)}, a tokenizer.json that exists, or "
            "owner/name on the Hub" + (f"; the nearest is {close[0]}" if close else "")
        )
    path = os.path.expanduser(name)
    if name not in TOKENIZERS and os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        problems.append(f"data.tokenizer is {name!r}, which is no regular file")
    if data.newline == "drop" and (name not in ("byte", "char", "word") or data.kind == "lm1b"):
        problems.append(
            f"data.newline is 'drop' with data.tokenizer {name!r} and data {data.kind}, and must be 'keep': line ends "
            "can be left out by byte, char and word"
        )
    return problems


def _check_counts(data: CountedConfig) -> list[str]:
    problems = at_least(1, data__min_count=data.min_count, data__max_size=data.max_size)
    name = data.tokenizer
    if data.min_count > 1 and name not in ("char", "word", "wikitext"):
        problems.append(f"data.min_count is {data.min_count} with data.tokenizer {name!r}, and must be 1")
    if data.lower_case and name not in ("char", "word"):
        problems.append(f"data.lower_case is true with data.tokenizer {name!r}, and belongs to char and word")
    if name == "byte" and data.max_size is not None and data.max_size < _BYTES:
        problems.append(f"data.max_size is {data.max_size} with data.tokenizer 'byte', which always has {_BYTES}")
    if name == "bpe":
        problems += at_least(_BYTES, data__bpe_size=data.bpe_size)
        if data.bpe_size > _MOST_SUBWORDS:
            problems.append(f"data.bpe_size is {data.bpe_size}, and must be at most {_MOST_SUBWORDS}")
        if data.max_size is not None and data.max_size < data.bpe_size:
            problems.append(
                f"data.max_size is {data.max_size} with data.tokenizer 'bpe', whose size is data.bpe_size "
                f"{data.bpe_size}: set that"
            )
    return problems


def _check_shares(data: StdlibConfig | TextConfig | TokensConfig) -> list[str]:
    problems = within(0, 1, data__valid_fraction=data.valid_fraction, data__test_fraction=data.test_fraction)
    if data.valid_fraction + data.test_fraction >= 1:
        problems.append(
            f"data.valid_fraction {data.valid_fraction} and data.test_fraction {data.test_fraction} leave no training "
            "text, and must add up to less than 1"
        )
    return problems


def _is_line(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return len(text.strip().splitlines()) == 1


def _shown(value: object) -> str:
    return "null" if value is None else repr(value)
