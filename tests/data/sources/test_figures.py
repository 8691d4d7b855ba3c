"""Which figures of a corpus are not the published ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from transformer_xl.data.sources.figures import EXPECTED, deviations
from transformer_xl.data_config import PublishedConfig

PublishedConfigs = Callable[..., PublishedConfig]
COUNTS = {"train": 103_227_021, "valid": 217_646, "test": 245_569}


def test_a_corpus_as_published_has_none(config_of: PublishedConfigs) -> None:
    assert deviations(config_of("wikitext103"), COUNTS, 267_735) == []
    characters = {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}
    assert deviations(config_of("text8"), characters, 27) == []
    assert deviations(config_of("enwik8", newline="keep"), characters, 205) == []
    assert deviations(config_of("enwik8"), {"train": 1, "valid": 2, "test": 3}, 204) == []


def test_each_figure_that_differs_has_a_sentence(config_of: PublishedConfigs) -> None:
    assert deviations(config_of("wikitext103"), {**COUNTS, "valid": 217_645, "test": 245_570}, 267_734) == [
        "wikitext103 has 217,645 validation tokens here, and 217,646 where it was published",
        "wikitext103 has 245,570 test tokens here, and 245,569 where it was published",
        "wikitext103 has 267,734 symbols in its vocabulary here, and 267,735 where it was published",
    ]
    assert len(deviations(config_of("lm1b"), {"train": 1, "valid": 2, "test": 3}, 5)) == 1
    assert len(deviations(config_of("enwik8", newline="keep"), {"train": 1, "valid": 2, "test": 3}, 204)) == 4


@pytest.mark.parametrize(
    "changes",
    [{"tokenizer": "char"}, {"tokenizer": "byte"}, {"newline": "drop"}, {"documents": "blank_line"}],
)
def test_other_settings_are_not_compared(changes: dict[str, object], config_of: PublishedConfigs) -> None:
    assert deviations(config_of("wikitext103", **changes), {"train": 1, "valid": 1, "test": 1}, 1) == []


@pytest.mark.parametrize("kind", ["wikitext103", "wikitext2", "enwik8", "text8", "ptb", "lm1b"])
def test_each_corpus_has_figures_for_its_own_settings(kind: str, config_of: PublishedConfigs) -> None:
    assert EXPECTED[kind, config_of(kind).newline].vocabulary
