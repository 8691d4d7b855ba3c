"""What puzzled people ("What people ran into", 21 to 24, 26, 27)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import yaml

from tests.oracles.runs_support import (
    Forks,
    Result,
    Stop,
    call,
    copy_run,
    made_up_text,
    places,
    summary_of,
    tiny,
    values_of,
    without,
)

SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ends_in_one_line(result: Result, *words: str) -> None:
    assert result.status == 2, result.printed
    assert "Traceback" not in result.printed
    assert result.err.strip().splitlines()[-1].startswith("error"), result.err
    assert all(word in result.err for word in words), result.err


# --- 21: globs and folders of sweeps ---


def evaluated_models(*arguments: str) -> set[str]:
    """Evaluate; return the names of what was evaluated, from wherever the numbers were kept."""
    result = call("evaluate", *arguments, "eval.max_tokens=100")
    assert result.status == 0, result.printed
    kept = [json.loads(path.read_text()) for path in Path().rglob("evaluation.json")]
    return {Path(row["model"]).name for file in kept for entry in file["evaluations"] for row in entry["results"]}


@pytest.fixture
def like_a_sweep(trained: Path, tmp_path: Path) -> Path:
    """Give a folder of two runs, with the files that a sweep leaves."""
    for name in ("one", "two"):
        copy_run(trained, tmp_path / "outputs" / "sweep-x" / name)
    (tmp_path / "outputs/sweep-x/multirun.yaml").write_text("hydra: {}\n")
    (tmp_path / "outputs/corpora/text-1").mkdir(parents=True)
    (tmp_path / "outputs/corpora/text-1/corpus.json").write_text("{}\n")
    return tmp_path / "outputs/sweep-x"


def test_21_a_glob_takes_the_runs_among_its_matches_and_says_what_it_left_out(like_a_sweep: Path) -> None:
    assert evaluated_models("run=outputs/sweep-x/*") == {"one", "two"}
    result = call("evaluate", "run=outputs/sweep-x/*", "eval.max_tokens=100")
    assert "multirun.yaml" in result.printed


def test_21_a_glob_passes_folders_that_are_no_runs(like_a_sweep: Path, trained: Path) -> None:
    copy_run(trained, Path("outputs/alone"))
    result = call("evaluate", "run=outputs/*", "eval.max_tokens=100")
    assert result.status == 0, result.printed
    assert "corpora" in result.printed


def test_21_a_glob_that_matches_no_run_is_refused(like_a_sweep: Path) -> None:
    ends_in_one_line(call("evaluate", "run=outputs/corp*", "eval.max_tokens=100"), "outputs/corp")


def test_21_a_sweeps_folder_stands_for_its_runs(like_a_sweep: Path) -> None:
    assert evaluated_models("run=outputs/sweep-x") == {"one", "two"}


@pytest.fixture(scope="module")
def sweep(forks: Forks, base: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """Give how a sweep of four jobs went, and the folder in which it was started."""
    folder = tmp_path_factory.mktemp("swept")
    arguments = [*without(base, "model.mem_len"), "model.mem_len=3,5", "seed=1,2", "hydra.sweep.dir=sweep"]
    return forks.run("train", ["-m", *arguments], folder), folder


@pytest.mark.slow
def test_21_a_job_is_called_by_what_it_varies(sweep: tuple[Result, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sweep[1])
    result = call("evaluate", "run=sweep", "eval.max_tokens=100")
    assert result.status == 0, result.printed
    assert all(f"mem_len={value}" in result.printed for value in (3, 5))


# --- 22: one unseen character ---


@pytest.fixture(scope="module")
def of_characters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a run that knows some characters, and has no unknown one."""
    folder = tmp_path_factory.mktemp("characters")
    (folder / "text.txt").write_text(made_up_text(20_000))
    settings = without(tiny(folder / "text.txt", folder), "data.tokenizer")
    result = call("train", *settings, "data.tokenizer=char", f"hydra.run.dir={folder / 'run'}")
    assert result.status == 0, result.printed
    return folder / "run"


@pytest.mark.parametrize("options", [[], ["tokens=true"]], ids=["texts", "tokens"])
def test_22_an_unseen_character_leaves_no_half_of_the_scores(of_characters: Path, options: list[str]) -> None:
    """Either the whole input was looked at before, or each text is answered for itself."""
    Path("lines.txt").write_text("a line of words\nanother 記 line\na third line\n")
    result = call("score", f"run={of_characters}", "texts=lines.txt", "format=jsonl", *options)
    if result.status == 2:
        ends_in_one_line(result, "lines.txt", "unknown=")
        assert result.out == ""
    else:
        assert result.status == 0, result.printed
        assert {json.loads(line)["text"] for line in result.out.splitlines()} == {1, 2, 3}


def test_22_an_unseen_character_in_a_prompt_names_the_way_out(of_characters: Path) -> None:
    result = call("generate", f"run={of_characters}", "prompt=words 記 words", "sampling.n_tokens=5")
    if result.status == 2:
        ends_in_one_line(result, "prompt")
        assert re.search(r"記|8a18", result.err, re.IGNORECASE)
        assert re.search(r"unknown=|leave|without", result.err), result.err
    else:
        assert result.status == 0, result.printed


# --- 23: lines that were missing or misleading ---


def test_23_a_validation_and_a_test_are_seen(forks: Forks, base: list[str], tmp_path: Path) -> None:
    """Where they take longer than a moment: each batch takes half a second."""
    arguments = [*without(base, "trainer.enable_progress_bar"), "trainer.enable_progress_bar=true"]
    stops = [Stop("validation_batch", number, "pause") for number in (1, 2, 3)]
    stops.append(Stop("validation_batch", 4, "pause,SIGKILL"))
    result = forks.run("train", [*arguments, "hydra.run.dir=run"], tmp_path, stops=stops)
    assert result.status == -9
    lines = [line for line in re.split(r"[\r\n]", result.printed) if not line.startswith(("data", "run"))]
    assert any("validat" in line for line in lines), result.printed


def test_23_the_final_table_names_the_checkpoint_whose_validation_it_shows(base: list[str]) -> None:
    arguments = [*without(base, "optimizer.lr", "scheduler.warmup_steps"), "scheduler=constant", "optimizer.lr=0.002"]
    assert call("train", *arguments, "hydra.run.dir=run").status == 0
    branch = ["name=b", "hydra.run.dir=b", "optimizer.lr=5.0", "trainer.max_steps=12"]
    result = call("train", "resume=run", *branch)
    assert result.status == 0, result.printed
    validations = values_of(Path("b"), "val/loss")
    best = min(validations, key=lambda step: validations[step] or 0.0)
    assert best < 12, "the last is not the best"
    (row,) = [line for line in result.out.splitlines() if re.search(r"│\s*valid", line)]
    assert "best" in row or re.search(rf"step {best}\b", result.out[result.out.index("┏") :])


# --- 24: tracebacks, and misleading words ---


def test_24_an_accelerator_that_is_misspelt(base: list[str]) -> None:
    ends_in_one_line(
        call("train", *without(base, "trainer.accelerator"), "trainer.accelerator=cup"), "trainer.accelerator"
    )


def test_24_an_accelerator_that_is_not_there(base: list[str]) -> None:
    arguments = [*without(base, "trainer.accelerator"), "trainer.accelerator=tpu", "hydra.run.dir=run"]
    ends_in_one_line(call("train", *arguments), "trainer.accelerator")


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_24_another_main_configuration_that_is_not_there(base: list[str], command: str) -> None:
    ends_in_one_line(call(command, "--config-name=nope", *(base if command == "train" else ["run=x"])), "nope")


@pytest.mark.parametrize("change", ["extra", pytest.param("missing", marks=SLOW)])
def test_24_a_checkpoint_with_other_weights(trained: Path, change: str) -> None:
    run = copy_run(trained, Path("run"))
    for path in (run / "checkpoints").glob("*.ckpt"):
        checkpoint = torch.load(path, weights_only=True)
        if change == "extra":
            checkpoint["state_dict"]["one.more"] = torch.zeros(3)
        else:
            del checkpoint["state_dict"][next(reversed(checkpoint["state_dict"]))]
        torch.save(checkpoint, path)
    ends_in_one_line(call("train", f"resume={run}", "trainer.max_steps=8"), ".ckpt")


@pytest.mark.slow
def test_24_a_rank_that_is_killed_after_a_resume(forks: Forks, base: list[str], tmp_path: Path) -> None:
    arguments = [*base, "trainer.devices=2", "hydra.run.dir=run"]
    stops = [Stop("train_batch", 4, "SIGTERM")]  # several processes stop a step later, and the last is for the kill

    def run(given: list[str], stops: list[Stop]) -> Result:
        ranks = [
            forks.start("train", given, tmp_path, environment=place, stops=stops)  # type: ignore[arg-type]
            for place in places(2)
        ]
        results = [forks.result(rank, tmp_path, forks.wait(rank)) for rank in ranks]
        return results[0]

    assert run(arguments, stops).status == 143
    result = run(["resume=run"], [Stop("train_batch", 1, rank=1)])
    assert result.status not in (0, -999), result.printed
    assert "step 0" not in result.printed


def test_24_the_recipes_batch_size_is_named(base: list[str]) -> None:
    arguments = [*without(base, "data.batch_size"), "recipe.batch_size=0", "hydra.run.dir=run"]
    result = call("train", *arguments)
    assert result.status == 2
    assert "recipe.batch_size" in result.err or "data.batch_size" in result.err
    assert not result.err.startswith("error: eval.batch_size")


@pytest.mark.parametrize("name", ["max_steps", pytest.param("gradient_clip_val", marks=SLOW)])
def test_24_a_setting_without_its_group_gets_the_one_that_people_mean(base: list[str], name: str) -> None:
    ends_in_one_line(call("train", *base, f"{name}=5", "hydra.run.dir=run"), f"trainer.{name}")


def opening(base: list[str], *settings: str) -> dict[str, str]:
    """Return the lines at the beginning of a run by their first word."""
    result = call("train", *base, *settings, "hydra.run.dir=opened")
    assert result.status == 0, result.printed
    return {line.split()[0]: line for line in result.out.splitlines() if line.strip()}


def test_24_a_model_is_called_as_it_was_chosen(base: list[str]) -> None:
    lines = opening(without(base, "model"), "model=vanilla")
    assert "vanilla" in lines["model"]
    assert "vaswani" not in lines["model"]


def test_24_an_lstm_has_no_memory_of_one_token(base: list[str]) -> None:
    attention = ("model", "model.n_head", "model.d_head", "model.d_inner", "model.mem_len")
    lines = opening(without(base, *attention), "model=lstm")
    assert not re.search(r"memory 1\b", " ".join(lines.values()))


def test_24_made_up_data_has_no_source(base: list[str]) -> None:
    kept = ("data", "data.path", "data.cache_dir", "data.tokenizer", "data.segment_len")
    lines = opening(without(base, *kept), "data=recall", "data.segment_len=16")
    assert not re.search(r"\b0 files", " ".join(lines.values()))


def test_24_token_files_that_are_cut_short_under_a_run(forks: Forks, base: list[str], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(made_up_text(40_000))
    arguments = [*without(base, "data.path", "data.cache_dir"), "data.path=text.txt", "data.cache_dir=corpora"]
    stops = [Stop("train_batch", 2, "wait")]
    process = forks.start("train", [*arguments, "hydra.run.dir=run", "trainer.max_steps=1000"], tmp_path, stops=stops)
    forks.until((tmp_path / f"{process}.waiting").exists, process)
    (tokens,) = tmp_path.glob("corpora/text-*/train.bin")
    with tokens.open("r+b") as file:
        file.truncate(10)
    (tmp_path / f"{process}.go").touch()
    result = forks.result(process, tmp_path, forks.wait(process))
    assert result.status != 0
    assert result.err.strip(), "not a word"


# --- 26: pictures ---

NOTE_PICTURES = """
import json
from pathlib import Path

from matplotlib.figure import Figure

def note(figure, target, *arguments, **options):
    titles = [axes.get_title(loc=place) for axes in figure.axes for place in ("left", "center", "right")]
    notes = {"titles": [*titles, figure.get_suptitle()], "lines": sum(len(axes.lines) for axes in figure.axes)}
    with open(Path("pictures.jsonl").absolute(), "a") as file:
        file.write(json.dumps({"name": Path(str(target)).name, **notes}) + "\\n")
    return save(figure, target, *arguments, **options)

save = Figure.savefig
Figure.savefig = note
"""


def test_26_the_picture_of_losses_has_a_title(forks: Forks, base: list[str], tmp_path: Path) -> None:
    assert forks.run("train", [*base, "hydra.run.dir=run"], tmp_path, code=NOTE_PICTURES).status == 0
    notes = [json.loads(line) for line in (tmp_path / "pictures.jsonl").read_text().splitlines()]
    (losses,) = [note for note in notes if note["name"].startswith("loss")]
    assert any(title.strip() for title in losses["titles"])


# --- 27: sweeps, prompts ---


@pytest.mark.slow
def test_27_the_sweep_went_well(sweep: tuple[Result, Path]) -> None:
    result, folder = sweep
    assert result.status == 0, result.printed
    assert len(list(folder.glob("sweep/*/summary.json"))) == 4


@pytest.mark.slow
def test_27_a_line_says_which_job_starts(sweep: tuple[Result, Path]) -> None:
    lines = [line for line in sweep[0].printed.splitlines() if re.search(r"\b[1-4] of 4\b", line)]
    assert len(lines) == 4
    assert "mem_len=3" in lines[0]
    assert "seed=1" in lines[0]


@pytest.mark.slow
def test_27_the_table_has_a_unit_and_a_best(sweep: tuple[Result, Path]) -> None:
    table = sweep[0].out[sweep[0].out.rindex("objective") if "objective" in sweep[0].out else 0 :]
    assert re.search(r"\bnats\b|\bbpc\b|val/loss", table)
    assert "best" in table


@pytest.mark.slow
def test_27_jobs_that_differ_by_seed_alone_have_a_mean_and_a_deviation(sweep: tuple[Result, Path]) -> None:
    folders = [path for path in sweep[1].glob("sweep/*") if (path / "summary.json").exists()]
    by_length: dict[int, list[float]] = {}
    for folder in folders:
        mem_len = yaml.safe_load((folder / "config.yaml").read_text())["model"]["mem_len"]
        by_length.setdefault(mem_len, []).append(summary_of(folder)["objective"])
    for objectives in by_length.values():
        mean = sum(objectives) / 2
        assert re.search(rf"\b{re.escape(f'{mean:.5f}'[:5])}\d* ?(±|\+/-|\()", sweep[0].printed)


@pytest.mark.slow
def test_27_a_stopped_sweep_prints_the_command_that_goes_on(forks: Forks, base: list[str], tmp_path: Path) -> None:
    arguments = ["-m", *without(base, "trainer.max_steps"), "trainer.max_steps=100000", "seed=1,2"]
    process = forks.start("train", arguments, tmp_path)
    forks.until(lambda: any(tmp_path.glob("outputs/sweep-*/*/metrics.jsonl")), process)
    forks.signal(process, "SIGTERM")
    result = forks.result(process, tmp_path, forks.wait(process))
    assert result.status == 143
    (folder,) = tmp_path.glob("outputs/sweep-*")
    commands = [line for line in result.printed.splitlines() if "resume=auto" in line]
    assert commands
    assert f"hydra.sweep.dir={folder.relative_to(tmp_path)}" in commands[-1] or str(folder) in commands[-1]


@pytest.mark.slow
def test_27_a_long_prompt_is_read_in_large_pieces_where_the_results_stay_the_same(
    forks: Forks, trained: Path, tmp_path: Path
) -> None:
    """With same_length a token sees the same, however the text is cut."""
    text = made_up_text(100_000)
    results = []
    for name, content in (("long.txt", text), ("tail.txt", text[-400:])):
        (tmp_path / name).write_text(content)
        arguments = [f"run={trained}", f"prompt_file={name}", "memory.same_length=true", "sampling.n_tokens=20"]
        results.append(forks.run("generate", arguments, tmp_path, limit={"CPU": 6}))
    assert [result.status for result in results] == [0, 0], results
    assert results[0].out == results[1].out
