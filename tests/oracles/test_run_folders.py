"""What people have on their disks: run folders of every network, made before the redesign, and what they predict."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_xl as txl
from tests.oracles import recorded, tiny

RUNS = tiny.HERE / "runs"
CASES = sorted(path.name for path in RUNS.iterdir() if path.is_dir())
BEGUN = ["txl", "lstm", "saved_shaw"]
SENTENCE = "the cat sat on the mat\n1 2 3, and then? it's"


def tokens(vocab_size: int, *shape: int) -> Tensor:
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def observe(name: str, work: Path) -> dict[str, Any]:
    """Return losses of a text in two pieces, all predictions of its last place, and the vocabulary's ids."""
    model = txl.load_model(RUNS / name)
    assert not model.training
    tokens_BT = tokens(model.vocab_size, 2, 13)
    memory = model.empty_memory(2)
    losses, predictions = [], []
    for piece in (slice(0, 5), slice(5, 12)):
        log_probs_BTV = model.log_probs(tokens_BT[:, piece], memory).log_probs_BTV
        nll_BT, memory = model.nll(tokens_BT[:, piece], tokens_BT[:, piece.start + 1 : piece.stop + 1], memory)
        losses.append(nll_BT)
        predictions = log_probs_BTV[:, -1, :64]
    ids = [int(number) for number in model.vocabulary.encode(SENTENCE)]
    return {
        "vocab_size": model.vocab_size,
        "parameters": {name: list(parameter.shape) for name, parameter in model.named_parameters()},
        "nll": torch.cat(losses, dim=1).tolist(),
        "log_probs": predictions.tolist(),
        "ids": ids,
        "text": model.vocabulary.decode(ids),
    }


@pytest.mark.parametrize("name", CASES)
def test_an_old_folder_predicts_what_it_did(name: str, tmp_path: Path) -> None:
    recorded.assert_same(observe(name, tmp_path), recorded.read("run_folders")[name], within=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_it_is_read_in_a_session_and_saved_again_alike(name: str, tmp_path: Path) -> None:
    model = txl.load_model(RUNS / name)
    tokens_BT = tokens(model.vocab_size, 2, 12)
    txl.save_model(model, tmp_path / "saved")
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "config.json",
        "model.safetensors",
        "vocabulary.json",
    ]
    again = txl.load_model(tmp_path / "saved")
    memory, session = model.empty_memory(2), txl.stream(again, batch_size=2)
    for piece in (slice(0, 5), slice(5, 12)):
        with torch.no_grad():
            expected, memory = model.log_probs(tokens_BT[:, piece], memory)
        torch.testing.assert_close(session.log_probs(tokens_BT[:, piece]), expected, rtol=0, atol=1e-5)
    assert [name for name, _ in again.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert again.vocabulary.encode(SENTENCE).tolist() == model.vocabulary.encode(SENTENCE).tolist()


def test_a_run_folders_best_and_last_checkpoint_are_told_apart(tmp_path: Path) -> None:
    folder = RUNS / "txl_published"
    best, last = (txl.load_model(folder, checkpoint=which).state_dict() for which in ("best", "last"))
    by_path = txl.load_model(folder / "checkpoints" / "last.ckpt").state_dict()
    assert all(torch.equal(by_path[name], weight) for name, weight in last.items())
    shutil.copytree(folder, tmp_path / "young")
    (tmp_path / "young" / "checkpoints" / "best.ckpt").unlink()
    young = txl.load_model(tmp_path / "young").state_dict()
    assert all(torch.equal(young[name], weight) for name, weight in last.items())
    assert not all(torch.equal(best[name], weight) for name, weight in last.items())


@pytest.mark.parametrize("name", BEGUN)
def test_a_new_run_begins_from_it(name: str, tmp_path: Path) -> None:
    settings = [line for line in tiny.settings(tmp_path) if not line.startswith("model")]
    changes = [f"init_from={RUNS / name}", "model.dropout=0.0", "optimizer.lr=0", "recipe.batch_size=4"]
    run = tiny.train(tmp_path, *settings, *changes, "recipe.segment_len=5", "trainer.max_steps=3", base=False)
    assert run.status == 0, run.stderr
    before, after = txl.load_model(RUNS / name), txl.load_model(run.folder)
    assert after.vocab_size == before.vocab_size
    for weight, tensor in before.state_dict().items():
        assert torch.equal(after.state_dict()[weight], tensor), weight
    assert set(run.values("train/loss")) == {1, 2, 3}
    assert max(run.values("train/loss").values()) < 4.2
