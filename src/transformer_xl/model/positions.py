"""How positions enter a transformer: a small class each, around which layers and attention are the same.

`PositionEncoding` is attention by contents alone; a subclass overrides what it adds. An encoding of one's own is
registered like those here, as `@register("position", NAME, config=SETTINGS)`, and chosen by `model/position=NAME`.

Letters: L layers, B lanes, T tokens, M memory slots, S = M + T keys, R = S + 1 distances, P places, D width, N heads,
H head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from transformer_xl.model.attention import (
    AttentionMask,
    Distances,
    attention_scores,
    attention_weights,
    relative_shift,
    weighted_values,
)
from transformer_xl.model.kernels import ATTENTION
from transformer_xl.model.kernels.linear import Linear
from transformer_xl.model_config import PositionConfig, TransformerConfig
from transformer_xl.registry import register
from transformer_xl.settings import Width

if TYPE_CHECKING:
    from transformer_xl.model.transformer import SelfAttention

Encoding = Mapping[str, Tensor]
"""What attention needs to know of the positions of a segment's keys, by name."""


class PositionEncoding(nn.Module):
    """Attention that knows contents only: what is not overridden adds nothing.

    Parameters of an encoding itself become the model's, and are saved by their names there (`content_bias`); those of
    its modules are saved below `position`. What each attention has of its own is made in `add_to`.
    """

    relative: ClassVar[bool] = True  # predictions depend on distances alone, not on a token's place within its segment
    clamps: ClassVar[bool] = False  # distances above `clamp_len` count as it
    has_biases: ClassVar[bool] = False  # it has a u and v, which `untie_r` gives to each layer
    scored: ClassVar[int] = 2  # matrix products of queries with keys: q·k, p·v, and q·r where a score knows distances

    def __init__(self, settings: Any, config: TransformerConfig) -> None:
        """Make what all layers share, from the encoding's own settings and the model's."""
        super().__init__()
        self.settings = settings
        self.config = config

    @classmethod
    def longest_segment(cls, settings: Any) -> int | None:
        """Return the length of the longest segment that can be read; None: any."""
        return None

    @classmethod
    def rules(cls, config: TransformerConfig) -> Iterator[str]:
        """Yield a part of a sentence for each setting of a model that the encoding cannot work with."""
        kind = config.position.kind
        if config.untie_r and not cls.has_biases:
            yield f"untie_r is true, and must be false with model.position {kind}, which has no u and v"
        if config.attention not in ("auto", "plain") and cls.scores is not PositionEncoding.scores:
            yield f"attention is {config.attention!r}, and must be auto or plain with position {kind}"

    def add_to(self, attention: SelfAttention) -> None:
        """Add the parameters that each attention has of its own, before its output projection."""

    def embed(self, embedded_BTD: Tensor) -> Tensor:
        """Add to scaled embeddings, before their dropout."""
        return embedded_BTD

    def layer_input(self, hidden_BTD: Tensor, layer: int) -> Tensor:
        """Add to what a layer reads of the segment, and leaves in memory."""
        return hidden_BTD

    def encode(self, *, keys: int, clamp_len: int | None, like: Tensor) -> Encoding:
        """Return what is computed once for a segment and its S keys, whatever the layer, on the device of `like`.

        Distances above `clamp_len` count as it; None: no limit.
        """
        return {}

    def project(self, encoding: Encoding, attention: SelfAttention, layer: int) -> Encoding:
        """Return what one layer's attention makes of `encode`'s result."""
        return encoding

    def newest(self, encoding: Encoding, *, keys: int) -> Encoding | None:
        """Return a layer's encoding for fewer keys than it was made for, as views; None: it must be made anew."""
        return None if encoding else encoding

    def compared(
        self, query_BTNH: Tensor, key_BSNH: Tensor, encoding: Encoding
    ) -> tuple[Tensor, Tensor, Distances | None]:
        """Return queries and keys as they are compared, and what scores know of distances."""
        return query_BTNH, key_BSNH, None

    def scores(self, query_BTNH: Tensor, key_BSNH: Tensor, encoding: Encoding) -> Tensor:
        """Return scores (B, N, T, S) as the equation reads, masked ones too; overriding it means to have no kernels."""
        return attention_scores(*self.compared(query_BTNH, key_BSNH, encoding))

    def attend(
        self,
        query_BTNH: Tensor,
        key_BSNH: Tensor,
        value_BSNH: Tensor,
        encoding: Encoding,
        *,
        mask: AttentionMask,
        dropout: float,
    ) -> Tensor:
        """Return what queries attend to, (B, T, N, H), by `scores` or a kernel that computes the same."""
        if type(self).scores is not PositionEncoding.scores:
            weight_BNTS = attention_weights(self.scores(query_BTNH, key_BSNH, encoding), mask)
            return weighted_values(weight_BNTS, value_BSNH, dropout=dropout)
        query_BTNH, key_BSNH, distances = self.compared(query_BTNH, key_BSNH, encoding)
        attend = ATTENTION[self.config.attention]
        return attend(query_BTNH, key_BSNH, value_BSNH, distances, mask=mask, dropout=dropout)

    def move_parameters_to(self, model: nn.Module) -> None:
        """Let the model hold the encoding's own parameters; they stay attributes of both."""
        for name, parameter in self._parameters.items():
            model.register_parameter(name, parameter)
        self._parameters.clear()
        self._of_model = model._parameters  # follows what is done to the model, copies of it too

    def __getattr__(self, name: str) -> Any:
        of_model = self.__dict__.get("_of_model", {})
        return of_model[name] if name in of_model else super().__getattr__(name)


def sinusoids(distance_S: Tensor, *, d_model: int, dtype: torch.dtype) -> Tensor:
    """Encode distances (S, D), D even: half sines, half cosines, wavelengths from 2 pi to 10000 * 2 pi.

    The arithmetic is at least float32, in which distances are exact; `dtype` is that of the result.
    """
    precise = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, d_model, 2, device=distance_S.device, dtype=precise) / d_model
    angle = torch.outer(distance_S.to(precise), 1 / 10000.0**exponent)
    return torch.cat([angle.sin(), angle.cos()], dim=-1).to(dtype)


def descending_distances(*, keys: int, clamp_len: int | None, device: torch.device) -> Tensor:
    """Return the distances S-1 ... 0, those above `clamp_len` (None: none) replaced by it."""
    distance_S = torch.arange(keys - 1, -1, -1, device=device)
    return distance_S if clamp_len is None else distance_S.clamp(max=clamp_len)


@register("position", "relative", config=PositionConfig)
class RelativeEncoding(PositionEncoding):
    """One sinusoid of the distance for all layers, each with its own projection of it (Dai et al., 2019)."""

    clamps = True
    has_biases = True
    scored = 3

    def __init__(self, settings: PositionConfig, config: TransformerConfig) -> None:
        super().__init__(settings, config)
        pairs = config.n_layer if config.untie_r else 1
        self.content_bias = nn.Parameter(torch.empty(pairs, config.n_head, config.d_head))
        self.position_bias = nn.Parameter(torch.empty(pairs, config.n_head, config.d_head))
        self.sinusoid_dropout = nn.Dropout(config.dropout)

    def add_to(self, attention: SelfAttention) -> None:
        attention.position = Linear(self.config.d_model, self.config.n_head * self.config.d_head, bias=False)

    def encode(self, *, keys: int, clamp_len: int | None, like: Tensor) -> Encoding:
        """Return sinusoids of the distances S-1 ... 0, under one mask of dropout."""
        distance_S = descending_distances(keys=keys, clamp_len=clamp_len, device=like.device)
        sinusoid_SD = sinusoids(distance_S, d_model=self.config.d_model, dtype=like.dtype)
        return {"sinusoid_SD": self.sinusoid_dropout(sinusoid_SD)}

    def project(self, encoding: Encoding, attention: SelfAttention, layer: int) -> Encoding:
        """Return the projected distances, with a row of zeros for no distance, and the layer's u and v."""
        projection = cast(Linear, attention.position)
        position_SNH = projection(encoding["sinusoid_SD"]).unflatten(-1, (self.config.n_head, -1))
        position_RNH = functional.pad(position_SNH, (0, 0, 0, 0, 0, 1))
        pair = layer if self.config.untie_r else 0
        return {
            "position_RNH": position_RNH if torch.is_grad_enabled() else _dense_by_head(position_RNH),
            "content_bias_NH": self.content_bias[pair],
            "position_bias_NH": self.position_bias[pair],
        }

    def newest(self, encoding: Encoding, *, keys: int) -> Encoding:
        position_RNH = encoding["position_RNH"][-keys - 1 :]
        if position_RNH.dtype != torch.float32:
            # the library of products in bfloat16 would copy what is not dense, at each of them
            position_RNH = _dense_by_head(position_RNH)
        return {**encoding, "position_RNH": position_RNH}

    def compared(
        self, query_BTNH: Tensor, key_BSNH: Tensor, encoding: Encoding
    ) -> tuple[Tensor, Tensor, Distances | None]:
        return query_BTNH, key_BSNH, Distances(**encoding)


def _dense_by_head(position_RNH: Tensor) -> Tensor:
    """Return positions in the order in which blockwise attention reads them fastest."""
    return position_RNH.transpose(0, 1).contiguous().transpose(0, 1)


class ShawConfig(PositionConfig):
    """Learned encodings of the distance."""

    max_distance: Annotated[int, Field(ge=0, lt=1 << 24)]  # distances above it share its encoding


@register("position", "shaw", config=ShawConfig)
class ShawEncoding(PositionEncoding):
    """Learned encodings of the distance, as the published code's `attn_type 1` has them (Shaw et al., 2018).

    The score is ((q_i + u)·k_j + q_i·a_{i-j} + b_{i-j}) / sqrt(H), with u, a and b of each layer's own; values have no
    encodings.
    """

    clamps = True
    scored = 3

    def add_to(self, attention: SelfAttention) -> None:
        distances, heads, width = self.settings.max_distance + 1, self.config.n_head, self.config.d_head
        attention.content_bias = nn.Parameter(torch.empty(heads, width))
        attention.register_module("output", None)  # stands before the next in the order of initial weights
        attention.distance_embedding = nn.Module()
        attention.distance_embedding.weight = nn.Parameter(torch.empty(distances, heads, width))
        attention.distance_embedding.bias = nn.Parameter(torch.zeros(distances, heads))

    def encode(self, *, keys: int, clamp_len: int | None, like: Tensor) -> Encoding:
        """Return the distances S-1 ... 0, those beyond the last encoding or `clamp_len` replaced by it."""
        furthest = self.settings.max_distance
        clamp_len = furthest if clamp_len is None else min(clamp_len, furthest)
        return {"distance_S": descending_distances(keys=keys, clamp_len=clamp_len, device=like.device)}

    def project(self, encoding: Encoding, attention: SelfAttention, layer: int) -> Encoding:
        """Return the distances, and the layer's u, a and b."""
        learned: Any = attention.distance_embedding
        own: Any = {"content_bias_NH": attention.content_bias, "weight_PNH": learned.weight, "bias_PN": learned.bias}
        return {**encoding, **own}

    def newest(self, encoding: Encoding, *, keys: int) -> Encoding:
        return {**encoding, "distance_S": encoding["distance_S"][-keys:]}

    def scores(self, query_BTNH: Tensor, key_BSNH: Tensor, encoding: Encoding) -> Tensor:
        content_BNTS = torch.einsum("btnh,bsnh->bnts", query_BTNH + encoding["content_bias_NH"], key_BSNH)
        # one more column than there are distances: `relative_shift` pushes it into the corner that causality hides
        distance_R = functional.pad(encoding["distance_S"], (0, 1))
        position_BNTR = torch.einsum("btnh,rnh->bntr", query_BTNH, encoding["weight_PNH"][distance_R])
        position_BNTR = position_BNTR + encoding["bias_PN"][distance_R].T[:, None]
        return (content_BNTS + relative_shift(position_BNTR)).mul(query_BTNH.shape[-1] ** -0.5)


@register("position", "sinusoid", config=PositionConfig)
class SinusoidEncoding(PositionEncoding):
    """The sinusoid of the place in the segment, added to the scaled embedding (Vaswani et al., 2017, section 3.5).

    With a memory, place p of the segment before has the encoding of place p of this one, and nothing tells the two
    apart: relative encodings mend that (Transformer-XL, section 3.3).
    """

    relative = False

    def embed(self, embedded_BTD: Tensor) -> Tensor:
        place_T = torch.arange(embedded_BTD.shape[1], device=embedded_BTD.device)
        return embedded_BTD + sinusoids(place_T, d_model=self.config.d_model, dtype=embedded_BTD.dtype)


class LearnedConfig(PositionConfig):
    """Learned encodings of the place in the segment."""

    n_positions: Width  # places with an encoding in each layer; no segment may be longer


@register("position", "learned", config=LearnedConfig)
class LearnedEncoding(PositionEncoding):
    """A learned encoding of the place in the segment, added to every layer's input (Al-Rfou et al., 2018, section 2.3).

    No segment can be longer than there are places.
    """

    relative = False

    def __init__(self, settings: LearnedConfig, config: TransformerConfig) -> None:
        super().__init__(settings, config)
        self.place_embedding = nn.Parameter(torch.empty(config.n_layer, settings.n_positions, config.d_model))

    @classmethod
    def longest_segment(cls, settings: LearnedConfig) -> int:
        return settings.n_positions

    def layer_input(self, hidden_BTD: Tensor, layer: int) -> Tensor:
        return hidden_BTD + self.place_embedding[layer, : hidden_BTD.shape[1]]


class RotaryConfig(PositionConfig):
    """Rotary positions."""

    rope_base: Annotated[float, Field(ge=1)]  # the slowest pair turns by about 1 / rope_base a token


@register("position", "rotary", config=RotaryConfig)
class RotaryEncoding(PositionEncoding):
    """Queries and keys turned by their slots, so that a score depends on their distance alone (Su et al., 2021).

    Memory holds keys that are not turned.
    """

    @classmethod
    def rules(cls, config: TransformerConfig) -> Iterator[str]:
        yield from super().rules(config)
        if config.d_head % 2:
            yield f"d_head is {config.d_head}, and must be even: rotary positions turn pairs"

    def encode(self, *, keys: int, clamp_len: int | None, like: Tensor) -> Encoding:
        """Return the angles of the slots 0 ... S-1: slot / base^(2h/H) for the pair h."""
        precise = torch.promote_types(like.dtype, torch.float32)
        width = self.config.d_head
        exponent = torch.arange(0, width, 2, device=like.device, dtype=precise) / width
        slot_S = torch.arange(keys, device=like.device, dtype=precise)
        angle_S1H = torch.outer(slot_S, self.settings.rope_base**-exponent).repeat(1, 2)[:, None]
        return {"cos_S1H": angle_S1H.cos(), "sin_S1H": angle_S1H.sin()}

    def newest(self, encoding: Encoding, *, keys: int) -> Encoding:
        """Return the angles of the slots 0 ... keys-1: only their distances matter."""
        return {name: angle_S1H[:keys] for name, angle_S1H in encoding.items()}

    def compared(
        self, query_BTNH: Tensor, key_BSNH: Tensor, encoding: Encoding
    ) -> tuple[Tensor, Tensor, Distances | None]:
        cos_S1H, sin_S1H = encoding["cos_S1H"], encoding["sin_S1H"]
        turn: Callable[..., Tensor] = _Rotary.apply
        queries = query_BTNH.shape[1]
        return turn(query_BTNH, cos_S1H[-queries:], sin_S1H[-queries:]), turn(key_BSNH, cos_S1H, sin_S1H), None


class _Rotary(torch.autograd.Function):
    """Turns the pairs (h, h + H/2) of every head's vector by its slot's angles, which alone are kept for backward."""

    @staticmethod
    def forward(ctx: Any, vector_BSNH: Tensor, cos_S1H: Tensor, sin_S1H: Tensor) -> Tensor:
        ctx.save_for_backward(cos_S1H, sin_S1H)
        return _turned(vector_BSNH, cos_S1H, sin_S1H)

    @staticmethod
    def backward(ctx: Any, grad_BSNH: Tensor) -> tuple[Tensor | None, ...]:
        cos_S1H, sin_S1H = ctx.saved_tensors
        return _turned(grad_BSNH, cos_S1H, -sin_S1H), None, None


def _turned(vector_BSNH: Tensor, cos_S1H: Tensor, sin_S1H: Tensor) -> Tensor:
    precise_BSNH = vector_BSNH.to(cos_S1H.dtype)
    turned_BSNH = precise_BSNH * cos_S1H
    (left, right), (sin, _) = precise_BSNH.chunk(2, dim=-1), sin_S1H.chunk(2, dim=-1)
    to_left, to_right = turned_BSNH.chunk(2, dim=-1)
    to_left.addcmul_(right, sin, value=-1)
    to_right.addcmul_(left, sin)
    return turned_BSNH.to(vector_BSNH.dtype)
