"""Runs that are stopped and go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.training.kills")

from tests.training.forked import Server  # noqa: E402
from tests.training.kills import ToyRuns  # noqa: E402


@pytest.fixture(scope="session")
def toy_runs(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyRuns]:
    """Start toy runs cheaply; the runs never stopped, which others are compared with, are shared."""
    server = Server()
    yield ToyRuns(server, text_file, tmp_path_factory.mktemp("toy"))
    server.close()
