"""The models that a command is about: found by what `run=` says, and loaded."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_xl.commands.folders import slug
from transformer_xl.config import Config
from transformer_xl.errors import UserError
from transformer_xl.interop.load import load_model, may_be_on_hub
from transformer_xl.model.base import LanguageModel
from transformer_xl.placement import Placed, place
from transformer_xl.registry import nearest
from transformer_xl.run_config import expanded, read_config
from transformer_xl.settings import parse

LATEST = "latest"
"""The value of `run=` that stands for the newest run below `outputs/`."""
_RUNS = Path("outputs")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model, as a command names it.

    Attributes:
        name: for tables: as short as tells it from the others.
        path: what `load_model` takes.
        checkpoint: which of a run folder's.
        config: of its run; None: it comes from none.
        folder: of its run; without one, where results about it go, which may not exist yet.
    """

    name: str
    path: str
    checkpoint: str
    config: Config | None
    folder: Path

    def load(self) -> LanguageModel:
        """Load it, in evaluation mode, on the CPU."""
        return load_model(self.path, "last" if self.checkpoint == "last" else "best")

    def placed(self, *, device: str, precision: str) -> Placed:
        """Load it and move it where it shall run; `own` is the precision of its run, without one float32."""
        if precision == "own":
            precision = "32-true" if self.config is None else str(self.config.trainer.precision)
        return place(self.load(), device=device, precision=_PRECISIONS.get(precision, precision))


_PRECISIONS = {"32": "32-true", "64": "64-true", "bf16": "bf16-mixed", "16": "16-mixed"}
"""Short names that Lightning takes too."""


def find_source(run: str | Sequence[str], *, checkpoint: str) -> Source:
    """Find the one model that `run=` names.

    Raises:
        UserError: it names none or several.
    """
    sources = find_sources(run, checkpoint=checkpoint)
    if len(sources) > 1:
        raise UserError(f"run={run} names {len(sources)} models, and must name one")
    return sources[0]


def find_sources(run: str | Sequence[str], *, checkpoint: str) -> list[Source]:
    """Find the models that `run=` names: one, a list, or all that a glob matches.

    Raises:
        UserError: it names none.
    """
    given = [run] if isinstance(run, str) else list(run)
    if "" in given:
        raise UserError("run= is empty, or a part of its list is: name a run folder, a checkpoint, or a model")
    paths = [path for name in given for path in _matching(name)]
    if not paths:
        raise UserError("run=[] names no model, and must name at least one")
    names = _short_names(paths)
    return [_source(path, name, checkpoint=checkpoint) for path, name in zip(paths, names, strict=True)]


def _matching(name: str) -> list[str]:
    if name == LATEST:
        return [str(_newest())]
    path = os.path.expanduser(name)
    if not glob.has_magic(path) or os.path.exists(path):
        _require_something(name, Path(path))
        return [path]
    matches = sorted(found for found in glob.glob(path, recursive=True) if _is_model(Path(found)))
    if not matches:
        raise UserError(f"run={name} matches no run folder, checkpoint or model folder")
    return matches


def _require_something(name: str, path: Path) -> None:
    """Refuse a path to nothing, where it cannot be meant for a name on the Hub.

    Raises:
        UserError: with the nearest of the runs that there are.
    """
    if path.exists() or (may_be_on_hub(name) and not path.parent.exists()):
        return
    known = sorted(str(folder.parent) for folder in _RUNS.glob("*/config.yaml") if _is_run(folder.parent))
    near = f": {nearest(name, known)}" if known else f", and {_RUNS}/ holds no run"
    raise UserError(f"run={name}: there is nothing of this name{near}")


def _is_model(path: Path) -> bool:
    return path.is_file() or _is_run(path) or (path / "config.json").is_file()


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir()


def _newest() -> Path:
    runs = [folder.parent for folder in _RUNS.glob("**/config.yaml") if _is_run(folder.parent)]
    if not runs:
        raise UserError(f"run={LATEST} is the newest run below {_RUNS}/, and there is none with a checkpoint")
    return max(runs, key=lambda folder: (folder / "checkpoints").stat().st_mtime)


def _source(path: str, name: str, *, checkpoint: str) -> Source:
    location = Path(path)
    run = location if _is_run(location) else None
    if run is None and location.is_file() and _is_run(location.absolute().parent.parent):
        run, checkpoint = location.absolute().parent.parent, location.name
    elif run is not None and checkpoint == "best" and not (run / "checkpoints" / "best.ckpt").is_file():
        checkpoint = "last"  # as `load_model` falls back
    config = None if run is None else expanded(parse(Config, read_config(run)))
    return Source(
        name=name,
        path=path,
        checkpoint=checkpoint if run is not None else "",
        config=config,
        folder=run if run is not None else _RUNS / slug(name),
    )


def _short_names(paths: Sequence[str]) -> list[str]:
    """Give the last parts of paths, as many as tell them apart."""
    parts = [Path(path).parts or (path,) for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(of_path[-count:]) for of_path in parts]
        if len(set(names)) == len(set(paths)):
            return names
    return list(paths)
