"""What a person reads before the first step."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Trainer

from transformer_xl.config import Config
from transformer_xl.data.lanes import Dataset, split_evenly
from transformer_xl.data.units import beside_scores
from transformer_xl.devices import other_devices
from transformer_xl.model.base import LanguageModel
from transformer_xl.plan import Plan


def opening_lines(
    config: Config, data: Dataset, model: LanguageModel, plan: Plan, trainer: Trainer, *, folder: Path, monitor: str
) -> list[str]:
    """Describe the run: model, data, lengths, device, and where its results go."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    embedding = sum(parameter.numel() for name, parameter in model.named_parameters() if "embedding" in name)
    counts = data.counts()
    fingerprint = data.fingerprint
    files = "1 file" if fingerprint.files == 1 else f"{fingerprint.files:,} files"
    lanes = config.data.batch_size if plan.max_steps > 0 else config.eval.batch_size
    shares = [len(share) for share in split_evenly(lanes, trainer.world_size)]
    per_device = str(shares[0]) if len(set(shares)) == 1 else f"{shares[-1]}-{shares[0]}"
    unknown = ", ".join(
        f"{split} {100 * count / counts[split]:.1f} %" for split, count in data.unknown.items() if count
    )
    lines = [
        f"model    {config.model.kind}, {parameters:,} parameters, {embedding:,} of them embedding",
        f"data     {data.name}{beside_scores(data)}, {data.vocabulary.kind} vocabulary of {data.vocabulary.size:,}: "
        "tokens " + ", ".join(f"{split} {count:,}" for split, count in counts.items()),
        f"source   {files}, {fingerprint.bytes:,} bytes, sha256 {fingerprint.sha256[:16]}",
        *([f"unknown  outside the vocabulary: {unknown}"] if unknown else []),
        *(_training_lines(config, plan, model) if plan.max_steps > 0 else [_scoring_line(config)]),
        f"device   {trainer.world_size} x {trainer.strategy.root_device.type}, precision {trainer.precision}, "
        f"{per_device} lanes a device",
    ]
    lines += [f"note     the {split} split is empty, and is not scored" for split, count in counts.items() if not count]
    start = config.callbacks.weight_average.start_step
    if start is not None and start > plan.max_steps:
        lines.append(
            f"note     callbacks.weight_average.start_step is {start}, after the last step, {plan.max_steps}: nothing "
            "is averaged"
        )
    others = other_devices(config.trainer.accelerator, config.trainer.devices)
    if others is not None:
        lines.append(f"note     {others}")
    return [*lines, f"folder   {shown(folder)}", f"monitor  {monitor}"]


def _training_lines(config: Config, plan: Plan, model: LanguageModel) -> list[str]:
    lanes, data = config.data.batch_size, config.data
    held = lanes * model.memory_size(config.model.mem_len)
    validation = "none" if plan.validate_every is None else f"every {plan.validate_every} steps and at the end"
    varied = f", lengths with sd {data.segment_len_sd:g}" if data.segment_len_sd else ""
    varied += f", {data.half_segments:.0%} of them half as long" if data.half_segments else ""
    varied += ", loss on their second halves" if data.loss == "half" else ""
    warmup = f" after {config.scheduler.warmup_steps:,} steps of warm-up" if config.scheduler.warmup_steps else ""
    return [
        f"batch    {lanes} lanes x {data.segment_len} tokens (B x T){varied}, memory {config.model.mem_len}: "
        f"{held * 4 / 1e6:,.1f} MB of hidden states",
        f"learn    {config.optimizer.kind}, lr {config.optimizer.lr:g}{warmup}, then {config.scheduler.kind}",
        f"run      {plan.max_steps:,} steps, {plan.tokens:,} tokens, {plan.epochs:.2f} epochs; validation {validation}",
    ]


def _scoring_line(config: Config) -> str:
    lengths = config.eval
    return (
        f"score    nothing is trained: {lengths.batch_size} lanes x {lengths.segment_len} tokens, memory "
        f"{lengths.mem_len}"
    )


def shown(path: Path) -> str:
    """Give a path as a person would type it here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
