"""What a person reads before the first step."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Trainer

from transformer_xl.config import Config
from transformer_xl.data.lanes import Dataset, split_evenly
from transformer_xl.devices import other_devices
from transformer_xl.model.interface import LanguageModel
from transformer_xl.plan import Plan


def opening_lines(
    config: Config, data: Dataset, model: LanguageModel, plan: Plan, trainer: Trainer, *, folder: Path, monitor: str
) -> list[str]:
    """Describe the run: model, data, lengths, device, and where its results go."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    embedding = sum(parameter.numel() for name, parameter in model.named_parameters() if "embedding" in name)
    counts = data.counts()
    fingerprint = data.fingerprint
    lanes, length = config.data.batch_size, config.data.segment_len
    shares = [len(share) for share in split_evenly(lanes, trainer.world_size)]
    per_device = str(shares[0]) if len(set(shares)) == 1 else f"{shares[-1]}-{shares[0]}"
    held = lanes * model.memory_size(config.model.mem_len)
    validation = "none" if plan.validate_every is None else f"every {plan.validate_every} steps and at the end"
    lines = [
        f"model    {config.model.kind}, {parameters:,} parameters, {embedding:,} of them embedding",
        f"data     {data.name}, {data.vocabulary.kind} vocabulary of {data.vocabulary.size:,}: tokens "
        + ", ".join(f"{split} {count:,}" for split, count in counts.items()),
        f"source   {fingerprint.files:,} files, {fingerprint.bytes:,} bytes, sha256 {fingerprint.sha256[:16]}",
        f"batch    {lanes} lanes x {length} tokens (B x T), memory {config.model.mem_len}: "
        f"{held * 4 / 1e6:,.1f} MB of hidden states",
        f"run      {plan.max_steps:,} steps, {plan.tokens:,} tokens, {plan.epochs:.2f} epochs; validation {validation}",
        f"device   {trainer.world_size} x {trainer.strategy.root_device.type}, precision {trainer.precision}, "
        f"{per_device} lanes a device",
    ]
    others = other_devices(config.trainer.accelerator, config.trainer.devices)
    if others is not None:
        lines.append(f"note     {others}")
    return [*lines, f"folder   {shown(folder)}", f"monitor  {monitor}"]


def shown(path: Path) -> str:
    """Give a path as a person would type it here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
