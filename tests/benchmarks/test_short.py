"""The benchmark's own results, at toy size: what is measured is the work that the tables say; no time is judged."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.benchmarks.bench import OURS, ROPE, Bench
from tests.benchmarks.contest import SIDES, Result, Side, contest
from tests.benchmarks.rows import ROWS
from tests.benchmarks.tables import comparison
from tests.benchmarks.works import Request, model_settings, work
from transformer_xl.model.base import LanguageModel, make_model
from transformer_xl.settings import parse_kind

V = 32


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Our side's module; its process would find the files beside it as this does."""
    monkeypatch.syspath_prepend(str(SIDES))
    return import_module("of_ours")


def toy(task: str, name: str = "txl_char_base", **changes: Any) -> Request:
    model = model_settings(name, quick=True, attention=None) | {"init_std": 0.3, "tie_weights": False}
    return work(task, model, **({"vocab_size": V, "segment_len": 5, "mem_len": 7} | changes))


def made(ours: ModuleType, request: Request) -> tuple[Any, LanguageModel]:
    """Return a work, and the model that it began with."""
    torch.manual_seed(request["seed"])
    reference = make_model(parse_kind("model", request["model"]), vocab_size=request["vocab_size"])
    torch.manual_seed(request["seed"])
    return ours.make_work(request), reference


def drawn_by(work: Any, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Return a list that fills with the text that a class of works draws from now on."""
    texts: list[Tensor] = []
    draw = work.draw

    def record(self: Any) -> Any:
        drawn = draw(self)
        texts.append(torch.cat([drawn[0], drawn[1][:, -1:]], dim=1))
        return drawn

    monkeypatch.setattr(work, "draw", record)
    return texts


@pytest.mark.parametrize("name", ["txl_char_base", "transformer_rope"])
def test_training_steps_have_the_losses_of_a_plain_loop(
    ours: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    texts = drawn_by(ours.Training, monkeypatch)
    side, model = made(ours, toy("training", name, batch_size=2))
    losses = [side.step(side.draw()) for _ in range(2)]

    optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-4, foreach=False)
    memory, expected = model.empty_memory(batch_size=2), []
    for text in texts:
        log_probs, memory = model.log_probs(text[:, :-1], memory)
        loss = -log_probs.gather(-1, text[:, 1:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()  # type: ignore[union-attr]
        for parameter in model.parameters():
            parameter.grad *= min(1.0, 0.25 / float(norm))
        optimizer.step()
        expected.append(loss.item())
    assert side.tokens == 10
    assert losses == pytest.approx(expected[-2:], rel=1e-5)
    assert len(texts) == 6  # two fill the memory, two warm, two are measured


@torch.no_grad()
def test_streaming_has_the_losses_of_one_pass(ours: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = drawn_by(ours.Evaluation, monkeypatch)
    side, model = made(ours, toy("evaluation", same_length=True, clamp_len=4))
    loss = side.step(side.draw())
    text_BT = torch.cat([texts[0][:, :1], *(text[:, 1:] for text in texts)], dim=1)
    reader = model.with_context(same_length=True, clamp_len=4).eval()
    log_probs, _ = reader.log_probs(text_BT[:, :-1], reader.empty_memory(batch_size=1, mem_len=7))
    expected = -log_probs.gather(-1, text_BT[:, 1:, None])[0, -5:].mean()
    assert loss == pytest.approx(float(expected), rel=1e-5)


@torch.no_grad()
def test_generation_makes_the_likeliest_tokens_of_one_pass(ours: ModuleType) -> None:
    side, model = made(ours, toy("generation", mem_len=40))
    torch.manual_seed(1111)
    make_model(
        parse_kind("model", toy("generation", mem_len=40)["model"]), vocab_size=V
    )  # the text is drawn after the weights
    text = ours.Generation.__init__.__globals__["Text"](toy("generation"))
    read = torch.cat([text.segment(5)[0] for _ in range(8)], dim=1)
    memory = model.eval().empty_memory(batch_size=1, mem_len=60)
    for _ in range(4):
        best = model.log_probs(read[:, -40:], memory).log_probs_BTV[0, -1].argmax()
        read = torch.cat([read, best.view(1, 1)], dim=1)
    side.step(None)
    assert side._token == int(read[0, -1])
    assert len(set(read[0, 40:].tolist())) > 1


def result(name: str, *turns: float, tokens: int = 100, peak: int = 10**9, **more: Any) -> Result:
    return Result(name=name, turns=list(turns), tokens=tokens, peak_bytes=peak, **more)


def test_a_table_says_speeds_memory_what_fails_and_ratios_round_by_round() -> None:
    results = [
        result("peer", 1.0, 10.0, 1.0, peak=2 * 10**9),
        result("ours", 0.25, 5.0, 0.5),
        result("broken", error="it\nbroke"),
    ]
    assert comparison(results, peers=["peer"]).splitlines()[2:] == [
        "| peer | 100 | 10 to 100 | 2.00 GB |  |  |",
        "| ours | 200 | 20 to 400 | 1.00 GB | 2.00 (2.00 to 4.00) | 0.50 |",
        "| broken | fails: it |  |  |  |  |",
    ]


MADE_UP = """
import json, sys
work = json.loads(sys.stdin.readline())["work"]
print(json.dumps({"tokens": 10, "versions": {"python": "3"}}), flush=True)
for line in sys.stdin:
    with open(work["log"], "a") as log:
        log.write(work["name"])
    if work["name"] == "c":
        print(json.dumps({"error": "E: no"}), flush=True)
        sys.exit(1)
    print(json.dumps({"seconds": [1.0, 2.0, 6.0], "values": [5.0, 4.0], "peak_bytes": 7}), flush=True)
"""


def test_sides_have_their_turns_one_after_the_other(tmp_path: Path) -> None:
    script, log = tmp_path / "side.py", tmp_path / "log"
    script.write_text(MADE_UP, encoding="utf-8")
    python = Path(sys.executable)
    sides = [Side(name, python, str(script), {"name": name, "log": str(log), "threads": 1}) for name in "abc"]
    first, second, broken = contest(sides, rounds=3, seconds=0.5)
    assert log.read_text(encoding="utf-8") == "abcbaab"
    for whole in (first, second):
        assert (whole.turns, whole.values, whole.peak_bytes) == ([2.0] * 3, [4.0] * 3, 7)
        assert (whole.tokens, whole.versions) == (10, {"python": "3"})
    assert (broken.turns, broken.error) == ([], "E: no")


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_every_row_runs_on_our_side(row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(
        folder=tmp_path,
        environments=tmp_path,
        rounds=1,
        seconds=0,
        threads=1,
        quick=True,
        attention=None,
        sides=[OURS, ROPE],
        command="",
    )
    ROWS[row](bench)
    assert all(side["turns"] for side in bench.numbers[row])
    assert (tmp_path / "table.md").read_text().count("\n| ours") == len(bench.numbers[row]) - row.startswith("training")
    assert bench.versions[OURS]["torch"] == torch.__version__
