"""Whether the parts of a checkpoint are those that the run itself would save: told before training starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch import Trainer
from torch import Tensor

from transformer_xl.config import Config
from transformer_xl.errors import UserError, first_line
from transformer_xl.model.base import LanguageModel
from transformer_xl.model.memory import SlotMemory
from transformer_xl.training.module import LanguageModule
from transformer_xl.training.optim import make_optimizer
from transformer_xl.training.saved_memory import unpacked

_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc|\.dev|\.post)\d+)*")


def check_fits(
    path: Path, checkpoint: Mapping[str, Any], *, config: Config, module: LanguageModule, trainer: Trainer
) -> None:
    """Refuse a checkpoint whose parts are not those that this run itself would save.

    Args:
        path: of the checkpoint, for messages.
        checkpoint: its contents.
        config: of the run.
        module: made, not yet trained.
        trainer: made, not yet used.

    Raises:
        UserError: the first part that does not fit, and how.
    """
    try:
        _compare(dict(module.state_dict()), checkpoint["state_dict"], "state_dict")
        _check_average(checkpoint, module.model)
        _check_optimizer(checkpoint["optimizer_states"], module.configure_optimizers(), config)
        _compare(module.schedule.state_dict(), checkpoint["schedule"], "schedule")
        if checkpoint["train_memory"] is not None:
            _check_memory(checkpoint["train_memory"], module.model, config)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            name = callback.state_key
            if callback.state_dict():
                _compare(callback.state_dict(), checkpoint["callbacks"].get(name), f"callbacks.{name}")
        scaler = trainer.precision_plugin
        if scaler.state_dict():
            name = type(scaler).__qualname__
            _compare(scaler.state_dict(), checkpoint.get(name), name)
        _check_loops(checkpoint, trainer)
        if checkpoint["lr_schedulers"]:
            raise _MisfitError("lr_schedulers is not empty")
    except _MisfitError as error:
        raise UserError(f"{path} cannot be resumed: its {error}") from error


class _MisfitError(Exception):
    """Says which part does not fit, and how."""


def _compare(expected: Any, found: Any, where: str) -> None:
    """Compare what a part is made of, not its values; lists and what a fresh run leaves out are not looked into."""
    if isinstance(expected, Tensor):
        if not isinstance(found, Tensor) or found.is_floating_point() != expected.is_floating_point():
            raise _MisfitError(f"{where} is {_named(found)}, and must be a tensor of {expected.dtype}")
        if found.shape != expected.shape:
            raise _MisfitError(f"{where} has shape {tuple(found.shape)}, and must have {tuple(expected.shape)}")
    elif isinstance(expected, dict):
        if not isinstance(found, dict):
            raise _MisfitError(f"{where} is {_named(found)}, and must be a table")
        for name, value in expected.items():
            if name not in found:
                raise _MisfitError(f"{where} lacks {name}")
            _compare(value, found[name], f"{where}.{name}")
    elif expected is not None and _kind(found) is not _kind(expected):
        raise _MisfitError(f"{where} is {_named(found)}, and must be {_named(expected)}")


def _kind(value: object) -> type:
    return float if type(value) is int else type(value)  # either may be written for the other


def _named(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _check_loops(checkpoint: Mapping[str, Any], trainer: Trainer) -> None:
    version, where = checkpoint["pytorch-lightning_version"], "loops.fit_loop"
    if not _VERSION.fullmatch(version):
        raise _MisfitError(f"pytorch-lightning_version is {version!r}")
    if version == lightning.__version__:  # the others are Lightning's to translate
        _compare(trainer.fit_loop.state_dict(), checkpoint["loops"].get("fit_loop"), where)
        loaders = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader")
        if not isinstance(loaders, list) or len(loaders) != 1:
            raise _MisfitError(f"{where} holds no position in the text")
        _compare({"format": 1, "batches": 1}, loaders[0], f"{where}.state_dict.combined_loader")


def _check_average(checkpoint: Mapping[str, Any], model: LanguageModel) -> None:
    if "averaged" in checkpoint:
        expected = {"count": 1, "weights": dict(model.named_parameters())}
        _compare(expected, checkpoint["averaged"], "averaged")


def _check_optimizer(states: list[Any], optimizer: torch.optim.Optimizer, config: Config) -> None:
    where = "optimizer_states"
    if len(states) != 1:
        raise _MisfitError(f"{where} has {len(states)} entries, and must have 1")
    expected = optimizer.state_dict()
    _compare({"param_groups": [], "state": {}}, states[0], where)
    groups = states[0]["param_groups"]
    if len(groups) != len(expected["param_groups"]):
        raise _MisfitError(
            f"{where} has {len(groups)} groups of weights, and must have {len(expected['param_groups'])}"
        )
    for number, (group, other) in enumerate(zip(expected["param_groups"], groups, strict=True)):
        _compare(group, other, f"{where} group {number}")
        if list(map(str, other["params"])) != list(map(str, group["params"])):
            raise _MisfitError(f"{where} group {number} has other weights than this model's")
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    state, leaves = states[0]["state"], _state_of_one_weight(config)
    if state and (set(state) != set(range(len(weights))) and leaves):
        raise _MisfitError(f"{where} holds the state of {len(state)} weights, and must hold that of {len(weights)}")
    for number, values in state.items():
        shaped = {
            name: weights[number] if isinstance(value, Tensor) and value.dim() else value
            for name, value in leaves.items()
        }
        _compare(shaped, values, f"{where} of weight {number}")


def _state_of_one_weight(config: Config) -> dict[str, Any]:
    """Let the run's optimizer take a step with a single weight, and see what it keeps of it; SGD may keep nothing."""
    weight = torch.nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.ones(2, 2)
    optimizer = make_optimizer(config.optimizer, [{"params": [weight], "weight_decay": 0.0}], fused=False)
    optimizer.step()
    state: dict[str, Any] = optimizer.state_dict()["state"].get(0, {})
    return state


def _check_memory(state: dict[str, Any], model: LanguageModel, config: Config) -> None:
    where = "train_memory"
    expected = model.empty_memory(config.data.batch_size)
    try:
        memory = unpacked(state)
        slots = memory.rows.shape[2] if isinstance(memory, SlotMemory) else 0
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _MisfitError(f"{where} is no memory: {first_line(error)}") from error
    if type(memory) is not type(expected):
        raise _MisfitError(f"{where} is of kind {memory.kind!r}, and must be of {expected.kind!r}")
    if isinstance(expected, SlotMemory):
        assert isinstance(memory, SlotMemory)
        sizes = list(expected.rows.shape)
        sizes[2] = slots
        expected = expected.with_rows(expected.rows.new_empty(sizes), length_B=expected.length_B)
    _compare(expected.state_dict(), memory.state_dict(), where)
    mem_len, dtype = expected.state_dict()["mem_len"], _floats_of(memory.state_dict())
    if memory.state_dict()["mem_len"] != mem_len or slots > mem_len:
        raise _MisfitError(f"{where} has {slots} slots, and mem_len {memory.state_dict()['mem_len']} and not {mem_len}")
    if dtype not in _types(str(config.trainer.precision)):
        raise _MisfitError(f"{where} is of {dtype}, and trainer.precision is {config.trainer.precision}")
    if isinstance(memory, SlotMemory) and not ((memory.length_B >= 0) & (memory.length_B <= slots)).all():
        raise _MisfitError(f"{where} has lengths beyond its {slots} slots")


def _floats_of(state: Mapping[str, Any]) -> torch.dtype:
    (dtype,) = {value.dtype for value in state.values() if isinstance(value, Tensor) and value.is_floating_point()}
    return dtype


def _types(precision: str) -> set[torch.dtype]:
    """Give the types that a memory may have."""
    prefix, _, kind = precision.partition("-")
    narrow = {"64": torch.float64, "bf16": torch.bfloat16, "16": torch.float16}.get(prefix, torch.float32)
    return {narrow} if kind == "true" else {narrow, torch.float32}
