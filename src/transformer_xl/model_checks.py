"""The checks of a network's configuration, wherever it comes from, and what all checks are made of."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from transformer_xl.errors import UserError
from transformer_xl.model_config import (
    AlRfouConfig,
    AnyModelConfig,
    ModelConfig,
    RopeConfig,
    ShawConfig,
    TransformerConfig,
    parse_model,
)

_MOST_LAYERS = 10_000
_WIDEST = 1 << 24
_MOST_TOKENS = 1 << 31
_LARGEST_STD = 1e6


def at_least(minimum: float, **values: float | None) -> list[str]:
    """Give a sentence for each value below a minimum; `__` in a name stands for a dot."""
    return [
        f"{name.replace('__', '.')} is {value}, and must be at least {minimum}"
        for name, value in values.items()
        if value is not None and not value >= minimum
    ]


def within(low: float, high: float, **values: float | None) -> list[str]:
    """Give a sentence for each value outside of [low, high)."""
    return [
        f"{name.replace('__', '.')} is {value}, and must be at least {low} and below {high}"
        for name, value in values.items()
        if value is not None and not low <= value < high
    ]


def token_counts(low: int, **values: int | None) -> list[str]:
    """Give a sentence for each number of tokens below a minimum, or beyond all that a memory can hold."""
    return within(low, _MOST_TOKENS, **values)


def checked_model(value: Any) -> AnyModelConfig:
    """Turn plain containers that a file held into a network's configuration that can work.

    Raises:
        UserError: every problem found, in one sentence.
    """
    model = parse_model(value)
    problems = check_model(model)
    if problems:
        raise UserError("; ".join(problems))
    return model


def check_model(model: ModelConfig) -> list[str]:
    """Give a sentence for each value of a network that cannot work."""
    problems = within(1, _MOST_LAYERS, model__n_layer=model.n_layer)
    problems += within(1, _WIDEST, model__d_model=model.d_model, model__d_embed=model.d_embed)
    problems += token_counts(0, model__mem_len=model.mem_len, model__clamp_len=model.clamp_len)
    problems += within(0, 1, model__dropout=model.dropout)
    problems += within(0, _LARGEST_STD, model__init_std=model.init_std, model__proj_init_std=model.proj_init_std)
    if isinstance(model, TransformerConfig):
        sizes = {"model__n_head": model.n_head, "model__d_head": model.d_head, "model__d_inner": model.d_inner}
        problems += within(1, _WIDEST, **sizes)
        problems += within(0, 1, model__dropatt=model.dropatt)
        if model.d_model % 2:
            problems.append(f"model.d_model is {model.d_model}, and must be even: half sines, half cosines")
    if isinstance(model, ShawConfig):
        problems += within(0, _WIDEST, model__max_distance=model.max_distance)
    if isinstance(model, AlRfouConfig):
        problems += within(1, _WIDEST, model__n_positions=model.n_positions)
    if isinstance(model, RopeConfig):
        problems += at_least(1, model__rope_base=model.rope_base)
        if model.d_head % 2:
            problems.append(f"model.d_head is {model.d_head}, and must be even: rotary positions turn pairs")
    return problems + _check_clusters(model)


def _check_clusters(model: ModelConfig) -> list[str]:
    """Refuse clusters of an adaptive vocabulary that cannot be, whatever the vocabulary."""
    problems = within(1, _WIDEST, model__div_val=model.div_val)
    if problems or (model.d_embed is not None and model.d_embed < 1):
        return problems
    cutoffs, clusters = model.cutoffs, len(model.cutoffs) + 1
    if any(later <= earlier for earlier, later in pairwise([0, *cutoffs])):
        problems.append(f"model.cutoffs is {cutoffs}, and must be numbers above 0 that increase")
    d_embed, needed = model.d_embed or model.d_model, model.div_val ** len(cutoffs)
    if d_embed < needed:
        setting = f"model.d_embed is {d_embed}" + ("" if model.d_embed else ", as model.d_model,")
        problems.append(
            f"{setting} and model.div_val is {model.div_val}: of the {clusters} clusters that model.cutoffs makes the "
            f"last would have a width below 1; d_embed must be at least {needed}"
        )
    if isinstance(model.tie_projs, list) and len(model.tie_projs) != clusters:
        problems.append(
            f"model.tie_projs is {model.tie_projs}, and must have {clusters} entries, one for each cluster that "
            "model.cutoffs makes, or be none, tails or all"
        )
    return problems
