"""What an adaptive vocabulary and the other settings of a network cannot be, in a sentence each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

Run = Callable[..., Outcome]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.cutoffs=[9,9]"], ["model.cutoffs", "[9, 9]", "increase"]),
        (["model.cutoffs=[9,4]"], ["model.cutoffs", "increase"]),
        (["model.cutoffs=[0,4]"], ["model.cutoffs", "above 0"]),
        (
            ["model.cutoffs=[4,8,12]", "model.div_val=4"],
            ["model.d_embed is 16", "div_val 4", "at least 64"],
        ),
        (["model.div_val=2"], ["model.div_val is 2", "model.cutoffs []"]),
        (["model.cutoffs=[4]", "model.tie_projs=[true]"], ["model.tie_projs", "2 entries"]),
        (["model.cutoffs=[100]", "data.tokenizer=byte"], ["model.cutoffs", "sorted by frequency", "byte"]),
        (["model=transformer_rope", "model.d_head=7"], ["model.d_head is 7", "even"]),
        (["model=lstm", "model.clamp_len=5"], ["model.clamp_len is 5", "lstm"]),
        (["model=lstm", "eval.same_length=true"], ["eval.same_length", "lstm"]),
        (["model=al_rfou", "model.position.n_positions=4"], ["data.segment_len is 5", "at most 4"]),
        (["eval.stride=6"], ["eval.stride is 6", "eval.segment_len 5"]),
        (["eval.stride=2", "eval.same_length=true"], ["eval.stride", "same_length"]),
        (["data.segment_len_sd=-1"], ["data.segment_len_sd is -1"]),
        (["data.half_segments=1.5"], ["data.half_segments is 1.5"]),
        (["data.loss=half", "data.segment_len=1"], ["data.loss", "data.segment_len 1"]),
        (["compile=true", "data.half_segments=0.05"], ["compile", "data.half_segments 0.05"]),
        (["compile=true", "model.attention=blockwise"], ["compile", "'blockwise'"]),
        (["model=lstm", "compile=true"], ["compile", "lstm"]),
        (["trainer.max_steps=0"], ["trainer.max_steps is 0", "init_from"]),
        (["init_vocabulary=extend"], ["init_vocabulary", "init_from"]),
        (["callbacks.weight_average.decay=0.9"], ["weight_average.decay", "start_step"]),
        (["data.newline=drop", "data.tokenizer=wikitext"], ["data.newline", "'wikitext'"]),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_before_any_work(
    tiny_run: Run, capsys: pytest.CaptureFixture[str], overrides: list[str], words: list[str]
) -> None:
    # a recurrent network has none of the settings of attention that `tiny_run` makes small
    base = ["data.tokenizer=char"] if "model=lstm" not in overrides else ["data=recall", "logger=none"]
    outcome = tiny_run(*base, *overrides, base="model=lstm" not in overrides)
    error = capsys.readouterr().err
    assert outcome.status == 2, error
    assert error.count("\n") == 1
    for word in words:
        assert word in error
    assert not outcome.folder.exists()


def test_cutoffs_beyond_the_vocabulary_are_cut_and_said_in_one_line(
    tiny_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = tiny_run("data.tokenizer=char", "model.cutoffs=[10,5000,6000]", "model.div_val=2")
    assert outcome.status == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "model.cutoffs" in line]
    assert len(said) == 1
    assert "[10, 5000, 6000]" in said[0]
    assert "[10]" in said[0]


def test_a_resume_keeps_the_cut_clusters(tiny_run: Run, tmp_path: Path) -> None:
    settings = ["data.tokenizer=char", "model.cutoffs=[10,5000]", "model.div_val=2", "scheduler.total_steps=8"]
    whole = tiny_run(*settings, "trainer.max_steps=8", name="whole")
    stopped = tiny_run(*settings, "trainer.max_steps=5", name="stopped")
    assert tiny_run(f"resume={stopped.folder}", "trainer.max_steps=8", base=False).status == 0
    assert stopped.values("train/loss") == whole.values("train/loss")


def test_a_resume_to_before_where_a_run_stands_is_one_sentence(
    tiny_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_run("trainer.max_steps=5").folder
    (folder / "summary.json").unlink()
    assert tiny_run(f"resume={folder}", "trainer.max_steps=4", base=False).status == 2
    error = capsys.readouterr().err
    assert "trainer.max_steps is 4" in error
    assert "at step 5" in error


def test_words_outside_the_vocabulary_are_told_on_every_run(
    tiny_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "words.txt"
    text.write_text("the cat sat\n" * 40 + "a dog ran\n" * 20)
    words = [f"data.path={text}", "data.tokenizer=word", "data.valid_fraction=0.2", "data.test_fraction=0.2"]
    for name in ("builds the cache", "finds it"):
        assert tiny_run(*words, name=name).status == 0
        printed = capsys.readouterr().out
        assert re.search(r"unknown  outside the vocabulary: valid \d+\.\d ?%, test 75\.0 ?%", printed)


def test_an_average_that_begins_after_the_last_step_is_said_in_one_line(
    tiny_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny_run("callbacks.weight_average.start_step=7").status == 0
    assert "callbacks.weight_average.start_step is 7, after the last step, 6: nothing" in capsys.readouterr().out
