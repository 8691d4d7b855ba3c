"""One thread for each test: at toy size a second one only waits. Runs that several tests compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

pytest.register_assert_rewrite("tests.oracles.runs_support")

from tests.oracles.runs_support import Forks, made_up_text, tiny  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Start commands in processes that have imported everything."""
    server = Forks()
    yield server
    server.close()


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the settings of a tiny run."""
    folder = tmp_path_factory.mktemp("base")
    text = folder / "text.txt"
    text.write_text(made_up_text(40_000))
    return tiny(text, folder)


@pytest.fixture(scope="session")
def whole(forks: Forks, base: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Give the folder of a run that is never stopped; each is trained once."""
    folder = tmp_path_factory.mktemp("whole")
    trained: dict[tuple[str, ...], Path] = {}

    def run(*overrides: str) -> Path:
        if overrides not in trained:
            target = folder / f"run-{len(trained)}"
            result = forks.run("train", [*base, *overrides, f"hydra.run.dir={target}"], folder)
            assert result.status == 0, result.printed
            trained[overrides] = target
        return trained[overrides]

    return run


@pytest.fixture(scope="session")
def trained(whole: Callable[..., Path]) -> Path:
    """Give the folder of a run that has ended well, which no test changes."""
    return whole()
