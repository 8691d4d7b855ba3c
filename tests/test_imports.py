"""Who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "transformer_xl"
MODULES = sorted(SOURCE.rglob("*.py"))
LAYERS = [
    {
        "config",
        "data_config",
        "model_config",
        "inference_config",
        "errors",
        "registry",
        "settings",
        "scores",
        "hub",
    },
    {"model", "data"},
    {"training", "inference", "interop"},
    {
        *("build", "processes", "resume", "run", "run_folder", "run_length", "init_from"),
    },
    {"commands"},
]
PEERS_MAY_MEET = [LAYERS[0], LAYERS[3]]  # single files; the packages of one layer stay apart
FRAMEWORKS = {"lightning", "pytorch_lightning", "hydra", "omegaconf", "wandb"}
PLAIN = {*LAYERS[0], "model"}


def unit_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def imported(path: Path) -> Iterator[str]:
    """Full names of what a file imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_units(path: Path) -> set[str]:
    """The parts of this package that a file imports."""
    names = [name.split(".") for name in imported(path)]
    return {parts[1] for parts in names if parts[0] == SOURCE.name}


def layer_of(unit: str) -> int:
    (layer,) = [number for number, units in enumerate(LAYERS) if unit in units]
    return layer


def test_every_part_has_its_layer() -> None:
    parts = {unit_of(path) for path in MODULES} - {"__init__"}
    assert parts == set().union(*LAYERS)


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.parent != SOURCE or path.stem != "__init__"], ids=str
)
def test_imports_point_one_way(path: Path) -> None:
    unit = unit_of(path)
    for other in own_units(path) - {unit}:
        peers = any({unit, other} <= units for units in PEERS_MAY_MEET)
        assert layer_of(other) < layer_of(unit) or peers, f"{unit} imports {other}"


@pytest.mark.parametrize("path", [path for path in MODULES if unit_of(path) in PLAIN], ids=name_of)
def test_no_framework_is_named_in_the_model_or_the_configuration(path: Path) -> None:
    lazily = {"lightning"} if path.name == "config.py" else set()  # asked for the arguments of its Trainer
    assert not (FRAMEWORKS - lazily) & {name.split(".")[0] for name in imported(path)}


def test_omegaconf_and_hydra_stay_at_the_door() -> None:
    users = {
        unit_of(path) for path in MODULES if {"omegaconf", "hydra"} & {name.split(".")[0] for name in imported(path)}
    }
    assert users <= {"build", "commands"}


def loaded_by(*names: str) -> set[str]:
    """Top-level modules in memory after importing `names` in a fresh interpreter."""
    code = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_the_package_loads_neither_a_framework_nor_torch() -> None:
    loaded = loaded_by("transformer_xl", "transformer_xl.config")
    assert "transformer_xl" in loaded
    assert not (FRAMEWORKS | {"torch"}) & loaded


def test_help_loads_neither_a_framework_that_takes_seconds_nor_torch() -> None:
    """Of the whole program: it composes the configuration, and lists every group."""
    command = [sys.executable, "-X", "importtime", str(SOURCE.parents[1] / "train.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "d_model: 256" in done.stdout
    assert "transformer_xl" in loaded
    assert not {"torch", "lightning", "wandb", "torchmetrics", "matplotlib", "numpy", "pyarrow"} & loaded


def test_importing_the_model_loads_no_framework() -> None:
    files = [path for path in MODULES if unit_of(path) == "model"]
    names = [".".join((SOURCE.name, *path.relative_to(SOURCE).with_suffix("").parts)) for path in files]
    assert "transformer_xl.model.transformer" in names
    loaded = loaded_by(*(name.removesuffix(".__init__") for name in names))
    assert "torch" in loaded
    assert not FRAMEWORKS & loaded


def test_what_the_package_offers_is_found_and_nothing_else() -> None:
    import transformer_xl

    assert [name for name in transformer_xl.__all__ if getattr(transformer_xl, name).__name__ != name] == []
    with pytest.raises(AttributeError, match="generat"):
        _ = transformer_xl.generat
