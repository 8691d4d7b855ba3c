"""A GPU that runs out of memory: one sentence, from the process that did."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import Outcome, tiny_overrides
from transformer_xl.data.stream import Batch
from transformer_xl.training.module import LanguageModule

Run = Callable[..., Outcome]


def out_of_memory_at(step: int, original: Callable[..., dict[str, torch.Tensor]]) -> Callable[..., object]:
    def training_step(module: LanguageModule, batch: Batch, batch_idx: int) -> dict[str, torch.Tensor]:
        if batch.step == step:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nGPU 0 has 1 GiB.")
        return original(module, batch, batch_idx)

    return training_step


@pytest.mark.parametrize(
    ("step", "chunks", "words"),
    [
        (1, 1, "try data.lane_chunks=2, which gives the same gradients"),
        (1, 3, "try data.lane_chunks=4, which"),
        (1, 4, "data.lane_chunks 4; try less"),
    ],
)
def test_training_names_batch_segment_memory_and_the_next_chunks(
    tiny_run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: int,
    chunks: int,
    words: str,
) -> None:
    monkeypatch.setattr(LanguageModule, "training_step", out_of_memory_at(step, LanguageModule.training_step))
    outcome = tiny_run(f"data.lane_chunks={chunks}")
    error = capsys.readouterr().err
    assert outcome.status == outcome.summary["exit_code"] == 2
    assert outcome.summary["status"] == "failed"
    assert error.startswith("error: the device ran out of memory in training: data.batch_size is 4, data.segment_len 5")
    assert error.count("\n") == 1
    assert f"model.mem_len 7 and data.lane_chunks {chunks}" in error
    assert words in error


@pytest.mark.parametrize("stage", ["validation_step", "test_step"])
def test_an_evaluation_names_its_own_settings(
    tiny_run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stage: str
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(LanguageModule, stage, fail)
    outcome = tiny_run("eval.batch_size=6", "eval.mem_len=9")
    error = capsys.readouterr().err
    assert outcome.status == 2
    assert "eval.batch_size is 6, eval.segment_len 5 and eval.mem_len 9; try smaller ones" in error


SECOND_PROCESS = """
import torch
from transformer_xl.commands.train import main
from transformer_xl.training.module import LanguageModule

original = LanguageModule.training_step

def training_step(module, batch, batch_idx):
    if module.global_rank == 1 and batch.step == 3:
        raise torch.OutOfMemoryError("CUDA out of memory.")
    return original(module, batch, batch_idx)

LanguageModule.training_step = training_step
main()
"""


@pytest.mark.slow
def test_the_second_process_of_two_tells_it_itself_and_the_run_fails(text_file: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SECOND_PROCESS)
    settings = [*tiny_overrides(text_file, tmp_path), "trainer.devices=2", f"hydra.run.dir={tmp_path / 'run'}"]
    command = [sys.executable, str(script), *settings]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert done.stderr.count("the device ran out of memory in training: data.batch_size is 4") == 1
    assert "data.lane_chunks=2" in done.stderr
