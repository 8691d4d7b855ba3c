"""An evaluation from settings to tables, pictures and records, of one model or several."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from transformer_xl.commands.evaluating import looks, pictures, record, tables
from transformer_xl.commands.evaluating.corpus import data_of
from transformer_xl.commands.evaluating.progress import EvaluationProgress
from transformer_xl.commands.evaluating.publishing import PublishedTable, check_can_publish, publish
from transformer_xl.commands.evaluating.readings import Reading, make_readings
from transformer_xl.commands.evaluating.shares import Opened, Readers, Share, Subject, readers
from transformer_xl.commands.evaluating.tables import Evaluated
from transformer_xl.commands.screen import shown
from transformer_xl.commands.sources import Source, find_sources
from transformer_xl.commands.summary import metric
from transformer_xl.data.units import beside_scores, unit_of
from transformer_xl.errors import UserError
from transformer_xl.inference_config import EvaluateConfig
from transformer_xl.model_checks import at_least
from transformer_xl.scores import Score

PICTURES = "evaluation"
"""Folder of pictures and pages, below the run's."""


@dataclass(kw_only=True)
class _Results:
    """What was found out about one model.

    Attributes:
        source: of the model.
        heading: names the corpus.
        rows: its scores.
        shares: what each was made from.
        records: the same for `evaluation.json`.
        pictures: name -> file.
    """

    source: Source
    heading: str
    rows: list[Evaluated] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    pictures: dict[str, Path] = field(default_factory=dict)


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
        asked = config.eval
        problems = at_least(
            1,
            eval__processes=asked.processes,
            eval__max_tokens=asked.max_tokens,
            eval__html_tokens=asked.html_tokens,
            eval__attention_tokens=asked.attention_tokens,
        )
        if problems:
            raise UserError("; ".join(problems))
        self._sources = find_sources(config.run, checkpoint=config.checkpoint)
        if asked.relative_context:
            looks.check_relative_context(asked, models=len(self._sources))
        self._subjects = [self._subject(source) for source in self._sources]
        for source in self._sources:
            record.check_record(source.folder)
            if config.wandb:
                check_can_publish(source)

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
        results = []
        with readers(self._config.eval.processes) as reading:
            for subject in self._subjects:
                results.append(self._evaluate(subject, reading))
        if len(results) > 1:
            self._compare(results)
        for found in results:
            self._keep(found)
        return results[0].rows[0].score.loss

    def _evaluate(self, subject: Subject, reading: Readers) -> _Results:
        source, config = subject.source, self._config
        opened = subject.opened()
        placed, data = opened.placed, opened.data
        results = _Results(source=source, heading=f"{data.name}{beside_scores(data)}")
        counts = data.counts()
        if counts[config.split] < 2:
            raise UserError(f"split is {config.split!r}, which has {counts[config.split]} tokens: choose another")
        ways = make_readings(config.eval, source, placed.model, subject.data)
        parameters = sum(parameter.numel() for parameter in placed.model.parameters())
        device = next(placed.model.parameters()).device
        self._tell(
            f"{source.name}: {placed.model.config.kind}, {parameters:,} parameters, {placed.precision} on {device}; "
            f"{results.heading}, {config.split} split, {counts[config.split]:,} tokens"
        )
        for way in ways:
            share, seconds = self._read(subject, opened, way, reading)
            results.shares.append(share)
            self._add(results, opened, way, share, seconds=seconds, parameters=parameters)
        if len(self._sources) == 1:
            self._print_one(results)
        self._look(opened, ways[0], results)
        return results

    def _read(self, subject: Subject, opened: Opened, way: Reading, reading: Readers) -> tuple[Share, float]:
        lanes = opened.data.lanes(
            self._config.split,
            batch_size=way.lengths.batch_size,
            segment_len=way.lengths.segment_len,
            evaluation=True,
        )
        most = self._config.eval.max_tokens
        total = lanes.predictions if most is None else min(most, lanes.predictions)
        unit = unit_of(opened.data, self._config.split)
        progress = EvaluationProgress(f"{subject.source.name}, {way.label}", total=total, unit=unit)
        start = time.perf_counter()
        try:
            share = reading.read(
                subject,
                opened,
                split=self._config.split,
                lengths=way.lengths,
                max_tokens=most,
                progress=progress,
            )
        finally:
            progress.close()
        return share, time.perf_counter() - start

    def _add(
        self, results: _Results, opened: Opened, way: Reading, share: Share, *, seconds: float, parameters: int
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
                "processes": self._config.eval.processes,
                "tokens_per_second": row.tokens_per_second,
                "data": data.name,
                "data_checksum": row.data_checksum,
                "vocabulary_hash": row.vocabulary_hash,
                "loss_by_position": looks.numbers_of(share.by_position),
                "loss_by_distance": looks.numbers_of(share.by_distance),
            }
        )

    def _print_one(self, results: _Results) -> None:
        tables.print_readings(self._console, results.rows, heading=results.heading)
        lengths = [row.lengths for row in results.rows]
        first = results.rows[0]
        if len(lengths) > 1 and len({length.mem_len for length in lengths}) > 1:
            best = min(results.rows, key=lambda row: row.score.loss)
            self._say(
                f"Least loss: {best.score.loss:.4f} nats a token, {best.label}; {first.label}: {first.score.loss:.4f}."
            )

    def _look(self, opened: Opened, way: Reading, results: _Results) -> None:
        """Draw where losses lie, and what else was asked for."""
        folder = results.source.folder / PICTURES
        folder.mkdir(parents=True, exist_ok=True)
        unit = results.rows[0].unit
        labelled = list(zip([row.label for row in results.rows], results.shares, strict=True))
        title = f"{results.source.name}, {results.heading}, {self._config.split} split"
        results.pictures["loss_by_position"] = pictures.draw_by_position(
            [pictures.Line.of_positions(label, share.by_position, unit) for label, share in labelled],
            folder / "loss_by_position.png",
            title=title,
        )
        results.pictures["loss_by_distance"] = pictures.draw_by_distance(
            [pictures.Line.of_distances(label, share.by_distance, unit) for label, share in labelled],
            folder / "loss_by_distance.png",
            title=title,
        )
        if isinstance(self._config.eval.mem_len, list):
            results.pictures["score_by_memory"] = pictures.draw_by_memory(
                pictures.memory_lines(results.rows), folder / "score_by_memory.png", title=title
            )
        asked = self._config.eval
        if asked.attention:
            path, lines = looks.attention(opened, way, asked, split=self._config.split, folder=folder, title=title)
            results.pictures["attention"] = path
            results.records[0]["attention"] = lines.record
            self._say_all(lines.words)
        if asked.reach:
            path, lines = looks.reach(opened, way, folder=folder, title=title)
            results.pictures["reach"] = path
            results.records[0]["reach"] = lines.record
            self._say_all(lines.words)
        if asked.html:
            page = looks.page(opened, way, asked, split=self._config.split, folder=folder, title=title)
            self._say(f"Text coloured by what each token cost: {shown(page)}")

    def _compare(self, results: Sequence[_Results]) -> None:
        """Print all models in one table, and draw them in one picture each."""
        rows = [row for found in results for row in found.rows]
        headings = list(dict.fromkeys(found.heading for found in results))
        tables.print_models(self._console, rows, heading=" or ".join(headings))
        folder = Path("outputs", f"evaluation-{datetime.now():%Y-%m-%d_%H-%M-%S}")
        folder.mkdir(parents=True, exist_ok=True)
        units = tables.units_to_compare(rows)
        labelled = [(found.source.name, found, share) for found in results for share in found.shares]
        labels = [
            name if len(found.shares) == 1 else f"{name}, {row.label}"
            for (name, found, _), row in zip(labelled, rows, strict=True)
        ]
        title = f"{' or '.join(headings)}, {self._config.split} split"
        drawn = {
            "loss_by_position": pictures.draw_by_position(
                [
                    pictures.Line.of_positions(label, share.by_position, unit)
                    for label, (_, _, share), unit in zip(labels, labelled, units, strict=True)
                ],
                folder / "loss_by_position.png",
                title=title,
            ),
            "loss_by_distance": pictures.draw_by_distance(
                [
                    pictures.Line.of_distances(label, share.by_distance, unit)
                    for label, (_, _, share), unit in zip(labels, labelled, units, strict=True)
                ],
                folder / "loss_by_distance.png",
                title=title,
            ),
            "comparison": pictures.draw_by_memory(pictures.memory_lines(rows), folder / "comparison.png", title=title),
        }
        records = [entry for found in results for entry in found.records]
        asked = self._config.eval
        if asked.relative_context:
            path, found_out = looks.relative_context(
                self._subjects,
                asked,
                split=self._config.split,
                folder=folder,
                title=title,
                console=self._console,
                tell=self._tell,
            )
            drawn["relative_context"] = path
            records.append({"relative_context": found_out})
        record.add_record(folder, command=self._command, results=records)
        self._say(f"Pictures of all, and numbers: {shown(folder)}/")
        for found in results:
            found.pictures |= {f"compared_{name}": path for name, path in drawn.items()}

    def _keep(self, results: _Results) -> None:
        path = record.add_record(results.source.folder, command=self._command, results=results.records)
        if len(self._sources) == 1:
            self._say(f"Numbers: {shown(path)}; pictures: {shown(results.source.folder / PICTURES)}/")
        if not self._config.wandb:
            return
        columns, contents = tables.table_of(results.rows)
        first = results.rows[0]
        scalars = {f"{self._config.split}/loss": first.score.loss}
        scalars |= {
            f"{self._config.split}/{name}": value for name, value in first.unit.figures(first.score.loss).items()
        }
        where = publish(
            results.source,
            scalars={name: value for name, value in scalars.items() if math.isfinite(value)},
            tables={"scores": PublishedTable(columns=columns, rows=contents)},
            pictures=results.pictures,
        )
        self._say(f"{results.source.name}: {where}")

    def _say_all(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._say(line)

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False)

    def _tell(self, line: str) -> None:
        """Say what is no result: on standard error."""
        print(line, file=sys.stderr, flush=True)
