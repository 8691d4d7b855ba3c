"""What the machine has, and the settings that follow from it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import torch

from transformer_xl.config import Config
from transformer_xl.errors import UserError
from transformer_xl.registry import nearest
from transformer_xl.settings import replace

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGEST_KEPT_BLOCK = 40 << 20
"""Larger ones, as logits of many words, would find their room taken by smaller ones, and need more."""
_LARGEST_OF_OLDER_LIBRARIES = 32 << 20
_NEVER = (1 << 31) - 1
_ACCELERATORS = ["auto", "cpu", "gpu", "cuda", "mps", "tpu"]


def with_device_settings(config: Config) -> Config:
    """Resolve `precision: auto` by the device's units.

    Raises:
        UserError: the accelerator is not one, or is not there; `compile` lacks what it needs.
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
    if trainer.accelerator == "tpu" and importlib.util.find_spec("torch_xla") is None:
        raise UserError("trainer.accelerator is 'tpu', and this machine has none that PyTorch sees; use another")
    if trainer.accelerator == "mps" and not torch.backends.mps.is_available():
        raise UserError("trainer.accelerator is 'mps', and this machine has none; use trainer.accelerator=cpu")
    if trainer.precision in ("16-mixed", "16", 16) and not torch.cuda.is_available():
        raise UserError(
            f"trainer.precision is {trainer.precision!r}, which needs a CUDA device; use bf16-mixed or 32-true"
        )
    if config.compile:
        _check_compilers(trainer.accelerator)
    if trainer.precision == "auto":
        trainer = replace(trainer, precision=_precision_of(trainer.accelerator))
    return replace(config, trainer=trainer)


def _check_compilers(accelerator: str) -> None:
    """Refuse `compile` where `torch.compile` would fail at the first step, after the corpus has been built."""
    has_cuda = accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    has_mps = accelerator == "mps" or (accelerator == "auto" and not has_cuda and torch.backends.mps.is_available())
    if has_mps or accelerator == "tpu":
        raise UserError(
            f"compile is true with trainer.accelerator {accelerator!r}, and works on CUDA devices and CPUs: use "
            "compile=false"
        )
    if has_cuda and torch.cuda.get_device_capability() < (7, 0):
        raise UserError("compile is true, and needs a GPU of compute capability 7.0 or more: use compile=false")
    cxx = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if has_cuda and importlib.util.find_spec("triton") is None:
        missing = "Triton, which is not installed: type pip install triton"
    elif not has_cuda and sys.platform != "win32" and shutil.which(cxx) is None:
        missing = f"a C++ compiler, and there is no {cxx}: install it, let the variable CXX name another"
    elif not has_cuda and not header.exists():
        missing = f"Python's headers, and there is no {header}: install them (python3-dev)"
    else:
        return
    raise UserError(f"compile is true, and needs {missing}, or use compile=false")


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


def keep_freed_memory() -> None:
    """Have this process keep freed blocks of up to 40 MiB for itself; does nothing without the GNU C library.

    That library asks the system for each large block and gives it back when it is freed; a training step on a CPU then
    spends up to half of its time on the system's clearing of pages that it had a moment ago.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    if not libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BLOCK):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_OF_OLDER_LIBRARIES)
    libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)
