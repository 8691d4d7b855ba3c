"""A run's own configuration: written to its folder, read back, and what a resume lays on it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import ConfigDict

from transformer_xl.config import Config, EvalConfig, LoggerConfig, RecipeConfig, WandbConfig
from transformer_xl.data_config import CorpusConfig, Data, DataConfig, StoredConfig, tokenizers
from transformer_xl.errors import UserError, naming_file
from transformer_xl.resume_rules import refusal
from transformer_xl.settings import Seed, Settings, by_kind, parse, plain, replace

_OF_OLDER_RUNS: dict[str, object] = {"compile": False, "callbacks.memory_gain.max_tokens": 0}
"""What runs did before there was a setting for it, which their folders therefore lack."""


class SavedTrainer(Settings):
    """What is read of a run's trainer."""

    model_config = ConfigDict(extra="ignore")

    precision: int | str | None
    fast_dev_run: bool | int


class SavedModel(Settings):
    """What is read of a run's network; its checkpoint holds the whole."""

    model_config = ConfigDict(extra="ignore")

    mem_len: int


class SavedConfig(Settings):
    """What evaluation, scoring and generation read of a run's configuration, whichever version wrote the rest."""

    model_config = ConfigDict(extra="ignore")

    seed: Seed
    name: str | None
    init_from: str | None
    model: SavedModel
    recipe: RecipeConfig
    data: Data
    eval: EvalConfig
    trainer: SavedTrainer
    logger: Annotated[LoggerConfig, by_kind("logger", LoggerConfig, {"none": LoggerConfig, "wandb": WandbConfig})]


def saved_config(folder: Path) -> SavedConfig:
    """Read what a command about a trained model needs of its run's configuration.

    Raises:
        UserError: the file is damaged.
    """
    saved = parse(SavedConfig, read_config(folder))
    return replace(saved, data=expanded_data(saved.data))


def refuse_changes(folder: Path, config: Config, *, is_branch: bool) -> None:
    """Refuse settings that differ from a run's own where this command may not change them.

    Args:
        folder: of the run, which has begun.
        config: what the command asks for.
        is_branch: whether it becomes another run.

    Raises:
        UserError: the settings, with both values.
    """
    saved, asked = _flat(plain(expanded(parse(Config, read_config(folder))))), _flat(plain(config))
    changed = {key: value for key, value in asked.items() if value != saved.get(key, value)}
    problems = [
        f"{key} is {value!r} and was {saved[key]!r}, {reason}"
        for key, value in changed.items()
        if (reason := refusal(key, is_branch=is_branch)) is not None
    ]
    problems = [problem for problem in problems if ".kind is" in problem] or problems
    if problems:
        raise UserError("; ".join(problems))


def continued_config(folder: Path, composed: Config, *, given: Collection[str]) -> Config:
    """Give a run's own configuration for the command that started it, or for one that changes a little.

    Args:
        folder: of the run.
        composed: what the command composes.
        given: the dotted keys and groups that it names itself; another difference that a resume could make is none.

    Raises:
        UserError: the command is that of another run.
    """
    saved = plain(expanded(parse(Config, read_config(folder))))
    if "logger" in given and composed.logger.kind != saved["logger"]["kind"]:
        saved["logger"] = plain(composed.logger)  # another one has other settings
    asked = _flat(plain(replace(composed, resume=None)))
    problems = []
    for key, was in _flat(saved).items():
        value = asked.get(key, was)
        if value == was or (key == "trainer.precision" and value == "auto"):
            continue
        if refusal(key, is_branch=False) is not None:
            problems.append(f"{key} is {value!r} and was {was!r}")
        elif key in given:
            _lay(saved, key, value)
    problems = [problem for problem in problems if ".kind is" in problem] or problems
    if problems:
        raise UserError(
            f"{folder} is another run than this command's: {'; '.join(problems)}: repeat the command that started it, "
            "take its own settings by resume=RUN_FOLDER in place of resume=auto, or start a new run by another name"
        )
    return replace(expanded(parse(Config, saved)), resume=None)


def _flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in node.items():
        leaves |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return leaves


def _lay(node: dict[str, Any], key: str, value: object) -> None:
    *groups, name = key.split(".")
    for group in groups:
        node = node[group]
    node[name] = value


def read_config(folder: Path) -> dict[str, Any]:
    """Read a run folder's `config.yaml` as plain containers, with settings that it is too old to have."""
    try:
        saved = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{folder / 'config.yaml'} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(saved, dict):
        raise UserError(f"{folder / 'config.yaml'} is damaged: it holds no settings")
    return _with_newer_settings(saved)


def _with_newer_settings(saved: dict[str, Any]) -> dict[str, Any]:
    """Add the settings that have come since a run was started; each as runs did before."""
    for key, value in _OF_OLDER_RUNS.items():
        node: Any = saved
        *groups, name = key.split(".")
        for group in groups:
            node = node.setdefault(group, {}) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.setdefault(name, value)
    return saved


def write_config(config: Config, folder: Path) -> None:
    """Write the resolved configuration to the run folder."""
    temporary = folder / "config.yaml.tmp"
    text = yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)
    with naming_file(temporary):
        temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, folder / "config.yaml")


def expanded(config: Config) -> Config:
    """Replace a leading `~` in paths by the home folder."""
    return replace(config, data=expanded_data(config.data))


def expanded_data(data: DataConfig) -> DataConfig:
    """Replace a leading `~` in a corpus's paths by the home folder."""
    if isinstance(data, CorpusConfig) and data.tokenizer not in tokenizers():
        path = os.path.expanduser(data.tokenizer)
        if os.path.exists(path):  # a resume may come from another folder
            data = replace(data, tokenizer=os.path.abspath(path))
    for name in ("path", "dir", "cache_dir", "vocabulary"):
        value = getattr(data, name, None)
        if value is not None:
            data = replace(data, **{name: os.path.expanduser(value)})
    return data


def without_rebuild(config: Config) -> Config:
    """Give the configuration of what goes on with token files that are ready."""
    data = config.data
    return replace(config, data=replace(data, rebuild=False)) if isinstance(data, StoredConfig) else config
