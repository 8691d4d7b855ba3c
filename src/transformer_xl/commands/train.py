"""`train.py`: compose, build in order, train, report."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from transformer_xl.commands import cli
from transformer_xl.commands.call import Call
from transformer_xl.commands.compose import configure
from transformer_xl.commands.sweep import run_sweep
from transformer_xl.errors import UserError, program

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer

    from transformer_xl.config import Config
    from transformer_xl.data.datamodule import LaneDataModule
    from transformer_xl.data.lanes import Dataset
    from transformer_xl.run import Command, Run
    from transformer_xl.run_folder import Summary
    from transformer_xl.run_length import RunLength
    from transformer_xl.training.module import LanguageModule


def main() -> None:
    """Run the command line and exit with its status."""
    with contextlib.suppress(Exception):  # where there is no screen
        faulthandler.enable(2)  # token files cut short under a run end it by a signal: say where
    cli.main(lambda: cli.run("train", train_by_command, sweep=run_sweep), outlives_screen=True)


def train(config: Config, *, callbacks: Sequence[Callback] = ()) -> Summary:
    """Train one run, or go on with one.

    Args:
        config: of `compose`.
        callbacks: Lightning's, beside the program's own.

    Returns:
        What `summary.json` says.

    Raises:
        UserError: what is asked for cannot work.
        Stopped: a signal or `trainer.max_time` ended the run, which can be resumed.
    """
    from transformer_xl.run import Command

    return _train(lambda: (config, Command()), callbacks)


def train_by_command(call: Call) -> None:
    """Train the run that a command line asks for."""
    from transformer_xl.run import Command  # takes seconds, which `--help` need not wait for

    def ask() -> tuple[Config, Command]:
        config, choices = configure(call)
        return config, Command(typed=call.command, folder=call.folder, given=call.given, choices=choices)

    _train(ask, ())


def _train(ask: Callable[[], tuple[Config, Command]], callbacks: Sequence[Callback]) -> Summary:
    from transformer_xl import build
    from transformer_xl.commands.opening import finished_line, print_opening
    from transformer_xl.commands.report import FinalReport
    from transformer_xl.run import open_run
    from transformer_xl.run_folder import Summary
    from transformer_xl.run_length import run_length, with_total_steps

    _quiet_libraries()
    with open_run(ask) as run:
        for note in run.notes:
            run.say(note)
        if run.is_done:
            return run.summary
        corpus = build.corpus(run)
        length = run_length(run.config, corpus)
        run.config = with_total_steps(run.config, length)
        run.refuse_other(corpus, max_steps=length.max_steps)
        if run.was_finished(length.max_steps):
            run.say(finished_line(run, length.max_steps))
            return Summary.read(run.folder)
        model = build.model(run, corpus)
        if run.found is not None:
            run.found.refuse_other_weights(model)
        module = build.module(run.config, model, length)
        data = build.datamodule(run.config, corpus, length)
        parts = build.callbacks(run, corpus, model, length)
        trainer = build.trainer(run.config, length, parts.in_order(callbacks), folder=run.folder)
        run.begin(corpus, trainer, data.tokens_after, cut=parts.recorder.cut)
        print_opening(run, corpus, module, trainer, length)
        with _memory_in_one_sentence(run, module, trainer):
            _fit(run, corpus, module, data, trainer, length)
            return FinalReport(
                run=run, corpus=corpus, module=module, data=data, trainer=trainer, length=length, parts=parts
            ).make()


def _fit(
    run: Run, corpus: Dataset, module: LanguageModule, data: LaneDataModule, trainer: Trainer, length: RunLength
) -> None:
    from transformer_xl.commands.report import worded
    from transformer_xl.devices import keep_freed_memory
    from transformer_xl.training import metrics

    if trainer.strategy.root_device.type == "cpu":
        keep_freed_memory()
    run.signals.hold()  # until the last batch that other processes wait for
    begins_trained = run.initial_weights is not None
    run.initial_weights = run.found = None  # what was copied, and what Lightning reads again, need not be kept
    if begins_trained and length.validate_every is not None:
        trainer.validate(module, datamodule=data, verbose=False)
        start = worded(module.scores[metrics.VALIDATION], corpus, split="valid")
        run.say(f"start    {start} on the validation split")
    if length.max_steps > 0:
        trainer.fit(module, datamodule=data, ckpt_path=run.checkpoint, weights_only=True)


@contextlib.contextmanager
def _memory_in_one_sentence(run: Run, module: LanguageModule, trainer: Trainer) -> Iterator[None]:
    """Say what to try where the device runs out of memory."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        sentence = out_of_memory(run, processes=trainer.world_size, is_training=module.training)
        if not trainer.is_global_zero:  # whose memory alone was short, perhaps: the first process would not know
            print(f"error: {sentence}", file=sys.stderr)
        raise UserError(sentence) from error


def out_of_memory(run: Run, *, processes: int, is_training: bool) -> str:
    """Say what a device's memory was asked to hold, and what to try next."""
    data, lengths = run.config.data, run.config.eval
    if not is_training:
        held = (
            f"the device ran out of memory in an evaluation: eval.batch_size is {lengths.batch_size}, "
            f"eval.segment_len {lengths.segment_len} and eval.mem_len {lengths.mem_len}"
        )
        fewer = max(lengths.batch_size // 2, processes)
        smaller = "a smaller eval.segment_len or eval.mem_len"
        return f"{held}; try {smaller if fewer == lengths.batch_size else f'eval.batch_size={fewer}'}"
    held = (
        f"the device ran out of memory in training: data.batch_size is {data.batch_size}, data.segment_len "
        f"{data.segment_len}, model.mem_len {run.config.model.mem_len} and data.lane_chunks {data.lane_chunks}"
    )
    most = data.batch_size // processes
    if data.lane_chunks >= most:
        return (
            f"{held}, the most for {most} lanes a process; try a smaller data.segment_len, model.mem_len or "
            "data.batch_size, or more trainer.devices"
        )
    advice = f"data.lane_chunks={min(2 * data.lane_chunks, most)}, which gives the same gradients"
    if not (run.folder / "checkpoints" / "last.ckpt").exists():
        return f"{held}; try {advice}"
    return f"{held}; go on with {program('train')} resume={shlex.quote(str(run.folder))} {advice}"


def _quiet_libraries() -> None:
    """Keep what Lightning says to developers off the screen of a person who trains; after its import sets levels."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # but the launcher says which process it has lost when it ends all others
    logging.getLogger("lightning.fabric.strategies.launchers.subprocess_script").setLevel(logging.INFO)
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)
    for message in (".*does not have many workers.*", ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*"):
        warnings.filterwarnings("ignore", message=message)
