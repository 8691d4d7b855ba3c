"""Training on documents: whole, shuffled, each read without what stood before it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import transformer_xl as txl
from tests.conftest import Outcome
from transformer_xl.data.subwords import SubwordTokenizer
from transformer_xl.data.tokenizer import LearnSettings, Part

Run = Callable[..., Outcome]


@pytest.fixture
def folder(text_file: Path, tmp_path: Path) -> Path:
    """Forty documents of different lengths."""
    folder = tmp_path / "documents"
    folder.mkdir()
    lines = text_file.read_text().splitlines(keepends=True)
    for number in range(40):
        (folder / f"{number:02}.txt").write_text("".join(lines[number * 5 : number * 5 + 1 + number % 4]))
    return folder


def settings(folder: Path) -> list[str]:
    return [f"data.path={folder}", "data.order=shuffled", "scheduler.total_steps=40", "trainer.limit_train_batches=7"]


def test_what_stands_before_a_document_changes_nothing_in_it(tiny_run: Run, folder: Path) -> None:
    """A border inside a segment, in the run's own lanes: what follows reads as the document alone."""
    model = txl.load_model(tiny_run(*settings(folder)).folder)
    assert model.vocabulary is not None
    first, second = (torch.as_tensor(model.vocabulary.encode(text)) for text in ("import os\n", "def f(x):\n"))
    end = torch.tensor([model.vocabulary.end_of_document])
    together = torch.cat([first, end, second])
    resets = torch.zeros(2, len(together), dtype=torch.bool)
    resets[:, 0] = True
    resets[0, len(first) + 1] = True
    with torch.inference_mode():
        empty = model.empty_memory(batch_size=2)
        log_probs = model.log_probs(together.expand(2, -1), empty, resets).log_probs_BTV
        alone = model.log_probs(second[None], model.empty_memory(batch_size=1)).log_probs_BTV
        running_on = model.log_probs(together[None], model.empty_memory(batch_size=1)).log_probs_BTV
    torch.testing.assert_close(log_probs[0, len(first) + 1 :], alone[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(log_probs[1], running_on[0], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(log_probs[1, len(first) + 1 :], alone[0], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_trained_model_reads_documents_with_the_end_that_it_knows_or_without(
    tiny_run: Run, folder: Path, text_file: Path
) -> None:
    with_end = tiny_run(*settings(folder), name="with")
    without = tiny_run(f"data.path={text_file}", name="without")
    for source, size in ((with_end, 257), (without, 256)):
        begun = tiny_run(*settings(folder), f"init_from={source.folder}", name=f"from-{source.folder.name}")
        assert begun.status == 0
        assert txl.load_model(begun.folder).vocab_size == size
    extended = tiny_run(*settings(folder), f"init_from={without.folder}", "init_vocabulary=extend", name="extended")
    assert txl.load_model(extended.folder).vocab_size == 257


def test_a_resume_with_another_tokenizer_of_the_same_name_is_refused(
    tiny_run: Run, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokenizer.json"
    for size in (300, 290):
        learnt = SubwordTokenizer.learn(
            [Part(text.read_bytes()) for text in sorted(folder.iterdir())], LearnSettings(bpe_size=size)
        )
        path.write_text(json.dumps(learnt.to_json()["tokenizer"]))
        if size == 300:
            begun = tiny_run(*settings(folder), f"data.tokenizer={path}", name="begun")
            assert begun.status == 0
    assert tiny_run(f"resume={begun.folder}", "trainer.max_steps=9", base=False).status == 2
    assert "gives another vocabulary than that of" in capsys.readouterr().err
    assert txl.load_model(begun.folder).vocabulary is not None
