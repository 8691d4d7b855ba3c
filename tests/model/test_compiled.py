"""Layers compiled for one shape: the numbers of the model, one graph, whatever memory and segments do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.model.kinds import TRANSFORMERS, model_of, one_reset
from tests.model.tiny import random_tokens
from transformer_xl.model.base import LanguageModel, TokenLosses
from transformer_xl.model.compiled import compiled_losses
from transformer_xl.model.kernels import ATTENTION
from transformer_xl.model.memory import Memory

B, T, M = 2, 5, 7
STEPS = 4
Read = Callable[[Tensor, Tensor, Memory, Tensor | None], tuple[TokenLosses, Tensor | None]]


def segments(*, short: int | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Segments of T tokens with a document's beginning in one of them; segment number `short` has fewer tokens."""
    for step in range(STEPS):
        length = T - 2 if step == short else T
        tokens_BT = random_tokens(B, length + 1, seed=step)
        yield tokens_BT[:, :-1], tokens_BT[:, 1:], one_reset(B, length, lane=1, place=1) & torch.tensor(step == 2)


def losses(model: LanguageModel, read: Read, *, memory: Memory, short: int | None = None) -> tuple[list[float], Memory]:
    """Take a few steps of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for tokens_BT, targets_BT, resets_BT in segments(short=short):
        (nll_BT, memory), _ = read(tokens_BT, targets_BT, memory, resets_BT)
        optimizer.zero_grad()
        nll_BT.mean().backward()
        optimizer.step()
        found.append(float(nll_BT.detach().mean()))
    return found, memory


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_memory_of_full_size_gives_the_numbers_of_one_that_grows(kind: str) -> None:
    grows, full = (model_of(kind).train() for _ in range(2))
    memory = full.empty_memory(B).with_slots(M)
    assert memory.slots == M
    assert not memory.length_B.any()
    expected, _ = losses(grows, grows.training_losses, memory=grows.empty_memory(B))
    found, after = losses(full, full.training_losses, memory=memory)
    assert found == pytest.approx(expected, rel=1e-12)
    assert after.slots == M


class Counting:
    """A compiler that leaves a graph as it is, and counts the graphs."""

    def __init__(self) -> None:
        torch._dynamo.reset()
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        from torch._dynamo.backends.debugging import aot_eager

        self.graphs += 1
        return aot_eager(graph, inputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {}) for kind in TRANSFORMERS),
        *(("transformer_xl", {"attention": name}) for name in sorted(set(ATTENTION) - {"blockwise", "fused"})),
        ("transformer_xl", {"untie_r": True, "pre_norm": True, "clamp_len": 4, "same_length": True}),
        ("transformer_xl", {"cutoffs": [10, 20], "div_val": 2}),
    ],
    ids=str,
)
def test_one_graph_serves_all_layers_and_segments_with_the_models_losses(kind: str, changes: dict[str, Any]) -> None:
    plain, model = (model_of(kind, dtype=torch.float32, n_layer=3, **changes).train() for _ in range(2))
    names = list(model.state_dict())
    counting = Counting()
    compiled = compiled_losses(model, segment_len=T, backend=counting)
    expected, _ = losses(plain, plain.training_losses, memory=plain.empty_memory(B), short=3)
    found, memory = losses(model, compiled, memory=model.empty_memory(B), short=3)
    assert found == pytest.approx(expected, rel=1e-6)
    assert counting.graphs == 1

    assert list(model.state_dict()) == names
    with torch.no_grad():
        model.eval().log_probs(random_tokens(B, T + 3), memory)
    again, _ = losses(model.train(), compiled, memory=memory)
    expected, _ = losses(plain, plain.training_losses, memory=memory)
    assert again == pytest.approx(expected, rel=1e-5)
    assert counting.graphs == 1


@pytest.mark.slow
def test_gradients_flow_through_the_memory_between_compiled_segments() -> None:
    gradients = []
    for compiles in (False, True):
        model = model_of("transformer_xl", n_layer=3).train()
        counting = Counting()
        read = compiled_losses(model, segment_len=T, backend=counting) if compiles else model.training_losses
        memory, sums = model.empty_memory(B), []
        for tokens_BT, targets_BT, resets_BT in segments(short=3):
            (nll_BT, memory), _ = read(tokens_BT, targets_BT, memory, resets_BT, detach=False)
            sums.append(nll_BT.sum())
        sum(sums).backward()
        gradients.append([weight.grad for weight in model.parameters()])
    assert counting.graphs == 2  # the first segment's memory has no gradient
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
