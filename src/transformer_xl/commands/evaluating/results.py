"""What an evaluation found out, and what it says of it in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformer_xl.commands.evaluating import pictures
from transformer_xl.commands.evaluating.shares import Share
from transformer_xl.commands.evaluating.tables import Evaluated, units_to_compare
from transformer_xl.commands.sources import Source
from transformer_xl.scores import MUCH_UNKNOWN

_EQUAL_NATS = 1e-4
"""Losses nearer to each other than this are printed alike."""


@dataclass(kw_only=True)
class Results:
    """What was found out about one model.

    Attributes:
        source: of the model.
        heading: names the corpus.
        folder: of its pictures.
        rows: its scores.
        shares: what each was made from.
        records: the same for `evaluation.json`.
        pictures: name -> file.
    """

    source: Source
    heading: str
    folder: Path
    rows: list[Evaluated] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    pictures: dict[str, Path] = field(default_factory=dict)


def draw(results: Sequence[Results], folder: Path, *, title: str, by_memory: bool) -> dict[str, Path]:
    """Draw where the losses of one model or several lie; give name -> file.

    Args:
        results: of the models.
        folder: of the pictures.
        title: what was read.
        by_memory: whether to draw scores against the memory's length too.
    """
    rows = [row for found in results for row in found.rows]
    shares = [share for found in results for share in found.shares]
    several_ways = max(len(found.rows) for found in results) > 1
    if len(results) == 1:
        labels = [row.label for row in rows]
    else:
        labels = [f"{row.name}, {row.label}" if several_ways else row.name for row in rows]
    drawn = list(zip(labels, shares, units_to_compare(rows), strict=True))
    files = {
        "loss_by_position": pictures.draw_by_position(
            [pictures.Line.of_positions(label, share.by_position, unit) for label, share, unit in drawn],
            folder / "loss_by_position.png",
            title=title,
        ),
        "loss_by_distance": pictures.draw_by_distance(
            [pictures.Line.of_distances(label, share.by_distance, unit) for label, share, unit in drawn],
            folder / "loss_by_distance.png",
            title=title,
        ),
    }
    if by_memory:
        lines = pictures.memory_lines(rows)
        files["score_by_memory"] = pictures.draw_by_memory(lines, folder / "score_by_memory.png", title=title)
    return files


def readings_in_words(rows: Sequence[Evaluated]) -> list[str]:
    """Say how much of the text a lane read, whether that tells of memory, and which reading was the best."""
    words = []
    longest = max(row.lengths.mem_len if row.lengths.stride is None else 0 for row in rows)
    needed = longest + rows[0].lengths.segment_len
    lanes, tokens = rows[0].lengths.batch_size, rows[0].score.tokens
    a_lane = tokens // lanes
    if longest and a_lane < 2 * needed:
        fewer = max(1, tokens // (4 * needed))
        advice = f"eval.batch_size={fewer}, or more text, would tell" if fewer < lanes else "a longer text would tell"
        words.append(
            f"Each of the {lanes:,} lanes read {a_lane:,} tokens, beginning with an empty memory: too few to show what "
            f"a memory of {longest:,} gives; {advice}."
        )
    if len(rows) > 1:
        words.append(_best([(row.label, row) for row in rows]))
    return words + _unknown(rows[:1])


def models_in_words(rows: Sequence[Evaluated]) -> list[str]:
    """Say which of several models was the best, where their losses compare."""
    comparable = len({(row.data_checksum, row.vocabulary_hash, row.split) for row in rows}) == 1
    return [_best([(f"{row.name}, {row.label}", row) for row in rows]), *_unknown(rows)] if comparable else []


def _unknown(rows: Sequence[Evaluated]) -> list[str]:
    """Say of scores on much that is unknown that they look better than they are."""
    shares = {row.name: row.unknown for row in rows if row.unknown > MUCH_UNKNOWN}
    if not shares:
        return []
    share = max(shares.values())
    return [
        f"Of the tokens, {share:.1%} are unknown, which is easy to foresee: these scores, bits a byte too, compare "
        "only with those of the same vocabulary."
    ]


def _best(labelled: Sequence[tuple[str, Evaluated]]) -> str:
    ordered = sorted(labelled, key=lambda one: one[1].score.loss)
    (best, row), (next_label, following) = ordered[0], ordered[1]
    less = following.score.loss - row.score.loss
    if less < _EQUAL_NATS:
        return f"Least loss: {row.score.loss:.4f} nats a token, {best} and {next_label} alike."
    return f"Least loss: {row.score.loss:.4f} nats a token, {best}; {less:.4f} less than {next_label}."
