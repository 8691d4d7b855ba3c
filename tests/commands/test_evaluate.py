"""`evaluate.py` through its command line."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import transformer_xl as txl
from tests.conftest import Outcome, tiny_overrides
from transformer_xl.commands import cli, evaluation
from transformer_xl.commands.evaluate import evaluate
from transformer_xl.commands.models import find_models
from transformer_xl.commands.train import train_by_command as train
from transformer_xl.inference import plots
from transformer_xl.interop.native import save_model


@pytest.fixture(scope="module")
def run(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A run whose validation read the whole split."""
    place = tmp_path_factory.mktemp("evaluated")
    arguments = [*tiny_overrides(text_file, place), "trainer.limit_val_batches=1.0", f"hydra.run.dir={place / 'run'}"]
    assert cli.run("train", train, arguments) == 0
    return Outcome(place / "run", 0, "", "")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*arguments: str) -> int:
    return cli.run("evaluate", evaluate, list(arguments))


def results_of(folder: Path) -> list[dict[str, Any]]:
    """What the last command measured."""
    results: list[dict[str, Any]] = json.loads((folder / "evaluation.json").read_text())["evaluations"][-1]["results"]
    return results


def pictures_of(folder: Path) -> Path:
    """The folder of pictures of the last command."""
    return Path(json.loads((folder / "evaluation.json").read_text())["evaluations"][-1]["pictures"])


def test_equal_settings_give_trainings_own_validation_number_to_the_last_digit(run: Outcome) -> None:
    assert call(f"run={run.folder}", "split=valid") == 0
    (result,) = results_of(run.folder)
    assert result["loss"] == run.summary["metrics"]["valid"]["loss"] == min(run.values("val/loss").values())
    wanted = run.summary["metrics"]["valid"]
    assert {name: result[name] for name in wanted} == wanted  # split, checkpoint, lengths and tokens stand beside it
    assert result["precision"] == "32-true"


def test_lists_give_a_row_for_each_value_and_pictures(run: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"run={run.folder}", "eval.mem_len=[0,7,14]", "eval.max_tokens=200", "checkpoint=last") == 0
    results = results_of(run.folder)
    assert [result["mem_len"] for result in results] == [0, 7, 14]
    assert all(result["checkpoint"] == "last" and result["split"] == "test" for result in results)
    for result in results:
        by_position = result["loss_by_position"]
        assert sum(by_position["predictions"]) == sum(result["loss_by_distance"]["predictions"]) == result["tokens"]
        total = sum(loss * count for loss, count in zip(*by_position.values(), strict=True))
        assert total / result["tokens"] == pytest.approx(result["loss"], rel=1e-6)
    out = capsys.readouterr().out
    rows = [line.split("│")[1].strip() for line in out.splitlines() if "│ mem_len=" in line]
    assert rows == ["mem_len=0", "mem_len=7", "mem_len=14"]
    title = " ".join(out[: out.index("┏")].split())
    for part in ("checkpoint=last", "batch_size=4", "segment_len=5", "same_length=false", "200 predictions"):
        assert part in title
    assert "what memory is worth is told by a model trained without it" in out
    for name in ("score_by_memory", "loss_by_position", "loss_by_distance"):
        assert (pictures_of(run.folder) / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_what_was_measured_is_kept_where_a_later_reading_fails(run: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = evaluation.measure

    def failing(subject: Any, reading: Any, config: Any) -> Any:
        if reading.mem_len == 0:
            raise MemoryError
        return measure(subject, reading, config)

    monkeypatch.setattr(evaluation, "measure", failing)
    assert call(f"run={run.folder}", "eval.mem_len=[3,0]", "eval.max_tokens=37") == 1
    (result,) = results_of(run.folder)
    assert (result["mem_len"], result["max_tokens"]) == (3, 37)


def test_a_model_without_a_run_reads_the_corpus_that_the_command_names(run: Outcome, text_file: Path) -> None:
    save_model(txl.load_model(run.folder), "exported")
    data = ["data=text", f"data.path={text_file}", f"data.cache_dir={run.folder.parent / 'corpora'}"]
    lengths = ["eval.batch_size=4", "eval.segment_len=5", "eval.mem_len=7"]
    assert call("run=exported", "split=valid", *data, *lengths) == 0
    (result,) = results_of(Path("outputs", "exported"))
    assert result["loss"] == pytest.approx(run.summary["metrics"]["valid"]["loss"], rel=1e-6)


@pytest.mark.slow
def test_several_models_stand_in_one_table(run: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    last = run.folder / "checkpoints" / "last.ckpt"
    assert call(f"run=[{run.folder},{last}]", "eval.max_tokens=40") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("│ run, checkpoint=best", "│ last.ckpt, checkpoint=last.ckpt"))
    (folder,) = Path("outputs", "evaluation").glob("*")
    assert {path.name for path in folder.iterdir()} == {
        ".evaluation.json.lock",
        "evaluation.json",
        "loss_by_distance.png",
        "loss_by_position.png",
    }
    assert [result["model"] for result in results_of(folder)] == [str(run.folder), str(last)]


@pytest.mark.slow
def test_looks_are_written_beside_the_scores(run: Outcome) -> None:
    looks = ["eval.attention=true", "eval.attention_tokens=50"]
    settings = ["eval.same_length=true", "eval.max_tokens=40"]
    assert call(f"run={run.folder}", *settings, *looks) == 0
    (result,) = results_of(run.folder)
    for layer in result["attention"]["weight_by_distance"]:
        assert all(math.isclose(sum(head), 1, abs_tol=1e-5) for head in layer)
    assert {path.name for path in pictures_of(run.folder).iterdir()} == {
        *("attention-run.png", "loss_by_distance.png", "loss_by_position.png")
    }


@pytest.mark.slow
def test_the_papers_long_memory_stands_beside_the_runs_own(text_file: Path, tmp_path: Path) -> None:
    overrides = [*tiny_overrides(text_file, tmp_path), "recipe=txl_char_base", f"hydra.run.dir={tmp_path / 'paper'}"]
    assert cli.run("train", train, overrides) == 0
    assert call("run=paper", "eval.max_tokens=40") == 0
    own, paper = results_of(tmp_path / "paper")
    assert (own["mem_len"], own["segment_len"]) == (7, 5)
    lengths = {name: paper[name] for name in ("segment_len", "mem_len", "clamp_len", "same_length")}
    assert lengths == {"segment_len": 80, "mem_len": 2100, "clamp_len": 820, "same_length": True}
    assert call("run=paper", "eval.max_tokens=40", "eval.long=false") == 0
    assert len(results_of(tmp_path / "paper")) == 1


@pytest.mark.slow
def test_what_one_of_several_models_cannot_do_is_said_before_any_is_read(
    run: Outcome, text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [one for one in tiny_overrides(text_file, tmp_path) if not one.startswith("model.")]
    model = ["model=lstm", "model.n_layer=1", "model.d_model=8"]
    assert cli.run("train", train, [*overrides, *model, f"hydra.run.dir={tmp_path / 'lstm'}"]) == 0
    capsys.readouterr()
    assert call(f"run=[{run.folder},lstm]", "eval.attention=true") == 2
    captured = capsys.readouterr()
    assert "eval.attention is true, and must be false for lstm" in captured.err
    assert "parameters" not in captured.err  # which the first line of each reading says
    assert not list(Path().glob("outputs/evaluation"))


def test_a_file_that_the_command_names_is_read_whole(
    run: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "test.txt"
    path.write_text("the cat sat on the mat.\n" * 30)
    data = ["data=text", f"data.path={path}", f"data.cache_dir={tmp_path / 'corpora'}"]
    assert call(f"run={run.folder}", *data) == 0
    (result,) = results_of(run.folder)
    assert result["tokens"] == path.stat().st_size - 1
    assert "test split of 720 tokens" in capsys.readouterr().out
    assert call(f"run={run.folder}", *data, "data.test_fraction=0.5") == 0
    assert 300 < results_of(run.folder)[0]["tokens"] < 400


def test_a_glob_takes_the_runs_among_its_matches_and_a_sweep_stands_for_its_jobs(
    run: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "outputs" / "sweep"
    for number, mem_len in enumerate((0, 7)):
        shutil.copytree(run.folder, sweep / str(number))
        overrides = ["data=text", f"model.mem_len={mem_len}"]
        (sweep / str(number) / "job.json").write_text(json.dumps({"overrides": overrides}))
    (sweep / "multirun.yaml").write_text("{}")
    for named in ("outputs/sweep/*", "outputs/sweep", "outputs/*"):
        names = [model.name for model in find_models(named, checkpoint="best")]
        assert names == ["model.mem_len=0", "model.mem_len=7"]
    assert "also matches outputs/sweep/multirun.yaml, which is no run" in capsys.readouterr().err
    assert [model.name for model in find_models("outputs/sweep/1", checkpoint="best")] == ["model.mem_len=7"]


def test_numbers_stay_where_no_picture_can_be_drawn(
    run: Outcome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError

    record = run.folder / "evaluation.json"
    before = json.loads(record.read_text())["evaluations"] if record.exists() else []
    monkeypatch.setattr(plots, "draw_losses", refuse)
    assert call(f"run={run.folder}", "eval.max_tokens=20") == 0
    assert len(json.loads(record.read_text())["evaluations"]) == len(before) + 1
    assert "loss_by_position.png cannot be drawn: MemoryError" in capsys.readouterr().err


@pytest.mark.slow
def test_what_keeps_scores_from_being_compared_is_said(
    run: Outcome, text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [one for one in tiny_overrides(text_file, tmp_path) if not one.startswith("data.tokenizer")]
    assert cli.run("train", train, [*overrides, "data.tokenizer=char", f"hydra.run.dir={tmp_path / 'of_chars'}"]) == 0
    capsys.readouterr()
    assert call(f"run=[{run.folder},of_chars]", "eval.max_tokens=40") == 0
    out = capsys.readouterr().out
    assert "The vocabularies differ: bits per byte can be compared, the loss cannot." in out


@pytest.mark.slow
def test_scores_join_the_runs_own_figures_in_wandb(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    overrides = [one for one in tiny_overrides(text_file, tmp_path) if not one.startswith("logger=")]
    logger = ["logger=wandb", "logger.mode=offline", "logger.project=mine"]
    assert cli.run("train", train, [*overrides, *logger, "hydra.run.dir=watched"]) == 0
    before = set(Path("watched/wandb").glob("offline-run-*"))
    assert call("run=watched", "eval.max_tokens=40", "wandb=true") == 0
    assert "wandb sync" in capsys.readouterr().out
    (new,) = set(Path("watched/wandb").glob("offline-run-*")) - before
    (log,) = new.glob("run-*.wandb")
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(log)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    records = [json.loads(line) for line in lines]
    (run,) = [record["run"] for record in records if record["type"] == "run"]
    identity = json.loads(Path("watched/run.json").read_text())
    assert (run["run_id"], run["project"]) == (identity["run_id"], "mine")
    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    (scores,) = [row for row in rows if "evaluation/test/loss" in row]
    assert scores["evaluation/test/loss"] == results_of(Path("watched"))[0]["loss"]
    assert scores["trainer/global_step"] == 6


MISTAKES: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "nothing there": (lambda run: ["run=./nowhere"], "nothing of this name (outputs/ holds no run)"),
    "more lanes than predictions": (lambda run: [f"run={run}", "eval.batch_size=99999"], "eval.batch_size is 99999"),
    "a damaged record": (lambda run: [f"run={run.parent / 'damaged'}"], "evaluation.json must hold a JSON object"),
    "another version": (
        lambda run: [f"run={run.parent / 'older'}"],
        "older/config.yaml: it is of another version: data.",
    ),
    "an empty list": (lambda run: [f"run={run}", "eval.mem_len=[]"], "eval.mem_len"),
    "no W&B run": (lambda run: [f"run={run}", "wandb=true"], "wandb"),
    "no corpus": (lambda run: [f"run={run / 'exported'}"], "data="),
    "a folder": (lambda run: [f"run={run}", "hydra.run.dir=x"], "train alone uses hydra.run.dir"),
    "a device": (lambda run: [f"run={run}", "device=tpu7"], "device"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_in_one_sentence(mistake: str, run: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, named = MISTAKES[mistake]
    if mistake == "a damaged record":
        shutil.copytree(run.folder, run.folder.parent / "damaged")
        (run.folder.parent / "damaged" / "evaluation.json").write_text("[]")
    if mistake == "another version":
        shutil.copytree(run.folder, run.folder.parent / "older")
        settings = (run.folder / "config.yaml").read_text()
        (run.folder.parent / "older" / "config.yaml").write_text(settings.replace("\ndata:", "\nother:"))
    if mistake == "no corpus":
        save_model(txl.load_model(run.folder), run.folder / "exported")
    assert call(*arguments(run.folder)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert named in error
