"""Who may change which setting of a run: every one stands in exactly one class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from tests.conftest import REPOSITORY
from tests.test_configs import composed
from transformer_xl.config import Config
from transformer_xl.errors import UserError
from transformer_xl.registry import names
from transformer_xl.resume import A_BRANCH, ANY_RESUME, NOBODY, refuse_changes, who_may_change
from transformer_xl.run_folder import claim, slug
from transformer_xl.settings import Settings, plain

CLASSES = {"a resume": ANY_RESUME, "only a branch": A_BRANCH, "nobody": NOBODY}


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
        named = [who for who, listed in CLASSES.items() if key in listed]
        grouped = [who for who, listed in CLASSES.items() if f"{key.partition('.')[0]}.*" in listed]
        assert len(named or grouped) == 1, f"{key} stands in {named or grouped}"


def test_the_classes_name_nothing_that_is_no_setting() -> None:
    for name in (*ANY_RESUME, *A_BRANCH, *NOBODY):
        assert any(key == name or (name.endswith(".*") and key.startswith(name[:-1])) for key in KEYS), name


@pytest.mark.parametrize(
    ("key", "who"),
    [
        ("trainer.devices", "a resume"),
        ("scheduler.total_steps", "a resume"),
        ("callbacks.checkpoint.every_n_train_steps", "a resume"),
        ("optimizer.lr", "a branch"),
        ("trainer.precision", "nobody"),
        ("model.mem_len", "nobody"),
    ],
)
def test_who_may_change_what(key: str, who: str) -> None:
    assert who_may_change(key) == who
    config = composed("data=recall")
    before = plain(config)
    group, _, name = key.partition(".")
    node = before[group]
    while "." in name:
        part, _, name = name.partition(".")
        node = node[part]
    node[name] = "before"
    for is_branch, allowed in ((False, ["a resume"]), (True, ["a resume", "a branch"])):
        if who in allowed:
            refuse_changes(before, config, of="run", is_branch=is_branch)
        else:
            with pytest.raises(UserError, match=re.escape(f"{key} is")):
                refuse_changes(before, config, of="run", is_branch=is_branch)


def test_the_documentation_has_the_same_table() -> None:
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    rows = re.findall(r"^\| (a resume|only a branch|nobody) \|(.*)\|$", text, flags=re.MULTILINE)
    assert {who: set(re.findall(r"`([a-z_.*]+)`", listed)) for who, listed in rows} == {
        who: set(listed) for who, listed in CLASSES.items()
    }


def test_folders_of_one_name_are_numbered(tmp_path: Path) -> None:
    assert [claim(tmp_path / "runs", "a").name for _ in range(3)] == ["a", "a-2", "a-3"]


@pytest.mark.parametrize(
    ("name", "expected"), [("a/b", "a_b"), ("..", "__"), ("$x\n", "_x_"), ("汉" * 50, "汉" * 33), ("a;${b}", "a;_{b}")]
)
def test_a_name_becomes_one_file_name(name: str, expected: str) -> None:
    assert slug(name) == expected
