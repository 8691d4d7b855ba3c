"""A configuration composed as `train.py` composes it, for commands that start no run and make no folder of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from transformer_xl.commands import folders, literals, mistakes, sweep
from transformer_xl.config import Config
from transformer_xl.errors import UserError
from transformer_xl.run_config import expanded
from transformer_xl.settings import parse

_CONFIG_NAME = "train"


def shipped_config_dir() -> Path:
    """Give the project's `conf/`: in the installed package, or in the checkout."""
    packaged = Path(__file__).parents[1] / "conf"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "conf"


def compose(arguments: Sequence[str]) -> Config:
    """Give the configuration that `train.py` would have with these settings.

    Args:
        arguments: as the user typed them.

    Raises:
        UserError: an argument is no setting or choice, names several values, or refers to nothing.
    """
    folders.register_resolvers()
    overrides = literals.quote_literals(list(arguments))
    config_dir = shipped_config_dir().absolute()
    try:
        _require_one_run(overrides, config_dir)
        composed = _composed(overrides, config_dir)
        mistakes.resolve(composed)
    except (HydraException, OmegaConfBaseException) as error:
        sentence = mistakes.sentence_of(error) or mistakes.explain(
            error,
            config_name=_CONFIG_NAME,
            config_dir=config_dir,
            extra_dirs=[],
            overrides=overrides,
            multirun=False,
            instead=None,
        )
        if sentence is None:
            raise
        raise UserError(sentence) from error
    # as `build.typed_config` does, which would load the frameworks
    return expanded(parse(Config, OmegaConf.to_container(composed, resolve=True)))


def _require_one_run(overrides: list[str], config_dir: Path) -> None:
    for override in OverridesParser.create().parse_overrides(overrides):
        line = str(override.input_line)
        if override.is_sweep_override():
            raise UserError(f"{literals.as_typed(line)} names several values, and must name one: this is no sweep")
        if sweep.overrides_of_experiments([line], config_dir, is_job=False):
            raise UserError(f"{line} is a sweep over several runs: leave it out, and name one of its corpora by data=")


def _composed(overrides: list[str], config_dir: Path) -> DictConfig:
    with hydra.initialize_config_dir(config_dir=str(config_dir), version_base=mistakes.VERSION_BASE):
        composed = hydra.compose(_CONFIG_NAME, overrides, return_hydra_config=True)
        choices = {group: choice for group, choice in composed.hydra.runtime.choices.items() if choice}
        mistakes.check_choices({group: choice for group, choice in choices.items() if not group.startswith("hydra/")})
    with flag_override(composed, ["struct", "readonly"], False):
        del composed["hydra"]  # looking up its run.dir would make the folder of a run
    return composed
