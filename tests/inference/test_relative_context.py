"""Relative effective context length, of numbers whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from transformer_xl.errors import UserError
from transformer_xl.inference.relative_context import RelativeContext, check_contexts, relative_context

LENGTHS = [1, 2, 4, 8]


def compared(*losses: list[list[float]], shares: list[float], threshold: float = 0.01) -> list[RelativeContext]:
    """Losses of each model: a list for each context length, a number for each token."""
    names = [f"model {number}" for number in range(len(losses))]
    return relative_context(np.array(losses), names=names, lengths=LENGTHS, shares=shares, threshold=threshold)


def test_one_model_gains_what_its_perplexity_loses() -> None:
    (model,) = compared([[3.0, 1.0], [2.0, 1.0], [2.0, 0.5], [2.0, 0.495]], shares=[1.0])
    assert model.losses == pytest.approx((2.0, 1.5, 1.25, 1.2475))
    assert model.lengths == (1, 2, 4, 8)
    (all_of_them,) = model.shares
    assert all_of_them.gains == pytest.approx([1 - math.exp(-0.5), 1 - math.exp(-0.25), 1 - math.exp(-0.0025)])
    assert (all_of_them.length, all_of_them.is_least) == (4, False)


def test_a_share_is_of_the_positions_that_the_best_model_finds_hardest() -> None:
    """For the first model token 0 is the hardest, for the best of both token 1 is."""
    first = [[9.0, 3.0, 1.0, 1.0], [9.0, 2.0, 1.0, 1.0], [9.0, 2.0, 1.0, 1.0], [9.0, 2.0, 1.0, 1.0]]
    other = [[2.0, 4.0, 2.0, 2.0], [2.0, 4.0, 2.0, 2.0], [2.0, 4.0, 2.0, 2.0], [2.0, 4.0, 2.0, 2.0]]
    one, two = compared(first, other, shares=[0.25, 0.5])
    assert one.shares[0].gains == pytest.approx([1 - math.exp(-1), 0, 0])
    assert one.shares[1].gains == pytest.approx([1 - math.exp(-0.5), 0, 0])
    assert [share.length for share in one.shares] == [2, 2]
    assert [share.length for share in two.shares] == [1, 1]
    assert [share.share for share in two.shares] == [0.25, 0.5]


def test_only_what_beats_the_best_at_the_shorter_context_counts() -> None:
    """The worse model gains much, but seldom comes below what the better one had; elsewhere it loses nothing."""
    good = [[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [2.0, 1.0]]
    bad = [[6.0, 6.0], [4.0, 6.0], [2.5, 6.0], [1.0, 6.0]]
    better, worse = compared(good, bad, shares=[1.0])
    assert better.shares[0].length == 1
    assert worse.shares[0].gains == pytest.approx([0, 0, 1 - math.exp(-0.5)])
    assert worse.shares[0].length == 1


def test_the_search_ends_at_the_first_small_gain_and_says_where_it_ran_out() -> None:
    falling = [[5.0], [4.0], [3.0], [2.0]]
    (model,) = compared(falling, shares=[1.0])
    assert (model.shares[0].length, model.shares[0].is_least) == (8, True)
    gain = 1 - math.exp(-1)
    assert compared(falling, shares=[1.0], threshold=gain * 1.001)[0].shares[0].length == 1
    pausing = [[5.0], [4.0], [4.0], [2.0]]
    assert compared(pausing, shares=[1.0])[0].shares[0].length == 2


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"lengths": [0, 4]}, "relative_context_lengths"),
        ({"lengths": [4]}, "relative_context_lengths"),
        ({"lengths": [4, 4]}, "relative_context_lengths"),
        ({"shares": [0.0]}, "relative_context_shares"),
        ({"shares": []}, "relative_context_shares"),
        ({"shares": [1.5]}, "relative_context_shares"),
        ({"threshold": 0.0}, "relative_context_threshold"),
        ({"max_tokens": 0}, "relative_context_tokens"),
    ],
    ids=str,
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, object], setting: str) -> None:
    settings: dict[str, object] = {"lengths": LENGTHS, "shares": [0.1, 1.0], "threshold": 0.01, "max_tokens": 10}
    check_contexts(**settings)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"eval.{setting} is "):
        check_contexts(**(settings | changes))  # type: ignore[arg-type]
