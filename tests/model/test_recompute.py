"""`model.recompute=layers`: the same gradients to the bit, of layers of which little is kept for backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import Outcome, run_training, tiny_overrides
from tests.model.kinds import TRANSFORMERS, model_of, one_reset
from tests.model.tiny import V, random_tokens
from transformer_xl.model.kernels import ATTENTION

LANES, SEGMENT_LEN, LAYERS = 3, 5, 3
DROPOUT = {"dropout": 0.3, "dropatt": 0.3}
FLOAT32, BFLOAT16 = nullcontext(), torch.autocast("cpu", torch.bfloat16)


def two_segments(kind: str, precision: AbstractContextManager[Any], **changes: Any) -> tuple[list[Tensor], int]:
    """Return losses, memory and gradients of two segments of one step, and how many tensors were kept for backward."""
    model = model_of(kind, dtype=torch.float32, n_layer=LAYERS, **DROPOUT, **changes).train()
    memory, losses, kept = model.empty_memory(LANES), [], []
    torch.manual_seed(5)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(0) or tensor, lambda tensor: tensor):
        for seed in (1, 2):
            tokens_BT = random_tokens(LANES, SEGMENT_LEN + 1, seed=seed)
            resets_BT = one_reset(LANES, SEGMENT_LEN, lane=1, place=2)
            with precision:
                nll_BT, memory = model.nll(tokens_BT[:, :-1], tokens_BT[:, 1:], memory, resets_BT)
            losses.append(nll_BT)
        torch.cat(losses).sum().backward()
    found = [*losses, memory.hidden_LBMD, *(parameter.grad for parameter in model.parameters()), torch.rand(3)]
    return found, len(kept)


@pytest.mark.parametrize("precision", [FLOAT32, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {}) for kind in TRANSFORMERS),
        *(("transformer_xl", {"attention": name}) for name in sorted(set(ATTENTION) - {"fused"})),
        ("transformer_xl", {"variational_dropout": True, "untie_r": True, "cutoffs": [10, 20], "div_val": 2}),
    ],
    ids=str,
)
def test_recomputed_layers_have_the_same_gradients_to_the_bit_and_keep_less(
    kind: str, changes: dict[str, Any], precision: AbstractContextManager[Any]
) -> None:
    expected, kept = two_segments(kind, precision, **changes)
    found, kept_less = two_segments(kind, precision, **changes, recompute="layers")
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert expected[0].count_nonzero()
    assert kept_less < kept / 2


def test_reading_without_gradients_computes_layers_once() -> None:
    model = model_of("transformer_xl", recompute="layers").eval()
    calls: list[int] = []
    model.layers[0].register_forward_hook(lambda *_: calls.append(0))
    with torch.no_grad():
        model.log_probs(random_tokens(1, SEGMENT_LEN), model.empty_memory(1))
    assert len(calls) == 1
    model.nll(random_tokens(1, 4), random_tokens(1, 4) % V, model.empty_memory(1)).nll_BT.sum().backward()
    assert len(calls) == 2


RUN = ["model.dropout=0.2", "model.dropatt=0.2", "data.lane_chunks=2", "trainer.accumulate_grad_batches=2"]


@pytest.mark.slow
def test_a_run_is_the_same_run(tiny_run: Callable[..., Outcome]) -> None:
    plain, recomputed = (
        tiny_run(*RUN, "trainer.precision=bf16-mixed", f"model.recompute={what}", name=what)
        for what in ("none", "layers")
    )
    assert plain.values("train/loss")
    for name in ("train/loss", "train/grad_norm", "val/loss"):
        assert plain.values(name) == recomputed.values(name)


@pytest.mark.slow
def test_two_processes_recompute_the_same_run(text_file: Path, tmp_path: Path) -> None:
    plain, recomputed = (
        run_training(
            [
                *tiny_overrides(text_file, tmp_path),
                *RUN,
                "trainer.devices=2",
                f"model.recompute={what}",
                f"hydra.run.dir={tmp_path / what}",
            ],
            tmp_path,
        )
        for what in ("none", "layers")
    )
    assert (plain.status, recomputed.status) == (0, 0), recomputed.stderr
    assert plain.values("train/loss") == recomputed.values("train/loss")
