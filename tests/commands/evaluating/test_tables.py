"""What is printed of evaluations: one model in several readings, several models, and what does not compare."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from rich.console import Console

from transformer_xl.commands.evaluating.tables import (
    Evaluated,
    comparability,
    print_models,
    print_readings,
    units_to_compare,
)
from transformer_xl.config import EvalConfig
from transformer_xl.scores import Score, Unit
from transformer_xl.settings import replace

LENGTHS = EvalConfig(batch_size=2, segment_len=64, mem_len=640, clamp_len=400, same_length=True, stride=None)
WORDS = Unit(name="ppl", tokens_per_byte=0.2)
BYTES = Unit(name="bpc", tokens_per_byte=1.0)
BASE = Evaluated(
    name="base",
    label="own",
    kind="transformer_xl",
    parameters=151_107_538,
    score=Score(math.log(8), 245_568),
    unit=WORDS,
    lengths=LENGTHS,
    split="test",
    checkpoint="best",
    data_checksum="a",
    vocabulary_hash="v",
    unknown=0.0,
    tokens_per_second=1000.0,
)


def changed(**changes: Any) -> Evaluated:
    lengths = {name: changes.pop(name) for name in tuple(changes) if name in LENGTHS.__dict__}
    return dataclasses.replace(BASE, lengths=replace(LENGTHS, **lengths), **changes)


def printed(print_them: Any, *rows: Evaluated) -> list[str]:
    console = Console(width=80, highlight=False)
    with console.capture() as captured:
        print_them(console, list(rows), heading="wikitext103 (newline=drop)")
    return captured.get().splitlines()


def headings(lines: list[str]) -> list[str]:
    (first,) = [number for number, line in enumerate(lines) if line.startswith("┡")]
    header = [cells(line) for line in lines[:first] if line.startswith("┃")]
    return [" ".join(parts).strip() for parts in zip(*header, strict=True)]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]


def body(lines: list[str]) -> list[list[str]]:
    return [cells(line) for line in lines if line.startswith("│")]


def title(lines: list[str]) -> str:
    (first,) = [number for number, line in enumerate(lines) if line.startswith("┏")]
    return " ".join(line.strip() for line in lines[:first])


def test_readings_stand_side_by_side_within_80_columns() -> None:
    long = changed(label="the paper's long memory", mem_len=1600, clamp_len=None, same_length=False)
    lines = printed(print_readings, BASE, long)
    assert title(lines) == ("base, wikitext103 (newline=drop), test split, checkpoint best, 245,568 predictions")
    expected = ["reading", "loss", "ppl", "bits a byte", "segment / memory", "clamp", "same length"]
    assert headings(lines) == expected
    own, *others = body(lines)
    assert own == ["own", "2.0794", "8.0000", "0.6000", "64 / 640", "400", "yes"]
    assert others[0][1:] == ["2.0794", "8.0000", "0.6000", "64 / 1600", "off", "no"]
    assert " ".join(row[0] for row in others).strip() == "the paper's long memory"
    assert max(map(len, lines)) <= 80


def test_windows_and_unequal_counts_are_shown() -> None:
    lines = printed(print_readings, BASE, changed(stride=4, score=Score(2.0, 1234)))
    assert headings(lines)[-1] == "tokens"
    assert [row[-1] for row in body(lines)] == ["245,568", "1,234"]
    assert body(lines)[1][4] == "64, stride 4"


def test_models_of_one_vocabulary_have_its_unit_and_a_title_of_what_they_share() -> None:
    other = changed(name="[red]vanilla[/red]", kind="vaswani", parameters=999_999, mem_len=0)
    lines = printed(print_models, BASE, other)
    assert headings(lines) == ["model", "params", "loss", "ppl", "bits a byte", "segment / memory"]
    rows = body(lines)
    assert rows[0] == ["base", "151.1M", "2.0794", "8.0000", "0.6000", "64 / 640"]
    assert rows[1][0] == "transformer_xl"
    assert rows[2] == ["[red]vanilla[/red]", "999,999", "2.0794", "8.0000", "0.6000", "64 / 0"]
    assert not comparability([BASE, other])
    assert "segment / memory 64 / 640" in title(printed(print_models, BASE, changed(name="again")))


def test_other_vocabularies_leave_bits_a_byte_and_are_said() -> None:
    bytewise = changed(name="bytes", unit=BYTES, vocabulary_hash="w", score=Score(math.log(2), 1_200_000))
    lines = printed(print_models, BASE, bytewise)
    assert headings(lines)[2:4] == ["loss", "bits a byte"]
    assert [row[3] for row in body(lines) if row[1]] == ["0.6000", "1.0000"]
    assert sum("vocabularies differ" in line and "bits a byte do" in line for line in lines) == 1
    assert units_to_compare([BASE, bytewise]) == [
        Unit(name="bpb", tokens_per_byte=0.2),
        Unit(name="bpb", tokens_per_byte=1.0),
    ]
    assert units_to_compare([BASE, changed()]) == [WORDS, WORDS]
    unknown = comparability([changed(unknown=0.2), bytewise])
    assert "20.0%" in unknown[-1]


def test_what_is_no_text_does_not_compare_over_vocabularies() -> None:
    symbols = changed(unit=Unit(name="bpc", tokens_per_byte=None), vocabulary_hash="w")
    (note,) = comparability([BASE, symbols])
    assert "nothing does" in note
    assert headings(printed(print_models, BASE, symbols))[2:] == ["loss"]
    assert units_to_compare([BASE, symbols]) == [None, None]


@pytest.mark.parametrize("changes", [{"data_checksum": "b"}, {"split": "valid"}], ids=str)
def test_other_texts_are_said(changes: dict[str, str]) -> None:
    (note,) = comparability([BASE, changed(**changes)])
    assert "different texts" in note
    assert comparability([BASE, changed(score=Score(2.0, 100))]) == [
        "The rows count different predictions, from 100 to 245,568."
    ]
