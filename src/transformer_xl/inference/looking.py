"""What attention weighs, by the distance of the key.

Letters: L layers, B lanes, T tokens, M memory slots, S = M + T keys, N heads, D = M + T distances from 0 on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_xl.config import EvalConfig
from transformer_xl.data.lanes import NOT_COUNTED, LaneSource, lanes_that_fill_memory
from transformer_xl.data.stream import EvalStream
from transformer_xl.errors import UserError
from transformer_xl.model.base import LanguageModel
from transformer_xl.model.layers import Layer
from transformer_xl.model.mask import AttentionMask
from transformer_xl.model.memory import Memory
from transformer_xl.model.transformer import MemoryTransformer


@dataclass(frozen=True, kw_only=True)
class AttentionByDistance:
    """What attention weighs, by how many tokens a key lies before the query; 0 is the query's own token.

    Attributes:
        weight: (L, N, D), mean weight over all predictions; sums to 1 over the distances.
        seen: (D,), share of the predictions that see a key so far back.
        memory_share: (L, N), mean weight of all keys from before the segment together.
        predictions: how many the means are taken over.
        lanes: in how many strands of the text they lie.
        segment_len: T.
        mem_len: M.
    """

    weight: NDArray[np.float64]
    seen: NDArray[np.float64]
    memory_share: NDArray[np.float64]
    predictions: int
    lanes: int
    segment_len: int
    mem_len: int

    @property
    def weight_where_seen(self) -> NDArray[np.float64]:
        """(L, N, D), mean weight over the predictions that see a key so far back; NaN where none does."""
        return self.weight / np.where(self.seen > 0, self.seen, np.nan)


@torch.no_grad()
def attention_by_distance(
    model: LanguageModel,
    source: LaneSource,
    *,
    lengths: EvalConfig,
    lanes: range,
    max_tokens: int,
    autocast: Callable[[], AbstractContextManager[object]],
) -> AttentionByDistance:
    """Read a split with the model's own memory, and average attention's weights by distance.

    Of the lanes only the first are read, so few that most predictions have a full memory. Weights are summed up a layer
    and a segment at a time, so that the memory this takes does not grow with the text.

    Args:
        model: in evaluation mode.
        source: the split's lanes.
        lengths: how to read; windows (`stride`) see no memory.
        lanes: those that may be read.
        max_tokens: the most predictions to average over; what does not count as one is left out.
        autocast: gives the context in which the model is called.

    Raises:
        UserError: the model has no attention.
    """
    device = next(model.parameters()).device
    mem_len = lengths.mem_len if lengths.stride is None else 0
    few = lanes_that_fill_memory(
        lanes=len(lanes), segment_len=lengths.segment_len, mem_len=mem_len, max_tokens=max_tokens
    )
    lanes = lanes[:few]
    transformer = attending(
        model, setting="eval.attention", clamp_len=lengths.clamp_len, same_length=lengths.same_length
    )
    sums = _WeightSums(transformer, distances=mem_len + lengths.segment_len)
    reader = transformer.with_layers_called_by(sums.call)
    memory: Memory = reader.empty_memory(len(lanes), mem_len)
    batches = EvalStream(
        source=source, segment_len=lengths.segment_len, stride=lengths.stride, lanes=lanes, device=device
    )
    with autocast():
        for batch in batches:
            sums.start(batch.targets_BT.to(device) != NOT_COUNTED, at_most=max_tokens - sums.predictions)
            memory = reader(batch.tokens_BT.to(device), memory, batch.resets_BT.to(device)).memory
            if sums.predictions == max_tokens:
                break
    return sums.means(lanes=len(lanes), segment_len=lengths.segment_len, mem_len=mem_len)


def attending(model: LanguageModel, *, setting: str, clamp_len: int | None, same_length: bool) -> MemoryTransformer:
    """Give a model that has attention, with its context.

    Raises:
        UserError: it has none; says which setting needs it.
    """
    if not isinstance(model, MemoryTransformer):
        raise UserError(f"{setting} is true, and must be false for {model.config.kind}, which has no attention")
    return model.with_context(clamp_len=clamp_len, same_length=same_length)


class _WeightSums:
    """Runs the layers, and adds up what each weighs."""

    def __init__(self, model: MemoryTransformer, *, distances: int) -> None:
        layers, heads = len(model.layers), model.config.n_head
        new_zeros = next(model.parameters()).new_zeros
        self._weight = new_zeros((layers, heads, distances), dtype=torch.float64)
        self._memory = new_zeros((layers, heads), dtype=torch.float64)
        self._seen = new_zeros(distances, dtype=torch.float64)
        self._layer = 0
        self.predictions = 0

    def start(self, counted: Tensor, *, at_most: int) -> None:
        """Begin a segment, of whose predictions (B, T) the first `at_most` are counted, in all lanes alike."""
        in_order = counted.T
        chosen = in_order & (in_order.flatten().cumsum(0).view(in_order.shape) <= at_most)
        self._counted = chosen.T
        self._layer = 0
        self.predictions += int(chosen.sum())

    def call(self, layer: Layer, *, mask: AttentionMask, **others: Any) -> Tensor:
        """Stand for `call_layer`."""
        weight = layer.attention_weights(mask=mask, **others)
        queries, keys = weight.shape[-2:]
        place = torch.arange(keys, device=weight.device)
        # a key that comes later has no weight, and adds nothing to distance 0
        distance = (place[keys - queries :, None] - place).clamp(min=0)
        summed = self._sum_of_counted(weight, self._counted[:, None])
        self._weight[self._layer].index_add_(1, distance.flatten(), summed.flatten(1))
        self._memory[self._layer] += summed[..., : keys - queries].sum(dim=(1, 2))
        if self._layer == 0:
            seen = self._sum_of_counted(mask.visible_BTS, self._counted)
            self._seen.index_add_(0, distance.flatten(), seen.flatten())
        self._layer += 1
        return layer(mask=mask, **others)

    @staticmethod
    def _sum_of_counted(by_lane: Tensor, counted: Tensor) -> Tensor:
        """Add up the counted rows of all lanes."""
        return (by_lane * counted[..., None]).sum(dim=0, dtype=torch.float64)

    def means(self, *, lanes: int, segment_len: int, mem_len: int) -> AttentionByDistance:
        """Divide by the number of predictions."""
        return AttentionByDistance(
            weight=(self._weight / self.predictions).cpu().numpy(),
            seen=(self._seen / self.predictions).cpu().numpy(),
            memory_share=(self._memory / self.predictions).cpu().numpy(),
            predictions=self.predictions,
            lanes=lanes,
            segment_len=segment_len,
            mem_len=mem_len,
        )
