"""The benchmark of a GPU, at toy size on a CPU: it runs, and what is wrong does not pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.benchmarks import gpu
from tests.benchmarks.gpu_numerics import check_apart, check_attentions
from tests.benchmarks.gpu_works import Setting
from tests.test_imports import FRAMEWORKS, imported
from transformer_xl.model.attention import AttentionMask, plain_attention
from transformer_xl.model.kernels import ATTENTION
from transformer_xl.model.kernels.fused import missing


def run(folder: Path, *more: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    status = gpu.main(["--toy", "--no-compile", "--out", str(folder), *more])
    return status, json.loads((folder / "gpu.json").read_text())["parts"]


@pytest.mark.slow
def test_every_part_runs_and_all_numbers_are_right(tmp_path: Path) -> None:
    status, parts = run(tmp_path)
    assert status == 0
    assert list(parts) == list(gpu.BUDGET)
    checked = [row for row in parts.pop("numerics") if "type" in row]
    assert {row["attention"] for row in checked} == set(ATTENTION) - {"auto", "fused"}
    for rows in parts.values():
        assert all(row["tokens/s"] > 0 for row in rows)
    assert "**generation**" in (tmp_path / "gpu.md").read_text()


def one_key_too_many(*given: Any, mask: AttentionMask, dropout: float) -> Tensor:
    """Let the last query see no key but itself."""
    visible_BTS = mask.visible_BTS.clone()
    visible_BTS[:, -1, :-1] = False
    return plain_attention(*given, mask=AttentionMask(visible_BTS), dropout=dropout)


def wrong_gradient(*given: Any, **others: Any) -> Tensor:
    *inputs, distances = given
    bias_NH = distances.position_bias_NH
    return plain_attention(*inputs, distances._replace(position_bias_NH=bias_NH.detach() + 0 * bias_NH), **others)


def no_number(*given: Any, **others: Any) -> Tensor:
    return plain_attention(*given, **others) * torch.nan


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [one_key_too_many, wrong_gradient, no_number])
def test_a_wrong_attention_does_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    monkeypatch.setitem(ATTENTION, "sdpa", wrong)
    status, parts = run(tmp_path, "--parts", "numerics")
    assert status == 1
    assert {row["attention"] for row in parts["numerics"] if not row["ok"]} == {"sdpa"}


@pytest.mark.slow
@pytest.mark.skipif(missing("cpu") is not None, reason="needs Triton's interpreter")
def test_fused_attention_is_checked_and_what_breaks_apart_is_written_down() -> None:
    setting = Setting(device=torch.device("cpu"), toy=True, backend="eager")
    assert all(row["ok"] for row in check_attentions(setting, {"fused": ATTENTION["fused"]}))
    (row,) = check_apart("no such attention")
    assert (row["ok"], row["note"]) == (False, "failed: KeyError: 'no such attention'")


def test_no_framework_is_needed() -> None:
    for path in Path(gpu.__file__).parent.glob("gpu*.py"):
        assert not FRAMEWORKS & {name.partition(".")[0] for name in imported(path)}, path
