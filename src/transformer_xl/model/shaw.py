"""Learned encodings of the distance (Shaw et al., 2018), over a memory, as the published code's `attn_type 1` has them.

Keys have such encodings, values have none.

Letters: B lanes, T queries, M memory slots, S = M + T keys, R distances in the order asked for, D width, N heads,
H head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_xl.config import ShawConfig
from transformer_xl.model.flops import LayerProducts
from transformer_xl.model.kernels.linear import Linear
from transformer_xl.model.layers import Encoding, make_decoder_layer
from transformer_xl.model.mask import AttentionMask
from transformer_xl.model.positions import descending_distances, relative_shift
from transformer_xl.model.transformer import MemoryTransformer


class DistanceEmbedding(nn.Module):
    """A vector and a number for each distance and head."""

    def __init__(self, *, distances: int, n_head: int, d_head: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(distances, n_head, d_head))
        self.bias = nn.Parameter(torch.zeros(distances, n_head))

    def forward(self, query_BTNH: Tensor, distance_R: Tensor) -> Tensor:
        """Score distances for every query, q·a + b: (B, N, T, R)."""
        score_BNTR = torch.einsum("btnh,rnh->bntr", query_BTNH, self.weight[distance_R])
        return score_BNTR + self.bias[distance_R].T[:, None]


class ShawSelfAttention(nn.Module):
    """Projections around the score ((q_i + u)·k_j + q_i·a_{i-j} + b_{i-j}) / sqrt(H), with u, a and b of its own."""

    def __init__(self, *, d_model: int, n_head: int, d_head: int, dropatt: float, max_distance: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.dropatt = dropatt
        self.query = Linear(d_model, n_head * d_head, bias=False)
        self.key_value = Linear(d_model, 2 * n_head * d_head, bias=False)
        self.output = Linear(n_head * d_head, d_model, bias=False)
        self.distance_embedding = DistanceEmbedding(distances=max_distance + 1, n_head=n_head, d_head=d_head)
        self.content_bias = nn.Parameter(torch.empty(n_head, d_head))

    def forward(
        self, *, hidden_BTD: Tensor, key_BSNH: Tensor, value_BSNH: Tensor, mask: AttentionMask, distance_S: Tensor
    ) -> Tensor:
        """Attend from the segment to memory and segment: (B, T, D).

        Args:
            hidden_BTD: what queries are made of.
            key_BSNH: keys of memory and segment.
            value_BSNH: values of memory and segment.
            mask: which keys each query sees.
            distance_S: which encodings the distances S-1 ... 0 have.
        """
        weight_BNTS = self.weights(hidden_BTD=hidden_BTD, key_BSNH=key_BSNH, mask=mask, distance_S=distance_S)
        weight_BNTS = functional.dropout(weight_BNTS, p=self.dropatt, training=self.training)
        attended_BTNH = torch.einsum("bnts,bsnh->btnh", weight_BNTS, value_BSNH)
        attended_BTD: Tensor = self.output(attended_BTNH.flatten(-2))
        return attended_BTD

    def weights(self, *, hidden_BTD: Tensor, key_BSNH: Tensor, mask: AttentionMask, distance_S: Tensor) -> Tensor:
        """Give what each key weighs to each query, (B, N, T, S), before dropout; arguments as in `forward`."""
        query_BTNH = self.query(hidden_BTD).unflatten(-1, (self.n_head, -1))
        content_BNTS = torch.einsum("btnh,bsnh->bnts", query_BTNH + self.content_bias, key_BSNH)
        # one more column than there are distances: `relative_shift` pushes it into the corner that causality hides
        padded_R = functional.pad(distance_S, (0, 1))
        position_BNTS = relative_shift(self.distance_embedding(query_BTNH, padded_R))
        score_BNTS = (content_BNTS + position_BNTS) * query_BTNH.shape[-1] ** -0.5
        weight_BNTS: Tensor = score_BNTS.masked_fill(~mask.visible_BTS[:, None], -torch.inf).softmax(dim=-1)
        return weight_BNTS


class Shaw(MemoryTransformer):
    """Transformer-XL's memory with learned encodings in place of sinusoids; distances above the last share its own."""

    config: ShawConfig
    products = LayerProducts(scored=3, projects_positions=False, feed_forward=2)
    clamps_distances = True

    def make_layer(self) -> nn.Module:
        """Make a layer with its own encodings."""
        config = self.config
        attention = ShawSelfAttention(
            d_model=config.d_model,
            n_head=config.n_head,
            d_head=config.d_head,
            dropatt=config.dropatt,
            max_distance=config.max_distance,
        )
        return make_decoder_layer(config, attention=attention)

    def encodings(self, *, segment_len: int, slots: int, like: Tensor) -> Sequence[Encoding]:
        """Give the distances S-1 ... 0, those beyond the last encoding or `clamp_len` replaced by it."""
        furthest = self.config.max_distance
        clamp_len = furthest if self.clamp_len is None else min(self.clamp_len, furthest)
        distance_S = descending_distances(keys=slots + segment_len, clamp_len=clamp_len, device=like.device)
        return [{"distance_S": distance_S}] * len(self.layers)

    def newest_encoding(self, encoding: Encoding, *, keys: int) -> Encoding:
        """Give the distances keys-1 ... 0."""
        return {"distance_S": encoding["distance_S"][-keys:]}
