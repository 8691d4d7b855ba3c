"""The configuration of a run: composed, of a trained model's network, or the run's own under a resume's command."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, flag_override

from transformer_xl.commands.call import Call, library_errors_in_one_line, put, read
from transformer_xl.config import Config
from transformer_xl.errors import UserError
from transformer_xl.run_folder import AUTO, config_of, read_identity, slug
from transformer_xl.settings import parse, read_settings


def compose(*overrides: str, config_dir: str | os.PathLike[str] | None = None, plugins: Sequence[str] = ()) -> Config:
    """Return the validated, frozen configuration that `train.py` has with these settings.

    Args:
        overrides: as on the command line: `group=choice` and `key=value`.
        config_dir: a folder with further choices, as of `--config-dir`.
        plugins: files or modules that register parts of one's own.

    Raises:
        UserError: all that is wrong, each part naming a setting.
    """
    added = [] if config_dir is None else [f"--config-dir={os.fspath(config_dir)}"]
    call = read("train", ["train.py", *added, f"plugins=[{','.join(plugins)}]", *overrides])
    if call.is_sweep or call.shows:
        raise UserError(f"{' '.join(overrides)} is a sweep or a flag, and one configuration is asked for")
    return configure(call)[0]


def configure(call: Call) -> tuple[Config, Mapping[str, str]]:
    """Return the configuration of a run, and group -> choice: composed, or the run's own where `resume=` names it.

    Raises:
        UserError: all that is wrong, each part naming a setting.
    """
    resume, own = call.literals().get("resume"), call.folder or Path("outputs", slug(call.literals().get("name", "")))
    if resume not in (None, AUTO):
        return _of_run(call, Path(os.path.expanduser(str(resume))).absolute())
    if resume == AUTO and (own / "config.yaml").is_file():
        return _of_run(call, own)
    composed = call.compose()
    chosen = composed.hydra.runtime.choices.items()
    choices = {group: choice for group, choice in chosen if choice and not group.startswith("hydra/")}
    source = call.literals().get("init_from") or composed.get("init_from")
    if source is None or "model" in call.given:
        return parse(Config, call.values(composed)), choices
    return _from_source(call, composed, str(source)), choices


def _from_source(call: Call, composed: DictConfig, source: str) -> Config:
    """Return the configuration with the network and tokenizer of a trained model."""
    from transformer_xl import init_from
    from transformer_xl.interop.load import load_model  # torch takes seconds, which `--help` need not wait for

    asked: Any = OmegaConf.to_container(composed.model, resolve=True)
    model = load_model(source)
    with flag_override(composed, ["struct", "readonly"], False):
        composed.model = init_from.model_settings(model, asked, given=call.given)
    return init_from.with_tokenizer(parse(Config, call.values(composed)), model, given=call.given)


def _of_run(call: Call, folder: Path) -> tuple[Config, Mapping[str, str]]:
    """Lay a command on the configuration of the run that it goes on with; only the command may hold references."""
    if not (folder / "config.yaml").is_file():
        raise UserError(f"resume must be the folder of a run, and there is no {folder / 'config.yaml'}")
    config_of(folder)  # what is wrong with the file itself names it
    saved = read_settings(folder / "config.yaml")
    identity = read_identity(folder)
    choices = {} if identity is None else identity.choices
    parsed = [override for override in call.parsed() if override.key_or_group not in ("experiment", "row", "task")]
    for override in sorted(parsed, key=lambda one: "." in one.key_or_group):  # groups before what is in them
        group, value = override.key_or_group, override.value()
        if override.is_sweep_override() or override.is_delete():
            raise UserError(f"{override.input_line} must give one value to one setting here")
        key, *inner = group.split("/")  # the position is a group of the model's
        old = saved.get(key) if not inner else saved[key].get(inner[0])
        if isinstance(old, dict) and isinstance(value, str):
            if value == old.get("kind") or (value == choices.get(group) and key != "logger"):
                continue  # the logger is a choice that each resume may change
            value = call.values(replace(call, overrides=[f"{group}={value}"]).compose())[key]
            value = value if not inner else value[inner[0]]
        if (key, value) != ("trainer.precision", "auto"):  # which the run has settled
            put(saved, group.replace("/", "."), value)
    keys = [override.key_or_group for override in parsed if "${" in str(override.input_line)]
    with library_errors_in_one_line():
        looked_up = {key: OmegaConf.select(OmegaConf.create(saved), key) for key in keys}
    for key, value in (looked_up | call.literals()).items():
        if not key.startswith("hydra."):
            put(saved, key, value)
    return parse(Config, saved), choices
