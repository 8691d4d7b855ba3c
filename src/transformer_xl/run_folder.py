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
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from transformer_xl import registry
from transformer_xl.config import Config
from transformer_xl.errors import UserError, atomic_write
from transformer_xl.settings import parse, plain, read_settings

AUTO = "auto"
"""The value of `resume=` that starts a run, goes on with it, or reports it, whatever its folder holds."""

_MAX_NAME_BYTES = 100
_UNFIT = re.compile(r"[\x00-\x1f\x7f/$\ud800-\udfff]")
_PACKAGES = ("transformer-xl-lightning", "torch", "lightning", "hydra-core", "omegaconf", "wandb")

# ---- names and folders


def slug(name: str) -> str:
    """Turn a name into one file name: no separators, control characters, `$`, leading dots; at most 100 bytes."""
    fit = _UNFIT.sub("_", name)
    fit = re.sub(r"^\.+", lambda dots: "_" * len(dots[0]), fit)
    return fit.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")


def moment() -> str:
    """Return the present time as a part of a folder's name."""
    return f"{datetime.now():%Y-%m-%d_%H-%M-%S}"


def shown(path: Path) -> str:
    """Return a path as a person would type it here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def claim(root: Path, name: str) -> Path:
    """Make a folder of one's own below `root`: by its name, or with a number after it where that is taken."""
    root.mkdir(parents=True, exist_ok=True)
    for count in itertools.count(1):
        folder = root / (name if count == 1 else f"{name}-{count}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("itertools.count ends")


def locked(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Hold a run folder for this process; a killed one gives it back.

    Raises:
        UserError: another process holds it.
    """
    from transformer_xl.data.files import locked as hold  # numpy, which `--help` need not wait for

    def refuse(sentence: str) -> None:
        raise UserError(sentence)

    sentence = f"{folder} is in use by another process: wait until it has ended, or stop it"
    return hold(folder / "run.lock", refuse, sentence)


def refuse_if_in_use(folder: Path) -> None:
    """Raise `UserError` for a run folder in which a process trains."""
    with locked(folder):
        pass


# ---- config.yaml


def config_of(folder: Path) -> Config:
    """Return a run folder's own configuration.

    Raises:
        UserError: its `config.yaml` is damaged, or another version's, and how.
    """
    settings = read_settings(folder / "config.yaml")
    try:
        return parse(Config, settings)
    except UserError as error:
        raise UserError(f"{folder / 'config.yaml'} cannot be read: {error}") from error


def write_config(config: Config, folder: Path) -> None:
    """Write the resolved configuration to the run folder."""
    with atomic_write(folder / "config.yaml") as file:
        yaml.safe_dump(plain(config), file, sort_keys=False, allow_unicode=True)


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
    choices: Mapping[str, str] = field(default_factory=dict)
    parent: Mapping[str, Any] | None = None

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
    return Identity(**content) if "run_id" in content else None


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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
