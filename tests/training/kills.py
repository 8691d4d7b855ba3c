"""Runs that are stopped at chosen moments, go on, and are compared with the run never stopped, to the bit."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from tests.conftest import TINY_MODEL, tiny_overrides
from tests.training.forked import Server, Stop

STATUSES = {"SIGKILL": -9, "SIGTERM": 143, "SIGUSR1": 75, "SIGINT": 130, "raise": 1}

NEVER = Stop(number=0)
"""A stop that does not come."""

_OF_THE_MACHINE = ("tokens_per_second", "mfu", "memory_")
_OF_THE_RUN = ("run_id", "config")


@dataclass(frozen=True)
class Life:
    """One job of a run: how it ended and what it printed."""

    status: int
    printed: str


class ToyRuns:
    """Starts runs below a folder, whole or in several lives."""

    def __init__(self, server: Server, text: Path, folder: Path) -> None:
        self.folder = folder
        self._server = server
        self._text = text
        self._whole: dict[tuple[str, ...], Path] = {}
        self._stopped = 0

    def whole(self, *overrides: str, processes: int = 1) -> Path:
        """Give the folder of the run never stopped; each is trained once."""
        key = (*overrides, str(processes))
        if key not in self._whole:
            folder = self.folder / f"whole-{len(self._whole)}"
            life = self.live([*self._command(overrides, processes), f"hydra.run.dir={folder}"], processes=processes)
            assert life.status == 0, life.printed
            self._whole[key] = folder
        return self._whole[key]

    def moments(self, folder: Path) -> dict[str, int]:
        """Tell how often the run never stopped passed each moment in its main process."""
        counts: dict[str, int] = json.loads(_moments_of(folder).read_text())
        return counts

    def stopped(
        self, *overrides: str, stops: Sequence[Stop | None], processes: int = 1, torn: bool = False, auto: bool = False
    ) -> Path:
        """Run with a stop in each life, each of which must happen, and then to the end; give the folder.

        Args:
            overrides: of the run.
            stops: of one life each; None: by `trainer.max_time`, after a few steps.
            processes: of each life.
            torn: leave half a line at the end of `metrics.jsonl` after each SIGKILL.
            auto: give the same command each time, with `resume=auto`.
        """
        self._stopped += 1
        folder = self.folder / f"stopped-{self._stopped}"
        for stop in stops:
            life = self.go_on(folder, *overrides, stop=stop, processes=processes, auto=auto)
            assert life.status == (0 if stop is None else STATUSES[stop.how]), life.printed
            assert stop is not None or "stopped" in life.printed
            log = folder / "metrics.jsonl"
            if torn and life.status == STATUSES["SIGKILL"] and log.exists():
                with log.open("a") as file:
                    file.write('{"step": 3, "tokens": 12, "na')
        last = self.go_on(folder, *overrides, processes=processes, auto=auto, stop=NEVER)
        assert last.status == 0, last.printed
        return folder

    def go_on(
        self,
        folder: Path,
        *overrides: str,
        stop: Stop | None,
        processes: int = 1,
        auto: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Life:
        """Start a run or go on with it, as far as a stop lets it; None: `trainer.max_time`."""
        limit = f"trainer.max_time={'00:00:00:05' if stop is None else 'null'}"
        start = [*self._command(overrides, processes), limit, f"hydra.run.dir={folder}"]
        if auto:
            arguments = [*start, "resume=auto"]
        elif (folder / "config.yaml").exists():
            arguments = [f"resume={folder}", limit]
        else:
            arguments = start
        ticks = 1.0 if stop is None else None
        return self.live(arguments, stop=stop, seconds_a_step=ticks, processes=processes, environment=environment)

    def live(
        self,
        arguments: list[str],
        *,
        stop: Stop | None = None,
        seconds_a_step: float | None = None,
        processes: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> Life:
        """Start the processes of one job and wait for their end; one that is killed takes the others along."""
        log = self.folder / "log.txt"
        log.unlink(missing_ok=True)
        folder = next(Path(a.partition("=")[2]) for a in arguments if a.startswith(("hydra.run.dir=", "resume=")))
        ranks = []
        for place in _places(processes):
            ranks.append(
                self._server.start(
                    arguments,
                    log=log,
                    environment={**(environment or {}), **place},
                    stop=stop,
                    counts=_moments_of(folder) if place.get("LOCAL_RANK", "0") == "0" else None,
                    seconds_a_step=seconds_a_step,
                )
            )
        statuses: dict[int, int] = {}
        while len(statuses) < len(ranks):
            statuses |= self._server.wait([rank for rank in ranks if rank not in statuses])
            if STATUSES["SIGKILL"] in statuses.values():
                self._server.kill([rank for rank in ranks if rank not in statuses])
        killed = STATUSES["SIGKILL"] in statuses.values()
        return Life(STATUSES["SIGKILL"] if killed else statuses[ranks[0]], log.read_text())

    def _command(self, overrides: Sequence[str], processes: int) -> list[str]:
        base = tiny_overrides(self._text, self.folder)
        if any(override.startswith("model=") for override in overrides):
            base = [override for override in base if override not in TINY_MODEL]
        if "logger=wandb" in overrides:
            base.remove("logger=none")
        return [*base, *overrides, f"trainer.devices={processes}"]


def _places(processes: int) -> list[dict[str, str]]:
    """What tells each of several processes its place; one process alone needs nothing."""
    if processes == 1:
        return [{}]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes), "NODE_RANK": "0"}
    return [{**shared, "LOCAL_RANK": str(rank)} for rank in range(processes)]


def _moments_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.moments.json")


def assert_same_run(folder: Path, whole: Path) -> None:
    """Compare all that two runs left: figures, checkpoints, samples and summary, to the bit."""
    assert _lines(folder) == _lines(whole)
    for name in ("last", "best"):
        one, other = (torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True) for run in (folder, whole))
        for checkpoint in (one, other):
            del checkpoint["callbacks"]["Recorder"]["figures"]["seconds"]  # of the window that is open
        assert list(differences(one, other, without=_OF_THE_RUN)) == [], name
    samples = [{path.name: path.read_text() for path in run.glob("samples/*")} for run in (folder, whole)]
    assert samples[0] == samples[1]
    assert _summary(folder) == _summary(whole)
    settings = [yaml.safe_load((run / "config.yaml").read_text()) for run in (folder, whole)]
    assert list(differences(*settings, without=("resume",))) == []


def differences(one: Any, other: Any, *, without: Sequence[str] = (), at: str = "") -> Iterator[str]:
    """Name the places at which two nested containers differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if key not in one or key not in other:
                yield f"{at}/{key}"
            elif at or key not in without:
                yield from differences(one[key], other[key], at=f"{at}/{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differences(left, right, at=f"{at}/{number}")
    elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype != other.dtype or not torch.equal(one, other):
            yield at
    elif one != other:
        yield f"{at}: {one!r} and {other!r}"


def _lines(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if not line["name"].startswith(_OF_THE_MACHINE)]


def _summary(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / "summary.json").read_text())
    del summary["command"]
    for values in summary["metrics"].values():
        values.pop("tokens_per_second", None)
    return dict(summary)
