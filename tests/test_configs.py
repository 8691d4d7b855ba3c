"""Every shipped configuration composes, is complete, and says nothing twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import REPOSITORY
from transformer_xl.commands.compose import compose
from transformer_xl.config import Config
from transformer_xl.settings import plain

CONF = REPOSITORY / "conf"
PUBLISHED = ["wikitext103", "wikitext2", "enwik8", "text8", "lm1b", "ptb"]
GIVEN = {
    "text": ["data.path=some.txt"],
    "tokens": ["data.path=some.npy", "data.vocab_size=10"],
    **{name: ["data.dir=some"] for name in PUBLISHED},
}
COMPARISONS = ("ablation", "articles")


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml") if not path.stem.startswith("_"))


def rows_of(experiment: str, key: str = "rows") -> dict[str, str]:
    rows: dict[str, str] = yaml.safe_load((CONF / f"experiment/{experiment}.yaml").read_text())[key]
    return rows


def composed(*overrides: str) -> Config:
    return compose(*overrides)


COMBINATIONS = [
    *({"model": model, "data": data} for model in choices("model") for data in ("stdlib", "recall")),
    *({"data": data} for data in choices("data")),
    *({"optimizer": name} for name in choices("optimizer")),
    *({"scheduler": name} for name in choices("scheduler")),
    *({"logger": name} for name in choices("logger")),
    *({"experiment": name} for name in choices("experiment") if name not in (*COMPARISONS, "memory")),
    *({"experiment": "memory", "row": row, "task": "mqar", "seed": "1"} for row in rows_of("memory")),
    *({"experiment": name, "row": row, "data": "stdlib"} for name in COMPARISONS for row in rows_of(name)),
]


@pytest.mark.slow
@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_every_choice_composes_and_is_consistent(combination: dict[str, str]) -> None:
    overrides = [f"{group}={choice}" for group, choice in combination.items()]
    if combination.get("experiment") == "wt103_published":
        overrides += ["init_from=some/model", "model=txl_base"]
    of_experiment = re.search(r"override /data: (\w+)", experiment_text(combination))
    data = combination.get("data") or (of_experiment[1] if of_experiment else "stdlib")
    assert composed(*overrides, *GIVEN.get(data, []))


def experiment_text(combination: dict[str, str]) -> str:
    return (CONF / f"experiment/{combination['experiment']}.yaml").read_text() if "experiment" in combination else ""


def test_a_preset_brings_its_recipe() -> None:
    assert sorted(choices("recipe")) == sorted(choices("model"))
    config = composed("model=txl_char_base")
    assert (config.data.segment_len, config.data.batch_size, config.optimizer.lr) == (512, 22, 2.5e-4)
    assert (config.trainer.max_steps, config.trainer.gradient_clip_val) == (400_000, 0.25)


def test_evaluation_follows_training_unless_told_otherwise() -> None:
    config = composed("model.mem_len=33", "data.segment_len=11", "data.batch_size=3", "model.clamp_len=20")
    lengths = {"batch_size": 3, "segment_len": 11, "mem_len": 33, "clamp_len": 20, "same_length": False, "stride": None}
    assert dict(config.eval) == lengths


def test_another_argument_of_lightnings_trainer_is_handed_on() -> None:
    assert plain(composed("+trainer.sync_batchnorm=true").trainer)["sync_batchnorm"] is True


def test_nothing_in_conf_names_a_class() -> None:
    for path in CONF.rglob("*.yaml"):
        assert "_target_" not in path.read_text()


@pytest.mark.parametrize("path", [*CONF.glob("*/**/*.yaml"), CONF / "train.yaml"], ids=lambda path: path.name)
def test_every_setting_is_explained_on_its_line(path: Path) -> None:
    """On its line, or on that of the file that the choice begins from."""
    own = path.read_text().partition("\nhydra:")[0]
    if path.parent.name == "experiment":
        assert path.read_text().startswith("# @package _global_\n# ")
        return
    settings = [line for line in own.splitlines() if re.match(r"\s*[a-z_0-9]+: \S", line)]
    bare = [line for line in settings if " # " not in line and not line.startswith(("kind: ", "defaults: "))]
    explained = "".join(base.read_text() for base in bases(path))
    assert [line for line in bare if f"\n{line.partition(':')[0]}: " not in explained] == []


def bases(path: Path) -> Iterator[Path]:
    """The files that a choice begins from."""
    for name in re.findall(r"\ndefaults: \[(\w+)", path.read_text()):
        if name != "_self_":
            yield (base := path.parent / f"{name}.yaml")
            yield from bases(base)


def test_no_number_has_two_homes() -> None:
    """What the recipe says is said nowhere else: the other groups refer to it."""
    recipe_keys = {"batch_size", "lr", "warmup_steps", "max_steps", "gradient_clip_val"}
    for path in CONF.glob("*/*.yaml"):
        if path.parent.name in ("recipe", "experiment"):
            continue
        values = yaml.safe_load(path.read_text()) or {}
        for key in recipe_keys & set(values):
            assert str(values[key]).startswith("${recipe."), (path, key)
