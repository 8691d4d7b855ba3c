"""Pictures of what a model looks at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from transformer_xl.commands.evaluating import looking_pictures
from transformer_xl.commands.evaluating.looking_pictures import _in_bins, draw_attention
from transformer_xl.inference.looking import AttentionByDistance

PNG = b"\x89PNG"


def looked_at(*, layers: int, heads: int, mem_len: int, segment_len: int) -> AttentionByDistance:
    distances = mem_len + segment_len
    weight = np.random.default_rng(0).dirichlet(np.ones(distances), size=(layers, heads))
    seen = np.clip((distances - np.arange(distances)) / segment_len, 0, 1)
    return AttentionByDistance(
        weight=weight,
        seen=seen,
        memory_share=weight[..., segment_len:].sum(-1),
        predictions=1000,
        lanes=1,
        segment_len=segment_len,
        mem_len=mem_len,
    )


@pytest.mark.parametrize(("layers", "mem_len"), [(3, 12), (1, 0)])
def test_attention_is_drawn_for_layers_that_fill_no_row_and_without_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: int, mem_len: int
) -> None:
    monkeypatch.setattr(looking_pictures, "_COLUMNS", 2)
    path = tmp_path / "attention.png"
    draw_attention(looked_at(layers=layers, heads=2, mem_len=mem_len, segment_len=4), path, title="a model")
    assert path.read_bytes().startswith(PNG)


def test_bins_hold_every_distance_that_is_seen_once() -> None:
    weight = np.arange(20, dtype=np.float64)[None, None]
    weight[..., 17:] = np.nan
    middle, mean = _in_bins(weight)
    assert middle[0] == 0
    assert middle[-1] <= 16
    np.testing.assert_allclose(mean[0, 0], middle)  # a straight line stays one
