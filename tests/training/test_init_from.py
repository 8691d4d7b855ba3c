"""`init_from=`: a new run that begins as a trained model left off, with its vocabulary or one that holds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import transformer_xl as txl
from tests.conftest import Outcome

Run = Callable[..., Outcome]
STILL = ["optimizer.lr=0", "trainer.max_steps=1", "trainer.val_check_interval=1"]
WORDS = "the cat sat on the mat and the dog sat on the log so it was and it is\n"


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, Path]:
    """A text, one of the same symbols, and one with others."""
    contents = {"first": WORDS * 12, "same": WORDS[::-1].strip() * 12, "other": (WORDS + "zebra! quite 7\n") * 12}
    paths = {name: tmp_path / f"{name}.txt" for name in contents}
    for name, path in paths.items():
        path.write_text(contents[name])
    return paths


@pytest.fixture
def source(tiny_run: Run, texts: dict[str, Path]) -> Path:
    """A trained model of characters, with an adaptive vocabulary."""
    outcome = tiny_run(
        f"data.path={texts['first']}",
        "data.tokenizer=char",
        "data.valid_fraction=0.2",
        "data.test_fraction=0.2",
        "model.cutoffs=[6,10]",
        "model.div_val=2",
        "model.untie_r=true",
        "model.dropout=0.1",
        name="source",
    )
    assert outcome.status == 0
    return outcome.folder


def begun(run: Run, source: object, text: Path, *overrides: str, name: str = "begun") -> Outcome:
    """Begin without the settings of `tiny_run`'s model: the source brings its own."""
    return run(
        f"init_from={source}",
        "data=text",
        f"data.path={text}",
        f"data.cache_dir={text.parent / 'corpora'}",
        "data.valid_fraction=0.2",
        "data.test_fraction=0.2",
        "recipe.batch_size=4",
        "recipe.segment_len=5",
        "logger=none",
        "callbacks.throughput.peak_flops=1e11",
        "callbacks.report.memory_tokens=0",
        "callbacks.sample.n_tokens=0",
        "trainer.accelerator=cpu",
        "trainer.precision=32-true",
        *overrides,
        name=name,
        base=False,
    )


def test_the_network_is_the_sources_to_the_bit_and_its_settings_too(
    tiny_run: Run, source: Path, texts: dict[str, Path]
) -> None:
    outcome = begun(tiny_run, source, texts["same"], *STILL, "model.dropout=0.3", "model.mem_len=11")
    assert outcome.status == 0
    before, after = txl.load_model(source), txl.load_model(outcome.folder)
    for name, weight in before.state_dict().items():
        assert torch.equal(after.state_dict()[name], weight), name
    saved = yaml.safe_load((outcome.folder / "config.yaml").read_text())
    assert (saved["model"]["d_model"], saved["model"]["cutoffs"], saved["model"]["untie_r"]) == (16, [6, 10], True)
    assert (saved["model"]["dropout"], saved["model"]["mem_len"], saved["eval"]["mem_len"]) == (0.3, 11, 11)
    assert saved["data"]["tokenizer"] == "char"
    assert after.vocabulary.hash() == before.vocabulary.hash()


def test_a_text_with_other_characters_is_refused_unless_the_vocabulary_is_extended(
    tiny_run: Run, source: Path, texts: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    refused = begun(tiny_run, source, texts["other"], name="refused")
    assert refused.status == 2
    assert "init_vocabulary=extend" in capsys.readouterr().err
    assert not refused.folder.exists()
    outcome = begun(tiny_run, source, texts["other"], *STILL, "init_vocabulary=extend")
    assert outcome.status == 0
    before, after = txl.load_model(source), txl.load_model(outcome.folder)
    old, new = before.vocabulary.symbols, after.vocabulary.symbols
    assert new[: len(old)] == old
    assert set(new[len(old) :]) == set("zebra! quite 7") - set(old)
    for name, weight in before.state_dict().items():
        assert torch.equal(after.state_dict()[name][: len(weight)], weight), name
    added = after.state_dict()["embedding.weights.2"][len(before.state_dict()["embedding.weights.2"]) :]
    assert added.shape == (len(new) - len(old), 4)
    assert 0.005 < float(added.std()) < 0.2


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.tokenizer=byte"], ["data.tokenizer", "'byte'", "'char'"]),
        (["model=txl_small"], ["init_from", "layers.2."]),
        (["model.n_layer=3"], ["init_from", "layers.2."]),
        (["model.d_inner=48"], ["feed_forward.0.weight"]),
        (["model.n_stacks=3"], ["model.n_stacks"]),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    tiny_run: Run,
    source: Path,
    texts: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    overrides: list[str],
    words: list[str],
) -> None:
    outcome = begun(tiny_run, source, texts["same"], *overrides)
    error = capsys.readouterr().err
    assert outcome.status == 2
    assert error.count("\n") == 1
    for word in words:
        assert word in error
    assert not outcome.folder.exists()


def test_symbols_that_are_no_text_are_refused(tiny_run: Run, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = tiny_run(f"init_from={source}", "data=recall", base=False)
    assert outcome.status == 2
    assert "recall" in capsys.readouterr().err
    extended = tiny_run(f"init_from={source}", "data=recall", "init_vocabulary=extend", base=False)
    assert extended.status == 2
    error = capsys.readouterr().err
    assert "recall" in error
    assert "or init_vocabulary=extend" not in error


def test_a_run_without_steps_cannot_be_resumed(
    tiny_run: Run, source: Path, texts: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begun(tiny_run, source, texts["same"], "trainer.max_steps=0").folder
    assert tiny_run(f"resume={folder}", "trainer.max_steps=3", base=False).status == 2
    assert "is finished, and holds no checkpoint" in capsys.readouterr().err


def test_a_source_without_a_vocabulary_is_taken_if_the_sizes_agree(
    tiny_run: Run, source: Path, texts: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = txl.load_model(source)
    model.vocabulary = None
    txl.save_model(model, tmp_path / "nameless")
    taken = begun(tiny_run, tmp_path / "nameless", texts["first"], *STILL, "data.tokenizer=char", name="taken")
    assert taken.status == 0
    refused = begun(tiny_run, tmp_path / "nameless", texts["other"], "data.tokenizer=char", name="refused")
    assert refused.status == 2
    assert "brings no vocabulary" in capsys.readouterr().err


def test_a_run_that_began_from_a_model_is_resumed_without_it(
    tiny_run: Run, source: Path, texts: dict[str, Path]
) -> None:
    fast = ["optimizer.lr=0.01", "trainer.val_check_interval=4", "init_vocabulary=extend"]
    whole = begun(tiny_run, source, texts["other"], *fast, "trainer.max_steps=4", name="whole")
    stopped = begun(
        tiny_run, source, texts["other"], *fast, "trainer.max_steps=2", "scheduler.total_steps=4", name="stopped"
    )
    for path in (source / "checkpoints").iterdir():
        path.unlink()
    assert tiny_run(f"resume={stopped.folder}", "trainer.max_steps=4", base=False).status == 0
    again = Outcome(stopped.folder, 0, "", "")
    assert again.values("train/loss") == whole.values("train/loss")


def test_no_steps_mean_a_test_of_the_source_alone(
    tiny_run: Run, source: Path, texts: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = begun(
        tiny_run,
        source,
        texts["same"],
        "trainer.max_steps=0",
        "callbacks.report.zero_start=true",
        "callbacks.report.compare_with=18.3 ppl in the paper",
    )
    assert outcome.status == 0
    printed = capsys.readouterr().out
    assert "18.3 ppl in the paper" in printed
    metrics: dict[str, Any] = outcome.summary["metrics"]
    assert metrics["test"]["checkpoint"] == "init_from"
    assert metrics["test"]["tokens"] == metrics["test_zero_start"]["tokens"]
    assert metrics["test"]["loss"] != metrics["test_zero_start"]["loss"]
