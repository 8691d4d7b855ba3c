"""One command, read: plugins, literal values, and what Hydra composes of it; a single run makes no folder here."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from transformer_xl import registry
from transformer_xl.errors import UserError, first_line, program
from transformer_xl.registry import nearest
from transformer_xl.settings import Settings, defaults, parse

S = TypeVar("S", bound=Settings)
LITERAL_KEYS = frozenset(
    {"prompt", "prompt_file", "texts", "run", "resume", "init_from", "name"}
    | {"data.path", "data.dir", "data.vocabulary", "data.document_marker"}
)
ALREADY_QUOTED = "--already-quoted"
"""First argument of a sweep's job: its values are in Hydra's grammar, in its further processes too."""
_NO_SWEEPS = {
    "evaluate": "give a list, as in 'eval.mem_len=[0,64]' or 'run=[A,B]'",
    "score": "call this command once for each",
    "generate": "call this command once for each",
}
"""Commands without jobs, and what to do instead."""
_GROUPS = {
    "position": "model/position",
    "model": "model",
    "optimizer": "optimizer",
    "scheduler": "scheduler",
    "corpus": "data",
    "logger": "logger",
}
"""Kinds of parts that are chosen as Hydra's groups."""


@dataclass(frozen=True)
class Call:
    """One command, read.

    Attributes:
        name: of the command, and of its file in `conf/`.
        command: the arguments as the user typed them, the program first.
        config_dir: the folder of `conf/`.
        flags: `--config-dir=` and `plugins=`, which a sweep hands to its jobs.
        overrides: in Hydra's grammar.
    """

    name: str
    command: list[str]
    config_dir: Path
    flags: list[str]
    overrides: list[str]

    @property
    def given(self) -> frozenset[str]:
        """What the command itself names: dotted keys, and groups that it chooses."""
        return frozenset(map(key_of, self.overrides))

    @property
    def folder(self) -> Path | None:
        """The run folder that `hydra.run.dir` names; None: none is named."""
        value = self.value("hydra.run.dir")
        if value is not None and not str(value).strip():
            raise UserError("hydra.run.dir is empty, and must name the folder of the run")
        return None if value is None else Path(str(value)).absolute()

    def value(self, key: str) -> object:
        """Return the value that the command gives to a key; None: it gives none."""
        return plain_values([line for line in self.overrides if key_of(line) == key]).get(key)

    def choices(self, composed: DictConfig) -> dict[str, str]:
        """Return group -> choice of what was composed."""
        chosen = composed.hydra.runtime.choices.items()
        return {group: choice for group, choice in chosen if choice and not group.startswith("hydra/")}

    def compose(self) -> DictConfig:
        """Return what Hydra composes, with its own node `hydra`.

        Keys that are no groups are added where there is none: the settings' classes say best what is wrong with them.
        """
        folders = [self.config_dir, *self._extra_dirs()]
        path = [f"hydra.searchpath=[{','.join(quote(f'file://{folder}') for folder in folders[1:])}]"]
        overrides = [
            f"++{line}"
            if re.match(r"(?!hydra[./])[\w.-]+=", line)
            and not any((folder / key_of(line)).is_dir() for folder in folders)
            else line
            for line in self.overrides
        ]
        for override in OverridesParser.create().parse_overrides(self.overrides):
            if override.is_sweep_override():
                key = override.key_or_group
                several = _NO_SWEEPS.get(self.name, f"give -m for a run of each, or {key}=[...] for a list")
                raise UserError(f"{as_typed(override.input_line)} names several values: {several}")
        try:
            with hydra.initialize_config_dir(config_dir=str(self.config_dir), version_base="1.3"):
                return hydra.compose(self.name, [*path[: len(folders) - 1], *overrides], return_hydra_config=True)
        except ValueError as error:  # of a group without a choice
            raise UserError(first_line(error)) from error

    def _extra_dirs(self) -> list[Path]:
        named = [flag.partition("=")[2] for flag in self.flags if flag.startswith("--config-dir=")]
        return [Path(folder).absolute() for folder in named]

    def values(self, composed: DictConfig) -> dict[str, Any]:
        """Return what Hydra composed as plain containers, all references looked up."""
        with flag_override(composed, ["struct", "readonly"], False):
            composed.pop("hydra", None)
        if "plugins" in composed:
            raise UserError("plugins stands in a YAML file, and is taken from the command line alone: plugins=[FILE]")
        values = OmegaConf.to_container(composed, resolve=True)
        assert isinstance(values, dict)
        for key in _missing(values):
            if key not in self.given:
                raise UserError(f"{key} has no value, and must be given as {key}=VALUE")
        return {str(key): value for key, value in values.items() if key != "rows"}

    def settings(self, cls: type[S]) -> S:
        """Return what the command composes as the settings of a class.

        Raises:
            UserError: all that is wrong, each part naming a setting.
        """
        return parse(cls, self.values(self.compose()))


def read(name: str, command: Sequence[str], *, config_dir: Path | None = None) -> tuple[Call, list[str]]:
    """Read a command line, and import its plugins.

    Args:
        name: of the command.
        command: the program and its arguments.
        config_dir: another folder than the project's `conf/`.

    Returns:
        The call, and the flags and words for which it must be handed to Hydra.

    Raises:
        UserError: a plugin is not there, or what is given excludes each other.
    """
    arguments = list(command[1:])
    is_job = arguments[:1] == [ALREADY_QUOTED]
    plugins = [argument for argument in arguments if argument.startswith("plugins=")]
    arguments = [_without_dashes(argument) for argument in registry.take_plugins(arguments[is_job:])]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for short, flag in (("-cd", "--config-dir"), ("-cp", "--config-path"), ("-cn", "--config-name")):
        parser.add_argument(short, flag)
    known, rest = parser.parse_known_args(arguments)
    conf = Path(known.config_path).absolute() if known.config_path else (config_dir or shipped_config_dir()).absolute()
    overrides = [word for word in rest if not word.startswith("-") and ("=" in word or word.startswith("~"))]
    flags = [word for word in rest if word not in overrides]
    for before, word in zip(["", *rest], rest, strict=False):
        if (word in flags and not word.startswith("-") and not before.startswith("-")) or word.startswith("="):
            raise UserError(f"{word} is no setting: a setting is written key=value, as in {word.strip('=')}=VALUE")
    is_sweep = not {"-m", "--multirun"}.isdisjoint(flags) or "hydra.mode=MULTIRUN" in overrides
    if not is_job:
        overrides = [_quoted(override, in_sweep=is_sweep) for override in overrides]
        _refuse_in_sweep(name, overrides, is_sweep=is_sweep)
    overrides, compares = _with_rows(overrides, [conf, *([Path(known.config_dir)] if known.config_dir else [])])
    call = Call(
        name=known.config_name or name,
        command=list(command),
        config_dir=conf,
        flags=[
            *([f"--config-dir={known.config_dir}"] if known.config_dir else []),
            *plugins,
        ],
        overrides=[f"++{line}" if re.match(r"(trainer|callbacks)\.", line) else line for line in overrides],
    )
    _register_resolvers(conf)
    _store_parts(call)
    return call, [*flags, *(["-m"] if (is_sweep or compares) and "-m" not in flags else [])]


def _without_dashes(argument: str) -> str:
    """Turn `--model.mem_len=64`, as W&B's agent writes it, into a setting."""
    found = re.match(r"--([a-z_]+(\.\w+)+|seed|name)=", argument)
    return argument[2:] if found else argument


def _items(argument: str) -> list[str]:
    value = argument.partition("=")[2].strip()
    value = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    return [item.strip() for item in value.split(",") if item.strip()]


def _quoted(override: str, *, in_sweep: bool) -> str:
    """Write a literal value in Hydra's grammar; in a sweep a list of them stands for a run of each."""
    key, _, value = override.partition("=")
    if key_of(override) not in LITERAL_KEYS:
        return override
    is_list = value.startswith("[") and value.endswith("]")
    if is_list and key_of(override) == "run":
        return f"{key}=[{','.join(map(quote, _items(override)))}]"
    if is_list and in_sweep:
        return f"{key}={','.join(map(quote, _items(override)))}"
    if in_sweep and "," in value and not re.fullmatch(r"'.*'|\".*\"", value, re.DOTALL):
        raise UserError(f"{override}: in a sweep write {key}=[A,B] for a run of each, or {key}='\"A,B\"' for one value")
    return f"{key}={quote(value[1:-1] if in_sweep and ',' in value else value)}"


def quote(text: str) -> str:
    """Write any text as a value of Hydra's grammar whose composed value is that text."""
    escaped = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", text)  # which OmegaConf would look up
    return QuotedString(text=escaped, quote=Quote.single).with_quotes()


def key_of(argument: str) -> str:
    """Return the key of an override, without what says how it is laid on."""
    return argument.partition("=")[0].lstrip("+~")


def plain_values(overrides: Sequence[str]) -> dict[str, object]:
    """Return the values of overrides in Hydra's grammar as plain ones, the last of a key counting."""
    values: dict[str, object] = {}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.is_sweep_override() or override.is_delete() or override.package is not None:
            raise UserError(f"{as_typed(override.input_line)} must give one value to one setting here")
        value: object = override.value()
        if isinstance(value, str) and override.key_or_group in LITERAL_KEYS | {"hydra.run.dir"}:
            value = OmegaConf.to_container(OmegaConf.create([value]), resolve=True)  # what `quote` escaped
            value = value[0] if isinstance(value, list) else value
        values[override.key_or_group] = value
    return values


def as_typed(line: str | None) -> str:
    """Return an override of Hydra's grammar as its user typed it, for messages and tables."""
    override = OverridesParser.create().parse_override(str(line))
    value = override.value() if override.key_or_group in LITERAL_KEYS else None
    key = override.get_key_element().removeprefix("++")
    return f"{key}={value}" if isinstance(value, str) else re.sub(r"^(\+\+|\+(?=row=))", "", str(line))


def _refuse_in_sweep(name: str, overrides: list[str], *, is_sweep: bool) -> None:
    given = set(map(key_of, overrides))
    for line in overrides:
        if re.match(r"hydra\.(sweeper|launcher|help|job_logging|hydra_logging)=", line):
            raise UserError(f"{line}: a group is chosen with a slash, as in {line.replace('.', '/', 1)}")
    if not is_sweep:
        return
    if name in _NO_SWEEPS:
        raise UserError(f"--multirun sweeps over training runs: {_NO_SWEEPS[name]}")
    if "resume" in given and "resume='auto'" not in overrides:
        raise UserError("resume=RUN_FOLDER goes on with one run, and cannot be given with --multirun")
    if "resume" in given and "hydra.sweep.dir" not in given:
        raise UserError(
            "resume=auto finds the jobs of a sweep by their folder, and each sweep has a new one: add "
            "hydra.sweep.dir=FOLDER"
        )


def _with_rows(overrides: list[str], folders: list[Path]) -> tuple[list[str], bool]:
    """Put in the overrides of an experiment's row, and say whether it is a sweep: over its rows or over its parameters.

    `rows` of an experiment maps a row's name to its overrides; `row=NAME` chooses one or several.
    """
    given = {key_of(line): line.partition("=")[2].strip("'\"") for line in overrides}
    paths = [path for folder in folders if (path := folder / f"experiment/{given.get('experiment')}.yaml").is_file()]
    content = yaml.safe_load(paths[-1].read_text(encoding="utf-8")) if paths else None
    rows: Mapping[str, str] = content.get("rows", {}) if isinstance(content, dict) else {}
    if not rows:
        return overrides, False
    chosen = _items(f"row={given['row']}") if "row" in given else list(rows)
    for row in chosen:
        if row not in rows:
            raise UserError(f"row={row} is none of experiment={given['experiment']} ({nearest(row, list(rows))})")
    others = [line for line in overrides if key_of(line) != "row"]
    if len(chosen) == 1 and "data" in given and "," not in given["data"]:
        return [*rows[chosen[0]].split(), *others], False
    return [*others, *(["~hydra.sweeper.params.data"] if "data" in given else []), f"+row={','.join(chosen)}"], True


def shipped_config_dir() -> Path:
    """Return the project's `conf/`: in the installed package, or in the checkout."""
    packaged = Path(__file__).parents[1] / "conf"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "conf"


def _store_parts(call: Call) -> None:
    """Make parts from outside choices of Hydra's groups, with the defaults of their settings."""
    store = ConfigStore.instance()
    models = [path.stem for folder in call._extra_dirs() for path in (folder / "model").glob("*.yaml")]
    for kind, group in _GROUPS.items():
        for entry in registry.outside(kind):
            node: dict[str, Any] = {"kind": entry.name} | (defaults(entry.config) if entry.config is not None else {})
            base = getattr(entry.config, "base", "_base")
            if (call.config_dir / group / f"{base}.yaml").is_file():
                node = {"defaults": [base, "_self_"], **node}
            store.store(group=group, name=entry.name, node=node, provider="plugins")
            models += [entry.name] if kind == "model" else []
    for model in models:
        if not any((folder / f"recipe/{model}.yaml").is_file() for folder in [call.config_dir, *call._extra_dirs()]):
            store.store(group="recipe", name=model, node={"defaults": ["txl_tiny"]}, provider="plugins")


def _register_resolvers(conf: Path) -> None:
    """Make known what conf/ refers to: the folder of a sweep, and the settings and choices that `--help` shows."""
    from transformer_xl.run_folder import claim_now

    def settings_of(name: str) -> str:
        shown, is_shown = [], False
        for line in (conf / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
            if line and not line.startswith((" ", "#")):
                is_shown = not line.startswith(("defaults:", "recipe:", "hydra:"))
            shown += [line.replace("???       ", "(required)")] if is_shown else []
        return "\n".join(shown).strip()

    def choices_of(group: str) -> str:
        names = {path.stem for path in (conf / group).glob("*.yaml") if not path.stem.startswith("_")}
        outside = [entry.name for kind in _GROUPS if _GROUPS[kind] == group for entry in registry.outside(kind)]
        return ", ".join(sorted({*names, *outside}))

    OmegaConf.register_new_resolver(
        "sweep_folder", lambda root: str(claim_now(Path(root), first="sweep")), use_cache=True, replace=True
    )
    OmegaConf.register_new_resolver("program", program, replace=True)
    OmegaConf.register_new_resolver("settings_of", settings_of, replace=True)
    OmegaConf.register_new_resolver("choices_of", choices_of, replace=True)


def _missing(values: object, key: str = "") -> Iterator[str]:
    if isinstance(values, dict):
        for name, value in values.items():
            yield from _missing(value, f"{key}.{name}" if key else str(name))
    elif values == "???":
        yield key


def library_sentence(error: HydraException | OmegaConfBaseException) -> str:
    """Return a library's own first line, with the nearest name where it knows which there are."""
    line = str(error).strip().partition("\n")[0].replace("'++", "'")
    if isinstance(error, MissingConfigException) and error.options and error.missing_cfg_file:
        return f"{line} ({nearest(error.missing_cfg_file.rpartition('/')[2], list(error.options))})"
    key = getattr(error, "full_key", None)
    override = getattr(error, "override", None)
    return f"{key}: {line}" if key else f"{override}: {line}" if override else line
