"""Settings of corpora that cannot work are refused by name before any file is read."""

from __future__ import annotations

import pytest

from tests.test_configs import composed
from transformer_xl.errors import UserError

TEXT = ["data=text", "data.path=some.txt"]
TOKENS = ["data=tokens", "data.path=some.npy", "data.vocab_size=10"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data=text"], ["data.path is null", "text file"]),
        (["data=tokens", "data.vocab_size=3"], ["data.path is null", "token file"]),
        (["data=tokens", "data.path=x.npy"], ["data.vocab_size is null", "data.vocabulary is null", "one of them"]),
        ([*TOKENS, "data.vocabulary=v.json"], ["data.vocab_size is 10", "data.vocabulary is 'v.json'"]),
        ([*TOKENS, "data.vocab_size=0"], ["data.vocab_size is 0", "at least 1"]),
        ([*TOKENS, "data.documents=marker"], ["data.documents is 'marker'", "none or file or record"]),
        ([*TEXT, "data.documents=marker"], ["data.document_marker is null", "line between two documents"]),
        ([*TEXT, "data.document_marker=x"], ["data.document_marker is 'x'", "data.documents 'record'"]),
        ([*TEXT, "data.documents=marker", "data.document_marker='a\nb'"], ["data.document_marker is", "the line"]),
        ([*TOKENS, "data.vocab_size=3000000000"], ["data.vocab_size is 3000000000", "at most 2147483648"]),
        ([*TEXT, "data.tokenizer=/dev/null"], ["data.tokenizer is '/dev/null'", "no regular file"]),
        ([*TEXT, "data.tokenizer=bpe", "data.bpe_size=10000000"], ["data.bpe_size is 10000000", "at most 1000000"]),
        ([*TEXT, "data.documents=none"], ["data.reset_memory is 'document'", "must be 'never'"]),
        (
            [*TEXT, "data.documents=none", "data.reset_memory=never", "data.order=shuffled"],
            ["data.order is 'shuffled'", "documents to shuffle"],
        ),
        (
            [*TEXT, "data.documents=none", "data.reset_memory=never", "data.split=hash"],
            ["data.split is 'hash'", "needs documents"],
        ),
        (["data=wikitext103", "data.documents=record"], ["data.documents is 'record'", "blank_line"]),
        (["data=wikitext103", "data.tokenizer=bpe"], ["data.tokenizer is 'bpe'", "for wikitext103"]),
        ([*TEXT, "data.tokenizer=chars"], ["data.tokenizer is 'chars'", "nearest is char"]),
        ([*TEXT, "data.tokenizer=bpe", "data.newline=drop"], ["data.newline is 'drop'", "'bpe'"]),
        (["data=lm1b", "data.newline=drop"], ["data.newline is 'drop'", "lm1b"]),
        ([*TEXT, "data.min_count=0", "data.tokenizer=word"], ["data.min_count is 0", "at least 1"]),
        ([*TEXT, "data.min_count=2"], ["data.min_count is 2", "'byte'", "must be 1"]),
        ([*TEXT, "data.max_size=100"], ["data.max_size is 100", "always has 256"]),
        ([*TEXT, "data.lower_case=true"], ["data.lower_case is true", "char and word"]),
        ([*TEXT, "data.tokenizer=bpe", "data.bpe_size=255"], ["data.bpe_size is 255", "at least 256"]),
        ([*TEXT, "data.tokenizer=bpe", "data.max_size=300"], ["data.max_size is 300", "data.bpe_size 8192"]),
        ([*TEXT, "data.max_eval_tokens=1"], ["data.max_eval_tokens is 1", "at least 2"]),
        ([*TEXT, "data.valid_fraction=0.6", "data.test_fraction=0.4"], ["leave no training text"]),
        ([*TEXT, "data.test_fraction=-0.1"], ["data.test_fraction is -0.1"]),
        ([*TEXT, "data.format=xml"], ["data.format is 'xml'", "jsonl"]),
        ([*TEXT, "data.errors=ignore"], ["data.errors is 'ignore'", "replace"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_work_is_refused_by_name(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        composed(*overrides)
    for word in words:
        assert word in str(refused.value), word


@pytest.mark.parametrize(
    "overrides",
    [
        TEXT,
        TOKENS,
        [*TEXT, "data.tokenizer=owner/name"],
        [*TEXT, "data.tokenizer=bpe", "data.max_size=null"],
        [*TEXT, "data.tokenizer=word", "data.newline=drop", "data.min_count=3", "data.lower_case=true"],
        [*TEXT, "data.documents=marker", "data.document_marker='<|end|>'", "data.order=shuffled"],
        [*TOKENS, "data.documents=none", "data.reset_memory=never"],
        ["data=wikitext103", "data.documents=blank_line", "data.reset_memory=document"],
        ["data=stdlib", "data.documents=file", "data.order=shuffled"],
        [*TEXT, "data.split=hash", "data.max_eval_tokens=null"],
    ],
    ids=" ".join,
)
def test_what_can_work_passes(overrides: list[str]) -> None:
    composed(*overrides)
