"""Transformer-XL: language models with recurrent memory, on PyTorch Lightning, Hydra and Weights & Biases."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_xl.commands.compose import compose
    from transformer_xl.commands.train import train
    from transformer_xl.data.datamodule import LaneDataModule
    from transformer_xl.inference.generate import generate
    from transformer_xl.interop.load import load_model
    from transformer_xl.interop.native import save_model
    from transformer_xl.model.kernels import relative_attention
    from transformer_xl.model.streaming import stream
    from transformer_xl.registry import register
    from transformer_xl.training.module import LanguageModule

__all__ = [
    "LaneDataModule",
    "LanguageModule",
    "compose",
    "generate",
    "load_model",
    "register",
    "relative_attention",
    "save_model",
    "stream",
    "train",
]

_HOMES = {
    "LaneDataModule": "transformer_xl.data.datamodule",
    "LanguageModule": "transformer_xl.training.module",
    "compose": "transformer_xl.commands.compose",
    "generate": "transformer_xl.inference.generate",
    "load_model": "transformer_xl.interop.load",
    "register": "transformer_xl.registry",
    "relative_attention": "transformer_xl.model.kernels",
    "save_model": "transformer_xl.interop.native",
    "stream": "transformer_xl.model.streaming",
    "train": "transformer_xl.commands.train",
}


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])


def __getattr__(name: str) -> Any:
    # only what is used is imported: torch takes a second, which `--help` need not wait for
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
