"""An average of the weights over optimizer steps: everything but training reads it, and training never does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from transformer_xl.data.stream import Batch


class WeightAverage(Callback):
    """Averages the weights after each optimizer step, and puts the average in their place to evaluate.

    A checkpoint holds both: the raw weights where a resume looks for them, and under `averaged` the average by the
    network's own names, with the number of steps in it.
    """

    def __init__(self, *, start_step: int, decay: float | None) -> None:
        """Take which average it is.

        Args:
            start_step: the first optimizer step in it; before, there is none, and the raw weights are evaluated.
            decay: of an exponential average, which starts from the first step's weights; None: the plain mean.
        """
        self._start_step = start_step
        mean = get_swa_multi_avg_fn() if decay is None else get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._include: Callable[[list[Tensor], list[Tensor], int], None] = mean
        self._count = 0
        self._average: list[Tensor] = []
        self._raw: list[Tensor] = []

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Bring a loaded average to the weights' device and this run's precision."""
        pairs = zip(self._average, pl_module.model.parameters(), strict=False)
        self._average = [average.to(_wide(weight)) for average, weight in pairs]

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Include the weights after the last micro-batch of a step."""
        if batch.micro + 1 < trainer.accumulate_grad_batches or batch.step < self._start_step:
            return
        weights = [_wide(weight) for weight in pl_module.model.parameters()]
        if self._count == 0:
            self._average = [weight.clone() for weight in weights]
        else:
            self._include(self._average, weights, self._count)
        self._count += 1

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Put the average in the place of training's weights."""
        if trainer.state.fn == "fit":
            self._put_in_place(pl_module.model)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Put training's weights back, to the bit."""
        self._take_away(pl_module.model)

    @contextmanager
    def in_place(self, model: torch.nn.Module) -> Iterator[None]:
        """Have the average in the place of training's weights, if there is one yet."""
        self._put_in_place(model)
        try:
            yield
        finally:
            self._take_away(model)

    def _put_in_place(self, model: torch.nn.Module) -> None:
        if self._count > 0:
            self._raw = [weight.detach().clone() for weight in model.parameters()]
            _write(model.parameters(), self._average)

    def _take_away(self, model: torch.nn.Module) -> None:
        if self._raw:
            _write(model.parameters(), self._raw)
            self._raw = []

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Leave the average in the network: the last checkpoint is written, and what follows only evaluates."""
        if self._count > 0:
            _write(pl_module.model.parameters(), self._average)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the average."""
        if self._count > 0:
            names = [name for name, _ in pl_module.model.named_parameters()]
            weights = dict(zip(names, self._average, strict=True))
            checkpoint["averaged"] = {"count": self._count, "weights": weights}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Go on from a checkpoint's average, unless this run's begins later."""
        averaged = checkpoint.get("averaged")
        if averaged is not None and checkpoint["global_step"] >= self._start_step:
            self._count = averaged["count"]
            self._average = [averaged["weights"][name] for name, _ in pl_module.model.named_parameters()]


def _wide(weight: Tensor) -> Tensor:
    """Give a weight in at least float32: in bfloat16 a long average would stand still."""
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))


@torch.no_grad()
def _write(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    # copies rather than new tensors: the optimizer and DDP hold on to these very parameters
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
