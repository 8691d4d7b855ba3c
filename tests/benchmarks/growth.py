"""How time and memory grow with each size, beside the operations that the model counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.bench import Bench
from tests.benchmarks.tables import markdown, number, spread
from tests.benchmarks.works import Request, model_settings, reading_flops, text_flops, training_flops, work


class Point(NamedTuple):
    """One size, and what was measured at it."""

    size: int
    flops: int
    seconds: float
    peak_bytes: int


class Sweep(NamedTuple):
    """Works that differ in one size, and what is predicted of them.

    Attributes:
        name: of what grows.
        works: by its size, ascending.
        flops: counts a work's operations.
    """

    name: str
    works: dict[int, Request]
    flops: Callable[[Request], int]


def growth(bench: Bench) -> None:
    """Measure how time and memory grow with T, M, B, L, V and the length of a text."""
    measured = {}
    for sweep in sweeps(bench):
        sides = [bench.ours(f"{sweep.name} {size}", request) for size, request in sweep.works.items()]
        results = bench.contest(f"growth of {sweep.name}", sides)
        measured[sweep.name] = [
            Point(size, sweep.flops(request), spread(result.turns).median, result.peak_bytes)
            for (size, request), result in zip(sweep.works.items(), results, strict=True)
        ]
        bench.say(f"**growth** of {sweep.name}\n\n{growth_table(sweep.name, measured[sweep.name])}")
    draw(measured, bench.folder / "growth.png")


def sweeps(bench: Bench) -> list[Sweep]:
    """Give training as T, M, B, L and V double, and reading as a text does."""
    sizes = {"n_layer": 4, "segment_len": 256, "mem_len": 256, "batch_size": 4, "vocab_size": 256}
    if bench.quick:
        sizes |= {"n_layer": 2, "segment_len": 16, "mem_len": 16}
    grown = {
        "T": ("segment_len", (1, 2, 4), {}),
        "M": ("mem_len", (1, 2, 4), {}),
        "B": ("batch_size", (1, 2, 4), {}),
        "L": ("n_layer", (1, 2, 4), {}),
        "V": ("vocab_size", (16, 32, 64, 128), {}),
    }
    found = []
    for letter, (name, factors, others) in grown.items():
        works = {}
        for factor in factors:
            changed = sizes | others | {name: factor * sizes[name]}
            works[changed[name]] = _training(bench, **changed)
        found.append(Sweep(f"a training step with {letter}", works, training_flops))
    return [*found, *_texts(bench)]


def _training(bench: Bench, *, n_layer: int, **changes: Any) -> Request:
    model = model_settings("txl_char_base", quick=bench.quick, attention=bench.attention)
    return work("training", model | {"n_layer": n_layer}, **changes)


def _texts(bench: Bench) -> list[Sweep]:
    """Give reading of texts from their beginning, streamed, and all at once by a model without memory."""
    published = model_settings("txl_char_base", quick=bench.quick, attention=bench.attention) | {"n_layer": 4}
    sizes = {name: published[name] for name in ("n_layer", "d_model", "n_head", "d_head", "d_inner")}
    vanilla = model_settings("vanilla", quick=bench.quick, attention=bench.attention) | sizes
    lengths = (32, 64) if bench.quick else (1024, 2048, 4096, 8192)
    pieces = {"segment_len": 8, "mem_len": 16} if bench.quick else {"segment_len": 128, "mem_len": 512}
    streamed = {length: work("text", published, text_len=length, **pieces) for length in lengths}
    at_once = {length: work("text", vanilla, text_len=length, segment_len=length) for length in lengths}
    return [
        Sweep("streaming with the text's length", streamed, text_flops),
        Sweep("full attention with the text's length", at_once, reading_flops),
    ]


def agreement(points: Sequence[Point]) -> list[float]:
    """Give seconds over predicted operations, each as a part of the largest point's."""
    last = points[-1].seconds / points[-1].flops
    return [point.seconds / point.flops / last for point in points]


def growth_table(name: str, points: Sequence[Point]) -> str:
    """Write the points of a sweep."""
    rows = [
        [
            f"{point.size:,}",
            number(point.seconds),
            number(point.flops / 1e9),
            f"{part:.2f}",
            f"{point.peak_bytes / 1e9:.2f}",
        ]
        for point, part in zip(points, agreement(points), strict=True)
    ]
    head = [name.rpartition(" ")[2], "seconds", "GFLOP predicted", "measured / predicted", "peak memory, GB"]
    return markdown(head, rows)


def draw(measured: dict[str, list[Point]], path: Path) -> None:
    """Draw time and memory of each sweep, and the time that operations predict from the largest point."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * len(measured), 6), layout="constrained")
    axes = figure.subplots(2, len(measured), squeeze=False)
    for column, (name, points) in enumerate(measured.items()):
        sizes = [point.size for point in points]
        a_flop = points[-1].seconds / points[-1].flops
        time, memory = axes[0][column], axes[1][column]
        time.set_title(name, fontsize=9)
        time.plot(sizes, [point.flops * a_flop for point in points], "--", color="grey", label="operations predict")
        time.plot(sizes, [point.seconds for point in points], "o-", label="measured")
        memory.plot(sizes, [point.peak_bytes / 1e9 for point in points], "o-")
        for axis, label in ((time, "seconds"), (memory, "peak memory of the process, GB")):
            axis.set_xscale("log", base=2)
            axis.set_yscale("log", base=2)
            axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axis.yaxis.set_major_formatter("{x:.3g}")
            axis.set_ylabel(label, fontsize=8)
    axes[0][0].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
