"""`train.py`: compose, build in order, train, report, and give the best validation loss back to Hydra."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from contextlib import nullcontext

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from transformer_xl.commands import command_line, ranks
from transformer_xl.commands.closed_pipe import go_on_without_screen
from transformer_xl.commands.command_line import RunContext
from transformer_xl.commands.run_lock import only_process
from transformer_xl.errors import UserError
from transformer_xl.training.signals import StopSignals


def main() -> None:
    """Run the command line and exit with its status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a sample may hold what the terminal cannot show
    go_on_without_screen()
    sys.exit(command_line.run("train", train))


def train(composed: DictConfig, context: RunContext) -> float | None:
    """Train one run, or go on with one.

    Args:
        composed: what Hydra made of the command line.
        context: the run folder and the command.

    Returns:
        The objective: the best validation loss in nats, the last training loss where nothing validates.
    """
    if not str(HydraConfig.get().run.dir).strip():
        raise UserError("hydra.run.dir is empty, and must name the folder of the run")
    with StopSignals(speaks=ranks.is_main()) as signals:
        from transformer_xl.commands.companions import leave_quietly
        from transformer_xl.commands.training_run import TrainingRun  # takes seconds, which `--help` need not wait for

        _quiet_libraries()
        try:
            with only_process(context.folder) if ranks.is_main() else nullcontext():
                return TrainingRun(composed, context, signals).run()
        except Exception as error:
            leave_quietly(error)
            raise


def _quiet_libraries() -> None:
    """Keep what Lightning says to developers off the screen of a person who trains; after its import sets levels."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)
    for message in (".*does not have many workers.*", ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*"):
        warnings.filterwarnings("ignore", message=message)
