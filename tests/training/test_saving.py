"""Checkpoints: whole or not there at any moment, found out when damaged, refused when they do not belong."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import REPOSITORY, Outcome, tiny_overrides
from transformer_xl.errors import DamagedError, UserError
from transformer_xl.interop.load import load_model
from transformer_xl.interop.native import CHECKPOINT_FORMAT, read_checkpoint
from transformer_xl.training.checkpoint import CheckpointFile

Run = Callable[..., Outcome]
EACH_STEP = ["callbacks.checkpoint.every_n_train_steps=1", "scheduler.total_steps=6"]
DROPOUT = ["model.dropout=0.2", "model.dropatt=0.1"]


def steps_in(folder: Path) -> dict[str, int]:
    """The step of each checkpoint of a run; what is no checkpoint counts as -1."""
    files = sorted((folder / "checkpoints").iterdir())
    return {path.name: read_checkpoint(path)["global_step"] if path.suffix == ".ckpt" else -1 for path in files}


def flip_bit(path: Path, place: int | None = None) -> None:
    """Change one bit; or several in the middle, where tensors and some padding lie."""
    content = bytearray(path.read_bytes())  # other names of the same file must not change
    middle, step = len(content) // 2, len(content) // 50
    for at in range(middle - 9 * step, middle + 9 * step, step) if place is None else [place]:
        content[at] ^= 4
    path.unlink()
    path.write_bytes(content)


def assert_equal(one: Any, other: Any) -> None:
    """Compare containers of tensors to the bit."""
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert_equal(value, other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_equal(first, second)
    else:
        assert one == other


def test_another_number_may_be_kept_after_a_stop(tiny_run: Run) -> None:
    first = tiny_run(*EACH_STEP, "callbacks.checkpoint.keep=4", "trainer.max_steps=4")
    tiny_run(f"resume={first.folder}", "trainer.max_steps=5", "callbacks.checkpoint.keep=2", base=False)
    assert steps_in(first.folder) == {"best.ckpt": 5, "last.ckpt": 5, "step-4.ckpt": 4}


def test_a_file_system_without_links_gets_copies(tiny_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(95, os.strerror(95), str(source))

    monkeypatch.setattr(os, "link", refuse)
    outcome = tiny_run(*EACH_STEP, "trainer.max_steps=3")
    assert steps_in(outcome.folder) == {"best.ckpt": 3, "last.ckpt": 3, "step-2.ckpt": 2}


# --- damage ---


@pytest.fixture
def stopped(tiny_run: Run) -> Outcome:
    """A run of six steps at its fourth, with the three checkpoints before it."""
    outcome = tiny_run(*EACH_STEP, *DROPOUT, "callbacks.checkpoint.keep=4", "trainer.max_steps=4", name="stopped")
    assert outcome.status == 0
    return outcome


@pytest.fixture
def checkpoint_path(stopped: Outcome) -> Path:
    return stopped.folder / "checkpoints" / "last.ckpt"


def test_no_changed_bit_changes_a_number_silently(checkpoint_path: Path) -> None:
    whole = read_checkpoint(checkpoint_path)
    size = checkpoint_path.stat().st_size
    draw = random.Random(1)
    places = [*range(0, 8), *range(size - 40, size), *(draw.randrange(size) for _ in range(150))]
    places += [draw.randrange(size - 12_000, size) for _ in range(50)]  # the archive's table of contents
    for place in places:
        damaged = checkpoint_path.with_name("damaged.ckpt")
        shutil.copy(checkpoint_path, damaged)
        flip_bit(damaged, place)
        try:
            contents = read_checkpoint(damaged)
        except DamagedError:
            continue
        assert_equal(contents, whole)  # padding between tensors, or a date


def test_a_cut_off_checkpoint_is_found(checkpoint_path: Path) -> None:
    whole = checkpoint_path.read_bytes()
    for length in (0, 1, 10, 1000, len(whole) // 2, *range(len(whole) - 40, len(whole))):
        checkpoint_path.write_bytes(whole[:length])
        with pytest.raises(DamagedError, match=r"last\.ckpt is damaged"):
            read_checkpoint(checkpoint_path)


def test_a_run_that_fell_back_keeps_nothing_newer_than_where_it_went_on(tiny_run: Run, stopped: Outcome) -> None:
    folder = stopped.folder / "checkpoints"
    for name in ("last", "step-3"):
        flip_bit(folder / f"{name}.ckpt")
    override = "callbacks.checkpoint.every_n_train_steps=5"  # the first save comes after the damaged ones' steps
    more = [override, "trainer.max_steps=5", "trainer.val_check_interval=50"]
    assert tiny_run(f"resume={stopped.folder}", *more, base=False).status == 0
    assert steps_in(stopped.folder).keys() == {"best.ckpt", "last.ckpt", "step-1.ckpt", "step-2.ckpt"}


def test_what_a_killed_process_had_begun_is_cleared_away(tiny_run: Run, stopped: Outcome) -> None:
    for name in ("last", "best", "step-2"):
        (stopped.folder / "checkpoints" / f".{name}.ckpt.0a.tmp").write_bytes(b"half")
    assert tiny_run(f"resume={stopped.folder}", "trainer.max_steps=5", base=False).status == 0
    assert not list(stopped.folder.rglob("*.tmp"))


@pytest.mark.parametrize("version", [CHECKPOINT_FORMAT - 1, CHECKPOINT_FORMAT + 1])
def test_a_run_of_another_version_is_refused_with_it(
    tiny_run: Run, stopped: Outcome, capsys: pytest.CaptureFixture[str], version: int
) -> None:
    path = stopped.folder / "checkpoints" / "last.ckpt"
    CheckpointFile().save_checkpoint({**stopped.checkpoint(), "format_version": version}, path)
    capsys.readouterr()
    assert tiny_run(f"resume={stopped.folder}", "trainer.max_steps=6", base=False).status == 2
    error = capsys.readouterr().err
    assert f"format {version}" in error
    assert error.count("\n") == 1


def test_a_damaged_best_checkpoint_is_not_evaluated(stopped: Outcome) -> None:
    flip_bit(stopped.folder / "checkpoints" / "best.ckpt")
    with pytest.raises(UserError, match=r"best\.ckpt is damaged"):
        load_model(stopped.folder)


# --- killed, or without room, while it writes ---

WRAPPER = """
import os, resource, signal, sys, torch
from pathlib import Path
from transformer_xl.training import checkpoint as checkpoint_file

calls = {"save": 0, "replace": 0, "link": 0}
event, number, action = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def happens(name):
    calls[name] += 1
    if (name, calls[name]) != (event, number):
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(action), resource.RLIM_INFINITY))

def save(contents, file, save=torch.save):
    class Halved:
        def __init__(self): self.written = 0
        def write(self, data):
            if self.written > 50_000:
                happens("save")
                self.written = -1_000_000_000
            self.written += len(data)
            return file.write(data)
        def flush(self): file.flush()
    save(contents, Halved())

def replace(source, target, replace=os.replace):
    if Path(target).name == "last.ckpt":
        happens("replace")
    replace(source, target)

def link(source, target, link=os.link):
    happens("link")
    link(source, target)

torch.save, os.replace, os.link = save, replace, link
from transformer_xl.commands import cli
from transformer_xl.commands.train import train_by_command as train
raise SystemExit(cli.run("train", train, sys.argv[4:]))
"""


def run_wrapped(
    event: str, number: int, action: str, arguments: list[str], cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Train in a process of its own that kills itself, or has no more room, at one moment of saving."""
    path = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WRAPPER), event, str(number), action, *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_best_checkpoint_is_named_again_where_a_kill_came_first(tiny_run: Run) -> None:
    """A learning rate that grows until the loss does: the best validation is not the last."""
    growing = ["optimizer=sgd", "optimizer.lr=100", "scheduler=constant", "scheduler.warmup_steps=100"]
    base = [*growing, "trainer.gradient_clip_val=null", "trainer.val_check_interval=1"]
    scores = tiny_run(*base, "trainer.max_steps=4", name="whole").values("val/loss")
    best = min(scores, key=lambda step: scores[step] or 0.0)
    assert best < 4
    killed = tiny_run(*base, f"trainer.max_steps={best}", name="killed")
    (killed.folder / "checkpoints" / "best.ckpt").unlink()
    assert tiny_run(f"resume={killed.folder}", "trainer.max_steps=4", base=False).status == 0
    assert killed.checkpoint("best")["global_step"] == best


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "steps"),
    [
        pytest.param(1, {}, marks=pytest.mark.slow),
        (3, {"best.ckpt": -1, "last.ckpt": 2, "step-1.ckpt": 1, "step-2.ckpt": 2}),
    ],
    ids=["first", "later"],
)
def test_a_full_disk_ends_the_run_in_one_sentence_and_leaves_the_checkpoint_before(
    text_file: Path, tmp_path: Path, number: int, steps: dict[str, int]
) -> None:
    folder = tmp_path / "full"
    arguments = [*tiny_overrides(text_file, tmp_path), *EACH_STEP, f"hydra.run.dir={folder}"]
    done = run_wrapped("save", number, "100000", arguments, tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"{folder}/checkpoints/last.ckpt cannot be written: File too large" in done.stderr
    assert Outcome(folder, 2, "", "").summary["status"] == "failed"
    steps.pop("best.ckpt", None)
    assert steps_in(folder) == steps


# --- memory ---


def test_a_run_without_saved_memory_starts_every_lane_with_an_empty_one(
    tiny_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = tiny_run("trainer.max_steps=3", "scheduler.total_steps=6", "callbacks.checkpoint.save_memory=false")
    again = tiny_run(
        f"resume={stopped.folder}", "trainer.max_steps=4", "callbacks.checkpoint.save_memory=true", base=False
    )
    assert again.status == 0
    assert stopped.checkpoint()["train_memory"]["length_B"].tolist() == [5] * 4  # what one segment left
