"""The recipes of the paper: the same values however they are chosen, the published sizes, and three steps of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import transformer_xl as txl
from tests.conftest import QUIET, REPOSITORY, TINY_MODEL, Outcome
from tests.test_configs import composed
from transformer_xl.interop.published import save_transformers
from transformer_xl.model.base import make_model

EXPERIMENTS = REPOSITORY / "conf" / "experiment"
THREE_STEPS = [
    "recipe.segment_len=5",
    "recipe.batch_size=4",
    "recipe.max_steps=3",
    "recipe.val_every_n_steps=2",
    "trainer.accelerator=cpu",
    "trainer.precision=32-true",
]
WT103, WT2, LM1B, PTB, ENWIK8, TEXT8 = 267_735, 33_278, 793_471, 10_000, 204, 27
RECORDED = {
    "wt103_base": (WT103, 151_107_538),
    "wt103_large": (WT103, 285_170_506),
    "wt103_base_nvidia": (WT103, 191_950_298),
    "enwik8_base": (ENWIK8, 41_055_436),
    "enwik8_large": (ENWIK8, 277_231_820),
    "text8_base": (TEXT8, 40_964_635),
    "text8_large": (TEXT8, 277_050_395),
    "lm1b_base": (LM1B, 357_812_082),
    "lm1b_base_paper": (LM1B, 469_020_530),
    "lm1b_large": (LM1B, 841_295_982),
    "ptb": (PTB, 23_533_960),
    "wikitext2": (WT2, 32_402_878),
}


def header(path: Path) -> dict[str, str]:
    """Read what a recipe's first lines say of its scores."""
    return dict(re.findall(r"^# (paper|ours): (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE))


def scored() -> Iterator[str]:
    yield from sorted(path.stem for path in EXPERIMENTS.glob("*.yaml") if header(path))


def test_every_recipe_is_here() -> None:
    assert set(scored()) == {*RECORDED, "wt103_published"}


@pytest.mark.parametrize("name", list(scored()))
def test_a_recipe_states_the_papers_score_and_ours(name: str) -> None:
    assert header(EXPERIMENTS / f"{name}.yaml").keys() == {"paper", "ours"}


def test_the_readme_says_what_the_recipes_say() -> None:
    rows = re.findall(r"^\| `experiment=(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", readme(), flags=re.MULTILINE)
    said = {name: (paper, ours) for name, _, paper, ours in rows}
    assert said == {name: tuple(header(EXPERIMENTS / f"{name}.yaml").values()) for name in scored()}
    counts = {name: int(count.replace(",", "")) for name, count, _, _ in rows if name in RECORDED}
    assert counts == {name: count for name, (_, count) in RECORDED.items()}


def readme() -> str:
    return (REPOSITORY / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_a_recipes_model_has_its_recorded_number_of_parameters(name: str) -> None:
    vocab_size, expected = RECORDED[name]
    with torch.device("meta"):
        model = make_model(composed(f"experiment={name}", "data.dir=some").model, vocab_size=vocab_size)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "model", "data"),
    [
        ("wt103_base", "txl_base", "wikitext103"),
        ("wt103_large", "txl_large", "wikitext103"),
        ("enwik8_base", "txl_char_base", "enwik8"),
        ("enwik8_large", "txl_char_large", "enwik8"),
        ("text8_base", "txl_char_base", "text8"),
        ("lm1b_base", "txl_lm1b_base", "lm1b"),
        ("lm1b_large", "txl_lm1b_large", "lm1b"),
    ],
)
def test_an_experiment_only_combines_choices(experiment: str, model: str, data: str) -> None:
    assert composed(f"experiment={experiment}", "data.dir=some") == composed(
        f"model={model}", f"data={data}", "data.dir=some"
    )


def test_line_ends_are_no_symbols_of_enwik8() -> None:
    data: Any = composed("experiment=enwik8_base", "data.dir=some").data
    assert data.newline == "drop"


def words(rows: int, *, distinct: int) -> str:
    """Lines of words, the earlier ones of the alphabet the more frequent."""
    lines = []
    for row in range(rows):
        lines.append(" ".join(f"w{(row * 7 + place * place) % (1 + place % distinct)}" for place in range(12)))
    return "\n".join(lines) + "\n"


def published_files(kind: str, folder: Path) -> Path:
    """Write a small corpus under the names that the published one has."""
    text = words(60, distinct=40)
    files = {
        "wikitext103": {f"wiki.{split}.tokens": text for split in ("train", "valid", "test")},
        "wikitext2": {f"wiki.{split}.tokens": text for split in ("train", "valid", "test")},
        "ptb": {f"{split}.txt": text for split in ("train", "valid", "test")},
        "enwik8": {"enwik8": text},
        "text8": {"text8": re.sub(r"[^a-z]+", " ", text)},
        "lm1b": {
            "training-monolingual.tokenized.shuffled/news.en-00001-of-00100": text,
            "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050": text,
        },
    }[kind]
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_a_recipe_trains_three_steps_at_toy_width(name: str, tiny_run: Callable[..., Outcome], tmp_path: Path) -> None:
    config: Any = composed(f"experiment={name}", "data.dir=some")
    narrower = config.model.div_val ** len(config.model.cutoffs)
    outcome = tiny_run(
        f"experiment={name}",
        f"data.dir={published_files(config.data.kind, tmp_path / 'corpus')}",
        f"data.cache_dir={tmp_path / 'corpora'}",
        *TINY_MODEL,
        *([f"model.d_embed={narrower}"] if narrower > 16 else []),
        *(["model.cutoffs=[4,8,12]"] if config.model.cutoffs else []),
        *THREE_STEPS,
        *(["callbacks.weight_average.start_step=2"] if config.callbacks.weight_average.start_step else []),
        *QUIET,
        "callbacks.report.memory_tokens=50",
        base=False,
    )
    assert outcome.status == 0
    losses = outcome.values("train/loss")
    assert len(losses) == 3
    assert all(loss is not None and loss > 0 for loss in losses.values())
    saved = yaml.safe_load((outcome.folder / "config.yaml").read_text())
    assert saved["optimizer"]["kind"] == ("lamb" if "nvidia" in name else "adam")
    averaged = "averaged" in outcome.checkpoint()
    assert averaged == (name in ("ptb", "wikitext2"))


def test_published_weights_are_scored_from_nothing_and_from_zeros_beside_the_papers_score(
    tiny_run: Callable[..., Outcome], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = published_files("wikitext103", tmp_path / "corpus")
    data = [f"data.dir={corpus}", f"data.cache_dir={tmp_path / 'corpora'}"]
    trained = tiny_run("data=wikitext103", *data, *TINY_MODEL, *THREE_STEPS, *QUIET, name="trained", base=False)
    assert trained.status == 0
    save_transformers(txl.load_model(trained.folder), tmp_path / "published")
    capsys.readouterr()
    scored_run = tiny_run(
        "experiment=wt103_published",
        f"init_from={tmp_path / 'published'}",
        *data,
        "trainer.accelerator=cpu",
        "trainer.precision=32-true",
        name="scored",
        base=False,
    )
    assert scored_run.status == 0
    printed = capsys.readouterr().out
    assert "18.3 ppl in the paper" in printed
    metrics = scored_run.summary["metrics"]
    assert metrics.keys() == {"test", "test_zero_start"}
    lengths = {"segment_len": 128, "mem_len": 1600, "clamp_len": 1000, "same_length": True}
    assert all(values.items() >= lengths.items() for values in metrics.values())
    assert metrics["test"]["ppl"] != metrics["test_zero_start"]["ppl"]
    assert metrics["test"]["tokens"] == len((corpus / "wiki.test.tokens").read_text().split()) + 60 - 1
