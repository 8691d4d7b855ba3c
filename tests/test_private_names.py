"""Private names of libraries that the program uses: each is there, and stands in docs/architecture.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.connectors import signal_connector

from tests.conftest import REPOSITORY

SOURCE = REPOSITORY / "src" / "transformer_xl"
EPOCH_LOOP = Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False).fit_loop.epoch_loop
OWNERS = {
    "_SignalConnector": signal_connector,
    "_signal_connector": EPOCH_LOOP.trainer,
    "_broadcast_sigterm_tensor": EPOCH_LOOP,
    "_trainer": LightningModule(),
    "_modules": torch.nn.Module(),
    "_parameters": torch.nn.Module(),
    "_step_supports_amp_scaling": torch.optim.Adam([torch.zeros(1)], fused=True),
    "_indices": torch.eye(2).to_sparse(),
    "_values": torch.eye(2).to_sparse(),
    "_scaled_dot_product_efficient_attention": torch.ops.aten,
    "_cdata": torch.UntypedStorage(0),
    "_linear_pointwise": torch.ops.mkldnn,
    "_reorder_linear_weight": torch.ops.mkldnn,
    "_is_mkldnn_bf16_supported": torch.ops.mkldnn,
    # without an underscore, but documented nowhere
    "val_loop": EPOCH_LOOP,
    "max_steps": EPOCH_LOOP,
}


@pytest.mark.parametrize("name", OWNERS)
def test_a_private_name_is_there(name: str) -> None:
    assert hasattr(OWNERS[name], name)


def test_a_loops_checkpoint_has_the_counts_that_are_changed() -> None:
    assert {"state_dict", "epoch_loop.batch_progress"} <= EPOCH_LOOP.trainer.fit_loop.state_dict().keys()


def used(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield private names, and whether each is defined here: by def, class, assignment, or as an attribute of self."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, True
        elif isinstance(node, ast.Name):
            yield node.id, isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            yield node.attr, is_own and isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
            yield from ((str(given.value), False) for given in node.args[1:2] if isinstance(given, ast.Constant))


def test_no_other_private_name_is_used() -> None:
    names = [name for path in SOURCE.rglob("*.py") for name in used(ast.parse(path.read_text(encoding="utf-8")))]
    own = {name for name, is_defined in names if is_defined}
    foreign = {name for name, _ in names if name.startswith("_") and not name.startswith("__") and name not in own}
    public = {"_replace", "_asdict", "_fields", "_exit"}  # in spite of their underscore
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert foreign - public <= OWNERS.keys()
    assert [name for name in foreign - public if f"{name}`" not in page] == []
