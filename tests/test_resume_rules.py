"""Every setting stands in exactly one class of the table of what a resume may change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

import pytest

from tests.conftest import REPOSITORY
from transformer_xl.config import Config
from transformer_xl.registry import names
from transformer_xl.resume_rules import RULES, Change, refusal, who_may_change
from transformer_xl.settings import Settings


def keys_of(cls: type[Settings], prefix: str = "") -> Iterator[str]:
    """Dotted names of all settings, of every choice of every group."""
    for name, field in cls.model_fields.items():
        options = (field.annotation, *get_args(field.annotation))
        groups = [option for option in options if isinstance(option, type) and issubclass(option, Settings)]
        if not groups:
            yield prefix + name
        for group in groups:
            yield from keys_of(group, f"{prefix}{name}.")
    for choice in cls.__subclasses__():
        yield from keys_of(choice, prefix)


names("scheduler")  # which imports the settings of all shipped kinds
KEYS = sorted(set(keys_of(Config)))


def test_every_key_is_in_exactly_one_class() -> None:
    assert {"seed", "model.n_layer", "data.path", "trainer.devices", "callbacks.checkpoint.keep"} <= set(KEYS)
    for key in KEYS:
        named = [change for change, names in RULES.items() if key in names]
        grouped = [change for change, names in RULES.items() if f"{key.partition('.')[0]}.*" in names]
        classes = named or grouped
        assert len(classes) == 1, f"{key} stands in {classes}"
        assert who_may_change(key) is classes[0]


def test_the_table_names_nothing_that_is_no_setting() -> None:
    for listed in RULES.values():
        for name in listed:
            assert any(key == name or (name.endswith(".*") and key.startswith(name[:-1])) for key in KEYS), name


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("trainer.devices", Change.RESUME),
        ("trainer.max_steps", Change.RESUME),
        ("scheduler.total_steps", Change.RESUME),
        ("callbacks.checkpoint.every_n_train_steps", Change.RESUME),
        ("data.path", Change.RESUME),
        ("optimizer.lr", Change.BRANCH),
        ("trainer.precision", Change.NOBODY),
        ("data.batch_size", Change.NOBODY),
        ("model.mem_len", Change.NOBODY),
    ],
)
def test_who_may_change_what(key: str, change: Change) -> None:
    assert who_may_change(key) is change
    assert (refusal(key, is_branch=False) is None) == (change is Change.RESUME)
    assert (refusal(key, is_branch=True) is None) == (change is not Change.NOBODY)


def test_the_readme_has_the_same_table() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (a resume|only a branch|nobody) \|(.*)\|$", readme, flags=re.MULTILINE)
    written = {who: set(re.findall(r"`([a-z_.*]+)`", names)) for who, names in rows}
    classes = {"a resume": Change.RESUME, "only a branch": Change.BRANCH, "nobody": Change.NOBODY}
    assert written == {who: set(RULES[change]) for who, change in classes.items()}
