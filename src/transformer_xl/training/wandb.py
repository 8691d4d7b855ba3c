"""Weights & Biases: online where it can be, else offline, never blocking a run."""

from __future__ import annotations

import contextlib
import json
import netrc
import os
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import wandb
from lightning.pytorch.loggers import WandbLogger

from transformer_xl.config import WandbConfig
from transformer_xl.errors import first_line
from transformer_xl.training import metrics

UPLOAD_WITH = "upload with: "
"""What stands before the command in a `Monitor`'s line."""

_STEPS_LOGGED_AGAIN = 5000
"""More than a run takes in the 15 seconds between two times that W&B writes or sends what it was given."""


class Monitor(NamedTuple):
    """A logger whose run is open (None: it could not be opened), and the line that says where to look at it."""

    logger: WandbLogger | None
    where: str


@contextlib.contextmanager
def optional(what: str) -> Iterator[None]:
    """Let what is only shown or sent elsewhere fail without ending the run; a line on standard error says so."""
    try:
        yield
    except Exception as error:
        print(f"note     {what} failed, which does not matter to the run: {first_line(error)}", file=sys.stderr)


def open_wandb(config: WandbConfig, *, folder: Path, name: str, run_id: str, settings: dict[str, Any]) -> Monitor:
    """Open this run's one W&B run, with `settings` as its nested configuration.

    Args:
        config: project, mode and so on.
        folder: the run folder; W&B's files go below it.
        name: of the run.
        run_id: W&B's id; the same id continues a run.
        settings: plain nested containers.
    """
    for kind in ("data", "cache", "config"):  # else below the user's home, which may be missing or read-only
        os.environ.setdefault(f"WANDB_{kind.upper()}_DIR", str(folder / "wandb" / kind))
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # of W&B's own: it holds up the end where no server answers
    mode, reason = os.environ.get("WANDB_MODE", config.mode), "as chosen"
    try:
        if mode == "auto":
            mode, reason = ("online", "") if _has_key() else ("offline", "not logged in: see `wandb login`")
        start: Any = partial(
            wandb.init,
            name=name,
            dir=folder,
            id=run_id,
            resume="allow",
            project=config.project,
            entity=config.entity,
            group=config.group,
            tags=config.tags or None,
            config=settings,
            settings=wandb.Settings(
                silent=True,
                console="off",
                init_timeout=config.timeout_seconds,
                disable_git=True,
                x_disable_meta=True,
            ),
        )
        try:
            run = start(mode=mode)
        except wandb.errors.Error as error:
            if mode != "online":
                raise
            wandb.teardown()
            run, reason = start(mode="offline"), first_line(error)
        run.define_metric(metrics.STEP_AXIS)
        run.define_metric("*", step_metric=metrics.STEP_AXIS, step_sync=True)
        logger = WandbLogger(experiment=run, save_dir=folder)
    except Exception as error:
        return Monitor(None, f"W&B: cannot be used ({first_line(error)})")
    if run.disabled:
        return Monitor(logger, "W&B: disabled")
    if not run.offline:
        return Monitor(logger, f"W&B: {run.url}")
    # one call a file: in one call for all, a file that a killed process left incomplete keeps later ones from upload
    below = shlex.quote(os.path.relpath(folder / "wandb"))
    upload = f'for part in {below}/offline-run-*; do wandb sync "$part"; done'
    return Monitor(logger, f"W&B: offline ({reason}); {UPLOAD_WITH}{upload}")


def _has_key() -> bool:
    host = urlsplit(str(wandb.setup().settings.base_url)).hostname or ""
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        path = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
        return bool(os.environ.get("WANDB_API_KEY") or netrc.netrc(path).authenticators(host))
    return False


def log_again(loggers: list[Any], path: Path, *, after: int, until: int) -> None:
    """Log the figures of past steps from `metrics.jsonl`: a killed process took along what W&B had not written yet.

    Args:
        loggers: of the run that goes on.
        path: the run's `metrics.jsonl`, whole lines only, as `Recorder.cut` leaves it.
        after: last step of a process that closed its loggers, which lack nothing up to it.
        until: step of the checkpoint.
    """
    steps: dict[int, dict[str, float]] = {}
    with optional("logging past figures again"), path.open(encoding="utf-8") as lines:
        for entry in map(json.loads, lines):
            if after < entry["step"] <= until and entry["value"] is not None:
                steps.setdefault(entry["step"], {metrics.TOKEN_AXIS: entry["tokens"]})[entry["name"]] = entry["value"]
    for step in sorted(steps)[-_STEPS_LOGGED_AGAIN:]:
        for logger in loggers:
            logger.log_metrics(steps[step], step=step)


def log_text(loggers: list[Any], key: str, step: int, text: str) -> None:
    """Log a text to those loggers that are W&B's."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            with optional(f"W&B's {key}"):
                table = wandb.Table(columns=["step", "text"], data=[[step, text]])
                logger.experiment.log({key: table, metrics.STEP_AXIS: step})


def finish(exit_code: int) -> None:
    """End the open W&B run, if any, so that a failed job is shown as failed."""
    if wandb.run is not None:
        with optional("closing W&B"):
            wandb.finish(exit_code=exit_code)
