"""`train.py`: compose, build in order, train, report."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from transformer_xl.commands import cli
from transformer_xl.commands.call import Call
from transformer_xl.commands.compose import configure
from transformer_xl.commands.sweep import run_sweep
from transformer_xl.errors import UserError
from transformer_xl.processes import keep_freed_memory

if TYPE_CHECKING:
    from lightning.pytorch import Callback

    from transformer_xl.build import Built
    from transformer_xl.config import Config
    from transformer_xl.run import Command, Run
    from transformer_xl.run_folder import Summary


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

    if any(key.partition(".")[0] == "plan" for key in call.given):
        planned, choices = configure(call)
        if planned.plan is not None:
            from transformer_xl.commands.plan import print_plan

            print_plan(planned, label=choices.get("model", planned.model.kind))
            return

    def ask() -> tuple[Config, Command]:
        config, choices = configure(call)
        return config, Command(typed=call.command, folder=call.folder, given=call.given, choices=choices)

    _train(ask, ())


def _train(ask: Callable[[], tuple[Config, Command]], callbacks: Sequence[Callback]) -> Summary:
    from transformer_xl import build
    from transformer_xl.commands.report import final_report, print_opening
    from transformer_xl.run import open_run
    from transformer_xl.run_folder import Summary, shown
    from transformer_xl.run_length import run_length, with_total_steps

    _quiet_libraries()
    with open_run(ask) as run:
        corpus = build.corpus(run)
        length = run_length(run.config, corpus)
        run.config = with_total_steps(run.config, length)
        if run.is_finished(corpus, max_steps=length.max_steps):
            run.say(f"{shown(run.folder)} is finished at step {run.step}: a larger trainer.max_steps goes on")
            return Summary.read(run.folder)
        built = build.training(run, corpus, build.model(run, corpus), length, callbacks)
        if run.found is not None:
            run.found.refuse_other_weights(built.module)
        run.begin(built)
        print_opening(run, built)
        with _memory_in_one_sentence(run, built):
            _fit(run, built)
            return final_report(run, built)


def _fit(run: Run, built: Built) -> None:
    if built.trainer.strategy.root_device.type == "cpu":
        keep_freed_memory()
    run.signals.hold()  # until the last batch that other processes wait for
    run.initial_weights = run.found = None  # what was copied, and what Lightning reads again, need not be kept
    if built.length.max_steps > 0:
        built.trainer.fit(built.module, datamodule=built.data, ckpt_path=run.checkpoint, weights_only=True)


@contextlib.contextmanager
def _memory_in_one_sentence(run: Run, built: Built) -> Iterator[None]:
    """Say what to try where the device runs out of memory."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        data, lengths, mem_len = run.config.data, run.config.eval, run.config.model.mem_len
        sentence = (
            f"the device ran out of memory in an evaluation: eval.batch_size is {lengths.batch_size}, eval.segment_len "
            f"{lengths.segment_len} and eval.mem_len {lengths.mem_len}; try smaller ones"
        )
        if built.module.training:
            more = min(2 * data.lane_chunks, data.batch_size // built.trainer.world_size)
            advice = f"data.lane_chunks={more}, which gives the same gradients" if more > data.lane_chunks else "less"
            sentence = (
                f"the device ran out of memory in training: data.batch_size is {data.batch_size}, data.segment_len "
                f"{data.segment_len}, data.bptt_segments {data.bptt_segments}, model.mem_len {mem_len} and "
                f"data.lane_chunks {data.lane_chunks}; try {advice}"
            )
        if not built.trainer.is_global_zero:  # whose memory alone was short, perhaps: the first would not know
            print(f"error: {sentence}", file=sys.stderr)
        raise UserError(sentence) from error


def _quiet_libraries() -> None:
    """Keep what Lightning says to developers off the screen of a person who trains; after its import sets levels."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # but the launcher says which process it has lost when it ends all others
    logging.getLogger("lightning.fabric.strategies.launchers.subprocess_script").setLevel(logging.INFO)
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)
    for message in (".*does not have many workers.*", ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*"):
        warnings.filterwarnings("ignore", message=message)
