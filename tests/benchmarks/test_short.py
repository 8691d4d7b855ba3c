"""The benchmark's own results, at toy size: what is measured is the work that the tables say; no time is judged."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.benchmarks.contest import SIDES, Result, Side, contest
from tests.benchmarks.growth import Point, agreement
from tests.benchmarks.rows import figures
from tests.benchmarks.streams import window_row, window_works
from tests.benchmarks.tables import comparison, spread, times_faster
from tests.benchmarks.works import (
    Request,
    model_settings,
    reading_flops,
    streaming_flops,
    text_flops,
    training_flops,
    work,
    zipf_shares,
)
from transformer_xl.model.base import LanguageModel, make_model
from transformer_xl.model_config import parse_model

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
    """Give a work, and the model that it began with."""
    torch.manual_seed(request["seed"])
    reference = make_model(parse_model(request["model"]), vocab_size=request["vocab_size"])
    torch.manual_seed(request["seed"])
    return ours.make_work(request), reference


def drawn_by(work: Any, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Give a list that fills with the text that a class of works draws from now on."""
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
        norm = gradient_norm(list(model.parameters()))
        for parameter in model.parameters():
            parameter.grad *= min(1.0, 0.25 / norm)
        optimizer.step()
        expected.append(loss.item())
    assert side.tokens == 10
    assert memory.length_B.tolist() == [7, 7]  # type: ignore[attr-defined]
    assert losses == pytest.approx(expected[-2:], rel=1e-5)
    assert gradient_norm(side._parameters) == pytest.approx(0.25, rel=1e-4)  # Adam alone hides how it was clipped
    assert len(texts) == 6  # two fill the memory, two warm, two are measured


def gradient_norm(parameters: list[Any]) -> float:
    return float(torch.stack([parameter.grad.norm() for parameter in parameters]).norm())


def test_streaming_has_the_losses_of_one_pass(ours: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = drawn_by(ours.Evaluation, monkeypatch)
    side, model = made(ours, toy("evaluation", same_length=True, clamp_len=4))
    loss = side.step(side.draw())
    reader = model.with_context(same_length=True, clamp_len=4)
    expected = read_at_once(reader, torch.cat([texts[0][:, :1], *(text[:, 1:] for text in texts)], dim=1), mem_len=7)
    assert loss == pytest.approx(float(expected[0, -5:].mean()), rel=1e-5)


def test_a_whole_text_has_the_losses_of_one_pass(ours: ModuleType) -> None:
    side, model = made(ours, toy("text", mem_len=40, text_len=13))
    tokens_BT, targets_BT = side.draw()
    text = torch.cat([tokens_BT, targets_BT[:, -1:]], dim=1)
    assert side.step((tokens_BT, targets_BT)) == pytest.approx(
        float(read_at_once(model, text, mem_len=40).mean()), rel=1e-5
    )
    assert side.tokens == 13


@torch.no_grad()
def read_at_once(model: LanguageModel, text_BT: Tensor, *, mem_len: int) -> Tensor:
    """Give the losses of a text that is read in one segment."""
    log_probs, _ = model.eval().log_probs(text_BT[:, :-1], model.empty_memory(batch_size=1, mem_len=mem_len))
    return -log_probs.gather(-1, text_BT[:, 1:, None])[..., 0]


@torch.no_grad()
def test_generation_makes_the_likeliest_tokens_of_one_pass(ours: ModuleType) -> None:
    side, model = made(ours, toy("generation", mem_len=40, fill=7, made=3))
    torch.manual_seed(1111)
    make_model(parse_model(toy("generation", mem_len=40)["model"]), vocab_size=V)  # the text is drawn after the weights
    text = ours.Text(toy("generation"))
    read = torch.cat([text.segment(5)[0], text.segment(2)[0]], dim=1)
    memory = model.eval().empty_memory(batch_size=1, mem_len=40)
    for _ in range(5):
        best = model.log_probs(read, memory).log_probs_BTV[0, -1].argmax()
        read = torch.cat([read, best.view(1, 1)], dim=1)
    side.step(None)
    assert side._token == int(read[0, -1])
    assert len(set(read[0, 7:].tolist())) > 1


@torch.no_grad()
def test_a_window_sees_itself_alone_and_counts_its_last_token(ours: ModuleType) -> None:
    _, request = window_works(bench(), length=9)
    side, model = made(ours, request)
    for _ in range(2):
        tokens_BT, targets_BT = side.draw()
        assert (targets_BT != -100).tolist() == [[False] * 8 + [True]]
        log_probs, _ = model.eval().log_probs(tokens_BT, model.empty_memory(batch_size=1))
        assert side.step((tokens_BT, targets_BT)) == pytest.approx(
            -float(log_probs[0, -1, targets_BT[0, -1]]), rel=1e-5
        )


def bench() -> Any:
    from tests.benchmarks.bench import Bench

    return Bench(
        folder=Path(), environments=Path(), rounds=1, seconds=0, threads=1, quick=True, attention=None, sides=None,
        command="",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["txl_char_base", "transformer_rope", "txl_base"])
def test_the_products_alone_are_the_operations_that_the_model_counts(ours: ModuleType, name: str) -> None:
    request = toy("training", name, batch_size=4, segment_len=7, vocab_size=1000)
    request["model"]["cutoffs"] = [100, 500] if name == "txl_base" else []
    request["cluster_shares"] = [0.5, 0.25, 0.25] if name == "txl_base" else [1.0]
    _, model = made(ours, request)
    products = import_module("products").step_products(model, request)
    assert sum(product.flops for product in products) == training_flops(request)


def test_operations_of_streaming_and_of_a_window() -> None:
    model = model_settings("txl_char_base", quick=True, attention=None)  # 2 layers, D 32, F 64
    request = work("evaluation", model, vocab_size=V)
    head = 2 * 32 * V
    a_layer = 2 * 32 * 32 * 4 + 2 * 2 * 32 * 64  # queries, keys, values, output; feed-forward
    assert streaming_flops(request, keys=10) == 2 * (a_layer + 3 * 2 * 32 * 10) + head
    vanilla = work("window", model_settings("vanilla", quick=True, attention=None), vocab_size=V, segment_len=9)
    assert reading_flops(vanilla) == 9 * (2 * (a_layer + 2 * 2 * 32 * 5) + head)
    text = request | {"task": "text", "text_len": 7, "segment_len": 3, "mem_len": 4}
    keys = (1 + 2 + 3) + (4 + 5 + 6) + (4 + 1)
    assert text_flops(text) == 7 * (2 * a_layer + head) + 2 * 3 * 2 * 32 * keys + 2 * 2 * 32 * 32 * 7


def test_ids_are_drawn_as_the_shares_say(ours: ModuleType) -> None:
    shares = zipf_shares((0, 10, 100, 1000))
    assert sum(shares) == pytest.approx(1)
    torch.manual_seed(0)
    ids = ours.Text({"batch_size": 2, "vocab_size": 1000, "ids": "zipf"}).segment(20_000)[0]
    assert [float((ids < edge).double().mean()) for edge in (10, 100)] == pytest.approx(
        [shares[0], shares[0] + shares[1]], abs=0.01
    )


def test_a_step_in_which_the_process_was_stopped_does_not_count(ours: ModuleType) -> None:
    class Stopped:
        tokens = 1
        done = 0

        def draw(self) -> None:
            self.done += 1

        def step(self, drawn: None) -> float:
            if self.done == 2:
                os.kill(os.getpid(), signal.SIGCONT)
            return float(self.done)

    before = signal.getsignal(signal.SIGCONT)
    try:
        seconds, values = import_module("serving").measure(Stopped(), at_least=0, steps=3)
    finally:
        signal.signal(signal.SIGCONT, before)
    assert values == [1.0, 3.0, 4.0]
    assert len(seconds) == 3


def result(name: str, *turns: float, tokens: int = 100, peak: int = 10**9, **more: Any) -> Result:
    return Result(name=name, turns=list(turns), tokens=tokens, peak_bytes=peak, **more)


def test_ratios_are_taken_round_by_round() -> None:
    peer, own = result("peer", 1.0, 10.0, 1.0), result("ours", 0.25, 5.0, 0.5)
    assert times_faster(own, peer) == spread([4.0, 2.0, 2.0]) == (2.0, 2.0, 4.0)
    assert times_faster(result("ours", 1.0, tokens=50), result("peer", 1.0)).median == 0.5
    with pytest.raises(ValueError, match="zip"):
        times_faster(result("ours", 1.0), peer)


def test_a_table_says_speeds_ratios_memory_and_what_fails() -> None:
    results = [
        result("peer", 1.0, 1.25, 1.0, peak=2 * 10**9),
        result("ours", 0.5, 0.5, 0.25),
        result("broken", error="it\nbroke"),
    ]
    table = comparison(results, peers=["peer"], mfu={"ours": 0.5}, gemm_limit={"ours": 600.0})
    assert table.splitlines()[2:] == [
        "| peer | 100 | 80 to 100 | 2.00 GB |  |  |  |  |",
        "| ours | 200 | 200 to 400 | 1.00 GB | 2.50 (2.00 to 4.00) | 0.50 | 50% | 600 |",
        "| broken | fails: it |  |  |  |  |  |  |",
    ]


def test_mfu_is_useful_operations_over_the_peak_of_the_same_precision() -> None:
    request = toy("training")
    flops = training_flops(request)
    results = [
        result("ours", 2.0),
        result("products of ours", 0.5),
        result("peak float32", 1.0, values=[flops / 2, flops, 0.0]),
    ]
    assert figures(results, {"ours": request}) == ({"ours": 0.5}, {"ours": 200.0})


def test_a_window_is_compared_with_operations() -> None:
    row = window_row(result("a", 0.1), result("b", 4.0, tokens=10), operations=500.0, printed=363.0)
    assert row == ["1,000", "2.5", "400 (400 to 400)", "500", "0.80", "363"]


def test_growth_is_normalised_at_the_largest_point() -> None:
    points = [Point(1, 10, 1.2, 0), Point(2, 20, 2.0, 0)]
    assert agreement(points) == pytest.approx([1.2, 1.0])


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
    steps = json.loads(line)["steps"]
    print(json.dumps({"seconds": [1.0, 2.0, 6.0][:steps], "values": [5.0, 4.0], "peak_bytes": 7}), flush=True)
"""


def test_sides_have_their_turns_one_after_the_other(tmp_path: Path) -> None:
    script, log = tmp_path / "side.py", tmp_path / "log"
    script.write_text(MADE_UP, encoding="utf-8")
    sides = [
        Side(
            name=name, python=Path(sys.executable), script=script, request={"name": name, "log": str(log), "threads": 1}
        )
        for name in "abc"
    ]
    first, second, broken = contest(sides, rounds=3, seconds=0.5, steps=3)
    assert log.read_text(encoding="utf-8") == "abcbaab"
    assert first.as_numbers() | {"name": "b"} == second.as_numbers()
    assert (first.turns, first.steps, first.values, first.peak_bytes) == ([2.0] * 3, 9, [4.0] * 3, 7)
    assert (first.tokens, first.versions) == (10, {"python": "3"})
    assert (broken.turns, broken.error) == ([], "E: no")


def test_our_side_is_a_process_that_gives_what_the_model_gives(ours: ModuleType) -> None:
    request = toy("training", batch_size=2)
    (measured,) = contest(
        [Side(name="ours", python=Path(sys.executable), script=SIDES / "of_ours.py", request=request)],
        rounds=2,
        seconds=0,
    )
    here, _ = made(ours, request)
    assert measured.error is None
    assert measured.values == pytest.approx([here.step(here.draw()) for _ in range(2)], rel=1e-5)
    assert measured.steps == 2
    assert measured.peak_bytes > 10**7
    assert measured.versions["torch"] == torch.__version__
