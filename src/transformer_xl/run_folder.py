"""The folder of a run: its name, its lock, and its files.

`config.yaml` (resolved), `run.json` (what stays the same over all processes of the run), `summary.json` (how it ended).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import re
import secrets
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from filelock import FileLock, Timeout
from pydantic import ConfigDict

from transformer_xl import registry
from transformer_xl.config import Config, EvalConfig, LoggerConfig, RecipeConfig, WandbConfig
from transformer_xl.data_config import CorpusConfig, Data, DataConfig, tokenizers
from transformer_xl.errors import UserError, atomic_write
from transformer_xl.settings import Seed, Settings, by_kind, parse, plain, read_settings, replace

S = TypeVar("S", bound=Settings)

AUTO = "auto"
"""The value of `resume=` that starts a run, goes on with it, or reports it, whatever its folder holds."""

_MAX_NAME_BYTES = 100
_UNFIT = re.compile(r"[\x00-\x1f\x7f/$\ud800-\udfff]")
_PACKAGES = ("transformer-xl-lightning", "torch", "lightning", "hydra-core", "omegaconf", "wandb")
_OF_OLDER_RUNS: dict[str, object] = {"compile": False, "callbacks.memory_gain.max_tokens": 0}
"""What runs did before there was a setting for it, which their folders therefore lack."""

# ---- names and folders


def slug(name: str) -> str:
    """Turn a name into one file name: no separators, control characters, `$`, leading dots; at most 100 bytes."""
    fit = _UNFIT.sub("_", name)
    fit = re.sub(r"^\.+", lambda dots: "_" * len(dots[0]), fit)
    return fit.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")


def shown(path: Path) -> str:
    """Return a path as a person would type it here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def claim(root: Path, name: str) -> Path:
    """Make a folder of one's own below `root`: by its name, or with a number after it where that is taken.

    Raises:
        UserError: there is something else than a folder where `root` should be.
    """
    if not root.is_dir() and (root.exists() or root.is_symlink()):
        raise UserError(f"{root} is no folder{' that exists' if root.is_symlink() else ''}, and runs are kept there")
    root.mkdir(parents=True, exist_ok=True)
    for count in itertools.count(1):
        folder = root / (name if count == 1 else f"{name}-{count}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("itertools.count ends")


def claim_now(root: Path, *names: str, first: str = "") -> Path:
    """Make a folder of one's own that is named after this moment and `names`."""
    moment = f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
    return claim(root, "-".join([*([first] if first else []), moment, *map(slug, names)]))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process; a killed one gives it back.

    Raises:
        UserError: another process holds it.
    """
    path = folder / "run.lock"
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"{folder} is in use by {_holder(path)}: wait until that run has ended, or stop it") from None
    try:
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        with contextlib.suppress(OSError):
            os.truncate(path, 0)
        lock.release()


def refuse_if_in_use(folder: Path) -> None:
    """Refuse a run folder in which a process trains.

    Raises:
        UserError: which process it is.
    """
    if (folder / "run.lock").exists():
        lock = FileLock(folder / "run.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise UserError(f"{folder} is in use by {_holder(folder / 'run.lock')}: wait until it has ended") from None
        lock.release()


def _holder(path: Path) -> str:
    try:
        return path.read_text(errors="replace") or "another process"
    except OSError:
        return "another process"


# ---- config.yaml


def read_config(folder: Path) -> dict[str, Any]:
    """Read a run folder's `config.yaml` as plain containers; older runs' as they would be written today.

    Raises:
        UserError: it is damaged.
    """
    saved = read_settings(folder / "config.yaml")
    for key, value in _OF_OLDER_RUNS.items():
        node: Any = saved
        *groups, name = key.split(".")
        for group in groups:
            node = node.setdefault(group, {}) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.setdefault(name, value)
    return saved


def config_of(folder: Path) -> Config:
    """Return a run folder's own configuration.

    Raises:
        UserError: its `config.yaml` is damaged, or another version's, and how.
    """
    return expanded(_parsed(Config, folder))


def _parsed(cls: type[S], folder: Path) -> S:
    try:
        return parse(cls, read_config(folder))
    except UserError as error:
        path = folder / "config.yaml"
        raise error if str(path) in str(error) else UserError(f"{path} is of another version: {error}") from error


def write_config(config: Config, folder: Path) -> None:
    """Write the resolved configuration to the run folder."""
    with atomic_write(folder / "config.yaml") as file:
        yaml.safe_dump(plain(config), file, sort_keys=False, allow_unicode=True)


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
    saved = _parsed(SavedConfig, folder)
    return replace(saved, data=expanded_data(saved.data))


# ---- run.json and summary.json


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What stays the same over all processes of a run.

    Attributes:
        run_id: of its one W&B run.
        choices: group -> choice, as the run was started.
        parent: of a branch: the run that it goes on from, its W&B id, and the step; None: no branch.
    """

    run_id: str
    choices: Mapping[str, str]
    parent: Mapping[str, Any] | None

    @classmethod
    def new(cls, choices: Mapping[str, str], *, parent: Mapping[str, Any] | None = None) -> Identity:
        """Return one whose id no other run has: W&B's own under one of its agents."""
        run_id = os.environ.get("WANDB_RUN_ID") if parent is None else None
        return cls(run_id=run_id or secrets.token_hex(4), choices=dict(choices), parent=parent)

    def write(self, folder: Path) -> None:
        with atomic_write(folder / "run.json") as file:
            file.write(json.dumps(asdict(self), indent=2) + "\n")


def read_identity(folder: Path) -> Identity | None:
    """Read a run folder's `run.json`; None where there is none that can be read."""
    content = _read_json(folder / "run.json")
    run_id, choices, parent = (content.get(name) for name in ("run_id", "choices", "parent"))
    if not isinstance(run_id, str) or not isinstance(choices, dict) or not isinstance(parent, dict | None):
        return None
    return Identity(run_id=run_id, choices=choices, parent=parent)


@dataclass(kw_only=True)
class Summary:
    """What `summary.json` says of a run; filled as the run goes.

    Attributes:
        command: as the user typed it, the program first.
        parent: of a branch.
        status: `finished`, `stopped` or `failed`.
        exit_code: of the process.
        objective: the best validation loss, in nats; the last training loss where nothing validates.
        metrics: what was measured, each figure beside its settings.
    """

    command: list[str] = field(default_factory=list)
    parent: Mapping[str, Any] | None = None
    status: str = "failed"
    exit_code: int = 1
    objective: float | None = None
    step: int = 0
    tokens: int = 0
    parameters: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    data_checksum: str | None = None
    read_as: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write `summary.json` to the run folder, whole or not at all."""
        versions = {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
        content = {**asdict(self), "versions": versions, "plugins": dict(registry.loaded)}
        with atomic_write(folder / "summary.json") as file:
            file.write(json.dumps(content, indent=2, allow_nan=False) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Summary:
        """Read a run folder's `summary.json`; where there is none, no process of the run has ended in order."""
        content = _read_json(folder / "summary.json")
        return cls(**{name: content[name] for name in cls.__dataclass_fields__ if name in content})

    def was_finished(self, *, step: int | None = None) -> bool:
        """Return whether the run ended with its report, at that step: it may have been extended since."""
        return self.status == "finished" and step in (None, self.step)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
