from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.data.sources.mirror_server import MirrorServer, serving
from transformer_xl.data_config import PublishedConfig

PublishedConfigs = Callable[..., PublishedConfig]


@pytest.fixture
def server() -> Iterator[MirrorServer]:
    """Give a server of files and datasets on this machine."""
    with serving() as server:
        yield server


@pytest.fixture
def hub(server: MirrorServer, monkeypatch: pytest.MonkeyPatch) -> MirrorServer:
    """Give the same server as the Hub, with none of this machine's settings of it."""
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    return server


@pytest.fixture
def config_of(tmp_path: Path) -> PublishedConfigs:
    """Configuration of a published corpus as `conf/` has it, which keeps its files below `tmp_path / cache`."""

    def make(kind: str, **changes: object) -> PublishedConfig:
        settings: dict[str, object] = {
            "kind": kind,
            "batch_size": 2,
            "segment_len": 5,
            "segment_len_sd": 0.0,
            "half_segments": 0.0,
            "loss": "full",
            "lane_chunks": 1,
            "cache_dir": str(tmp_path / "cache"),
            "rebuild": False,
            "documents": "none",
            "document_marker": None,
            "end_of_document": True,
            "reset_memory": "never",
            "order": "as_is",
            "tokenizer": "char" if kind in ("enwik8", "text8") else "word",
            "newline": "drop" if kind in ("enwik8", "text8") else "keep",
            "dir": None,
            "download": True,
        }
        return PublishedConfig(**(settings | changes))  # type: ignore[arg-type]

    return make
