"""Encodings of the place in the segment, which all segments share.

With a memory they are what relative encodings were invented against: place p of the segment before has the encoding of
place p of this one, and nothing tells the two apart (Transformer-XL, section 3.3). A document that begins inside a
segment goes on with the segment's places.

Letters: L layers, B lanes, M memory slots, P places, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transformer_xl.config import AlRfouConfig, VaswaniConfig
from transformer_xl.model.content_attention import ContentSelfAttention
from transformer_xl.model.flops import LayerProducts
from transformer_xl.model.layers import Encoding, make_decoder_layer
from transformer_xl.model.positions import sinusoids
from transformer_xl.model.transformer import MemoryTransformer


class PlaceTransformer(MemoryTransformer):
    """A transformer whose attention knows contents only; a subclass adds places to what layers read."""

    config: VaswaniConfig | AlRfouConfig
    products = LayerProducts(scored=2, projects_positions=False, feed_forward=2)
    relative = False

    def make_layer(self) -> nn.Module:
        """Make a layer with content attention."""
        config = self.config
        attention = ContentSelfAttention(
            d_model=config.d_model, n_head=config.n_head, d_head=config.d_head, dropatt=config.dropatt
        )
        return make_decoder_layer(config, attention=attention)

    def encodings(self, *, segment_len: int, slots: int, like: Tensor) -> Sequence[Encoding]:
        """Tell the attention nothing."""
        return [{}] * len(self.layers)


class Vaswani(PlaceTransformer):
    """Adds the sinusoid of the place to the scaled embedding (Vaswani et al., 2017, section 3.5).

    Memory keeps layer inputs, the first layer's with the encodings of the segment that they were read in.
    """

    config: VaswaniConfig

    def embed(self, tokens_BT: Tensor) -> Tensor:
        """Give the first layer's input (B, T, D): the sum of embedding and sinusoid under one dropout."""
        embedded_BTD = self.embedding(tokens_BT)
        place_T = torch.arange(tokens_BT.shape[1], device=embedded_BTD.device)
        sinusoid_TD = sinusoids(place_T, d_model=self.config.d_model, dtype=embedded_BTD.dtype)
        dropped_BTD: Tensor = self.dropout(embedded_BTD + sinusoid_TD)
        return dropped_BTD


class AlRfou(PlaceTransformer):
    """Adds a learned encoding of the place to every layer's input (Al-Rfou et al., 2018, section 2.3).

    Memory keeps the sums. No segment can be longer than there are places.
    """

    config: AlRfouConfig

    def make_positions(self) -> None:
        """Make a table of encodings for each layer."""
        config = self.config
        self.max_segment_len = config.n_positions
        self.place_embedding = nn.Parameter(torch.empty(config.n_layer, config.n_positions, config.d_model))

    def layer_input(self, index: int, hidden_BTD: Tensor) -> Tensor:
        """Add the layer's encodings of the places."""
        return hidden_BTD + self.place_embedding[index, : hidden_BTD.shape[1]]
