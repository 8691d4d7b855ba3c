"""What lost people's work, or hung ("What people ran into", points 1 to 4, 10, 11, 13, 14, 17)."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.oracles.runs_support import (
    REPOSITORY,
    Forks,
    Result,
    Stop,
    assert_same_run,
    children_of,
    copy_run,
    made_up_text,
    program,
    step_of,
    summary_of,
    values_of,
    without,
)

Whole = Callable[..., Path]

SLOW = pytest.mark.slow

# validations of ten batches: after step 3 the batches 1 to 10, after step 6 (the last) 11 to 20
VALIDATED = ["trainer.limit_val_batches=10", "trainer.limit_test_batches=10"]


def ends_in_one_line(result: Result, *words: str) -> None:
    assert result.status == 2, result.printed
    assert "Traceback" not in result.printed
    assert result.err.strip().count("\n") == 0, result.err
    assert all(word in result.err for word in words), result.err


# --- 1: a validation or final report holds finished steps hostage ---


@pytest.mark.parametrize("batch", [13, pytest.param(17, marks=SLOW)])
def test_1_a_signal_in_the_final_validation_ends_it_at_the_next_batch(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path, batch: int
) -> None:
    stops = [Stop("validation_batch", batch, "SIGINT"), Stop("validation_batch", batch + 3)]
    result = forks.run("train", [*base, *VALIDATED, "hydra.run.dir=run"], tmp_path, stops=stops)
    assert result.status == 130, result.printed
    assert step_of(tmp_path / "run") == 6
    assert 6 not in values_of(tmp_path / "run", "val/loss")
    assert forks.run("train", ["resume=run"], tmp_path).status == 0
    assert_same_run(tmp_path / "run", whole(*VALIDATED))


def test_1_the_first_interruption_is_answered_at_once(forks: Forks, base: list[str], tmp_path: Path) -> None:
    """It is killed right after, and something was said by then."""
    stops = [Stop("validation_batch", 13, "SIGINT,pause,SIGKILL")]
    result = forks.run("train", [*base, *VALIDATED, "hydra.run.dir=run"], tmp_path, stops=stops)
    assert result.status == -9
    assert any("SIGINT" in line or "nterrupt" in line for line in result.printed.splitlines()), result.printed


@pytest.mark.parametrize("interval", [3, pytest.param(6, marks=SLOW)])
def test_1_a_second_interruption_leaves_every_finished_step(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path, interval: int
) -> None:
    """In the first validation that there is, before which no checkpoint was due."""
    settings = [*VALIDATED, f"trainer.val_check_interval={interval}"]
    stops = [Stop("validation_batch", 3, "SIGINT,SIGINT")]
    result = forks.run("train", [*base, *settings, "hydra.run.dir=run"], tmp_path, stops=stops)
    assert result.status == 130, result.printed
    assert step_of(tmp_path / "run") == interval
    assert forks.run("train", ["resume=run"], tmp_path).status == 0
    assert_same_run(tmp_path / "run", whole(*settings))


@pytest.mark.parametrize(
    ("settings", "moment", "number", "step"),
    [
        pytest.param([], "validation_batch", 3, 3, marks=SLOW),
        pytest.param([], "validation_batch", 13, 6, marks=SLOW),
        pytest.param(["trainer.val_check_interval=6"], "validation_batch", 1, 6, marks=SLOW),
        pytest.param(["scheduler=plateau", "trainer.val_check_interval=2"], "validation_batch", 13, 4, marks=SLOW),
        pytest.param(
            ["trainer.val_check_interval=null", "trainer.check_val_every_n_epoch=1"],
            *("validation_batch", 13, 6),
            marks=SLOW,
        ),
        pytest.param([], "test_batch", 3, 6, marks=SLOW),
    ],
)
def test_1_the_step_is_on_disk_before_a_validation_or_test_begins(
    forks: Forks,
    base: list[str],
    whole: Whole,
    tmp_path: Path,
    settings: list[str],
    moment: str,
    number: int,
    step: int,
) -> None:
    settings = [*VALIDATED, "trainer.limit_train_batches=3", *settings]
    stops = [Stop(moment, number)]
    result = forks.run("train", [*base, *settings, "hydra.run.dir=run"], tmp_path, stops=stops)
    assert result.status == -9, result.printed
    assert step_of(tmp_path / "run") == step
    assert forks.run("train", ["resume=run"], tmp_path).status == 0
    assert_same_run(tmp_path / "run", whole(*settings))


@pytest.mark.slow
def test_1_a_validation_may_be_killed_again_and_again(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path
) -> None:
    """The resume holds it before anything else, at the last step too."""
    assert forks.run("train", [*base, *VALIDATED, "hydra.run.dir=run"], tmp_path, stops=[Stop("test_batch", 1)]).status
    command = [*base, *VALIDATED, "hydra.run.dir=again"]
    for number in (13, 2, 2):
        assert forks.run("train", command, tmp_path, stops=[Stop("validation_batch", number)]).status == -9
        command = ["resume=again"]
    result = forks.run("train", command, tmp_path, stops=[Stop("train_batch", 1, "raise")])
    assert result.status == 0, result.printed
    assert_same_run(tmp_path / "again", whole(*VALIDATED))


# --- 2: standard output goes away ---


@pytest.mark.parametrize(
    ("reader", "bar"),
    [
        (["head", "-n1"], "true"),
        pytest.param(["true"], "false", marks=SLOW),
        pytest.param(["head", "-c1000"], "false", marks=SLOW),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_2_a_run_goes_on_without_a_screen(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path, reader: list[str], bar: str
) -> None:
    arguments = [*without(base, "trainer.enable_progress_bar"), f"trainer.enable_progress_bar={bar}"]
    result = forks.run("train", [*arguments, "hydra.run.dir=run"], tmp_path, reader=reader, both=True)
    assert result.status == 0, result.printed
    assert summary_of(tmp_path / "run")["status"] == "finished"
    assert_same_run(tmp_path / "run", whole())


def test_2_a_stop_without_a_screen_leaves_a_checkpoint(forks: Forks, base: list[str], tmp_path: Path) -> None:
    stops = [Stop("train_batch", 3, "SIGTERM")]
    arguments = [*base, "hydra.run.dir=run"]
    assert forks.run("train", arguments, tmp_path, stops=stops, reader=["true"], both=True).status == 143
    assert step_of(tmp_path / "run") == 3


@pytest.mark.parametrize("reader", [pytest.param(["true"], marks=SLOW), ["head", "-n1"]], ids=" ".join)
def test_2_an_evaluation_keeps_its_numbers(forks: Forks, trained: Path, tmp_path: Path, reader: list[str]) -> None:
    run = copy_run(trained, tmp_path / "run")
    result = forks.run("evaluate", ["run=run", "eval.max_tokens=200"], tmp_path, reader=reader, both=True)
    assert result.status == 0, result.printed
    assert len(json.loads((run / "evaluation.json").read_text())["evaluations"]) == 1


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("score", ["texts=lines.txt"]),
        ("score", ["texts=lines.txt", "tokens=true"]),
        ("generate", ["prompt=the", "sampling.n_tokens=3000"]),
        ("data", ["prepare", "data=text", "data.path=lines.txt", "data.cache_dir=corpora"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1],
)
def test_2_what_is_printed_for_others_ends_quietly(
    forks: Forks, trained: Path, tmp_path: Path, command: str, arguments: list[str]
) -> None:
    (tmp_path / "lines.txt").write_text("one line of some words\n" * 300)
    given = arguments if command == "data" else [f"run={trained}", *arguments]
    result = forks.run(command, given, tmp_path, reader=["head", "-c5"])
    assert result.status == 0, result.err
    assert "Traceback" not in result.err
    assert "Broken" not in result.err


# --- 3: `outputs` is a dangling link, or another thing ---


def dangling(path: Path) -> None:
    path.symlink_to("nowhere/at/all")


def a_file(path: Path) -> None:
    path.write_text("no folder")


def a_loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("made", "options"),
    [
        pytest.param(dangling, []),
        (dangling, ["name=mine"]),
        pytest.param(dangling, ["-m", "seed=1,2"], marks=SLOW),
        (a_file, []),
        pytest.param(a_file, ["-m", "seed=1,2"], marks=SLOW),
        pytest.param(a_loop, [], marks=SLOW),
        pytest.param(a_loop, ["-m", "seed=1,2"], marks=SLOW),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value.__name__,
)
def test_3_outputs_is_another_thing(
    forks: Forks, base: list[str], tmp_path: Path, made: Callable[[Path], None], options: list[str]
) -> None:
    made(tmp_path / "outputs")
    result = forks.run("train", [*options, *base], tmp_path, limit={"CPU": 3}, seconds=40)
    ends_in_one_line(result, "outputs")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.slow
def test_3_a_folder_on_the_way_is_a_file(forks: Forks, base: list[str], tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("no folder")
    for options in (["hydra.run.dir=taken/run"], ["-m", "seed=1,2", "hydra.sweep.dir=taken/sweep"]):
        ends_in_one_line(forks.run("train", [*options, *base], tmp_path, limit={"CPU": 3}, seconds=40), "taken")


# --- 4: two at once ---


def test_4_evaluations_in_the_same_second_have_folders_of_their_own(
    forks: Forks, trained: Path, tmp_path: Path
) -> None:
    run = copy_run(trained, tmp_path / "run")
    time.sleep(1.05 - time.time() % 1)
    command = ["run=run", "eval.max_tokens=200"]
    processes = [forks.start("evaluate", command, tmp_path) for _ in range(3)]
    results = [forks.result(process, tmp_path, forks.wait(process)) for process in processes]
    assert [result.status for result in results] == [0, 0, 0], results
    evaluations = json.loads((run / "evaluation.json").read_text())["evaluations"]
    assert len(evaluations) == 3
    assert len({entry["pictures"] for entry in evaluations}) == 3


@pytest.mark.slow
def test_4_a_mistaken_evaluation_leaves_the_others_folder_alone(forks: Forks, trained: Path, tmp_path: Path) -> None:
    run = copy_run(trained, tmp_path / "run")
    for _ in range(3):
        time.sleep(1.05 - time.time() % 1)
        good = forks.start("evaluate", ["run=run", "eval.max_tokens=200"], tmp_path)
        wrong = [forks.start("evaluate", ["run=run", "eval.batch_size=100000"], tmp_path) for _ in range(2)]
        assert {forks.wait(process) for process in wrong} == {2}
        result = forks.result(good, tmp_path, forks.wait(good))
        assert result.status == 0, result.printed
    evaluations = json.loads((run / "evaluation.json").read_text())["evaluations"]
    assert len(evaluations) == 3
    for entry in evaluations:
        folder = tmp_path / entry["pictures"]
        assert not list(folder.glob("*.tmp"))
        assert list(folder.iterdir()), "its pictures are gone"


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["model.mem_len=-1", "data.path=nowhere.txt"])
def test_4_a_start_that_is_refused_leaves_the_others_lock_alone(
    forks: Forks, base: list[str], tmp_path: Path, wrong: str
) -> None:
    command = [*base, "name=x", "resume=auto"]
    first = forks.start("train", command, tmp_path, stops=[Stop("train_batch", 2, "wait")])
    forks.until(lambda: (tmp_path / f"{first}.waiting").exists(), first)
    assert forks.run("train", [*command, wrong], tmp_path).status == 2
    assert forks.run("train", [*without(command, "resume"), wrong], tmp_path).status == 2
    third = forks.run("train", command, tmp_path)
    (tmp_path / f"{first}.go").touch()
    assert forks.wait(first) == 0
    ends_in_one_line(third, "outputs/x", "in use")


@pytest.mark.slow
def test_4_two_starts_of_one_name_at_the_same_time_never_break_each_other(
    forks: Forks, base: list[str], tmp_path: Path
) -> None:
    """One of them with a mistake: the other runs to its end, or is refused in one sentence."""
    for number in range(5):
        command = [*base, f"name=x{number}"]
        processes = [forks.start("train", given, tmp_path) for given in ([*command, "model.mem_len=-1"], command)]
        wrong, good = (forks.result(process, tmp_path, forks.wait(process)) for process in processes)
        assert wrong.status == 2
        assert good.status in (0, 2), good.printed
        assert "Traceback" not in good.printed
        if good.status == 0:
            assert summary_of(tmp_path / "outputs" / f"x{number}")["status"] == "finished"


# --- 10: an empty folder, a dropped terminal ---


@pytest.mark.parametrize("value", ["hydra.run.dir=", "hydra.run.dir=''"])
def test_10_an_empty_run_folder_is_refused(forks: Forks, base: list[str], tmp_path: Path, value: str) -> None:
    result = forks.run("train", [*base, value], tmp_path)
    ends_in_one_line(result, "hydra.run.dir")
    assert not (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize(("moment", "step"), [("train_batch", 4), pytest.param("validation_batch", 3, marks=SLOW)])
def test_10_a_dropped_terminal_stops_a_run_with_a_checkpoint(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path, moment: str, step: int
) -> None:
    stops = [Stop(moment, step, "SIGHUP")]
    result = forks.run("train", [*base, "hydra.run.dir=run"], tmp_path, stops=stops)
    assert result.status == 129, result.printed
    assert step_of(tmp_path / "run") == step
    assert forks.run("train", ["resume=run"], tmp_path).status == 0
    assert_same_run(tmp_path / "run", whole())


# --- 11: what is decoration ends no run ---

NO_COMPRESSORS = """
import gzip, lzma
def short(*_, **__):
    raise MemoryError
gzip.compress = lzma.compress = lzma.LZMACompressor = short
"""
NO_PICTURES = """
import matplotlib.figure
def short(*_, **__):
    raise MemoryError
matplotlib.figure.Figure.savefig = short
"""
NO_DISK_FOR_PICTURES = """
import matplotlib.figure
def full(*_, **__):
    raise OSError(28, "No space left on device")
matplotlib.figure.Figure.savefig = full
"""


def test_11_no_memory_for_the_compressors_ends_no_run(forks: Forks, base: list[str], tmp_path: Path) -> None:
    arguments = [*without(base, "callbacks.report.memory_tokens"), "callbacks.report.memory_tokens=100"]
    result = forks.run("train", [*arguments, "hydra.run.dir=run"], tmp_path, code=NO_COMPRESSORS)
    assert result.status == 0, result.printed
    assert summary_of(tmp_path / "run")["status"] == "finished"


@pytest.mark.parametrize("code", [NO_PICTURES, pytest.param(NO_DISK_FOR_PICTURES, marks=SLOW)], ids=["memory", "disk"])
def test_11_a_picture_that_cannot_be_drawn_ends_no_run_and_no_evaluation(
    forks: Forks, base: list[str], trained: Path, tmp_path: Path, code: str
) -> None:
    result = forks.run("train", [*base, "hydra.run.dir=run"], tmp_path, code=code)
    assert result.status == 0, result.printed
    assert summary_of(tmp_path / "run")["status"] == "finished"
    evaluated = copy_run(trained, tmp_path / "evaluated")
    result = forks.run("evaluate", ["run=evaluated", "eval.max_tokens=200"], tmp_path, code=code)
    assert result.status == 0, result.printed
    assert (evaluated / "evaluation.json").exists()


# --- 13: a monitor ends no run ---

WITH_WANDB = ["logger=wandb", "logger.mode=offline", "callbacks.sample.n_tokens=3"]

NO_TABLES = """
import wandb
def refused(*_, **__):
    raise OSError(30, "Unable to write staging files")
wandb.Table = refused
"""
NO_LOGGING = """
import wandb
wandb_log = wandb.Run.log
calls = []
def log(run, *arguments, **options):
    calls.append(arguments)
    if len(calls) > 2:
        raise RuntimeError("the monitor is broken")
    return wandb_log(run, *arguments, **options)
wandb.Run.log = log
"""
NO_START = """
import wandb
def init(*_, **__):
    raise wandb.errors.CommError("the monitor does not answer")
wandb.init = init
"""


def test_13_a_home_that_cannot_be_written_ends_no_run(forks: Forks, base: list[str], tmp_path: Path) -> None:
    arguments = [*without(base, "logger", "callbacks.sample.n_tokens"), *WITH_WANDB, "hydra.run.dir=run"]
    places = {"WANDB_DATA_DIR": None, "WANDB_CACHE_DIR": None, "WANDB_CONFIG_DIR": None, "WANDB_DIR": None}
    environment = {"HOME": "/proc", "XDG_DATA_HOME": None, "XDG_CACHE_HOME": None, "XDG_CONFIG_HOME": None, **places}
    result = forks.run("train", arguments, tmp_path, environment=environment)
    assert result.status == 0, result.printed
    assert summary_of(tmp_path / "run")["status"] == "finished"
    assert list((tmp_path / "run").glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.parametrize(
    "code",
    [NO_TABLES, pytest.param(NO_LOGGING, marks=SLOW), pytest.param(NO_START, marks=SLOW)],
    ids=["tables", "log", "init"],
)
def test_13_a_broken_monitor_ends_no_run(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path, code: str
) -> None:
    arguments = [*without(base, "logger", "callbacks.sample.n_tokens"), *WITH_WANDB, "hydra.run.dir=run"]
    result = forks.run("train", arguments, tmp_path, code=code)
    assert result.status == 0, result.printed
    assert_same_run(tmp_path / "run", whole())


@pytest.mark.slow
def test_13_the_monitors_data_lies_below_the_run_folder(forks: Forks, base: list[str], tmp_path: Path) -> None:
    """Nothing is left in the home folder or beside the run."""
    home = tmp_path / "home"
    home.mkdir()
    arguments = [*without(base, "logger", "callbacks.sample.n_tokens"), *WITH_WANDB, "hydra.run.dir=run"]
    environment = {"HOME": str(home), "XDG_DATA_HOME": None, "XDG_CACHE_HOME": None, "XDG_CONFIG_HOME": None}
    assert forks.run("train", arguments, tmp_path, environment=environment).status == 0
    assert [path for path in home.rglob("*wandb*") if path.is_dir()] == []
    assert not (tmp_path / "wandb").exists()


def _is_open_to_others(*places: Path) -> bool:
    return all(part.stat().st_mode & 0o5 == 0o5 for place in places for part in (place, *place.parents))


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
@pytest.mark.skipif(
    not _is_open_to_others(Path(sys.prefix), REPOSITORY), reason="another user could not read this environment"
)
def test_13_a_user_without_name_and_home_trains(base: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "text.txt").write_text(made_up_text(40_000))
        arguments = without(base, "logger", "data.cache_dir", "data.path")
        arguments += ["logger=wandb", "logger.mode=disabled", "data.path=text.txt", "data.cache_dir=corpora"]
        become = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", sys.executable]
        nobody: dict[str, str | None] = {"HOME": None, "USER": None, "LOGNAME": None, "LNAME": None, "USERNAME": None}
        with program("train", *arguments, "hydra.run.dir=run", cwd=folder, first=become, **nobody) as process:
            out, err = process.communicate(timeout=240)
        assert process.returncode == 0, out + err


# --- 14: `nohup` ---


@pytest.mark.parametrize("name", ["SIGHUP", pytest.param("SIGINT", marks=SLOW)])
def test_14_an_ignored_signal_stays_ignored(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path, name: str
) -> None:
    """As `nohup` and a shell's `&` ask for."""
    stops = [Stop("train_batch", 3, name), Stop("validation_batch", 2, name)]
    result = forks.run("train", [*base, "hydra.run.dir=run"], tmp_path, stops=stops, ignore=[name])
    assert result.status == 0, result.printed
    assert_same_run(tmp_path / "run", whole())


@pytest.mark.slow
def test_14_nohup_protects_a_sweep(forks: Forks, base: list[str], tmp_path: Path) -> None:
    arguments = ["-m", *without(base, "trainer.max_steps"), "trainer.max_steps=60", "hydra.sweep.dir=sweep", "seed=1"]
    process = forks.start("train", arguments, tmp_path, ignore=["SIGHUP"])
    forks.until(lambda: any(tmp_path.glob("sweep/*/metrics.jsonl")), process)
    jobs = children_of(process)
    assert jobs
    for pid in [process, *jobs]:
        os.kill(pid, signal.SIGHUP)
    result = forks.result(process, tmp_path, forks.wait(process))
    assert result.status == 0, result.printed
    finished = [json.loads(path.read_text())["status"] for path in tmp_path.glob("sweep/*/summary.json")]
    assert finished == ["finished"]


# --- 17: Slurm's variables without srun ---

SBATCH: dict[str, str | None] = {
    "SLURM_JOB_ID": "12345",
    "SLURM_JOB_NAME": "train.sh",
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_NNODES": "1",
    "SLURM_NODELIST": "127.0.0.1",
    "SLURM_JOB_NODELIST": "127.0.0.1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_ID": None,
}


@pytest.mark.parametrize("tasks", [pytest.param("1", marks=SLOW), "2"])
def test_17_a_batch_script_that_calls_python_itself(forks: Forks, base: list[str], tmp_path: Path, tasks: str) -> None:
    """It runs by itself, or says to start with srun."""
    environment = {**SBATCH, "SLURM_NTASKS": tasks, "SLURM_NTASKS_PER_NODE": tasks}
    result = forks.run("train", [*base, "hydra.run.dir=run"], tmp_path, environment=environment, seconds=60)
    if result.status == 0:
        assert summary_of(tmp_path / "run")["status"] == "finished"
    else:
        ends_in_one_line(result, "srun")


@pytest.mark.slow
def test_17_two_processes_in_a_batch_script_without_srun(forks: Forks, base: list[str], tmp_path: Path) -> None:
    arguments = [*base, "trainer.devices=2", "hydra.run.dir=run"]
    result = forks.run("train", arguments, tmp_path, environment=SBATCH, seconds=40)
    if result.status == 0:
        assert summary_of(tmp_path / "run")["status"] == "finished"
    else:
        ends_in_one_line(result, "srun")


@pytest.mark.slow
def test_17_a_salloc_shell_runs_as_without_slurm(forks: Forks, base: list[str], tmp_path: Path) -> None:
    environment = {**SBATCH, "SLURM_JOB_NAME": "interactive", "SLURM_PROCID": None, "SLURM_LOCALID": None}
    result = forks.run("train", [*base, "hydra.run.dir=run"], tmp_path, environment=environment, seconds=60)
    assert result.status == 0, result.printed
