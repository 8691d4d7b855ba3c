"""Transformer-XL: language models with recurrent memory, on PyTorch Lightning, Hydra and Weights & Biases."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_xl.commands.compose import compose as compose
    from transformer_xl.commands.train import train as train
    from transformer_xl.data.datamodule import LaneDataModule as LaneDataModule
    from transformer_xl.inference.generate import generate as generate
    from transformer_xl.interop.load import load_model as load_model
    from transformer_xl.interop.native import save_model as save_model
    from transformer_xl.model.kernels import relative_attention as relative_attention
    from transformer_xl.model.streaming import stream as stream
    from transformer_xl.registry import register as register
    from transformer_xl.training.module import LanguageModule as LanguageModule

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
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    # only what is used is imported: torch takes a second, which `--help` need not wait for
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
