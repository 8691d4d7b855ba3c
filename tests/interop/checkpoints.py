"""Checkpoints as training leaves them, made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from transformer_xl.interop.native import CHECKPOINT_FORMAT
from transformer_xl.model.base import LanguageModel
from transformer_xl.settings import plain


def checkpoint_of(model: LanguageModel, **changes: Any) -> dict[str, Any]:
    """Plain containers and tensors, among much that only a resume needs."""
    return {
        "format_version": CHECKPOINT_FORMAT,
        "config": {"seed": 1, "model": plain(model.config)},
        "vocabulary": model.vocabulary.to_json(),
        "state_dict": {f"model.{name}": tensor for name, tensor in model.state_dict().items()},
        "optimizer_states": [{"step": torch.tensor(3.0)}],
        "global_step": 3,
        **changes,
    }


def write_checkpoint(path: Path, model: LanguageModel, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(checkpoint_of(model, **changes), path)
    return path
