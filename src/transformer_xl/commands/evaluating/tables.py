"""Tables of evaluations: one model read in several ways, and several models beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from transformer_xl.commands.tables import printable
from transformer_xl.config import EvalConfig
from transformer_xl.scores import BITS_PER_BYTE, MUCH_UNKNOWN, Score, Unit, in_words


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One model, read in one way: the score, and all that it depends on.

    Attributes:
        name: of the model, as short as tells it from the others.
        label: how it was read, in words.
        kind: of the network.
        parameters: how many.
        score: what was measured.
        unit: of the split's scores, as the model's vocabulary cuts it.
        lengths: how it was read.
        split: of the corpus.
        checkpoint: of the run; empty where the model comes from none.
        data_checksum: of the text.
        vocabulary_hash: of the vocabulary that cut it.
        unknown: share of the split's tokens that the vocabulary lacks.
        tokens_per_second: how fast it was read.
    """

    name: str
    label: str
    kind: str
    parameters: int
    score: Score
    unit: Unit
    lengths: EvalConfig
    split: str
    checkpoint: str
    data_checksum: str
    vocabulary_hash: str
    unknown: float
    tokens_per_second: float


def units_to_compare(rows: Sequence[Evaluated]) -> list[Unit | None]:
    """Give the unit in which each row can stand beside the others.

    It is the vocabulary's where there is one for all, else bits a byte where all is text, else none: nats.
    """
    if len({row.vocabulary_hash for row in rows}) == 1:
        return [row.unit for row in rows]
    if not _all_text(rows):
        return [None] * len(rows)
    return [Unit(name=BITS_PER_BYTE, tokens_per_byte=row.unit.tokens_per_byte) for row in rows]


def print_readings(console: Console, rows: Sequence[Evaluated], *, heading: str) -> None:
    """Print what one model scored, read in one way or several.

    Args:
        console: where to.
        rows: of one model and one split, at least one.
        heading: names the corpus.
    """
    columns = [
        _Column("reading", [row.label for row in rows], is_text=True),
        *_scores(rows),
        _Column("segment /\nmemory", [_reading(row.lengths) for row in rows]),
    ]
    if any(row.lengths.clamp_len is not None for row in rows):
        columns.append(_Column("clamp", [_number(row.lengths.clamp_len) for row in rows]))
    if any(row.lengths.same_length for row in rows):
        columns.append(_Column("same\nlength", ["yes" if row.lengths.same_length else "no" for row in rows]))
    _print(console, rows, columns, heading=f"{rows[0].name}, {heading}", shared={})


def print_models(console: Console, rows: Sequence[Evaluated], *, heading: str) -> None:
    """Print several models beside each other, and say which of their scores compare.

    What all have in common stands in the title.

    Args:
        console: where to.
        rows: at least one, of one split.
        heading: names the corpus.
    """
    with_labels = len({row.label for row in rows}) > 1
    names = [f"{row.name}\n{row.kind}" + (f", {row.label}" if with_labels else "") for row in rows]
    readings = [_reading(row.lengths) for row in rows]
    columns = [
        _Column("model", names, is_text=True),
        _Column("params", [_short(row.parameters) for row in rows]),
        *_scores(rows),
    ]
    shared = {}
    if len(set(readings)) == 1:
        shared["segment / memory"] = readings[0]
    else:
        columns.append(_Column("segment /\nmemory", readings))
    _print(console, rows, columns, heading=heading, shared=shared)
    for note in comparability(rows):
        console.print(note, soft_wrap=True, markup=False)


def comparability(rows: Sequence[Evaluated]) -> list[str]:
    """Say what keeps scores from being compared, a sentence each; nothing where nothing does."""
    notes = []
    if len({(row.data_checksum, row.split) for row in rows}) > 1:
        notes.append(
            "The models have read different texts (their splits or checksums differ), so these numbers do not tell "
            "which of them is better."
        )
    if len({row.vocabulary_hash for row in rows}) > 1:
        notes.append(
            "The vocabularies differ, so losses a token do not compare: "
            + ("bits a byte do." if _all_text(rows) else "nothing does, for not all of them read text.")
        )
        if max(row.unknown for row in rows) > MUCH_UNKNOWN:
            shares = ", ".join(f"{_plain(row.name)} {row.unknown:.1%}" for row in rows)
            notes.append(
                f"Of the tokens, many are unknown, which is easy to foresee ({shares}): bits a byte make those look "
                "better than they are."
            )
    elif len({row.score.tokens for row in rows}) > 1 and not notes:
        counts = [row.score.tokens for row in rows]
        notes.append(f"The rows count different predictions, from {min(counts):,} to {max(counts):,}.")
    return notes


@dataclass(frozen=True)
class _Column:
    """A column of the screen's table."""

    heading: str
    cells: Sequence[str]
    is_text: bool = False


def _scores(rows: Sequence[Evaluated]) -> list[_Column]:
    """Give loss, and the figures in which all rows can be read."""
    names = list(dict.fromkeys(name for row in rows for name in row.unit.shown(0.0)))
    if len({row.vocabulary_hash for row in rows}) > 1:
        names = [BITS_PER_BYTE] if _all_text(rows) else []
    columns = [_Column("loss", [f"{row.score.loss:.4f}" for row in rows])]
    for name in names:
        heading = in_words(name).replace("bits a byte", "bits\na byte")
        columns.append(_Column(heading, [f"{row.unit.figures(row.score.loss)[name]:.4f}" for row in rows]))
    return columns


def _print(
    console: Console, rows: Sequence[Evaluated], columns: list[_Column], *, heading: str, shared: dict[str, str]
) -> None:
    """Print a table; what is the same in all rows goes into its title, so that 80 columns hold the rest."""
    title = [heading, f"{_one(rows, lambda row: row.split)} split"]
    checkpoint = _one(rows, lambda row: row.checkpoint)
    if checkpoint:
        title.append(f"checkpoint {checkpoint}")
    tokens = [f"{row.score.tokens:,}" for row in rows]
    if len(set(tokens)) == 1:
        title.append(f"{tokens[0]} predictions")
    else:
        columns.append(_Column("tokens", tokens))
    title += [f"{name} {value}" for name, value in shared.items()]
    table = Table(title=Text(_plain(", ".join(title))), title_justify="left")
    for column in columns:
        table.add_column(
            Text(column.heading),
            justify="left" if column.is_text else "right",
            no_wrap=not column.is_text,
            overflow="fold",
        )
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(Text("\n".join(map(_plain, cell.split("\n")))) for cell in cells))
    console.print(table)


def _one(rows: Sequence[Evaluated], of: Callable[[Evaluated], str]) -> str:
    return " or ".join(filter(None, dict.fromkeys(of(row) for row in rows)))


def _plain(text: str) -> str:
    """Write a text that may come from the name of a folder."""
    return printable(text)


def _all_text(rows: Sequence[Evaluated]) -> bool:
    return all(row.unit.tokens_per_byte is not None for row in rows)


def _reading(lengths: EvalConfig) -> str:
    if lengths.stride is not None:
        return f"{lengths.segment_len}, stride {lengths.stride}"
    return f"{lengths.segment_len} / {lengths.mem_len}"


def _number(value: int | None) -> str:
    return "off" if value is None else f"{value:,}"


def _short(count: int) -> str:
    """Write a count of parameters in millions, small ones in full."""
    return f"{count / 1e6:,.1f}M" if count >= 1_000_000 else f"{count:,}"
