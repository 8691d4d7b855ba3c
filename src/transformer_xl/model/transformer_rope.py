"""Today's decoder over Transformer-XL's memory: RMSNorm first, SwiGLU, rotary positions, no biases.

Llama (Touvron et al., 2023) and its kin. A key is turned by its slot and a query by its own, so that a score depends on
their distance alone (Su et al., 2021), and memory can be read again from any segment.

Letters: L layers, B lanes, T tokens, M memory slots, S = M + T keys, D width, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transformer_xl.config import RopeConfig
from transformer_xl.model.flops import LayerProducts
from transformer_xl.model.layers import Encoding
from transformer_xl.model.rope_layers import RopeLayer, rms_norm
from transformer_xl.model.transformer import MemoryTransformer


class TransformerRope(MemoryTransformer):
    """Layers without biases and a last norm.

    Initial weights are GPT-2's (Radford et al., 2019): what is added to the hidden states is drawn sqrt(2 L) times
    smaller than `init_std`, so that their sum does not grow with the layers. Gains begin at 1.
    """

    config: RopeConfig
    products = LayerProducts(scored=2, projects_positions=False, feed_forward=3)

    def __init__(self, config: RopeConfig, *, vocab_size: int) -> None:
        super().__init__(config, vocab_size=vocab_size)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.RMSNorm):
                    module.weight.fill_(1.0)
                if isinstance(module, RopeLayer):
                    module.attention.output.weight.mul_((2 * config.n_layer) ** -0.5)
                    module.feed_forward.down.weight.mul_((2 * config.n_layer) ** -0.5)

    def make_layer(self) -> nn.Module:
        """Make a layer."""
        return RopeLayer(self.config)

    def make_positions(self) -> None:
        """Make the last norm; rotary positions have no parameters."""
        self.last_norm = rms_norm(self.config.d_model)

    def last_hidden(self, hidden_BTD: Tensor) -> Tensor:
        """Normalise the output of the last layer."""
        normed_BTD: Tensor = self.last_norm(hidden_BTD)
        return normed_BTD

    def encodings(self, *, segment_len: int, slots: int, like: Tensor) -> Sequence[Encoding]:
        """Give all layers the angles of the slots 0 ... S-1: slot / base^(2h/H) for the pair h."""
        precise = torch.promote_types(like.dtype, torch.float32)
        width = self.config.d_head
        exponent = torch.arange(0, width, 2, device=like.device, dtype=precise) / width
        slot_S = torch.arange(slots + segment_len, device=like.device, dtype=precise)
        angle_SH = torch.outer(slot_S, self.config.rope_base**-exponent).repeat(1, 2)
        return [{"cos_SH": angle_SH.cos(), "sin_SH": angle_SH.sin()}] * self.config.n_layer

    def newest_encoding(self, encoding: Encoding, *, keys: int) -> Encoding:
        """Give the angles of the slots 0 ... keys-1: only their distances matter."""
        return {name: angle_SH[:keys] for name, angle_SH in encoding.items()}
