"""Typed schema of the networks: names and types; the numbers stand in `conf/model/`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from transformer_xl.parsing import parse


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What every network has: layers, memory, and an embedding and output that may be adaptive."""

    kind: str
    n_layer: int
    d_model: int
    dropout: float
    variational_dropout: bool
    mem_len: int
    clamp_len: int | None
    same_length: bool
    d_embed: int | None
    cutoffs: list[int]
    div_val: int
    tie_weights: bool
    tie_projs: Literal["none", "tails", "all"] | list[bool]
    init_std: float
    proj_init_std: float


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """What every network with attention has."""

    n_head: int
    d_head: int
    d_inner: int
    dropatt: float


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig(TransformerConfig):
    """The published model; see `model/transformer_xl.py`."""

    kind: Literal["transformer_xl"]
    pre_norm: bool
    untie_r: bool
    attention: Literal["auto", "plain", "blockwise", "sdpa"]


@dataclass(frozen=True, kw_only=True)
class ShawConfig(TransformerConfig):
    """Learned encodings of the distance (Shaw et al., 2018); those above `max_distance` share one."""

    kind: Literal["shaw"]
    pre_norm: bool
    max_distance: int


@dataclass(frozen=True, kw_only=True)
class VaswaniConfig(TransformerConfig):
    """Sinusoids of the place in the segment, added to the embedding (Vaswani et al., 2017)."""

    kind: Literal["vaswani"]
    pre_norm: bool


@dataclass(frozen=True, kw_only=True)
class AlRfouConfig(TransformerConfig):
    """Learned encodings of the place in the segment, added before each layer (Al-Rfou et al., 2018)."""

    kind: Literal["al_rfou"]
    pre_norm: bool
    n_positions: int


@dataclass(frozen=True, kw_only=True)
class RopeConfig(TransformerConfig):
    """Today's decoder: RMSNorm first, SwiGLU, rotary positions; see `model/transformer_rope.py`."""

    kind: Literal["transformer_rope"]
    rope_base: float


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(ModelConfig):
    """A recurrent network whose state is the memory; `mem_len` 0 forgets it after each segment."""

    kind: Literal["rnn", "gru", "lstm"]


AnyModelConfig = TransformerXLConfig | ShawConfig | VaswaniConfig | AlRfouConfig | RopeConfig | RecurrentConfig


@dataclass(frozen=True, kw_only=True)
class _Holder:
    model: AnyModelConfig


def parse_model(value: Any) -> AnyModelConfig:
    """Turn plain containers into the configuration of the network that their `kind` names.

    Raises:
        UserError: an unknown or missing key, or a value of another type.
    """
    return parse(_Holder, {"model": value}).model
