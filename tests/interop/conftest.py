"""A tiny model, checkpoints as training leaves them, and an object that harms a careless reader."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import tiny_model_config
from transformer_xl.data.characters import CharTokenizer
from transformer_xl.errors import UserError
from transformer_xl.interop.load import load_model
from transformer_xl.interop.native import CHECKPOINT_FORMAT
from transformer_xl.model.base import LanguageModel, make_model
from transformer_xl.settings import plain

SYMBOLS = "etaoin shrdlu\näß語\0"


@pytest.fixture
def model() -> LanguageModel:
    torch.manual_seed(0)
    vocabulary = CharTokenizer(list(SYMBOLS))
    config = tiny_model_config(dropout=0.1, clamp_len=6, same_length=True, untie_r=True)
    model = make_model(config, vocab_size=vocabulary.size)
    model.vocabulary = vocabulary
    return model


def checkpoint_of(model: LanguageModel, **changes: Any) -> dict[str, Any]:
    """Return plain containers and tensors, among much that only a resume needs."""
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


def refused(path: Path, *words: str) -> None:
    """Check that loading a path ends in an error that names it, and says each of the words."""
    with pytest.raises(UserError, match=re.escape(str(path))) as caught:
        load_model(path)
    for word in words:
        assert word in str(caught.value)


class Hostile:
    """Makes a folder when it is unpickled by a careless reader."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.marker),)
