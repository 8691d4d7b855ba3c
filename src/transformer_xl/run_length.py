"""What follows from configuration, machine and corpus together: precision, how long a run is, what happens when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from transformer_xl.config import Config, TrainerConfig
from transformer_xl.data.lanes import Dataset, Segments, eval_starts
from transformer_xl.errors import UserError
from transformer_xl.model_config import TransformerConfig
from transformer_xl.settings import replace

_COUNTED_TOKENS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class RunLength:
    """How long a run is, and what happens when; all lengths in optimizer steps unless named otherwise.

    Attributes:
        max_steps: the last step.
        layout: which positions each segment of training holds, in groups.
        epochs: read by the run.
        tokens: read by the run, over all lanes.
        micro_batches: batches of an optimizer step.
        validate_every: None: no validation.
        limit_val: segments or windows that a validation reads; None: all.
        limit_test: the same for the test; 0: no test.
        max_seconds: a time limit; None: none.
    """

    max_steps: int
    layout: Segments
    epochs: float
    tokens: int
    micro_batches: int
    validate_every: int | None
    limit_val: int | None
    limit_test: int | None
    max_seconds: float | None


def run_length(config: Config, corpus: Dataset) -> RunLength:
    """Work out the run's lengths."""
    trainer, data = config.trainer, config.data
    lanes = corpus.lanes(
        "train",
        batch_size=data.batch_size,
        segment_len=data.segment_len,
        evaluation=trainer.max_steps == 0,  # where nothing is trained, its split may be of any length
    )
    limit = trainer.limit_train_batches
    if isinstance(limit, float):  # a share of the first epoch's groups; 1.0 of every epoch's
        limit = None if limit == 1 else max(1, round(limit * _layout(config, lanes.lane_len, limit=None).count(0)))
    layout = _layout(config, lanes.lane_len, limit=limit)
    limit_val = _windows_read(config, corpus, "valid", trainer.limit_val_batches)
    ends = [trainer.max_steps] if trainer.max_steps >= 0 else []
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        ends.append(_steps_of_epochs(trainer.max_epochs, trainer, layout))
    max_steps = min(ends)
    groups_read = max_steps * trainer.accumulate_grad_batches
    return RunLength(
        max_steps=max_steps,
        layout=layout,
        epochs=layout.epochs(groups_read),
        tokens=lanes.batch_size * layout.positions(groups_read),
        micro_batches=trainer.accumulate_grad_batches * data.lane_chunks,
        validate_every=None if limit_val == 0 else _validate_every(trainer, layout),
        limit_val=limit_val,
        limit_test=_windows_read(config, corpus, "test", trainer.limit_test_batches),
        max_seconds=trainer.max_seconds,
    )


def _layout(config: Config, lane_len: int, *, limit: int | None) -> Segments:
    data = config.data
    return Segments(
        lane_len=lane_len,
        segment_len=data.segment_len,
        segment_len_sd=data.segment_len_sd,
        half_segments=data.half_segments,
        half_loss=data.loss == "half",
        bptt_segments=data.bptt_segments,
        seed=config.seed,
        limit=limit,
    )


def _windows_read(config: Config, corpus: Dataset, split: str, limit: int | float | None) -> int | None:
    """Turn a limit of an evaluation into segments or windows; 0 where the split is empty."""
    if corpus.counts()[split] == 0:
        return 0
    if not isinstance(limit, float):
        return limit
    lengths = config.eval
    source = corpus.lanes(split, batch_size=lengths.batch_size, segment_len=lengths.segment_len, evaluation=True)
    windows = eval_starts(lane_len=source.lane_len, segment_len=lengths.segment_len, stride=lengths.stride)
    return max(1, round(limit * len(windows))) if limit > 0 else 0


def _steps_of_epochs(epochs: int, trainer: TrainerConfig, layout: Segments) -> int:
    return -(-layout.before(epochs) // trainer.accumulate_grad_batches)


def _validate_every(trainer: TrainerConfig, layout: Segments) -> int:
    # Lightning knows one interval for the whole run: where the lengths of epochs vary, that of the first
    steps_per_epoch = _steps_of_epochs(1, trainer, layout)
    if trainer.check_val_every_n_epoch is not None:
        return trainer.check_val_every_n_epoch * steps_per_epoch
    interval = trainer.val_check_interval
    if isinstance(interval, int):
        return interval
    return steps_per_epoch if interval is None else max(1, round(interval * steps_per_epoch))


def cluster_shares(corpus: Dataset, edges: Sequence[int]) -> list[float]:
    """Estimate how often training's tokens are in each cluster of the vocabulary, from the first ones."""
    if len(edges) == 2:
        return [1.0]
    lanes = corpus.lanes("train", batch_size=1, segment_len=1, evaluation=True)
    first = lanes.read(epoch=0, lanes=range(1), start=0, stop=min(lanes.lane_len, _COUNTED_TOKENS))
    counts, _ = np.histogram(first.tokens_BT, bins=edges)
    return [float(share) for share in counts / counts.sum()]


def with_total_steps(config: Config, length: RunLength) -> Config:
    """Settle where the schedule ends, so that a resume with more steps does not move it."""
    if getattr(config.scheduler, "total_steps", None) == -1:
        return replace(config, scheduler=replace(config.scheduler, total_steps=length.max_steps))
    return config


def with_precision(config: Config) -> Config:
    """Resolve `precision: auto` by the device's units.

    Raises:
        UserError: the accelerator is not there, or has no such precision or attention.
    """
    trainer = config.trainer
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    found = {"auto": True, "cpu": True, "cuda": has_cuda, "mps": has_mps, "gpu": has_cuda or has_mps}
    if not found[trainer.accelerator]:
        raise UserError(
            f"trainer.accelerator is {trainer.accelerator!r}, which PyTorch does not see on this machine: use cpu"
        )
    if trainer.precision in ("16-mixed", "16", 16) and not has_cuda:
        raise UserError(
            f"trainer.precision is {trainer.precision!r}, which needs a CUDA device: use bf16-mixed or 32-true"
        )
    if trainer.precision == "auto":
        trainer = replace(trainer, precision=_best_precision(trainer.accelerator))
    on_cuda = has_cuda and trainer.accelerator in ("auto", "gpu", "cuda")
    if trainer.tf32 and not (on_cuda and str(trainer.precision).startswith("32")):
        raise UserError("trainer.tf32 is true, which needs a CUDA device and trainer.precision=32-true")
    if isinstance(config.model, TransformerConfig) and config.model.attention == "fused":
        _check_fused("cuda" if on_cuda else "cpu", str(trainer.precision))
    return replace(config, trainer=trainer)


def _check_fused(device: str, precision: str) -> None:
    from transformer_xl.model.kernels.fused import missing  # imports Triton

    if lacks := f"32 or 16 bits, and {precision} has 64" if precision.startswith("64") else missing(device):
        raise UserError(f"model.attention is 'fused', and needs {lacks}: use model.attention=auto")


def _best_precision(accelerator: str) -> str:
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed"
        return "16-mixed" if torch.cuda.get_device_capability()[0] >= 7 else "32-true"
    units: Mapping[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # older releases of torch cannot tell
    on_cpu = accelerator == "cpu" or not torch.backends.mps.is_available()
    has_units = any(units.get(name) for name in ("avx512_bf16", "amx_bf16", "sve_bf16", "bf16"))
    return "bf16-mixed" if on_cpu and has_units else "32-true"
