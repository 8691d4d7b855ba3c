"""Settings that cannot work are refused by name, before any file is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from transformer_xl.commands.compose import compose
from transformer_xl.errors import UserError

TEXT = ["data=text", "data.path=some.txt"]
TOKENS = ["data=tokens", "data.path=some.npy", "data.vocab_size=10"]
MISTAKES: list[tuple[list[str], list[str]]] = [
    (["model.cutoffs=[9,4]"], ["model.cutoffs", "increase"]),
    (["model.cutoffs=[4,8,12]", "model.div_val=8"], ["model.d_embed is 256", "at least 512"]),
    (["model.div_val=2"], ["model.div_val is 2", "model.cutoffs"]),
    (["model.cutoffs=[4]", "model.tie_projs=[true]"], ["model.tie_projs", "2 entries"]),
    (["model=transformer_rope", "model.d_head=7"], ["model.d_head is 7", "even"]),
    (
        ["model=lstm", "model.clamp_len=5", "eval.same_length=true"],
        ["model.clamp_len is 5", "eval.same_length", "lstm"],
    ),
    (["model=al_rfou", "model.position.n_positions=4"], ["data.segment_len is", "eval.segment_len is", "at most 4"]),
    (["eval.stride=600"], ["eval.stride is 600"]),
    (["data.half_segments=1.5"], ["data.half_segments is 1.5", "at most 1"]),
    (["compile=true", "model.attention=blockwise"], ["compile is true", "blockwise"]),
    (["compile=true", "model.recompute=layers"], ["compile is true", "model.recompute=none"]),
    (["model=lstm", "model.recompute=layers"], ["model.recompute is not a setting"]),
    (["trainer.max_steps=0"], ["trainer.max_steps is 0", "init_from"]),
    (["init_vocabulary=extend"], ["init_vocabulary", "init_from"]),
    (["callbacks.weight_average.decay=0.9"], ["weight_average.decay", "start_step"]),
    (["trainer.max_time=1:30"], ["trainer.max_time is '1:30', and must be DAYS:HOURS:MINUTES:SECONDS"]),
    (["trainer.max_time=5"], ["trainer.max_time is 5, and must be DAYS:HOURS:MINUTES:SECONDS"]),
    (["trainer.limit_val_batches=1.5"], ["trainer.limit_val_batches is 1.5", "a whole number or at most 1"]),
    (["data=text"], ["data.path is null", "text file"]),
    (["data=tokens", "data.path=x.npy"], ["data.vocab_size must say", "data.vocabulary"]),
    ([*TOKENS, "data.documents=marker"], ["data.documents is 'marker'", "'none', 'file' or 'record'"]),
    ([*TEXT, "data.documents=marker"], ["data.document_marker is None", "line between two"]),
    ([*TEXT, "data.bpe_size=10"], ["data.bpe_size is 10", "at least 256"]),
    ([*TEXT, "data.documents=none"], ["data.documents is 'none'", "data.reset_memory=document"]),
    ([*TEXT, "data.documents=none", "data.reset_memory=never", "data.split=hash"], ["data.split is 'hash'"]),
    (["data=wikitext103", "data.tokenizer=bpe"], ["data.tokenizer is 'bpe'", "for wikitext103"]),
    ([*TEXT, "data.tokenizer=chars"], ["data.tokenizer is 'chars'", "nearest is char"]),
    ([*TEXT, "data.tokenizer=bpe", "data.newline=drop"], ["data.newline is 'drop'", "'bpe'"]),
    ([*TEXT, "data.min_count=2", "data.lower_case=true"], ["data.min_count is 2", "data.lower_case is true", "'byte'"]),
    ([*TEXT, "data.valid_fraction=0.6", "data.test_fraction=0.4"], ["leaves no training text"]),
]


@pytest.mark.parametrize(("overrides", "words"), MISTAKES, ids=lambda value: " ".join(value))
def test_what_cannot_work_is_refused_by_name(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        compose(*overrides)
    for word in words:
        assert word in str(refused.value), word


@pytest.mark.parametrize(
    "overrides",
    [
        [*TEXT, "data.tokenizer=owner/name"],
        [*TEXT, "data.tokenizer=word", "data.newline=drop", "data.min_count=3", "data.lower_case=true"],
        [*TEXT, "data.documents=marker", "data.document_marker=<|end|>", "data.order=shuffled"],
        [*TOKENS, "data.documents=none", "data.reset_memory=never"],
        ["data=wikitext103", "data.documents=blank_line", "data.reset_memory=document"],
        [*TEXT, "data.split=hash", "data.max_eval_tokens=null"],
    ],
    ids=" ".join,
)
def test_what_can_work_passes(overrides: list[str]) -> None:
    compose(*overrides)


def test_a_resume_keeps_the_clusters_that_were_cut(tiny_run: Callable[..., Outcome]) -> None:
    settings = ["data.tokenizer=char", "model.cutoffs=[10,5000]", "model.div_val=2", "scheduler.total_steps=8"]
    whole = tiny_run(*settings, "trainer.max_steps=8", name="whole")
    stopped = tiny_run(*settings, "trainer.max_steps=5", name="stopped")
    assert tiny_run(f"resume={stopped.folder}", "trainer.max_steps=8", base=False).status == 0
    assert stopped.values("train/loss") == whole.values("train/loss")


def test_words_outside_the_vocabulary_are_told_on_every_run(
    tiny_run: Callable[..., Outcome], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "words.txt"
    text.write_text("the cat sat\n" * 40 + "a dog ran\n" * 20)
    words = [f"data.path={text}", "data.tokenizer=word", "data.valid_fraction=0.2", "data.test_fraction=0.2"]
    for name in ("builds the cache", "finds it"):
        assert tiny_run(*words, name=name).status == 0
        printed = capsys.readouterr().out
        assert re.search(r"unknown  outside the vocabulary: valid \d+\.\d ?%, test 75\.0 ?%", printed)
