"""What a person reads of a run: the opening lines, the final table, the loss curve, and what to type next."""

from __future__ import annotations

import json
import math
import shlex
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch import Trainer

from transformer_xl import build
from transformer_xl.commands.tables import print_table
from transformer_xl.config import EvalConfig
from transformer_xl.data.datamodule import LaneDataModule
from transformer_xl.data.lanes import Dataset, beside_scores, unit_of
from transformer_xl.errors import program
from transformer_xl.inference.evaluate import compressed_bits, context_of, read_split, unigram_score
from transformer_xl.interop.native import model_weights, read_checkpoint
from transformer_xl.run import Run
from transformer_xl.run_folder import Summary, shown
from transformer_xl.run_length import RunLength
from transformer_xl.scores import BITS_PER_BYTE, BITS_PER_CHARACTER, MUCH_UNKNOWN, PERPLEXITY, Score, Unit, in_words
from transformer_xl.settings import plain, replace
from transformer_xl.training import metrics
from transformer_xl.training import wandb as monitors
from transformer_xl.training.module import LanguageModule
from transformer_xl.training.wandb import UPLOAD_WITH, optional

_COMPRESSED_BYTES = 20_000_000
_SMOOTHED_SHARE = 0.04


class Row(NamedTuple):
    """A line of the final table; without `lengths` it is no model's."""

    label: str
    split: str
    score: Score
    lengths: EvalConfig | None
    tokens_per_second: float | None = None


def metric(
    score: Score, *, unit: Unit, split: str, checkpoint: str, lengths: EvalConfig, read_as: Mapping[str, str]
) -> dict[str, Any]:
    """Return a score beside everything that it depends on; bits per byte too, wherever the data is text."""
    return {
        "loss": _finite(score.loss),
        **{name: _finite(value) for name, value in unit.figures(score.loss).items()},
        "tokens": score.tokens,
        "split": split,
        "checkpoint": checkpoint,
        **plain(lengths),
        **read_as,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON knows no NaN and no infinity


def worded(score: Score, corpus: Dataset, *, split: str) -> str:
    """Say a score in nats and in the units of its corpus."""
    if not score.tokens:
        return "no predictions"
    figures = unit_of(corpus, split).shown(score.loss)
    said = [f"{score.loss:.4f} nats", *(f"{value:.4f} {in_words(name)}" for name, value in figures.items())]
    return f"loss {', '.join(said)}{beside_scores(corpus)}"


@dataclass(frozen=True, kw_only=True)
class FinalReport:
    """The end of a run: validation, test, what memory gave, a sample, a picture; on the screen and in the summary."""

    run: Run
    corpus: Dataset
    module: LanguageModule
    data: LaneDataModule
    trainer: Trainer
    length: RunLength
    parts: build.Callbacks

    def make(self) -> Summary:
        """Score the best weights on the test split, and print what a person reads first."""
        run, config = self.run, self.run.config
        run.summary.parameters = sum(parameter.numel() for parameter in self.module.model.parameters())
        run.summary.objective = self._objective()
        which, step = self._load_best()
        rows = self._split_rows(which, step)
        run.signals.release()  # no other process waits for this one from here on
        if not run.is_main:
            return run.summary
        self.module.to(self.trainer.strategy.root_device).eval()
        scored = self.length.limit_test != 0
        compares = scored and config.callbacks.report.memory_tokens > 0
        if scored and config.callbacks.report.zero_start:
            rows.append(self._read("test, memory starts as zeros", config.eval, zero_start=True))
            self._add_metric("test_zero_start", rows[-1], which)
        if compares:
            rows += self._memory_rows(which)
            rows.append(Row("test, unigram model", "test", unigram_score(self.corpus), None))
        print_scores(rows, self.corpus)
        self._print_words(rows, compares=compares)
        self._add_speed()
        self._print_end()
        return run.summary

    def _objective(self) -> float | None:
        best, latest = self.parts.checkpoints.best_score, self.parts.recorder.latest
        if math.isfinite(best):
            return best
        return None if latest is None else latest.loss

    def _load_best(self) -> tuple[str, int]:
        """Take the best checkpoint's weights where there is one; return which they are, and of which step."""
        best = self.run.folder / "checkpoints" / "best.ckpt"
        if self.length.checkpointing and math.isfinite(self.parts.checkpoints.best_score) and best.is_file():
            checkpoint = read_checkpoint(best)
            self.module.model.load_state_dict(model_weights(checkpoint))
            return "best", checkpoint["global_step"]
        return "last" if self.length.max_steps > 0 else "init_from", self.trainer.global_step

    def _split_rows(self, which: str, step: int) -> list[Row]:
        """Score validation and test, on all processes."""
        rows, lengths, scores = [], self.run.config.eval, self.module.scores
        if self.length.validate_every is not None and metrics.VALIDATION not in scores:
            # the run stopped after its last step
            self.trainer.validate(self.module, datamodule=self.data, verbose=False)
        if metrics.VALIDATION in scores:
            score = scores[metrics.VALIDATION]
            label = "validation" if step == self.trainer.global_step else f"validation (best, step {step})"
            loss = self.parts.checkpoints.best_score if which == "best" else score.loss
            rows.append(Row(label, "valid", Score(loss, score.tokens), lengths))
            self._add_metric("valid", rows[-1], which)
            if self.run.summary.objective is None and score.tokens:
                self.run.summary.objective = score.loss  # of a branch with no step left
        if self.length.limit_test != 0:
            self.run.say(f"test     {self.corpus.counts()['test']:,} tokens")
            self.trainer.test(self.module, datamodule=self.data, verbose=False)
            rows.append(Row("test", "test", scores[metrics.TEST], lengths))
            self._add_metric("test", rows[-1], which)
        return rows

    def _memory_rows(self, which: str) -> list[Row]:
        """Score the beginning of the test split with no memory, the run's own, and four times as much.

        A recipe that says how its paper scores the model (`long_eval`) adds a row of that. Windows read without memory.
        """
        lengths, long_eval = self.run.config.eval, self.run.config.recipe.long_eval
        readings = {}
        factors = (0, 1, 4) if self.module.model.attends else (0, 1)
        for factor in factors if lengths.stride is None else (0,):
            changed = replace(lengths, mem_len=lengths.mem_len * factor)
            if changed.mem_len == 0:
                changed = replace(changed, same_length=False)  # without memory there is nothing to keep at one length
            readings[f"test, memory {changed.mem_len}"] = changed
        if long_eval is not None:
            readings["test, at the paper's lengths"] = replace(lengths, stride=None, **plain(long_eval))
        rows = []
        for label, changed in readings.items():
            self.run.say(f"{label.replace(',', '    ', 1)}")
            rows.append(self._read(label, changed, max_tokens=self.run.config.callbacks.report.memory_tokens))
            self._add_metric(f"test_beginning_memory_{changed.mem_len}", rows[-1], which)
        return rows

    def _read(self, label: str, lengths: EvalConfig, *, max_tokens: int | None = None, zero_start: bool = False) -> Row:
        source = self.corpus.lanes(
            "test", batch_size=lengths.batch_size, segment_len=lengths.segment_len, evaluation=True
        )
        began = time.perf_counter()
        score = read_split(
            self.module.model,
            source,
            context_of(lengths),
            max_tokens=max_tokens,
            limit=self.length.limit_test if zero_start else None,
            zero_start=zero_start,
            autocast=self.trainer.precision_plugin.forward_context,
        ).score
        return Row(label, "test", score, lengths, score.tokens / (time.perf_counter() - began))

    def _add_metric(self, key: str, row: Row, which: str) -> None:
        assert row.lengths is not None
        values = metric(
            row.score,
            unit=unit_of(self.corpus, row.split),
            split=row.split,
            checkpoint=which,
            lengths=row.lengths,
            read_as=self.corpus.read_as,
        )
        if row.tokens_per_second is not None:
            values["tokens_per_second"] = row.tokens_per_second
        self.run.summary.metrics[key] = values

    def _print_words(self, rows: list[Row], *, compares: bool) -> None:
        """Say what the scores mean."""
        say, config = self.run.say, self.run.config
        for sentence in (words_on_unknown(self.corpus), words_on_memory(rows)):
            if sentence:
                say(sentence)
        if compares:
            with optional("the footnote on compressors"):
                say(compressors(self.corpus))
        if config.callbacks.report.compare_with is not None:
            say(f"To compare the test's score with: {config.callbacks.report.compare_with}.")
        start = config.callbacks.weight_average.start_step
        if start is not None and self.length.max_steps >= start:
            say(f"Scores are of the weights averaged from step {start:,} on.")

    def _add_speed(self) -> None:
        """Keep the middle of training's speeds: the first are slowed by warming up."""
        config = self.run.config
        speeds = logged_values(self.run.folder / "metrics.jsonl", metrics.TOKENS_PER_SECOND)
        if speeds:
            self.run.summary.metrics["train"] = {
                "tokens_per_second": statistics.median(speed for _, speed in speeds),
                "batch_size": config.data.batch_size,
                "segment_len": config.data.segment_len,
                "mem_len": config.model.mem_len,
            }

    def _print_end(self) -> None:
        """Show a sample, draw the losses, and say what to type next."""
        say, config, has_trained = self.run.say, self.run.config, self.length.max_steps > 0
        if config.callbacks.sample.n_tokens > 0:
            with optional("the sample"):
                text = build.sampler(config, self.corpus)(self.module.model)
                say(f"\nA sample, after {build.PROMPT_TOKENS} tokens of prompt:\n\n{text}")
        if has_trained:
            with optional("the loss curve"):
                picture = draw_losses(self.run.folder, self.corpus)
                step = self.trainer.global_step
                monitors.log_picture(
                    self.trainer.loggers, key="loss_curve", step=step, path=picture, axis=metrics.STEP_AXIS
                )
                say(f"\nLoss curve: {shown(picture)}")
        say("Next:" if has_trained else "\nNext:")
        for command in next_commands(self.run, self.corpus, has_trained=has_trained):
            say(f"  {command}")


def print_scores(rows: list[Row], corpus: Dataset) -> None:
    """Print the scores in nats and in the units of their corpus."""
    if not rows:
        print("Nothing was scored: validation and test are empty, or turned off.")
        return
    units = list(dict.fromkeys(name for row in rows for name in unit_of(corpus, row.split).shown(0.0)))
    *firsts, last = ["nats per token", *map(in_words, units)]
    print_table(
        ["split", "loss", *map(in_words, units), "segment / memory", "predictions"],
        [_cells(row, corpus, units) for row in rows],
        title=f"{corpus.name}{beside_scores(corpus)}: {', '.join(firsts)}, and {last}",
        boxed=True,
    )


def _cells(row: Row, corpus: Dataset, units: list[str]) -> list[str]:
    figures = unit_of(corpus, row.split).figures(row.score.loss)
    scores = [f"{value:.4f}" for value in (row.score.loss, *(figures[unit] for unit in units))]
    if not row.score.tokens:
        scores = ["no predictions", *[""] * len(units)]
    lengths = ""
    if row.lengths is not None:
        second = f"{row.lengths.mem_len}"
        lengths = f"{row.lengths.segment_len} / {second}"
        if row.lengths.stride is not None:
            lengths = f"{row.lengths.segment_len}, stride {row.lengths.stride}"
    return [row.label, *scores, lengths, f"{row.score.tokens:,}"]


def words_on_unknown(corpus: Dataset) -> str | None:
    """Say of scores on much that is unknown that they look better than they are."""
    tokens = corpus.counts()
    shares = {split: corpus.unknown.get(split, 0) / tokens[split] for split in ("valid", "test") if tokens[split]}
    if not shares or max(shares.values()) <= MUCH_UNKNOWN:
        return None
    said = ", ".join(f"{split} {share:.1%}" for split, share in shares.items())
    return (
        f"Of the tokens, {said} are unknown, which is easy to foresee: these scores, bits per byte too, compare only "
        "with those of the same vocabulary."
    )


def words_on_memory(rows: list[Row]) -> str | None:
    """Say what the rows of memory lengths show, or that they show nothing."""
    memory = [row for row in rows if row.label.startswith("test, memory ") and row.label[-1].isdigit()]
    if len(memory) < 2:
        return None
    without, own = memory[:2]
    assert without.lengths is not None
    per_lane = without.score.tokens / without.lengths.batch_size
    if per_lane < 2 * without.lengths.segment_len:
        return (
            f"For the memory rows a lane read {per_lane:.0f} tokens, too few to show what memory gives: a smaller "
            "eval.batch_size or a larger callbacks.report.memory_tokens would."
        )
    return (
        "The memory rows read the beginning of each lane of the test split with the same weights: cut off from the "
        f"memory that it was trained with, the model loses {without.score.loss - own.score.loss:.4f} nats per token; "
        "one trained without (model.mem_len=0) would lose less."
    )


def compressors(corpus: Dataset) -> str:
    """Say what gzip and xz make of the test text, and why that is no score."""
    unit = unit_of(corpus, "test")
    if unit.tokens_per_byte is None:
        return ""
    bits, tokens = compressed_bits(corpus, max_tokens=max(1, int(_COMPRESSED_BYTES * unit.tokens_per_byte)))
    name = BITS_PER_CHARACTER if unit.name == BITS_PER_CHARACTER else BITS_PER_BYTE  # nobody reads one in perplexity
    figures = ", ".join(f"{by} {unit.figures(value * math.log(2))[name]:.3f}" for by, value in bits.items())
    written = " as the vocabulary writes it, unknown words as <unk>" if unit.name == PERPLEXITY else ""
    return (
        f"Footnote: {figures} {in_words(name)} on the first {tokens:,} tokens of the test text{written}, which they "
        "saw themselves."
    )


# ---- figures and commands


def draw_losses(folder: Path, corpus: Dataset) -> Path:
    """Draw training and validation loss against the step into `loss.png`, in the unit of the vocabulary."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    train = logged_values(folder / "metrics.jsonl", metrics.TRAIN_LOSS)
    val = logged_values(folder / "metrics.jsonl", f"{metrics.VALIDATION}/{metrics.LOSS}")
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    unit = unit_of(corpus, "train")
    values = [unit.of(loss) for _, loss in train]
    validated = [unit_of(corpus, "valid").of(loss) for _, loss in val]
    steps = [step for step, _ in train]
    axes.plot(steps, values, color="tab:blue", alpha=0.2, linewidth=0.8)
    axes.plot(steps, _smoothed(values), color="tab:blue", label="training (smoothed)")
    axes.plot([step for step, _ in val], validated, "o-", color="tab:orange", label="validation")
    tail = [value for value in (*values[len(values) // 20 :], *validated) if math.isfinite(value)]
    if tail and max(tail) > 0:
        axes.set_ylim(min(tail) * 0.97, max(tail) * 1.03)
    axes.set(xlabel="optimizer step", ylabel=f"{in_words(unit.name)}{beside_scores(corpus)}")
    axes.set_title(f"{folder.name}: {corpus.name}", loc="left")
    axes.grid(alpha=0.3)
    axes.legend()
    path = folder / "loss.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def logged_values(path: Path, name: str) -> list[tuple[int, float]]:
    """Read a figure by step from a `metrics.jsonl`; steps without a number are left out."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        entries = [json.loads(line) for line in file]
    return [
        (entry["step"], entry["value"]) for entry in entries if entry["name"] == name and entry["value"] is not None
    ]


def _smoothed(values: list[float]) -> list[float]:
    keep = 1 - 1 / max(1.0, len(values) * _SMOOTHED_SHARE)
    smoothed, average = [], values[0] if values else 0.0
    for value in values:
        average = keep * average + (1 - keep) * value
        smoothed.append(average)
    return smoothed


def next_commands(run: Run, corpus: Dataset, *, has_trained: bool) -> list[str]:
    """Return the commands that a person would type next; there is no model to use where none was trained."""
    where = shlex.quote(shown(run.folder))
    _, _, upload = run.monitor.partition(UPLOAD_WITH)
    watch = upload or f"ls {where}"
    if not has_trained:
        return [watch]
    more, generate = "data=text data.path=YOUR_TEXT", f"{program('generate')} run={where}"
    if corpus.name == "tokens":
        more = f"data=tokens data.path=YOUR_IDS data.vocab_size={corpus.vocabulary.size}"
    elif not corpus.text_bytes:
        more = f"data={corpus.name}"
    if not corpus.text_bytes:
        generate += " format=tokens prompt=0"
    return [f"{program('evaluate')} run={where}", generate, watch, f"{program('train')} init_from={where} {more}"]
