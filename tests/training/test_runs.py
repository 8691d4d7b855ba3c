"""Whole runs through the real command line: what they leave, how they stop, how they go on, how they fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

import transformer_xl as txl
from tests.conftest import Outcome, read_values, tiny_overrides

Run = Callable[..., Outcome]


def test_a_run_leaves_everything_about_it_in_its_folder(tiny_run: Run) -> None:
    outcome = tiny_run("callbacks.sample.n_tokens=5", "callbacks.report.memory_tokens=50")
    left = {str(path.relative_to(outcome.folder)) for path in outcome.folder.rglob("*") if path.is_file()}
    assert left == {
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "checkpoints/step-3.ckpt",
        "config.yaml",
        "loss.png",
        "metrics.jsonl",
        "run.lock",
        "run.json",
        "samples/step-3.txt",
        "samples/step-6.txt",
        "summary.json",
        "vocabulary.json",
    }
    assert (outcome.folder / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_summary_says_how_it_ended_and_at_which_settings(tiny_run: Run) -> None:
    outcome = tiny_run("callbacks.report.memory_tokens=50")
    summary = outcome.summary
    assert (summary["status"], summary["exit_code"], summary["step"]) == ("finished", 0, 6)
    assert summary["objective"] == min(value for value in outcome.values("val/loss").values() if value is not None)
    assert summary["parameters"] == sum(p.numel() for p in txl.load_model(outcome.folder).parameters())
    assert summary["tokens"] == 6 * 4 * 5
    assert set(summary["metrics"]) == {
        "valid",
        "test",
        "test_beginning_memory_0",
        "test_beginning_memory_7",
        "test_beginning_memory_28",
    }
    assert summary["metrics"]["test"] | {"loss": 0, "bpc": 0, "bpb": 0} == {
        "loss": 0,
        "bpc": 0,
        "bpb": 0,
        "tokens": 40,
        "split": "test",
        "checkpoint": "best",
        "batch_size": 4,
        "segment_len": 5,
        "mem_len": 7,
        "clamp_len": None,
        "same_length": False,
        "stride": None,
    }
    assert summary["versions"]["torch"] == torch.__version__
    assert len(summary["data_checksum"]) == 64
    assert any("data=text" in argument for argument in summary["command"])


def test_config_is_resolved_plain_and_whole(tiny_run: Run) -> None:
    text = (tiny_run("trainer.precision=auto").folder / "config.yaml").read_text()
    config = yaml.safe_load(text)
    assert "${" not in text
    assert "_target_" not in text
    assert config["trainer"]["precision"] in ("bf16-mixed", "32-true")
    assert config["eval"]["segment_len"] == config["data"]["segment_len"] == 5
    assert config["scheduler"]["total_steps"] == config["trainer"]["max_steps"] == 6


def test_metrics_lines(tiny_run: Run) -> None:
    outcome = tiny_run()
    lines = [json.loads(line) for line in (outcome.folder / "metrics.jsonl").read_text().splitlines()]
    assert all(set(line) == {"step", "tokens", "name", "value"} for line in lines)
    assert all(line["tokens"] == line["step"] * 20 for line in lines)
    names = {line["name"] for line in lines}
    assert names >= {
        *("train/loss", "train/bpc", "train/grad_norm", "train/clipped_share", "lr", "tokens_per_second", "mfu"),
        *("val/loss", "val/bpc", "test/loss", "test/bpc"),
    }


@pytest.fixture
def folder_of_lines(tmp_path: Path) -> Path:
    """Splits whose lines have three words each, of more bytes in each split than in the one before."""
    folder = tmp_path / "lines"
    folder.mkdir()
    for split, line in (("train", "a b c\n"), ("valid", "a bb c\n"), ("test", "aaa bbb cc\n")):
        (folder / f"{split}.txt").write_text(line * 100)
    return folder


def test_bits_a_byte_equal_those_of_the_bytes_themselves(tiny_run: Run) -> None:
    outcome = tiny_run()
    assert outcome.values("val/bpb") == outcome.values("val/bpc")
    assert outcome.values("test/bpb") == outcome.values("test/bpc")


def test_dropped_line_ends_are_named_beside_every_score(
    tiny_run: Run, folder_of_lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["data.tokenizer=byte", f"data.path={folder_of_lines}", "data.end_of_document=false", "data.newline=drop"]
    outcome = tiny_run(*options, "trainer.enable_progress_bar=true", "callbacks.report.memory_tokens=50")
    assert {values.get("newline") for values in outcome.summary["metrics"].values()} == {"drop"}
    assert outcome.summary["read_as"] == {"newline": "drop"}
    printed = capsys.readouterr().out
    assert "text (newline=drop): nats per token, bpc" in printed
    (data,) = [line for line in printed.splitlines() if line.startswith("data     ")]
    assert data.startswith("data     text (newline=drop), 256 symbols")
    validations = [line for line in printed.splitlines() if "validation loss" in line]
    assert len(validations) == 2
    assert all(line.endswith("(newline=drop)") for line in validations)


def test_checkpoints_hold_what_a_resume_needs_and_load_without_code(tiny_run: Run) -> None:
    outcome = tiny_run("trainer.max_steps=5")
    checkpoint = outcome.checkpoint()
    assert checkpoint["format_version"] == 3
    assert checkpoint["global_step"] == 5
    assert checkpoint["train_memory"]["hidden_LBMD"].shape == (2, 4, 7, 16)
    assert checkpoint["train_memory"]["length_B"].tolist() == [7] * 4
    assert checkpoint["optimizer_states"][0]["state"]
    assert checkpoint["callbacks"]["Checkpoints"]["best_score"] == outcome.summary["objective"]
    assert checkpoint["config"] == yaml.safe_load((outcome.folder / "config.yaml").read_text())
    assert checkpoint["vocabulary"]["kind"] == "byte"
    assert checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] == [{"batches": 5}]


def test_opening_lines_are_few_and_come_before_step_one(tiny_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_run("trainer.enable_progress_bar=true")
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    first_step = next(index for index, line in enumerate(lines) if line.startswith("step "))
    assert first_step <= 15
    opening = "\n".join(lines[:first_step])
    for word in ("parameters", "valid", "4 lanes x 5 tokens", "6 steps", "epochs", "precision"):
        assert word in opening
    assert captured.err == ""


def test_turning_checkpoints_off_writes_none(tiny_run: Run) -> None:
    outcome = tiny_run("trainer.enable_checkpointing=false")
    assert outcome.status == 0
    assert not (outcome.folder / "checkpoints").exists()


def test_a_text_without_validation_and_test_parts_trains(tiny_run: Run) -> None:
    outcome = tiny_run("data.valid_fraction=0", "data.test_fraction=0", "callbacks.report.memory_tokens=50")
    assert outcome.status == 0
    assert not outcome.values("val/loss")
    assert outcome.summary["objective"] == outcome.values("train/loss")[6]


def test_scores_of_bfloat16_weights_are_summed_in_float64(tiny_run: Run) -> None:
    outcome = tiny_run(
        "trainer.precision=bf16-true",
        "trainer.limit_test_batches=null",
        "callbacks.report.memory_tokens=100000",
        "eval.segment_len=2",
    )
    metrics = outcome.summary["metrics"]
    assert metrics["test"]["loss"] == pytest.approx(metrics["test_beginning_memory_7"]["loss"], rel=1e-6)


def test_limits_may_be_shares_however_small(tiny_run: Run) -> None:
    outcome = tiny_run("trainer.limit_val_batches=0.0001", "trainer.limit_test_batches=0.5")
    assert outcome.summary["metrics"]["valid"]["tokens"] == 20
    assert 400 < outcome.summary["metrics"]["test"]["tokens"] < 1100


def test_resume_refuses_another_text(tiny_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = tiny_run("trainer.max_steps=3", "scheduler.total_steps=6")
    other = tmp_path / "other.txt"
    other.write_text("Another text. " * 1000)
    capsys.readouterr()
    outcome = tiny_run(f"resume={first.folder}", "trainer.max_steps=6", f"data.path={other}", base=False)
    assert outcome.status == 2
    assert "the text has changed" in capsys.readouterr().err


@pytest.mark.slow
def test_two_kilobytes_of_repeated_text_are_learnt_by_heart(tmp_path: Path, tiny_run: Run) -> None:
    path = tmp_path / "repeated.txt"
    sentence = "Targets are the next token, across segment borders and lanes; nothing is shifted twice. "
    path.write_text((sentence * 30)[:2048])
    outcome = tiny_run(
        f"data.path={path}",
        "model.d_model=64",
        "model.d_head=32",
        "model.d_inner=128",
        "data.segment_len=16",
        "data.valid_fraction=0",
        "data.test_fraction=0",
        "trainer.max_steps=400",
        "trainer.log_every_n_steps=50",
        "model.mem_len=32",
        "optimizer.lr=3e-3",
        "scheduler.warmup_steps=40",
    )
    assert outcome.values("train/loss")[400] < 0.05  # type: ignore[operator]


@pytest.mark.parametrize("name", ["it's a=b,[c] ${d}", '记忆 "x" #!~\\', "epoch=3-step=10", "a::b {c}"])
def test_a_run_in_an_oddly_named_folder_goes_on(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    from transformer_xl.commands import cli
    from transformer_xl.commands.train import train_by_command as train

    folder = tmp_path / name
    first = [*tiny_overrides(text_file, tmp_path), "scheduler.total_steps=6", "trainer.max_steps=3"]
    assert cli.run("train", train, [*first, f"hydra.run.dir={folder}"]) == 0
    assert cli.run("train", train, [f"resume={folder}", "trainer.max_steps=6"]) == 0
    assert list(read_values(folder, "train/loss")) == [1, 2, 3, 4, 5, 6]
    assert txl.load_model(folder).vocab_size == 256
