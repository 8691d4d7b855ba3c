"""How a vocabulary that is sorted by frequency is cut into clusters: a shortlist, and tails of rarer tokens.

Efficient softmax approximation for GPUs (Grave et al., 2017); narrower embeddings for rarer tokens (Baevski and Auli,
2019). Without cutoffs there is one cluster, and the softmax is the ordinary one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_xl.model_config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """The clusters of one model.

    Attributes:
        edges: 0, the first token of each tail, and V.
        widths: width of each cluster's embedding.
        d_model: D, to which embeddings are projected where `projected`.
        projected: whether there are projections between embeddings and hidden states.
        one_table: whether one matrix holds the embeddings of all clusters.
        tied_projections: for each cluster, whether the softmax uses the embedding's projection.
    """

    edges: tuple[int, ...]
    widths: tuple[int, ...]
    d_model: int
    projected: bool
    one_table: bool
    tied_projections: tuple[bool, ...]

    @property
    def tails(self) -> range:
        """Numbers of the clusters beyond the shortlist."""
        return range(1, len(self.widths))

    @property
    def sizes(self) -> list[int]:
        """Count each cluster's tokens."""
        return [stop - start for start, stop in zip(self.edges, self.edges[1:], strict=False)]

    @property
    def table_shapes(self) -> list[tuple[int, int]]:
        """Rows and width of each embedding matrix."""
        if self.one_table:
            return [(self.edges[-1], self.widths[0])]
        return list(zip(self.sizes, self.widths, strict=True))

    def output_flops(self, *, tokens: int, shares: Sequence[float]) -> int:
        """Count the operations of the softmax over the clusters that tokens visit.

        Args:
            tokens: how many are predicted.
            shares: of each cluster among the targets, together 1.
        """
        head = self.sizes[0] + len(self.tails)
        flops = tokens * self._logits_flops(0, rows=head)
        for number in self.tails:
            flops += round(tokens * shares[number]) * self._logits_flops(number, rows=self.sizes[number])
        return flops

    def input_flops(self, *, tokens: int, shares: Sequence[float]) -> int:
        """Count the operations of projecting the embeddings of tokens, of whose clusters `shares` are the shares."""
        if not self.projected:
            return 0
        return sum(
            round(tokens * share) * 2 * width * self.d_model for share, width in zip(shares, self.widths, strict=True)
        )

    def _logits_flops(self, number: int, *, rows: int) -> int:
        width = self.widths[number]
        return 2 * width * rows + (2 * self.d_model * width if self.projected else 0)


def make_clusters(config: ModelConfig, *, vocab_size: int) -> Clusters:
    """Cut a vocabulary as `config` says; cutoffs at or above its size fall away."""
    cutoffs = kept_cutoffs(config, vocab_size=vocab_size)
    number = len(cutoffs) + 1
    d_embed = config.d_embed or config.d_model
    tied = config.tie_projs
    if not isinstance(tied, list):
        tied = [tied == "all", *[tied in ("all", "tails")] * len(config.cutoffs)]
    return Clusters(
        edges=(0, *cutoffs, vocab_size),
        widths=tuple(d_embed // config.div_val**cluster for cluster in range(number)),
        d_model=config.d_model,
        projected=config.div_val > 1 or d_embed != config.d_model,
        one_table=config.div_val == 1,
        tied_projections=tuple(tied[:number]),
    )


def kept_cutoffs(config: ModelConfig, *, vocab_size: int) -> list[int]:
    """Give the cutoffs that lie within a vocabulary."""
    return [cutoff for cutoff in config.cutoffs if cutoff < vocab_size]
