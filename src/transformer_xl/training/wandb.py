"""Weights & Biases: online where it can be, else offline, never blocking a run."""

from __future__ import annotations

import contextlib
import json
import netrc
import os
import shlex
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import wandb
from lightning.pytorch.loggers import WandbLogger

from transformer_xl.config import WandbConfig
from transformer_xl.errors import Stopped, UserError, first_line
from transformer_xl.training import metrics

UPLOAD_WITH = "upload with: "
"""What stands before the command in a `Monitor`'s line."""

_STEPS_LOGGED_AGAIN = 5000
"""More than a run takes in the 15 seconds between two times that W&B writes or sends what it was given."""

_MODES = {"online": "online", "offline": "offline", "disabled": "disabled", "run": "online", "dryrun": "offline"}


_FOLDERS = {"WANDB_DATA_DIR": "data", "WANDB_CACHE_DIR": "cache", "WANDB_CONFIG_DIR": "config"}
"""Where W&B would otherwise write below the user's home, which may be missing or read-only."""


class Monitor(NamedTuple):
    """A logger whose run is open (None: it could not be opened), and the line that says where to look at it."""

    logger: WandbLogger | None
    where: str


@contextlib.contextmanager
def optional(what: str) -> Iterator[None]:
    """Let what is only shown or sent elsewhere fail without ending the run; a line on standard error says so."""
    try:
        yield
    except Stopped:
        raise
    except Exception as error:
        print(f"note     {what} failed, which does not matter to the run: {first_line(error)}", file=sys.stderr)


def open_wandb(
    config: WandbConfig,
    *,
    folder: Path,
    name: str,
    run_id: str,
    settings: dict[str, Any],
) -> Monitor:
    """Open this run's one W&B run, with `settings` as its nested configuration.

    Args:
        config: project, mode and so on.
        folder: the run folder; W&B's files go below it.
        name: of the run.
        run_id: W&B's id; the same id continues a run.
        settings: plain nested containers.
    """
    for variable, below in _FOLDERS.items():
        os.environ.setdefault(variable, str(folder / "wandb" / below))
    mode, reason = _mode(config)
    try:
        return _opened(config, mode, reason, folder=folder, name=name, run_id=run_id, settings=settings)
    except Stopped:
        raise
    except Exception as error:
        return Monitor(None, f"W&B: cannot be used ({first_line(error)})")


def _opened(
    config: WandbConfig, mode: str, reason: str, *, folder: Path, name: str, run_id: str, settings: dict[str, Any]
) -> Monitor:
    deadline = time.monotonic() + config.timeout_seconds
    if mode == "online":
        problem = _unreachable(timeout=config.timeout_seconds / 2)
        if problem is None:
            try:
                logger = _open(config, "online", folder, name, run_id, settings, timeout=deadline - time.monotonic())
                return Monitor(logger, f"W&B: {logger.experiment.url}")
            except wandb.errors.Error as error:
                problem = str(error).splitlines()[0]
                wandb.teardown()
        mode, reason = "offline", problem
    logger = _open(config, mode, folder, name, run_id, settings, timeout=config.timeout_seconds)
    if mode == "disabled":
        return Monitor(logger, "W&B: disabled")
    return Monitor(logger, f"W&B: offline ({reason}); {UPLOAD_WITH}{_upload_command(folder)}")


def check_mode(config: WandbConfig) -> None:
    """Refuse a mode that there is not, before any work.

    Raises:
        UserError: the environment's WANDB_MODE is none.
    """
    _mode(config)


def _upload_command(folder: Path) -> str:
    """Give the line that uploads all of a run's files in the order of its processes.

    One call a file: in one call for all, a file that a killed process left incomplete keeps later ones from upload.
    """
    files = sorted((folder / "wandb").glob("offline-run-*"))  # named by their time
    if len(files) == 1:
        return f"wandb sync {shlex.quote(_relative(files[0]))}"
    below = shlex.quote(_relative(folder / "wandb"))
    return f'for part in {below}/offline-run-*; do wandb sync "$part"; done'


def log_again(loggers: list[Any], path: Path, *, after: int, until: int) -> None:
    """Log the figures of past steps from `metrics.jsonl`: a killed process took along what W&B had not written yet.

    Args:
        loggers: of the run that goes on.
        path: the run's `metrics.jsonl`, whole lines only, as `MetricsFile.cut_after` leaves it.
        after: last step of a process that closed its loggers, which lack nothing up to it.
        until: step of the checkpoint.
    """
    if until <= after or not path.exists():
        return
    steps: dict[int, dict[str, float]] = {}
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            if not after < entry["step"] <= until or entry["value"] is None:
                continue
            steps.setdefault(entry["step"], {metrics.TOKEN_AXIS: entry["tokens"]})[entry["name"]] = entry["value"]
            if len(steps) > _STEPS_LOGGED_AGAIN:
                del steps[next(iter(steps))]
    for step, values in steps.items():
        for logger in loggers:
            logger.log_metrics(values, step=step)


def _open(
    config: WandbConfig,
    mode: str,
    folder: Path,
    name: str,
    run_id: str,
    settings: dict[str, Any],
    *,
    timeout: float,
) -> WandbLogger:
    run = wandb.init(
        name=name,
        dir=folder,
        id=run_id,
        resume="allow",
        project=config.project,
        entity=config.entity,
        group=config.group,
        tags=config.tags,
        config=settings,
        mode=mode,  # type: ignore[arg-type]
        settings=wandb.Settings(
            silent=True, console="off", init_timeout=max(1.0, timeout), disable_git=True, x_disable_meta=True
        ),
    )
    run.define_metric(metrics.STEP_AXIS)
    run.define_metric("*", step_metric=metrics.STEP_AXIS, step_sync=True)
    return WandbLogger(experiment=run, save_dir=folder)


def _mode(config: WandbConfig) -> tuple[str, str]:
    chosen = os.environ.get("WANDB_MODE")
    if chosen is not None:
        if chosen not in _MODES:
            raise UserError(f"the environment's WANDB_MODE is {chosen!r}, and must be one of {', '.join(_MODES)}")
        return _MODES[chosen], f"WANDB_MODE={chosen}"
    if config.mode != "auto":
        return config.mode, f"logger.mode={config.mode}"
    return ("online", "") if _has_key() else ("offline", "not logged in: see `wandb login`")


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    path = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    try:
        return netrc.netrc(path).authenticators(urlsplit(_base_url()).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _base_url() -> str:
    return str(wandb.setup().settings.base_url)


def _unreachable(*, timeout: float) -> str | None:
    url = _base_url()
    try:
        urllib.request.urlopen(url, timeout=timeout).close()
    except urllib.error.HTTPError:
        return None  # it answered
    except (OSError, ValueError):
        return f"{url} did not answer within {timeout:g} s"
    return None


def _relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def log_text(loggers: list[Any], *, key: str, step: int, text: str, axis: str) -> None:
    """Log a text to those loggers that take one."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            with optional("W&B's table of samples"):
                table = wandb.Table(columns=["step", "text"], data=[[step, text]])
                logger.experiment.log({key: table, axis: step})


def log_picture(loggers: list[Any], *, key: str, step: int, path: Path, axis: str) -> None:
    """Log a picture to those loggers that take one."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            with optional("W&B's picture"):
                logger.experiment.log({key: wandb.Image(str(path)), axis: step})


def finish(exit_code: int) -> None:
    """End the open W&B run, if any, so that a failed job is shown as failed."""
    if wandb.run is not None:
        with optional("closing W&B"):
            wandb.finish(exit_code=exit_code)
