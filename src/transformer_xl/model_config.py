"""Settings of the networks, and the rules between them; the numbers stand in `conf/model/`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from transformer_xl.registry import lookup
from transformer_xl.settings import Length, Settings, Share, Width, by_kind


class ModelConfig(Settings):
    """What every network has: layers, memory, and an embedding and output that may be adaptive."""

    kind: str
    n_layer: Annotated[int, Field(ge=1, lt=10_000)]
    d_model: Width
    dropout: Share
    variational_dropout: bool
    mem_len: Length
    clamp_len: Length | None
    same_length: bool
    d_embed: Width | None
    cutoffs: list[int]
    div_val: Width
    tie_weights: bool
    tie_projs: Literal["none", "tails", "all"] | list[bool]
    init_std: Annotated[float, Field(ge=0, lt=1e6)]
    proj_init_std: Annotated[float, Field(ge=0, lt=1e6)]

    @property
    def label(self) -> str:
        """The network in words."""
        return self.kind

    def rules(self) -> Iterator[str]:
        cutoffs, clusters = self.cutoffs, len(self.cutoffs) + 1
        if any(later <= earlier for earlier, later in pairwise([0, *cutoffs])):
            yield f"cutoffs is {cutoffs}, and must be numbers above 0 that increase"
        d_embed, needed = self.d_embed or self.d_model, self.div_val ** len(cutoffs)
        if d_embed < needed:
            yield f"d_embed is {d_embed}, and must be at least {needed} for div_val {self.div_val} and these cutoffs"
        if isinstance(self.tie_projs, list) and len(self.tie_projs) != clusters:
            yield f"tie_projs is {self.tie_projs}, and must have {clusters} entries, one for each cluster"


class PositionConfig(Settings):
    """How positions enter a transformer; see `model/positions.py`."""

    kind: str


class TransformerConfig(ModelConfig):
    """A transformer with a memory of layer inputs; see `model/transformer.py`."""

    base: ClassVar[str] = "txl_tiny"
    """The file of `conf/model/` that a transformer from outside begins from."""

    kind: Literal["transformer"]
    n_head: Width
    d_head: Width
    d_inner: Width
    dropatt: Share
    pre_norm: bool
    norm: Literal["layer", "rms"]
    feed_forward: Literal["relu", "swiglu"]
    untie_r: bool
    attention: Literal["auto", "plain", "blockwise", "sdpa", "fused"]
    recompute: Literal["none", "layers"] = "none"
    position: Annotated[PositionConfig, by_kind("position", PositionConfig)]

    @property
    def label(self) -> str:
        return f"a transformer with {self.position.kind} positions" if self.kind == "transformer" else super().label

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        encoding: Any = lookup("position", self.position.kind).factory
        if self.d_model % 2:
            yield f"d_model is {self.d_model}, and must be even: half sines, half cosines"
        yield from encoding.rules(self)


class RecurrentConfig(ModelConfig):
    """A recurrent network whose state is the memory; `mem_len` 0 forgets it after each segment."""

    kind: Literal["rnn", "gru", "lstm"]


Model = Annotated[ModelConfig, by_kind("model", ModelConfig)]
