"""`train.py`: compose, build in order, train, report, and give the best validation loss back to Hydra."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

from transformer_xl.commands import cli, folders, ranks
from transformer_xl.commands.cli import AUTO, Call, Configured, configure
from transformer_xl.commands.closed_pipe import go_on_without_screen
from transformer_xl.commands.run_lock import only_process
from transformer_xl.errors import UserError
from transformer_xl.run_config import read_config
from transformer_xl.training.signals import StopSignals


def main() -> None:
    """Run the command line and exit with its status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a sample may hold what the terminal cannot show
    go_on_without_screen()
    sys.exit(cli.run("train", train, check=configure))


def train(call: Call) -> float | None:
    """Train one run, or go on with one.

    Args:
        call: the command.

    Returns:
        The objective: the best validation loss in nats, the last training loss where nothing validates.
    """
    configured = configure(call)
    with StopSignals(speaks=ranks.is_main()) as signals:
        from transformer_xl.commands.companions import leave_quietly
        from transformer_xl.commands.training_run import TrainingRun  # takes seconds, which `--help` need not wait for

        _quiet_libraries()
        try:
            folder = _folder(configured, call)
            with only_process(folder) if ranks.is_main() else nullcontext():
                return TrainingRun(configured, call, folder, signals).run()
        except Exception as error:
            leave_quietly(error)
            raise
        finally:
            if ranks.is_main():
                folders.discard_claimed()


def _folder(configured: Configured, call: Call) -> Path:
    """Return the folder of the run, made where it is a new one."""
    config, choices = configured
    if config.resume not in (None, AUTO):
        run = Path(os.path.expanduser(str(config.resume))).absolute()
        if config.name in (None, read_config(run).get("name")):
            if call.folder not in (None, run):
                raise UserError("hydra.run.dir cannot be given with resume=, which goes on in the run's own folder")
            return run
    folder = call.folder
    if folder is None:
        resume = AUTO if config.resume == AUTO else None
        names = (choices.get("model", config.model.kind), choices.get("data", config.data.kind))
        folder = Path(folders.run_folder("outputs", config.name, *names, resume)).absolute()
    if not folder.exists():
        folders.make(folder)
    return folder


def _quiet_libraries() -> None:
    """Keep what Lightning says to developers off the screen of a person who trains; after its import sets levels."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)
    for message in (".*does not have many workers.*", ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*"):
        warnings.filterwarnings("ignore", message=message)
