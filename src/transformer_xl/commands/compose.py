"""The configuration of a run: composed, of a trained model's network, or the run's own under a resume's command."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, flag_override

from transformer_xl.commands.call import Call, put, read
from transformer_xl.config import Config
from transformer_xl.errors import UserError
from transformer_xl.run_folder import AUTO, config_of, expanded, read_config, read_identity, slug
from transformer_xl.settings import parse


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
    resume = call.literals().get("resume")
    if resume not in (None, AUTO):
        values, choices = _of_run(call, str(resume))
        return expanded(parse(Config, values)), choices
    composed = call.compose()
    chosen = composed.hydra.runtime.choices.items()
    choices = {group: choice for group, choice in chosen if choice and not group.startswith("hydra/")}
    source = call.literals().get("init_from") or composed.get("init_from")
    if source is None or "model" in call.given:
        return expanded(parse(Config, call.values(composed))), choices
    return _from_source(call, composed, str(source)), choices


def _from_source(call: Call, composed: DictConfig, source: str) -> Config:
    """Return the configuration with the network and tokenizer of a trained model, or of the run that it began."""
    from transformer_xl import init_from
    from transformer_xl.interop.load import load_model  # torch takes seconds, which `--help` need not wait for

    asked = OmegaConf.to_container(composed.model, resolve=True)
    assert isinstance(asked, dict)
    named = {str(name): value for name, value in asked.items()}
    literals = call.literals()
    own = call.folder or Path("outputs", slug(literals.get("name", "")))
    model = None
    if literals.get("resume") == AUTO and (own / "config.yaml").is_file():
        settings = read_config(own)["model"] | {key: named[key] for key in named if f"model.{key}" in call.given}
    else:
        model = load_model(source)
        settings = init_from.model_settings(model, named, given=call.given, init_from=source)
    with flag_override(composed, ["struct", "readonly"], False):
        composed.model = settings
    config = expanded(parse(Config, call.values(composed)))
    return config if model is None else init_from.with_tokenizer(config, model, given=call.given)


def _of_run(call: Call, resume: str) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Lay a command on the configuration of the run that it goes on with, which OmegaConf never reads."""
    folder = Path(os.path.expanduser(resume)).absolute()
    if not resume or not (folder / "config.yaml").is_file():
        raise UserError(f"resume={resume} must be the folder of a run, and there is no {folder / 'config.yaml'}")
    config_of(folder)  # what is wrong with the file itself names it
    saved = read_config(folder)
    identity = read_identity(folder)
    choices = {} if identity is None else identity.choices
    parsed = call.parsed()
    for override in sorted(parsed, key=lambda one: "." in one.key_or_group):  # groups before what is in them
        key, value = override.key_or_group, override.value()
        if override.is_sweep_override() or override.is_delete():
            raise UserError(f"{override.input_line} must give one value to one setting here")
        old = saved.get(key)
        if isinstance(old, dict) and isinstance(value, str):
            if value in (old.get("kind"), choices.get(key)):
                continue
            value = call.values(replace(call, overrides=[f"{key}={value}"]).compose())[key]
        if (key, value) != ("trainer.precision", "auto"):  # which the run has settled
            put(saved, key, value)
    for key, value in call.literals().items():
        if not key.startswith("hydra."):
            put(saved, key, value)
    return saved, choices
