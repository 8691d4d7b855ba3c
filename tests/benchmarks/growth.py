"""How time and memory grow with each size, beside the operations that the model counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.bench import Bench
from tests.benchmarks.rows import sizes_in_words
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
        letter: of what grows.
        name: of the work.
        works: by its size, ascending.
        flops: counts a work's operations.
    """

    letter: str
    name: str
    works: dict[int, Request]
    flops: Callable[[Request], int]


class Curve(NamedTuple):
    """What was measured of a sweep."""

    letter: str
    name: str
    points: list[Point]


def growth(bench: Bench) -> None:
    """Measure how time and memory grow with T, M, B, L, V and the length of a text."""
    curves = []
    for sweep in sweeps(bench):
        sides = [bench.ours(f"{sweep.name}, {sweep.letter} {size}", request) for size, request in sweep.works.items()]
        results = bench.contest(f"growth of {sweep.name} with {sweep.letter}", sides)
        points = [
            Point(size, sweep.flops(request), spread(result.turns).median, result.peak_bytes)
            for (size, request), result in zip(sweep.works.items(), results, strict=True)
        ]
        curves.append(Curve(sweep.letter, sweep.name, points))
        words = sizes_in_words(next(iter(sweep.works.values())))
        bench.say(f"**growth**: {sweep.name}, {sweep.letter} doubled, from {words}\n\n{growth_table(curves[-1])}")
    draw(curves, bench.folder / "growth.png")


def sweeps(bench: Bench) -> list[Sweep]:
    """Give training as T, M, B, L and V double, and reading as a text does."""
    sizes = {"n_layer": 4, "segment_len": 256, "mem_len": 256, "batch_size": 4, "vocab_size": 256}
    if bench.quick:
        sizes |= {"n_layer": 2, "segment_len": 16, "mem_len": 16}
    grown: dict[str, tuple[str, tuple[int, ...]]] = {
        "T": ("segment_len", (1, 2, 4)),
        "M": ("mem_len", (1, 2, 4)),
        "B": ("batch_size", (1, 2, 4)),
        "L": ("n_layer", (1, 2, 4)),
        "V": ("vocab_size", (16, 32, 64, 128)),
    }
    found = []
    for letter, (name, factors) in grown.items():
        works = {}
        for factor in factors:
            changed = sizes | {name: factor * sizes[name]}
            works[changed[name]] = _training(bench, **changed)
        found.append(Sweep(letter, "training step", works, training_flops))
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
        Sweep("text length", "reading a text, streamed", streamed, text_flops),
        Sweep("text length", "reading a text, full attention at once", at_once, reading_flops),
    ]


def agreement(points: Sequence[Point]) -> list[float]:
    """Give seconds over predicted operations, each as a part of the largest point's."""
    last = points[-1].seconds / points[-1].flops
    return [point.seconds / point.flops / last for point in points]


def growth_table(curve: Curve) -> str:
    """Write the points of a sweep."""
    rows = [
        [
            f"{point.size:,}",
            number(point.seconds),
            number(point.flops / 1e9),
            f"{part:.2f}",
            f"{point.peak_bytes / 1e9:.2f}",
        ]
        for point, part in zip(curve.points, agreement(curve.points), strict=True)
    ]
    return markdown([curve.letter, "seconds", "GFLOP predicted", "measured / predicted", "peak memory, GB"], rows)


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Draw time and memory of each sweep, and the time that operations predict from the largest point."""
    from matplotlib.figure import Figure

    columns = {letter: column for column, letter in enumerate(dict.fromkeys(curve.letter for curve in curves))}
    figure = Figure(figsize=(3 * len(columns), 6), layout="constrained")
    axes = figure.subplots(2, len(columns), squeeze=False)
    for curve in curves:
        time, memory = axes[0][columns[curve.letter]], axes[1][columns[curve.letter]]
        sizes = [point.size for point in curve.points]
        a_flop = curve.points[-1].seconds / curve.points[-1].flops
        (line,) = time.plot(sizes, [point.seconds for point in curve.points], "o", label=curve.name)
        predicted = [point.flops * a_flop for point in curve.points]
        time.plot(sizes, predicted, "--", color=line.get_color(), label="as operations predict")
        memory.plot(sizes, [point.peak_bytes / 1e9 for point in curve.points], "o-", label=curve.name)
        for axis in (time, memory):
            axis.set_xscale("log", base=2)
            axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        time.set_title(curve.letter)
        time.set_yscale("log", base=2)
        time.yaxis.set_major_formatter("{x:.3g}")
        time.legend(fontsize=7)
        memory.set_ylim(bottom=0)
    axes[0][0].set_ylabel("seconds")
    axes[1][0].set_ylabel("peak memory of the process, GB")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
