"""Check and time this package on one GPU: `python -m tests.benchmarks.gpu --out FOLDER`, with `src` on PYTHONPATH."""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks import gpu_works as works
from tests.benchmarks.gpu_numerics import check_attentions, check_compiled, check_dropout, own_attentions
from tests.benchmarks.gpu_table import Table
from tests.benchmarks.gpu_timing import Timing, free, matrix_peak, time_steps
from tests.benchmarks.gpu_works import Setting

ABOUT = """\
Checks every attention against the plain one in float64, then times training (bfloat16 autocast, fused Adam, clip 0.25,
ids drawn by Zipf's law; NVIDIA's recipe has LAMB, which costs about as much), evaluation at the paper's lengths,
generation one token at a time, and x-transformers and transformers' port where they are installed. Needs torch, PyYAML
and src on PYTHONPATH; ends within eight minutes. Writes gpu.md and gpu.json into --out after every row. mfu: useful
operations over those of a bfloat16 matrix product timed here. Exit status 1: something is wrong or failed.
"""
BUDGET = {"numerics": 45, "training wt103": 165, "training enwik8": 75, "evaluation": 45, "generation": 45, "peers": 35}
"""Seconds of each part. What one leaves over goes to the next; a row that has begun is ended."""
LANES = {"txl_base_nvidia": (256, 64), "txl_char_base": (88, 22)}
EVALUATED_LANES = (1, 32)

Row = tuple[dict[str, Any], Callable[[], dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all rows need.

    Attributes:
        setting: device and sizes.
        compiles: whether rows with `torch.compile` are among them.
        peak: operations a second of a bfloat16 matrix product.
        seconds: for which a row's steps are timed.
        most: steps of a row that are timed.
    """

    setting: Setting
    compiles: bool
    peak: float
    seconds: float
    most: int

    def timed(self, step: Callable[[], object], *, tokens: int, flops: int | None = None) -> dict[str, Any]:
        """Time a step, and give its row's figures."""
        taken: Timing = time_steps(step, device=self.setting.device, warmup=4, seconds=self.seconds, most=self.most)
        return {
            "tokens/s": tokens / taken.seconds,
            "ms": 1000 * taken.seconds,
            "spread": taken.spread,
            "mfu": None if flops is None else flops / taken.seconds / self.peak,
            "GiB": taken.peak_gib,
            "first step s": taken.first_seconds,
            "steps": taken.steps,
        }


def training(bench: Bench, preset: str) -> Iterator[Row]:
    """Give training's rows, the most telling first."""

    def run(attention: str, lanes: int, compiles: bool) -> dict[str, Any]:
        if compiles:
            torch._dynamo.reset()  # else the graphs of several rows count as one's
        model = bench.setting.make_model(preset, attention=attention)
        steps = works.training(bench.setting, model, preset=preset, lanes=lanes, compiles=compiles)
        flops = model.flops(
            batch_size=lanes,
            segment_len=bench.setting.recipe(preset)["segment_len"],
            cluster_shares=works.cluster_shares(model),
        ).step
        return bench.timed(steps, tokens=steps.tokens, flops=flops)

    lanes_of = (2,) if bench.setting.toy else LANES[preset]
    for lanes in lanes_of:
        for compiles in (False, True) if bench.compiles else (False,):
            for attention in own_attentions(compiled=compiles):
                labels = {"lanes": lanes, "attention": attention, "compiled": compiles}
                yield labels, lambda a=attention, b=lanes, c=compiles: run(a, b, c)


def evaluation(bench: Bench) -> Iterator[Row]:
    """Give the rows of evaluation."""

    def run(preset: str, attention: str, lanes: int) -> dict[str, Any]:
        model = bench.setting.make_model(preset, attention=attention)
        step, tokens = works.evaluation(bench.setting, model, preset=preset, lanes=lanes)
        return bench.timed(step, tokens=tokens)

    for lanes in (2,) if bench.setting.toy else EVALUATED_LANES:
        for preset in ("txl_char_base", "txl_base_nvidia"):
            for attention in own_attentions():
                labels = {"model": preset, "lanes": lanes, "attention": attention}
                yield labels, lambda p=preset, a=attention, b=lanes: run(p, a, b)


def generation(bench: Bench) -> Iterator[Row]:
    """Give the rows of generation."""

    def run(preset: str, attention: str, dtype: torch.dtype) -> dict[str, Any]:
        model = bench.setting.make_model(preset, attention=attention).to(dtype)
        return bench.timed(works.generation(bench.setting, model, preset=preset), tokens=1)

    for preset in ("txl_char_base", "txl_base_nvidia"):
        for dtype in (torch.bfloat16, torch.float32):
            for attention in own_attentions():
                labels = {"model": preset, "weights": str(dtype).removeprefix("torch."), "attention": attention}
                yield labels, lambda p=preset, a=attention, t=dtype: run(p, a, t)


def peers(bench: Bench, table: Table) -> Iterator[Row]:
    """Give the rows of what others have, at the sizes of `txl_char_base`."""
    preset = "txl_char_base"
    makers = {
        ("x_transformers", "TransformerWrapper"): works.x_transformers_training,
        ("transformers", "TransfoXLModel"): works.transformers_training,
    }
    for (name, model), make in makers.items():
        try:
            getattr(importlib.import_module(name), model)
        except (ImportError, AttributeError):  # transformers 5 has the model no more
            table.say(f"\npeers: {name} is not installed here, or has no {model}")
            continue
        for lanes in (2,) if bench.setting.toy else LANES[preset]:

            def run(make: Any = make, lanes: int = lanes) -> dict[str, Any]:
                steps = make(bench.setting, preset=preset, lanes=lanes)
                return bench.timed(steps, tokens=steps.tokens)

            yield {"peer": name, "lanes": lanes}, run


def check(bench: Bench, table: Table) -> bool:
    """Check the numbers; say whether all are right."""
    found = [*check_attentions(bench.setting), *check_dropout(bench.setting)]
    if bench.compiles:
        found += check_compiled(bench.setting)
    for values in found:
        table.add("numerics", values)
    return all(values["ok"] for values in found)


def run_rows(rows: Iterator[Row], *, part: str, device: torch.device, table: Table, deadline: float) -> bool:
    """Run rows until the deadline; say whether none failed."""
    all_ran = True
    for labels, run in rows:
        if time.monotonic() > deadline:
            table.add(part, {**labels, "note": "no time left"})
            continue
        free(device)
        try:
            table.add(part, {**labels, **run()})
        except torch.OutOfMemoryError:
            table.add(part, {**labels, "note": "out of memory"})
        except Exception as error:  # what one row cannot do must not cost the rows after it
            all_ran = False
            reason = str(error).partition("\n")[0]
            table.add(part, {**labels, "note": f"failed: {type(error).__name__}: {reason}"})
    return all_ran


def main(arguments: list[str] | None = None) -> int:
    """Run the parts that are asked for, and give the exit status."""
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
    command = shlex.join(["python", "-m", "tests.benchmarks.gpu", *(sys.argv[1:] if arguments is None else arguments)])
    table = Table(given.out, device=device, command=command)
    peak = matrix_peak(device, size=64 if given.toy else 8192)
    table.about["bfloat16 matrix product, TFLOP/s"] = peak / 1e12
    table.say("; ".join(f"{name} {value}" for name, value in table.about.items()))
    bench = Bench(
        setting=Setting(device=device, toy=given.toy, backend="eager" if given.toy else "inductor"),
        compiles=not given.no_compile,
        peak=peak,
        seconds=0.0 if given.toy else 1.5,
        most=3 if given.toy else 50,
    )
    rows: dict[str, Callable[[], Iterator[Row]]] = {
        "training wt103": lambda: training(bench, "txl_base_nvidia"),
        "training enwik8": lambda: training(bench, "txl_char_base"),
        "evaluation": lambda: evaluation(bench),
        "generation": lambda: generation(bench),
        "peers": lambda: peers(bench, table),
    }
    is_right, deadline = True, time.monotonic()
    for part in (name for name in BUDGET if name in parts):
        deadline += given.scale * BUDGET[part]
        if part == "numerics":
            is_right &= check(bench, table)
        else:
            is_right &= run_rows(rows[part](), part=part, device=device, table=table, deadline=deadline)
    table.say(f"\nwritten to {given.out}: {'all right' if is_right else 'SOMETHING IS WRONG: see no and failed'}")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
