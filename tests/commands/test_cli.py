"""The command line: literal values, mistakes in one line, flags, parts from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands.conftest import read
from transformer_xl.commands import cli
from transformer_xl.commands.compose import compose
from transformer_xl.commands.sweep import run_sweep
from transformer_xl.errors import UserError

MISTAKES = {
    ("model=txl_tyni",): ["model/txl_tyni", "nearest is txl_tiny"],
    ("hydra/launcher=joblib", "-m"): ["hydra/launcher=joblib"],
    ("max_steps=5",): ["max_steps is not a setting", "nearest is trainer.max_steps"],
    ("model.n_layer=a(b",): ["model.n_layer=a(b"],
    ("model.d_head=${model.d_hed}",): ["model.d_head", "model.d_hed"],
    ("model.mem_len=1,2",): ["model.mem_len=1,2", "--multirun"],
    ("+seed=2",): ["already at 'seed'"],
    ("~sed",): ["'sed' does not exist"],
    ("model.d_head=7.5", "seed=true"): ["seed is true", "model.d_head is 7.5, and must be a whole number"],
    ("--config-name=nope",): ["--config-name=nope is no setting"],
    ("-m", "seed=1,2", "model.mem_le=3"): ["model.mem_le is not a setting"],
    ("hydra.run.dir=",): ["hydra.run.dir is empty"],
    ("name=",): ["name is empty"],
    ("hydra.run.dir=/dev/null/x",): ["/dev/null/x", "Not a directory"],
    ("-m", "hydra.sweep.dir=/dev/null/x", "seed=1,2"): ["/dev/null/x", "Not a directory"],
    ("-m", "hydra.run.dir=x", "seed=1,2"): ["hydra.run.dir has no effect in a sweep"],
    ("hydra.sweep.dir=x",): ["hydra.sweep.dir has no effect without a sweep"],
    ("plugins=[nowhere.py]",): ["plugins=nowhere.py names no file"],
    ("plugins=[no_such_module]",): ["plugins=no_such_module names no module"],
    ("trainer.max_step=3",): ["trainer.max_step", "nearest is max_steps"],
    ("trainer.default_root_dir=x",): ["trainer.default_root_dir cannot be set"],
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_ends_in_one_line_and_leaves_nothing(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformer_xl.commands.train import train_by_command

    monkeypatch.chdir(tmp_path)
    assert cli.run("train", train_by_command, list(arguments), sweep=run_sweep) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1, said.err
    assert said.err.startswith("error: ")
    for words in MISTAKES[arguments]:
        assert words in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("act", "status", "line"),
    [
        ("stop", 143, "stopped at step 7\n"),
        ("interrupt", 130, "interrupted\n"),
        ("user", 2, "error: data.path is 3, and must be a path\n"),
        ("missing_file", 2, "error: /nowhere/汉 cannot be used: No such file or directory\n"),
    ],
)
def test_what_ends_a_job_has_its_exit_status_and_one_line(project: Any, act: str, status: int, line: str) -> None:
    done = project.run(f"name={act}")
    assert (done.returncode, done.stderr) == (status, line)


def test_a_bug_keeps_its_traceback(project: Any) -> None:
    done = project.run("name=bug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("RuntimeError: a bug of ours\n")


def test_the_job_knows_folder_and_command(project: Any) -> None:
    arguments = ["model=txl_small", "--seed=3", "--model.mem_len=64", "hydra.run.dir=mine"]  # dashes as of W&B's agent
    assert project.run(*arguments).returncode == 0
    seen = read(project.cwd / "mine" / "seen.json")
    assert seen["folder"] == str(project.cwd / "mine")
    assert seen["given"] == ["hydra.run.dir", "model", "model.mem_len", "seed"]
    assert seen["command"] == [str(project.probe), *arguments]
    assert (seen["config"]["seed"], seen["config"]["model"]["mem_len"]) == (3, 64)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--help",), "d_model: 256"),
        (("--cfg", "job", "name=a,b"), "name: a,b"),
        (("--help", "experiment=ablation"), "Train a Transformer-XL"),
        (("--cfg", "job", "experiment=articles", "seed=5,6", "-m"), "seed: 5"),
    ],
)
def test_flags_work_and_make_no_folder(project: Any, arguments: tuple[str, ...], words: str) -> None:
    done = project.run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert words in done.stdout
    assert project.left() == []


def test_choices_of_ones_own_come_from_config_dir(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/mine.yaml").write_text("defaults: [txl_small, _self_]\nmem_len: 3\n")
    config = compose("model=mine", config_dir=tmp_path)
    assert (config.model.mem_len, config.recipe) == (3, compose("model=txl_tiny").recipe)
    (tmp_path / "model/bad.yaml").write_text("# @package _global_\nplugins: [os]\n")
    with pytest.raises(UserError, match=r"plugins stands in a YAML file"):
        compose("model=bad", config_dir=tmp_path)


def test_resume_lays_the_command_on_the_runs_own_settings_which_are_plain_yaml(tmp_path: Path) -> None:
    from transformer_xl.run_folder import write_config

    config = compose("model.mem_len=5", "logger=none", "trainer.max_steps=7", "name=${oc.env:HOME}")
    write_config(config, tmp_path)
    resumed = compose(f"resume={tmp_path}", "trainer.max_steps=9", "logger=wandb")
    assert (resumed.model.mem_len, resumed.trainer.max_steps, resumed.name) == (5, 9, "${oc.env:HOME}")
    assert (resumed.logger.kind, resumed.resume) == ("wandb", str(tmp_path))
    assert compose(f"resume={tmp_path}", "eval.mem_len=${model.mem_len}", "model.mem_len=6").eval.mem_len == 6
    with pytest.raises(UserError, match=r"trainer.max_stps.*nearest is max_steps"):
        compose(f"resume={tmp_path}", "trainer.max_stps=9")
    with pytest.raises(UserError, match=r"seed=1,2 must give one value"):
        compose(f"resume={tmp_path}", "seed=1,2")


ODD_STRINGS = [
    *("", " ", "  both ends  ", "a,b", "a=b=c", "it's", 'say "yes"', "'\"'\"", "\\", "ends with \\", "\\\\'\\\""),
    *("[a, b]", "{a: b}", "(a", "choice(1,2)", "null", "123", "1e5", "true", "???", "${seed}", "\\${seed} \\\\${seed}"),
    *("${oc.env:HOME} and $HOME", "${", "#no comment", "!x ~y %z & | ; < > * ? `", "two\nlines\r\n and a\ttab"),
    *("汉字、标点。", "e\u0301 \u200d👩\u200d🔬 🙂", "caf\udce9 \udcff", "-m", "--help", "/a b/c,d[1]{2}(3)=4.txt"),
]


@pytest.mark.parametrize("text", ODD_STRINGS, ids=repr)
def test_literal_values_are_taken_as_they_are(text: str) -> None:
    config = compose("data=text", f"data.path={text}", f"name={text}")
    assert (config.name, config.data.path) == (text, os.path.expanduser(text))  # type: ignore[attr-defined]


def test_the_command_line_starts_without_the_heavy_libraries() -> None:
    program = "import sys, transformer_xl.commands.cli; print({'torch', 'lightning'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
