"""Relative effective context length: how far back models make use of a text, measured beside each other.

Transformer-XL, appendix C: l_i(c, t) is the loss of model i on token t, predicted from exactly the c tokens before it
(`context_losses`), and b(c, t) the least of any model. Over the hardest positions T, the share r of all with the
largest b(c, t),

    f_i(c, c') = mean over t in T of min(b(c, t), l_i(c', t))
    g_i(c, c') = 1 - exp(f_i(c, c') - f_i(c, c))

is the part of the perplexity that model i takes away by reading c' tokens instead of c. Its relative effective context
length is the c, going up, from which the next step gains less than a threshold. The paper's steps are equal, those here
lie between the lengths that are given.

Axes, in this order: models, context lengths, predictions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transformer_xl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Gains:
    """What one model gains at the hardest positions.

    Attributes:
        share: r, of all positions.
        gains: g_i from each context length to the next.
        length: the relative effective context length, in tokens.
        is_least: it is the longest that was measured, and more may be of use.
    """

    share: float
    gains: tuple[float, ...]
    length: int
    is_least: bool


@dataclass(frozen=True, kw_only=True)
class RelativeContext:
    """One model among others.

    Attributes:
        name: of the model.
        lengths: the context lengths c.
        losses: its mean loss at each of them, over all positions, in nats.
        shares: its gains for each r.
    """

    name: str
    lengths: tuple[int, ...]
    losses: tuple[float, ...]
    shares: tuple[Gains, ...]


def check_contexts(*, lengths: Sequence[int], shares: Sequence[float], threshold: float, max_tokens: int) -> None:
    """Refuse what cannot be measured.

    Raises:
        UserError: naming the settings.
    """
    problems = []
    if len(lengths) < 2 or lengths[0] < 1 or any(one >= other for one, other in itertools.pairwise(lengths)):
        problems.append(
            f"eval.relative_context_lengths is {list(lengths)}, and must be at least two rising numbers from 1 on"
        )
    if not shares or not all(0 < share <= 1 for share in shares):
        problems.append(f"eval.relative_context_shares is {list(shares)}, and must be numbers above 0 and at most 1")
    if not 0 < threshold < 1:
        problems.append(f"eval.relative_context_threshold is {threshold}, and must be above 0 and below 1")
    if max_tokens < 1:
        problems.append(f"eval.relative_context_tokens is {max_tokens}, and must be at least 1")
    if problems:
        raise UserError("; ".join(problems))


def relative_context(
    losses: NDArray[np.float64],
    *,
    names: Sequence[str],
    lengths: Sequence[int],
    shares: Sequence[float],
    threshold: float,
) -> list[RelativeContext]:
    """Compare a group of models; see the top of the file.

    Args:
        losses: of each model at each context length on the same tokens, in nats.
        names: of the models.
        lengths: c, rising.
        shares: r.
        threshold: a smaller gain than this ends the search.
    """
    assert losses.shape[:2] == (len(names), len(lengths))
    by_share = [_gains(losses, share=share) for share in shares]
    means = losses.mean(axis=2).tolist()
    return [
        RelativeContext(
            name=name,
            lengths=tuple(lengths),
            losses=tuple(means[index]),
            shares=tuple(
                _gains_of(gains[index], share=share, lengths=lengths, threshold=threshold)
                for share, gains in zip(shares, by_share, strict=True)
            ),
        )
        for index, name in enumerate(names)
    ]


def _gains(losses: NDArray[np.float64], *, share: float) -> NDArray[np.float64]:
    """Give the gain of each model from each context length to the next, of which there is one less."""
    models, contexts, predictions = losses.shape
    gains = np.zeros((models, contexts - 1))
    for step in range(contexts - 1):
        baseline = losses[:, step].min(axis=0)
        hardest = np.argsort(-baseline, kind="stable")[: max(1, round(share * predictions))]
        improved = np.minimum(baseline[hardest], losses[:, step + 1, hardest])
        gains[:, step] = 0 - np.expm1(improved.mean(axis=1) - baseline[hardest].mean())  # 0 has no sign
    return gains


def _gains_of(gains: NDArray[np.float64], *, share: float, lengths: Sequence[int], threshold: float) -> Gains:
    below = np.flatnonzero(gains < threshold)
    reached = int(below[0]) if len(below) else len(gains)
    return Gains(share=share, gains=tuple(gains.tolist()), length=lengths[reached], is_least=reached == len(gains))
