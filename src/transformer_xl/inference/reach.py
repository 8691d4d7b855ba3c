"""How far back outputs depend on the text, measured.

Letters: B lanes, T tokens, M memory slots, D width.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transformer_xl.inference.looking import attending
from transformer_xl.model.base import LanguageModel, of_kind
from transformer_xl.model.layers import Layer
from transformer_xl.model.memory import HiddenMemory, Memory
from transformer_xl.model.transformer import MemoryTransformer

_SEEN_AS_EQUAL = 1e-12
"""Rounding in float64 stays below this share of the largest number; what a key adds is above if weights are even."""
_SCORED = ("attention.query.weight", "content_bias", "position_bias", "distance_embedding.bias")
"""Parameters of which scores are sums of products, each with one of them."""
_EVEN = 1e-3


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far back the outputs of each layer depend on the text.

    Attributes:
        distances: for each layer from the first to the last, the largest number of tokens between an output and a token
            that it depends on.
        segment_len: T.
        mem_len: M.
        same_length: whether each query sees the same number of keys.
    """

    distances: tuple[int, ...]
    segment_len: int
    mem_len: int
    same_length: bool


@torch.no_grad()
def reach(
    model: LanguageModel,
    *,
    segment_len: int,
    mem_len: int,
    clamp_len: int | None,
    same_length: bool,
) -> Reach:
    """Change one token, and see which later outputs change; in float64, on random tokens, segment by segment.

    A change fades from layer to layer, and would soon be lost among the digits. Whether an output depends on the token
    at all is therefore asked a layer at a time: wherever the output of a layer differs at all, the next layer reads one
    that differs by noise of ordinary size. Nor would a weight be seen that is smaller than rounding, though the key is
    read: queries are shrunk until weights are nearly even. All this is done to a copy of the model. The text is read
    until nothing that memory holds differs any more.

    The token stands at every place of a segment in turn, of one longer than four at its first, middle and last, and at
    that of the token M before a segment: the furthest back that a query of a first layer sees, and so of the others.

    Args:
        model: in evaluation mode.
        segment_len: T.
        mem_len: M.
        clamp_len: distances above it count as it; None: no limit.
        same_length: whether each query sees the same number of keys.

    Raises:
        UserError: the model has no attention.
    """
    transformer = attending(model, setting="eval.reach", clamp_len=clamp_len, same_length=same_length)
    exact = _exact_and_even(transformer)
    places = _places(segment_len, mem_len)
    differences = _Differences(places, layers=len(exact.layers))
    reader = exact.with_layers_called_by(differences.call)
    generator = torch.Generator().manual_seed(0)
    memory: Memory = reader.empty_memory(1 + len(places), mem_len)
    while True:
        tokens = torch.randint(model.vocab_size, (1, segment_len), generator=generator).repeat(1 + len(places), 1)
        if differences.start == 0:
            for lane, place in enumerate(places, start=1):
                tokens[lane, place] = (tokens[lane, place] + 1) % model.vocab_size
        memory = reader(tokens.to(_device(exact)), memory).memory
        differences.next_segment(segment_len)
        rows = of_kind(HiddenMemory, memory).rows
        if not any(bool(_differ(of_layer).any()) for of_layer in rows):
            break
    return Reach(
        distances=tuple(differences.furthest), segment_len=segment_len, mem_len=mem_len, same_length=same_length
    )


def _exact_and_even(model: MemoryTransformer) -> MemoryTransformer:
    twin = copy.copy(model)
    twin.vocabulary = None  # need not be copied
    twin = copy.deepcopy(twin).to("cpu" if _device(model).type == "mps" else _device(model), torch.float64)
    for name, parameter in twin.named_parameters():
        if name.endswith(_SCORED):
            parameter.mul_(_EVEN)
    return twin


def _device(model: LanguageModel) -> torch.device:
    return next(model.parameters()).device


def _places(segment_len: int, mem_len: int) -> list[int]:
    if segment_len <= 4:
        return list(range(segment_len))
    return sorted({0, segment_len // 2, segment_len - 1, -mem_len % segment_len})


def _differ(rows: Tensor) -> Tensor:
    """Say where lanes of (B, T, D) differ from the first one: (B, T)."""
    difference = (rows - rows[:1]).abs().amax(dim=-1)
    return difference > _SEEN_AS_EQUAL * rows.abs().amax() if rows.numel() else difference > 0


class _Differences:
    """Runs the layers over lanes of one text; in each but the first the token at some place of it is another."""

    def __init__(self, places: list[int], *, layers: int) -> None:
        self._place = torch.tensor([0, *places])[:, None]
        self._layer = 0
        self._generator = torch.Generator().manual_seed(0)
        self.furthest = [0] * layers
        self.start = 0

    def next_segment(self, tokens: int) -> None:
        self.start += tokens
        self._layer = 0

    def call(self, layer: Layer, **arguments: Any) -> Tensor:
        """Stand for `call_layer`: what differs by however little comes out as different as two tokens are."""
        output = layer(**arguments)
        first = output[:1]
        differs = _differ(output)
        distance = self.start + torch.arange(output.shape[1]) - self._place
        found = distance.masked_fill(~differs.cpu(), 0)
        self.furthest[self._layer] = max(self.furthest[self._layer], int(found.max()))
        self._layer += 1
        noise = torch.randn(output.shape, generator=self._generator, dtype=output.dtype)
        other = first + noise.to(output.device) * first.std()
        return torch.where(differs[..., None], other, first)


def reach_by_rule(*, layers: int, segment_len: int, mem_len: int, same_length: bool) -> tuple[int, ...]:
    """Give the distances that follow from which keys a query sees.

    With `same_length` each layer looks back M - 1 tokens. Else a query at a segment's end looks back over the segment
    and its memory, T - 1 + M tokens; the oldest of these lies ceil(M / T) segments before, and what a layer further
    down put there looks back to M tokens before that segment.
    """
    if same_length:
        return tuple(layer * (mem_len - 1) for layer in range(1, layers + 1))
    segments = -(-mem_len // segment_len)
    return tuple(mem_len + segment_len - 1 + layer * segments * segment_len for layer in range(layers))
