"""Small runs of every network and of what training can do: their losses and figures, and the sums of their weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import transformer_xl as txl
from tests.oracles import recorded, tiny

DROPOUT = ["model.dropout=0.1", "model.dropatt=0.1"]
RECURRENT_DROPOUT = ["model.dropout=0.1"]
FIGURES = {
    *("train/loss", "train/ppl", "train/bpc", "train/grad_norm", "train/clipped_share", "lr"),
    *("val/loss", "val/ppl", "val/bpc", "val/memory_gain", "test/loss", "test/ppl", "test/bpc"),
}
STEADY = "optimizer.eps=1e-4"
"""With Adam's own eps the smallest gradients' last bits, which a processor's instructions decide, make whole steps."""

ADAPTIVE = ["data.tokenizer=word", "model.cutoffs=[8,20]", "model.div_val=2"]


def nothing(work: Path) -> list[str]:
    return []


def documents(work: Path) -> list[str]:
    path = work / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": tiny.text(1 + n % 3, seed=n)}) + "\n" for n in range(60)))
    return [f"data.path={path}", "data.order=shuffled"]


def trained(work: Path) -> list[str]:
    """Train the model that a run begins from; its vocabulary is of characters."""
    source = tiny.train(work, "data.tokenizer=char", "model.dropout=0.1", "trainer.max_steps=5", name="source")
    assert source.status == 0, source.stderr
    return [f"init_from={source.folder}", "recipe.batch_size=4", "recipe.segment_len=5"]


class Case(NamedTuple):
    network: str
    overrides: list[str]
    files: Callable[[Path], list[str]] = nothing


CASES: dict[str, Case] = {
    "txl": Case("txl", []),
    "txl, dropout": Case("txl", DROPOUT),
    "txl, dropout of whole lanes": Case("txl", [*DROPOUT, "model.variational_dropout=true"]),
    "txl, as published": Case("txl", [*DROPOUT, "model.pre_norm=false", "model.untie_r=true", "model.clamp_len=4"]),
    "txl, adaptive": Case("txl", [*DROPOUT, *ADAPTIVE, "model.tie_projs=all"]),
    "txl, same length": Case("txl", ["model.same_length=true", "eval.mem_len=11", "eval.segment_len=3"]),
    "txl, blockwise": Case("txl", [*DROPOUT, "model.attention=blockwise"]),
    "shaw": Case("shaw", DROPOUT),
    "vaswani": Case("vaswani", DROPOUT),
    "al_rfou": Case("al_rfou", DROPOUT),
    "transformer_rope": Case("transformer_rope", DROPOUT),
    "without memory": Case("vaswani", ["model.mem_len=0", "eval.stride=2"]),
    "lstm": Case("lstm", RECURRENT_DROPOUT),
    "gru": Case("gru", RECURRENT_DROPOUT),
    "rnn, adaptive": Case("rnn", [*RECURRENT_DROPOUT, *ADAPTIVE]),
    "chunks": Case("txl", [*DROPOUT, "data.lane_chunks=3"]),
    "accumulated": Case("txl", [*DROPOUT, "trainer.accumulate_grad_batches=2", "data.lane_chunks=2"]),
    "drawn lengths": Case("txl", [*DROPOUT, "data.segment_len_sd=2.0", "data.half_segments=0.2"]),
    "half of each segment": Case("txl", [*DROPOUT, "data.loss=half"]),
    "shuffled documents": Case("txl", DROPOUT, documents),
    "short epochs": Case("lstm", ["trainer.limit_train_batches=3"]),
    "average": Case("txl", [*DROPOUT, "callbacks.weight_average.start_step=8"]),
    "exponential average": Case(
        "txl", ["callbacks.weight_average.start_step=3", "callbacks.weight_average.decay=0.75"]
    ),
    "from a trained model": Case("txl", ["seed=3"], trained),
    "AdamW, inverse root": Case("txl", ["optimizer=adamw", "scheduler=inv_sqrt", "optimizer.decay_embeddings=true"]),
    "SGD, plateau": Case("txl", ["optimizer=sgd", "scheduler=plateau", "optimizer.momentum=0.9"]),
    "LAMB, constant": Case("txl", ["optimizer=lamb", "scheduler=constant", "optimizer.weight_decay=0.1"]),
    "clipped by value": Case("txl", ["trainer.gradient_clip_algorithm=value", "trainer.gradient_clip_val=0.01"]),
    "float64": Case("txl", [*DROPOUT, "trainer.precision=64-true"]),
    "float64 lstm": Case("lstm", [*RECURRENT_DROPOUT, "trainer.precision=64-true"]),
}


def run(name: str, work: Path) -> tiny.Run:
    case = CASES[name]
    settings = tiny.settings(work, network=case.network)
    if not {"optimizer=sgd", "trainer.precision=64-true"} & set(case.overrides):
        settings.append(STEADY)
    overrides = case.files(work)
    if any(line.startswith("init_from=") for line in overrides):
        settings = [line for line in settings if not line.startswith("model")]
    done = tiny.train(work, *settings, *overrides, *case.overrides, base=False)
    assert done.status == 0, done.stderr
    return done


def observe(name: str, work: Path) -> dict[str, Any]:
    done = run(name, work)
    figures: dict[str, list[float]] = {}
    for line in (done.folder / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["name"] in FIGURES:
            figures.setdefault(entry["name"], []).append(entry["value"])
    sums = {}
    for checkpoint in ("last", "best"):
        weights = txl.load_model(done.folder, checkpoint=checkpoint).requires_grad_(False)
        sums[checkpoint] = {
            name: [float(weight.double().sum()), float(weight.double().abs().sum())]
            for name, weight in weights.named_parameters()
        }
    return {"figures": dict(sorted(figures.items())), "weights": sums}


@pytest.mark.parametrize("name", CASES)
def test_a_small_run_has_the_recorded_losses_and_weights(name: str, tmp_path: Path) -> None:
    actual, expected = observe(name, tmp_path), recorded.read("small_runs")[name]
    within = 1e-9 if name.startswith("float64") else 1e-5
    recorded.assert_same(actual["figures"], expected["figures"], within=within)
    recorded.assert_same(actual["weights"], expected["weights"], within=10 * within)
