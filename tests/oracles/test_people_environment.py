"""Machines, monitors, other ways to start, and words about them ("What people ran into", 12, 18, 19, 25, 28, 29)."""

from __future__ import annotations

import codecs
import json
import re
import socket
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.oracles.runs_support import Forks, Result, Stop, call, copy_run, made_up_text, places, program, without

SLOW = pytest.mark.slow
COMMANDS = ("train", "evaluate", "score", "generate", "data", "convert")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ends_in_one_line(result: Result, *words: str) -> None:
    assert result.status == 2, result.printed
    assert "Traceback" not in result.printed
    assert result.err.strip().splitlines()[-1].startswith("error"), result.err
    assert all(word in result.err for word in words), result.err


# --- 12: OpenMP's spinning ---


def openmp_of(base: list[str], folder: Path, **environment: str | None) -> dict[str, str]:
    """Return what OpenMP says of itself when torch loads it."""
    unset = {"OMP_WAIT_POLICY": None, "GOMP_SPINCOUNT": None, "OMP_NUM_THREADS": None, "KMP_BLOCKTIME": None}
    variables = {**unset, "OMP_DISPLAY_ENV": "VERBOSE", **environment}
    arguments = [*without(base, "trainer.max_steps"), "trainer.max_steps=1", "hydra.run.dir=run"]
    with program("train", *arguments, cwd=folder, **variables) as process:
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    return dict(re.findall(r"(OMP_WAIT_POLICY|GOMP_SPINCOUNT) = '([^']*)'", err))


@pytest.mark.slow
def test_12_a_short_spin_unless_the_user_has_chosen(base: list[str], tmp_path: Path) -> None:
    assert int(openmp_of(base, tmp_path)["GOMP_SPINCOUNT"]) <= 10_000


@pytest.mark.slow
def test_12_the_users_own_choice_of_spinning_counts(base: list[str], tmp_path: Path) -> None:
    assert int(openmp_of(base, tmp_path, GOMP_SPINCOUNT="123456")["GOMP_SPINCOUNT"]) == 123456


# --- 18: W&B's environment ---


def wandb_log(folder: Path) -> bytes:
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return path.read_bytes()


OFFLINE = ["logger=wandb", "logger.mode=offline", "hydra.run.dir=run"]


def test_18_the_environment_counts(forks: Forks, base: list[str], tmp_path: Path) -> None:
    environment = {
        "WANDB_PROJECT": "their-project",
        "WANDB_NAME": "their-name",
        "WANDB_TAGS": "one-tag,other-tag",
        "WANDB_RUN_GROUP": "their-group",
        "WANDB_NOTES": "their-notes",
        "WANDB_ENTITY": "their-team",
    }
    arguments = [*without(base, "logger"), *OFFLINE]
    assert forks.run("train", arguments, tmp_path, environment=environment).status == 0
    log = wandb_log(tmp_path / "run")
    assert [word for value in environment.values() for word in value.split(",") if word.encode() not in log] == []


@pytest.mark.slow
def test_18_what_the_command_names_counts_more(forks: Forks, base: list[str], tmp_path: Path) -> None:
    environment = {"WANDB_PROJECT": "theirs-1", "WANDB_NAME": "theirs-2", "WANDB_TAGS": "theirs-3"}
    settings = ["logger.project=our-project", "name=our-name", "logger.tags=[our-tag]"]
    arguments = [*without(base, "logger"), *OFFLINE, *settings]
    assert forks.run("train", arguments, tmp_path, environment=environment).status == 0
    log = wandb_log(tmp_path / "run")
    assert all(word in log for word in (b"our-project", b"our-name", b"our-tag"))
    assert b"theirs" not in log


def test_18_under_an_agent_the_run_has_its_id(forks: Forks, base: list[str], tmp_path: Path) -> None:
    """And a resume by hand goes on in it."""
    arguments = [*without(base, "logger"), *OFFLINE]
    agent = {"WANDB_RUN_ID": "agents7run", "WANDB_SWEEP_ID": "sweep123"}
    stops = [Stop("train_batch", 4, "SIGTERM")]
    assert forks.run("train", arguments, tmp_path, environment=agent, stops=stops).status == 143
    assert json.loads((tmp_path / "run" / "run.json").read_text())["run_id"] == "agents7run"
    assert forks.run("train", ["resume=run"], tmp_path).status == 0
    logs = list((tmp_path / "run").glob("wandb/offline-run-*/run-agents7run.wandb"))
    assert len(logs) == len(list((tmp_path / "run").glob("wandb/offline-run-*")))


@pytest.mark.parametrize("key", ["model.mem_len", pytest.param("optimizer.lr", marks=SLOW)])
def test_18_settings_with_dashes_are_taken_or_told_to_be_without(base: list[str], key: str) -> None:
    result = call("train", *without(base, key), f"--{key}=1", "hydra.run.dir=run")
    if result.status == 0:
        group, _, name = key.partition(".")
        assert yaml.safe_load(Path("run/config.yaml").read_text())[group][name] == 1
    else:
        ends_in_one_line(result)
        assert re.search(rf"(?<!-){re.escape(key)}=1", result.err), result.err


# --- 19: literal values and sweeps ---


@pytest.mark.slow
@pytest.mark.parametrize("key", ["data.path", "init_from", "name"])
def test_19_a_sweep_over_literal_values_is_no_single_job(
    forks: Forks, base: list[str], trained: Path, tmp_path: Path, key: str
) -> None:
    """It is two jobs, or refused with the way to write it."""
    values = {"data.path": "a.txt,b.txt", "init_from": "one,two", "name": "x1,x2"}[key]
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(made_up_text(20_000, seed=len(name)))
    for name in ("one", "two"):
        copy_run(trained, tmp_path / name)
    arguments = ["-m", *without(base, key), "trainer.max_steps=1", f"{key}={values}", "hydra.sweep.dir=sweep"]
    result = forks.run("train", arguments, tmp_path)
    if result.status == 2:
        ends_in_one_line(result, key)
    else:
        assert result.status == 0, result.printed
        assert len(list(tmp_path.glob("sweep/*/summary.json"))) == 2


# --- 25: files of W&B, byte-order marks, links to nothing, doubled columns ---


@pytest.mark.slow
def test_25_offline_runs_name_no_file_outside_of_the_run(forks: Forks, base: list[str], tmp_path: Path) -> None:
    """A folder that is copied can be sent from elsewhere."""
    home = tmp_path / "home"
    home.mkdir()
    arguments = [*without(base, "logger", "callbacks.sample.n_tokens"), *OFFLINE, "callbacks.sample.n_tokens=3"]
    variables = {"XDG_DATA_HOME": None, "XDG_CACHE_HOME": None, "XDG_CONFIG_HOME": None}
    result = forks.run("train", arguments, tmp_path, environment={"HOME": str(home), **variables})
    assert result.status == 0, result.printed
    log = wandb_log(tmp_path / "run")
    assert b".table.json" in log
    assert f"{home}/.local".encode() not in log
    assert f"{home}/.cache".encode() not in log


@pytest.mark.parametrize("tokenizer", ["char", "byte", pytest.param("word", marks=SLOW)])
def test_25_a_byte_order_mark_is_no_symbol(tokenizer: str) -> None:
    Path("text.txt").write_bytes(codecs.BOM_UTF8 + made_up_text(20_000).encode())
    settings = [f"data.tokenizer={tokenizer}", "data.cache_dir=corpora", "data.min_count=1"]
    result = call("data", "prepare", "data=text", "data.path=text.txt", *settings)
    assert result.status == 0, result.printed
    (folder,) = Path("corpora").glob("text-*")
    assert "\\ufeff" not in json.dumps(json.loads((folder / "vocabulary.json").read_text()))
    if tokenizer == "byte":
        assert not np.fromfile(folder / "train.bin", np.uint8).tobytes().startswith(codecs.BOM_UTF8)


def test_25_a_link_to_nothing_in_a_corpus_is_said() -> None:
    Path("corpus").mkdir()
    Path("corpus/a.txt").write_text(made_up_text(20_000))
    Path("corpus/gone.txt").symlink_to("nowhere.txt")
    result = call("data", "prepare", "data=text", "data.path=corpus", "data.cache_dir=corpora")
    assert result.status in (0, 2), result.printed
    assert "gone.txt" in result.printed
    assert "Traceback" not in result.printed


def test_25_a_column_that_stands_twice_is_refused() -> None:
    rows = "".join(f'"{line}","other words"\n' for line in made_up_text(20_000).splitlines())
    Path("text.csv").write_text("text,text\n" + rows)
    result = call("data", "prepare", "data=text", "data.path=text.csv", "data.cache_dir=corpora")
    ends_in_one_line(result, "text.csv")


# --- 28: words that name nothing ---


def test_28_a_cache_folder_that_cannot_be_used_is_named_by_its_setting(base: list[str]) -> None:
    Path("outputs").write_text("no folder")
    ends_in_one_line(call("train", *without(base, "data.cache_dir"), "hydra.run.dir=run"), "data.cache_dir")


def test_28_a_port_that_is_in_use(forks: Forks, base: list[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        environment = {**places(2)[0], "MASTER_PORT": port}
        arguments = [*base, "trainer.devices=2", "hydra.run.dir=run"]
        result = forks.run("train", arguments, tmp_path, environment=environment, seconds=60)
    ends_in_one_line(result, port)
    assert "has ended" not in result.err


@pytest.mark.parametrize("change", ["missing", pytest.param("unknown", marks=SLOW)])
@pytest.mark.parametrize(
    "command",
    [
        "train",
        "evaluate",
        pytest.param("generate", marks=SLOW),
    ],
)
def test_28_another_versions_configuration_is_named(trained: Path, tmp_path: Path, command: str, change: str) -> None:
    run = copy_run(trained, tmp_path / "run")
    settings = yaml.safe_load((run / "config.yaml").read_text())
    if change == "missing":
        del settings["model"]["n_layer"]
    else:
        settings["model"]["of_another_version"] = 1
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    arguments = ["resume=run", "trainer.max_steps=8"] if command == "train" else ["run=run"]
    result = call(command, *arguments)
    ends_in_one_line(result, "config.yaml", "model." + ("n_layer" if change == "missing" else "of_another_version"))


@pytest.mark.parametrize(
    "key",
    [
        "trainer.limit_val_batches",
        "trainer.gradient_clip_val",
        "trainer.limit_train_batches",
        "trainer.val_check_interval",
        "optimizer.lr",
        "model.dropout",
        "model.init_std",
        "callbacks.sample.temperature",
    ],
)
def test_28_no_number_is_refused(base: list[str], key: str) -> None:
    ends_in_one_line(call("train", *without(base, key), f"{key}=nan", "hydra.run.dir=run"), key)


def test_28_inspect_warns_once() -> None:
    Path("text.txt").write_text(made_up_text(20_000))
    result = call("data", "inspect", "data=text", "data.path=text.txt", "data.cache_dir=corpora")
    assert result.status == 0, result.printed
    lines = [line for line in result.printed.splitlines() if "fewer than a segment for each lane" in line]
    assert len(lines) <= 1


# --- 29: started as `txl-train` ---


def started_as(name: str, *arguments: str) -> Result:
    return call(name, *arguments, program=f"/usr/local/bin/txl-{name}")


@pytest.mark.parametrize(
    "command",
    [*(pytest.param(name) for name in COMMANDS[:5]), *COMMANDS[5:]],
)
def test_29_help_names_commands_as_this_one_was_started(command: str) -> None:
    result = started_as(command, "--help")
    assert result.status == 0
    assert f"txl-{command}" in result.out
    assert not re.search(r"\b(train|evaluate|score|generate)\.py\b", result.out)


def test_29_a_run_proposes_commands_as_it_was_started(base: list[str]) -> None:
    result = started_as("train", *base, "hydra.run.dir=run")
    assert result.status == 0, result.printed
    assert "txl-evaluate run=" in result.out
    assert not re.search(r"\b(train|evaluate|score|generate)\.py\b", result.printed)


def test_29_a_stop_proposes_the_command_as_it_was_started(forks: Forks, base: list[str], tmp_path: Path) -> None:
    stops = [Stop("train_batch", 3, "SIGTERM")]
    arguments = [*base, "hydra.run.dir=run"]
    result = forks.run("train", arguments, tmp_path, stops=stops, program="/usr/local/bin/txl-train")
    assert result.status == 143
    assert "txl-train resume=" in result.printed
    assert "train.py" not in result.printed


def test_29_a_script_proposes_scripts(base: list[str]) -> None:
    result = call("train", *base, "hydra.run.dir=run")
    assert result.status == 0, result.printed
    assert "python evaluate.py run=run" in result.out
