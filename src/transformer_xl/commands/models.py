"""The trained models that a command is about: found by what `run=` names, loaded, and put where they shall run."""

from __future__ import annotations

import glob
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from transformer_xl.errors import UserError, first_line
from transformer_xl.inference_config import ContextConfig
from transformer_xl.interop.load import load_model, may_be_on_hub
from transformer_xl.interop.native import naming, parse_saved_model
from transformer_xl.model.base import Context, LanguageModel
from transformer_xl.registry import nearest
from transformer_xl.settings import read_settings

OUTPUTS = Path("outputs")
_SEGMENT_LEN = 128
"""Of a model that comes from no run."""
_TYPES = {"32": torch.float32, "64": torch.float64, "bf16": torch.bfloat16, "16": torch.float16}


class LoadedModel(NamedTuple):
    """A model in evaluation mode on its device, the context in which it is called, and Lightning's precision."""

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

    `name` is as short as tells it from others, `path` what `load_model` takes. Of a model that comes from a run,
    `run` is its folder, `checkpoint` the one that is meant, and `settings` what its `config.yaml` holds.
    """

    name: str
    path: str
    run: Path | None = None
    checkpoint: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def load(self, *, device: str, precision: str) -> LoadedModel:
        """Load the model on a device of torch, or `auto`, in one of Lightning's precisions, or its run's `own`."""
        model = load_model(self.path, "last" if self.checkpoint == "last" else "best")
        if precision == "own":
            precision = str(self.settings["trainer"]["precision"]) if self.settings else "32-true"
        return place(model, device=device, precision=precision)

    def context(self, model: LanguageModel, memory: ContextConfig, *, segment_len: int | str, group: str) -> Context:
        """Return how the loaded model shall be read; an own `segment_len` is that of the run's settings `group`.

        Raises:
            UserError: the model cannot be read so.
        """
        own = self.settings[group]["segment_len"] if self.settings else _SEGMENT_LEN
        context = model.own_context(segment_len=own).resolved(segment_len=segment_len, **dict(memory))
        refused = model.refusals(model.config, context, group="memory.")
        if problems := [*refused, *model.too_long(model.config, context.segment_len)]:
            raise UserError("; ".join(problems))
        return context


def place(model: LanguageModel, *, device: str, precision: str) -> LoadedModel:
    """Move a model where it shall run; `UserError` for a device that is not there, or cannot do the precision."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device is {device!r}, and must be auto, cpu, mps or cuda: {first_line(error)}") from error
    number, _, kind = precision.partition("-")
    if kind == "true" or (not kind and "16" not in number):
        return LoadedModel(model.to(where, _TYPES[number]), nullcontext, precision)
    if number == "16" and where.type == "cpu":
        raise UserError("precision is 16-mixed, which needs a GPU: use bf16-mixed or 32-true")
    return LoadedModel(model.to(where), partial(torch.autocast, where.type, dtype=_TYPES[number]), precision)


def find_model(run: str | Sequence[str], *, checkpoint: str) -> NamedModel:
    """Find the one model that `run=` names; `UserError` where it names none or several."""
    models = find_models(run, checkpoint=checkpoint)
    if len(models) > 1:
        raise UserError(f"run={run} names {len(models)} models, and must name one, as run={models[0].path}")
    return models[0]


def find_models(run: str | Sequence[str], *, checkpoint: str) -> list[NamedModel]:
    """Find the models that `run=` names: one, a list, the runs of a sweep, or all that a glob matches."""
    given = [run] if isinstance(run, str) else list(run)
    if not given or "" in given:
        raise UserError("run= is empty, or a part of its list is: name a run folder, a checkpoint, or a model")
    paths = list(dict.fromkeys(path for name in given for path in _matching(name)))
    return [_named(path, name, checkpoint) for path, name in zip(paths, _short_names(paths), strict=True)]


def _matching(name: str) -> list[Path | str]:
    if name == "latest":
        runs = [config.parent for config in OUTPUTS.glob("**/config.yaml") if _is_run(config.parent)]
        if not runs:
            raise UserError(f"run=latest is the newest run below {OUTPUTS}/, and there is none with a checkpoint")
        return [max(runs, key=lambda folder: (folder / "checkpoints").stat().st_mtime)]
    path = Path(os.path.expanduser(name))
    if glob.has_magic(name) and not path.exists():
        matches = list(map(Path, sorted(glob.glob(str(path), recursive=True))))
        found = [_jobs(match) or [match] * _is_model(match) for match in matches]
        if not any(found):
            raise UserError(f"run={name} matches no run folder, checkpoint or model folder")
        for match, models in zip(matches, found, strict=True):
            if not models:
                print(f"note: run={name} also matches {match}, which is no run, and is left out", file=sys.stderr)
        return [model for models in found for model in models]
    if not path.exists() and (not may_be_on_hub(name) or path.parent.exists()):
        known = [str(config.parent) for config in OUTPUTS.glob("*/config.yaml")]
        near = nearest(name, known) if known else f"{OUTPUTS}/ holds no run"
        raise UserError(f"run={name}: there is nothing of this name ({near})")
    return [*_jobs(path)] or [path if path.exists() else name]


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir()


def _is_model(path: Path) -> bool:
    """Return whether a path that nobody has named by itself is a model; other files of a run are none."""
    return path.suffix in (".ckpt", ".pt") if path.is_file() else _is_run(path) or (path / "config.json").is_file()


def _jobs(folder: Path) -> list[Path]:
    """Return the runs of a sweep's folder, in the order of their numbers; none: it is no such folder."""
    if not (folder / "multirun.yaml").is_file():
        return []
    jobs = [config.parent for config in folder.glob("*/config.yaml") if _is_run(config.parent)]
    return sorted(jobs, key=lambda job: (len(job.name), job.name))


def _named(path: Path | str, name: str, checkpoint: str) -> NamedModel:
    run = Path(path) if _is_run(Path(path)) else None
    if run is None and os.path.isfile(path) and _is_run(Path(path).absolute().parent.parent):
        run, checkpoint = Path(path).absolute().parent.parent, Path(path).name
    if run is None:
        return NamedModel(name=name, path=str(path))
    if checkpoint == "best" and not (run / "checkpoints" / "best.ckpt").is_file():
        checkpoint = "last"  # as `load_model` falls back
    settings = read_settings(run / "config.yaml")
    with naming(run / "config.yaml"):
        parse_saved_model(settings.get("model"))
        for group, own in (("data", "segment_len"), ("eval", "segment_len"), ("trainer", "precision")):
            if own not in settings.get(group, {}):
                raise UserError(f"it is of another version: {group}.{own} is missing")
    return NamedModel(name=name, path=str(path), run=run, checkpoint=checkpoint, settings=settings)


def _short_names(paths: Sequence[Path | str]) -> list[str]:
    """Return what the jobs of a sweep vary, or the last parts of paths, as many as tell them apart."""
    candidates = [[_varied(Path(path)) for path in paths]]
    candidates += [["/".join(Path(path).parts[-count:]) for path in paths] for count in range(1, 9)]
    found = (names for names in candidates if all(names) and len(set(names)) == len(paths))
    return next(found, list(map(str, paths)))


def _varied(run: Path) -> str:
    """Return the settings in which a job differs from others of its sweep; empty: it is no job of a sweep."""
    overrides = {
        path.parent.name: json.loads(path.read_text(encoding="utf-8"))["overrides"]
        for path in run.parent.glob("*/job.json")
    }
    own = overrides.get(run.name, [])
    return " ".join(line for line in own if any(line not in other for other in overrides.values()))
