from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_xl.config import StdlibConfig, TextConfig, Wikitext103Config

TextConfigs = Callable[..., TextConfig]


@pytest.fixture
def text_config(tmp_path: Path) -> TextConfigs:
    def make(path: Path | str, **changes: object) -> TextConfig:
        settings: dict[str, object] = {
            "kind": "text",
            "batch_size": 2,
            "segment_len": 5,
            "lane_chunks": 1,
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
        batch_size=2,
        segment_len=5,
        lane_chunks=1,
        cache_dir=str(tmp_path / "cache"),
        tokenizer="byte",
        valid_fraction=0.25,
        test_fraction=0.25,
    )


@pytest.fixture
def wikitext_config(tmp_path: Path) -> Wikitext103Config:
    return Wikitext103Config(
        kind="wikitext103",
        batch_size=2,
        segment_len=5,
        lane_chunks=1,
        cache_dir=str(tmp_path / "cache"),
        tokenizer="word",
        dir=str(tmp_path / "wt103"),
    )
