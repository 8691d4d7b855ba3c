"""The step lets the host run ahead of the device: nothing in it reads a number back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.conftest import Outcome
from tests.model.kinds import KINDS, model_of, one_reset
from tests.model.tiny import random_tokens
from transformer_xl.data.lanes import NOT_COUNTED
from transformer_xl.data.stream import Batch, with_copy
from transformer_xl.model import kernels
from transformer_xl.model.attention import plain_attention
from transformer_xl.training import module
from transformer_xl.training.module import LanguageModule, seed_generators
from transformer_xl.training.recorder import Recorder

Run = Callable[..., Outcome]
STEPS = 5
READS = {"tolist", "item", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__"}
OF_DATA = (
    "aten._local_scalar_dense",
    "aten.nonzero",
    "aten.masked_select",
    "aten._unique",
    "aten.unique",
    "aten.equal",
)


class Calls(TorchFunctionMode):
    """Notes each method by which Python reads a tensor."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in READS:
            self.found.append(name)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """Notes each operation whose result's shape, or which itself, needs a number of the device."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(operation)
        by_mask = name.startswith("aten.index") and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
            for index in (args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else [])
        )
        if name.startswith(OF_DATA) or by_mask:
            self.found.append(name)
        return operation(*args, **(kwargs or {}))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Give, for each step but the first, what read a number from its beginning to that of the next."""
    found: list[str] = []
    steps: list[list[str]] = []
    modes = (Calls(found), Operations(found))
    start, end = LanguageModule.on_train_batch_start, LanguageModule.on_train_end

    def on_train_batch_start(self: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx > 1:
            steps.append(list(found))
        found.clear()
        if batch_idx == 1:
            for mode in modes:
                mode.__enter__()
        start(self, batch, batch_idx)

    def on_train_end(self: Any) -> None:
        for mode in reversed(modes):
            mode.__exit__(None, None, None)
        end(self)

    def clip_without_a_look(parameters: Any, *, norm: Tensor, limit: float) -> None:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)

    monkeypatch.setattr(module, "clip_by_norm", clip_without_a_look)  # as on a device that is not the CPU
    monkeypatch.setattr(LanguageModule, "on_train_batch_start", on_train_batch_start)
    monkeypatch.setattr(LanguageModule, "on_train_end", on_train_end)
    return steps


# on a CPU blockwise attention reads the mask, for which nothing has to be waited
QUIETLY = [
    "model.attention=sdpa",
    "trainer.log_every_n_steps=100",
    "trainer.limit_val_batches=0",
    "trainer.limit_test_batches=0",
]


def test_no_step_waits(tiny_run: Run, waits: list[list[str]]) -> None:
    outcome = tiny_run(*QUIETLY, f"trainer.max_steps={STEPS}")
    assert outcome.status == 0
    assert waits == [[]] * (STEPS - 2)


def test_an_adaptive_softmax_does_not_wait_for_what_the_reader_knows(tiny_run: Run, waits: list[list[str]]) -> None:
    adaptive = ["data.tokenizer=char", "model.cutoffs=[20,40]", "model.div_val=2"]
    outcome = tiny_run(*QUIETLY, *adaptive, f"trainer.max_steps={STEPS}")
    assert outcome.status == 0
    assert waits == [[]] * (STEPS - 2)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_on_cuda_no_step_waits(tiny_run: Run, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """But for what is fetched at intervals and at the end."""
    start, flush = LanguageModule.on_train_batch_start, Recorder.flush

    def on_train_batch_start(self: Any, batch: Any, batch_idx: int) -> None:
        torch.cuda.set_sync_debug_mode("error" if batch_idx else "default")
        start(self, batch, batch_idx)

    def flush_waiting(self: Any, trainer: Any) -> None:
        torch.cuda.set_sync_debug_mode("default")
        flush(self, trainer)

    monkeypatch.setattr(LanguageModule, "on_train_batch_start", on_train_batch_start)
    monkeypatch.setattr(Recorder, "flush", flush_waiting)
    settings = [*QUIETLY, "trainer.accelerator=cuda", f"trainer.precision={precision}", f"trainer.max_steps={STEPS}"]
    assert tiny_run(*settings, "data.tokenizer=char", "model.cutoffs=[20,40]", "model.div_val=2").status == 0


@pytest.mark.parametrize("kind", KINDS)
def test_no_model_waits_for_what_the_reader_knows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the losses of a model that has to look itself."""
    monkeypatch.setitem(kernels.ATTENTION, "auto", plain_attention)  # as on a GPU
    attention = {"attention": "auto"} if kind == "transformer_xl" else {}
    model = model_of(kind, dropout=0.1, cutoffs=[10, 20], **attention).train()
    tokens_BT, resets_BT = random_tokens(2, 5), one_reset(2, 5, lane=1, place=2)
    targets_BT = random_tokens(2, 5, seed=3).index_fill(1, torch.tensor([4]), NOT_COUNTED)
    seed_generators(1, device=torch.device("cpu"))
    expected_BT = model.nll(tokens_BT, targets_BT, model.empty_memory(2), resets_BT).nll_BT
    for tensor in (targets_BT, resets_BT):
        with_copy(tensor, tensor.numpy().copy())
    seed_generators(1, device=torch.device("cpu"))
    found: list[str] = []
    with Calls(found), Operations(found):
        nll_BT, memory = model.nll(tokens_BT, targets_BT, model.empty_memory(2), resets_BT)
        nll_BT.sum().backward()
        model.nll(tokens_BT, targets_BT, memory)
    assert found == []
    assert torch.equal(nll_BT, expected_BT)


def test_a_part_of_a_batch_knows_its_part() -> None:
    tokens = with_copy(random_tokens(4, 6), random_tokens(4, 6).numpy())
    batch = Batch(tokens, tokens, random_tokens(4, 6), counted=24, step=1, micro=0, chunk=0, lengths=(2, 4))
    _, second = batch.cut(lanes=slice(1, 3)).segments()
    assert torch.equal(second.targets_BT, tokens[1:3, 2:])
    assert (second.targets_BT.on_host == tokens[1:3, 2:].numpy()).all()
    assert second.resets_BT.on_host is None
