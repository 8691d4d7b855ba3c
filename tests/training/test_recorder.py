"""Which figures are written, and when: the same however a run was stopped and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Outcome, read_values
from transformer_xl.training.checkpoint import CheckpointFile

Run = Callable[..., Outcome]
OF_THE_MACHINE = {"tokens_per_second", "mfu"}
SETTINGS = [
    *("model.dropout=0.2", "trainer.max_steps=11", "trainer.log_every_n_steps=4", "trainer.val_check_interval=5"),
    *("callbacks.checkpoint.every_n_train_steps=3", "trainer.gradient_clip_val=1.3"),
]


def entries(folder: Path) -> list[tuple[int, int, str, float | None]]:
    """All lines of `metrics.jsonl` in order, with no value where it is the machine's."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        (line["step"], line["tokens"], line["name"], None if line["name"] in OF_THE_MACHINE else line["value"])
        for line in lines
    ]


def test_figures_stand_at_multiples_of_the_interval_and_at_the_last_step(tiny_run: Run) -> None:
    outcome = tiny_run(*SETTINGS)
    assert list(outcome.values("train/loss")) == list(range(1, 12))
    names = {name for _, _, name, _ in entries(outcome.folder)}
    beside = names - {"train/loss"} - {name for name in names if name.startswith(("val/", "test/"))}
    assert beside >= {"train/grad_norm", "train/clipped_share", "train/bpc", "lr", *OF_THE_MACHINE}
    for name in beside:
        assert list(outcome.values(name)) == [4, 8, 11], name


def test_the_clipped_share_is_of_the_steps_since_the_last_one(tiny_run: Run) -> None:
    """Whatever was fetched in between, here for validations and checkpoints."""
    norms = tiny_run(*SETTINGS, "trainer.log_every_n_steps=1", name="each").values("train/grad_norm")
    clipped = [norm is not None and norm > 1.3 for norm in norms.values()]
    assert 0 < sum(clipped) < len(clipped)
    shares = tiny_run(*SETTINGS, name="four").values("train/clipped_share")
    expected = {4: sum(clipped[:4]) / 4, 8: sum(clipped[4:8]) / 4, 11: sum(clipped[8:11]) / 3}
    assert shares == pytest.approx(expected)


def test_a_run_that_a_resume_lengthens_counts_on_over_its_former_end(tiny_run: Run) -> None:
    whole = tiny_run(*SETTINGS, "trainer.max_steps=12", name="whole")
    short = tiny_run(*SETTINGS, "trainer.max_steps=10", "scheduler.total_steps=12", name="short")
    assert tiny_run(f"resume={short.folder}", "trainer.max_steps=12", base=False).status == 0
    for name in ("train/clipped_share", "train/grad_norm"):
        values = read_values(short.folder, name)
        assert {step: values[step] for step in (4, 8, 12)} == whole.values(name)


def test_lines_are_on_the_disk_before_the_checkpoint_that_they_belong_to(
    tiny_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    save = CheckpointFile.save_checkpoint

    def saved(file: CheckpointFile, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        logged = read_values(Path(path).parents[1], "train/loss")
        assert list(logged) == list(range(1, checkpoint["global_step"] + 1))
        save(file, checkpoint, path, storage_options)
        steps.append(checkpoint["global_step"])

    monkeypatch.setattr(CheckpointFile, "save_checkpoint", saved)
    assert tiny_run(*SETTINGS).status == 0
    assert steps == [3, 5, 5, 6, 9, 10, 10, 11, 11]  # before and after the validations at 5, 10 and 11
