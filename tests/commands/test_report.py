"""What is printed and kept of a score: its units, and what must stand beside it."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import json
import lzma
import math
from pathlib import Path

import numpy as np
import pytest

from tests.data.made_up import MadeUp, made_up
from transformer_xl.commands.report import (
    Row,
    compressors,
    draw_losses,
    print_scores,
    words_on_unknown,
)
from transformer_xl.commands.sweep import Job, print_jobs
from transformer_xl.config import EvalConfig
from transformer_xl.data.characters import ByteTokenizer, CharTokenizer, SymbolTokenizer
from transformer_xl.data.words import WordTokenizer
from transformer_xl.run_folder import Summary
from transformer_xl.scores import Score

LENGTHS = EvalConfig(batch_size=2, segment_len=32, mem_len=64, clamp_len=None, same_length=False, stride=None)
WORDS = WordTokenizer(["<eos>", "<unk>", "one", "two"])
DROPPED = {"newline": "drop"}
EIGHT = Score(math.log(8), 10)  # three bits a token


class SubWords(SymbolTokenizer):
    unit = "bpb"


def printed(data: MadeUp, *rows: Row) -> list[str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print_scores(list(rows), data)
    return out.getvalue().splitlines()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]


TEST = Row("test", "test", "test", EIGHT, LENGTHS)


def test_bytes_have_one_unit() -> None:
    title, _, header, _, row, _ = printed(made_up(ByteTokenizer(), text_bytes=10), TEST)
    assert title.rstrip() == "text: nats per token, bpc"
    assert cells(header) == ["split", "loss", "bpc", "segment / memory", "predictions"]
    assert cells(row) == ["test", "2.0794", "3.0000", "32 / 64", "10"]


def test_words_have_perplexity_and_bits_a_byte_within_80_columns() -> None:
    data = made_up(WORDS, text_bytes=20)
    rows = (TEST, Row("", "test, unigram model", "test", Score(9.0, 123_456_789), None))
    title, _, *header, _, test, unigram, _ = printed(data, *rows)
    assert title.rstrip() == "text: nats per token, ppl, bits per byte"
    headings = [" ".join(parts).strip() for parts in zip(*map(cells, header), strict=True)]
    assert headings == ["split", "loss", "ppl", "bits / byte", "segment / memory", "predictions"]
    assert cells(test) == ["test", "2.0794", "8.0000", "1.5000", "32 / 64", "10"]
    assert cells(unigram) == ["test, unigram model", "9.0000", "8103.0839", "6.4921", "", "123,456,789"]


def test_sub_words_have_bits_a_byte() -> None:
    title, _, header, _, row, _ = printed(made_up(SubWords(4), text_bytes=20), TEST)
    assert title.rstrip() == "text: nats per token, bits per byte"
    assert cells(header) == ["split", "loss", "bits per byte", "segment / memory", "predictions"]
    assert cells(row)[:3] == ["test", "2.0794", "1.5000"]


def test_each_row_is_read_with_its_own_splits_tokens_a_byte() -> None:
    splits = {"train": np.zeros(8), "valid": np.zeros(10), "test": np.zeros(10)}
    data = MadeUp(vocabulary=WORDS, splits=splits, text_bytes={"train": 80, "valid": 20, "test": 40})
    lines = printed(data, Row("valid", "validation", "valid", EIGHT, LENGTHS), TEST)
    assert [cells(line)[3] for line in lines[-3:-1]] == ["1.5000", "0.7500"]


def test_what_is_no_text_has_no_bits_a_byte() -> None:
    title, *_ = printed(made_up(SymbolTokenizer(4)), TEST)
    assert title.rstrip() == "text: nats per token, bpc"


def test_no_scores_are_said_instead_of_an_empty_table() -> None:
    (line,) = printed(made_up(ByteTokenizer(), text_bytes=10))
    assert line.startswith("Nothing was scored")


def test_scores_on_much_that_is_unknown_are_marked() -> None:
    data = made_up(WORDS, text_bytes=20)
    assert words_on_unknown(data) is None
    unknown = dict.fromkeys(("train", "valid", "test"), max(data.counts().values()) // 5)
    said = words_on_unknown(dataclasses.replace(data, unknown=unknown))
    assert said is not None
    assert "are unknown, which is easy to foresee" in said


def test_what_a_corpus_wants_is_printed_beside_each_score() -> None:
    data = made_up(ByteTokenizer(), text_bytes=10, name="enwik8", read_as=DROPPED)
    assert printed(data, TEST)[0].rstrip() == "enwik8 (newline=drop): nats per token, bpc"


def sizes(text: bytes) -> tuple[float, float]:
    return len(gzip.compress(text, 9)) * 8, len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) * 8


def test_compressors_of_bytes_are_in_the_bytes_unit() -> None:
    text = b"one two one\n" * 9
    ids = np.frombuffer(text, np.uint8)
    data = MadeUp(vocabulary=ByteTokenizer(), splits={"test": ids}, text_bytes={"test": len(text)})
    by_gzip, by_xz = (bits / (len(text) - 1) for bits in sizes(text[:-1]))
    assert compressors(data) == (
        f"Footnote: gzip {by_gzip:.3f}, xz {by_xz:.3f} bpc on the first 107 tokens of the test text, which they saw "
        "themselves."
    )


def test_compressors_of_words_are_in_bits_a_byte_of_the_text_itself() -> None:
    """Half of the text's bytes are of words that the vocabulary lacks, and which no compressor is shown."""
    ids = np.array([2, 3, 1, 0] * 50)
    data = MadeUp(vocabulary=WORDS, splits={"test": ids}, text_bytes={"test": 800})
    by_gzip, by_xz = (bits / 199 * 200 / 800 for bits in sizes(WORDS.decode(ids[:-1]).encode()))
    assert compressors(data) == (
        f"Footnote: gzip {by_gzip:.3f}, xz {by_xz:.3f} bits per byte on the first 199 tokens of the test text as the "
        "vocabulary writes it, unknown words as <unk>, which they saw themselves."
    )


def test_no_compressor_reads_what_is_no_text() -> None:
    assert compressors(made_up(SymbolTokenizer(4))) == ""


@pytest.mark.parametrize("vocabulary", [CharTokenizer(["a"]), WORDS, SubWords(4)])
def test_losses_are_drawn_in_the_unit_of_the_vocabulary(tmp_path: Path, vocabulary: CharTokenizer) -> None:
    lines = [{"step": step, "tokens": step, "name": "train/loss", "value": 1.0} for step in (1, 2)]
    lines.append({"step": 2, "tokens": 2, "name": "val/loss", "value": 1.0})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    picture = draw_losses(tmp_path, made_up(vocabulary, text_bytes=20, read_as=DROPPED))
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_sweeps_table_shows_each_vocabularys_own_unit(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"bytes": {"bpc": 1.5, "bpb": 1.5}, "words": {"ppl": 60.0, "bpb": 1.25}, "sub-words": {"bpb": 1.125}}
    jobs = []
    for number, (data, values) in enumerate(figures.items()):
        summary = Summary(objective=float(number), metrics={"test": {"mem_len": 7, **values}})
        jobs.append(Job(number, f"data={data}", Path(str(number)), 0, summary))
    print_jobs(jobs)
    header, *rows, best = capsys.readouterr().out.splitlines()
    assert "start of test" not in header
    assert [row.split()[3:5] for row in rows] == [["1.5000", "bpc"], ["60.0000", "ppl"], ["1.1250", "bpb"]]
    assert best == "best: job 1, data=bytes"
