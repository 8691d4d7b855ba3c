"""What runs on tensors that pretend to be on a CUDA device: they have shapes, types and a device, and no numbers.

So it shows, on a CPU build of PyTorch, tensors on the wrong device, types that do not go together, and where the host
would wait for the device: a number that it reads (data-dependent errors), a copy that is not asynchronous. It knows
nothing of values, of the kernels that a device would take, nor of several processes.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.loops import evaluation_loop, fit_loop
from lightning.pytorch.plugins import HalfPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import transformer_xl as txl
from tests.model.kinds import KINDS, RECURRENT, config_of
from tests.model.tiny import V
from transformer_xl.data.datamodule import LaneDataModule
from transformer_xl.data.lanes import Segments
from transformer_xl.data.recall import Task
from transformer_xl.data_config import RecallConfig
from transformer_xl.inference.generate import Session
from transformer_xl.inference_config import SamplingParams
from transformer_xl.model.base import Context, make_model
from transformer_xl.model.kernels.fused import missing
from transformer_xl.scores import Score
from transformer_xl.training.metrics import TokenLoss
from transformer_xl.training.module import LanguageModule

CUDA = torch.device("cuda", 0)
LANES, SEGMENT_LEN, STEPS = 4, 5, 2
ADAPTIVE = {"cutoffs": [16], "div_val": 2, "tie_projs": [False, True]}
ADAM = {
    **{"kind": "adam", "lr": 0.01, "weight_decay": 0.01, "decay_embeddings": False},
    **{"beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
}
LAMB = ADAM | {"kind": "lamb"}


class NoWaits(TorchDispatchMode):
    """Refuses copies between the host and a device that the host would wait for."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = operation(*args, **kwargs)
        if operation in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            source, asynchronous = args[operation is torch.ops.aten.copy_.default], kwargs.get("non_blocking")
            if source.device.type != result.device.type and not (asynchronous or args[2:3] == (True,)):
                raise AssertionError(f"the host waits for {operation}")
        return result


class Watched(Callback):
    """Watches training and validation but for their first batches, where metrics are made."""

    def __init__(self) -> None:
        self.seen = 0
        self._watch = ExitStack()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, *args: Any) -> None:
        if batch_idx:
            self.seen += 1
            self._watch.enter_context(NoWaits())

    def on_train_batch_end(self, *args: Any) -> None:
        self._watch.close()

    def on_validation_batch_start(self, *args: Any) -> None:
        self.on_train_batch_start(*args)

    def on_validation_batch_end(self, *args: Any) -> None:
        self._watch.close()

    def on_exception(self, *args: Any) -> None:
        self._watch.close()


class Device(CPUAccelerator):
    def setup_device(self, device: torch.device) -> None:
        pass


class OnDevice(SingleDeviceStrategy):
    """Leaves the model where it was made: no pretended tensor can take another's place."""

    def model_to_device(self) -> None:
        pass

    def teardown(self) -> None:
        pass


def made(kind: str, **changes: Any) -> Any:
    """Make a model on the device; with no default device around what follows, which would hide one that is missing."""
    with CUDA:
        return make_model(config_of(kind, n_layer=1, **changes), vocab_size=V)


def lanes(chunks: int, bptt_segments: int) -> LaneDataModule:
    lengths = {"batch_size": LANES, "segment_len": SEGMENT_LEN, "segment_len_sd": 0.0, "half_segments": 0.0}
    task = {"kind": "recall", "n_symbols": V, "block_len": 4, "train_tokens": 400, "eval_tokens": 100}
    config = RecallConfig(**lengths, **task, loss="full", lane_chunks=chunks)  # type: ignore[arg-type]
    task, shape = Task(config, seed=1), {"batch_size": LANES, "segment_len": SEGMENT_LEN}
    lane_len = task.lanes("train", **shape, evaluation=False).lane_len
    segments = Segments(lane_len=lane_len, segment_len=SEGMENT_LEN, bptt_segments=bptt_segments)
    return LaneDataModule(task, **shape, segments=segments, lane_chunks=chunks)


def train(
    kind: str,
    *,
    precision: str = "bf16-mixed",
    optimizer: dict[str, Any] = ADAM,
    accumulate: int = 1,
    chunks: int = 1,
    steps: int = STEPS,
    bptt_segments: int = 1,
    mistake: Callable[[Tensor], Tensor] | None = None,
    **changes: Any,
) -> None:
    """Train some steps and validate; `mistake` is done to embeddings."""
    torch.set_default_dtype(torch.bfloat16 if precision == "bf16-true" else torch.float32)
    model = made(kind, dropout=0.1, **(changes if kind in RECURRENT else {"dropatt": 0.1} | changes))
    torch.set_default_dtype(torch.float32)
    if mistake is not None:
        model.embedding.register_forward_hook(lambda module, args, output: mistake(output))
    watched, micro_batches = Watched(), accumulate * chunks
    trainer = Trainer(
        accelerator=Device(),
        strategy=OnDevice(device=CUDA),
        devices=1,
        precision=precision,  # type: ignore[arg-type]
        callbacks=[watched],
        gradient_clip_val=0.25,
        accumulate_grad_batches=micro_batches,
        max_steps=steps,
        val_check_interval=steps * micro_batches,
        limit_val_batches=2,
        num_sanity_val_steps=0,
        inference_mode=False,
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False),
    )
    with CUDA:
        module = LanguageModule(model, optimizer=optimizer, memory_gain_tokens=40)
    trainer.fit(module, lanes(chunks, bptt_segments))
    assert watched.seen == steps * micro_batches - 1 + 1


def read(kind: str, *, dtype: torch.dtype | None = None, **changes: Any) -> None:
    """Read pieces of text in a session, as evaluation and scoring do."""
    session = txl.stream(made(kind, **changes).eval(), batch_size=2, mem_len=4)
    with torch.autocast("cuda", dtype=dtype) if dtype else nullcontext(), NoWaits():
        for length in (5, 1, 3):
            tokens = torch.zeros(2, length, dtype=torch.int64, device=CUDA)
            assert session.log_probs(tokens).shape == (2, length, V)


def generate(kind: str, **how: Any) -> None:
    """Sample tokens; of each the host reads as many numbers as there are texts, and no more."""
    model = made(kind).eval()
    params = SamplingParams(n_tokens=4, **({"temperature": 1.0} | how))
    context = Context(segment_len=SEGMENT_LEN, mem_len=7, clamp_len=None, same_length=False)
    session = Session(model, context, params, seed=1, tokenizer=None, samples=(0, 1))
    with mock.patch.object(FakeTensor, "tolist", lambda tensor: [0] * len(tensor)) as tolist, NoWaits():
        assert len(list(session.continued([[3, 1, 4], [1, 5, 9]]))) == 4
    assert tolist is not None


def wrong_device(hidden: Tensor) -> Tensor:
    return hidden + torch.arange(hidden.shape[-1])


def number_read(hidden: Tensor) -> Tensor:
    return hidden * hidden.sum().item()


def copy_waited_for(hidden: Tensor) -> Tensor:
    return hidden + torch.ones(hidden.shape[-1]).to(hidden.device)


FILTERED = {"top_k": 9, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1}
FUSED: dict[str, Callable[[], None]] = {
    "train fused": partial(train, "transformer_xl", attention="fused", same_length=True),
    "train fused rotary": partial(train, "transformer_rope", attention="fused", recompute="layers"),
}
CASES: dict[str, Callable[[], None]] = {
    **{f"train {kind}": partial(train, kind) for kind in KINDS},
    "train sdpa": partial(train, "transformer_xl", attention="sdpa"),
    "train sdpa rotary": partial(train, "transformer_rope", attention="sdpa"),
    "train adaptive": partial(train, "transformer_xl", precision="32-true", bptt_segments=2, **ADAPTIVE),
    "train bf16-true": partial(train, "transformer_xl", precision="bf16-true", same_length=True),
    "train 16-mixed": partial(train, "transformer_xl", precision="16-mixed", clamp_len=3),
    "train lamb": partial(train, "transformer_xl", optimizer=LAMB, untie_r=True, pre_norm=True),
    "train in parts": partial(train, "transformer_xl", accumulate=2, chunks=2, steps=1, variational_dropout=True),
    **{f"read {kind}": partial(read, kind) for kind in ("transformer_xl", "shaw", "transformer_rope", "lstm")},
    "read sdpa in bfloat16": partial(read, "transformer_xl", dtype=torch.bfloat16, attention="sdpa", **ADAPTIVE),
    "generate": partial(generate, "transformer_xl", **FILTERED),
    "generate the likeliest": partial(generate, "lstm", temperature=0.0),
    "generate by windows": partial(generate, "vaswani"),
    **(FUSED if missing("cuda") is None else {}),
    "a tensor without a device": partial(train, "rnn", mistake=wrong_device),
    "a number that is read": partial(train, "rnn", mistake=number_read),
    "a copy that is waited for": partial(train, "rnn", mistake=copy_waited_for),
}


@contextmanager
def pretended() -> Iterator[None]:
    """Stand in for what a CPU build has no code for, and for the sums that an evaluation prints."""
    mode = FakeTensorMode(allow_non_fake_inputs=False)
    stream = mock.Mock()
    stand_ins: list[tuple[Any, str, Any]] = [
        (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        (torch.cuda, "is_bf16_supported", lambda including_emulation=True: True),
        (torch.cuda, "Stream", lambda device: stream),
        (torch.cuda, "stream", lambda stream: nullcontext()),
        (torch.cuda, "current_stream", lambda device: stream),
        (Tensor, "pin_memory", lambda tensor: tensor),
        (FakeTensor, "__deepcopy__", lambda tensor, memo: tensor.clone()),
        (FakeTensor, "numpy", lambda tensor: tensor.on_host),
        (Tensor, "record_stream", lambda tensor, stream: None),
        (Tensor, "exponential_", lambda tensor, generator: tensor),
        *((loop, "has_len_all_ranks", lambda *given: True) for loop in (fit_loop, evaluation_loop)),
        (HalfPrecision, "convert_module", lambda plugin, module: module),
        (TokenLoss, "compute", lambda loss: Score(1.0, 1)),
    ]
    with ExitStack() as stack:
        for owner, name, stand_in in stand_ins:
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        stack.enter_context(mode)
        yield


def outcome(case: Callable[[], None]) -> str:
    try:
        with pretended():
            case()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return ""


def gru_cell(input_gates: Tensor, hidden_gates: Tensor, state: Tensor, *biases: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(state), state.new_empty(len(state), 5 * state.shape[1])


def gru_cell_backward(grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor, ...]:
    gates, bias = grad.new_empty(len(grad), 3 * grad.shape[1]), grad.new_empty(3 * grad.shape[1])
    return gates, gates.clone(), torch.empty_like(grad), bias, bias.clone()


def main() -> None:
    """Print the outcome of each case: "", or what was raised."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    shapes = torch.library.Library("aten", "IMPL", "Meta")  # which PyTorch knows of other cells
    shapes.impl("_thnn_fused_gru_cell", gru_cell)
    shapes.impl("_thnn_fused_gru_cell_backward", gru_cell_backward)
    print(json.dumps({name: outcome(case) for name, case in CASES.items()}))
