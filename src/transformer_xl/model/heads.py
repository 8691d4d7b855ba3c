"""From tokens to hidden states and back: embedding and softmax, over one cluster of tokens or several.

Letters: B lanes, T tokens, R rows (tokens of all lanes), D width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from transformer_xl.model.clusters import Clusters

NOT_COUNTED = -100
"""The target of a position that no loss counts."""

LOGITS_AT_ONCE = 1 << 28
"""Logits that a loss holds at a time; more are computed in parts, and again in the backward pass."""


class TokenEmbedding(nn.Module):
    """Embeds tokens, projects the clusters' widths to D where they differ, and scales by sqrt(D)."""

    def __init__(self, clusters: Clusters) -> None:
        super().__init__()
        self.clusters = clusters
        self.weights = nn.ParameterList(torch.empty(shape) for shape in clusters.table_shapes)
        widths = [width for _, width in clusters.table_shapes] if clusters.projected else []
        self.projections = nn.ParameterList(torch.empty(clusters.d_model, width) for width in widths)
        self.scale = clusters.d_model**0.5

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Embed token ids: (B, T, D)."""
        embedded = self._embedded(tokens_BT)
        if len(self.projections):
            embedded = functional.linear(embedded, torch.cat(list(self.projections), dim=1))
        return embedded.mul(self.scale)

    def _embedded(self, tokens_BT: Tensor) -> Tensor:
        """Give all clusters' embeddings side by side, zero but for the token's own.

        No token is picked out by its cluster, which would make the host wait for the device; a cluster without a token
        gets a gradient of zeros.
        """
        if len(self.weights) == 1:
            return functional.embedding(tokens_BT, self.weights[0])
        parts = []
        edges = self.clusters.edges
        last = len(self.weights) - 1
        for number, weight in enumerate(self.weights):
            start, stop = edges[number], edges[number + 1]
            # an id outside of the vocabulary stays outside of the outer clusters' rows, and is refused there
            lowest = None if number == 0 else 0
            highest = None if number == last else stop - start - 1
            row_BT = (tokens_BT - start).clamp(min=lowest, max=highest)
            inside_BT = (tokens_BT >= start) & (tokens_BT < stop)
            parts.append(functional.embedding(row_BT, weight) * inside_BT[..., None])
        return torch.cat(parts, dim=-1)


class TokenSoftmax(nn.Module):
    """Gives log-probabilities of the next token, and their loss without those of clusters that no target is in.

    The shortlist's softmax has one more column for each tail: log p(token) = log p(its tail) + log p(token | tail).
    """

    def __init__(self, clusters: Clusters, *, embedding: TokenEmbedding, tie_weights: bool) -> None:
        """Take the clusters and what may be tied.

        Args:
            clusters: of the vocabulary.
            embedding: whose matrices (`tie_weights`) and projections (`clusters.tied_projections`) are used here too.
            tie_weights: whether the matrices are; else the softmax has its own.
        """
        super().__init__()
        self.clusters = clusters
        self._embedding = (embedding,)  # in a tuple: not a part of this module, whose weights it would count again
        shapes = clusters.table_shapes
        self.weights = nn.ParameterList(() if tie_weights else (torch.empty(shape) for shape in shapes))
        self.biases = nn.ParameterList(torch.zeros(rows) for rows, _ in shapes)
        self.projections = nn.ParameterDict(
            {
                str(number): nn.Parameter(torch.empty(clusters.d_model, width))
                for number, width in enumerate(clusters.widths)
                if clusters.projected and not clusters.tied_projections[number]
            }
        )
        if clusters.tails:
            self.cluster_weight = nn.Parameter(torch.empty(len(clusters.tails), clusters.widths[0]))
            self.cluster_bias = nn.Parameter(torch.zeros(len(clusters.tails)))

    def log_probs(self, hidden_BTD: Tensor) -> Tensor:
        """Give log-probabilities (B, T, V), at least float32."""
        shortlist = self.clusters.sizes[0]
        head = _log_softmax(functional.linear(self._projected(hidden_BTD, 0), *self._head()))
        parts = [head[..., :shortlist]]
        for number in self.clusters.tails:
            logits = functional.linear(self._projected(hidden_BTD, number), *self._cluster(number))
            column = shortlist + number - 1
            parts.append(head[..., column : column + 1] + _log_softmax(logits))
        return torch.cat(parts, dim=-1) if len(parts) > 1 else head

    def nll(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Give losses (B, T) in nats in token order, at least float32; 0 where the target is -100."""
        hidden_RD, target_R = hidden_BTD.flatten(0, 1), targets_BT.flatten()
        if not self.clusters.tails:
            return _nll(self._projected(hidden_RD, 0), *self._head(), target_R).view(targets_BT.shape)
        edges, shortlist = self.clusters.edges, self.clusters.sizes[0]
        cluster_R = torch.zeros_like(target_R)
        for edge in edges[1:-1]:
            cluster_R += target_R >= edge
        head_target_R = torch.where(cluster_R > 0, shortlist - 1 + cluster_R, target_R)
        head_nll_R = _nll(self._projected(hidden_RD, 0), *self._head(), head_target_R)
        sorted_R, row_R = cluster_R.sort(stable=True)
        numbers = torch.arange(len(edges), device=target_R.device)
        # how many rows each tail has: the one time that the host waits for the device, whatever the number of clusters
        borders = torch.searchsorted(sorted_R, numbers).tolist()
        tail_nll = [head_nll_R.new_zeros(borders[1])]
        for number in self.clusters.tails:
            row_r = row_R[borders[number] : borders[number + 1]]
            projected = self._projected(hidden_RD[row_r], number)
            tail_nll.append(_nll(projected, *self._cluster(number), target_R[row_r] - edges[number]))
        nll_R = head_nll_R + torch.zeros_like(head_nll_R).index_copy(0, row_R, torch.cat(tail_nll))
        return nll_R.view(targets_BT.shape)

    def _projected(self, hidden: Tensor, number: int) -> Tensor:
        if not self.clusters.projected:
            return hidden
        if str(number) in self.projections:
            projection = self.projections[str(number)]
        else:
            projection = self._embedding[0].projections[0 if self.clusters.one_table else number]
        return torch.matmul(hidden, projection)

    def _cluster(self, number: int) -> tuple[Tensor, Tensor]:
        """Give weight and bias of a cluster's tokens."""
        weights = self.weights if len(self.weights) else self._embedding[0].weights
        if not self.clusters.one_table:
            return weights[number], self.biases[number]
        rows = slice(self.clusters.edges[number], self.clusters.edges[number + 1])
        return weights[0][rows], self.biases[0][rows]

    def _head(self) -> tuple[Tensor, Tensor]:
        """Give weight and bias of the shortlist's tokens, followed by those of the tails as wholes."""
        weight, bias = self._cluster(0)
        if not self.clusters.tails:
            return weight, bias
        return torch.cat([weight, self.cluster_weight]), torch.cat([bias, self.cluster_bias])


def _nll(hidden_RD: Tensor, weight_VD: Tensor, bias_V: Tensor, target_R: Tensor) -> Tensor:
    rows_at_once = max(1, LOGITS_AT_ONCE // len(weight_VD))
    if len(hidden_RD) <= rows_at_once:
        return _nll_at_once(hidden_RD, weight_VD, bias_V, target_R)
    parts = zip(torch.split(hidden_RD, rows_at_once), torch.split(target_R, rows_at_once), strict=True)
    return torch.cat(
        [
            checkpoint(_nll_at_once, hidden, weight_VD, bias_V, target, use_reentrant=False, preserve_rng_state=False)
            for hidden, target in parts
        ]
    )


def _nll_at_once(hidden_RD: Tensor, weight_VD: Tensor, bias_V: Tensor, target_R: Tensor) -> Tensor:
    logits_RV = functional.linear(hidden_RD, weight_VD, bias_V)
    logits_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
    return functional.cross_entropy(logits_RV, target_R, ignore_index=NOT_COUNTED, reduction="none")


def _log_softmax(logits: Tensor) -> Tensor:
    return logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
