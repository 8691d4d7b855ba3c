"""The shipped models and their recipes against the paper's tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from transformer_xl.commands.compose import compose
from transformer_xl.model.base import make_model
from transformer_xl.settings import parse_kind, plain

CONF = Path(__file__).parents[2] / "conf"
ENWIK8, TEXT8, BYTES = 204, 27, 256
PAPER_VOCABULARIES = [("txl_char_base", ENWIK8), ("txl_char_large", ENWIK8)]

PAPER_MODELS: dict[str, dict[str, Any]] = {
    "txl_char_base": {
        "n_layer": 12,
        "d_model": 512,
        "n_head": 8,
        "d_head": 64,
        "d_inner": 2048,
        "dropout": 0.1,
        "dropatt": 0.0,
        "mem_len": 512,
    },
    "txl_char_large": {
        "n_layer": 24,
        "d_model": 1024,
        "n_head": 8,
        "d_head": 128,
        "d_inner": 3072,
        "dropout": 0.15,
        "dropatt": 0.15,
        "mem_len": 768,
    },
}
AS_PUBLISHED = {
    "kind": "transformer",
    "position": {"kind": "relative"},
    "norm": "layer",
    "feed_forward": "relu",
    "clamp_len": None,
    "same_length": False,
    "pre_norm": False,
    "untie_r": False,
    "init_std": 0.02,
}
PAPER_RECIPES: dict[str, dict[str, Any]] = {
    "txl_char_base": {
        "segment_len": 512,
        "batch_size": 22,
        "lr": 2.5e-4,
        "warmup_steps": 0,
        "max_steps": 400_000,
        "gradient_clip_val": 0.25,
        "long_eval": {"segment_len": 80, "mem_len": 2100, "clamp_len": 820, "same_length": True},
    },
    "txl_char_large": {
        "segment_len": 768,
        "batch_size": 64,
        "lr": 2.5e-4,
        "warmup_steps": 4000,
        "max_steps": 400_000,
        "gradient_clip_val": 0.25,
        "long_eval": {"segment_len": 128, "mem_len": 3800, "clamp_len": 1000, "same_length": True},
    },
}


TINY = ["txl_tiny", "shaw", "vaswani", "al_rfou", "vanilla", "vanilla_512", "rnn", "gru", "lstm", "transformer_rope"]


def read(group: str, name: str) -> dict[str, Any]:
    """The settings of a choice with all that it begins from, as Hydra composes them."""
    return plain(getattr(compose(f"{group}={name}"), group))


def parameters(name: str, vocab_size: int) -> int:
    config = parse_kind("model", read("model", name))
    with torch.device("meta"):
        model = make_model(config, vocab_size=vocab_size)
    assert all(parameter.is_meta for parameter in model.parameters())
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "vocab_size", "expected"),
    [
        ("txl_char_base", ENWIK8, 41_055_436),
        ("txl_char_large", ENWIK8, 277_231_820),
        ("txl_char_base", TEXT8, 40_964_635),
        ("txl_char_large", TEXT8, 277_050_395),
    ],
)
def test_published_presets_have_the_published_number_of_parameters(name: str, vocab_size: int, expected: int) -> None:
    assert parameters(name, vocab_size) == expected


@pytest.mark.parametrize(
    ("name", "vocab_size"), [*((name, BYTES) for name in TINY), ("txl_small", BYTES), *PAPER_VOCABULARIES]
)
def test_presets_have_about_as_many_parameters_as_their_first_line_says(name: str, vocab_size: int) -> None:
    first_line = (CONF / "model" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    said = re.search(r"([\d.]+) million", first_line)
    assert said is not None
    assert parameters(name, vocab_size) / 1e6 == pytest.approx(float(said[1]), rel=0.05)


@pytest.mark.parametrize("name", TINY)
def test_the_models_to_compare_have_as_many_parameters_as_txl_tiny(name: str) -> None:
    assert parameters(name, BYTES) == pytest.approx(parameters("txl_tiny", BYTES), rel=0.03)


def test_the_two_without_memory_differ_in_their_segments_alone() -> None:
    assert read("model", "vanilla_512") == read("model", "vanilla")
    assert read("model", "vanilla") == read("model", "vaswani") | {"mem_len": 0}
    short, long = read("recipe", "vanilla"), read("recipe", "vanilla_512")
    assert {key for key in short if short[key] != long[key]} == {"segment_len", "batch_size"}
    assert long["segment_len"] == 512
    assert long["segment_len"] * long["batch_size"] == short["segment_len"] * short["batch_size"]


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_published_presets_have_the_papers_settings(name: str) -> None:
    expected = PAPER_MODELS[name] | AS_PUBLISHED
    model = read("model", name)
    assert {key: model[key] for key in expected} == expected


@pytest.mark.parametrize("name", PAPER_RECIPES)
def test_published_presets_train_and_score_as_in_the_paper(name: str) -> None:
    expected = PAPER_RECIPES[name]
    recipe = read("recipe", name)
    assert {key: recipe[key] for key in expected} == expected
    assert recipe["segment_len"] == read("model", name)["mem_len"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "model").glob("[!_]*.yaml")))
def test_every_preset_builds_and_has_a_recipe_of_its_name(name: str) -> None:
    assert parameters(name, BYTES) > 0
    assert (CONF / "recipe" / f"{name}.yaml").is_file()
