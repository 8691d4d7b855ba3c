"""What the machine has, and the settings that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from transformer_xl.config import Config
from transformer_xl.errors import UserError
from transformer_xl.parsing import nearest

_ACCELERATORS = ["auto", "cpu", "gpu", "cuda", "mps", "tpu"]


def with_device_settings(config: Config) -> Config:
    """Resolve `precision: auto` by the device's units.

    Raises:
        UserError: the accelerator is not one, or is not there.
    """
    trainer = config.trainer
    if trainer.accelerator not in _ACCELERATORS:
        raise UserError(
            f"trainer.accelerator is {trainer.accelerator!r}, and must be one of {', '.join(_ACCELERATORS)} "
            f"({nearest(trainer.accelerator, _ACCELERATORS)})"
        )
    if trainer.accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise UserError(
            f"trainer.accelerator is {trainer.accelerator!r}, and this machine has no CUDA device that PyTorch sees; "
            "use trainer.accelerator=cpu"
        )
    if trainer.accelerator == "mps" and not torch.backends.mps.is_available():
        raise UserError("trainer.accelerator is 'mps', and this machine has none; use trainer.accelerator=cpu")
    if trainer.precision in ("16-mixed", "16", 16) and not torch.cuda.is_available():
        raise UserError(
            f"trainer.precision is {trainer.precision!r}, which needs a CUDA device; use bf16-mixed or 32-true"
        )
    if trainer.precision == "auto":
        trainer = replace(trainer, precision=_precision_of(trainer.accelerator))
    return replace(config, trainer=trainer)


def _precision_of(accelerator: str) -> str:
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed"
        return "16-mixed" if torch.cuda.get_device_capability()[0] >= 7 else "32-true"
    if accelerator == "cpu" or not torch.backends.mps.is_available():
        units: Mapping[str, bool] = getattr(
            torch.cpu, "get_capabilities", dict
        )()  # older releases of torch cannot tell
        if any(units.get(name) for name in ("avx512_bf16", "amx_bf16", "sve_bf16", "bf16")):
            return "bf16-mixed"
    return "32-true"


def other_devices(accelerator: str, devices: object) -> str | None:
    """Name devices of this machine that the run leaves unused, in one line."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if accelerator == "cpu" and count:
        return f"this machine has {count} CUDA device(s): use trainer.accelerator=gpu trainer.devices={count}"
    if devices == 1 and count > 1:
        return f"this machine has {count} CUDA devices: use trainer.devices={count}"
    return None
