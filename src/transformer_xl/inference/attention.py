"""What attention weighs, by the distance of the key.

Letters: L layers, B lanes, T tokens, M memory slots, S = M + T keys, N heads, D = M + T distances from 0 on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from transformer_xl.data.lanes import NOT_COUNTED, LaneSource, lanes_that_fill_memory
from transformer_xl.data.stream import EvalStream
from transformer_xl.errors import UserError
from transformer_xl.inference.evaluate import Autocast
from transformer_xl.model.base import Context, LanguageModel


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
    model: LanguageModel, source: LaneSource, context: Context, *, max_tokens: int, autocast: Autocast
) -> AttentionByDistance:
    """Read a split with the model's own memory, and average attention's weights by distance.

    Of the lanes only the first are read, so few that most predictions have a full memory.

    Args:
        model: in evaluation mode.
        source: the split's lanes.
        context: how to read; windows (`stride`) see no memory.
        max_tokens: the most predictions to average over; what does not count as one is left out.
        autocast: gives the context in which the model is called.

    Raises:
        UserError: the model has no attention, or its weights are not finite.
    """
    device = next(model.parameters()).device
    segment_len, mem_len = context.segment_len, (context.mem_len or 0) if context.stride is None else 0
    lanes = lanes_that_fill_memory(
        lanes=source.batch_size, segment_len=segment_len, mem_len=mem_len, max_tokens=max_tokens
    )
    reader = model.with_context(clamp_len=context.clamp_len, same_length=context.same_length)
    memory = reader.empty_memory(lanes, mem_len)
    distances = mem_len + segment_len
    weight_sum: torch.Tensor | None = None
    memory_sum = torch.zeros((), dtype=torch.float64, device=device)
    seen, predictions = torch.zeros(distances, dtype=torch.float64, device=device), 0
    batches = EvalStream(
        source=source, segment_len=segment_len, stride=context.stride, lanes=range(lanes), device=device
    )
    with autocast():
        for batch in batches:
            weights, memory = reader.attention_weights(batch.tokens_BT.to(device), memory, batch.resets_BT.to(device))
            queries, keys = weights.shape[-2:]
            counted = _first_counted(batch.targets_BT.to(device) != NOT_COUNTED, at_most=max_tokens - predictions)
            place = torch.arange(keys, device=device)
            # a key that comes later has no weight, and adds nothing to distance 0
            distance = (place[keys - queries :, None] - place).clamp(min=0).flatten()
            summed = (weights * counted[:, None, :, None]).sum(dim=1, dtype=torch.float64)
            if weight_sum is None:
                weight_sum = torch.zeros(*summed.shape[:2], distances, dtype=torch.float64, device=device)
            weight_sum.index_add_(2, distance, summed.flatten(2))
            memory_sum = memory_sum + summed[..., : keys - queries].sum(dim=(2, 3))
            visible = (weights[0] > 0).any(dim=1) & counted[..., None]  # of the first layer: all see the same
            seen.index_add_(0, distance, visible.sum(dim=0, dtype=torch.float64).flatten())
            predictions += int(counted.sum())
            if predictions == max_tokens:
                break
    assert weight_sum is not None
    if not bool(weight_sum.isfinite().all()):
        raise UserError("eval.attention is true, and the model's attention is not finite: its weights are damaged")
    return AttentionByDistance(
        weight=(weight_sum / predictions).cpu().numpy(),
        seen=(seen / predictions).cpu().numpy(),
        memory_share=(memory_sum / predictions).cpu().numpy(),
        predictions=predictions,
        lanes=lanes,
        segment_len=segment_len,
        mem_len=mem_len,
    )


def _first_counted(counted: torch.Tensor, *, at_most: int) -> torch.Tensor:
    """Keep the first so many of the counted predictions (lanes, tokens), in all lanes alike."""
    in_order = counted.T
    return (in_order & (in_order.flatten().cumsum(0).view(in_order.shape) <= at_most)).T
