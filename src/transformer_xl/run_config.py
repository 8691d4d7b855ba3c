"""A run's own configuration: written to its folder, read back, and what a resume lays on it."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from transformer_xl.config import Config
from transformer_xl.data_config import TOKENIZERS, CorpusConfig, StoredConfig
from transformer_xl.errors import UserError
from transformer_xl.parsing import nearest, parse

RESUMABLE = (
    *("trainer.", "callbacks.", "logger."),
    *("data.path", "data.dir", "data.cache_dir", "data.download", "data.rebuild"),
)
"""Settings that a resume may change, or how their names begin; everything else decides what the next loss is."""

DECIDES_THE_LOSS = (
    "trainer.precision",
    "trainer.accumulate_grad_batches",
    "trainer.limit_train_batches",
    "trainer.overfit_batches",
    "trainer.gradient_clip_val",
    "trainer.gradient_clip_algorithm",
    "trainer.fast_dev_run",
    "trainer.barebones",
)
"""The exceptions among those."""


def resumed_config(folder: Path, overrides: dict[str, object]) -> Config:
    """Read a run's own configuration and lay on it what the command names.

    Raises:
        UserError: an override names no setting, or one that a resume may not change.
    """
    saved = read_config(folder)
    problems = []
    for key, value in overrides.items():
        node: Any = saved
        *groups, name = key.split(".")
        for group in groups:
            node = node.get(group) if isinstance(node, dict) else None
        if not isinstance(node, dict) or name not in node:
            problems.append(f"{key} is not a setting of {folder} ({nearest(key, _dotted(saved))})")
        elif isinstance(node[name], dict):
            if key == "logger" and value == "none":
                node[name] = {"kind": "none"}
            elif value != node[name].get("kind"):
                problems.append(
                    f"{key}={value} is chosen when a run starts, and a resume may not change it: leave it out"
                )
        elif key == "trainer.precision" and value == "auto":
            continue
        elif node[name] != value and (not key.startswith(RESUMABLE) or key in DECIDES_THE_LOSS):
            problems.append(
                f"{key} is {value!r} and was {node[name]!r}, which a resume may not change: start a new run"
            )
        else:
            node[name] = value
    if problems:
        raise UserError("; ".join(problems))
    return replace(expanded(parse(Config, saved)), resume=str(folder))


def _dotted(node: dict[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for name, value in node.items():
        keys.append(f"{prefix}{name}")
        if isinstance(value, dict):
            keys += _dotted(value, f"{prefix}{name}.")
    return keys


def read_config(folder: Path) -> dict[str, Any]:
    """Read a run folder's `config.yaml` as plain containers."""
    try:
        saved = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{folder / 'config.yaml'} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(saved, dict):
        raise UserError(f"{folder / 'config.yaml'} is damaged: it holds no settings")
    return saved


def write_config(config: Config, folder: Path) -> None:
    """Write the resolved configuration to the run folder."""
    temporary = folder / "config.yaml.tmp"
    text = yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True)
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, folder / "config.yaml")


def expanded(config: Config) -> Config:
    """Replace a leading `~` in paths by the home folder."""
    data = config.data
    if isinstance(data, CorpusConfig) and data.tokenizer not in TOKENIZERS:
        path = os.path.expanduser(data.tokenizer)
        if os.path.exists(path):  # a resume may come from another folder
            data = replace(data, tokenizer=os.path.abspath(path))
    for name in ("path", "dir", "cache_dir", "vocabulary"):
        value = getattr(data, name, None)
        if value is not None:
            data = replace(data, **{name: os.path.expanduser(value)})
    return replace(config, data=data)


def without_rebuild(config: Config) -> Config:
    """Give the configuration of what goes on with token files that are ready."""
    data = config.data
    return replace(config, data=replace(data, rebuild=False)) if isinstance(data, StoredConfig) else config
