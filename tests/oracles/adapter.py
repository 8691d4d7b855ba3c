"""What the oracles need and no public name gives: the only file of this folder that may follow the code."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Done(NamedTuple):
    """What a command left."""

    status: int
    stdout: str
    stderr: str


def command(name: str, *arguments: str, stdin: str | None = None) -> Done:
    """Run `train`, `evaluate`, `score`, `generate`, `data` or `convert` in this process, as its script does."""
    main = importlib.import_module(f"transformer_xl.commands.{name}").main
    stdout, stderr = io.StringIO(), io.StringIO()
    argv, before_stdin = sys.argv, sys.stdin
    sys.argv = [f"{name}.py", *arguments]
    sys.stdin = io.StringIO(stdin) if stdin is not None else before_stdin
    status: Any = 0
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            main()
    except SystemExit as leaving:
        status = leaving.code or 0
    finally:
        sys.argv, sys.stdin = argv, before_stdin
    return Done(int(status), stdout.getvalue(), stderr.getvalue())


def compose(*overrides: str) -> Any:
    """Compose the configuration that `train.py` would have."""
    from transformer_xl.commands.compose import compose

    return compose(*overrides)


def build_model(*overrides: str, vocab_size: int) -> Any:
    """Build the network of a run's configuration; weights are drawn from torch's global generator."""
    from transformer_xl.model.base import make_model

    return make_model(compose(*overrides).model, vocab_size=vocab_size)


def contents(memory: Any) -> Tensor:
    """Return what a memory holds, lanes at axis -3: (L, B, M, D), or of a recurrent network (K, L, B, 1, D)."""
    hidden = getattr(memory, "hidden_LBMD", None)
    return memory.state_KLBD.unsqueeze(-2) if hidden is None else hidden


class Lanes(NamedTuple):
    """A batch as a process gets it."""

    tokens_BT: Tensor
    targets_BT: Tensor
    resets_BT: Tensor
    counted: int
    step: int
    micro: int
    chunk: int


class Batches:
    """The batches of a run's processes; makes the run's token files where there are none."""

    def __init__(self, *overrides: str) -> None:
        from transformer_xl import build
        from transformer_xl.run_length import run_length

        config = compose(*overrides)
        corpus = build.open_data(config, announce=lambda line: None)
        self._module = build.datamodule(config, corpus, run_length(config, corpus))

    def of(self, split: str, *, rank: int = 0, processes: int = 1) -> Iterator[Lanes]:
        """Iterate over the batches of one process, of `train`, `valid` or `test`."""
        module, strategy = self._module, SimpleNamespace(root_device=torch.device("cpu"))
        module.trainer = SimpleNamespace(world_size=processes, global_rank=rank, strategy=strategy)
        module.setup("fit")
        loaders = {"train": module.train_dataloader, "valid": module.val_dataloader, "test": module.test_dataloader}
        for batch in loaders[split]():
            yield Lanes(*batch[: len(Lanes._fields)])
