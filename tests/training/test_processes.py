"""Two and three processes over gloo: the same numbers as one."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch

from tests.conftest import Outcome, read_values, run_training, start_training, tiny_overrides
from tests.training.test_runs import wait_for_new_steps


def exact_run(text_file: Path, tmp_path: Path, devices: int, *overrides: str) -> Outcome:
    folder = tmp_path / f"processes-{devices}"
    arguments = [
        *tiny_overrides(text_file, tmp_path),
        "data.batch_size=7",
        "eval.batch_size=5",
        "trainer.precision=64-true",
        "trainer.max_steps=12",
        "trainer.val_check_interval=5",
        "trainer.limit_val_batches=null",
        "trainer.limit_train_batches=5",
        "trainer.log_every_n_steps=3",
        f"trainer.devices={devices}",
        *overrides,
        f"hydra.run.dir={folder}",
    ]
    outcome = run_training(arguments, tmp_path)
    assert outcome.status == 0, outcome.stderr
    return outcome


def assert_same_run(one: Outcome, other: Outcome) -> None:
    for name in ("train/loss", "train/grad_norm", "val/loss", "val/memory_gain", "test/loss", "lr"):
        assert other.values(name) == pytest.approx(one.values(name), rel=1e-9), name
    for name, tensor in one.checkpoint()["state_dict"].items():
        torch.testing.assert_close(other.checkpoint()["state_dict"][name], tensor, rtol=1e-7, atol=1e-9)
    memory, other_memory = one.checkpoint()["train_memory"], other.checkpoint()["train_memory"]
    assert torch.equal(other_memory["length_B"], memory["length_B"])
    torch.testing.assert_close(other_memory["hidden_LBMD"], memory["hidden_LBMD"], rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_seven_lanes_on_two_processes_give_the_numbers_of_one(text_file: Path, tmp_path: Path) -> None:
    one = exact_run(text_file, tmp_path, 1)
    two = exact_run(text_file, tmp_path, 2)
    assert_same_run(one, two)
    assert two.stdout.count("parameters") == 1
    assert "3-4 lanes a device" in two.stdout


@pytest.mark.slow
def test_a_process_without_rare_words_gives_the_numbers_of_one(tmp_path: Path) -> None:
    """The second process's lanes hold frequent words only, so its share of the rare clusters' gradient is zero."""
    text = tmp_path / "words.txt"
    rare = " ".join(f"rare{number}" for number in range(40))
    text.write_text("the cat sat\n" * 20 + rare + "\n" + "the cat sat\n" * 160)
    clusters = ["data.tokenizer=word", "model.cutoffs=[4,20]", "model.div_val=2", "data.batch_size=6"]
    one = exact_run(text, tmp_path, 1, *clusters)
    two = exact_run(text, tmp_path, 2, *clusters)
    assert_same_run(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [[], ["data.lane_chunks=2"], ["trainer.accumulate_grad_batches=2"]])
def test_seven_lanes_on_three_processes_give_the_numbers_of_one(
    text_file: Path, tmp_path: Path, overrides: list[str]
) -> None:
    one = exact_run(text_file, tmp_path, 1, *overrides)
    three = exact_run(text_file, tmp_path, 3, *overrides)
    assert_same_run(one, three)


@pytest.mark.slow
def test_two_processes_stop_together_and_go_on(text_file: Path, tmp_path: Path) -> None:
    base = [
        *tiny_overrides(text_file, tmp_path),
        "trainer.devices=2",
        "trainer.precision=64-true",
        "trainer.max_steps=600",
        "trainer.log_every_n_steps=1",
        "trainer.val_check_interval=50",
    ]
    whole = run_training([*base, f"hydra.run.dir={tmp_path / 'whole'}"], tmp_path)
    assert whole.status == 0, whole.stderr
    folder = tmp_path / "stopped"
    process = start_training([*base, f"hydra.run.dir={folder}"], tmp_path)
    wait_for_new_steps(folder, 20, process)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 143, stderr
    assert json.loads((folder / "summary.json").read_text())["status"] == "stopped"
    assert run_training([f"resume={folder}"], tmp_path).status == 0
    assert read_values(folder, "train/loss") == pytest.approx(whole.values("train/loss"), rel=1e-9)


@pytest.mark.slow
def test_two_processes_share_an_oddly_named_folder_and_text(text_file: Path, tmp_path: Path) -> None:
    odd = tmp_path / 'it\'s "odd" a=b,[c] $d 记忆'
    odd.mkdir()
    text = odd / "text, with [blanks].txt"
    text.write_bytes(text_file.read_bytes())
    arguments = [argument for argument in tiny_overrides(text, tmp_path) if not argument.startswith("data.cache_dir")]
    outcome = run_training([*arguments, "trainer.devices=2", "name=a, b"], odd)
    assert outcome.status == 0, outcome.stderr
    (folder,) = (odd / "outputs").glob("*/summary.json")
    assert json.loads(folder.read_text())["status"] == "finished"
