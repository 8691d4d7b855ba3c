"""What is measured: the works, at full size and at a toy one; every number of a model comes from `conf/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

CONF = Path(__file__).parents[2] / "conf"
Request = dict[str, Any]
"""A work as the sides read it; `work` makes it."""

TOY = {"n_layer": 2, "d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64}


def settings(path: str) -> dict[str, Any]:
    """Return what `conf/PATH.yaml` sets, on top of what it is laid upon."""
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
    """Return the settings of `conf/model/NAME.yaml` without dropout.

    Args:
        name: of the model.
        quick: whether its sizes are a toy's, whatever `changes` say.
        attention: the implementation; None: the model's own.
        changes: of settings.
    """
    values = settings(f"model/{name}") | {"dropout": 0.0, "dropatt": 0.0} | changes
    return values | (TOY if quick else {}) | ({} if attention is None else {"attention": attention})


def work(task: str, model: dict[str, Any], **changes: Any) -> Request:
    """Return the description of a work: `training`, `evaluation` or `generation`; the model's `mem_len` is its own."""
    defaults = {
        "task": task,
        "model": model,
        "vocab_size": 256,
        "ids": "uniform",  # how tokens are drawn
        "precision": "float32",  # or bfloat16: autocast; of our streaming, "bfloat16 weights": the model itself is
        "batch_size": 1,
        "segment_len": 1,
        "mem_len": 0,
        "clamp_len": None,
        "same_length": False,
        "threads": 1,
        "seed": 1111,
    }
    assert changes.keys() <= defaults.keys(), f"a work has no {changes.keys() - defaults.keys()}"
    request = defaults | changes
    return request | {"model": model | {"mem_len": request["mem_len"]}}


def sizes_in_words(request: Request) -> str:
    """Return a description of a work for people."""
    model, lanes = request["model"], request["batch_size"]
    ids = ", ids drawn as 1 / rank" if request["ids"] == "zipf" else ""
    segment = 1 if request["task"] == "generation" else request["segment_len"]
    return (
        f"{model['kind']}, {model['n_layer']} layers, D {model['d_model']}, {model['n_head']} x {model['d_head']}, "
        f"F {model['d_inner']:,}, V {request['vocab_size']:,}{ids}, T {segment}, "
        f"M {request['mem_len']:,}, {lanes} lane{'s' if lanes > 1 else ''}"
    )
