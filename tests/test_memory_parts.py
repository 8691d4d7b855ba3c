"""Parts from outside that carry memory: what each promises by itself, and in the program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import transformer_xl as txl
from tests.conftest import PARTS, TINY_MODEL, Outcome, parts_forgotten, plugins, tiny_overrides
from tests.model.tiny import V, assert_equal_to, cut, random_tokens, read
from tests.oracles.tiny import SIZE
from tests.training.processes import assert_same_run, exact_run
from transformer_xl.commands import cli
from transformer_xl.commands.evaluate import evaluate
from transformer_xl.commands.generate import generate
from transformer_xl.commands.score import score
from transformer_xl.model.base import make_model
from transformer_xl.model.memory import Memory, memory_from_state_dict

Run = Callable[..., Outcome]
EXACT = 1e-9


class Part(NamedTuple):
    """What chooses a part at toy size, and whether its predictions do not depend on where a text is cut."""

    chosen: list[str]
    invariant: bool = True


PARTS_WITH_MEMORY = {
    "alibi": Part(["model/position=alibi", *TINY_MODEL]),
    "compressive": Part(["model=compressive", "model.rate=3", "model.compressed_len=4", *TINY_MODEL]),
    "gated_delta": Part(["model=gated_delta", *TINY_MODEL, "data.bptt_segments=2"]),
    "linear_recurrence": Part(["model=linear_recurrence", *SIZE]),
    "memory_tokens": Part(
        ["model=memory_tokens", "model.n_memory=3", *TINY_MODEL, "data.bptt_segments=2"], invariant=False
    ),
}
"""File of a part -> what is known of it."""
every_part = pytest.mark.parametrize("name", PARTS_WITH_MEMORY)
every_invariant_part = pytest.mark.parametrize(
    "name", [name for name, part in PARTS_WITH_MEMORY.items() if part.invariant]
)


@pytest.fixture(scope="module", autouse=True)
def _as_before() -> Iterator[None]:
    with parts_forgotten():
        yield


@pytest.fixture(scope="module")
def configs() -> dict[str, Any]:
    files = [str(PARTS / f"{name}.py") for name in PARTS_WITH_MEMORY]
    return {name: txl.compose(*part.chosen, plugins=files).model for name, part in PARTS_WITH_MEMORY.items()}


@pytest.fixture
def model(name: str, configs: dict[str, Any]) -> Any:
    """A model whose every weight matters."""
    torch.manual_seed(0)
    model = make_model(configs[name], vocab_size=V).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.25 * torch.randn_like(parameter))
    return model


def tensors(memory: Memory) -> dict[str, Tensor]:
    found = {name: value for name, value in memory.state_dict().items() if isinstance(value, Tensor)}
    return {name: tensor for name, tensor in found.items() if tensor.is_floating_point()}


def read_to_train(model: Any, *inputs: Any, detach: bool = True) -> tuple[Tensor, Tensor, Memory]:
    """Return the targets' losses, the sum that training minimizes, and the memory."""
    (nll_BT, memory), auxiliary = model.training_losses(*inputs, detach=detach)
    return nll_BT, nll_BT.sum() + (0 if auxiliary is None else auxiliary), memory


def random_pieces(length: int, *, most: int, seed: int) -> list[int]:
    """Lengths that are drawn, of which the sum is this one."""
    generator, pieces = torch.Generator().manual_seed(seed), []
    while sum(pieces) < length:
        drawn = int(torch.randint(1, most + 1, (), generator=generator))
        pieces.append(min(drawn, length - sum(pieces)))
    return pieces


@every_invariant_part
@pytest.mark.parametrize("seed", range(3))
def test_it_does_not_matter_where_a_text_is_cut(model: Any, seed: int) -> None:
    tokens_BT = random_tokens(3, 80, seed=seed)
    resets_BT = torch.rand(3, 80, generator=torch.Generator().manual_seed(seed)) < 0.04
    whole, _ = read(model, tokens_BT, model.empty_memory(3, mem_len=90), [80], resets_BT)
    pieces = random_pieces(80, most=(3, 20, 70)[seed], seed=seed)
    in_pieces, _ = read(model, tokens_BT, model.empty_memory(3, mem_len=90), pieces, resets_BT)
    assert_equal_to(in_pieces, whole, within=EXACT)
    session = txl.stream(model, batch_size=3, mem_len=90)
    streamed = [session.log_probs(tokens_BT[:, piece], resets_BT[:, piece]) for piece in cut(80, pieces)]
    assert_equal_to(torch.cat(streamed, dim=1), whole, within=EXACT)


@every_part
def test_a_document_is_read_as_if_it_were_alone(name: str, model: Any) -> None:
    borders = {0: [5, 25], 1: [15], 2: []}  # where segments begin
    if PARTS_WITH_MEMORY[name].invariant:
        borders = {0: [3, 4, 28], 1: [17], 2: []}
    tokens_BT, resets_BT = random_tokens(3, 30), torch.zeros(3, 30, dtype=torch.bool)
    for lane, places in borders.items():
        resets_BT[lane, places] = True
    memory = model.empty_memory(3, mem_len=30)
    _, memory = read(model, random_tokens(3, 10, seed=2), memory, [5, 5])
    together, _ = read(model, tokens_BT, memory, [5] * 6, resets_BT)
    for lane, places in borders.items():
        for start, stop in pairwise([*places, 30]):
            document, size = tokens_BT[lane : lane + 1, start:stop], stop - start
            pieces = [5] * (size // 5) + [size % 5] * (size % 5 > 0)
            alone, _ = read(model, document, model.empty_memory(1, mem_len=30), pieces)
            assert_equal_to(together[lane : lane + 1, start:stop], alone, within=EXACT)
    session = txl.stream(model, batch_size=3, mem_len=30)
    session.log_probs(tokens_BT[:, :5])
    session.reset([1])
    fresh = model.log_probs(tokens_BT[:, 5:10], model.empty_memory(3, mem_len=30)).log_probs_BTV
    assert_equal_to(session.log_probs(tokens_BT[:, 5:10])[1], fresh[1], within=EXACT)


@every_part
def test_lanes_are_independent_and_memories_are_cut_and_joined_and_saved(model: Any, tmp_path: Path) -> None:
    tokens_BT, more_BT = random_tokens(3, 12), random_tokens(3, 5, seed=2)
    _, memory = read(model, tokens_BT, model.empty_memory(3), [5, 5, 2])
    expected = model(more_BT, memory).hidden_BTD
    lanes = [memory.lanes(slice(lane, lane + 1)) for lane in (2, 0, 1)]
    torch.save(type(memory).join(lanes).state_dict(), tmp_path / "memory.pt")
    again = memory_from_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    assert_equal_to(model(more_BT[[2, 0, 1]], again).hidden_BTD, expected[[2, 0, 1]], within=EXACT)
    for tensor in tensors(lanes[0]).values():
        tensor.fill_(7.0)  # of a copy
    assert torch.equal(model(more_BT, memory).hidden_BTD, expected)
    with pytest.raises(ValueError, match="2 lanes and the memory has 3"):
        model(more_BT[:2], memory)


@every_part
def test_without_mem_len_nothing_is_remembered(model: Any) -> None:
    tokens_BT = random_tokens(2, 10)
    _, memory = model(tokens_BT[:, :5], model.empty_memory(2, mem_len=0))
    alone = model(tokens_BT[:, 5:], model.empty_memory(2, mem_len=0)).hidden_BTD
    assert torch.equal(model(tokens_BT[:, 5:], memory).hidden_BTD, alone)


@every_part
def test_gradients_flow_through_memory_where_asked_for(name: str, model: Any) -> None:
    tokens_BT, targets_BT = random_tokens(2, 12), random_tokens(2, 12, seed=2)
    resets_BT = torch.zeros(2, 12, dtype=torch.bool)
    resets_BT[1, 3] = True
    model.train()

    def losses(pieces: list[int], *, detach: bool) -> Tensor:
        memory, summed = model.empty_memory(2, mem_len=20), torch.zeros((), dtype=torch.float64)
        for piece in cut(12, pieces):
            inputs = tokens_BT[:, piece], targets_BT[:, piece], memory, resets_BT[:, piece]
            _, loss, memory = read_to_train(model, *inputs, detach=detach)
            assert all(tensor.requires_grad is not detach for tensor in tensors(memory).values())
            summed = summed + loss
        return summed

    gradients = {}
    for pieces, detach in (((5, 7), False), ((5, 7), True), ((12,), True)):
        model.zero_grad(set_to_none=True)
        losses(list(pieces), detach=detach).backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
        gradients[pieces, detach] = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert (gradients[(5, 7), False] - gradients[(5, 7), True]).abs().max() > 1e-3
    if PARTS_WITH_MEMORY[name].invariant:
        assert_equal_to(gradients[(5, 7), False], gradients[(12,), True], within=EXACT)
    first, second = ((tokens_BT[:, piece], targets_BT[:, piece]) for piece in cut(12, [5, 7]))
    _, _, memory = read_to_train(model, *first, model.empty_memory(2, mem_len=20), detach=False)
    _, loss, _ = read_to_train(model, *second, memory)
    assert set(torch.autograd.grad(loss, [*tensors(memory).values()], allow_unused=True)) == {None}


@every_part
def test_autocast_to_bfloat16_changes_little_and_gradients_are_finite(model: Any) -> None:
    tokens_BT = random_tokens(2, 40)
    exact, _ = read(model, tokens_BT, model.empty_memory(2, mem_len=40), [20, 20])
    memory = model.float().empty_memory(2, mem_len=40)
    for piece in cut(40, [20, 20]):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            nll_BT, loss, memory = read_to_train(model, tokens_BT[:, piece], tokens_BT[:, piece], memory)
        expected = -exact[:, piece].gather(2, tokens_BT[:, piece, None])[..., 0]
        assert (nll_BT - expected).abs().mean() < 0.1
        loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.fixture
def settings(name: str, text_file: Path, tmp_path: Path) -> list[str]:
    chosen = PARTS_WITH_MEMORY[name].chosen
    return [*tiny_overrides(text_file, tmp_path, chosen), plugins(name), "model.dropout=0.1", "scheduler.total_steps=6"]


@pytest.mark.slow
@every_part
def test_a_run_stops_and_goes_on_bit_for_bit_and_its_model_is_saved(
    name: str, settings: list[str], tiny_run: Run, tmp_path: Path
) -> None:
    settings += ["trainer.limit_val_batches=0", "trainer.limit_test_batches=0"]
    whole = tiny_run(*settings, name="whole", base=False)
    stopped = tiny_run(*settings, "trainer.max_steps=4", name="stopped", base=False)
    resumed = tiny_run(plugins(name), f"resume={stopped.folder}", "trainer.max_steps=6", name="stopped", base=False)
    assert (whole.status, stopped.status, resumed.status) == (0, 0, 0)
    assert list(resumed.values("train/loss").values()) == list(whole.values("train/loss").values())
    for of_whole, of_resumed in zip(of_run(whole), of_run(resumed), strict=True):
        assert torch.equal(of_whole, of_resumed)

    model = txl.load_model(whole.folder)
    txl.save_model(model, tmp_path / "saved")
    prompt = {"prompt": "import ", "n_tokens": 9}
    assert [*txl.generate(txl.load_model(tmp_path / "saved"), **prompt)] == [*txl.generate(model, **prompt)]


def of_run(run: Outcome) -> Iterator[Tensor]:
    """Weights and every lane's memory after the last step."""
    checkpoint = run.checkpoint()
    yield from checkpoint["state_dict"].values()
    yield from tensors(memory_from_state_dict(checkpoint["train_memory"])).values()


@pytest.mark.slow
@every_part
def test_a_run_is_evaluated_and_continues_texts(
    name: str, settings: list[str], tiny_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny_run(*settings, "callbacks.report.memory_tokens=100", base=False)
    assert run.status == 0
    assert "test, memory 0" in capsys.readouterr().out
    used = [plugins(name), f"run={run.folder}"]
    assert cli.run("evaluate", evaluate, [*used, "eval.mem_len=[0,7]", "eval.max_tokens=200"]) == 0
    without, remembered = json.loads((run.folder / "evaluation.json").read_text())["evaluations"][-1]["results"]
    assert (without["mem_len"], remembered["mem_len"]) == (0, 7)
    assert without["loss"] != remembered["loss"]
    assert "│ mem_len=0" in capsys.readouterr().out
    assert cli.run("generate", generate, [*used, "prompt=import ", "sampling.n_tokens=9", "device=cpu"]) == 0
    expected = "".join(txl.generate(txl.load_model(run.folder), "import ", n_tokens=9, segment_len=5))
    assert capsys.readouterr().out == expected.removesuffix("\n") + "\n"
    (tmp_path / "texts.txt").write_text("import os, sys, re")
    assert cli.run("score", score, [*used, f"texts={tmp_path / 'texts.txt'}", "tokens=true", "device=cpu"]) == 0
    scored = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    model, nats = txl.load_model(run.folder), [line["nats"] for line in scored if "token" in line]
    ids_BT = torch.from_numpy(model.vocabulary.encode("import os, sys, re"))[None]
    log_probs_BTV, _ = read(model, ids_BT[:, :-1], model.empty_memory(1), [5, 5, 5, 2])
    assert_equal_to(torch.tensor([nats]), -log_probs_BTV.gather(2, ids_BT[:, 1:, None])[..., 0], within=1e-5)


@pytest.mark.slow
@every_part
def test_two_processes_train_as_one(name: str, text_file: Path, tmp_path: Path) -> None:
    chosen = PARTS_WITH_MEMORY[name].chosen
    one, two = (  # the one takes its lanes in two parts
        exact_run(text_file, tmp_path, devices, plugins(name), f"data.lane_chunks={3 - devices}", model=chosen)
        for devices in (1, 2)
    )
    assert_same_run(one, two)


# ---- what one part alone promises


@pytest.mark.parametrize("name", ["compressive"])
def test_the_oldest_rows_of_a_document_are_compressed_group_by_group(model: Any) -> None:
    tokens_BT, resets_BT = random_tokens(3, 60), torch.rand(3, 60, generator=torch.Generator().manual_seed(1)) < 0.04
    memory, rate, mem_len, most = model.empty_memory(3), 3, 7, 4
    for piece in cut(60, random_pieces(60, most=13, seed=1)):
        memory = model(tokens_BT[:, piece], memory, resets_BT[:, piece]).memory
        for lane in range(3):
            start = max([0, *resets_BT[lane, : piece.stop].nonzero()[:, 0].tolist()])
            rows = model.embedding(tokens_BT[lane, None, start : piece.stop])[0]  # what the first layer reads
            groups = max(0, len(rows) - mem_len) // rate
            compressed = model.convolutions[0](rows[: groups * rate].reshape(groups, rate * rows.shape[1]))[-most:]
            expected = torch.cat([compressed, rows[groups * rate :]])
            assert (int(memory.length_B[lane]), int(memory.compressed_B[lane])) == (len(expected), len(compressed))
            kept = memory.hidden_LBMD[0, lane]
            assert_equal_to(kept[memory.slots - len(expected) :], expected, within=EXACT)
            assert not kept[: memory.slots - len(expected)].any()
    assert int(memory.compressed_B.max()) == most


@pytest.mark.parametrize("name", ["compressive"])
def test_compression_alone_learns_from_what_it_loses(model: Any) -> None:
    tokens_BT = random_tokens(2, 25)
    memory = model(tokens_BT[:, :20], model.empty_memory(2)).memory
    inputs = tokens_BT[:, 20:], tokens_BT[:, 20:], memory
    optimizer, found = torch.optim.Adam(model.convolutions.parameters(), lr=0.01), []
    for _ in range(30):
        (nll_BT, _), auxiliary = model.training_losses(*inputs)
        found.append(auxiliary.item())
        optimizer.zero_grad()
        auxiliary.backward()
        optimizer.step()
    learning = {name.partition(".")[0] for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert learning == {"convolutions"}
    assert found[-1] < 0.5 * found[0]
    assert torch.equal(nll_BT, model.nll(*inputs).nll_BT)


@pytest.mark.parametrize("name", ["memory_tokens"])
def test_a_segment_reads_what_was_written_before_its_document_and_its_tokens(model: Any) -> None:
    tokens_BT, resets_BT = random_tokens(2, 10), torch.zeros(2, 5, dtype=torch.bool)
    resets_BT[1, 3] = True
    _, memory = model(tokens_BT[:, :5], model.empty_memory(2))
    read_BTV, after = model.log_probs(tokens_BT[:, 5:], memory, resets_BT)
    alone_BTV, alone = model.log_probs(tokens_BT[1:, 8:], model.empty_memory(1))
    assert_equal_to(read_BTV[1:, 3:], alone_BTV, within=EXACT)
    assert_equal_to(after.written_BMD[1:], alone.written_BMD, within=EXACT)
    changed = tokens_BT.clone()
    changed[:, 7] += 1 - 2 * (changed[:, 7] == V - 1).long()
    other_BTV, other = model.log_probs(changed[:, 5:], memory, resets_BT)
    assert_equal_to(other_BTV[:, :2], read_BTV[:, :2], within=EXACT)
    assert (other.written_BMD - after.written_BMD).abs().amax(dim=(1, 2)).tolist() > [1e-3, -1.0]
    without = make_model(txl.compose("model=txl_tiny", *TINY_MODEL).model, vocab_size=V).double().eval()
    without.load_state_dict(model.state_dict(), strict=False)
    plain_BTV = without.log_probs(tokens_BT, without.empty_memory(2, mem_len=0)).log_probs_BTV
    assert_equal_to(model.log_probs(tokens_BT, model.empty_memory(2)).log_probs_BTV, plain_BTV, within=EXACT)


@pytest.mark.parametrize("name", ["memory_tokens"])
def test_text_is_generated_in_whole_segments(model: Any) -> None:
    prompt = random_tokens(7).tolist()
    sampled = [*txl.generate(model, prompt, n_tokens=9, temperature=0.0, segment_len=5)]
    expected: list[int] = []
    for _ in range(9):
        text_BT = torch.tensor([prompt + expected])
        whole, rest = divmod(text_BT.shape[1] - 1, 5)
        log_probs_BTV, _ = read(model, text_BT, model.empty_memory(1), [5] * whole + [rest + 1])
        expected.append(int(log_probs_BTV[0, -1].argmax()))
    assert sampled == expected
