"""How `score.py` prints: a table whose columns stand below each other on a terminal, or JSON lines."""

from __future__ import annotations

import json
import sys

from transformer_xl.commands.closed_pipe import is_terminal, say
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.inference.scoring import TextScore, TokenCosts
from transformer_xl.inference.texts import Part
from transformer_xl.inference_config import ScoreConfig

_COLUMNS = ("text", "nats", "bits_per_byte", "ppl", "tokens")
_WIDTHS = (8, 16, 13, 16, 10)
"""Of the columns on a terminal: rows are printed one by one, before it is known how wide the next will be."""
_SHOWN_CHARACTERS = 80
"""Of a text that stand in its JSON object."""


class ScorePrinter:
    """Prints what a command is asked for: something for each text, or for each token."""

    def __init__(self, config: ScoreConfig, vocabulary: Tokenizer) -> None:
        """Take what decides.

        Args:
            config: of the command.
            vocabulary: of the model.
        """
        self._of_tokens = config.tokens
        self._is_table = config.format == "table" and not config.tokens
        self._vocabulary = vocabulary
        self._begins = ""

    def header(self) -> None:
        """Print what stands above a table."""
        if self._is_table:
            self._print_row(_COLUMNS)

    def begin(self, part: Part) -> None:
        """Take the first part of a text that is to be printed about."""
        self._begins = part.data[: 4 * _SHOWN_CHARACTERS].decode(errors="replace").rstrip("\r\n")[:_SHOWN_CHARACTERS]

    def tokens(self, costs: TokenCosts, *, text: int) -> None:
        """Print neighbouring tokens of a text, where tokens are asked for; `text` is its number from 1."""
        if not self._of_tokens:
            return
        lines = []
        for place, (number, nats) in enumerate(zip(costs.ids.tolist(), costs.nats.tolist(), strict=True)):
            token = {"token": self._vocabulary.text_of(number), "id": number, "nats": nats}
            lines.append(json.dumps({"text": text, "position": costs.position + place, **token}) + "\n")
        say("".join(lines))

    def text(self, number: int, score: TextScore) -> None:
        """Print what a text cost, where texts are asked for."""
        nats = score.nats if score.predictions else None
        if not self._of_tokens:
            self._print((number, nats, score.bits_per_byte, score.perplexity, score.predictions), error=None)

    def skipped(self, number: int, error: str) -> None:
        """Print that a text has no score, and in JSON why."""
        if self._of_tokens:
            say(json.dumps({"text": number, "error": error}) + "\n")
        else:
            self._print((number, None, None, None, None), error=error)

    def _print(self, values: tuple[float | None, ...], *, error: str | None) -> None:
        if self._is_table:
            self._print_row(tuple(map(_cell, values)))
            return
        text = dict(zip(_COLUMNS, values, strict=True)) | {"text_begins": self._begins}
        say(json.dumps(text if error is None else text | {"error": error}) + "\n")

    def _print_row(self, cells: tuple[str, ...]) -> None:
        if is_terminal(sys.stdout):
            say("  ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)) + "\n")
        else:
            say("\t".join(cells) + "\n")


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else str(value)
