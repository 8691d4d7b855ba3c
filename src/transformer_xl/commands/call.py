"""One command line, read: plugins, flags, literal values, and what Hydra composes of the rest."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from transformer_xl import registry
from transformer_xl.errors import UserError, first_line
from transformer_xl.registry import nearest, program
from transformer_xl.settings import Settings, defaults, parse

S = TypeVar("S", bound=Settings)
LITERAL_KEYS = frozenset(
    {"prompt", "prompt_file", "texts", "run", "resume", "init_from", "name", "hydra.run.dir", "hydra.sweep.dir"}
    | {"data.path", "data.dir", "data.vocabulary", "data.document_marker"}
)
"""Their values are taken as they are typed, and never reach Hydra's grammar."""
_GROUPS = {kind: kind for kind in registry.HOMES} | {"position": "model/position", "corpus": "data"}
"""Kind of a part -> the group of Hydra's by which it is chosen."""


@dataclass(frozen=True)
class Call:
    """One command line.

    Attributes:
        name: of the command, and of its file in `conf/`.
        command: the program and its arguments, as the user typed them.
        config_dirs: `conf/`, and the folder that `--config-dir` names.
        overrides: `key=value`, as the user typed them.
        rows: of an experiment that is a comparison: the overrides that `row=NAME`, or `task=NAME`, stands for.
        at_a_time: how many jobs of a sweep run at a time.
        is_sweep: whether several runs are asked for.
        shows: `help`, or `job`: the composed configuration; None: the command does its work.
    """

    name: str
    command: list[str]
    config_dirs: list[Path]
    overrides: list[str]
    rows: Mapping[str, str]
    at_a_time: int
    is_sweep: bool
    shows: str | None

    @property
    def flags(self) -> list[str]:
        """What a sweep hands to its jobs besides their settings."""
        words = [word for word in self.command if word.startswith(("plugins=", "parts."))]
        return [*(f"--config-dir={folder}" for folder in self.config_dirs[1:]), *words]

    @property
    def given(self) -> frozenset[str]:
        """What the command itself names: dotted keys, and groups that it chooses."""
        return frozenset(map(key_of, self.overrides))

    @property
    def folder(self) -> Path | None:
        """The run folder that `hydra.run.dir` names; None: none is named."""
        value = self.literals().get("hydra.run.dir")
        if value is not None and not value.strip(" '\""):
            raise UserError("hydra.run.dir is empty, and must name the folder of the run")
        return None if value is None else Path(value).absolute()

    def literals(self) -> dict[str, str]:
        """Return the values of the keys whose values are taken literally."""
        return {key_of(line): line.partition("=")[2] for line in self.overrides if key_of(line) in LITERAL_KEYS}

    def parsed(self) -> list[Override]:
        """Return the other overrides, read in Hydra's grammar."""
        lines = [line for line in self.overrides if key_of(line) not in LITERAL_KEYS]
        with library_errors_in_one_line():
            return list(OverridesParser.create().parse_overrides(lines))

    def jobs(self) -> list[Call]:
        """Return the calls of a sweep: one for each combination of the swept values, the last varying fastest."""
        with library_errors_in_one_line():
            options = list(itertools.product(*map(_options, self.overrides)))
        return [replace(self, overrides=list(job), is_sweep=False) for job in options]

    def compose(self) -> DictConfig:
        """Return what Hydra composes, with its own node `hydra`, and without the literal values.

        Keys that are no groups are added where there is none: the settings' classes say best what is wrong with them.
        """
        lines = [part for line in self.overrides if line in self.rows for part in self.rows[line].split()]
        for line in self.overrides:
            key = key_of(line)
            is_group = any((folder / key).is_dir() for folder in self.config_dirs)
            if key not in LITERAL_KEYS and line not in self.rows:
                lines.append(line if is_group or line.startswith(("+", "~")) else f"++{line}")
        lines.sort(key=lambda line: "." in key_of(line))  # plan=true before plan.device=h100, in whatever order typed
        for folder in self.config_dirs[1:]:
            lines.append(f"hydra.searchpath=[{QuotedString(f'file://{folder}', Quote.single).with_quotes()}]")
        with (
            library_errors_in_one_line(),
            hydra.initialize_config_dir(config_dir=str(self.config_dirs[0]), version_base="1.3"),
        ):
            return hydra.compose(self.name, lines, return_hydra_config=True)

    def values(self, composed: DictConfig) -> dict[str, Any]:
        """Return what Hydra composed as plain containers, all references looked up, and the literal values in it."""
        if "plugins" in composed:
            raise UserError("plugins stands in a YAML file, and is taken from the command line alone: plugins=[FILE]")
        with library_errors_in_one_line(), flag_override(composed, ["struct", "readonly"], False):
            for name in ("hydra", "rows", "tasks", "parts", "sweep", "jobs"):
                composed.pop(name, None)
            values: Any = OmegaConf.to_container(composed, resolve=True)
        for key, value in self.literals().items():
            if not key.startswith("hydra."):
                put(values, key, _items(value) if key == "run" and value.startswith("[") else value)
        missing = [key for key, value in values.items() if value == "???" and key not in self.given]
        if missing:
            raise UserError(f"{missing[0]} has no value, and must be given as {missing[0]}=VALUE")
        return dict(values)

    def settings(self, cls: type[S]) -> S:
        """Return what the command composes as the settings of a class; `UserError` says all that is wrong with it."""
        return parse(cls, self.values(self.compose()))

    def help(self) -> str:
        """Return the text of `--help`: the template in `conf/`, with choices and settings put in."""
        composed = self.compose()
        text = (self.config_dirs[0] / f"{self.name}.yaml").read_text(encoding="utf-8")
        shown = {}
        for group in (*_GROUPS.values(), "experiment"):
            names = {path.stem for folder in self.config_dirs for path in (folder / group).glob("*.yaml")}
            names |= {entry.name for kind in _GROUPS if _GROUPS[kind] == group for entry in registry.outside(kind)}
            shown[group.replace("/", "_")] = ", ".join(sorted(name for name in names if name[0] != "_"))
        with flag_override(composed, "struct", False):
            template = composed.pop("hydra").help.template
        shown |= {"program": program(self.name), "settings": text.partition("\nhydra:")[0].partition("\n")[2]}
        return str(template).format(**shown, config=OmegaConf.to_yaml(composed, resolve="{config}" in template))


def take_plugins(arguments: Sequence[str]) -> list[str]:
    """Import what `plugins=[FILE,MODULE]` among a command's arguments names; return the other arguments.

    Raises:
        UserError: there is no such file or module, or another module has the file's name.
    """
    given = [argument.removeprefix("plugins=") for argument in arguments if argument.startswith("plugins=")]
    for plugin in ",".join(given).replace("[", "").replace("]", "").split(","):
        if plugin.strip():
            _load(plugin.strip())
    return [argument for argument in arguments if not argument.startswith("plugins=")]


def _load(plugin: str) -> None:
    """Import a module, or a file by its name, whose folder comes to the path's end, for further processes too."""
    path, is_file = Path(os.path.expanduser(plugin)).absolute(), plugin.endswith(".py")
    name = path.stem if is_file else plugin
    if is_file and not path.is_file():
        raise UserError(f"plugins={plugin} names no file")
    if is_file and str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UserError(f"plugins={plugin} names no module, and no file: files end with .py") from error
    source = Path(str(module.__file__))
    if is_file and source.resolve() != path.resolve():
        raise UserError(f"plugins={plugin}: another module is called {name} ({source}): rename the file")
    registry.loaded[plugin] = hashlib.sha256(source.read_bytes()).hexdigest()


def read(name: str, command: Sequence[str]) -> Call:
    """Read a command line, the program first, and import its plugins.

    Raises:
        UserError: a plugin is not there, or a word is no setting.
    """
    words = [re.sub(r"^--(?=\w+\.|seed=|name=)", "", word) for word in take_plugins(command[1:])]  # of agents
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-h", "--help", dest="shows", action="store_const", const="help")
    parser.add_argument("--cfg", dest="shows", choices=["job"])
    parser.add_argument("--config-dir")
    known, overrides = parser.parse_known_args(words)
    for word in overrides:
        if not re.match(r"~|[^=-][^=]*=", word):
            raise UserError(f"{word} is no setting: a setting is written key=value; --help lists all, and the flags")
        if re.match(r"[+~]*hydra[./]", word) and (name != "train" or key_of(word) not in LITERAL_KEYS):
            raise UserError(f"{word}: of Hydra's own settings train alone uses hydra.run.dir and hydra.sweep.dir")
    packaged = Path(__file__).parents[1] / "conf"
    conf = packaged if packaged.is_dir() else Path(__file__).parents[3] / "conf"
    config_dirs = [conf, *([Path(known.config_dir).absolute()] if known.config_dir else [])]
    rows, at_a_time, overrides = _with_rows(overrides, config_dirs)
    call = Call(name, list(command), config_dirs, overrides, rows, at_a_time, known.multirun, known.shows)
    _store_parts(config_dirs)
    call = replace(call, is_sweep=known.multirun or (bool(rows) and len(call.jobs()) > 1))
    other = "hydra.run.dir" if call.is_sweep else "hydra.sweep.dir"
    if other in call.given:
        raise UserError(f"{other} has no effect {'in' if call.is_sweep else 'without'} a sweep")
    return call


def key_of(line: str) -> str:
    """Return the key of an override, without what says how it is laid on."""
    return line.partition("=")[0].lstrip("+~")


def put(settings: dict[str, Any], key: str, value: object) -> None:
    """Set a dotted key of nested containers, making groups where there are none."""
    *groups, name = key.split(".")
    for group in groups:
        if not isinstance(settings.get(group), dict):
            settings[group] = {}
        settings = settings[group]
    settings[name] = value


def _value(line: str) -> str:
    return line.partition("=")[2]


def _items(value: str) -> list[str]:
    value = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    return [item.strip() for item in value.split(",") if item.strip()]


def _options(line: str) -> list[str]:
    """Return the overrides that one of a sweep stands for; literal values are separated by commas."""
    key, _, value = line.partition("=")
    if key_of(line) in LITERAL_KEYS:
        return [line] if key.startswith("hydra.") else [f"{key}={item}" for item in _items(value) or [""]]
    override = OverridesParser.create().parse_override(line)
    return [f"{key}={one}" for one in override.sweep_string_iterator()] if override.is_sweep_override() else [line]


def _with_rows(overrides: list[str], folders: list[Path]) -> tuple[Mapping[str, str], int, list[str]]:
    """Return what `row=NAME` and `task=NAME` stand for in a comparison, its jobs at a time, and what it sweeps.

    The last are the overrides with what it sweeps unless told else. Networks and position encodings of plugins are rows
    of a comparison that has `parts`, which are their sizes.
    """
    given = {key_of(line): _value(line) for line in overrides}
    paths = [path for folder in folders if (path := folder / f"experiment/{given.get('experiment')}.yaml").is_file()]
    content = yaml.safe_load(paths[-1].read_text(encoding="utf-8")) if paths else {}
    if "rows" not in content:
        return {}, 1, overrides
    known = {"row": dict(content["rows"]), "task": content.get("tasks", {})}
    if parts := content.get("parts"):
        first = next(iter(content["rows"].values()))
        known["row"] |= {one.name: f"{first} model/position={one.name}" for one in registry.outside("position")}
        for name in (one.name for one in registry.outside("model")):
            sizes = given.get(f"parts.{name}", parts.get(name, parts["default"]))
            known["row"][name] = f"model={name} {sizes}"
    for key, texts in known.items():
        for name in _items(given.get(key, "")):
            if name not in texts:
                near = nearest(name, list(texts))
                raise UserError(f"{key}={name} is none of experiment={given['experiment']} ({near})")
    swept = {key: ",".join(texts) for key, texts in known.items() if texts} | content["sweep"]
    added = [f"{key}={value}" for key, value in swept.items() if key not in given]
    kept = [line for line in overrides if not line.startswith(("jobs=", "parts."))]
    rows = {f"{key}={name}": text for key, texts in known.items() for name, text in texts.items()}
    return rows, int(given.get("jobs", content.get("jobs", 1))), [*added, *kept]


def _store_parts(folders: list[Path]) -> None:
    """Make parts from outside choices of Hydra's groups, with the defaults of their settings."""
    store = ConfigStore.instance()
    models = [path.stem for folder in folders[1:] for path in (folder / "model").glob("*.yaml")]
    models += [entry.name for entry in registry.outside("model")]
    for kind, group in _GROUPS.items():
        for entry in registry.outside(kind):
            base = getattr(entry.config, "base", "_base")
            has_base = (folders[0] / group / f"{base}.yaml").is_file()
            node = {"kind": entry.name} | ({} if entry.config is None else defaults(entry.config))
            node |= {"defaults": [base, "_self_"]} if has_base else {}
            store.store(group=group, name=entry.name, node=node, provider="plugins")
    for model in models:
        if not any((folder / f"recipe/{model}.yaml").is_file() for folder in folders):
            store.store(group="recipe", name=model, node={"defaults": ["txl_tiny"]}, provider="plugins")


@contextmanager
def library_errors_in_one_line() -> Iterator[None]:
    """Raise Hydra's and OmegaConf's errors as a mistake of the user's.

    Raises:
        UserError: with the library's own message, and the nearest name where it knows which there are.
    """
    try:
        yield
    except MissingConfigException as error:
        name = (error.missing_cfg_file or "").rpartition("/")[2]
        raise UserError(f"{str(error).splitlines()[0]} ({nearest(name, list(error.options or []))})") from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if isinstance(error, UserError):
            raise
        override = getattr(error, "override", None)
        raise UserError((f"{override}: " if override else "") + first_line(error).replace("++", "")) from error
