"""What is measured: the works, at full size and at a toy one; every number of a model comes from `conf/`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import yaml

from transformer_xl.model.base import make_model
from transformer_xl.model.transformer import Transformer
from transformer_xl.model_config import parse_model

CONF = Path(__file__).parents[2] / "conf"
Request = dict[str, Any]
"""A work as the sides read it; `work` says of what it is made."""

TOY = {"n_layer": 2, "d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64}
ROPE_INNER = 1376
"""Three matrices of this width have as many parameters as two of 2,048 (0.8 % more: it is a multiple of 32)."""


def settings(path: str) -> dict[str, Any]:
    """Read `conf/PATH.yaml`, and what it is laid upon."""
    values = yaml.safe_load((CONF / f"{path}.yaml").read_text(encoding="utf-8"))
    group = path.rpartition("/")[0]
    laid: dict[str, Any] = {}
    for base in values.pop("defaults", []):
        if isinstance(base, dict):
            ((part, choice),) = base.items()
            part = part.removeprefix("override ")
            laid[part] = settings(f"{group}/{part}/{choice}")
        elif base != "_self_":
            laid |= settings(f"{group}/{base}")
    for name, value in values.items():
        known = laid.get(name)
        laid[name] = known | value if isinstance(known, dict) and isinstance(value, dict) else value
    return laid


def model_settings(name: str, *, quick: bool, attention: str | None, **changes: Any) -> dict[str, Any]:
    """Give the settings of `conf/model/NAME.yaml` without dropout.

    Args:
        name: of the model.
        quick: whether its sizes are a toy's, whatever `changes` say.
        attention: the implementation, where a model has several; None: its own.
        changes: of settings.
    """
    values = settings(f"model/{name}") | {"dropout": 0.0, "dropatt": 0.0} | changes
    if quick:
        values |= TOY
    if attention is not None and "attention" in values:
        values["attention"] = attention
    return values


def work(task: str, model: dict[str, Any], **changes: Any) -> Request:
    """Describe a work; the model's `mem_len` is the work's.

    Args:
        task: `training`, `evaluation`, `generation`; of our models alone: `text`, `window`, `products`, `peak`.
        model: its settings.
        changes: of the others, as below.
    """
    defaults = {
        "task": task,
        "model": model,
        "vocab_size": 256,
        "ids": "uniform",  # how tokens are drawn
        "cluster_shares": [1.0],  # of the vocabulary's clusters among them
        "precision": "float32",  # or bfloat16: autocast; of our streaming, "bfloat16 weights": the model itself is
        "batch_size": 1,
        "segment_len": 1,
        "mem_len": 0,
        "clamp_len": None,
        "same_length": False,
        "fill": 0,  # generation: tokens read before the first is made
        "made": 0,  # generation: tokens made before the first that is measured
        "text_len": 0,  # text: tokens of a step
        "threads": 1,
        "seed": 1111,
    }
    assert changes.keys() <= defaults.keys(), f"a work has no {changes.keys() - defaults.keys()}"
    request = defaults | changes
    return request | {"model": model | {"mem_len": request["mem_len"]}}


def zipf_shares(edges: tuple[int, ...]) -> list[float]:
    """Give the share of each cluster among ids that are drawn with probability proportional to 1 / (id + 1)."""
    chances = 1 / torch.arange(1, edges[-1] + 1, dtype=torch.float64)
    whole = chances.sum()
    return [float(chances[start:stop].sum() / whole) for start, stop in pairwise(edges)]


def shape_of(request: Request) -> Transformer:
    """Make the model without memory for its weights: for its counts."""
    with torch.device("meta"):
        model = make_model(parse_model(request["model"]), vocab_size=request["vocab_size"])
    assert isinstance(model, Transformer)
    return model


def training_flops(request: Request) -> int:
    """Count the useful operations of a training step."""
    flops = shape_of(request).flops(
        batch_size=request["batch_size"],
        segment_len=request["segment_len"],
        cluster_shares=request["cluster_shares"],
    )
    return flops.step


def reading_flops(request: Request) -> int:
    """Count the operations of reading one segment without memory: of a window, or of a whole text at once."""
    return _forward(request, segment_len=request["segment_len"], mem_len=0)[0]


def streaming_flops(request: Request, *, keys: int) -> int:
    """Count the operations of one streamed token that sees `keys` keys, itself included.

    Keys, values and projected encodings of the tokens before it are kept, and not computed again.
    """
    forward, positions, memory = _forward(request, segment_len=1, mem_len=keys - 1)
    return forward - positions - memory


def text_flops(request: Request) -> int:
    """Count the operations of streaming a text of `text_len` tokens, in segments, from its beginning."""
    segment, memory, total = request["segment_len"], request["mem_len"], 0
    for start in range(0, request["text_len"], segment):
        length = min(segment, request["text_len"] - start)
        forward, positions, projected = _forward(request, segment_len=length, mem_len=min(start, memory))
        total += forward - positions - projected
    _, positions, _ = _forward(request, segment_len=segment, mem_len=memory)
    return total + positions


def _forward(request: Request, *, segment_len: int, mem_len: int) -> tuple[int, int, int]:
    """Count a forward pass of one lane, and what of it is projecting positions and memory."""
    model = shape_of(request)
    model.mem_len = mem_len
    flops = model.flops(batch_size=1, segment_len=segment_len, cluster_shares=request["cluster_shares"])
    config, forward = model.config, flops.forward
    matrix = 2 * config.n_layer * config.d_model * config.n_head * config.d_head
    positions = matrix * (mem_len + segment_len) if model.position.has_biases else 0
    return forward, positions, 2 * matrix * mem_len
