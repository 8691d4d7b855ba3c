"""Transformer-XL (Dai et al., 2019): relative attention over the segment and a memory of earlier segments.

Letters: L layers, M memory slots, S = M + T keys, D width, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from transformer_xl.config import TransformerXLConfig
from transformer_xl.model.attention import ATTENTION
from transformer_xl.model.flops import LayerProducts
from transformer_xl.model.layers import Encoding, RelativeSelfAttention, make_decoder_layer
from transformer_xl.model.positions import descending_distances, sinusoids
from transformer_xl.model.transformer import MemoryTransformer


class TransformerXL(MemoryTransformer):
    """The published model: one sinusoid of the distance for all layers, each with its own projection of it."""

    config: TransformerXLConfig
    products = LayerProducts(scored=3, projects_positions=True, feed_forward=2)
    clamps_distances = True

    def make_layer(self) -> nn.Module:
        """Make a layer with relative attention."""
        config = self.config
        attention = RelativeSelfAttention(
            d_model=config.d_model,
            n_head=config.n_head,
            d_head=config.d_head,
            dropatt=config.dropatt,
            attention=ATTENTION[config.attention],
        )
        return make_decoder_layer(config, attention=attention)

    def make_positions(self) -> None:
        """Make u and v, one pair for all layers or one for each."""
        config = self.config
        pairs = config.n_layer if config.untie_r else 1
        self.content_bias = nn.Parameter(torch.empty(pairs, config.n_head, config.d_head))
        self.position_bias = nn.Parameter(torch.empty(pairs, config.n_head, config.d_head))
        self.sinusoid_dropout = nn.Dropout(config.dropout)

    @property
    def _attentions(self) -> list[RelativeSelfAttention]:
        return [cast(RelativeSelfAttention, layer.attention) for layer in self.layers]

    def encodings(self, *, segment_len: int, slots: int, like: Tensor) -> Sequence[Encoding]:
        """Give each layer its projection of the distances S-1 ... 0, under one mask of dropout, and its u and v."""
        distance_S = descending_distances(keys=slots + segment_len, clamp_len=self.clamp_len, device=like.device)
        sinusoid_SD = self.sinusoid_dropout(sinusoids(distance_S, d_model=self.config.d_model, dtype=like.dtype))
        pairs = range(self.config.n_layer) if self.config.untie_r else [0] * self.config.n_layer
        return [
            {
                "position_RNH": attention.project_positions(sinusoid_SD),
                "content_bias_NH": self.content_bias[pair],
                "position_bias_NH": self.position_bias[pair],
            }
            for pair, attention in zip(pairs, self._attentions, strict=True)
        ]

    def cached_encodings(self, *, keys: int, like: Tensor) -> Sequence[Encoding]:
        """Give each layer's encoding for so many keys; a head's positions lie behind one another."""
        encodings = super().cached_encodings(keys=keys, like=like)
        return [
            {**encoding, "position_RNH": encoding["position_RNH"].transpose(0, 1).contiguous().transpose(0, 1)}
            for encoding in encodings
        ]

    def newest_encoding(self, encoding: Encoding, *, keys: int) -> Encoding:
        """Give the encoding of the distances keys-1 ... 0, and of none."""
        position_RNH = encoding["position_RNH"][-keys - 1 :]
        if position_RNH.dtype != torch.float32:
            # the library of products in bfloat16 would copy what is not dense, at each of them
            position_RNH = position_RNH.transpose(0, 1).contiguous().transpose(0, 1)
        return {**encoding, "position_RNH": position_RNH}
