"""Scores of an evaluation in the W&B run of the model's own training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from transformer_xl import build_trainer
from transformer_xl.commands.run_identity import RunIdentity, read_identity
from transformer_xl.commands.run_lock import refuse_if_in_use
from transformer_xl.commands.sources import Source
from transformer_xl.commands.summary import exit_code_at_end, step_at_end
from transformer_xl.config import Config, WandbConfig
from transformer_xl.errors import UserError
from transformer_xl.settings import plain
from transformer_xl.training import loggers as monitors
from transformer_xl.training import names


@dataclass(frozen=True, kw_only=True)
class _Watched:
    """A run that W&B knows."""

    config: Config
    logger: WandbConfig
    identity: RunIdentity


def check_can_publish(source: Source) -> None:
    """Refuse, before anything is evaluated, a model whose results have no W&B run to go to.

    Raises:
        UserError: it comes from no run, or from one without W&B, or that run is being trained now.
    """
    watched = _watched(source)
    monitors.check_mode(watched.logger)
    refuse_if_in_use(source.folder)  # two processes would write to one W&B run


def publish(source: Source, scores: Mapping[str, float]) -> str:
    """Put scores into the run's W&B run, at its last step, under `evaluation/`.

    The run is opened again by its id, with its own settings; offline where it cannot be reached. It ends with the exit
    code with which it had ended.

    Returns:
        The line that says where to look, or how to upload.
    """
    watched = _watched(source)
    settings, parent = plain(watched.config), watched.identity.parent
    monitor = monitors.open_wandb(
        watched.logger,
        folder=source.folder.absolute(),
        name=watched.config.name or source.folder.absolute().name,
        run_id=watched.identity.run_id,
        settings=settings if parent is None else {**settings, "parent": dict(parent)},
    )
    values = {f"{names.EVALUATION}/{name}": value for name, value in scores.items()}
    try:
        if monitor.logger is not None:
            monitor.logger.log_metrics(values, step=step_at_end(source.folder))
    finally:
        monitors.finish(exit_code_at_end(source.folder))
    return monitor.where


def _watched(source: Source) -> _Watched:
    config = source.config
    if config is None:
        raise UserError(
            f"wandb is true, and {source.path} comes from no run whose W&B run could take results: leave wandb=true "
            "out, or give a run folder"
        )
    if not isinstance(config.logger, WandbConfig) or not build_trainer.wants_logger(config):
        raise UserError(
            f"wandb is true, and the run {source.folder} was trained without W&B (logger={config.logger.kind}): leave "
            "wandb=true out"
        )
    identity = read_identity(source.folder)
    if identity is None:
        raise UserError(
            f"wandb is true, and the run {source.folder} has no run.json that says which W&B run is its own: put it "
            "back, or leave wandb=true out"
        )
    return _Watched(config=config, logger=config.logger, identity=identity)
