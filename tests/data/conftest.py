from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_xl.config import PublishedConfig, StdlibConfig, TextConfig

TextConfigs = Callable[..., TextConfig]
PublishedConfigs = Callable[..., PublishedConfig]
COMMON: dict[str, Any] = {
    "batch_size": 2,
    "segment_len": 5,
    "segment_len_sd": 0.0,
    "half_segments": 0.0,
    "loss": "full",
    "lane_chunks": 1,
    "newline": "keep",
}


@pytest.fixture
def text_config(tmp_path: Path) -> TextConfigs:
    def make(path: Path | str, **changes: object) -> TextConfig:
        settings: dict[str, object] = {
            "kind": "text",
            **COMMON,
            "cache_dir": str(tmp_path / "cache"),
            "tokenizer": "byte",
            "path": str(path),
            "valid_fraction": 0.1,
            "test_fraction": 0.1,
        }
        return TextConfig(**(settings | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture
def stdlib_config(tmp_path: Path) -> StdlibConfig:
    return StdlibConfig(
        kind="stdlib",
        **COMMON,
        cache_dir=str(tmp_path / "cache"),
        tokenizer="byte",
        valid_fraction=0.25,
        test_fraction=0.25,
    )


@pytest.fixture
def published_config(tmp_path: Path) -> PublishedConfigs:
    """Configuration of a published corpus whose files lie in `tmp_path / kind`, as `conf/` has it."""

    def make(kind: str, **changes: object) -> PublishedConfig:
        settings: dict[str, object] = {
            "kind": kind,
            **COMMON,
            "cache_dir": str(tmp_path / "cache"),
            "tokenizer": "char" if kind in ("enwik8", "text8") else "word",
            "newline": "drop" if kind in ("enwik8", "text8") else "keep",
            "dir": str(tmp_path / kind),
        }
        return PublishedConfig(**(settings | changes))  # type: ignore[arg-type]

    return make
