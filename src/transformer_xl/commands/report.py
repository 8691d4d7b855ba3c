"""What a person reads of a run: the opening lines, the final table, the loss curve, and what to type next."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_xl import build
from transformer_xl.build import Built
from transformer_xl.commands.tables import print_table
from transformer_xl.config import EvalConfig
from transformer_xl.data.lanes import Dataset, beside_scores, unit_of
from transformer_xl.inference.evaluate import compressed_bits, context_of, read_split, unigram_score
from transformer_xl.interop.native import model_weights, read_checkpoint
from transformer_xl.processes import is_main
from transformer_xl.registry import program
from transformer_xl.run import Run
from transformer_xl.run_folder import Summary, shown
from transformer_xl.scores import ACCURACY, BITS_PER_BYTE, BITS_PER_CHARACTER, LOSS, PERPLEXITY, Score, in_words
from transformer_xl.settings import plain, replace
from transformer_xl.training import metrics
from transformer_xl.training.checkpoint import validation_is_due
from transformer_xl.training.wandb import UPLOAD_WITH, optional

_MUCH_UNKNOWN = 0.05  # share of tokens from which on a score is no longer what it seems
_COMPRESSED_BYTES = 20_000_000
_POINTS = 60
"""At least as many of a long training's losses are drawn, each the mean of its neighbours."""


# ---- before the first step


def print_opening(run: Run, built: Built) -> None:
    """Describe the run: model, data, lengths, device, where its results go, and where it goes on."""
    config, corpus, length, trainer = run.config, built.corpus, built.length, built.trainer
    model, data, source = built.module.model, run.config.data, built.corpus.fingerprint
    parameters = sum(parameter.numel() for parameter in model.parameters())
    chosen = run.identity.choices.get("model", config.model.kind)
    tokens = ", ".join(f"{split} {count:,}" for split, count in corpus.counts().items())
    run.say(f"model    {chosen}, {parameters:,} parameters")
    run.say(f"data     {corpus.name}{beside_scores(corpus)}, {corpus.vocabulary.size:,} symbols, tokens: {tokens}")
    if source.files:
        run.say(f"source   {source.files:,} files, {source.bytes:,} bytes, sha256 {source.sha256[:16]}")
    unknown = ", ".join(f"{split} {share:.1%}" for split, share in _unknown(corpus).items() if share)
    if unknown:
        run.say(f"unknown  outside the vocabulary: {unknown}")
    if length.max_steps > 0:
        memory = f"memory {config.model.mem_len}" if model.attends else "carried state"
        every = "none" if length.validate_every is None else f"every {length.validate_every} steps and at the end"
        group = f" x {data.bptt_segments} segments" if data.bptt_segments > 1 else ""
        run.say(f"batch    {data.batch_size} lanes{group} x {data.segment_len} tokens, {memory}")
        run.say(f"learn    {config.optimizer.kind}, lr {config.optimizer.lr:g}, {config.scheduler.kind}")
        run.say(f"run      {length.max_steps:,} steps, {length.tokens:,} tokens, {length.epochs:.2f} epochs")
        run.say(f"validate {every}")
    precision = f"{trainer.precision}{' with TF32' if config.trainer.tf32 else ''}"
    run.say(f"device   {trainer.world_size} x {trainer.strategy.root_device.type}, precision {precision}")
    for note in _notes(run, max_steps=length.max_steps):
        run.say(f"note     {note}")
    run.say(f"folder   {shown(run.folder)}")
    run.say(f"monitor  {run.monitor}")
    if run.found is not None:
        branch = "" if run.parent is None else f" as a branch of {shown(run.parent)}"
        due = ", whose validation comes first" if validation_is_due(run.found.state) else ""
        run.say(f"resumed  at step {run.step:,} of {length.max_steps:,}{branch}{due}")


def _unknown(corpus: Dataset) -> dict[str, float]:
    """Return the share of each split's tokens that the vocabulary lacks."""
    counts = corpus.counts()
    return {split: corpus.unknown.get(split, 0) / count for split, count in counts.items() if count}


def _notes(run: Run, *, max_steps: int) -> Iterator[str]:
    """Yield what is not as a person might think."""
    config, warmup = run.config, run.config.scheduler.warmup_steps
    total = getattr(config.scheduler, "total_steps", max_steps)
    for name in ("segment_len", "batch_size"):  # some data have their own
        asked, used = getattr(config.recipe, name), getattr(config.data, name)
        if asked != used and run.command.given is not None and run.names(f"recipe.{name}"):
            yield f"recipe.{name} is {asked}, and data.{name} is {used}, which counts"
    if 0 < max_steps <= warmup:
        yield f"scheduler.warmup_steps is {warmup}, and the run has {max_steps} steps: it never ends its warm-up"
    if run.step < max_steps and total < max_steps:
        yield f"scheduler.total_steps is {total}, and the run has {max_steps} steps: the schedule ends before it"
    if run.initial_weights is not None and max_steps > 0 and not run.names("optimizer.lr"):
        yield f"optimizer.lr is {config.optimizer.lr:g}, the recipe's: trained weights usually want a smaller one"


# ---- after the last


class Row(NamedTuple):
    """A line of the final table: its key in the summary, its words, and what was scored; no model's without lengths."""

    key: str
    label: str
    split: str
    score: Score
    lengths: EvalConfig | None


def final_report(run: Run, built: Built) -> Summary:
    """Score the best weights on the test split, and print what a person reads first."""
    corpus, summary, settings = built.corpus, run.summary, run.config.callbacks.report
    summary.parameters = sum(parameter.numel() for parameter in built.module.model.parameters())
    best, latest = built.checkpoints.best_score, built.recorder.latest
    summary.objective = best if math.isfinite(best) else None if latest is None else latest.loss
    which, step = _load_best(run, built)
    rows = []
    for row in _rows(run, built, which, step):
        rows.append(row)
        _keep(run, corpus, row, which)
    if not is_main():
        return summary
    compares = built.length.limit_test != 0 and settings.memory_tokens > 0
    if compares:
        rows.append(Row("", "test, unigram model", "test", unigram_score(corpus), None))
    print_scores(rows, corpus)
    for sentence in (words_on_unknown(corpus), words_on_memory(rows)):
        if sentence:
            print(sentence)
    if compares:
        with optional("the footnote on compressors"):
            print(compressors(corpus))
    if settings.compare_with is not None:
        print(f"To compare the test's score with: {settings.compare_with}.")
    _print_end(run, built)
    return summary


def _load_best(run: Run, built: Built) -> tuple[str, int]:
    best = run.folder / "checkpoints" / "best.ckpt"
    if run.config.trainer.enable_checkpointing and math.isfinite(built.checkpoints.best_score) and best.is_file():
        checkpoint = read_checkpoint(best)
        built.module.model.load_state_dict(model_weights(checkpoint))
        return "best", checkpoint["global_step"]
    return "last" if built.length.max_steps > 0 else "init_from", built.trainer.global_step


def _rows(run: Run, built: Built, which: str, step: int) -> Iterator[Row]:
    """Score validation and test on all processes, and then on the first one what compares with them."""
    lengths, scores, trainer = run.config.eval, built.module.scores, built.trainer
    if built.length.validate_every is not None and metrics.VALIDATION not in scores:
        trainer.validate(built.module, datamodule=built.data, verbose=False)  # the run stopped after its last step
    if metrics.VALIDATION in scores:
        score = scores[metrics.VALIDATION]
        label = "validation" if step == trainer.global_step else f"validation (best, step {step})"
        if step != trainer.global_step:
            score = Score(built.checkpoints.best_score, score.tokens)
        if run.summary.objective is None and score.tokens:
            run.summary.objective = score.loss  # of a branch with no step left
        yield Row("valid", label, "valid", score, lengths)
    if built.length.limit_test != 0:
        trainer.test(built.module, datamodule=built.data, verbose=False)
        yield Row("test", "test", "test", scores[metrics.TEST], lengths)
    run.signals.release()  # no other process waits for this one from here on
    if is_main() and built.length.limit_test != 0:
        built.module.to(trainer.strategy.root_device).eval()
        for key, label, changed in _readings(run, built):
            run.say(label.replace(",", "    ", 1))
            yield Row(key, label, "test", _read(run, built, changed, zero_start=key == "test_zero_start"), changed)


def _readings(run: Run, built: Built) -> Iterator[tuple[str, str, EvalConfig]]:
    """Yield how the test split is read besides: from zeros; its beginning with several lengths of memory.

    A recipe that says how its paper scores the model (`long_eval`) adds that. Windows read without memory.
    """
    lengths, long_eval, settings = run.config.eval, run.config.recipe.long_eval, run.config.callbacks.report
    if settings.zero_start:
        yield "test_zero_start", "test, memory starts as zeros", lengths
    if settings.memory_tokens == 0:
        return
    factors = (0, 1, 4) if built.module.model.attends else (0, 1)
    for mem_len in dict.fromkeys(factor * lengths.mem_len for factor in (factors if lengths.stride is None else (0,))):
        same_length = lengths.same_length and mem_len > 0  # or there is nothing to keep
        changed = replace(lengths, mem_len=mem_len, same_length=same_length)
        yield f"test_beginning_memory_{mem_len}", f"test, memory {mem_len}", changed
    if long_eval is not None:
        changed = replace(lengths, stride=None, **plain(long_eval))
        yield f"test_beginning_memory_{changed.mem_len}", "test, at the paper's lengths", changed


def _read(run: Run, built: Built, lengths: EvalConfig, *, zero_start: bool) -> Score:
    source = built.corpus.lanes("test", batch_size=lengths.batch_size, segment_len=lengths.segment_len, evaluation=True)
    return read_split(
        built.module.model,
        source,
        context_of(lengths),
        max_tokens=None if zero_start else run.config.callbacks.report.memory_tokens,
        limit=built.length.limit_test if zero_start else None,
        zero_start=zero_start,
        autocast=built.trainer.precision_plugin.forward_context,
        answers=built.corpus.answers,
    ).score


def _keep(run: Run, corpus: Dataset, row: Row, which: str) -> None:
    """Put a score into the summary beside all that it depends on."""
    assert row.lengths is not None
    figures = unit_of(corpus, row.split).scored(row.score)
    run.summary.metrics[row.key] = {
        # JSON knows no NaN and no infinity
        **{name: value if math.isfinite(value) else None for name, value in figures.items()},
        **{"tokens": row.score.tokens, "split": row.split, "checkpoint": which},
        **plain(row.lengths),
        **corpus.read_as,
    }


def _print_end(run: Run, built: Built) -> None:
    where, has_trained = shlex.quote(shown(run.folder)), built.length.max_steps > 0
    if run.config.callbacks.sample.n_tokens > 0:
        with optional("the sample"):
            text = build.sampler(run.config, built.corpus)(built.module.model)
            print(f"\nA sample, after {build.PROMPT_TOKENS} tokens of prompt:\n\n{text}")
    if has_trained:
        with optional("the loss curve"):
            path = draw_losses(run.folder, built.corpus)
            print(f"\nLoss curve: {shown(path)}")
    _, _, upload = run.monitor.partition(UPLOAD_WITH)
    prompt = "" if built.corpus.text_bytes else " format=tokens prompt=0"
    commands = [f"{program('evaluate')} run={where}", f"{program('generate')} run={where}{prompt}"] * has_trained
    print("Next:", *commands, upload or f"ls {where}", sep="\n  ", flush=True)


def print_scores(rows: list[Row], corpus: Dataset) -> None:
    """Print the scores in nats and in the units of their corpus."""
    if not rows:
        print("Nothing was scored: validation and test are empty, or turned off.")
        return
    units = list(dict.fromkeys(name for row in rows for name in unit_of(corpus, row.split).shown(0.0)))
    print(f"{corpus.name}{beside_scores(corpus)}: {', '.join(['nats per token', *map(in_words, units)])}")
    units += [ACCURACY] if corpus.answers else []
    header = ["split", "loss", *map(in_words, units), "segment / memory", "predictions"]
    print_table(header, [_cells(row, corpus, units) for row in rows], boxed=True)


def _cells(row: Row, corpus: Dataset, units: list[str]) -> list[str]:
    figures = unit_of(corpus, row.split).scored(row.score)
    scores = [f"{figures[name]:.4f}" if name in figures else "" for name in (LOSS, *units)]
    if not row.score.tokens:
        scores = ["no predictions", *[""] * len(units)]
    lengths = ""
    if row.lengths is not None:
        second = row.lengths.mem_len if row.lengths.stride is None else f"stride {row.lengths.stride}"
        lengths = f"{row.lengths.segment_len} / {second}"
    return [row.label, *scores, lengths, f"{row.score.tokens:,}"]


def words_on_unknown(corpus: Dataset) -> str | None:
    """Say of scores on much that is unknown that they look better than they are."""
    shares = {split: share for split, share in _unknown(corpus).items() if split != "train"}
    if max(shares.values(), default=0) <= _MUCH_UNKNOWN:
        return None
    said = ", ".join(f"{split} {share:.1%}" for split, share in shares.items())
    return (
        f"Of the tokens, {said} are unknown, which is easy to foresee: these scores, bits per byte too, compare only "
        "with those of the same vocabulary."
    )


def words_on_memory(rows: list[Row]) -> str | None:
    """Say what the rows without memory and with the run's own show."""
    lost = {row.lengths.mem_len: row.score.loss for row in rows if row.key.startswith("test_beginning") and row.lengths}
    if len(lost) < 2:
        return None
    without, own = list(lost.values())[:2]
    return (
        "The memory rows read the beginning of each lane of the test split with the same weights: without the memory "
        f"it was trained with, the model loses {without - own:.4f} nats per token; one trained without memory "
        "(model.mem_len=0) would lose less."
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


def draw_losses(folder: Path, corpus: Dataset) -> Path:
    """Draw training and validation loss against the step into `loss.png`, in the unit of the vocabulary."""
    from matplotlib.figure import Figure

    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, split in ((metrics.TRAIN_LOSS, "train"), (f"{metrics.VALIDATION}/{LOSS}", "valid")):
        unit, logged = unit_of(corpus, split), [entry for entry in entries if entry["name"] == name]
        points = [(entry["step"], unit.of(entry["value"])) for entry in logged if entry["value"] is not None]
        size = max(1, len(points) // _POINTS) if split == "train" else 1
        means = np.reshape(points[: len(points) // size * size], (-1, size, 2)).mean(axis=1)
        axes.plot(*means.T, "o-", markersize=3, label=f"{split} (means of {size} steps)" if size > 1 else split)
    axes.set(yscale="log", xlabel="optimizer step")
    axes.set_ylabel(f"{in_words(unit_of(corpus, 'train').name)}{beside_scores(corpus)}")
    axes.set_title(f"{folder.name}: {corpus.name}", loc="left")
    axes.grid(alpha=0.3)
    axes.legend()
    path = folder / "loss.png"
    figure.savefig(path, dpi=120)
    return path
