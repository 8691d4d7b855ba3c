"""The trained models that a command is about: found by what `run=` names, loaded, and put where they shall run."""

from __future__ import annotations

import glob
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from transformer_xl.errors import UserError
from transformer_xl.interop.load import load_model, may_be_on_hub
from transformer_xl.model.base import LanguageModel
from transformer_xl.registry import nearest
from transformer_xl.run_folder import SavedConfig, saved_config, slug

LATEST = "latest"
"""The value of `run=` that stands for the newest run below `outputs/`."""
_RUNS = Path("outputs")
_MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
_TRUE = {"32-true": torch.float32, "bf16-true": torch.bfloat16, "64-true": torch.float64}
_SHORT_NAMES = {"32": "32-true", "64": "64-true", "bf16": "bf16-mixed", "16": "16-mixed"}
"""Precisions by the names that Lightning takes too."""


class LoadedModel(NamedTuple):
    """A model in evaluation mode on its device.

    Attributes:
        model: in the type that the precision asks for.
        autocast: gives the context in which it is called.
        precision: as Lightning names it.
    """

    model: LanguageModel
    autocast: Callable[[], AbstractContextManager[object]]
    precision: str

    @property
    def described(self) -> str:
        """The network, its size, precision and device, in words."""
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        device = next(self.model.parameters()).device
        return f"{self.model.config.label}, {parameters:,} parameters, {self.precision} on {device}"


@dataclass(frozen=True, kw_only=True)
class NamedModel:
    """A model, as a command names it.

    Attributes:
        name: for tables: as short as tells it from the others; a sweep's job by what it varies.
        path: what `load_model` takes.
        checkpoint: which of a run folder's; empty: it comes from no run.
        config: of its run; None: it comes from none.
        folder: of its run; without one, where results about it go, which may not exist yet.
    """

    name: str
    path: str
    checkpoint: str
    config: SavedConfig | None
    folder: Path

    def load(self, *, device: str, precision: str) -> LoadedModel:
        """Load the model where it shall run.

        Args:
            device: of torch; `auto`: a GPU where there is one.
            precision: as Lightning names it; `own`: that of its run, without one float32.

        Raises:
            UserError: no model, no such device, or a precision that it cannot do.
        """
        model = load_model(self.path, "last" if self.checkpoint == "last" else "best")
        if precision == "own":
            precision = "32-true" if self.config is None else str(self.config.trainer.precision)
        return place(model, device=device, precision=_SHORT_NAMES.get(precision, precision))


def place(model: LanguageModel, *, device: str, precision: str) -> LoadedModel:
    """Move a model where it shall run; see `NamedModel.load`."""
    where = _device(device)
    if precision == "16-mixed" and where.type == "cpu":
        raise UserError("precision is 16-mixed, which needs a GPU: use bf16-mixed or 32-true")
    if precision in _MIXED:
        autocast = partial(torch.autocast, where.type, dtype=_MIXED[precision])
        return LoadedModel(model.to(where).eval(), autocast, precision)
    return LoadedModel(model.to(where, _TRUE[precision]).eval(), nullcontext, precision)


def _device(name: str) -> torch.device:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    wrong = UserError(f"device is {name!r}, and must be auto, cpu, mps, cuda, or one GPU by its number, as cuda:1")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise wrong from error
    if device.type not in ("cpu", "cuda", "mps") or (device.type == "cpu" and device.index):
        raise wrong
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"device is {name!r}, which this machine has not ({reason}): use cpu or auto") from error
    return device


def find_model(run: str | Sequence[str], *, checkpoint: str) -> NamedModel:
    """Find the one model that `run=` names.

    Raises:
        UserError: it names none or several.
    """
    models = find_models(run, checkpoint=checkpoint)
    if len(models) > 1:
        raise UserError(f"run={run} names {len(models)} models, and must name one, as run={models[0].path}")
    return models[0]


def find_models(run: str | Sequence[str], *, checkpoint: str) -> list[NamedModel]:
    """Find the models that `run=` names: one, a list, the runs of a sweep, or all that a glob matches.

    Raises:
        UserError: it names none.
    """
    given = [run] if isinstance(run, str) else list(run)
    if "" in given:
        raise UserError("run= is empty, or a part of its list is: name a run folder, a checkpoint, or a model")
    paths = list(dict.fromkeys(path for name in given for path in _matching(name)))
    if not paths:
        raise UserError("run=[] names no model, and must name at least one")
    names = _short_names(paths)
    return [_named(path, name, checkpoint=checkpoint) for path, name in zip(paths, names, strict=True)]


def _matching(name: str) -> list[str]:
    if name == LATEST:
        return [str(_newest())]
    path = os.path.expanduser(name)
    if glob.has_magic(path) and not os.path.exists(path):
        matches = sorted(map(Path, glob.glob(path, recursive=True)))
        found = [path for match in matches for path in (_jobs(match) or [match] * _is_model(match))]
        if not found:
            raise UserError(f"run={name} matches no run folder, checkpoint or model folder")
        left_out = [str(match) for match in matches if not _jobs(match) and not _is_model(match)]
        if left_out:
            shown = ", ".join(left_out[:3]) + (" and others" if len(left_out) > 3 else "")
            print(f"note: run={name} also matches {shown}, which is no run, and is left out", file=sys.stderr)
        return list(map(str, found))
    if not os.path.exists(path) and (not may_be_on_hub(name) or Path(path).parent.exists()):
        known = sorted(str(config.parent) for config in _RUNS.glob("*/config.yaml") if _is_run(config.parent))
        near = f": {nearest(name, known)}" if known else f", and {_RUNS}/ holds no run"
        raise UserError(f"run={name}: there is nothing of this name{near}")
    return list(map(str, _jobs(Path(path)))) or [path]


def _is_model(path: Path) -> bool:
    """Return whether a path that nobody has named by itself is a model; other files of a run are none."""
    return path.suffix in (".ckpt", ".pt") if path.is_file() else _is_run(path) or (path / "config.json").is_file()


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir()


def _jobs(folder: Path) -> list[Path]:
    """Return the runs of a sweep's folder, in the order of their numbers; none: it is no such folder."""
    if _is_run(folder) or not (folder / "multirun.yaml").is_file():
        return []
    jobs = [config.parent for config in folder.glob("*/config.yaml") if _is_run(config.parent)]
    return sorted(jobs, key=lambda job: (len(job.name), job.name))


def _newest() -> Path:
    runs = [config.parent for config in _RUNS.glob("**/config.yaml") if _is_run(config.parent)]
    if not runs:
        raise UserError(f"run={LATEST} is the newest run below {_RUNS}/, and there is none with a checkpoint")
    return max(runs, key=lambda folder: (folder / "checkpoints").stat().st_mtime)


def _named(path: str, name: str, *, checkpoint: str) -> NamedModel:
    location = Path(path)
    run = location if _is_run(location) else None
    if run is None and location.is_file() and _is_run(location.absolute().parent.parent):
        run, checkpoint = location.absolute().parent.parent, location.name
    elif run is not None and checkpoint == "best" and not (run / "checkpoints" / "best.ckpt").is_file():
        checkpoint = "last"  # as `load_model` falls back
    return NamedModel(
        name=name,
        path=path,
        checkpoint=checkpoint if run is not None else "",
        config=None if run is None else saved_config(run),
        folder=run if run is not None else _RUNS / slug(name),
    )


def _short_names(paths: Sequence[str]) -> list[str]:
    """Return what the jobs of a sweep vary, or the last parts of paths, as many as tell them apart."""
    varied = [_varied(Path(path)) for path in paths]
    if all(varied) and len(set(varied)) == len(paths):
        return varied
    parts = [Path(path).parts or (path,) for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(of_path[-count:]) for of_path in parts]
        if len(set(names)) == len(paths):
            return names
    return list(paths)


def _varied(run: Path) -> str:
    """Return the settings in which a job differs from others of its sweep; empty: it is no job of a sweep."""
    own = _overrides(run)
    others = [_overrides(record.parent) for record in run.parent.glob("*/job.json")]
    return " ".join(line for line in own if any(line not in other for other in others))


def _overrides(job: Path) -> list[str]:
    try:
        overrides: list[str] = json.loads((job / "job.json").read_text(encoding="utf-8"))["overrides"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return overrides
