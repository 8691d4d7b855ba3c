"""An evaluation from settings to tables, pictures and records, of one model or several."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from transformer_xl.commands.evaluating import looks, record, tables
from transformer_xl.commands.evaluating.corpus import data_of
from transformer_xl.commands.evaluating.progress import EvaluationProgress
from transformer_xl.commands.evaluating.publishing import check_can_publish, publish
from transformer_xl.commands.evaluating.readings import Reading, make_readings
from transformer_xl.commands.evaluating.results import Results, draw, models_in_words, readings_in_words
from transformer_xl.commands.evaluating.shares import Opened, Share, Subject, read_share
from transformer_xl.commands.evaluating.tables import Evaluated
from transformer_xl.commands.folders import claim, discard_if_empty, slug
from transformer_xl.commands.screen import shown
from transformer_xl.commands.sources import Source, find_sources
from transformer_xl.commands.summary import metric
from transformer_xl.data.units import beside_scores, unit_of
from transformer_xl.errors import UserError
from transformer_xl.inference_config import EvaluateConfig
from transformer_xl.scores import Score
from transformer_xl.training.loggers import optional

_PICTURES = "evaluation"
"""Folder of pictures, below the run's: in it one for each command."""


class Evaluation:
    """What one command evaluates."""

    def __init__(self, config: EvaluateConfig, *, command: Sequence[str]) -> None:
        """Find the models, and refuse what cannot work before anything is read.

        Raises:
            UserError: settings that cannot work, or models that are not there.
        """
        self._config = config
        self._command = command
        self._console = Console(highlight=False)
        self._sources = find_sources(config.run, checkpoint=config.checkpoint)
        moment = f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
        several = Path("outputs", f"evaluation-{moment}")
        one = self._sources[0].folder / _PICTURES / f"{moment}-{config.split}"
        self._folder = several if len(self._sources) > 1 else one  # or with a number after it, once it is made
        self._subjects = [self._subject(source) for source in self._sources]
        for source in self._sources:
            if config.wandb:
                check_can_publish(source)
        record.check_record(self._folder if len(self._sources) > 1 else self._sources[0].folder)

    def _subject(self, source: Source) -> Subject:
        data = data_of(source, self._config.data)
        is_own = source.config is not None and data == data_of(source, None)
        return Subject(
            source=source,
            data=data,
            is_own=is_own,
            device=self._config.device,
            precision=self._config.eval.precision,
        )

    def run(self) -> float:
        """Evaluate, print, and leave records and pictures; the first model's first loss in nats."""
        if len(self._subjects) > 1:
            self._check_all()
        self._folder = claim(self._folder.parent, self._folder.name)
        results: list[Results] = []
        try:
            for subject in self._subjects:
                self._evaluate(subject, results)
        except BaseException:
            self._keep_scores(results)
            for folder in (*(found.folder for found in results), self._folder):
                discard_if_empty(folder)
            raise
        if len(results) > 1:
            self._conclude_all(results)
        else:
            self._conclude_one(results[0])
        for found in results:
            discard_if_empty(found.folder)
            if self._config.wandb:
                self._publish(found)
        return results[0].rows[0].score.loss

    def _check_all(self) -> None:
        """Open each model and its corpus, so that what cannot be read is said before the first is."""
        for subject in self._subjects:
            self._ways(subject, subject.opened())

    def _ways(self, subject: Subject, opened: Opened) -> list[Reading]:
        """Give what is read of one model.

        Raises:
            UserError: it cannot be.
        """
        asked, data, split = self._config.eval, opened.data, self._config.split
        if data.counts()[split] < 2:
            raise UserError(f"split is {split!r}, which has {data.counts()[split]} tokens: choose another")
        predictions = data.lanes(split, batch_size=1, segment_len=1, evaluation=True).predictions
        if asked.batch_size != "own" and asked.batch_size > predictions:
            raise UserError(
                f"eval.batch_size is {asked.batch_size}, and must be at most {predictions}, the predictions of the "
                f"{split} split"
            )
        looks.check_looks(opened.placed.model, asked)
        known = None if subject.is_own else predictions
        return make_readings(asked, subject.source, opened.placed.model, subject.data, predictions=known)

    def _evaluate(self, subject: Subject, all_results: list[Results]) -> None:
        source, config = subject.source, self._config
        opened = subject.opened()
        placed, data = opened.placed, opened.data
        folder = self._folder if len(self._sources) == 1 else claim(self._folder, slug(source.name))
        results = Results(source=source, heading=f"{data.name}{beside_scores(data)}", folder=folder)
        all_results.append(results)
        counts = data.counts()
        ways = self._ways(subject, opened)
        parameters = sum(parameter.numel() for parameter in placed.model.parameters())
        device = next(placed.model.parameters()).device
        self._tell(
            f"{source.name}: {placed.model.config.kind}, {parameters:,} parameters, {placed.precision} on {device}; "
            f"{results.heading}, {config.split} split, {counts[config.split]:,} of {sum(counts.values()):,} tokens"
        )
        for way in ways:
            share, seconds = self._read(subject, opened, way)
            results.shares.append(share)
            self._add(results, opened, way, share, seconds=seconds, parameters=parameters)
        if len(self._sources) == 1:
            tables.print_readings(self._console, results.rows, heading=results.heading)
            self._say_all(readings_in_words(results.rows))
        self._look(opened, ways, results)

    def _read(self, subject: Subject, opened: Opened, way: Reading) -> tuple[Share, float]:
        lanes = opened.data.lanes(
            self._config.split,
            batch_size=way.lengths.batch_size,
            segment_len=way.lengths.segment_len,
            evaluation=True,
        )
        most = self._config.eval.max_tokens
        counted = lanes.counted(epoch=0, start=0, stop=lanes.lane_len)
        total = counted if most is None else min(most, counted)
        unit = unit_of(opened.data, self._config.split)
        progress = EvaluationProgress(f"{subject.source.name}, {way.label}", total=total, unit=unit)
        start = time.perf_counter()
        try:
            share = read_share(
                opened, split=self._config.split, lengths=way.lengths, max_tokens=most, progress=progress
            )
        finally:
            progress.close()
        return share, time.perf_counter() - start

    def _add(
        self, results: Results, opened: Opened, way: Reading, share: Share, *, seconds: float, parameters: int
    ) -> None:
        data, split, source = opened.data, self._config.split, results.source
        score = Score(share.nll_sum / share.tokens if share.tokens else math.nan, share.tokens)
        unit = unit_of(data, split)
        row = Evaluated(
            name=source.name,
            label=way.label,
            kind=opened.placed.model.config.kind,
            parameters=parameters,
            score=score,
            unit=unit,
            lengths=way.lengths,
            split=split,
            checkpoint=source.checkpoint,
            data_checksum=data.fingerprint.sha256,
            vocabulary_hash=data.vocabulary.hash(),
            unknown=data.unknown.get(split, 0) / data.counts()[split],
            tokens_per_second=score.tokens / seconds,
        )
        results.rows.append(row)
        values = metric(
            score,
            unit=unit,
            split=split,
            checkpoint=source.checkpoint,
            lengths=way.lengths,
            read_as=data.read_as,
        )
        results.records.append(
            {
                "model": source.path,
                "label": way.label,
                "kind": row.kind,
                "parameters": parameters,
                **values,
                "max_tokens": self._config.eval.max_tokens,
                "precision": opened.placed.precision,
                "tokens_per_second": row.tokens_per_second,
                "data": data.name,
                "data_path": getattr(opened.settings, "path", None),
                "data_checksum": row.data_checksum,
                "vocabulary_hash": row.vocabulary_hash,
                "loss_by_position": looks.numbers_of(share.by_position),
                "loss_by_distance": looks.numbers_of(share.by_distance),
            }
        )

    def _look(self, opened: Opened, ways: Sequence[Reading], results: Results) -> None:
        """Look at what else was asked for; of several readings at that with the longest memory."""
        asked, split, folder = self._config.eval, self._config.split, results.folder
        way = max(ways, key=lambda one: one.lengths.mem_len) if asked.is_varied else ways[0]
        title = f"{results.source.name}, {results.heading}, {split} split"
        about = "" if len(ways) == 1 else f" ({way.label})"
        if asked.attention:
            path, found = looks.attention(opened, way, asked, split=split, folder=folder, title=title)
            results.pictures["attention"] = path
            results.records[ways.index(way)]["attention"] = found.record
            self._say_all(f"{words}{about}" for words in found.words)

    def _conclude_one(self, results: Results) -> None:
        """Draw one model's losses, and keep what was found out."""
        title = f"{results.source.name}, {results.heading}, {self._config.split} split"
        by_memory = isinstance(self._config.eval.mem_len, list)
        self._keep(results.source.folder, results.records)
        with optional("the picture"):
            results.pictures |= draw([results], self._folder, title=title, by_memory=by_memory)

    def _conclude_all(self, results: Sequence[Results]) -> None:
        """Print all models in one table, draw them in one picture of each kind, and keep what was found out."""
        rows = [row for found in results for row in found.rows]
        headings = " or ".join(dict.fromkeys(found.heading for found in results))
        tables.print_models(self._console, rows, heading=headings)
        self._say_all(models_in_words(rows))
        title = f"{headings}, {self._config.split} split"
        records = [entry for found in results for entry in found.records]
        self._keep(self._folder, records)
        with optional("the picture"):
            drawn = draw(results, self._folder, title=title, by_memory=True)
            for found in results:
                found.pictures |= drawn

    def _keep(self, folder: Path, records: Sequence[dict[str, Any]]) -> None:
        path = record.add_record(folder, command=self._command, pictures=self._folder, results=records)
        self._say(f"Numbers: {shown(path)}; pictures: {shown(self._folder)}/")

    def _keep_scores(self, results: Sequence[Results]) -> None:
        """Keep what was measured before another model failed."""
        records = [entry for found in results for entry in found.records]
        if records:
            folder = self._folder if len(self._sources) > 1 else self._sources[0].folder
            record.add_record(folder, command=self._command, pictures=self._folder, results=records)

    def _publish(self, results: Results) -> None:
        first, split = results.rows[0], self._config.split
        figures = {"loss": first.score.loss, **first.unit.figures(first.score.loss)}
        scores = {f"{split}/{name}": value for name, value in figures.items() if math.isfinite(value)}
        self._say(f"{results.source.name}: {publish(results.source, scores)}")

    def _say_all(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._say(line)

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False)

    def _tell(self, line: str) -> None:
        """Say what is no result: on standard error."""
        print(line, file=sys.stderr, flush=True)
