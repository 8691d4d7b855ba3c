"""What README and docs/ name is there: files, links, choices, settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from transformer_xl.commands.evaluate import EvaluateConfig
from transformer_xl.config import Config
from transformer_xl.inference_config import GenerateConfig, ScoreConfig
from transformer_xl.registry import HOMES, names
from transformer_xl.settings import names_in

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
CONF = REPOSITORY / "conf"
GROUPS = {path.name for path in CONF.iterdir() if path.is_dir()} | {"model/position"}
OF_HYDRA = {"hydra.run.dir", "hydra.sweep.dir"}
MISSPELT = {"model.n_layr"}
OF_FILES = (".py", ".md", ".yaml", ".txt", ".json", ".jsonl", ".pt", ".ckpt", ".safetensors", ".vocabulary")
IN_PARTS = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "examples" / "parts").glob("*.py"))
OWN_CHOICES = {"linear", "lion_small", "sentences", *re.findall(r'register\("\w+", "(\w+)"', IN_PARTS)}
"""Which the pages themselves add, and the parts of examples/."""


def without_python(page: Path) -> str:
    return re.sub(r"```python.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@pages
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pages
def test_every_file_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"(?<![\w/.])(?:src|conf|tests|docs|examples|scripts)/[\w./-]*\w", text):
        assert (REPOSITORY / name).exists(), name


def in_tree(block: str) -> Iterator[Path]:
    """Yield the paths of an annotated tree: names in the first column, folders with a slash, two blanks a level."""
    folders: list[tuple[int, Path]] = []
    for line in filter(str.strip, block.splitlines()):
        indent = len(line) - len(line.lstrip())
        folders = [(depth, path) for depth, path in folders if depth < indent]
        above = folders[-1][1] if folders else REPOSITORY
        for name in re.split(r"\s{2,}", line.strip())[0].split():
            yield above / name
            if name.endswith("/"):
                folders.append((indent, above / name))


def test_the_readmes_tree_is_the_repositorys() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if "src/transformer_xl/" in block]
    paths = list(in_tree(block))
    assert len(paths) > 20
    assert [str(path) for path in paths if not path.exists()] == []


@pages
def test_every_choice_that_is_named_exists(page: Path) -> None:
    text = without_python(page)
    for group, choices in re.findall(r"(?<![\w./-])([a-z]+(?:/[a-z]+)?)=([\w,]+)", text):
        if group in GROUPS:
            for choice in choices.split(","):
                is_shipped = (CONF / group / f"{choice}.yaml").is_file()
                assert is_shipped or choice in OWN_CHOICES or choice.isupper(), f"{group}={choice}"


@pages
def test_every_setting_that_is_named_is_known(page: Path) -> None:
    for kind in HOMES:
        names(kind)  # imports the modules that hold their settings
    known = {name for config in (Config, EvaluateConfig, ScoreConfig, GenerateConfig) for name in names_in(config)}
    heads = {name.partition(".")[0] for name in known if "." in name}
    text = without_python(page)
    for name in re.findall(r"(?<![\w./+])([a-z_]+(?:\.[a-z_]+)+)(?![\w./(])", text):
        if name.partition(".")[0] in heads and not name.endswith(OF_FILES):
            assert name in known | OF_HYDRA | MISSPELT, name


def test_the_journeys_name_files_and_functions_as_they_are() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    source = REPOSITORY / "src" / "transformer_xl"
    code = "\n".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    assert [
        name
        for name in re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", page)
        if not name.startswith("tests/") and not (source / name).is_file()
    ] == []
    assert [name for name in re.findall(r"`(\w+)\(\)`", page) if f"def {name}(" not in code] == []
    classes = [name for name in re.findall(r"`([A-Z][a-z]+[A-Za-z]+)`", page) if name not in ("OmegaConf", "Lightning")]
    assert [name for name in classes if f"class {name}" not in code] == []
    places = re.findall(r"`(\w+)(?:\(\))?`(?:\s+of\s+`\w+`)?\s+(?:of\s+|\()`([\w/]+\.py)`", page)
    assert len(places) > 20
    for name, file in places:
        assert re.search(rf"(?:def|class) {name}\b", (source / file).read_text(encoding="utf-8")), f"{name} in {file}"
