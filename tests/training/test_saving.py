"""Checkpoints: whole or not there at any moment, found out when damaged, refused when they do not belong."""

from __future__ import annotations

import copy
import dataclasses
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import REPOSITORY, TINY_MODEL, Outcome, read_values, tiny_overrides
from transformer_xl import checkpoint_fit, resuming
from transformer_xl.config import Config
from transformer_xl.errors import DamagedError, UserError
from transformer_xl.interop import native
from transformer_xl.interop.load import load_model
from transformer_xl.interop.native import CHECKPOINT_FORMAT, read_checkpoint
from transformer_xl.model.memory import HiddenMemory, Memory, StateMemory
from transformer_xl.sealing import SEALED
from transformer_xl.training import saved_memory
from transformer_xl.training.callbacks.checkpoint import Checkpoints
from transformer_xl.training.checkpoint_file import CheckpointFile, link

Run = Callable[..., Outcome]
EACH_STEP = ["callbacks.checkpoint.every_n_train_steps=1", "scheduler.total_steps=6"]
DROPOUT = ["model.dropout=0.2", "model.dropatt=0.1"]


def steps_in(folder: Path) -> dict[str, int]:
    """The step of each checkpoint of a run; what is no checkpoint counts as -1."""
    files = sorted((folder / "checkpoints").iterdir())
    return {path.name: read_checkpoint(path)["global_step"] if path.suffix == ".ckpt" else -1 for path in files}


def flip_bit(path: Path, place: int | None = None) -> None:
    """Change one bit; in the middle, where tensors lie, unless told otherwise."""
    content = bytearray(path.read_bytes())  # other names of the same file must not change
    content[len(content) // 2 if place is None else place] ^= 4
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


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        pytest.param(1, {}, marks=pytest.mark.slow),
        pytest.param(2, {"step-4.ckpt": 4}, marks=pytest.mark.slow),
        (3, {"step-3.ckpt": 3, "step-4.ckpt": 4}),
    ],
)
def test_so_many_checkpoints_are_kept_over_a_stop(tiny_run: Run, keep: int, kept: dict[str, int]) -> None:
    first = tiny_run(*EACH_STEP, f"callbacks.checkpoint.keep={keep}", "trainer.max_steps=3")
    before = {f"step-{step}.ckpt": step for step in range(4 - keep, 3)}
    assert steps_in(first.folder) == {"best.ckpt": 3, "last.ckpt": 3, **before}
    assert tiny_run(f"resume={first.folder}", "trainer.max_steps=5", base=False).status == 0
    assert steps_in(first.folder) == {"best.ckpt": 5, "last.ckpt": 5, **kept}


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


def test_what_is_kept_is_the_checkpoint_as_it_was_written(tiny_run: Run) -> None:
    short = tiny_run(*EACH_STEP, "trainer.max_steps=2", name="short")
    longer = tiny_run(*EACH_STEP, "trainer.max_steps=3", "trainer.val_check_interval=2", name="longer")
    kept, last = longer.checkpoint("step-2"), short.checkpoint()
    for part in ("state_dict", "optimizer_states", "train_memory"):
        assert_equal(kept[part], last[part])


def test_linking_a_file_to_its_own_other_name_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").write_text("a")
    for _ in range(2):
        link(tmp_path / "a.ckpt", tmp_path / "b.ckpt")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ckpt", "b.ckpt"]


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


def test_every_changed_bit_is_found(checkpoint_path: Path) -> None:
    size = checkpoint_path.stat().st_size
    draw = random.Random(1)
    places = [*range(0, 8), *range(size - 40, size), *(draw.randrange(size) for _ in range(150))]
    places += [draw.randrange(size - 12_000, size) for _ in range(50)]  # the archive's table of contents
    for place in places:
        damaged = checkpoint_path.with_name("damaged.ckpt")
        shutil.copy(checkpoint_path, damaged)
        flip_bit(damaged, place)
        with pytest.raises(DamagedError, match=r"damaged\.ckpt is damaged"):
            read_checkpoint(damaged)


def test_a_cut_off_checkpoint_is_found(checkpoint_path: Path) -> None:
    whole = checkpoint_path.read_bytes()
    for length in (0, 1, 10, 1000, len(whole) // 2, *range(len(whole) - 40, len(whole))):
        checkpoint_path.write_bytes(whole[:length])
        with pytest.raises(DamagedError, match=r"last\.ckpt is damaged"):
            read_checkpoint(checkpoint_path)


def test_any_reader_of_such_archives_reads_a_checkpoint(checkpoint_path: Path) -> None:
    contents = torch.load(checkpoint_path, weights_only=True)
    mapped = torch.load(checkpoint_path, weights_only=True, mmap=True)
    assert_equal(contents["state_dict"], mapped["state_dict"])
    assert contents["global_step"] == 4


@pytest.mark.parametrize(
    ("damaged", "source"),
    [
        pytest.param([], "last", marks=pytest.mark.slow),
        (["last"], "step-3"),
        pytest.param(["last", "step-3"], "step-2", marks=pytest.mark.slow),
        pytest.param(["last", "step-3", "step-2"], "step-1", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_resume_goes_on_from_the_newest_whole_checkpoint_to_the_same_end(
    tiny_run: Run, stopped: Outcome, capsys: pytest.CaptureFixture[str], damaged: list[str], source: str
) -> None:
    whole = tiny_run(*EACH_STEP, *DROPOUT, "callbacks.checkpoint.keep=4", name="whole")
    for name in damaged:
        flip_bit(stopped.folder / "checkpoints" / f"{name}.ckpt")
    capsys.readouterr()
    assert tiny_run(f"resume={stopped.folder}", "trainer.max_steps=6", base=False).status == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if "is damaged" in line]
    assert len(notes) == (1 if damaged else 0)
    assert all(note.endswith(f"going on from {source}.ckpt") for note in notes)
    assert read_values(stopped.folder, "train/loss") == whole.values("train/loss")
    assert_equal(stopped.checkpoint()["state_dict"], whole.checkpoint()["state_dict"])
    assert_equal(stopped.checkpoint()["train_memory"], whole.checkpoint()["train_memory"])
    assert steps_in(stopped.folder) == steps_in(whole.folder)  # nothing damaged is left


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
        (stopped.folder / "checkpoints" / f"{name}.ckpt.tmp").write_bytes(b"half")
    assert tiny_run(f"resume={stopped.folder}", "trainer.max_steps=5", base=False).status == 0
    assert not list(stopped.folder.rglob("*.tmp"))


def test_a_missing_last_checkpoint_is_as_a_damaged_one(
    tiny_run: Run, stopped: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    (stopped.folder / "checkpoints" / "last.ckpt").unlink()
    assert tiny_run(f"resume={stopped.folder}", "trainer.max_steps=6", base=False).status == 0
    assert "last.ckpt is missing: going on from step-3.ckpt" in capsys.readouterr().out
    assert list(stopped.values("train/loss")) == [1, 2, 3, 4, 5, 6]


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_left_alone(
    tiny_run: Run, stopped: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    files = list((stopped.folder / "checkpoints").glob("*.ckpt"))
    for path in files:
        path.write_bytes(path.read_bytes()[:5000])
    capsys.readouterr()
    assert tiny_run(f"resume={stopped.folder}", "trainer.max_steps=6", base=False).status == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(f"step-{step}.ckpt is damaged" in error for step in (1, 2, 3))
    assert "last.ckpt is damaged" in error
    assert all(path.stat().st_size == 5000 for path in files)


def test_a_run_without_checkpoints_is_told_apart_from_a_damaged_one(tmp_path: Path) -> None:
    assert resuming.newest_checkpoint(tmp_path) is None
    (tmp_path / "checkpoints").mkdir()
    assert resuming.newest_checkpoint(tmp_path) is None


def test_a_newer_format_is_refused_with_both_numbers_and_not_passed_over(
    tiny_run: Run, stopped: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = stopped.checkpoint()
    write_checkpoint(stopped.folder, {**contents, "format_version": CHECKPOINT_FORMAT + 1})
    capsys.readouterr()
    assert tiny_run(f"resume={stopped.folder}", "trainer.max_steps=6", base=False).status == 2
    error = capsys.readouterr().err
    assert f"format {CHECKPOINT_FORMAT + 1}" in error
    assert f"reads {CHECKPOINT_FORMAT}" in error
    assert error.count("\n") == 1


def test_a_damaged_best_checkpoint_is_not_evaluated(stopped: Outcome) -> None:
    flip_bit(stopped.folder / "checkpoints" / "best.ckpt")
    with pytest.raises(UserError, match=r"best\.ckpt is damaged"):
        load_model(stopped.folder)


def write_checkpoint(folder: Path, contents: dict[str, Any]) -> None:
    """Put another `last.ckpt` in the place of a run's, the only one it has."""
    for path in (folder / "checkpoints").glob("*.ckpt"):
        path.unlink()
    CheckpointFile().save_checkpoint(
        {name: value for name, value in contents.items() if name != SEALED}, folder / "checkpoints" / "last.ckpt"
    )


# --- what does not belong ---


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (["model.d_model=32"], ["is of another run", "model.d_model is 32 in it and 16 here"]),
        (["optimizer=sgd"], ["is of another run", "optimizer.kind is 'sgd' in it and 'adam' here"]),
        (["data.tokenizer=char"], ["data.tokenizer 'byte' gives another vocabulary"]),
        (["model.n_layer=1"], ["is of another run", "model.n_layer is 1 in it and 2 here"]),
        (["seed=7"], ["is of another run", "seed is 7 in it and 1 here"]),
    ],
    ids=lambda value: value[0] if value else "",
)
def test_a_checkpoint_of_another_run_is_refused(
    tiny_run: Run, capsys: pytest.CaptureFixture[str], other: list[str], words: list[str]
) -> None:
    first = tiny_run("trainer.max_steps=1", "scheduler.total_steps=6", name="first")
    second = tiny_run("trainer.max_steps=1", "scheduler.total_steps=6", *other, name="second")
    assert second.status == 0
    shutil.copy(second.folder / "checkpoints" / "last.ckpt", first.folder / "checkpoints" / "last.ckpt")
    capsys.readouterr()
    assert tiny_run(f"resume={first.folder}", "trainer.max_steps=2", base=False).status == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(word in error for word in words), error


@pytest.mark.parametrize(
    "settings",
    [
        ["optimizer=sgd", "optimizer.momentum=0"],
        ["optimizer=sgd", "optimizer.momentum=0.9"],
        ["optimizer=adamw", "trainer.precision=bf16-true"],
        ["scheduler=plateau", "trainer.precision=64-true", "callbacks.weight_average.start_step=2"],
        ["data.tokenizer=word", "model.cutoffs=[4,20]", "model.div_val=2", "trainer.precision=bf16-mixed"],
        ["model.mem_len=0", "data.lane_chunks=2", "trainer.accumulate_grad_batches=2"],
    ],
    ids=lambda settings: settings[0],
)
def test_a_runs_own_checkpoint_fits_it(tiny_run: Run, settings: list[str]) -> None:
    stopped = tiny_run("trainer.max_steps=3", "scheduler=constant", *settings)
    assert stopped.status == 0
    assert tiny_run(f"resume={stopped.folder}", "trainer.max_steps=4", base=False).status == 0
    assert stopped.checkpoint()["global_step"] == 4


@dataclasses.dataclass(frozen=True)
class Resume:
    """A run about to go on: what its checkpoint is compared with."""

    checkpoint: dict[str, Any]
    parts: dict[str, Any]

    def refusal(self, checkpoint: dict[str, Any], monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
        """Give the sentence that a changed checkpoint ends in; none where it is taken."""
        path = folder / "checkpoints" / "last.ckpt"
        path.parent.mkdir(exist_ok=True)
        path.touch()
        monkeypatch.setattr(native, "read_torch", lambda path: checkpoint)
        try:
            found = resuming.newest_checkpoint(folder)
            assert found is not None
            config: Config = self.parts["config"]
            resuming.check_belongs(path, found.contents, config)
            checkpoint_fit.check_fits(path, found.contents, **self.parts)
        except UserError as error:
            sentence = str(error)
        else:
            return ""
        assert sentence.startswith(str(path))
        assert "\n" not in sentence
        return sentence


@pytest.fixture
def resume(tiny_run: Run, monkeypatch: pytest.MonkeyPatch) -> Resume:
    first = tiny_run("trainer.max_steps=3", "scheduler.total_steps=6")
    held: list[Resume] = []

    def hold(path: Path, checkpoint: dict[str, Any], **parts: Any) -> None:
        held.append(Resume(first.checkpoint(), parts))
        raise UserError("held")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_fit, "check_fits", hold)
        assert tiny_run(f"resume={first.folder}", "trainer.max_steps=6", base=False).status == 2
    (resume,) = held
    return resume


def places_in(value: object, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield (*before, key)
        yield from places_in(child, (*before, key))


def changed(checkpoint: dict[str, Any], place: tuple[Any, ...], value: object = None) -> dict[str, Any]:
    """Copy a checkpoint with another value at one place, or without what is there."""
    result = copy.deepcopy(checkpoint)
    *way, last = place
    node: Any = result
    for key in way:
        node = node[key]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return result


UNREAD = ("loops", "validate_loop"), ("loops", "test_loop"), ("loops", "predict_loop"), ("callbacks", "Checkpoints")


def needed_places(checkpoint: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Every place of a checkpoint that a resume reads, but for most of the vocabulary and of the weights."""
    names = list(checkpoint["state_dict"])
    places = []
    for place in places_in(checkpoint):
        if place[0] in (SEALED, "config", "vocabulary") and len(place) > 1:
            continue
        if place[0] == "state_dict" and len(place) > 1 and place[1] not in (names[0], names[-1]):
            continue
        if place[:3] == ("optimizer_states", 0, "state") and len(place) > 3 and place[3] not in (0, 27):
            continue
        if place[:2] in UNREAD or place == (SEALED,):
            continue
        places.append(place)
    return places


def test_a_checkpoint_that_lacks_any_part_is_refused_in_one_sentence(
    resume: Resume, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert resume.refusal(resume.checkpoint, monkeypatch, tmp_path) == ""
    places = needed_places(resume.checkpoint)
    assert len(places) > 150
    taken = [p for p in places if not resume.refusal(changed(resume.checkpoint, p), monkeypatch, tmp_path)]
    assert taken == []


@pytest.mark.parametrize("value", ["text", [1], {"a": 1}, torch.zeros(3, 5)], ids=lambda value: type(value).__name__)
def test_a_part_of_another_type_is_refused_in_one_sentence(
    resume: Resume, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: object
) -> None:
    taken = []
    for place in needed_places(resume.checkpoint):
        present: Any = resume.checkpoint
        for key in place:
            present = present[key]
        is_other = type(present) is not type(value) or isinstance(value, Tensor)
        is_other &= present is not None
        if is_other and not resume.refusal(changed(resume.checkpoint, place, value), monkeypatch, tmp_path):
            taken.append(place)
    assert taken == []


def test_a_checkpoint_without_this_programs_callbacks_is_refused(
    resume: Resume, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = Checkpoints.__qualname__
    sentence = resume.refusal(changed(resume.checkpoint, ("callbacks", name)), monkeypatch, tmp_path)
    assert f"callbacks.{name}" in sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_LBMD": torch.zeros(2, 3, 7, 16)}, "(2, 3, 7, 16), and must have (2, 4, 7, 16)"),
        ({"hidden_LBMD": torch.zeros(2, 4, 9, 16)}, "9 slots"),
        ({"hidden_LBMD": torch.zeros(2, 4, 7, 16, dtype=torch.float64)}, "torch.float64"),
        ({"length_B": torch.tensor([7, 7, 7, 8])}, "lengths"),
        ({"mem_len": 9}, "mem_len 9"),
        ({"kind": "state"}, "is no memory"),
        ({"kind": "state", "state_KLBD": torch.zeros(1, 2, 4, 16)}, "is no memory"),
    ],
    ids=["lanes", "slots", "type", "lengths", "mem_len", "kind", "other kind"],
)
def test_a_memory_that_does_not_fit_is_refused(
    resume: Resume, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    memory = {**resume.checkpoint["train_memory"], **changes}
    assert words in resume.refusal({**resume.checkpoint, "train_memory": memory}, monkeypatch, tmp_path)


# --- killed, or without room, while it writes ---

WRAPPER = """
import os, resource, signal, sys, torch
from pathlib import Path
from transformer_xl.training import checkpoint_file

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
from transformer_xl.commands import command_line
from transformer_xl.commands.train import train
raise SystemExit(command_line.run("train", train, sys.argv[4:]))
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


@pytest.mark.parametrize(
    ("event", "number", "step"),
    [
        ("save", 3, 2),  # in the middle of a file
        pytest.param("save", 4, 3, marks=pytest.mark.slow),
        pytest.param("replace", 3, 2, marks=pytest.mark.slow),  # the file is there, under its temporary name
        pytest.param("link", 2, 2, marks=pytest.mark.slow),  # before the one before has its second name
        pytest.param("link", 3, 3, marks=pytest.mark.slow),  # last.ckpt is the best, and best.ckpt is not yet
    ],
)
def test_a_run_killed_while_it_saves_goes_on_from_a_whole_checkpoint(
    tiny_run: Run, text_file: Path, tmp_path: Path, event: str, number: int, step: int
) -> None:
    base = [*EACH_STEP, *DROPOUT]
    folder = tmp_path / "killed"
    arguments = [*tiny_overrides(text_file, tmp_path), *base, f"hydra.run.dir={folder}"]
    done = run_wrapped(event, number, "kill", arguments, tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert read_checkpoint(folder / "checkpoints" / "last.ckpt")["global_step"] == step
    assert list((folder / "checkpoints").glob("*.tmp")) or event == "link"
    whole = tiny_run(*base, name="whole")
    assert tiny_run(f"resume={folder}", base=False).status == 0
    assert read_values(folder, "train/loss") == whole.values("train/loss")
    assert steps_in(folder) == steps_in(whole.folder)
    assert_equal(read_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"], whole.checkpoint()["state_dict"])


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
    assert "MB" in done.stderr
    assert Outcome(folder, 2, "", "").summary["status"] == "failed"
    steps.pop("best.ckpt", None)
    assert steps_in(folder) == steps


@pytest.mark.slow
def test_a_full_disk_met_by_the_figures_ends_the_run_in_one_sentence(
    tiny_run: Run, text_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "full"
    arguments = [*tiny_overrides(text_file, tmp_path), *EACH_STEP, f"hydra.run.dir={folder}"]
    done = run_wrapped("replace", 2, "100", arguments, tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"{folder}/metrics.jsonl cannot be used: File too large" in done.stderr  # and not that of summary.json
    assert tiny_run(f"resume={folder}", base=False).status == 0
    assert list(read_values(folder, "train/loss")) == [1, 2, 3, 4, 5, 6]


def test_a_folder_that_vanishes_during_the_run_is_not_made_again(
    tiny_run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    save = CheckpointFile.save_checkpoint

    def vanish(self: CheckpointFile, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        shutil.rmtree(tmp_path / "run")
        save(self, checkpoint, path)

    monkeypatch.setattr(CheckpointFile, "save_checkpoint", vanish)
    assert tiny_run().status == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "checkpoints/last.ckpt cannot be written: No such file or directory" in error
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.slow
def test_two_processes_end_when_the_first_cannot_save(text_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "full"
    arguments = [*tiny_overrides(text_file, tmp_path), "trainer.devices=2", f"hydra.run.dir={folder}"]
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(
        "import os, resource, sys\n"
        "from transformer_xl.training.checkpoint_file import CheckpointFile as F\n"
        "def save(self, checkpoint, path, storage_options=None, save=F.save_checkpoint):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        "    save(self, checkpoint, path)\n"
        "F.save_checkpoint = save\n"
        "from transformer_xl.commands import command_line\n"
        "from transformer_xl.commands.train import train\n"
        "raise SystemExit(command_line.run('train', train))\n"
    )
    done = subprocess.run(
        [sys.executable, str(wrapper), *arguments],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("last.ckpt cannot be written: File too large") == 1
    assert steps_in(folder) == {}


# --- memory ---


def memories() -> list[Memory]:
    rows, length_B = torch.randn(2, 3, 5, 4), torch.tensor([5, 2, 0])
    return [
        HiddenMemory(hidden_LBMD=rows, length_B=length_B, mem_len=5),
        StateMemory(state_KLBD=torch.randn(2, 2, 3, 4), mem_len=1),
    ]


@pytest.mark.parametrize("memory", memories(), ids=lambda memory: memory.kind)
@pytest.mark.parametrize("rounded", [False, True])
def test_a_packed_memory_comes_back(memory: Memory, rounded: bool) -> None:
    back = saved_memory.unpacked(saved_memory.packed(memory, rounded=rounded))
    assert type(back) is type(memory)
    for name, value in memory.state_dict().items():
        found = back.state_dict()[name]
        if isinstance(value, Tensor) and value.is_floating_point() and rounded:
            assert found.dtype == value.dtype
            assert torch.equal(found, value.to(torch.bfloat16).to(value.dtype))
            assert not torch.equal(found, value)
        else:
            assert_equal(found, value)


@pytest.mark.parametrize("memory", memories(), ids=lambda memory: memory.kind)
def test_a_packed_memory_holds_nothing_but_its_lanes(memory: Memory) -> None:
    wide = memory.state_dict()
    views = {
        name: torch.cat([value, value])[: len(value)] if isinstance(value, Tensor) else value
        for name, value in wide.items()
    }
    view = saved_memory.memory_from_state_dict(views)
    for value in saved_memory.packed(view, rounded=False).values():
        if isinstance(value, Tensor):
            assert value.untyped_storage().nbytes() == value.nbytes


@pytest.mark.parametrize(
    "kind",
    [
        "txl_base",
        pytest.param("lstm", marks=pytest.mark.slow),
        pytest.param("transformer_rope", marks=pytest.mark.slow),
    ],
)
def test_memory_is_saved_as_asked_for(
    tiny_run: Run, text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    sizes = ["model.n_layer=2", "model.d_model=16"] if kind == "lstm" else TINY_MODEL
    others = [override for override in tiny_overrides(text_file, tmp_path) if not override.startswith("model.")]
    base = [f"model={kind}", *sizes, *others, "data.lane_chunks=2", "trainer.log_every_n_steps=1"]
    whole = tiny_run(*base, base=False, name="whole")
    assert whole.status == 0
    expected = whole.values("train/loss")
    for form in ("float32", "bfloat16", "none"):
        setting = f"callbacks.checkpoint.save_memory={form}"
        few = ["trainer.max_steps=3", "scheduler.total_steps=6"]
        stopped = tiny_run(*base, *few, setting, base=False, name=form)
        memory = stopped.checkpoint()["train_memory"]
        floats = (
            []
            if memory is None
            else [v.dtype for v in memory.values() if isinstance(v, Tensor) and v.is_floating_point()]
        )
        assert floats == {"float32": [torch.float32], "bfloat16": [torch.bfloat16], "none": []}[form]
        capsys.readouterr()
        assert tiny_run(f"resume={stopped.folder}", "trainer.max_steps=6", base=False).status == 0
        notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note     the checkpoint")]
        losses = read_values(stopped.folder, "train/loss")
        if form == "float32":
            assert losses == expected
            assert notes == []
        elif form == "bfloat16":
            assert losses != expected
            assert losses == pytest.approx(expected, abs=2e-3)
            assert "rounded to bfloat16" in notes[0]
        else:
            assert losses[4] != expected[4]
            assert "holds no memory" in notes[0]


def test_memory_of_float64_is_saved_in_full(tiny_run: Run) -> None:
    outcome = tiny_run("trainer.precision=64-true")
    assert outcome.checkpoint()["train_memory"]["hidden_LBMD"].dtype == torch.float64


def test_a_run_without_saved_memory_starts_every_lane_with_an_empty_one(
    tiny_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = tiny_run("trainer.max_steps=3", "scheduler.total_steps=6", "callbacks.checkpoint.save_memory=none")
    again = tiny_run(
        f"resume={stopped.folder}", "trainer.max_steps=4", "callbacks.checkpoint.save_memory=float32", base=False
    )
    assert again.status == 0
    assert stopped.checkpoint()["train_memory"]["length_B"].tolist() == [5] * 4  # what one segment left


def test_rounded_memory_makes_the_file_smaller(tiny_run: Run) -> None:
    sizes = {}
    for form in ("float32", "bfloat16", "none"):
        outcome = tiny_run(
            f"callbacks.checkpoint.save_memory={form}", "model.mem_len=100", "trainer.max_steps=20", name=form
        )
        sizes[form] = (outcome.folder / "checkpoints" / "last.ckpt").stat().st_size
    memory = 2 * 4 * 100 * 16
    assert sizes["float32"] - sizes["bfloat16"] == pytest.approx(2 * memory, abs=1000)
    assert sizes["bfloat16"] - sizes["none"] == pytest.approx(2 * memory, abs=1000)
