from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_xl.data_config import PublishedConfig, StdlibConfig, TextConfig, TokensConfig

TextConfigs = Callable[..., TextConfig]
PublishedConfigs = Callable[..., PublishedConfig]
COMMON: dict[str, Any] = {
    "batch_size": 2,
    "segment_len": 5,
    "segment_len_sd": 0.0,
    "half_segments": 0.0,
    "loss": "full",
    "lane_chunks": 1,
    "rebuild": False,
    "end_of_document": True,
    "order": "as_is",
}
TEXT: dict[str, Any] = {**COMMON, "newline": "keep", "document_marker": None}
ONE_TEXT: dict[str, Any] = {**TEXT, "documents": "none", "reset_memory": "never"}
COUNTED: dict[str, Any] = {"min_count": 1, "max_size": None, "lower_case": False, "bpe_size": 300}


@pytest.fixture
def text_config(tmp_path: Path) -> TextConfigs:
    def make(path: Path | str, **changes: object) -> TextConfig:
        settings: dict[str, object] = {
            "kind": "text",
            **ONE_TEXT,
            **COUNTED,
            "cache_dir": str(tmp_path / "cache"),
            "tokenizer": "byte",
            "path": str(path),
            "format": "auto",
            "field": "text",
            "encoding": "utf-8",
            "errors": "strict",
            "split": "auto",
            "valid_fraction": 0.1,
            "test_fraction": 0.1,
            "max_eval_tokens": None,
        }
        return TextConfig(**(settings | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture
def stdlib_config(tmp_path: Path) -> StdlibConfig:
    return StdlibConfig(
        kind="stdlib",
        **ONE_TEXT,
        **COUNTED,
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
            **ONE_TEXT,
            "cache_dir": str(tmp_path / "cache"),
            "tokenizer": "char" if kind in ("enwik8", "text8") else "word",
            "newline": "drop" if kind in ("enwik8", "text8") else "keep",
            "dir": str(tmp_path / kind),
            "download": False,
        }
        return PublishedConfig(**(settings | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture
def tokens_config(tmp_path: Path) -> Callable[..., TokensConfig]:
    def make(path: Path | str, **changes: object) -> TokensConfig:
        settings: dict[str, object] = {
            "kind": "tokens",
            **COMMON,
            "documents": "record",
            "reset_memory": "document",
            "cache_dir": str(tmp_path / "cache"),
            "path": str(path),
            "dtype": None,
            "vocab_size": 10,
            "vocabulary": None,
            "split": "auto",
            "valid_fraction": 0.1,
            "test_fraction": 0.1,
            "max_eval_tokens": None,
        }
        return TokensConfig(**(settings | changes))  # type: ignore[arg-type]

    return make
