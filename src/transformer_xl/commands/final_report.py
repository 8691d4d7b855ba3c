"""The end of a run: the test, what memory gave, a sample, a picture; on the screen and in the summary."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lightning.pytorch import Trainer
from rich.console import Console

from transformer_xl import build_trainer
from transformer_xl.commands import report
from transformer_xl.commands.screen import shown
from transformer_xl.commands.summary import Summary, metric
from transformer_xl.config import Config
from transformer_xl.data.datamodule import LaneDataModule
from transformer_xl.data.lanes import Dataset
from transformer_xl.data.units import unit_of
from transformer_xl.interop.native import model_weights, read_checkpoint
from transformer_xl.plan import Plan
from transformer_xl.scores import Score
from transformer_xl.training import loggers as monitors
from transformer_xl.training import names
from transformer_xl.training.callbacks.checkpoint import Checkpoints
from transformer_xl.training.module import LanguageModule


@dataclass(frozen=True, kw_only=True)
class FinalReport:
    """What the report is made from."""

    config: Config
    data: Dataset
    plan: Plan
    trainer: Trainer
    module: LanguageModule
    datamodule: LaneDataModule
    checkpoints: Checkpoints
    summary: Summary
    console: Console
    folder: Path
    monitor: str
    others_are_done: Callable[[], None]

    def make(self, *, is_main: bool) -> None:
        """Score the best weights on the test split, and print what a person reads first."""
        self.summary.read_as = dict(self.data.read_as)
        which = self._load_best()
        rows = self._split_rows(which)
        if not is_main:
            return
        self.others_are_done()
        self.module.to(self.trainer.strategy.root_device).eval()
        compares = self.plan.limit_test != 0 and self.config.callbacks.report.memory_tokens > 0
        if self.plan.limit_test != 0 and self.config.callbacks.report.zero_start:
            rows.append(self._zero_start_row(which))
        if compares:
            rows += self._memory_rows(which)
            rows.append(report.unigram_row(self.data))
        report.print_table(self.console, rows, self.data)
        if compares:
            with monitors.optional("the footnote on compressors"):
                report.print_compressors(self.console, self.data)
        if self.config.callbacks.report.compare_with is not None:
            self._say(f"To compare the test's score with: {self.config.callbacks.report.compare_with}.")
        start = self.config.callbacks.weight_average.start_step
        if start is not None and self.plan.max_steps >= start:
            self._say(f"Scores are of the weights averaged from step {start:,} on.")
        self._add_speed()
        if self.config.callbacks.sample.n_tokens > 0:
            with monitors.optional("the sample"):
                text = build_trainer.make_sampler(self.config, self.data)(self.module.model)
                self._say(f"\nA sample, after {build_trainer.PROMPT_TOKENS} tokens of prompt:\n\n{text}")
        self._close()

    def _say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True, markup=False)

    def _load_best(self) -> str:
        """Take the best checkpoint's weights where there is one, and say which they are."""
        best = self.folder / "checkpoints" / "best.ckpt"
        if self.plan.checkpointing and math.isfinite(self.checkpoints.best_score) and best.is_file():
            self.module.model.load_state_dict(model_weights(read_checkpoint(best)))
            return "best"
        return "last" if self.plan.max_steps > 0 else "init_from"

    def _split_rows(self, which: str) -> list[report.Row]:
        """Score validation and test, on all processes."""
        rows = []
        if self.plan.validate_every is not None and names.VALIDATION not in self.module.scores:
            # the run stopped after its last step
            self.trainer.validate(self.module, datamodule=self.datamodule, verbose=False)
        if names.VALIDATION in self.module.scores:
            score = self.module.scores[names.VALIDATION]
            best_loss = self.checkpoints.best_score if which == "best" else score.loss
            rows.append(report.Row("validation", "valid", Score(best_loss, score.tokens), self.config.eval))
            self._add_metric("valid", rows[-1], checkpoint=which)
        if self.plan.limit_test != 0:
            self.trainer.test(self.module, datamodule=self.datamodule, verbose=False)
            rows.append(report.Row("test", "test", self.module.scores[names.TEST], self.config.eval))
            self._add_metric("test", rows[-1], checkpoint=which)
        return rows

    def _zero_start_row(self, which: str) -> report.Row:
        row = report.zero_start_row(
            self.module.model,
            self.data,
            lengths=self.config.eval,
            limit=self.plan.limit_test,
            autocast=self.trainer.precision_plugin.forward_context,
        )
        self._add_metric("test_zero_start", row, checkpoint=which)
        return row

    def _memory_rows(self, which: str) -> list[report.Row]:
        rows = report.memory_rows(
            self.module.model,
            self.data,
            lengths=self.config.eval,
            long_eval=self.config.recipe.long_eval,
            max_tokens=self.config.callbacks.report.memory_tokens,
            autocast=self.trainer.precision_plugin.forward_context,
        )
        for row in rows:
            assert row.lengths is not None
            self._add_metric(f"test_beginning_memory_{row.lengths.mem_len}", row, checkpoint=which)
        return rows

    def _add_metric(self, key: str, row: report.Row, *, checkpoint: str) -> None:
        assert row.lengths is not None
        values = metric(
            row.score,
            unit=unit_of(self.data, row.split),
            split=row.split,
            checkpoint=checkpoint,
            lengths=row.lengths,
            read_as=self.data.read_as,
        )
        if row.tokens_per_second is not None:
            values["tokens_per_second"] = row.tokens_per_second
        self.summary.metrics[key] = values

    def _add_speed(self) -> None:
        """Keep the middle of training's speeds: the first are slowed by warming up."""
        speeds = report.logged_values(self.folder / "metrics.jsonl", names.TOKENS_PER_SECOND)
        if speeds:
            middle = statistics.median(speed for _, speed in speeds)
            self.summary.metrics["train"] = {"tokens_per_second": middle, **dataclasses.asdict(self._batch())}

    def _batch(self) -> _Batch:
        data = self.config.data
        return _Batch(batch_size=data.batch_size, segment_len=data.segment_len, mem_len=self.config.model.mem_len)

    def _close(self) -> None:
        """Draw the losses, and say what to type next."""
        if self.plan.max_steps > 0:
            with monitors.optional("the loss curve"):
                picture = report.draw_losses(self.folder, self.data)
                monitors.log_picture(
                    self.trainer.loggers,
                    key="loss_curve",
                    step=self.trainer.global_step,
                    path=picture,
                    axis=names.STEP_AXIS,
                )
                self._say(f"\nLoss curve: {shown(picture)}")
        self._say("\nNext:" if self.plan.max_steps == 0 else "Next:")
        for command in report.next_commands(self.folder, self.monitor, self.data, trained=self.plan.max_steps > 0):
            self._say(f"  {command}")


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """What training's speed was measured with."""

    batch_size: int
    segment_len: int
    mem_len: int
