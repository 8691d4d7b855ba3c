"""`data.bptt_segments`: gradients flow through the memory between the segments of a micro-batch, and no further."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import transformer_xl as txl
from tests.conftest import Outcome, run_training, tiny_overrides
from tests.data.laid_out import training_lanes
from tests.data.made_up import MadeUp
from tests.model.kinds import model_of
from tests.model.tiny import V
from tests.training.test_stock_trainer import InLanes, trainer
from transformer_xl.data.characters import SymbolTokenizer
from transformer_xl.data.datamodule import LaneDataModule
from transformer_xl.data.lanes import CorpusLanes, Segments
from transformer_xl.data.stream import Batch
from transformer_xl.model.base import LanguageModel
from transformer_xl.model.memory import Memory
from transformer_xl.training.module import LanguageModule

Run = Callable[..., Outcome]
LR = 0.1
LANES, ACCUMULATE, CHUNKS, STEPS = 3, 2, 2, 6
TEXT = np.random.default_rng(0).integers(0, V, 250).astype(np.uint8)
DOCUMENTS = np.asarray([0, 7, 20, 22, 60, 101, 150, 199])
DRAWN = {"segment_len_sd": 2.0, "half_segments": 0.3, "half_loss": True, "seed": 1}
EXACT = ["trainer.precision=64-true", "trainer.limit_val_batches=0", "trainer.log_every_n_steps=1"]


class Documents(InLanes):
    """A text whose memory is reset where a document begins."""

    def lanes(self, split: str, *, batch_size: int, segment_len: int, evaluation: bool) -> CorpusLanes:
        return training_lanes(TEXT, batch_size=batch_size, segment_len=segment_len, starts=DOCUMENTS)


class Seen(LanguageModule):
    """Keeps the gradients of each step."""

    def on_fit_start(self) -> None:
        self.gradients: list[list[Tensor]] = []

    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        self.gradients.append([weight.grad.clone() for weight in self.parameters() if weight.grad is not None])
        super().configure_gradient_clipping(*args, **kwargs)


def data_of(**lengths: Any) -> LaneDataModule:
    corpus: MadeUp = Documents(vocabulary=SymbolTokenizer(V), splits={"train": TEXT, "valid": TEXT[:1]})
    segments = Segments(lane_len=(len(TEXT) - 1) // LANES, segment_len=4, **lengths)
    return LaneDataModule(
        corpus,
        **{"batch_size": LANES, "segment_len": 4, "segments": segments},
        **{"lane_chunks": CHUNKS, "accumulate": ACCUMULATE, "steps": STEPS},
    )


def trained(model: LanguageModel, folder: Path, **lengths: Any) -> tuple[list[list[Tensor]], list[Batch]]:
    """Train by the program; return each step's gradients, and the batches."""
    module = Seen(model, optimizer=lambda weights: torch.optim.SGD(weights, lr=LR))
    data = data_of(**lengths)
    lightning = trainer(
        folder,
        **{"max_epochs": None, "max_steps": STEPS, "accumulate_grad_batches": ACCUMULATE * CHUNKS},
        **{"gradient_clip_val": None, "precision": "64-true", "limit_val_batches": 0},
    )
    lightning.fit(module, data)
    return module.gradients, list(data.train_dataloader())


def by_hand(model: LanguageModel, batches: list[Batch], *, in_one_pass: bool) -> list[list[Tensor]]:
    """Train on the same batches, each read in one pass, or segment by segment without gradients between them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    memories: dict[int, Memory] = {}
    gradients = []
    for batch in batches:
        memory = memories.get(batch.chunk) or model.empty_memory(len(batch.tokens_BT))
        lengths = [batch.tokens_BT.shape[1]] if in_one_pass else batch.lengths
        for tokens, targets, resets in zip(*(tensor.split(lengths, dim=1) for tensor in batch[:3]), strict=True):
            nll_BT, memory = model.nll(tokens, targets, memory, resets)
            (nll_BT.sum() / batch.counted).backward()
        memories[batch.chunk] = memory
        if batch.micro == ACCUMULATE * CHUNKS - 1:
            gradients.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
            optimizer.step()
            optimizer.zero_grad()
    return gradients


def largest_difference(left: list[list[Tensor]], right: list[list[Tensor]]) -> float:
    assert len(left) == len(right) == STEPS
    together = [torch.cat([gradient.flatten() for step in steps for gradient in step]) for steps in (left, right)]
    return float((together[0] - together[1]).abs().max())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("kind", "changes", "lengths"),
    [
        ("lstm", {}, DRAWN),
        ("transformer_xl", {"same_length": True}, {}),  # each query sees `mem_len` keys wherever a text is cut
        ("transformer_xl", {"same_length": True}, DRAWN),
        ("transformer_xl", {"mem_len": 100}, DRAWN),  # longer than a lane
    ],
    ids=str,
)
def test_steps_have_the_gradients_of_one_pass(
    kind: str, changes: dict[str, Any], lengths: dict[str, Any], tmp_path: Path
) -> None:
    found, batches = trained(model_of(kind, **changes).train(), tmp_path, bptt_segments=3, **lengths)
    assert {len(batch.lengths) for batch in batches} >= {3}
    assert any(batch.resets_BT[:, 1:].any() for batch in batches)
    assert any(batch.resets_BT[:, 0].all() for batch in batches[CHUNKS:])  # another epoch's beginning
    one_pass, detached = (
        by_hand(model_of(kind, **changes).train(), batches, in_one_pass=is_one) for is_one in (True, False)
    )
    assert largest_difference(found, one_pass) < 1e-9
    assert largest_difference(found, detached) > 1e-3


def losses(outcome: Outcome) -> list[float | None]:
    assert outcome.status == 0, outcome.stderr
    return list(outcome.values("train/loss").values())


@pytest.mark.slow
def test_a_run_of_grouped_segments_is_the_run_of_long_ones(tiny_run: Run) -> None:
    """Where each query sees `mem_len` keys, groups of 3 x 4 tokens are segments of 12: in steps, epochs and figures."""
    common = [*EXACT, "model.same_length=true", "data.documents=blank_line", "trainer.max_steps=-1"]
    common += ["trainer.max_epochs=2", "trainer.limit_train_batches=7", "trainer.accumulate_grad_batches=2"]
    long = tiny_run(*common, "data.segment_len=12", name="long")
    grouped = tiny_run(*common, "data.segment_len=4", "data.bptt_segments=3", "data.lane_chunks=2", name="grouped")
    assert len(losses(long)) == 7
    for name in ("train/loss", "train/grad_norm", "lr"):
        assert grouped.values(name) == pytest.approx(long.values(name), rel=1e-9)
    tokens = [{line["step"]: line["tokens"] for line in lines_of(outcome)} for outcome in (long, grouped)]
    assert tokens[0] == tokens[1]


def lines_of(outcome: Outcome) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (outcome.folder / "metrics.jsonl").read_text().splitlines()]


def test_gradients_flow_within_a_micro_batch_alone(tiny_run: Run) -> None:
    """One step of the same two segments: grouped, and accumulated without gradients between them."""
    grouped, accumulated = "data.bptt_segments=2", "trainer.accumulate_grad_batches=2"
    for memory, differs in {"model.mem_len=7": True, "model.mem_len=0": False}.items():
        both = [
            tiny_run(*EXACT, memory, setting, "trainer.max_steps=1", name=f"{memory}-{setting}")
            for setting in (grouped, accumulated)
        ]
        assert losses(both[0]) == pytest.approx(losses(both[1]), rel=1e-12)
        norms = [outcome.values("train/grad_norm")[1] for outcome in both]
        assert (norms[0] != pytest.approx(norms[1], rel=1e-6)) == differs


PARTS = [
    *("model.dropout=0.2", "model.dropatt=0.1", "data.bptt_segments=3", "data.lane_chunks=2"),
    *("trainer.accumulate_grad_batches=2", "data.segment_len_sd=2", "data.half_segments=0.3", "data.loss=half"),
    *("trainer.limit_train_batches=5", "scheduler.total_steps=8"),  # an epoch ends within a step
    *("trainer.limit_val_batches=0", "trainer.limit_test_batches=0"),
]


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_the_same_losses(tiny_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    whole = tiny_run(*PARTS, "trainer.max_steps=8", name="whole")
    first = tiny_run(*PARTS, "trainer.max_steps=3", name="first")
    assert "4 lanes x 3 segments x 5 tokens" in capsys.readouterr().out
    assert tiny_run(f"resume={first.folder}", "trainer.max_steps=8", base=False).status == 0
    assert losses(first) == losses(whole)
    assert len(losses(whole)) == 8


@pytest.mark.slow
def test_no_resume_changes_how_far_gradients_flow(tiny_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_run("trainer.max_steps=1").folder
    resumed = [f"resume={folder}", "trainer.max_steps=2", "data.bptt_segments=2"]
    assert tiny_run(*resumed, base=False).status == 2
    settings = folder / "config.yaml"
    settings.write_text(settings.read_text().replace("  bptt_segments: 1\n", ""))  # as runs of before have it
    assert tiny_run(*resumed, base=False).status == 2
    refused = "data.bptt_segments is 2 and was 1; no resume may change that"
    assert capsys.readouterr().err.count(refused) == 2
    assert tiny_run(*resumed[:2], base=False).status == 0


@pytest.mark.parametrize(("segments", "share"), [(1, 0.0), (4, 0.75)])
def test_utilization_counts_the_gradients_into_memory(tiny_run: Run, segments: int, share: float) -> None:
    run = tiny_run(f"data.bptt_segments={segments}", "trainer.max_steps=2")
    mfu, speed = run.values("mfu")[2], run.values("tokens_per_second")[2]
    assert mfu is not None
    assert speed is not None
    flops = txl.load_model(run.folder).flops(batch_size=4, segment_len=5, cluster_shares=[1.0])
    assert mfu / speed * 1e11 == pytest.approx((3 * flops.forward - (1 - share) * flops.into_memory) / 20, rel=1e-6)


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(text_file: Path, tmp_path: Path) -> None:
    settings = [*tiny_overrides(text_file, tmp_path), *EXACT, *PARTS, "model.dropout=0", "model.dropatt=0"]
    one, two = (
        run_training([*settings, f"trainer.devices={count}", f"hydra.run.dir={tmp_path / str(count)}"], tmp_path)
        for count in (1, 2)
    )
    assert losses(two) == pytest.approx(losses(one), rel=1e-9)
    assert two.values("train/grad_norm") == pytest.approx(one.values("train/grad_norm"), rel=1e-9)
