"""A user's mistake in one sentence that names the setting, its value, and what would be right."""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from transformer_xl.commands import literals
from transformer_xl.errors import UserError
from transformer_xl.registry import nearest

VERSION_BASE = "1.3"
EXIT_STATUS = 2
"""Of a command that ends with a mistake."""
_ERRORS_OF_DISKS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO})
_ERRORS_OF_PATHS = _ERRORS_OF_DISKS | frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EILSEQ),
        *(errno.EACCES, errno.EPERM, errno.EINVAL),
    }
)


def tell(sentence: str) -> int:
    """Print a mistake's sentence on standard error; give the exit status that belongs to it."""
    print(f"error: {one_line(sentence)}", file=sys.stderr)
    return EXIT_STATUS


def one_line(text: str) -> str:
    """Write a sentence on one line; lines of code below it, which an empty line sets apart, stay lines."""
    sentence, gap, code = text.partition("\n\n")
    return " ".join(sentence.splitlines()) + gap + code


def check_choices(choices: dict[str, str]) -> None:
    """Refuse a choice that there is not, which Hydra does except where the group is optional."""
    for group, choice in choices.items():
        known = GlobalHydra.instance().config_loader().get_group_options(group.partition("@")[0])
        if isinstance(choice, str) and "/" not in choice and choice.removesuffix(".yaml") not in known:
            raise UserError(f"{group}={choice}: {group} has no choice {choice!r}; {nearest(choice, known)}")


def resolve(config: DictConfig) -> None:
    """Look every value up once, so that what refers to nothing ends here, before the job."""
    try:
        OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise UserError(f"{error.full_key} has no value, and must be given as {error.full_key}=VALUE") from error
    except OmegaConfBaseException as error:
        key = error.full_key or ""
        value = OmegaConf.to_container(config, resolve=False)
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else value
        target = re.search(r"Interpolation key '(.*)' not found", str(error))
        reason = (
            f"{target[1]} is not a setting; {_nearest_key(target[1], _keys(config))}" if target else _first_line(error)
        )
        raise UserError(f"{key} is {value}, which cannot be looked up: {reason}") from error


def sentence_of(error: BaseException) -> str | None:
    """Give the sentence for a mistake that carries its own words, also where Hydra or OmegaConf wrapped it."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, UserError):
            return str(reason)
        if isinstance(reason, OverrideParseException):
            return literals.explain_unreadable(reason.override)
        if isinstance(reason, OSError) and reason.filename is not None and reason.errno in _ERRORS_OF_PATHS:
            path = reason.filename if reason.filename2 is None else reason.filename2
            return f"{path if isinstance(path, int) else os.fsdecode(path)} cannot be used: {reason.strerror}"
        if isinstance(reason, OSError) and reason.errno in _ERRORS_OF_DISKS:
            return f"a file cannot be written: {reason.strerror}"
        wrapped = isinstance(reason, HydraException | OmegaConfBaseException)
        reason = reason.__cause__ or reason.__context__ if wrapped else None
    return None


def explain(
    error: Exception,
    *,
    config_name: str,
    config_dir: Path,
    extra_dirs: list[str],
    overrides: list[str],
    multirun: bool,
    instead: str | None,
) -> str | None:
    """Find the override that Hydra's composition fails at, by composing with more and more of them.

    Args:
        error: what Hydra raised.
        config_name: the main file, without `.yaml`.
        config_dir: where it lies.
        extra_dirs: further folders of choices, from `--config-dir`.
        overrides: in Hydra's grammar.
        multirun: whether a value may be a sweep.
        instead: what to do for several values with a command that has no sweeps; None: it has.

    Returns:
        One sentence; None where the error is not a mistake of the user's.
    """
    with hydra.initialize_config_dir(config_dir=str(config_dir), version_base=VERSION_BASE):
        composition = _Composition(config_name=config_name, extra_dirs=extra_dirs, multirun=multirun, instead=instead)
        for override in composition.groups_first(OverridesParser.create().parse_overrides(overrides)):
            sentence = composition.lay_on(override)
            if sentence is not None:
                return sentence
    if isinstance(error, OmegaConfBaseException):
        return f"{error.full_key}: {_first_line(error)}"
    return _first_line(error) if isinstance(error, HydraException) else None


class _Composition:
    """A configuration composed from the overrides that have proved right."""

    def __init__(self, *, config_name: str, extra_dirs: list[str], multirun: bool, instead: str | None) -> None:
        self.config_name = config_name
        self.multirun = multirun
        self.instead = instead
        self.loader = GlobalHydra.instance().config_loader()
        self.accepted = [
            f"hydra.searchpath=[{literals.quote('file://' + os.path.abspath(folder))}]" for folder in extra_dirs
        ]
        self.config = self._compose([])

    def _compose(self, more: list[str]) -> DictConfig:
        return hydra.compose(self.config_name, [*self.accepted, *more], return_hydra_config=True)

    def groups_first(self, overrides: list[Override]) -> list[Override]:
        return sorted(overrides, key=lambda override: not self._choices(override.key_or_group))

    def _choices(self, group: str) -> list[str]:
        return list(self.loader.get_group_options(group))

    def lay_on(self, override: Override) -> str | None:
        """Add an override; where it fails, give the sentence that says why."""
        line = str(override.input_line)
        if override.is_sweep_override() and not self.multirun:
            return f"{line} names several values: {self._for_several(override.key_or_group)}"
        key = override.get_key_element()
        lines = (
            [f"{key}={value}" for value in override.sweep_string_iterator()] if override.is_sweep_override() else [line]
        )
        for single in lines:
            try:
                config = self._compose([single])
            except Exception as error:
                return self._explain(single, error)
        self.accepted.append(lines[0])
        self.config = config
        return None

    def _for_several(self, key: str) -> str:
        if self.instead is None:
            return f"give -m for a run of each, or {key}=[...] for a list"
        is_list = key in _keys(self.config) and isinstance(OmegaConf.select(self.config, key), ListConfig)
        return f"give {key}=[...] for a list" if is_list else self.instead

    def _explain(self, line: str, error: Exception) -> str:
        override = OverridesParser.create().parse_override(line)
        key, typed = override.key_or_group, literals.as_typed(line)
        value = typed.partition("=")[2]
        if not key:
            return literals.explain_unreadable(typed)
        choices = self._choices(key)
        if choices and value not in choices and not override.is_delete():
            return f"{typed}: {key} has no choice {value!r}; {nearest(value, choices)}"
        known = _keys(self.config)
        if override.is_add() and key in known:
            return f"{typed}: {key} is a setting already; write {key}={value} to give it another value"
        if key not in known and not choices:
            owners = self._choices_with(key)
            near = f"it belongs to {' and '.join(owners)}" if owners else _nearest_key(key, [*known, *self.groups()])
            return f"{typed}: {key} is not a setting; {near}"
        return f"{typed}: {_first_line(error)}"

    def groups(self) -> list[str]:
        return list(self.loader.list_groups(""))

    def _choices_with(self, key: str) -> list[str]:
        """Find the other choices of the key's group that have this key."""
        group = key.partition(".")[0]
        owners = []
        for choice in self._choices(group) if "." in key else []:
            try:
                if key in _keys(self._compose([f"{group}={choice}"])):
                    owners.append(f"{group}={choice}")
            except (HydraException, OmegaConfBaseException):
                continue
        return owners


def _keys(config: DictConfig) -> list[str]:
    keys: list[str] = []

    def collect(node: object, prefix: str) -> None:
        if isinstance(node, dict):
            for name, child in node.items():
                keys.append(f"{prefix}{name}")
                collect(child, f"{prefix}{name}.")

    collect(OmegaConf.to_container(config, resolve=False), "")
    return keys


def _nearest_key(key: str, known: list[str]) -> str:
    own = [name for name in known if not name.startswith("hydra") or key.startswith("hydra")]
    sentence = nearest(key, own)
    if sentence.startswith("known"):
        return nearest(key, sorted({name for name in own if "." not in name}))
    return sentence


def _first_line(error: BaseException) -> str:
    innermost = error
    while innermost.__cause__ is not None:
        innermost = innermost.__cause__
    return str(innermost).strip().partition("\n")[0]
