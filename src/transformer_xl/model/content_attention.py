"""Attention whose scores know contents only: positions enter what is compared, or not at all.

Letters: B lanes, T queries, S = M + T keys, D width, N heads, H head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transformer_xl.model.kernels.blockwise import blockwise_content_attention, use_blockwise
from transformer_xl.model.kernels.linear import Linear
from transformer_xl.model.kernels.sdpa import masked_sdpa
from transformer_xl.model.mask import AttentionMask


def content_attention(
    *, query_BTNH: Tensor, key_BSNH: Tensor, value_BSNH: Tensor, mask: AttentionMask, dropout: float
) -> Tensor:
    """Attend by the score q·k / sqrt(H) (Vaswani et al., 2017, section 3.2.1).

    Blockwise on a CPU, elsewhere in torch's own implementation.

    Args:
        query_BTNH: queries of the segment.
        key_BSNH: keys of memory and segment.
        value_BSNH: values of memory and segment.
        mask: which keys a query sees; at least one.
        dropout: probability with which an attention weight is dropped.

    Returns:
        (B, T, N, H).
    """
    if use_blockwise(query_BTNH):
        return blockwise_content_attention(
            query_BTNH=query_BTNH, key_BSNH=key_BSNH, value_BSNH=value_BSNH, mask=mask, dropout=dropout
        )
    attended_BNTH = masked_sdpa(
        query_BTNH.transpose(1, 2),
        key_BSNH.transpose(1, 2),
        value_BSNH.transpose(1, 2),
        mask=mask.visible_BTS[:, None],
        dropout=dropout,
    )
    return attended_BNTH.transpose(1, 2)


def content_weights(*, query_BTNH: Tensor, key_BSNH: Tensor, mask: AttentionMask) -> Tensor:
    """Give what each key weighs to each query, (B, N, T, S); arguments as in `content_attention`."""
    score_BNTS = torch.einsum("btnh,bsnh->bnts", query_BTNH, key_BSNH) * query_BTNH.shape[-1] ** -0.5
    weight_BNTS: Tensor = score_BNTS.masked_fill(~mask.visible_BTS[:, None], -torch.inf).softmax(dim=-1)
    return weight_BNTS


class ContentSelfAttention(nn.Module):
    """Projections around content attention."""

    def __init__(self, *, d_model: int, n_head: int, d_head: int, dropatt: float) -> None:
        super().__init__()
        self.n_head = n_head
        self.dropatt = dropatt
        self.query = Linear(d_model, n_head * d_head, bias=False)
        self.key_value = Linear(d_model, 2 * n_head * d_head, bias=False)
        self.output = Linear(n_head * d_head, d_model, bias=False)

    def forward(self, *, hidden_BTD: Tensor, key_BSNH: Tensor, value_BSNH: Tensor, mask: AttentionMask) -> Tensor:
        """Attend from the segment to memory and segment: (B, T, D)."""
        attended_BTNH = content_attention(
            query_BTNH=self.query(hidden_BTD).unflatten(-1, (self.n_head, -1)),
            key_BSNH=key_BSNH,
            value_BSNH=value_BSNH,
            mask=mask,
            dropout=self.dropatt if self.training else 0.0,
        )
        attended_BTD: Tensor = self.output(attended_BTNH.flatten(-2))
        return attended_BTD

    def weights(self, *, hidden_BTD: Tensor, key_BSNH: Tensor, mask: AttentionMask) -> Tensor:
        """Give what each key weighs to each query, (B, N, T, S), before dropout; arguments as in `forward`."""
        query_BTNH = self.query(hidden_BTD).unflatten(-1, (self.n_head, -1))
        return content_weights(query_BTNH=query_BTNH, key_BSNH=key_BSNH, mask=mask)
