"""Callbacks and loggers that a run's settings add to this program's own."""

from __future__ import annotations

from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, callbacks
from lightning.pytorch.loggers import Logger

from transformer_xl.config import CallbacksConfig, LoggerConfig
from transformer_xl.errors import UserError, first_line
from transformer_xl.registry import lookup, names


def added_callbacks(settings: CallbacksConfig) -> list[Callback]:
    """Return the callbacks that the settings add, in their order.

    Raises:
        UserError: one of Lightning's refuses its arguments.
    """
    return [_made(name, own) for name, own in (settings.model_extra or {}).items()]


def _made(name: str, own: Any) -> Callback:
    if name in names("callback"):
        callback: Callback = lookup("callback", name).factory(own)
        return callback
    try:
        callback = getattr(callbacks, name)(**own)
    except (TypeError, ValueError, MisconfigurationException) as error:
        raise UserError(f"callbacks.{name} cannot be made: {first_line(error)}") from error
    return callback


def added_logger(settings: LoggerConfig, run: Any) -> Logger | None:
    """Return the logger of a part from outside; None where the settings are of a shipped one.

    Args:
        settings: of the logger.
        run: has `folder` and `config`.
    """
    if settings.kind not in names("logger"):
        return None
    logger: Logger = lookup("logger", settings.kind).factory(settings, run)
    return logger
