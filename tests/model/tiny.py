"""Models at toy size whose every parameter matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from transformer_xl.model.attention import AttentionMask, Distances
from transformer_xl.model.base import LanguageModel
from transformer_xl.model.memory import Memory

V = 32
SEGMENT_LEN = 5


def random_tokens(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(seed))


def read(
    model: LanguageModel, tokens_BT: Tensor, memory: Memory, pieces: Sequence[int], resets_BT: Tensor | None = None
) -> tuple[Tensor, Memory]:
    """Read a text in pieces; give all log-probabilities and the last memory."""
    log_probs = []
    for piece in cut(tokens_BT.shape[1], pieces):
        resets = None if resets_BT is None else resets_BT[:, piece]
        log_probs_BTV, memory = model.log_probs(tokens_BT[:, piece], memory, resets)
        log_probs.append(log_probs_BTV)
    return torch.cat(log_probs, dim=1), memory


def cut(length: int, pieces: Sequence[int]) -> Iterator[slice]:
    assert sum(pieces) == length
    start = 0
    for piece in pieces:
        yield slice(start, start + piece)
        start += piece


def assert_equal_to(actual: Tensor, expected: Tensor, *, within: float) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=within)


def attended(
    attend: Callable[..., Tensor], inputs: dict[str, Tensor], visible_BTS: Tensor, *, dropout: float = 0.0
) -> Tensor:
    """Call an attention with queries, keys, values and, where there are more inputs, distances."""
    query_BTNH, key_BSNH, value_BSNH, *others = inputs.values()
    distances = Distances(*others) if others else None
    return attend(query_BTNH, key_BSNH, value_BSNH, distances, mask=AttentionMask(visible_BTS), dropout=dropout)


def difference(left: Tensor, right: Tensor) -> float:
    return float((left - right).detach().abs().max())
