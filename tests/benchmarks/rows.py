"""Training, evaluation and generation beside the peers: what each row measures."""

from __future__ import annotations

from tests.benchmarks.bench import OURS, ROPE, TRANSFORMERS, X_TRANSFORMERS, Bench
from tests.benchmarks.works import Request, model_settings, settings, work

ROPE_INNER = 1376
"""Three matrices of this width have as many parameters as two of 2,048 (0.8 % more: it is a multiple of 32)."""


def training(bench: Bench) -> None:
    """Train 4 layers of the enwik8 model on bytes, in float32."""
    published, rope = _four_layers(bench)
    sides = {TRANSFORMERS: published, X_TRANSFORMERS: published, OURS: published, ROPE: rope}
    bench.compare("training", sides, beside=[TRANSFORMERS, X_TRANSFORMERS])


def training_bf16(bench: Bench) -> None:
    """Do the same under bfloat16 autocast, beside `transformers` in float32 too."""
    published, rope = _four_layers(bench)
    sides = {TRANSFORMERS: published}
    for name, request in {TRANSFORMERS: published, X_TRANSFORMERS: published, OURS: published, ROPE: rope}.items():
        sides |= _in_bfloat16(name, request)
    bench.compare("training-bf16", sides, beside=[TRANSFORMERS, f"{X_TRANSFORMERS}, bfloat16"])


def wt103(bench: Bench) -> None:
    """Train the base model for WikiText-103, its whole vocabulary."""
    model = model_settings("txl_base", quick=bench.quick, attention=bench.attention)
    if bench.quick:
        model |= {"cutoffs": [100, 200, 500]}
    length = 15 if bench.quick else settings("recipe/txl_base")["segment_len"]
    vocab_size = 1000 if bench.quick else 267_735
    request = work(
        "training", model, vocab_size=vocab_size, ids="zipf", batch_size=4, segment_len=length, mem_len=length
    )
    sides = {TRANSFORMERS: request, OURS: request} | _in_bfloat16(OURS, request)
    bench.compare("wt103", sides, beside=[TRANSFORMERS])


def evaluation(bench: Bench) -> None:
    """Read a text with the enwik8 model and the long memory that the paper scores it with."""
    _stream(bench, "evaluation")


def generation(bench: Bench) -> None:
    """Make tokens one at a time with the same model and memory."""
    _stream(bench, "generation")


def _stream(bench: Bench, task: str) -> None:
    lengths = settings("recipe/txl_char_base")["long_eval"]
    if bench.quick:
        lengths |= {"segment_len": 8, "mem_len": 20, "clamp_len": 10}
    model = model_settings("txl_char_base", quick=bench.quick, attention=bench.attention)
    request = work(task, model, vocab_size=204, **lengths)
    sides = {TRANSFORMERS: request} | _in_bfloat16(TRANSFORMERS, request) | {OURS: request}
    sides |= _in_bfloat16(OURS, request) | {f"{OURS}, bfloat16 weights": request | {"precision": "bfloat16 weights"}}
    bench.compare(task, sides, beside=[TRANSFORMERS])


def _four_layers(bench: Bench) -> tuple[Request, Request]:
    """Return the training of 4 layers of the published model, and of today's decoder."""
    length = 16 if bench.quick else 512
    lengths = {"batch_size": 4, "segment_len": length, "mem_len": length}
    published = model_settings("txl_char_base", quick=bench.quick, attention=bench.attention, n_layer=4)
    sizes = {name: published[name] for name in ("d_model", "n_head", "d_head", "n_layer")} | {"d_inner": ROPE_INNER}
    rope = model_settings("transformer_rope", quick=bench.quick, attention=bench.attention, **sizes)
    return work("training", published, **lengths), work("training", rope, **lengths)


def _in_bfloat16(name: str, request: Request) -> dict[str, Request]:
    return {f"{name}, bfloat16": request | {"precision": "bfloat16"}}


ROWS = {
    "training": training,
    "training-bf16": training_bf16,
    "wt103": wt103,
    "evaluation": evaluation,
    "generation": generation,
}
