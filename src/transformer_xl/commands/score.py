"""`score.py`: what each text of a file, or of standard input, costs a model."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, BinaryIO

from transformer_xl.commands import cli
from transformer_xl.commands.call import Call
from transformer_xl.commands.closed_pipe import discard_output, is_terminal, note, say, standard_input
from transformer_xl.errors import UserError
from transformer_xl.inference_config import CARRIES_NOTHING, ScoreConfig

if TYPE_CHECKING:
    from transformer_xl.commands.models import LoadedModel, NamedModel
    from transformer_xl.data.tokenizer import Tokenizer
    from transformer_xl.inference.score import Scorer, Text, TextEncoder, TextScore, TokenCosts
    from transformer_xl.model.base import Context

STANDARD_INPUT = "-"
_SEGMENT_LEN = 128
"""Tokens read at once by a model that does not come from a run."""
_COLUMNS = ("text", "nats", "bits_per_byte", "ppl", "tokens")
_WIDTHS = (8, 16, 13, 16, 10)
"""Of the columns on a terminal: rows are printed one by one, before it is known how wide the next will be."""
_SHOWN_CHARACTERS = 80
"""Of a text that stand in its JSON object."""


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(cli.run("score", score))


def score(call: Call) -> None:
    """Score texts, and print what each cost.

    Args:
        call: the command.
    """
    config = call.settings(ScoreConfig)
    problems = []
    if config.tokens and config.format == "table" and "format" in call.given:
        problems.append("format is table with tokens=true, which writes JSON lines: give format=jsonl, or leave it out")
    if config.context == "carry" and config.unknown == "skip" and "unknown" in call.given:
        problems.append("unknown is skip with context carry, where each text needs the one before: give context=none")
    path = os.path.expanduser(config.texts)
    if config.texts != STANDARD_INPUT and not os.path.exists(path):
        problems.append(f"texts={config.texts} names no file, and must name one, or be - for standard input")
    elif os.path.isdir(path):
        problems.append(f"texts={config.texts} is a folder, and must be a file, or - for standard input")
    if problems:
        raise UserError("; ".join(problems))
    from transformer_xl.commands.models import find_model  # torch takes seconds, which `--help` need not wait for

    model = find_model(config.run, checkpoint=config.checkpoint)
    run = _Run(config, model, model.load(device=config.device, precision=config.precision))
    note("\n".join(run.opening_lines()))
    try:
        with _opened(config.texts) as source:
            run.read(source)
    except BrokenPipeError:
        discard_output()
        return
    except KeyboardInterrupt:
        run.sum_up()
        raise
    run.sum_up()


def _opened(texts: str) -> AbstractContextManager[BinaryIO]:
    if texts == STANDARD_INPUT:
        return nullcontext(standard_input())
    return open(os.path.expanduser(texts), "rb")


class _Run:
    """One command: reads, prints each score as soon as its text has been read, and sums up."""

    def __init__(self, config: ScoreConfig, model: NamedModel, loaded: LoadedModel) -> None:
        from transformer_xl.data.characters import SymbolTokenizer
        from transformer_xl.inference.score import Scorer, TextEncoder, TextScore

        self._config, self._model, self._loaded = config, model, loaded
        carries = config.context == "carry"
        self._tokenizer: Tokenizer = loaded.model.vocabulary or SymbolTokenizer(loaded.model.vocab_size)
        settings = None if model.config is None else model.config.data
        self._encoder: TextEncoder = TextEncoder(
            tokenizer=self._tokenizer,
            unit=config.unit,
            reads_on=carries,
            has_line_ends=getattr(settings, "newline", "keep") != "drop",
        )
        own = loaded.model.own_context(segment_len=_SEGMENT_LEN if settings is None else settings.segment_len)
        self._context: Context = own.resolved(segment_len=config.segment_len, **dict(config.memory))
        if carries and self._context.mem_len == 0:
            raise UserError(CARRIES_NOTHING)
        self._scorer: Scorer = Scorer(loaded.model, self._context, start=self._tokenizer.start, reads_on=carries)
        self._total, self._texts, self._skipped = TextScore(), 0, 0
        self._began = time.perf_counter()

    def read(self, source: BinaryIO) -> None:
        """Score all texts.

        Raises:
            UserError: a text cannot be read; what was printed before it stays.
        """
        from transformer_xl.inference.score import read_texts

        config = self._config
        if config.format == "table" and not config.tokens:
            _print_row(_COLUMNS)
        with self._loaded.autocast():
            for text in read_texts(source, unit=config.unit, keeps_blank_lines=config.context == "carry"):
                found = self._score(text)
                self._texts += 1
                if found is None:
                    self._skipped += 1
                else:
                    self._total += found
                    if not config.tokens:
                        nats = found.nats if found.predictions else None
                        values = (self._texts, nats, found.bits_per_byte, found.perplexity, found.predictions)
                        self._print(values, {"text_begins": _beginning(text)})

    def _score(self, text: Text) -> TextScore | None:
        """Return what a text costs; None: it is skipped."""
        from transformer_xl.inference.score import TextScore

        config = self._config
        try:
            encoded = self._encoder.encode(text)
        except UserError as error:
            ends_here = config.unknown == "refuse" or config.context == "carry"
            if ends_here or self._loaded.model.vocabulary is None:
                raise UserError(f"texts={config.texts}, {error}{self._way_out()}") from error
            self._print_skipped(text, str(error))
            return None
        found = TextScore(tokens=len(encoded.ids), text_bytes=encoded.text_bytes, unknown=encoded.unknown)
        try:
            for costs in self._scorer.read(encoded.ids):
                found += TextScore(nats=float(costs.nats.sum()), predictions=len(costs.nats))
                if config.tokens:
                    self._print_tokens(costs)
        except UserError as error:
            raise UserError(f"texts={config.texts}, line {text.line}: {error}") from error
        return found

    def _way_out(self) -> str:
        if self._loaded.model.vocabulary is None:
            return "; the model has no vocabulary, so that texts must be token ids"
        return "; with context=none unknown=skip such a text is left out"

    def _print_tokens(self, costs: TokenCosts) -> None:
        lines = []
        for place, (number, nats) in enumerate(zip(costs.ids.tolist(), costs.nats.tolist(), strict=True)):
            token = {"token": self._tokenizer.text_of(number), "id": number, "nats": nats}
            lines.append(json.dumps({"text": self._texts + 1, "position": costs.position + place, **token}) + "\n")
        say("".join(lines))

    def _print_skipped(self, text: Text, error: str) -> None:
        number = self._texts + 1
        if self._config.tokens:
            say(json.dumps({"text": number, "error": error}) + "\n")
        else:
            self._print((number, None, None, None, None), {"text_begins": _beginning(text), "error": error})

    def _print(self, values: tuple[float | None, ...], more: dict[str, str]) -> None:
        if self._config.format == "table":
            _print_row(tuple(_cell(value) for value in values))
        else:
            say(json.dumps(dict(zip(_COLUMNS, values, strict=True)) | more) + "\n")

    def opening_lines(self) -> list[str]:
        """Describe model, device, and what precedes a text."""
        model, last = self._loaded.model, self._scorer.last
        carries, symbol = self._config.context == "carry", "" if last is None else self._tokenizer.symbol(last)
        kind = "no vocabulary" if model.vocabulary is None else f"{self._tokenizer.kind} vocabulary"
        if carries:
            first = f", the first after {symbol}"
            if last is None:
                first = "; nothing precedes the first, whose first token is not scored"
            precedes = f"each reads on from the one before{first}"
        else:
            alone = "nothing precedes a text: its first token is not scored"
            precedes = alone if last is None else f"begin after {symbol}"
        lines = [
            f"model    {self._model.name}: {self._loaded.described}, {kind} of {model.vocab_size:,}",
            f"texts    {precedes}",
        ]
        if carries:
            whole = self._context.same_length or not model.attends
            sums = "those of the joined text" if whole else "those of the joined text while all of it is in the memory"
            if not model.relative:
                sums = "not those of the joined text, whose segments begin elsewhere"
            lines.append(f"         segments are counted from each text's beginning: sums are {sums}")
        if not self._tokenizer.is_text:
            lines.append("ids      texts are token ids with blanks between them")
        if self._config.texts == STANDARD_INPUT and is_terminal(sys.stdin):
            lines.append("input    a text a line; Ctrl-D ends")
        return lines

    def sum_up(self) -> None:
        """Print the sums, and all settings that they depend on, on standard error."""
        total, config = self._total, self._config
        figures = {
            "{:.4f} nats per token": total.nats_per_token,
            "{:.4f} bits per byte": total.bits_per_byte,
            "ppl {:.4f}": total.perplexity,
        }
        said = [_counted(self._texts, "text"), _counted(total.predictions, "token")]
        said += [written.format(value) for written, value in figures.items() if value is not None]
        said += [f"{total.unknown:,} of them unknown"] if total.unknown else []
        said += [f"{_counted(self._skipped, 'text')} skipped (format=jsonl says why)"] if self._skipped else []
        speed = total.predictions / (time.perf_counter() - self._began)
        settings = {"unit": config.unit, "context": config.context, **asdict(self._context)}
        settings |= {"precision": self._loaded.precision, "checkpoint": self._model.checkpoint or None}
        del settings["stride"]
        read = ", ".join(f"{name} {_setting(value)}" for name, value in settings.items())
        note(f"score    {', '.join(said)}; {speed:,.0f} tokens/s\nread     {read}")


def _beginning(text: Text) -> str:
    return text.data[: 4 * _SHOWN_CHARACTERS].decode(errors="replace").rstrip("\r\n")[:_SHOWN_CHARACTERS]


def _print_row(cells: tuple[str, ...]) -> None:
    if is_terminal(sys.stdout):
        say("  ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)) + "\n")
    else:
        say("\t".join(cells) + "\n")


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else str(value)


def _setting(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
