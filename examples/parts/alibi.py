"""ALiBi (Press et al., 2022): attention is biased by the distance, each head by a slope of its own.

python train.py plugins=[examples/parts/alibi.py] model/position=alibi
"""

from __future__ import annotations

import torch
from torch import Tensor

from transformer_xl.model.attention import attention_scores, relative_shift
from transformer_xl.model.positions import Encoding, PositionEncoding, descending_distances
from transformer_xl.model_config import PositionConfig
from transformer_xl.registry import register


class AlibiConfig(PositionConfig):
    """The slope of head n of N is last_slope^((n + 1) / N)."""

    kind: str = "alibi"
    last_slope: float = 2.0**-8


@register("position", "alibi", config=AlibiConfig)
class Alibi(PositionEncoding):
    """Scores are q·k / sqrt(H) less slope times distance; nothing is learned."""

    clamps = True

    def encode(self, *, keys: int, clamp_len: int | None, like: Tensor) -> Encoding:
        heads = torch.arange(1, self.config.n_head + 1, device=like.device, dtype=like.dtype)
        distance_S = descending_distances(keys=keys, clamp_len=clamp_len, device=like.device)
        return {
            "bias_NS": torch.outer(self.settings.last_slope ** (heads / self.config.n_head), -distance_S.to(like.dtype))
        }

    def scores(self, query_BTNH: Tensor, key_BSNH: Tensor, encoding: Encoding) -> Tensor:
        bias_NR = torch.nn.functional.pad(encoding["bias_NS"], (0, 1))
        by_distance_BNTR = bias_NR[None, :, None].expand(1, -1, query_BTNH.shape[1], -1)
        return attention_scores(query_BTNH, key_BSNH) + relative_shift(by_distance_BNTR)
