"""`train.py plan=true`: what a run needs and how fast it can be, before it starts and without its device.

Tensors without data go through a training step. One of torch's modes lets them go the way of CUDA's: autocast, dropout,
attention. Another follows their storages and sums a roofline: an operation takes as long as its bytes or its products
do, whichever is longer, at the shares of a device's peaks that good kernels reach, and a launch. Nothing else is
counted, so that no run should be faster.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from transformer_xl.commands.call import put
from transformer_xl.commands.tables import print_table
from transformer_xl.config import Config, DeviceName
from transformer_xl.data.build import ready_corpus
from transformer_xl.data.corpora import published_counts
from transformer_xl.data.lanes import Dataset
from transformer_xl.data.stream import with_copy
from transformer_xl.data_config import PublishedConfig, StoredConfig
from transformer_xl.errors import UserError
from transformer_xl.model.base import LanguageModel, make_model
from transformer_xl.model.embedding import Clusters
from transformer_xl.model.memory import Memory
from transformer_xl.model_config import TransformerConfig
from transformer_xl.run_length import cluster_shares
from transformer_xl.settings import OptimizerConfig, parse, plain
from transformer_xl.training.optim import make_optimizer, parameter_groups

GIB = 2.0**30


class Device(NamedTuple):
    """A device by its data sheet."""

    memory: float  # bytes that PyTorch finds
    bandwidth: float  # of this memory, bytes per second
    half: float  # dense products in bfloat16 or float16, operations per second
    single: float  # the same in float32, without TF32
    link: float  # to the other devices of a machine, bytes per second: NVLink's or PCIe's (4.0 x16)


DEVICES: dict[DeviceName, Device] = {
    "a100-40gb": Device(39.4 * GIB, 1.555e12, 312e12, 19.5e12, 300e9),
    "a100-80gb": Device(79.2 * GIB, 2.039e12, 312e12, 19.5e12, 300e9),
    "h100": Device(79.2 * GIB, 3.35e12, 989e12, 67e12, 450e9),
    "h200": Device(139.8 * GIB, 4.8e12, 989e12, 67e12, 450e9),
    "l40s": Device(44.4 * GIB, 0.864e12, 362e12, 91.6e12, 32e9),
    "rtx4090": Device(23.5 * GIB, 1.008e12, 165e12, 82.6e12, 32e9),
}
"""NVIDIA's data sheets of these (SXM where there are several), and for the RTX 4090 its white paper on Ada."""
RESERVED = 1.5 * GIB
"""Of a device's memory: for CUDA itself, its libraries, and gaps between tensors."""
BANDWIDTH, HALF, SINGLE, LAUNCH = 0.8, 0.6, 0.8, 2e-6
"""Shares of a device's peaks that good kernels reach, and seconds to launch one."""

_RESTS_ON = f"""\
Times are a roofline's, nothing compiled: {BANDWIDTH:.0%} of the bandwidth or {HALF:.0%} of the peak of products,
{LAUNCH * 1e6:.0f} us a launch. Slower kernels, hosts and networks come on top, and validations."""
_TRUE = {"32-true": torch.float32, "bf16-true": torch.bfloat16, "16-true": torch.float16}
_MIXED = {"auto": torch.bfloat16, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""By `trainer.precision`: the type of weights, float32 where there is none, and that of products under autocast."""


# ---- a step without data


class _CudaWay(TorchFunctionMode):
    """Lets tensors without data go the way of CUDA's: autocast to `dtype`, and kernels that keep less."""

    lowered = frozenset({"linear", "matmul", "__matmul__", "einsum", "mm", "bmm", "addmm", "baddbmm", "conv1d"})
    raised = frozenset({"softmax", "log_softmax", "layer_norm", "rms_norm", "sum", "cumsum", "pow", "exp", "log"})
    # which autocast calls in half and in single precision (ATen/autocast_mode.h), as far as networks here call them

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self._dtype = dtype
        self.copies: dict[int, Tensor] | None = None  # of weights, which a forward pass keeps

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, function.__name__
        if function is functional.dropout:
            is_on = kwargs.get("training", True) and kwargs["p"] > 0
            return torch.native_dropout(args[0], kwargs["p"], True)[0] if is_on else args[0]
        if self._dtype is not None and (name in self.lowered or name in self.raised):
            args = self._cast(args, self._dtype if name in self.lowered else torch.float32)
        if function is functional.scaled_dot_product_attention:
            return self._efficient_attention(*args, **kwargs)
        return function(*args, **kwargs)

    def autocast(self, is_on: bool) -> None:
        """Begin or end a forward pass; for what the program asks torch itself of autocast, too."""
        self.copies = {} if is_on else None
        torch.set_autocast_dtype("cuda", self._dtype or torch.float32)
        torch.set_autocast_enabled("cuda", is_on and self._dtype is not None)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return [self._cast(one, dtype) for one in value]
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == dtype:
            return value
        if self.copies is None or not (value.is_leaf and value.requires_grad):
            return value.to(dtype)
        if id(value) not in self.copies:
            self.copies[id(value)] = value.to(dtype)
        return self.copies[id(value)]

    def _efficient_attention(self, *operands: Tensor, attn_mask: Tensor, dropout_p: float, scale: float) -> Tensor:
        """Attend by the kernel that takes an additive bias which has a gradient."""
        query, key, value = (self._cast(operand, self._dtype or operand.dtype) for operand in operands)
        bias = torch.where(attn_mask, 0.0, -torch.inf) if attn_mask.dtype == torch.bool else attn_mask
        bias = bias.to(query.dtype).expand(*query.shape[:3], key.shape[2])
        attend = torch.ops.aten._scaled_dot_product_efficient_attention
        attended: Tensor = attend(query, key, value, bias, True, dropout_p, False, scale=scale)[0]
        return attended


class _Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows which storages live, and sums what operations read, write and multiply, and the time it takes."""

    allocates = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
    overwrites = frozenset({"copy_", "zero_", "fill_", "bernoulli_", "normal_"})
    picks = frozenset({"embedding", "gather", "index", "index_select", "scatter_add_", "index_copy"})  # some rows
    copies = frozenset({"logsumexp"})  # CUDA's writes all exponentials, and reads them again

    def __init__(self, device: Device, given: Iterable[Tensor], *, tf32: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device, self._live, self._size = device, dict[int, int](), 0
        self._single = device.half / 2 * HALF if tf32 else device.single * SINGLE
        self.counts: NDArray[np.float64] = np.zeros(3)  # operations of products, bytes, seconds
        self.gradients = dict[int, int]()  # bytes, by weight
        self.peak, self.gradients_at_peak = 0, 0
        for tensor in given:
            self._see(tensor)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result, name, target = function(*args, **kwargs), function.overloadpacket.__name__, kwargs.get("out")
        outputs, inputs = list(_tensors(result)), [one for one in _tensors((args, kwargs)) if one is not target]
        is_new = sum(map(self._see, outputs)) > 0
        if name in self.allocates or not outputs or not (is_new or name.endswith("_") or target is not None):
            return result  # a view of what is there
        if name in self.picks:
            moved = sum(map(_size, inputs[1:])) + 2 * min(map(_size, [*inputs, *outputs]))
        else:
            moved = sum(map(_size, inputs[name in self.overwrites :])) + sum(map(_size, outputs))
        if name in self.copies:
            moved += 2 * _size(inputs[0])
            self._note(self._size + _size(inputs[0]))
        count = flop_registry.get(function.overloadpacket)
        products = count(*args, **kwargs, out_val=result) if count else 0
        is_half = bool(inputs) and inputs[0].dtype in (torch.bfloat16, torch.float16)
        self.add(moved, products, self._device.half * HALF if is_half else self._single)
        return result

    def add(self, moved: float, products: float = 0.0, rate: float = 1.0) -> None:
        """Count a kernel that moves so many bytes, and does so many operations at this rate."""
        seconds = max(moved / (self._device.bandwidth * BANDWIDTH), products / rate) + LAUNCH
        self.counts = self.counts + np.array([products, moved, seconds])

    def _see(self, tensor: Tensor) -> bool:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, -(-storage.nbytes() // 512) * 512  # as CUDA's allocator rounds
        if key in self._live:
            return False
        self._live[key] = size
        self._size += size
        weakref.finalize(storage, self._forget, key)
        self._note(self._size)
        return True

    def _note(self, size: int) -> None:
        if size > self.peak:
            self.peak, self.gradients_at_peak = size, sum(self.gradients.values())

    def _forget(self, key: int) -> None:
        self._size -= self._live.pop(key)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield from (value,) if value.is_meta else ()
    elif isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)


def _size(tensor: Tensor) -> int:
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())  # what is expanded is read once


class Need(NamedTuple):
    """What a device needs for a step: bytes at the peak, in parts, and what it does at least."""

    parameters: int
    weights: float
    gradients: float
    optimizer: float
    memory: float  # the model's own, of all lanes
    activations: float  # and whatever else lives at the peak
    operations: float  # of products
    moved: float  # bytes read and written
    seconds: float

    @property
    def peak(self) -> float:
        """Bytes in all."""
        return sum(self[1:6])


def measure(config: Config, device: Device, *, vocab_size: int, devices: int, shares: Sequence[float]) -> Need:
    """Follow a training step, once memory is full, on one of so many devices; `shares`: of each cluster of tokens."""
    data, trainer = config.data, config.trainer
    dtype, lowered = _TRUE.get(str(trainer.precision), torch.float32), _MIXED.get(str(trainer.precision))
    with torch.device("meta"):
        model = make_model(config.model, vocab_size=vocab_size).to(dtype).train()
        memory = model.zero_memory(-(-data.batch_size // (devices * data.lane_chunks)))
        tokens = _tokens(memory.batch_size, data.segment_len, model.clusters.edges, shares)
    optimizer, weights, way = _optimizer(config.optimizer, model), list(model.parameters()), _CudaWay(lowered)

    def read(memory: Memory) -> tuple[Tensor, Memory]:
        minimized: list[Tensor] = []
        way.autocast(True)
        for _ in range(data.bptt_segments):
            losses, auxiliary = model.training_losses(tokens, tokens, memory, detach=data.bptt_segments == 1)
            minimized += [losses.nll_BT.sum()] if auxiliary is None else [losses.nll_BT.sum(), auxiliary]
            memory = losses.memory
        way.autocast(False)
        return torch.stack(minimized).sum(), memory.detach()

    with torch.no_grad(), way:
        memory = read(memory)[1]  # in the type in which it is kept
    given = weights, list(_tensors(list(optimizer.state.values()))), list(_tensors(memory.state_dict()))
    of_weights, of_state, of_memory = (sum(map(_size, some)) for some in given)
    meter = _Meter(device, itertools.chain(*given), tf32=trainer.tf32)
    for weight in weights:
        weight.register_post_accumulate_grad_hook(lambda one: meter.gradients.update({id(one): one.nbytes}))  # type: ignore[no-untyped-call]
    for layer in model.get_submodule("layers").children():  # which backward may make again: no mode is on then
        layer.register_forward_pre_hook(lambda *_: way.__enter__() and None)  # type: ignore[no-untyped-call]
        layer.register_forward_hook(lambda *_: way.__exit__(None, None, None), always_call=True)  # type: ignore[no-untyped-call]
    del given  # of which memory shall not live on
    batches, counts = data.lane_chunks * trainer.accumulate_grad_batches, [meter.counts]
    with way, meter:
        for _ in range(min(2, batches)):  # all further ones are like the second
            loss, memory = read(memory)
            torch.autograd.backward(loss)
            counts.append(meter.counts)
        of_gradients = sum(meter.gradients.values())
        meter.add(of_gradients * (1 if trainer.gradient_clip_val is None else 3))  # their norm, and clipping
        is_fused = "fused" in optimizer.defaults
        meter.add(of_gradients + 2 * (of_weights + of_state)) if is_fused else optimizer.step(lambda: 0.0)
    operations, moved, seconds = meter.counts + (batches - len(counts) + 1) * (counts[-1] - counts[-2])
    in_blocks = of_gradients if devices > 1 else 0  # that processes exchange, all the time
    is_twice = devices == 1 or not trainer.ddp.gradient_as_bucket_view
    exchanged = 2 * (devices - 1) / devices * of_gradients / (1 + trainer.ddp.bf16_gradients)  # there and back
    return Need(
        parameters=sum(weight.numel() for weight in weights),
        weights=of_weights,
        gradients=in_blocks + is_twice * meter.gradients_at_peak,
        optimizer=of_state + of_weights * (config.callbacks.weight_average.start_step is not None),
        memory=of_memory * data.lane_chunks,
        activations=meter.peak - of_weights - of_state - of_memory - meter.gradients_at_peak,
        operations=float(operations),
        moved=float(moved),
        seconds=max(float(seconds), exchanged / device.link),
    )


def _tokens(lanes: int, length: int, edges: Sequence[int], shares: Sequence[float]) -> Tensor:
    counts = np.diff(np.round(np.cumsum([0.0, *shares]) * lanes * length).astype(int))
    array = np.repeat(edges[:-1], counts).reshape(lanes, length)
    return with_copy(torch.zeros(lanes, length, dtype=torch.int64), array)


def _optimizer(settings: OptimizerConfig, model: LanguageModel) -> torch.optim.Optimizer:
    groups = parameter_groups(model, weight_decay=settings.weight_decay, decay_embeddings=settings.decay_embeddings)
    optimizer = make_optimizer(settings, groups, fused=False)
    for weight in model.parameters():
        weight.grad = torch.empty_like(weight)
    optimizer.step(lambda: 0.0)
    optimizer.zero_grad()
    return optimizer


# ---- what a person reads


def known_text(config: Config) -> tuple[int, int | None, str, list[float]]:
    """Return symbols, tokens of training (None: unknown), who says so, and clusters' shares; nothing is built."""
    data, known = config.data, dict[str, int]()
    corpus: Dataset | None = None
    vocab_size = config.plan and config.plan.vocab_size
    if not isinstance(data, StoredConfig):
        from transformer_xl.build import open_data  # the import of Lightning takes seconds

        corpus = open_data(config, announce=print)
    elif vocab_size is None:
        corpus = ready_corpus(data, seed=config.seed)
    if corpus is not None:
        known = corpus.counts() | {"vocabulary": corpus.vocabulary.size}
    elif isinstance(data, PublishedConfig):
        known = dict(published_counts(data))
    size = vocab_size or known.get("vocabulary") or getattr(data, "vocab_size", None)
    if size is None:
        told = "give the number of symbols, or build the token files by txl-data prepare"
        raise UserError(f"plan.vocab_size is null, and data={data.kind} is not built yet: {told}")
    edges = Clusters(config.model, vocab_size=size).edges
    zipf = np.add.reduceat(1 / np.arange(1, size + 1), edges[:-1])
    shares = cluster_shares(corpus, edges) if corpus is not None else (zipf / zipf.sum()).tolist()
    return size, known.get("train"), "as built" if corpus else "given" if vocab_size else "as published", shares


def _device(name: DeviceName | None) -> tuple[str, Device]:
    found = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    for own in DEVICES if name is None else [name]:
        if own == name or all(part in found.lower().replace(" ", "") for part in own.split("-")):
            return own, DEVICES[own]
    raise UserError(f"plan.device is null, and this machine has {found}: name one of {', '.join(DEVICES)}")


def _number_of_devices(config: Config) -> int:
    asked, data, precision = config.trainer.devices, config.data, config.trainer.precision
    count = len(asked) if isinstance(asked, list) else int(asked) if str(asked).isdigit() else 0
    devices = (count or max(1, torch.cuda.device_count())) * config.trainer.num_nodes
    if data.batch_size < devices * data.lane_chunks:
        least = f"{devices * data.lane_chunks}, for {devices} devices and data.lane_chunks {data.lane_chunks}"
        raise UserError(f"data.batch_size is {data.batch_size}, and must be at least {least}")
    if precision not in {**_TRUE, **_MIXED}:
        raise UserError(f"trainer.precision is {precision!r}, and a plan knows {', '.join([*_TRUE, *_MIXED])}")
    if getattr(config.model, "attention", None) == "blockwise":
        raise UserError("model.attention is 'blockwise', which is for CPUs, and a plan is for GPUs: use auto")
    return devices


def print_plan(config: Config, *, label: str) -> None:
    """Print what a run, of a model called `label`, needs and how fast it can be; a UserError where that is unknown."""
    data, trainer, devices = config.data, config.trainer, _number_of_devices(config)
    name, device = _device(config.plan.device if config.plan else None)
    symbols, epoch, known, shares = known_text(config)
    tokens = data.batch_size * data.segment_len * data.bptt_segments * trainer.accumulate_grad_batches
    ends = [trainer.max_steps] if trainer.max_steps >= 0 else []
    if (trainer.max_epochs or -1) > 0 and epoch:
        ends.append(math.ceil((trainer.max_epochs or 0) * epoch / tokens))
    if not ends:
        raise UserError("trainer.max_steps is -1, and must be given: how many tokens an epoch has is not known")
    measured = partial(measure, device=device, vocab_size=symbols, devices=devices, shares=shares)
    need, steps, kept, room = measured(config), min(ends), config.callbacks.checkpoint, device.memory - RESERVED
    checkpoint = (need.weights + need.optimizer + need.memory * devices * kept.save_memory) / 1e9
    lines = {
        "model": f"{label}, {need.parameters:,} parameters",
        "data": f"{data.kind}, {symbols:,} symbols ({known})",
        "batch": f"{data.batch_size} lanes x {data.segment_len} tokens, precision {trainer.precision}".replace(
            "auto", "bf16-mixed"
        ),
        "run": f"{steps:,} steps, {tokens * steps:,} tokens"
        + (f", {tokens * steps / epoch:,.2f} epochs" if epoch else ""),
        "device": f"{devices} x {name}, {device.half / 1e12:.0f} TFLOP/s, {device.bandwidth / 1e12:.2f} TB/s",
        "step": f"{need.operations / 1e12:,.1f} TFLOP, {need.moved / 1e9:,.0f} GB read and written on each device",
        "time": f"at least {1000 * need.seconds:,.1f} ms a step, {need.seconds * steps / 3600:,.1f} hours in all",
        "speed": f"at most {tokens / need.seconds:,.0f} tokens per second",
        "disk": f"{checkpoint:,.2f} GB a checkpoint, {(kept.keep + 2) * checkpoint:,.2f} GB for all that are kept",
    }
    print(*(f"{key:8} {line}" for key, line in lines.items()), sep="\n")
    rows = {part: getattr(need, part) for part in ("weights", "gradients", "optimizer", "memory", "activations")}
    rows |= {"together": need.peak, f"{name}, less {RESERVED / GIB} for CUDA": room}
    print_table(["of a device", "GiB"], [[part, f"{size / GIB:.2f}"] for part, size in rows.items()], boxed=True)
    if need.peak > room:
        print("That does not fit. What makes it fit, if anything, the fastest first:")
        found = _remedies(config, need, room, measured, lanes=data.batch_size // devices)
        fitting = sorted((one.seconds, words, f"{one.peak / GIB:.2f}") for words, one in found)
        table = [[words, peak, f"{tokens / seconds:,.0f}"] for seconds, words, peak in fitting]
        print_table(["settings", "GiB", "tokens/s at most"], table, boxed=True)
    print(_RESTS_ON)


def _remedies(
    config: Config, own: Need, room: float, measured: Callable[[Config], Need], *, lanes: int
) -> Iterator[tuple[str, Need]]:
    """Yield settings with which a step fits into `room` bytes, each with as few chunks of lanes as that takes."""
    options: list[list[dict[str, Any]]] = [[{}]]
    if config.trainer.precision == "32-true":
        options.append([{}, {"trainer.precision": "bf16-mixed"}])
    if isinstance(config.model, TransformerConfig):
        options += [[{}, {"model.attention": "sdpa"}], [{}, {"model.recompute": "layers"}]]
    for some in itertools.product(*options):
        changes, chunks = dict(itertools.chain(*map(dict.items, some))), config.data.lane_chunks
        while True:
            values = plain(config)
            for key, value in changes.items():
                put(values, key, value)
            try:
                need = measured(parse(Config, values)) if changes else own
            except UserError:  # the network has no such kernel
                break
            free = room - need.peak + need.activations
            if need.activations <= free:
                yield " ".join(f"{key}={value}" for key, value in changes.items()), need
            if need.activations <= free or chunks == lanes or free <= 0:
                break
            chunks = min(lanes, chunks * 2 ** max(1, math.ceil(math.log2(need.activations / free))))
            changes["data.lane_chunks"] = chunks
