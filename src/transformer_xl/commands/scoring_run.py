"""What `score.py` does: load, read, print each score as soon as its text has been read, and sum up."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import cast

from transformer_xl.commands.score import STANDARD_INPUT
from transformer_xl.commands.session_file import SessionFile
from transformer_xl.commands.sources import Source, find_source
from transformer_xl.data.tokenizer import SymbolVocabulary, Vocabulary
from transformer_xl.data_config import CorpusConfig
from transformer_xl.errors import Stopped, UserError
from transformer_xl.inference.scoring import ReadingLengths, Scorer, TextScore, TokenCosts, resolved_lengths
from transformer_xl.inference.text_ids import Encoded, TextEncoder
from transformer_xl.inference.texts import Input, Part, read_texts
from transformer_xl.inference_config import ScoreConfig
from transformer_xl.model.interface import LanguageModel
from transformer_xl.training.signals import StopSignals

_SEGMENT_LEN = 128
"""Tokens read at once by a model that does not come from a run."""
_COLUMNS = ("text", "nats", "bits_per_byte", "ppl", "tokens")


class ScoringRun:
    """One command, from its model to the last line."""

    def __init__(self, config: ScoreConfig) -> None:
        """Load the model, and the session that it is to go on with.

        Raises:
            UserError: one of them is not there, or cannot be read so.
        """
        self._config = config
        reads_on = config.context == "carry"
        self._source = find_source(config.run, checkpoint=config.checkpoint)
        self._placed = self._source.placed(device=config.device, precision=config.precision)
        model = self._placed.model
        self._vocabulary: Vocabulary = model.vocabulary or SymbolVocabulary(model.vocab_size)
        self._encoder = TextEncoder(
            self._vocabulary, unit=config.unit, reads_on=reads_on, has_line_ends=_has_line_ends(self._source)
        )
        self._lengths = _lengths(config, self._source, model)
        self._scorer = Scorer(model, lengths=self._lengths, start=self._encoder.start, reads_on=reads_on)
        self._session = None if config.state is None else self._session_file(Path(os.path.expanduser(config.state)))
        self._total = TextScore()
        self._texts = 0

    def run(self) -> None:
        """Score all texts.

        Raises:
            UserError: a text cannot be read; what was printed before it stays, and the session's file as it was.
            Stopped: by a signal, at once or after the text that a session is in.
        """
        print("\n".join(self._opening_lines()), file=sys.stderr, flush=True)
        began = time.perf_counter()
        with StopSignals() as signals:
            try:
                with _opened(self._config.texts) as source, self._placed.autocast():
                    self._read(source, signals)
            except BrokenPipeError:
                _discard_output()
                return
            except Stopped as stopped:
                assert signals.received is not None
                self._finish(began)
                raise Stopped(
                    f"stopped by {signals.received.name} after {_counted(self._texts, 'text')}",
                    exit_code=stopped.exit_code,
                ) from None
            signals.hold()
            self._finish(began)

    def _read(self, source: Input, signals: StopSignals) -> None:
        if not self._config.tokens and self._config.format == "table":
            _print("\t".join(_COLUMNS))
        parts = read_texts(
            source,
            unit=self._config.unit,
            keeps_blank_lines=self._config.context == "carry",
            find_cut=self._encoder.find_cut,
        )
        score = TextScore()
        for part in parts:
            if part.begins:
                score = TextScore()
                if self._session is not None:
                    signals.hold()  # a session can be saved only between two texts
            try:
                encoded = self._encoded(part)
                score += TextScore(tokens=len(encoded.ids), text_bytes=encoded.text_bytes, unknown=encoded.unknown)
                for costs in self._scorer.read(encoded.ids, begins=part.begins, ends=part.ends):
                    score += TextScore(nats=float(costs.nats.sum()), predictions=len(costs.nats))
                    if self._config.tokens:
                        self._print_tokens(costs)
            except UserError as error:
                raise UserError(self._named(error, line=part.line)) from error
            if part.ends:
                self._texts += 1
                self._total += score
                if not self._config.tokens:
                    self._print_text(score)
                if self._session is not None:
                    signals.release()

    def _print_text(self, score: TextScore) -> None:
        nats = score.nats if score.predictions else None
        values = (self._texts, nats, score.bits_per_byte, score.perplexity, score.predictions)
        if self._config.format == "jsonl":
            _print(json.dumps(dict(zip(_COLUMNS, values, strict=True))))
        else:
            _print("\t".join(map(_cell, values)))

    def _print_tokens(self, costs: TokenCosts) -> None:
        lines = [
            json.dumps(
                {
                    "text": self._texts + 1,
                    "position": costs.position + place,
                    "token": self._vocabulary.symbol(number),
                    "id": number,
                    "nats": nats,
                }
            )
            for place, (number, nats) in enumerate(zip(costs.ids.tolist(), costs.nats.tolist(), strict=True))
        ]
        _print("\n".join(lines))

    def _finish(self, began: float) -> None:
        """Save the session, and sum up on standard error."""
        if self._session is not None:
            self._session.write(self._scorer.state_dict())
        total = self._total
        figures = {
            "{:.4f} nats a token": total.nats_per_token,
            "{:.4f} bits a byte": total.bits_per_byte,
            "ppl {:.4f}": total.perplexity,
        }
        said = [written.format(value) for written, value in figures.items() if value is not None]
        said += [f"{total.unknown:,} of them unknown"] if total.unknown else []
        speed = total.predictions / (time.perf_counter() - began)
        counts = f"{_counted(self._texts, 'text')}, {_counted(total.predictions, 'token')}"
        settings = ", ".join(f"{name} {_setting(value)}" for name, value in self._settings().items())
        print(
            f"score    {', '.join([counts, *said])}; {speed:,.0f} tokens/s\nread     {settings}",
            file=sys.stderr,
            flush=True,
        )

    def _opening_lines(self) -> list[str]:
        model, source = self._placed.model, self._source
        parameters = sum(parameter.numel() for parameter in model.parameters())
        kind = "no vocabulary" if model.vocabulary is None else f"{self._vocabulary.kind} vocabulary"
        start = self._encoder.start
        lines = [
            f"model    {source.name}: {model.config.kind}, {parameters:,} parameters, {kind} of {model.vocab_size:,}",
            f"device   {next(model.parameters()).device}, precision {self._placed.precision}",
            "texts    "
            + (
                "nothing precedes a text: its first token is not scored"
                if start is None
                else f"begin after {self._vocabulary.symbol(start)}"
            ),
        ]
        if not self._encoder.is_of_text:
            lines.append("ids      texts are token ids with blanks between them")
        if self._config.texts == STANDARD_INPUT and sys.stdin.isatty():
            lines.append("input    a text a line; Ctrl-D ends")
        return lines

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

    def _session_file(self, path: Path) -> SessionFile:
        lengths = self._lengths
        settings = {
            "memory.mem_len": lengths.mem_len,
            "memory.clamp_len": lengths.clamp_len,
            "memory.same_length": lengths.same_length,
            "precision": self._placed.precision,
        }
        session = SessionFile(path, model=self._placed.model, settings=settings)
        tensors = session.read()
        if tensors is not None:
            try:
                self._scorer.load_state_dict(tensors)
            except ValueError as error:
                raise UserError(f"state={path} is damaged: {error}") from error
        return session

    def _encoded(self, part: Part) -> Encoded:
        try:
            return self._encoder.encode(part)
        except UserError as error:
            if self._placed.model.vocabulary is not None:
                raise
            raise UserError(f"{error}; the model has no vocabulary, so that texts must be token ids") from error

    def _named(self, error: UserError, *, line: int) -> str:
        place = "" if str(error).startswith("line ") else f"line {line}: "
        return f"texts={self._config.texts}, {place}{error}"


def _lengths(config: ScoreConfig, source: Source, model: LanguageModel) -> ReadingLengths:
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


def _has_line_ends(source: Source) -> bool:
    data = None if source.config is None else source.config.data
    return not (isinstance(data, CorpusConfig) and data.newline == "drop")


def _opened(texts: str) -> AbstractContextManager[Input]:
    if texts == STANDARD_INPUT:
        return nullcontext(cast(Input, sys.stdin.buffer))
    return open(os.path.expanduser(texts), "rb")


def _print(lines: str) -> None:
    print(lines, flush=True)  # whoever feeds a pipe may wait for the answer before writing more


def _discard_output() -> None:
    """Let what is still to be written go nowhere: nobody reads it any more, and the interpreter would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else str(value)


def _setting(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
