"""What `score.py` does: load, read, print each score as soon as its text has been read, and sum up."""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import cast

from transformer_xl.commands.closed_pipe import discard_output, is_terminal, note, standard_input
from transformer_xl.commands.models import NamedModel, find_model
from transformer_xl.commands.score import STANDARD_INPUT, check_carried
from transformer_xl.commands.score_printing import ScorePrinter
from transformer_xl.data.characters import SymbolTokenizer
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data_config import CorpusConfig
from transformer_xl.errors import Stopped, UserError
from transformer_xl.inference.scoring import ReadingLengths, Scorer, TextScore, resolved_lengths
from transformer_xl.inference.text_ids import TextEncoder
from transformer_xl.inference.texts import Input, Part, read_texts
from transformer_xl.inference_config import ScoreConfig
from transformer_xl.model.base import LanguageModel
from transformer_xl.training.stopping import StopSignals

_SEGMENT_LEN = 128
"""Tokens read at once by a model that does not come from a run."""
_NO_VOCABULARY = "; the model has no vocabulary, so that texts must be token ids"


class ScoringRun:
    """One command, from its model to the last line."""

    def __init__(self, config: ScoreConfig) -> None:
        """Load the model.

        Raises:
            UserError: it is not there, or cannot be read so.
        """
        self._config = config
        reads_on = config.context == "carry"
        self._source = find_model(config.run, checkpoint=config.checkpoint)
        self._placed = self._source.load(device=config.device, precision=config.precision)
        model = self._placed.model
        self._vocabulary: Tokenizer = model.vocabulary or SymbolTokenizer(model.vocab_size)
        self._encoder = TextEncoder(
            self._vocabulary, unit=config.unit, reads_on=reads_on, has_line_ends=_has_line_ends(self._source)
        )
        self._lengths = _lengths(config, self._source, model)
        for problem in check_carried(config, mem_len=self._lengths.mem_len):
            raise UserError(problem)
        self._scorer = Scorer(model, lengths=self._lengths, start=self._encoder.start, reads_on=reads_on)
        self._printer = ScorePrinter(config, self._vocabulary)
        self._total = TextScore()
        self._texts = 0
        self._skipped = 0

    def run(self) -> None:
        """Score all texts.

        Raises:
            UserError: a text cannot be read; what was printed before it stays.
            Stopped: by a signal.
        """
        note("\n".join(self._opening_lines()))
        began = time.perf_counter()
        with StopSignals() as signals:
            try:
                with _opened(self._config.texts) as source, self._placed.autocast():
                    self._read(source)
            except BrokenPipeError:
                discard_output()
                return
            except Stopped as stopped:
                assert signals.received is not None
                self._sum_up(began)
                raise Stopped(
                    f"stopped by {signals.received.name} after {_counted(self._texts, 'text')}",
                    exit_code=stopped.exit_code,
                ) from None
            self._sum_up(began)

    def _read(self, source: Input) -> None:
        self._printer.header()
        parts = read_texts(
            source,
            unit=self._config.unit,
            keeps_blank_lines=self._config.context == "carry",
            find_cut=self._encoder.find_cut,
        )
        score: TextScore | None = TextScore()
        for part in parts:
            if part.begins:
                score = TextScore()
                self._printer.begin(part)
            if score is not None:
                score = self._with(part, score)
            if part.ends:
                self._end(score)

    def _with(self, part: Part, score: TextScore) -> TextScore | None:
        """Read a part of a text; give what the text has cost with it; None: it is skipped from here on."""
        try:
            encoded = self._encoder.encode(part)
        except UserError as error:
            if self._config.unknown == "refuse":
                raise UserError(self._named(error, line=part.line) + self._advice()) from error
            self._printer.skipped(self._texts + 1, str(error))
            return None
        score += TextScore(tokens=len(encoded.ids), text_bytes=encoded.text_bytes, unknown=encoded.unknown)
        try:
            for costs in self._scorer.read(encoded.ids, begins=part.begins, ends=part.ends):
                score += TextScore(nats=float(costs.nats.sum()), predictions=len(costs.nats))
                self._printer.tokens(costs, text=self._texts + 1)
        except UserError as error:
            raise UserError(self._named(error, line=part.line)) from error
        return score

    def _end(self, score: TextScore | None) -> None:
        """Count a text that has ended, and print about it, where it was not skipped."""
        self._texts += 1
        if score is None:
            self._skipped += 1
        else:
            self._total += score
            self._printer.text(self._texts, score)

    def _sum_up(self, began: float) -> None:
        total = self._total
        figures = {
            "{:.4f} nats a token": total.nats_per_token,
            "{:.4f} bits a byte": total.bits_per_byte,
            "ppl {:.4f}": total.perplexity,
        }
        said = [written.format(value) for written, value in figures.items() if value is not None]
        said += [f"{total.unknown:,} of them unknown"] if total.unknown else []
        said += [f"{_counted(self._skipped, 'text')} skipped"] if self._skipped else []
        speed = total.predictions / (time.perf_counter() - began)
        counts = f"{_counted(self._texts, 'text')}, {_counted(total.predictions, 'token')}"
        settings = ", ".join(f"{name} {_setting(value)}" for name, value in self._settings().items())
        note(f"score    {', '.join([counts, *said])}; {speed:,.0f} tokens/s\nread     {settings}")

    def _opening_lines(self) -> list[str]:
        model, source = self._placed.model, self._source
        parameters = sum(parameter.numel() for parameter in model.parameters())
        kind = "no vocabulary" if model.vocabulary is None else f"{self._vocabulary.kind} vocabulary"
        lines = [
            f"model    {source.name}: {model.config.kind}, {parameters:,} parameters, {kind} of {model.vocab_size:,}",
            f"device   {next(model.parameters()).device}, precision {self._placed.precision}",
            f"texts    {self._precedes()}",
        ]
        if self._config.context == "carry":
            lines.append(f"         segments are counted from each text's beginning: {self._sums()}")
        if not self._encoder.is_of_text:
            lines.append("ids      texts are token ids with blanks between them")
        if self._config.texts == STANDARD_INPUT and is_terminal(sys.stdin):
            lines.append("input    a text a line; Ctrl-D ends")
        return lines

    def _sums(self) -> str:
        """Say what texts that read on cost together, against the text that they make."""
        model = self._placed.model
        if not model.relative:
            return "sums are not those of the joined text, whose segments begin elsewhere"
        if self._lengths.same_length or not model.attends:
            return "sums are those of the joined text"
        return "sums are those of the joined text while all of it is within the memory"

    def _precedes(self) -> str:
        """Say what precedes a text."""
        last = self._scorer.last
        if self._config.context == "none":
            if last is None:
                return "nothing precedes a text: its first token is not scored"
            return f"begin after {self._vocabulary.symbol(last)}"
        if last is None:
            return "each reads on from the one before; nothing precedes the first, whose first token is not scored"
        return f"each reads on from the one before, the first after {self._vocabulary.symbol(last)}"

    def _settings(self) -> dict[str, object]:
        """Give all that a number of this command depends on besides model and text."""
        config = self._config
        return {
            "unit": config.unit,
            "context": config.context,
            **vars(self._lengths),
            "precision": self._placed.precision,
            "checkpoint": self._source.checkpoint or None,
        }

    def _advice(self) -> str:
        return "" if self._placed.model.vocabulary is not None else _NO_VOCABULARY

    def _named(self, error: UserError, *, line: int) -> str:
        place = "" if str(error).startswith("line ") else f"line {line}: "
        return f"texts={self._config.texts}, {place}{error}"


def _lengths(config: ScoreConfig, source: NamedModel, model: LanguageModel) -> ReadingLengths:
    of_run = _SEGMENT_LEN if source.config is None else source.config.data.segment_len
    own = min(of_run, model.max_segment_len or of_run)
    memory = config.memory
    return resolved_lengths(
        model,
        segment_len=own if config.segment_len == "own" else config.segment_len,
        mem_len=memory.mem_len,
        clamp_len=memory.clamp_len,
        same_length=memory.same_length,
    )


def _has_line_ends(source: NamedModel) -> bool:
    data = None if source.config is None else source.config.data
    return not (isinstance(data, CorpusConfig) and data.newline == "drop")


def _opened(texts: str) -> AbstractContextManager[Input]:
    if texts == STANDARD_INPUT:
        return nullcontext(cast(Input, standard_input()))
    return open(os.path.expanduser(texts), "rb")


def _setting(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
