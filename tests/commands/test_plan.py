"""`train.py plan=true`: against what was measured, against what is known otherwise, and what a person reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import TINY_MODEL
from transformer_xl.commands import cli
from transformer_xl.commands.compose import compose
from transformer_xl.commands.plan import DEVICES, Need, known_text, measure
from transformer_xl.commands.train import train, train_by_command
from transformer_xl.config import PlanConfig
from transformer_xl.errors import UserError
from transformer_xl.model.base import make_model
from transformer_xl.settings import names_in

WT103 = ["data=wikitext103", "logger=none"]
TINY = [*TINY_MODEL, *WT103, "model.cutoffs=[]", "data.segment_len=5", "data.batch_size=8", "plan.vocab_size=100"]


def need(*overrides: str, device: str = "a100-40gb", devices: int = 1) -> Need:
    config = compose(*overrides)
    vocab_size, _, _, shares = known_text(config)
    return measure(config, DEVICES[device], vocab_size=vocab_size, devices=devices, shares=shares)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "measured"),
    [
        (["model=txl_base_nvidia", "optimizer=lamb", "data.batch_size=32"], 60_000),
        (["model=txl_large", "data.batch_size=8"], 21_600),
        (["model=txl_large", "data.batch_size=16"], 25_100),
    ],
    ids=str,
)
def test_speeds_are_near_those_that_nvidia_published_of_one_a100(overrides: list[str], measured: int) -> None:
    """Of its own implementation of the same networks, in mixed precision (DeepLearningExamples, TransformerXL)."""
    config = compose(*WT103, *overrides)
    predicted = config.data.batch_size * config.data.segment_len / need(*WT103, *overrides).seconds
    assert predicted == pytest.approx(measured, rel=0.25)


def test_what_is_counted_is_what_is_known_otherwise() -> None:
    found, config = need(*TINY, "trainer.precision=32-true"), compose(*TINY)
    with torch.device("meta"):
        model = make_model(config.model, vocab_size=100)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert found.parameters == parameters
    assert found.weights == 4 * parameters
    assert found.optimizer == pytest.approx(8 * parameters)
    assert found.memory == pytest.approx(2 * 8 * 7 * 16 * 4, abs=512)  # of L layers, B lanes, M slots, D wide
    useful = model.flops(batch_size=8, segment_len=5, cluster_shares=[1.0]).step
    assert useful < found.operations < 1.2 * useful  # and scores of keys that nobody sees


@pytest.mark.parametrize(
    ("model", "precision"),
    [("shaw", "32-true"), ("transformer_rope", "bf16-mixed"), ("vaswani", "bf16-true"), ("lstm", "16-mixed")],
)
def test_every_network_and_precision_can_be_planned(model: str, precision: str) -> None:
    size = ["model.n_layer=2", "model.d_model=16", "data.batch_size=4", "data.segment_len=5", "plan.vocab_size=50"]
    assert need(f"model={model}", *WT103, *size, f"trainer.precision={precision}").peak > 0


@pytest.mark.slow
def test_settings_that_save_memory_do() -> None:
    sizes = [*TINY, "data.batch_size=64", "data.segment_len=32", "model.n_layer=4", "model.dropatt=0.1"]
    plain, recomputed, chunked, fused, several, two = (
        need(*sizes, *changes, devices=devices)
        for changes, devices in (
            ([], 1),
            (["model.recompute=layers"], 1),
            (["data.lane_chunks=4"], 1),
            (["model.attention=sdpa"], 1),
            (["data.bptt_segments=2"], 1),
            ([], 2),
        )
    )
    assert recomputed.activations < plain.activations / 2
    assert plain.operations < recomputed.operations < 1.5 * plain.operations
    assert chunked.activations < plain.activations / 2
    assert chunked.operations == pytest.approx(plain.operations, rel=0.01)
    assert fused.activations < plain.activations
    assert two.memory == plain.memory / 2
    assert two.operations == pytest.approx(plain.operations / 2, rel=0.01)
    assert two.gradients == plain.weights
    assert several.activations > 1.5 * plain.activations
    assert several.operations >= 2 * plain.operations


def planned(capsys: pytest.CaptureFixture[str], *overrides: str) -> tuple[int, Any]:
    status = cli.run("train", train_by_command, [*TINY, *overrides])
    return status, capsys.readouterr()


def test_a_plan_is_printed_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, said = planned(capsys, "plan.device=rtx4090", "plan=true", "trainer.devices=2", "trainer.max_steps=10")
    assert status == 0, said.err
    assert re.search(r"^run +10 steps, 400 tokens, 0.00 epochs$", said.out, re.MULTILINE)
    assert "2 x rtx4090" in said.out
    assert "fit" not in said.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_does_not_fit_is_said_with_what_would(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = DEVICES["h100"]._replace(memory=1.5 * 2**30 + 1_000_000)
    monkeypatch.setitem(DEVICES, "h100", small)
    monkeypatch.setenv("COLUMNS", "200")
    _, said = planned(capsys, "plan.device=h100", "data.batch_size=256")
    assert "does not fit" in said.out
    settings = re.search(r"│ (data.lane_chunks=\d+) +│", said.out)
    assert settings is not None
    assert need(*TINY, "data.batch_size=256", settings[1]).peak < 1e6 < need(*TINY, "data.batch_size=256").peak


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["plan=true"], "plan.device is null"),
        (["plan.device=h10"], "plan.device is 'h10'"),
        (["plan.device=h100", "data=text", "data.path=setup.cfg", "plan.vocab_size=null"], "plan.vocab_size is null"),
        (["plan.device=h100", "trainer.devices=9"], "data.batch_size is 8"),
        (["plan.device=h100", "trainer.precision=64-true"], "trainer.precision is '64-true'"),
        (["plan.device=h100", "model.attention=blockwise"], "model.attention is 'blockwise'"),
    ],
    ids=str,
)
def test_what_cannot_be_planned_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, overrides: list[str], words: str
) -> None:
    (tmp_path / "setup.cfg").write_text("some text " * 100)
    overrides = [word.replace("setup.cfg", str(tmp_path / "setup.cfg")) for word in overrides]
    status, said = planned(capsys, *overrides)
    assert (status, said.err.count("\n")) == (2, 1)
    assert words in said.err


def test_python_trains_no_plan() -> None:
    with pytest.raises(UserError, match="plan is given"):
        train(compose(*TINY, "plan=true"))
    assert set(names_in(PlanConfig)) == {"device", "vocab_size"}
