"""How large the program may be; tests at most one and a half times the source."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from transformer_xl.registry import HOMES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "transformer_xl"
OF_MODELS = ("model", "position", "memory")

BOUNDS = {
    "source lines": 16_490,
    "source files": 95,
    "files that train.py reaches": 75,
    "files that generate.py reaches": 35,
    "files of the core": 30,
    "lines of the core": 5_145,
    "lines of the largest source file": 450,
    "lines of conf": 900,
    "test lines": 23_200,
    "lines of README": 200,
}


def lines(paths: Iterable[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def source() -> list[Path]:
    """The package, the entry points, the examples and scripts; not the parts that show how to write one's own."""
    others = [path for folder in ("examples", "scripts") for path in (ROOT / folder).rglob("*.py")]
    return [*SOURCE.rglob("*.py"), *ROOT.glob("*.py"), *(path for path in others if "parts" not in path.parts)]


@cache
def imports(path: Path) -> frozenset[Path]:
    """The files of the package that a file imports, wherever the import stands, but for type checking alone."""
    return frozenset(found for name in _names(ast.parse(path.read_text("utf-8"))) if (found := _file(name)))


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from _names(child)


def _file(name: str) -> Path | None:
    path = ROOT / "src" / name.replace(".", "/")
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file() and file != SOURCE / "__init__.py"), None)


def reach(*start: Path, kinds: Iterable[str] = ()) -> set[Path]:
    """The files of the package that are imported from these, and through the registry for parts of these kinds."""
    waiting = [*start, *(file for kind in kinds for name in HOMES[kind] if (file := _file(name)))]
    reached: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached.add(path)
            waiting += imports(path)
    return {path for path in reached if SOURCE in path.parents}


def measured() -> dict[str, int]:
    own = source()
    core = reach(
        SOURCE / "training" / "module.py",
        SOURCE / "data" / "datamodule.py",
        kinds=(*OF_MODELS, "optimizer", "scheduler"),
    )
    return {
        "source lines": lines(own),
        "source files": len(own),
        "files that train.py reaches": len(reach(ROOT / "train.py", kinds=HOMES)),
        "files that generate.py reaches": len(reach(ROOT / "generate.py", kinds=(*OF_MODELS, "tokenizer"))),
        "files of the core": len(core),
        "lines of the core": lines(core),
        "lines of the largest source file": max(lines([path]) for path in own),
        "lines of conf": lines((ROOT / "conf").rglob("*.yaml")),
        "test lines": lines((ROOT / "tests").rglob("*.py")),
        "lines of README": lines([ROOT / "README.md"]),
    }


@pytest.mark.parametrize("what", BOUNDS)
def test_the_program_stays_within_its_bounds(what: str) -> None:
    assert measured()[what] <= BOUNDS[what]
