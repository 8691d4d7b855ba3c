from __future__ import annotations

import math

import pytest
import torch

from tests.model.tiny import assert_equal_to
from transformer_xl.model.positions import descending_distances, sinusoids

CPU = torch.device("cpu")


def test_sinusoids_equal_the_snippet_of_the_articles() -> None:
    length, embedding_dim = 128, 512
    position = torch.arange(length - 1, -1, -1.0, dtype=torch.float)
    inv_freq = 1 / (10000 ** (torch.arange(0.0, embedding_dim, 2.0) / embedding_dim))
    sinusoid = torch.einsum("i,j->ij", position, inv_freq)
    relative_positional_embeddings = torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)[:, None, :]
    assert relative_positional_embeddings.shape == (128, 1, 512)

    distance_S = descending_distances(keys=length, clamp_len=None, device=CPU)
    actual = sinusoids(distance_S, d_model=embedding_dim, dtype=torch.float32)[:, None, :]
    assert actual.shape == (128, 1, 512)
    assert_equal_to(actual, relative_positional_embeddings, within=1e-5)


def test_float64_sinusoids_are_exact_to_float64() -> None:
    distances, width = [0, 1, 17, 3800], 16
    angles = [[d / 10000 ** (2 * f / width) for f in range(width // 2)] for d in distances]
    expected = [[*map(math.sin, row), *map(math.cos, row)] for row in angles]
    actual = sinusoids(torch.tensor(distances), d_model=width, dtype=torch.float64)
    assert actual.dtype == torch.float64
    assert_equal_to(actual, torch.tensor(expected, dtype=torch.float64), within=1e-11)


def test_bfloat16_rounds_the_result_and_not_the_distance() -> None:
    distance_S = torch.tensor([256, 257, 3799, 3800])  # bfloat16 knows no 257 and no 3799
    actual = sinusoids(distance_S, d_model=16, dtype=torch.bfloat16)
    assert actual.dtype == torch.bfloat16
    assert torch.equal(actual, sinusoids(distance_S, d_model=16, dtype=torch.float32).bfloat16())
    assert not torch.equal(actual[0], actual[1])
    assert not torch.equal(actual[2], actual[3])


@pytest.mark.parametrize(
    ("clamp_len", "expected"),
    [
        (None, [5, 4, 3, 2, 1, 0]),
        (6, [5, 4, 3, 2, 1, 0]),
        (5, [5, 4, 3, 2, 1, 0]),
        (4, [4, 4, 3, 2, 1, 0]),
        (1, [1, 1, 1, 1, 1, 0]),
        (0, [0, 0, 0, 0, 0, 0]),
    ],
)
def test_distances_descend_and_stop_at_the_clamp(clamp_len: int | None, expected: list[int]) -> None:
    assert descending_distances(keys=6, clamp_len=clamp_len, device=CPU).tolist() == expected
