from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from transformer_xl.commands import folders
from transformer_xl.errors import UserError

MISTAKES = {
    ("model.d_modl=3",): ["model.d_modl=3", "nearest is model.d_model"],
    ("modl=small",): ["modl=small", "nearest is model"],
    ("model=smal",): ["model=smal", "nearest is small"],
    ("model=zzz",): ["model=zzz", "large, small"],
    ("hydra/launcher=joblob",): ["hydra/launcher=joblob", "basic"],
    ("experiment=bath",): ["experiment=bath", "nearest is both"],
    ("data=recall", "data.path=x,y"): ["data.path=x,y", "data=text"],
    ("model=large", "seed=2", "model.mem_le=3"): ["model.mem_le=3", "nearest is model.mem_len"],
    ("model.d_model=a(b",): ["model.d_model=a(b", "model.d_model='a(b'"],
    ("model.d_model=汉",): ["model.d_model=汉", "model.d_model='汉'"],
    ("model.d_model",): ["model.d_model is no setting", "model.d_model=VALUE"],
    ("=3",): ["=3 is no setting", "key=value"],
    ("model.d_model=${model.d_hed}",): ["model.d_model is ${model.d_hed}", "nearest is model.d_head"],
    ("model.d_model=???",): ["model.d_model has no value", "model.d_model=VALUE"],
    ("model.mem_len=1,2",): ["model.mem_len=1,2", "-m"],
    ("+seed=2",): ["+seed=2", "write seed=2"],
    ("~sed",): ["~sed", "nearest is seed"],
    ("hydra.job.chdir=maybe",): ["hydra.job.chdir=maybe", "bool"],
    ("hydra.run.dir=${nowhere}",): ["hydra.run.dir", "nowhere"],
    ("--foo", "seed=1"): ["--foo"],
    ("--info=everything",): ["--info", "everything"],
    ("-m", "--cfg", "job"): ["--multirun and --cfg"],
    ("-m", "model=small,smal"): ["model=smal:", "nearest is small"],
    ("-m", "seed=1,2", "model.d_modl=3"): ["model.d_modl=3", "nearest is model.d_model"],
    ("name=",): ["name is empty"],
    ("resume=nowhere",): ["resume=nowhere", "no folder that exists"],
    ("resume=.",): ["resume=.", "config.yaml"],
    ("hydra.run.dir=/dev/null/x",): ["/dev/null/x", "Not a directory"],
    ("-m", "hydra.sweep.dir=/dev/null/x", "seed=1,2"): ["/dev/null/x", "Not a directory"],
    ("act=user",): ["data.path is 3, and must be a path"],
    ("act=missing_file", "data.path=/nowhere/汉"): ["/nowhere/汉", "No such file or directory"],
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_ends_in_one_sentence_and_leaves_nothing(project: Any, arguments: tuple[str, ...]) -> None:
    done = project.run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ")
    for words in MISTAKES[arguments]:
        assert words in done.stderr
    assert project.left() == []


def test_a_bug_keeps_its_traceback(project: Any) -> None:
    done = project.run("act=bug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("RuntimeError: a bug of ours\n")
    assert "HYDRA_FULL_ERROR" not in done.stderr
    assert "Error executing job" not in done.stderr


@pytest.mark.parametrize(
    ("act", "status", "line"), [("stop", 143, "stopped at step 7\n"), ("interrupt", 130, "interrupted\n")]
)
def test_a_stop_has_its_exit_status_and_one_line(project: Any, act: str, status: int, line: str) -> None:
    done = project.run(f"act={act}")
    assert (done.returncode, done.stderr) == (status, line)


def test_success_returns_0_and_the_job_knows_folder_choices_and_command(project: Any) -> None:
    seen = project.seen("experiment=both", "seed=3")
    folder = Path(seen["folder"])
    assert folder.is_absolute()
    assert folder.name.endswith("-large-recall")
    assert seen["choices"] == {"model": "large", "recipe": "large", "data": "recall", "experiment": "both"}
    assert seen["command"] == seen["argv"] == [str(project.root / "probe.py"), "experiment=both", "seed=3"]
    assert seen["overrides"] == {}
    assert seen["config"]["recipe"] == {"lr": 0.2}


def test_two_runs_of_one_second_have_two_folders(project: Any) -> None:
    runs = [subprocess.Popen(project.command(), cwd=project.cwd) for _ in range(3)]
    assert [run.wait(60) for run in runs] == [0, 0, 0]
    assert len(list(project.cwd.glob("outputs/*/seen.json"))) == 3


def test_folders_claimed_in_one_second_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_now", lambda: "2026-01-02_03-04-05")
    claimed = []
    for _ in range(3):
        folders.register_resolvers()
        claimed.append(Path(folders.run_folder(str(tmp_path), None, "m", "d/e")).name)
    stem = "2026-01-02_03-04-05-m-d_e"
    assert claimed == [stem, f"{stem}-2", f"{stem}-3"]
    assert folders.run_folder(str(tmp_path), None, "m", "d/e") == str(tmp_path / f"{stem}-3")


def test_a_claimed_folder_is_given_back_only_while_empty(tmp_path: Path) -> None:
    folders.register_resolvers()
    empty = Path(folders.run_folder(str(tmp_path / "new" / "root"), "empty", "m", "d"))
    folders.discard_if_empty(empty)
    assert list(tmp_path.iterdir()) == []
    full = Path(folders.run_folder(str(tmp_path), "full", "m", "d"))
    (full / "note").touch()
    folders.discard_if_empty(full)
    assert (full / "note").exists()


@pytest.mark.parametrize(
    ("name", "slug"),
    [("a/b", "a_b"), ("..", "__"), (".x", "_x"), ("${a}", "_{a}"), ("汉" * 50, "汉" * 33), ("a\nb\udc80", "a_b_")],
)
def test_slug(name: str, slug: str) -> None:
    assert folders.slug(name) == slug


@pytest.mark.parametrize(
    ("held", "words"),
    [("config.yaml", "name=mine .*resume={folder}"), ("checkpoints", "{folder} holds checkpoints and no config.yaml")],
)
def test_a_name_whose_folder_holds_a_run_is_refused(tmp_path: Path, held: str, words: str) -> None:
    folders.register_resolvers()
    (tmp_path / "mine" / held).mkdir(parents=True)
    with pytest.raises(UserError, match=words.format(folder=tmp_path / "mine")):
        folders.run_folder(str(tmp_path), "mine", "m", "d")


@pytest.mark.parametrize("name", ["plain", "odd ${seed} 'x' =,[汉]\\"])
def test_resume_withholds_the_other_settings_from_composition(project: Any, name: str) -> None:
    folder = project.cwd / name
    folder.mkdir()
    (folder / "config.yaml").write_text("name: a,${b}")
    arguments = (
        f"resume={name}",
        "model=large",
        "model.clamp_len=null",
        "model.mem_len=5",
        "no.such.key=[1,x]",
        "name=a,${b}",
        "hydra.job.name=other",
    )
    seen = project.seen(*arguments)
    assert seen["folder"] == str(folder)
    assert seen["overrides"] == {
        "model": "large",
        "model.clamp_len": None,
        "model.mem_len": 5,
        "no.such.key": [1, "x"],
        "name": "a,${b}",
    }
    assert seen["config"]["resume"] == name
    assert seen["config"]["model"]["d_model"] == 16
    assert seen["command"][1:] == list(arguments)
    assert not (project.cwd / "outputs").exists()


@pytest.mark.parametrize(
    "argument", ["seed=1,2", "~seed", "model@other=large", "-m", "hydra.run.dir=elsewhere", "model.d_model=a(b"]
)
def test_resume_refuses_what_it_cannot_lay_on_a_run(project: Any, argument: str) -> None:
    (project.cwd / "config.yaml").touch()
    done = project.run("resume=.", argument)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert project.left() == ["config.yaml"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--help",), "d_model: 16"),
        (("--cfg", "job", "name=a,b"), "name: a,b"),
        (("--cfg", "job", "--resolve", "model=large"), "d_model: 64"),
        (("model=large", "--info", "config"), "d_model: 64"),
        (("--shell-completion", "install=bash"), "complete"),
    ],
)
def test_hydras_own_flags_work_and_make_no_folder(project: Any, arguments: tuple[str, ...], words: str) -> None:
    done = project.run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert words in done.stdout
    assert project.left() == []


def test_the_command_line_starts_without_the_heavy_libraries() -> None:
    program = (
        "import sys, transformer_xl.commands.command_line; print(sorted({'torch', 'lightning'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
