"""Training, evaluation and generation beside the peers: what each row measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.benchmarks.bench import OURS, Bench
from tests.benchmarks.contest import Result, Side
from tests.benchmarks.peers import KEPT, TRANSFORMERS, X_TRANSFORMERS, Peer
from tests.benchmarks.tables import comparison, gigabytes, markdown, memory_of, number, rate, spread
from tests.benchmarks.works import (
    ROPE_INNER,
    Request,
    model_settings,
    settings,
    training_flops,
    work,
    zipf_shares,
)

ROPE = "rope"
PRODUCTS = "products of "
PEAK = "peak"
Entry = tuple[str, Peer | None, Request]
"""A side: its name, whose it is (None: ours), its work."""


def training(bench: Bench) -> None:
    """Train 4 layers of the enwik8 model on bytes, in float32."""
    published, rope = _four_layer_works(bench)
    sides = [
        (TRANSFORMERS.name, TRANSFORMERS, published),
        (X_TRANSFORMERS.name, X_TRANSFORMERS, published),
        *_with_freed_memory_kept(published),
        (OURS, None, published),
        (ROPE, None, rope),
    ]
    _compare(bench, "training", sides, beside=[TRANSFORMERS.name, X_TRANSFORMERS.name])


def training_bf16(bench: Bench) -> None:
    """Do the same under bfloat16 autocast, beside `transformers` in float32 too."""
    published, rope = _four_layer_works(bench)
    sides = [
        (TRANSFORMERS.name, TRANSFORMERS, published),
        _in_bfloat16(TRANSFORMERS.name, TRANSFORMERS, published),
        _in_bfloat16(X_TRANSFORMERS.name, X_TRANSFORMERS, published),
        *_with_freed_memory_kept(published | {"precision": "bfloat16"}),
        _in_bfloat16(OURS, None, published),
        _in_bfloat16(ROPE, None, rope),
    ]
    _compare(bench, "training-bf16", sides, beside=[TRANSFORMERS.name, f"{X_TRANSFORMERS.name}, bfloat16"])


def _with_freed_memory_kept(request: Request) -> list[Entry]:
    """Give both peers once more: the same code in an environment that `train.py` makes for itself."""
    words = f"bfloat16, {KEPT}" if request["precision"] == "bfloat16" else KEPT
    return [(f"{peer.name}, {words}", peer, request) for peer in (TRANSFORMERS, X_TRANSFORMERS)]


def _four_layer_works(bench: Bench) -> tuple[Request, Request]:
    """Give the training of 4 layers of the published model, and of today's decoder."""
    length = 16 if bench.quick else 512
    sizes = {"batch_size": 4, "segment_len": length, "mem_len": length}
    return work("training", _four_layers(bench), **sizes), work("training", _four_layers(bench, rope=True), **sizes)


def doubled(bench: Bench) -> None:
    """Train with segment and memory doubled: what memory it takes."""
    length = 16 if bench.quick else 512
    sides = {}
    for precision in ("float32", "bfloat16"):
        for longer in (length, 2 * length):
            sizes = {"batch_size": 4, "segment_len": longer, "mem_len": longer}
            sides[f"{OURS}, {precision}, T = M = {longer}"] = work(
                "training", _four_layers(bench), precision=precision, **sizes
            )
    results = bench.contest("doubled", [bench.ours(name, request) for name, request in sides.items()])
    rows = [
        [result.name, number(rate(result).median), gigabytes(result), f"{memory_of(result, once):.2f}"]
        for once, twice in zip(results[::2], results[1::2], strict=True)
        for result in (once, twice)
    ]
    table = markdown(["side", "tokens/s", "peak memory", "of the shorter's"], rows)
    bench.say(f"**doubled**: training as above, segment and memory doubled\n\n{table}")


def wt103(bench: Bench) -> None:
    """Train the base model for WikiText-103, its whole vocabulary."""
    model = model_settings("txl_base", quick=bench.quick, attention=bench.attention)
    vocabulary = 1000 if bench.quick else 267_735
    if bench.quick:
        model |= {"cutoffs": [100, 200, 500]}
    length = 15 if bench.quick else settings("recipe/txl_base")["segment_len"]
    request = work(
        "training",
        model,
        vocab_size=vocabulary,
        ids="zipf",
        cluster_shares=zipf_shares((0, *model["cutoffs"], vocabulary)),
        batch_size=4,
        segment_len=length,
        mem_len=length,
    )
    kept = (f"{TRANSFORMERS.name}, {KEPT}", TRANSFORMERS, request)
    _beside_transformers(bench, "wt103", request, kept)


def evaluation(bench: Bench) -> None:
    """Read a text with the enwik8 model and the long memory that the paper scores it with."""
    request = _streaming(bench, "evaluation")
    _beside_transformers(bench, "evaluation", request, _in_bfloat16(TRANSFORMERS.name, TRANSFORMERS, request))


def generation(bench: Bench) -> None:
    """Make tokens one at a time with the same model and memory."""
    request = _streaming(bench, "generation")
    request["fill"] = request["mem_len"]
    _beside_transformers(bench, "generation", request, _in_bfloat16(TRANSFORMERS.name, TRANSFORMERS, request))


def _streaming(bench: Bench, task: str) -> Request:
    lengths = settings("recipe/txl_char_base")["long_eval"]
    if bench.quick:
        lengths |= {"segment_len": 8, "mem_len": 20, "clamp_len": 10}
    model = model_settings("txl_char_base", quick=bench.quick, attention=bench.attention)
    return work(task, model, vocab_size=204, **lengths)


def _four_layers(bench: Bench, *, rope: bool = False) -> dict[str, Any]:
    sizes = {name: settings("model/txl_char_base")[name] for name in ("d_model", "n_head", "d_head", "d_inner")}
    if not rope:
        return model_settings("txl_char_base", quick=bench.quick, attention=bench.attention, n_layer=4)
    sizes |= {"n_layer": 4, "d_inner": ROPE_INNER}
    return model_settings("transformer_rope", quick=bench.quick, attention=bench.attention, **sizes)


def sizes_in_words(request: Request) -> str:
    """Describe a work."""
    model, lanes = request["model"], request["batch_size"]
    ids = ", ids drawn as 1 / rank" if request["ids"] == "zipf" else ""
    segment = 1 if request["task"] == "generation" else request["segment_len"]
    return (
        f"{model['kind']}, {model['n_layer']} layers, D {model['d_model']}, {model['n_head']} x {model['d_head']}, "
        f"F {model['d_inner']:,}, V {request['vocab_size']:,}{ids}, T {segment}, "
        f"M {request['mem_len']:,}, {lanes} lane{'s' if lanes > 1 else ''}"
    )


def _in_bfloat16(name: str, peer: Peer | None, request: Request) -> Entry:
    return f"{name}, bfloat16", peer, request | {"precision": "bfloat16"}


def _beside_transformers(bench: Bench, row: str, request: Request, *others: Entry) -> None:
    sides: list[Entry] = [
        (TRANSFORMERS.name, TRANSFORMERS, request),
        *others,
        (OURS, None, request),
        _in_bfloat16(OURS, None, request),
    ]
    if request["task"] != "training":
        sides.append((f"{OURS}, bfloat16 weights", None, request | {"precision": "bfloat16 weights"}))
    _compare(bench, row, sides, beside=[TRANSFORMERS.name])


def _compare(bench: Bench, row: str, entries: Sequence[Entry], *, beside: Sequence[str]) -> None:
    """Measure sides in turn, and what the machine can do in the same rounds; say the table.

    Args:
        bench: the call.
        row: name of the row.
        entries: the sides: name, whose (None: ours), work.
        beside: names of those whose ratios are shown.
    """
    wanted = [entry for entry in entries if bench.wants(entry[0])]
    trained = {name: request for name, peer, request in wanted if peer is None and request["task"] == "training"}
    sides = [
        bench.ours(name, request) if peer is None else bench.peer(name, peer, request) for name, peer, request in wanted
    ]
    results = bench.contest(row, [*sides, *_limits(bench, trained)])
    mfu, limit = figures(results, trained)
    words = "; ".join(dict.fromkeys(sizes_in_words(request) for _, _, request in wanted))
    table = comparison(results[: len(sides)], peers=beside, mfu=mfu, gemm_limit=limit)
    bench.say(f"**{row}**: {words}\n\n{table}")


def _limits(bench: Bench, trained: dict[str, Request]) -> list[Side]:
    """Give a side for the products of each step, and one for the peak of each precision."""
    products = [bench.ours(PRODUCTS + name, request | {"task": "products"}) for name, request in trained.items()]
    by_precision = {request["precision"]: request for request in trained.values()}
    peaks = [bench.ours(f"{PEAK} {name}", request | {"task": PEAK}) for name, request in by_precision.items()]
    return products + peaks


def figures(results: Sequence[Result], trained: dict[str, Request]) -> tuple[dict[str, float], dict[str, float]]:
    """Give MFU, and tokens a second of the matrix products alone, of each side that was trained."""
    named = {result.name: result for result in results if result.error is None}
    mfu, limit = {}, {}
    for name, request in trained.items():
        if name in named:
            peak = max(named[f"{PEAK} {request['precision']}"].values)
            mfu[name] = training_flops(request) / spread(named[name].turns).median / peak
            limit[name] = rate(named[PRODUCTS + name]).median
    return mfu, limit


ROWS = {
    "training": training,
    "training-bf16": training_bf16,
    "doubled": doubled,
    "wt103": wt103,
    "evaluation": evaluation,
    "generation": generation,
}
