"""From tokens to hidden states and back: embedding and softmax, over one cluster of tokens or several.

A vocabulary sorted by frequency may be cut into clusters: a shortlist, and tails of rarer tokens (Grave et al., 2017),
whose embeddings may be narrower (Baevski and Auli, 2019). Without cutoffs there is one, and the softmax is the ordinary
one.

Letters: B lanes, T tokens, R rows (tokens of all lanes), D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_xl.model.kernels.cross_entropy import (
    NOT_COUNTED,
    Columns,
    SharedTable,
    Softmax,
    Table,
    softmax_losses,
)
from transformer_xl.model.kernels.linear import linear, rows_to_add
from transformer_xl.model_config import ModelConfig


class Clusters:
    """How the vocabulary of one model is cut; cutoffs at or above its size fall away."""

    def __init__(self, config: ModelConfig, *, vocab_size: int) -> None:
        cutoffs = [cutoff for cutoff in config.cutoffs if cutoff < vocab_size]
        d_embed, tied = config.d_embed or config.d_model, config.tie_projs
        if not isinstance(tied, list):
            tied = [tied == "all", *[tied in ("all", "tails")] * len(config.cutoffs)]
        self.edges = (0, *cutoffs, vocab_size)  # of tokens: the first one of each cluster, and V
        self.sizes = [stop - start for start, stop in pairwise(self.edges)]
        self.tails = range(1, len(self.sizes))  # the clusters beyond the shortlist
        self.widths: list[int] = [d_embed // config.div_val**cluster for cluster in range(len(self.sizes))]
        self.d_model = config.d_model
        self.projected = config.div_val > 1 or d_embed != config.d_model  # between embeddings and hidden states
        self.one_table = config.div_val == 1  # which holds the embeddings of all clusters
        tables = [(vocab_size, d_embed)] if self.one_table else zip(self.sizes, self.widths, strict=True)
        self.table_shapes = list(tables)  # rows and width of each embedding matrix
        self.tied_projections = tied[: len(self.sizes)]  # whether a cluster's softmax uses the embedding's

    def begins(self, targets_BT: Tensor) -> list[int]:
        """Count for each cluster the targets of those before it, -100 among them; behind them, all targets.

        On a device the host waits to see them, unless the reader has left it a copy (`on_host`, an array).
        """
        known = getattr(targets_BT, "on_host", None)
        array_BT = targets_BT.cpu().numpy() if known is None else known
        return [0, *(int(np.count_nonzero(array_BT < edge)) for edge in self.edges[1:-1]), array_BT.size]

    def flops(self, *, tokens: int, shares: Sequence[float]) -> int:
        """Count the operations of projecting embeddings, and of the softmax over the clusters that tokens visit.

        So many tokens are read and predicted; `shares` of each cluster among them are together 1.
        """
        counts = [round(tokens * share) for share in shares]
        rows = [self.sizes[0] + len(self.tails), *self.sizes[1:]]
        softmaxes = zip([tokens, *counts[1:]], self.widths, rows, strict=True)
        flops = sum(count * 2 * width * columns for count, width, columns in softmaxes)
        if self.projected:  # of every token read, and of every row of a softmax
            visits = [tokens + counts[0], *(2 * count for count in counts[1:])]
            flops += sum(count * 2 * width * self.d_model for count, width in zip(visits, self.widths, strict=True))
        return flops


class AdaptiveEmbedding(nn.Module):
    """Embeds tokens, projects the clusters' widths to D where they differ, and scales by sqrt(D)."""

    def __init__(self, clusters: Clusters) -> None:
        super().__init__()
        self.clusters = clusters
        self.weights = nn.ParameterList(torch.empty(shape) for shape in clusters.table_shapes)
        widths = [width for _, width in clusters.table_shapes] if clusters.projected else []
        self.projections = nn.ParameterList(torch.empty(clusters.d_model, width) for width in widths)
        self.scale = clusters.d_model**0.5
        self._shared: list[tuple[Tensor, Tensor]] = []  # of each table one for lookups, and one for the softmax

    def forward(self, tokens_BT: Tensor) -> Tensor:
        embedded = self._embedded(tokens_BT)
        if len(self.projections):
            embedded = functional.linear(embedded, torch.cat(list(self.projections), dim=1))
        return embedded.mul(self.scale)

    @contextmanager
    def sharing_tables(self) -> Iterator[None]:
        """Let lookups and a tied softmax in this context make one gradient of each table, for training."""
        can_share = self.weights[0].device.type in ("cpu", "cuda")  # elsewhere there are no sparse gradients
        if can_share and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._shared = [SharedTable.apply(weight) for weight in self.weights]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self._shared = []

    @property
    def softmax_tables(self) -> Sequence[Tensor]:
        """The matrices for a tied softmax."""
        return [table for _, table in self._shared] or list(self.weights)

    def _embedded(self, tokens_BT: Tensor) -> Tensor:
        # All clusters' embeddings side by side, zero but for the token's own: to pick tokens out by their cluster would
        # make the host wait for the device. A cluster without a token gets a gradient of zeros.
        tables = [table for table, _ in self._shared] or list(self.weights)
        if len(tables) == 1:
            return self._looked_up(tables[0], tokens_BT)
        parts, edges = [], self.clusters.edges
        for number, table in enumerate(tables):
            # an id outside of the vocabulary stays outside of the outer clusters' rows, and is refused there
            lowest = None if number == 0 else 0
            highest = None if table is tables[-1] else len(table) - 1
            row_BT = (tokens_BT - edges[number]).clamp(min=lowest, max=highest)
            inside_BT = (tokens_BT >= edges[number]) & (tokens_BT < edges[number + 1])
            parts.append(self._looked_up(table, row_BT) * inside_BT[..., None])
        return torch.cat(parts, dim=-1)

    def _looked_up(self, table: Tensor, row_BT: Tensor) -> Tensor:
        # a gradient of a few rows is added to that of a shared table; others must be dense, as optimizers want them
        return functional.embedding(row_BT, table, sparse=bool(self._shared) and row_BT.numel() < len(table))


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities of the next token, and losses without those of clusters that no target is in.

    The shortlist's softmax has one more column for each tail: log p(token) = log p(its tail) + log p(token | tail). It
    uses the embedding's matrices (`tie_weights`; else its own) and projections (`clusters.tied_projections`).
    """

    def __init__(self, clusters: Clusters, *, embedding: AdaptiveEmbedding, tie_weights: bool) -> None:
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
        """Return log-probabilities (B, T, V), at least float32."""
        tables, shortlist = self._tables(), self.clusters.sizes[0]
        of_clusters = []
        for number in range(len(self.clusters.widths)):
            projected, columns = self._projected(hidden_BTD, number), self._columns(number)
            logits = [linear(projected, tables[at].weight_VD[rows], tables[at].bias_V[rows]) for at, rows in columns]
            logits_BTC = torch.cat(logits, dim=-1)
            precise = torch.promote_types(logits_BTC.dtype, torch.float32)
            of_clusters.append(logits_BTC.log_softmax(dim=-1, dtype=precise))
        head, *tails = of_clusters
        if not tails:
            return head
        of_tails = torch.split(head[..., shortlist:], 1, dim=-1)
        return torch.cat([head[..., :shortlist], *(p + tail for p, tail in zip(of_tails, tails, strict=True))], dim=-1)

    def nll(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Return losses (B, T) in nats in token order, at least float32; 0 where the target is -100."""
        hidden_RD, target_R = hidden_BTD.flatten(0, 1), targets_BT.flatten()
        if not self.clusters.tails:
            softmax = Softmax(self._projected(hidden_RD, 0), self._columns(0), target_R)
            return softmax_losses([softmax], self._tables())[0].view(targets_BT.shape)
        edges, shortlist = self.clusters.edges, self.clusters.sizes[0]
        cluster_R = torch.zeros_like(target_R)
        for edge in edges[1:-1]:
            cluster_R += target_R >= edge
        head_target_R = torch.where(cluster_R > 0, shortlist - 1 + cluster_R, target_R)
        softmaxes = [Softmax(self._projected(hidden_RD, 0), self._columns(0), head_target_R)]
        row_R = cluster_R.argsort(stable=True)
        begins = self.clusters.begins(targets_BT)
        counts = [begins[number + 1] - begins[number] for number in self.clusters.tails]
        for number, count in zip(self.clusters.tails, counts, strict=True):
            row_r = row_R[begins[number] : begins[number + 1]]
            target_r = target_R[row_r] - edges[number]
            more = (0, rows_to_add(count))  # none of them counts
            projected = self._projected(hidden_RD[functional.pad(row_r, more)], number)
            target_r = functional.pad(target_r, more, value=NOT_COUNTED)
            softmaxes.append(Softmax(projected, self._columns(number), target_r))
        head_nll_R, *tail_nll = softmax_losses(softmaxes, self._tables())
        counted = [nll_r[:count] for nll_r, count in zip(tail_nll, counts, strict=True)]
        within_tail_R = torch.cat([head_nll_R.new_zeros(begins[1]), *counted])
        nll_R = head_nll_R + torch.zeros_like(head_nll_R).index_copy(0, row_R, within_tail_R)
        return nll_R.view(targets_BT.shape)

    def _projected(self, hidden: Tensor, number: int) -> Tensor:
        if not self.clusters.projected:
            return hidden
        if str(number) in self.projections:
            return torch.matmul(hidden, self.projections[str(number)])
        return torch.matmul(hidden, self._embedding[0].projections[0 if self.clusters.one_table else number])

    def _tables(self) -> list[Table]:
        weights = self.weights if len(self.weights) else self._embedding[0].softmax_tables
        tables = [Table(*pair) for pair in zip(weights, self.biases, strict=True)]
        return [*tables, Table(self.cluster_weight, self.cluster_bias)] if self.clusters.tails else tables

    def _columns(self, number: int) -> tuple[Columns, ...]:
        if self.clusters.one_table:
            own = 0, slice(self.clusters.edges[number], self.clusters.edges[number + 1])
        else:
            own = number, slice(0, self.clusters.sizes[number])
        if number > 0 or not self.clusters.tails:
            return (own,)
        return own, (len(self.biases), slice(0, len(self.clusters.tails)))  # the tails as wholes
