"""Check and time this package on one GPU: `python -m tests.benchmarks.gpu --out FOLDER`, with `src` on PYTHONPATH."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.benchmarks import gpu_works as works
from tests.benchmarks.gpu_numerics import (
    check_apart,
    check_attentions,
    check_compiled,
    check_dropout,
    failed,
    own_attentions,
)
from tests.benchmarks.gpu_timing import free, matrix_peak, time_steps
from tests.benchmarks.gpu_works import Setting

ABOUT = """\
Checks every attention against the plain one in float64, then times training (bfloat16 autocast, fused Adam, clip 0.25,
ids drawn by Zipf's law; NVIDIA's recipe has LAMB, which costs about as much), evaluation at the paper's lengths, and
generation one token at a time. Needs torch, PyYAML and src on PYTHONPATH; ends within eight minutes. Writes gpu.md and
gpu.json into --out after every row. mfu: useful operations over those of a bfloat16 matrix product timed here. Exit
status 1: something is wrong or failed.
"""
BUDGET = {"numerics": 45, "training wt103": 165, "training enwik8": 75, "evaluation": 45, "generation": 45}
"""Seconds of each part. What one leaves over goes to the next; a row that has begun is ended."""
LANES = {"txl_base_nvidia": (256, 64), "txl_char_base": (88, 22)}
EVALUATED_LANES = (1, 32)

Values = dict[str, Any]
Row = tuple[Values, Callable[[], Values]]
"""What a row is about, and what measures it."""


@dataclass(kw_only=True)
class Bench:
    """One call.

    Attributes:
        setting: device and sizes.
        compiles: whether rows with `torch.compile` are among them.
        folder: of the files that are written.
        about: the machine, in words; `peak` is of a bfloat16 matrix product.
        parts: rows of each part.
        broken: attentions whose kernels failed, and are not tried again: they may break what comes after them.
    """

    setting: Setting
    compiles: bool
    folder: Path
    about: Values
    parts: dict[str, list[Values]] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)

    def attentions(self, *, compiled: bool = False) -> dict[str, Callable[..., Tensor]]:
        """Return the implementations that are checked and timed."""
        return {name: attend for name, attend in own_attentions(compiled=compiled).items() if name not in self.broken}

    def timed(self, step: Callable[[], object], *, tokens: int, flops: int | None = None) -> Values:
        """Time a step, and return its row's figures."""
        seconds, most = (0.0, 3) if self.setting.toy else (1.5, 50)
        taken = time_steps(step, device=self.setting.device, warmup=4, seconds=seconds, most=most)
        rate = 1000 / taken["ms"]
        mfu = None if flops is None else flops * rate / (self.about["peak TFLOP/s"] * 1e12)
        return {"tokens/s": tokens * rate, "mfu": mfu, **taken}

    def add(self, part: str, values: Values) -> None:
        """Print a row, and write both files anew."""
        if part not in self.parts:
            print(f"\n{part}", flush=True)
        self.parts.setdefault(part, []).append(values)
        print("  " + in_words(values, "  "), flush=True)
        (self.folder / "gpu.json").write_text(json.dumps({"about": self.about, "parts": self.parts}, indent=1))
        lines = [in_words(self.about, "; ")]
        for name, rows in self.parts.items():
            columns = list(dict.fromkeys(column for row in rows for column in row))
            lines += ["", f"**{name}**", "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
            lines += [f"| {' | '.join(shown(row.get(column)) for column in columns)} |" for row in rows]
        (self.folder / "gpu.md").write_text("\n".join(lines) + "\n")


def in_words(values: Values, between: str) -> str:
    return between.join(f"{name} {shown(value)}" for name, value in values.items() if value is not None)


def shown(value: object) -> str:
    """Return a value with as many digits as mean something."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def training(bench: Bench, preset: str) -> Iterator[Row]:
    """Iterate over training's rows, the most telling first."""
    setting = bench.setting

    def run(attention: str, lanes: int, compiles: bool) -> Values:
        if compiles:
            torch._dynamo.reset()  # else the graphs of several rows count as one's
        model = setting.make_model(preset, attention=attention)
        steps = works.training(setting, model, preset=preset, lanes=lanes, compiles=compiles)
        lengths = {"batch_size": lanes, "segment_len": setting.recipe(preset)["segment_len"]}
        flops = model.flops(**lengths, cluster_shares=works.cluster_shares(model)).step
        return bench.timed(steps, tokens=steps.tokens, flops=flops)

    for lanes in (2,) if setting.toy else LANES[preset]:
        for compiles in (False, True) if bench.compiles else (False,):
            for attention in bench.attentions(compiled=compiles):
                labels = {"lanes": lanes, "attention": attention, "compiled": compiles}
                yield labels, lambda a=attention, b=lanes, c=compiles: run(a, b, c)


def evaluation(bench: Bench) -> Iterator[Row]:
    """Iterate over the rows of evaluation."""

    def run(preset: str, attention: str, lanes: int) -> Values:
        model = bench.setting.make_model(preset, attention=attention)
        step, tokens = works.evaluation(bench.setting, model, preset=preset, lanes=lanes)
        return bench.timed(step, tokens=tokens)

    for lanes in (2,) if bench.setting.toy else EVALUATED_LANES:
        for preset in ("txl_char_base", "txl_base_nvidia"):
            for attention in bench.attentions():
                labels = {"model": preset, "lanes": lanes, "attention": attention}
                yield labels, lambda p=preset, a=attention, b=lanes: run(p, a, b)


def generation(bench: Bench) -> Iterator[Row]:
    """Iterate over the rows of generation."""

    def run(preset: str, attention: str, dtype: torch.dtype) -> Values:
        model = bench.setting.make_model(preset, attention=attention).to(dtype)
        return bench.timed(works.generation(bench.setting, model, preset=preset), tokens=1)

    for preset in ("txl_char_base", "txl_base_nvidia"):
        for dtype in (torch.bfloat16, torch.float32):
            for attention in bench.attentions():
                labels = {"model": preset, "weights": str(dtype).removeprefix("torch."), "attention": attention}
                yield labels, lambda p=preset, a=attention, t=dtype: run(p, a, t)


def check(bench: Bench) -> bool:
    """Check the numbers; return whether all are right."""
    setting, names = bench.setting, bench.attentions()
    found = []
    if "fused" in names and not setting.toy:
        found += check_apart("fused")
        if any(values.get("note") for values in found):
            bench.broken.add("fused")
        del names["fused"]
    found += [*check_attentions(setting, names), *check_dropout(setting, names)]
    if bench.compiles:
        found += check_compiled(setting, bench.attentions(compiled=True))
    for values in found:
        bench.add("numerics", values)
    return all(values["ok"] for values in found)


def run_rows(bench: Bench, part: str, rows: Iterator[Row], *, deadline: float) -> bool:
    """Run rows until the deadline; return whether none failed."""
    all_ran = True
    for labels, run in rows:
        if time.monotonic() > deadline:
            bench.add(part, {**labels, "note": "no time left"})
            continue
        free(bench.setting.device)
        try:
            bench.add(part, {**labels, **run()})
        except torch.OutOfMemoryError:
            bench.add(part, {**labels, "note": "out of memory"})
        except Exception as error:  # what one row cannot do must not cost the rows after it
            all_ran = False
            bench.add(part, {**labels, "note": failed(error)})
    return all_ran


def main(arguments: list[str] | None = None) -> int:
    """Run the parts that are asked for, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gpu", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/benchmarks/gpu"), help="folder (%(default)s)")
    parser.add_argument("--parts", default=",".join(BUDGET), help="which, between commas (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="of all time budgets (%(default)s)")
    parser.add_argument("--toy", action="store_true", help="tiny sizes on a CPU, to see that it runs")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    given = parser.parse_args(arguments)
    parts = given.parts.split(",")
    if set(parts) - set(BUDGET):
        parser.error(f"--parts is {given.parts}, and may name {', '.join(BUDGET)}")
    if not given.toy and not torch.cuda.is_available():
        parser.error("there is no CUDA device that PyTorch sees: only --toy runs here")

    device = torch.device("cpu" if given.toy else "cuda")
    about = {
        "device": "CPU" if given.toy else torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", "-m", "tests.benchmarks.gpu", *(arguments or sys.argv[1:])]),
        "peak TFLOP/s": matrix_peak(device, size=64 if given.toy else 8192) / 1e12,
    }
    print(in_words(about, "; "), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    setting = Setting(device=device, toy=given.toy, backend="eager" if given.toy else "inductor")
    bench = Bench(setting=setting, compiles=not given.no_compile, folder=given.out, about=about)
    rows = {
        "training wt103": lambda: training(bench, "txl_base_nvidia"),
        "training enwik8": lambda: training(bench, "txl_char_base"),
        "evaluation": lambda: evaluation(bench),
        "generation": lambda: generation(bench),
    }
    is_right, deadline = True, time.monotonic()
    for part in (name for name in BUDGET if name in parts):
        deadline += given.scale * BUDGET[part]
        is_right &= check(bench) if part == "numerics" else run_rows(bench, part, rows[part](), deadline=deadline)
    print(f"\nwritten to {given.out}: {'all right' if is_right else 'SOMETHING IS WRONG: see no and failed'}")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
