"""What the training program costs a step on top of the step's own work: Lightning, callbacks, data, logging.

A real run trains in windows of steps. After each window the same batches go through a bare loop (a copy of the network
and of its optimizer: forward, backward, clipping, step, nothing else), so that both sides meet the same machine. Both
must come to the same losses, bit for bit, or they do not do the same work.

Two figures come out. The overhead: on both sides the time is taken during which none of the work's calls is under way
(the bare loop, too, sets gradients to None and lets go of its memory), and the difference is what the program costs; by
the clock on the wall, and by the processor's time of the main thread, which other processes hardly move. And the ratio
of a window's time to that of its bare twin: the plain comparison, which a busy machine makes noisy.

    python -m tests.benchmarks.overhead [--windows N] [--wandb] [--profile FILE] [key=value ...]
"""

from __future__ import annotations

import argparse
import copy
import cProfile
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from transformer_xl import build, devices
from transformer_xl.commands.compose import compose
from transformer_xl.config import Config, WandbConfig
from transformer_xl.data.stream import Batch
from transformer_xl.run import Run
from transformer_xl.run_folder import Identity
from transformer_xl.run_length import RunLength, run_length, with_total_steps
from transformer_xl.training.module import LanguageModule
from transformer_xl.training.optim import make_optimizer, parameter_groups
from transformer_xl.training.stopping import StopSignals
from transformer_xl.training.wandb import finish, open_wandb

WINDOW = 10
"""Steps: one writing of the log each."""
_CLIPPING = ("get_total_norm", "clip_grads_with_norm_")


class Seconds(NamedTuple):
    """Of the clock on the wall, and of the main thread on its processor: what other processes take is not in it."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Seconds:
        """Read both clocks."""
        return cls(time.perf_counter(), time.thread_time())

    def since(self, start: Seconds) -> Seconds:
        """Subtract."""
        return Seconds(self.wall - start.wall, self.cpu - start.cpu)

    def plus(self, other: Seconds) -> Seconds:
        """Add."""
        return Seconds(self.wall + other.wall, self.cpu + other.cpu)

    def over(self, steps: int) -> Seconds:
        """Divide."""
        return Seconds(self.wall / steps, self.cpu / steps)


class Work:
    """The time during which one of the work's calls is under way."""

    def __init__(self) -> None:
        self.total = Seconds(0.0, 0.0)

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Count the time of a call."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            start = Seconds.now()
            result = call(*args, **kwargs)
            self.total = self.total.plus(Seconds.now().since(start))
            return result

        return counted

    def timed_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Count the time of an optimizer's step without its closure, in which everything else happens."""

        def counted(closure: Callable[[], Any]) -> Any:
            inside = Work()
            start = Seconds.now()
            result = step(inside.timed(closure))
            self.total = self.total.plus(Seconds.now().since(start).since(inside.total))
            return result

        return counted


class Window(NamedTuple):
    """Seconds a step of both sides, and of what each does apart from the work's calls."""

    run: Seconds
    run_apart: Seconds
    bare: Seconds
    bare_apart: Seconds

    @property
    def overhead(self) -> Seconds:
        """What the run does more."""
        return self.run_apart.since(self.bare_apart)


class BareLoop:
    """The work alone; its calls are timed as the run's are."""

    def __init__(self, module: LanguageModule, config: Config, length: RunLength) -> None:
        self.work = Work()
        self.model = copy.deepcopy(module.model)
        settings = config.optimizer
        groups = parameter_groups(
            self.model, weight_decay=settings.weight_decay, decay_embeddings=settings.decay_embeddings
        )
        self.optimizer = make_optimizer(settings, groups, fused=True)
        self.schedule, self.peak_lr = build.module(config, self.model, length).schedule, settings.lr
        self.clip = config.trainer.gradient_clip_val
        # as Lightning does: without its cache a weight used twice is rounded twice, and its gradients added in full
        is_rounded = str(config.trainer.precision) == "bf16-mixed"
        self.autocast = torch.autocast("cpu", torch.bfloat16, enabled=is_rounded, cache_enabled=False)
        self.memory: Any = None
        self.nll, self.backward = self.work.timed(self.model.nll), self.work.timed(Tensor.backward)
        self.clip_gradients, self.step = self.work.timed(clip_grad_norm_), self.work.timed(self.optimizer.step)

    def run(self, batches: list[Batch]) -> list[Tensor]:
        """Train on the batches; give the sum of losses of each step."""
        return [self._step(batch) for batch in batches]

    def _step(self, batch: Batch) -> Tensor:
        if self.memory is None:
            self.memory = self.model.empty_memory(batch_size=len(batch.tokens_BT))
        for group in self.optimizer.param_groups:
            group["lr"] = self.peak_lr * self.schedule(batch.step)
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast:
            nll, self.memory = self.nll(batch.tokens_BT, batch.targets_BT, self.memory, batch.resets_BT)
            nll_sum = nll.sum()
            loss = nll_sum / batch.counted
        self.backward(loss)
        if self.clip is not None:
            self.clip_gradients(self.model.parameters(), self.clip)
        self.step()
        return nll_sum.detach()


class Alternating(Callback):
    """Times windows of the run, and their bare twins after each."""

    def __init__(self, config: Config, length: RunLength, *, profile: cProfile.Profile | None) -> None:
        self.config, self.length = config, length
        self.profile = profile
        self.work = Work()
        self.windows: list[Window] = []
        self.batches: list[Batch] = []
        self.losses: list[Tensor] = []

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Let every call of the work be timed."""
        self.bare = BareLoop(pl_module, self.config, self.length)
        pl_module._train_nll = self.work.timed(pl_module._train_nll)
        pl_module.backward = self.work.timed(pl_module.backward)
        optimizer = trainer.optimizers[0]
        optimizer.step = self.work.timed_step(optimizer.step)  # type: ignore[method-assign]
        self._begin()

    def _begin(self) -> None:
        self.batches, self.losses, self.work.total = [], [], Seconds(0.0, 0.0)
        if self.profile is not None:
            self.profile.enable()
        self.start = Seconds.now()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """End a window after its last step."""
        self.batches.append(batch)
        self.losses.append(pl_module.last_step.nll_sum.float())
        if len(self.batches) < WINDOW:
            return
        run = Seconds.now().since(self.start)
        if self.profile is not None:
            self.profile.disable()
        self.bare.work.total = Seconds(0.0, 0.0)
        start = Seconds.now()
        theirs = self.bare.run(self.batches)
        bare = Seconds.now().since(start)
        assert torch.equal(torch.stack(self.losses), torch.stack(theirs)), "both sides must do the same work"
        times = (run, run.since(self.work.total), bare, bare.since(self.bare.work.total))
        self.windows.append(Window(*(seconds.over(WINDOW) for seconds in times)))
        self._begin()


def _run_of(config: Config, folder: Path) -> Run:
    return Run(folder=folder, config=config, identity=Identity.new({}), is_main=True, signals=StopSignals())


def measure(
    overrides: list[str], *, windows: int, folder: Path, profile: cProfile.Profile | None = None
) -> list[Window]:
    """Train, and give each window after the first."""
    intervals = ["trainer.limit_val_batches=0", "trainer.limit_test_batches=0"]
    steps = [f"trainer.max_steps={WINDOW * (windows + 1)}", "scheduler.total_steps=-1"]
    config = devices.with_device_settings(compose(*overrides, *intervals, *steps))
    corpus = build.open_data(config, announce=print)
    length = run_length(config, corpus)
    config = with_total_steps(config, length)
    run = _run_of(config, folder)
    model = build.model(run, corpus)
    datamodule = build.datamodule(config, corpus, length)
    module = build.module(config, model, length)
    with run.signals:
        parts = build.callbacks(run, corpus, model, datamodule, length)
        trainer = build.trainer(config, length, parts.in_order([]), folder=folder)
        if isinstance(config.logger, WandbConfig):
            monitor = open_wandb(config.logger, folder=folder, name="overhead", run_id="overhead", settings={})
            trainer.loggers = [monitor.logger]
        alternating = Alternating(config, length, profile=profile)
        trainer.callbacks.append(alternating)
        clipping = {name: alternating.work.timed(getattr(torch.nn.utils, name)) for name in _CLIPPING}
        with mock.patch.multiple(torch.nn.utils, **clipping):
            trainer.fit(module, datamodule=datamodule)
    finish(0)
    return alternating.windows[1:]


def main() -> None:
    """Measure, and print the shares."""
    parser = argparse.ArgumentParser(description="The training program's cost on top of a step's own work.")
    parser.add_argument("--windows", type=int, default=12, help=f"of {WINDOW} steps (default %(default)s)")
    parser.add_argument("--wandb", action="store_true", help="log to W&B too, offline")
    parser.add_argument("--profile", type=Path, help="write a profile of the run's windows there, for pstats")
    parser.add_argument("settings", nargs="*", help="key=value, as for train.py")
    arguments = parser.parse_args()
    logger = ["logger=wandb", "logger.mode=offline"] if arguments.wandb else ["logger=none"]
    profile = cProfile.Profile() if arguments.profile else None
    with tempfile.TemporaryDirectory() as folder:
        windows = measure(
            [*logger, *arguments.settings], windows=arguments.windows, folder=Path(folder), profile=profile
        )
    if profile is not None:
        profile.dump_stats(arguments.profile)
    print(f"{len(windows)} windows of {WINDOW} steps, {torch.get_num_threads()} threads, medians")
    print(f"step of the run       {_median(windows, lambda w: w.run.wall * 1e3):8.2f} ms")
    print(f"step of the bare loop {_median(windows, lambda w: w.bare.wall * 1e3):8.2f} ms")
    print(f"ratio of both         {_median(windows, lambda w: w.run.wall / w.bare.wall):8.3f}")
    for clock, index in (("on the wall", 0), ("of the main thread's processor", 1)):
        overhead = _median(windows, lambda w, index=index: w.overhead[index] * 1e3)
        share = _median(windows, lambda w, index=index: w.overhead[index] / w.run[index])
        print(f"overhead              {overhead:8.2f} ms, {share:.2%} of the run's step, by the clock {clock}")


def _median(windows: list[Window], figure: Callable[..., float]) -> float:
    return statistics.median(figure(window) for window in windows)


if __name__ == "__main__":
    main()
