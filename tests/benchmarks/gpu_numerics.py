"""Every attention against the plain one in float64, and compiled layers against those that are not.

Letters: B lanes, T queries, M memory, S = M + T keys, N heads, H head width.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.benchmarks.gpu_works import Setting, random_ids
from transformer_xl.model.attention import AttentionMask, Distances, attention_mask, plain_attention
from transformer_xl.model.base import make_model
from transformer_xl.model.compiled import compiled_losses
from transformer_xl.model.kernels import ATTENTION
from transformer_xl.model.kernels.fused import missing
from transformer_xl.model.transformer import Transformer
from transformer_xl.settings import replace

LANES = 2
WORST = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""The largest error that is never wrong; otherwise four times the plain one's in the same type. A key too many among
hundreds makes errors of some 5e-2. Plain itself may have up to ten times as much."""
ENOUGH_OUTPUTS = 3000
"""Outputs under dropout, by which a mean is known."""
PRESETS = ("txl_base_nvidia", "txl_char_base", "txl_base")
CASES = ("causal", "lengths and resets", "same_length")
APART_SECONDS = 120
Attentions = Mapping[str, Callable[..., Tensor]]


def own_attentions(*, compiled: bool = False) -> dict[str, Callable[..., Tensor]]:
    """Return the implementations: `auto` is one of the others, blockwise cannot be compiled, fused is for a GPU."""
    left_out = {"auto", "blockwise"} if compiled else {"auto"}
    if not torch.cuda.is_available() or missing("cuda"):
        left_out.add("fused")
    return {name: attend for name, attend in ATTENTION.items() if name not in left_out}


def failed(error: Exception) -> str:
    """Return a row's note of what went wrong."""
    reason = str(error).partition("\n")[0]
    return f"failed: {type(error).__name__}: {reason}"


class Found(NamedTuple):
    """What an attention gave: outputs, and the gradients of all that it was given."""

    output: Tensor
    gradients: list[Tensor]


class Kernels(TorchDispatchMode):
    """Notes by which of torch's attention kernels something was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(operation)
        if "scaled_dot_product" in name and "backward" not in name:
            self.names.add(name.removeprefix("aten._scaled_dot_product_").partition(".")[0])
        return operation(*args, **(kwargs or {}))


def check_attentions(setting: Setting, attentions: Attentions) -> list[dict[str, Any]]:
    """Compare attentions at real sizes, forward and backward.

    Returns:
        For each attention and type its largest errors; `ok` says whether all were right, `at` where the worst was.
    """
    worst: dict[tuple[str, str], dict[str, Any]] = {}
    for found in _compared(setting, attentions):
        kept = worst.setdefault((found["attention"], found["type"]), found)
        if (found["ok"], -found["gradient error"]) < (kept["ok"], -kept["gradient error"]):
            worst[found["attention"], found["type"]] = found
    return list(worst.values())


def check_apart(name: str) -> list[dict[str, Any]]:
    """Compare an attention whose kernels are our own in a process of its own: what they break breaks nothing here."""
    command = [sys.executable, "-m", "tests.benchmarks.gpu_numerics", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=APART_SECONDS)
        found: list[dict[str, Any]] = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        return [{"attention": name, "ok": False, "note": f"failed: {(said.splitlines() or [str(error)])[-1]}"}]
    return found


def _compared(setting: Setting, attentions: Attentions) -> Iterator[dict[str, Any]]:
    for preset in PRESETS:
        for case in CASES:
            for dtype in WORST:
                inputs, mask = _inputs(setting, preset, case, dtype)
                exact = {name: tensor.detach().double() for name, tensor in inputs.items()}
                expected = _run(plain_attention, exact, mask)
                plain = _errors(_run(plain_attention, inputs, mask), expected)
                for name, attend in attentions.items():
                    errors, failure = (math.inf, math.inf), None
                    with Kernels() as kernels:
                        try:
                            errors = _errors(_run(attend, inputs, mask), expected)
                        except Exception as error:  # what one cannot do must not cost the others
                            failure = failed(error)
                    allowed = [max(WORST[dtype], 4 * error) for error in plain]
                    if name == "plain":
                        allowed = [10 * WORST[dtype]] * 2
                    yield {
                        "attention": name,
                        "type": str(dtype).removeprefix("torch."),
                        "kernel": ", ".join(sorted(kernels.names)) or "-",
                        "output error": errors[0],
                        "gradient error": errors[1],
                        "ok": all(error <= most for error, most in zip(errors, allowed, strict=True)),
                        "at": f"{preset}, {case}",
                        "note": failure,
                    }


def check_dropout(setting: Setting, attentions: Attentions) -> Iterator[dict[str, Any]]:
    """Drop weights: with values of one an output is the sum of what was kept, 1 in the mean, and never just 1."""
    inputs, mask = _inputs(setting, "txl_base_nvidia", "causal", torch.float32)
    inputs["value_BSNH"] = torch.ones_like(inputs["value_BSNH"])
    for name, attend in attentions.items():
        torch.manual_seed(0)
        outputs = inputs["query_BTNH"][..., 0].numel()
        repeats = -(-ENOUGH_OUTPUTS // outputs)
        kept = torch.stack([_attended(attend, inputs, mask, dropout=0.1)[..., 0] for _ in range(repeats)])
        mean, spread = float(kept.mean()), float(kept.std())
        ok = abs(mean - 1) < 6 * spread / kept.numel() ** 0.5 and spread > 1e-3
        yield {"attention": name, "mean of kept weights": mean, "spread": spread, "ok": ok}


def check_compiled(setting: Setting, attentions: Attentions) -> Iterator[dict[str, Any]]:
    """Train two layers for some segments with growing memory, compiled and not."""
    segment_len = setting.recipe("txl_base_nvidia")["segment_len"]
    for name in attentions:
        try:
            yield _compiled(setting, name, segment_len=segment_len)
        except Exception as error:
            yield {"compiled, attention": name, "ok": False, "note": failed(error)}


def _compiled(setting: Setting, name: str, *, segment_len: int) -> dict[str, Any]:
    config = setting.model_config("txl_base_nvidia", attention=name)
    config = replace(config, n_layer=2, dropout=0.0)
    losses = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = make_model(config, vocab_size=setting.vocab_size("txl_base_nvidia")).to(setting.device).train()
        assert isinstance(model, Transformer)
        read = model.training_losses
        if compiles:
            torch._dynamo.reset()  # else the graphs of several models count as one's
            read = compiled_losses(model, segment_len=segment_len, backend=setting.backend)
        losses.append(_losses(setting, model, read, segment_len=segment_len))
    error = max(abs(left - right) / left for left, right in zip(*losses, strict=True))
    return {"compiled, attention": name, "loss": losses[1][-1], "error": error, "ok": error < 1e-4}


def _losses(setting: Setting, model: Transformer, read: Any, *, segment_len: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = model.empty_memory(LANES)
    found = []
    for step in range(3):
        ids = random_ids((LANES, segment_len + 1), vocab_size=model.vocab_size, seed=step).to(setting.device)
        losses, _ = read(ids[:, :-1], ids[:, 1:], memory, torch.zeros_like(ids[:, 1:], dtype=torch.bool))
        memory = losses.memory
        loss = losses.nll_BT.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def _inputs(setting: Setting, preset: str, case: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], AttentionMask]:
    config = setting.model_config(preset, attention="plain")
    queries, memory = setting.recipe(preset)["segment_len"], config.mem_len
    heads, width = config.n_head, config.d_head
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "query_BTNH": (LANES, queries, heads, width),
        "key_BSNH": (LANES, memory + queries, heads, width),
        "value_BSNH": (LANES, memory + queries, heads, width),
        "position_RNH": (memory + queries + 1, heads, width),
        "content_bias_NH": (heads, width),
        "position_bias_NH": (heads, width),
    }
    inputs = {name: torch.randn(shape, generator=generator).to(setting.device, dtype) for name, shape in shapes.items()}
    lengths = [memory, memory // 3] if case == "lengths and resets" else [memory] * LANES
    resets_BT = torch.zeros(LANES, queries, dtype=torch.bool)
    resets_BT[1, queries // 2] = case == "lengths and resets"
    mask = attention_mask(
        length_B=torch.tensor(lengths, device=setting.device),
        slots=memory,
        segment_len=queries,
        mem_len=memory,
        same_length=case == "same_length",
        resets_BT=resets_BT.to(setting.device),
    )
    return inputs, mask


def _run(attend: Any, inputs: dict[str, Tensor], mask: AttentionMask) -> Found:
    given = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    output = _attended(attend, given, mask, dropout=0.0)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    return Found(output.detach(), list(torch.autograd.grad((output * upstream).sum(), list(given.values()))))


def _attended(attend: Any, inputs: dict[str, Tensor], mask: AttentionMask, *, dropout: float) -> Tensor:
    query_BTNH, key_BSNH, value_BSNH, *distances = inputs.values()
    output_BTNH: Tensor = attend(query_BTNH, key_BSNH, value_BSNH, Distances(*distances), mask=mask, dropout=dropout)
    return output_BTNH


def _errors(found: Found, expected: Found) -> tuple[float, float]:
    """Return the error of the output and the largest of a gradient, as shares of their norms."""
    gradients = zip(found.gradients, expected.gradients, strict=True)
    return _error(found.output, expected.output), max(_error(*pair) for pair in gradients)


def _error(found: Tensor, expected: Tensor) -> float:
    share = float((found.double() - expected).norm() / expected.norm())
    return share if share == share else float("inf")  # NaN is no error to be below


if __name__ == "__main__":
    chosen = {name: ATTENTION[name] for name in sys.argv[1:]}
    here = Setting(device=torch.device("cuda"), toy=False, backend="inductor")
    print(json.dumps([*check_attentions(here, chosen), *check_dropout(here, chosen)]))
