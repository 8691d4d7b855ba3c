"""Checks of what `score.py` and `generate.py` may look back at, before any model is loaded."""

from __future__ import annotations

from transformer_xl.inference_config import ContextConfig
from transformer_xl.model_checks import token_counts


def check_memory(memory: ContextConfig) -> list[str]:
    """Give a sentence for each value that no model can be read with."""
    problems = token_counts(0, memory__mem_len=number(memory.mem_len), memory__clamp_len=number(memory.clamp_len))
    if memory.same_length is True and memory.mem_len == 0:
        problems.append("memory.same_length is true with memory.mem_len 0, and needs a memory.mem_len of at least 1")
    return problems


def number(value: object) -> int | None:
    """Give a setting that is a number; None where it is `own` or null."""
    return value if isinstance(value, int) else None
