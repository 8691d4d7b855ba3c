"""What `--help` shows of a command's settings: the lines of its file in `conf/`, with their comments."""

from __future__ import annotations

from omegaconf import OmegaConf

from transformer_xl.commands.composing import shipped_config_dir

_NOT_FOR_PEOPLE = ("defaults:", "recipe:", "hydra:")
"""Groups of settings that a user has no use for."""


def register_resolvers() -> None:
    """Make known `${settings_of:NAME}` and `${choices_of:GROUP}`."""
    for name, resolver in {"settings_of": settings_of, "choices_of": choices_of}.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def settings_of(name: str) -> str:
    """Give the settings of `conf/NAME.yaml` as they stand there; what has to be given says so."""
    lines = (shipped_config_dir() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    shown, is_shown = [], False
    for line in lines:
        if line and not line.startswith((" ", "#")):
            is_shown = not line.startswith(_NOT_FOR_PEOPLE)
        if is_shown:
            shown.append(line.replace("???       ", "(required)"))
    return "\n".join(shown).strip()


def choices_of(group: str) -> str:
    """Give the choices of a group."""
    return ", ".join(sorted(path.stem for path in (shipped_config_dir() / group).glob("*.yaml")))
