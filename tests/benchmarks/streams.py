"""What streaming alone is worth: against a sliding window, and as a text grows longer."""

from __future__ import annotations

from tests.benchmarks.bench import Bench
from tests.benchmarks.contest import Result
from tests.benchmarks.rows import sizes_in_words
from tests.benchmarks.tables import markdown, number, rate, spread, times_faster
from tests.benchmarks.works import Request, model_settings, reading_flops, settings, streaming_flops, work

PAPER = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""By attention length: how many times faster the paper's evaluation was than its sliding window."""

TOKENS_A_TURN = 20


def window(bench: Bench) -> None:
    """Score by streaming, and by a window that is read anew for every token."""
    lengths = {12: 1.0, 24: 1.0} if bench.quick else PAPER
    rows = []
    for length, printed in lengths.items():
        streams, sliding = window_works(bench, length=length)
        sides = [bench.ours(f"streaming, T {streaming['segment_len']}", streaming) for streaming in streams]
        *streamed, slide = bench.contest(f"window-{length}", [*sides, bench.ours("sliding window", sliding)])
        for streaming, stream in zip(streams, streamed, strict=True):
            operations = reading_flops(sliding) / streaming_flops(streaming, keys=length)
            row = window_row(stream, slide, operations=operations, printed=printed)
            rows.append([f"{length:,}", str(streaming["segment_len"]), *row])
        words = f"{sizes_in_words(streams[-1])}; window: {sizes_in_words(sliding)}, one token predicted"
    head = ["attention length", "T", "streaming", "sliding window", "times", "of operations", "share", "paper's times"]
    bench.say(f"**window**, tokens/s, the last of: {words}\n\n{markdown(head, rows)}")


def window_works(bench: Bench, *, length: int) -> tuple[list[Request], Request]:
    """Give streaming with that attention length, and the window of a model without memory, of the same sizes.

    Streaming reads the segments that the paper scores with, and longer ones, as training's are: products of more rows.
    """
    published = model_settings("txl_char_base", quick=bench.quick, attention=bench.attention)
    sizes = {name: published[name] for name in ("n_layer", "d_model", "n_head", "d_head", "d_inner")}
    vanilla = model_settings("vanilla", quick=bench.quick, attention=bench.attention, **sizes)
    recipe = settings("recipe/txl_char_base")
    lengths = recipe["long_eval"] | {"mem_len": length}
    segments = (8, 16) if bench.quick else (lengths["segment_len"], recipe["segment_len"])
    streaming = work("evaluation", published, vocab_size=204, **lengths)
    return [streaming | {"segment_len": tokens} for tokens in segments], work(
        "window", vanilla, vocab_size=204, segment_len=length
    )


def window_row(stream: Result, slide: Result, *, operations: float, printed: float) -> list[str]:
    """Write a row: both speeds, their ratio, what operations promise, and the paper's."""
    times = times_faster(stream, slide)
    return [
        number(rate(stream).median),
        number(rate(slide).median),
        f"{number(times.median)} ({number(times.low)} to {number(times.high)})",
        number(operations),
        f"{times.median / operations:.2f}",
        number(printed),
    ]


def flat(bench: Bench) -> None:
    """Make 10,000 tokens: what the hundredth, the thousandth and the last of them cost."""
    lengths = settings("recipe/txl_char_base")["long_eval"]
    if bench.quick:
        lengths |= {"segment_len": 8, "mem_len": 20, "clamp_len": 10}
    model = model_settings("txl_char_base", quick=bench.quick, attention=bench.attention)
    request = work("generation", model, vocab_size=204, **lengths)
    places = (4, 16) if bench.quick else (100, 1000, 10_000)
    half = bench.rounds * TOKENS_A_TURN // 2
    sides = {}
    for words, fill in (("full", request["mem_len"]), ("empty", 0)):
        for place in places:
            before = {"fill": fill, "made": max(0, place - half)}
            sides[f"token {place:,}, memory {words} at token 0"] = request | before
    results = bench.contest("flat", [bench.ours(name, side) for name, side in sides.items()], steps=TOKENS_A_TURN)
    last = results[len(places) - 1]
    rows = [
        [result.name, f"{1000 * spread(result.turns).median:.1f}", f"{1 / times_faster(result, last).median:.2f}"]
        for result in results
    ]
    table = markdown(["ours, generation", "ms a token", f"of {last.name}"], rows)
    bench.say(f"**flat**: {sizes_in_words(request)}\n\n{table}")
