"""The comparisons of the paper and the articles: rows of one size, trained on the same tokens, in one table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import run_training
from tests.test_configs import COMPARISONS, composed, rows_of
from transformer_xl.commands.call import read
from transformer_xl.errors import UserError
from transformer_xl.model.base import make_model

ROWS = [(name, row) for name in COMPARISONS for row in rows_of(name)]


@pytest.mark.slow
@pytest.mark.parametrize(("experiment", "row"), ROWS)
@pytest.mark.parametrize(("data", "vocab_size"), [("stdlib", 256), ("recall", 8)])
def test_rows_have_equal_tokens_and_parameters(experiment: str, row: str, data: str, vocab_size: int) -> None:
    config = composed(f"experiment={experiment}", f"row={row}", f"data={data}")
    full = composed(f"experiment={experiment}", "row=full", f"data={data}")
    tokens, full_tokens = (
        c.trainer.max_steps * c.data.batch_size * c.data.segment_len * c.trainer.accumulate_grad_batches
        for c in (config, full)
    )
    assert tokens == full_tokens
    assert config.optimizer == full.optimizer
    with torch.device("meta"):
        size, full_size = (
            sum(parameter.numel() for parameter in make_model(c.model, vocab_size=vocab_size).parameters())
            for c in (config, full)
        )
    assert size == pytest.approx(full_size, rel=0.03)


def test_a_comparison_is_a_sweep_over_its_rows_and_corpora_or_one_of_them() -> None:
    assert read("train", ["train.py", "experiment=articles"]).is_sweep
    assert read("train", ["train.py", "experiment=articles", "row=full"]).is_sweep
    assert not read("train", ["train.py", "experiment=articles", "row=full", "data=recall"]).is_sweep
    assert not read("train", ["train.py", "experiment=recall"]).is_sweep
    with pytest.raises(UserError, match=r"row=ful is none of experiment=articles \(the nearest is full\)"):
        read("train", ["train.py", "experiment=articles", "row=ful"])


@pytest.mark.slow
def test_a_comparison_trains_its_rows_and_prints_one_table(tmp_path: Path) -> None:
    outcome = run_training(
        [
            "experiment=articles",
            "row=full,lstm,vanilla_sliding",
            "data=recall",
            "recipe.max_steps=3",
            "callbacks.report.memory_tokens=500",
            "callbacks.throughput.peak_flops=1e11",
            "trainer.limit_val_batches=2",
            "trainer.limit_test_batches=20",
            "trainer.precision=32-true",
            f"hydra.sweep.dir={tmp_path / 'sweep'}",
        ],
        tmp_path,
    )
    assert outcome.status == 0, outcome.stderr
    rows = [line for line in outcome.stdout.splitlines() if " finished " in line]
    table = {row.split()[1]: row for row in rows}
    assert table.keys() == {"row=full", "row=lstm", "row=vanilla_sliding"}
    assert table["row=full"].count("bpc") == 3  # test, its beginning, and that with four times the memory
    assert table["row=lstm"].count("bpc") == table["row=vanilla_sliding"].count("bpc") == 2
