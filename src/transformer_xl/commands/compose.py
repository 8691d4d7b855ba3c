"""The configuration of a run: composed, of a trained model's network, or the run's own under a resume's command."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from transformer_xl.commands.call import Call, key_of, library_sentence, plain_values, read
from transformer_xl.config import Config
from transformer_xl.errors import UserError
from transformer_xl.run_folder import AUTO
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
    added += [f"plugins=[{','.join(plugins)}]"] if plugins else []
    try:
        call, flags = read("train", ["train.py", *added, *overrides])
        if flags:
            raise UserError(
                f"{' '.join(overrides)} is a sweep or a flag ({flags[-1]}), and one configuration is asked for"
            )
        return configure(call).config
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(library_sentence(error)) from error


class Configured(NamedTuple):
    """A run's configuration, and group -> choice as it was started."""

    config: Config
    choices: Mapping[str, str]


def configure(call: Call) -> Configured:
    """Return the configuration of a run: composed, or the run's own where `resume=` names its folder.

    Raises:
        UserError: all that is wrong, each part naming a setting.
    """
    from transformer_xl.run_folder import expanded

    if call.value("resume") not in (None, AUTO):
        values, choices = _of_run(call, str(call.value("resume")))
        return Configured(expanded(parse(Config, values)), choices)
    composed = call.compose()
    choices, source = call.choices(composed), composed.get("init_from")
    if source is None or "model" in call.given:
        return Configured(expanded(parse(Config, call.values(composed))), choices)
    return Configured(_from_source(call, composed, str(source)), choices)


def _from_source(call: Call, composed: DictConfig, source: str) -> Config:
    """Return the configuration with the network and tokenizer of a trained model, or of the run that it began."""
    from transformer_xl import init_from
    from transformer_xl.interop.load import load_model  # torch takes seconds, which `--help` need not wait for
    from transformer_xl.run_folder import expanded, read_config, slug

    asked = OmegaConf.to_container(composed.model, resolve=True)
    assert isinstance(asked, dict)
    named = {str(name): value for name, value in asked.items()}
    own = call.folder or Path("outputs", slug(str(composed.name)))
    model = None
    if composed.resume == AUTO and (own / "config.yaml").is_file():
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
    from transformer_xl.run_folder import config_of, read_config, read_identity

    folder = Path(os.path.expanduser(resume)).absolute()
    if not resume or not (folder / "config.yaml").is_file():
        raise UserError(f"resume={resume} must be the folder of a run, and there is no {folder / 'config.yaml'}")
    config_of(folder)  # what is wrong with the file itself names it
    saved: dict[str, Any] = read_config(folder)
    identity = read_identity(folder)
    choices = {} if identity is None else identity.choices
    values = plain_values([line for line in call.overrides if not re.match(r"hydra[./]", key_of(line))])
    for key, value in sorted(values.items(), key=lambda item: "." in item[0]):  # groups before what is in them
        node: Any = saved
        *groups, name = key.split(".")
        for group in groups:
            node = node.setdefault(group, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise UserError(f"{key} is not a setting")
        old = node.get(name)
        if isinstance(old, dict) and isinstance(value, str):
            if value in (old.get("kind"), choices.get(key)):
                continue
            value = call.values(replace(call, overrides=[f"{key}={value}"]).compose())[name]
        if (key, value) != ("trainer.precision", "auto"):  # which the run has settled
            node[name] = value
    return saved | {"resume": resume}, choices
