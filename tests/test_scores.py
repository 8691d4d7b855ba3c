from __future__ import annotations

import math

import pytest

from transformer_xl.scores import Unit, in_words

EIGHT = math.log(8)  # three bits a token


def test_perplexity() -> None:
    unit = Unit(name="ppl", tokens_per_byte=None)
    assert unit.of(EIGHT) == pytest.approx(8)
    assert unit.of(1e6) == math.inf
    assert unit.figures(EIGHT) == {"ppl": unit.of(EIGHT)}


def test_bits_a_character() -> None:
    unit = Unit(name="bpc", tokens_per_byte=None)
    assert unit.of(EIGHT) == 3.0
    assert unit.figures(EIGHT) == unit.shown(EIGHT) == {"bpc": 3.0}


def test_bits_a_byte_of_sub_words_are_their_figure_once() -> None:
    unit = Unit(name="bpb", tokens_per_byte=0.25)
    assert unit.of(EIGHT) == 0.75
    assert unit.figures(EIGHT) == unit.shown(EIGHT) == {"bpb": 0.75}


@pytest.mark.parametrize(("name", "own"), [("ppl", 8.0), ("bpc", 3.0)])
def test_bits_a_byte_follow_the_vocabularys_own_figure_wherever_there_is_text(name: str, own: float) -> None:
    figures = Unit(name=name, tokens_per_byte=0.5).figures(EIGHT)
    assert list(figures) == [name, "bpb"]
    assert figures == pytest.approx({name: own, "bpb": 1.5})


def test_bits_a_byte_do_not_depend_on_how_a_text_is_cut() -> None:
    """The same 1000 bytes at the same probability, as 1000 tokens or as 200."""
    by_bytes = Unit(name="bpc", tokens_per_byte=1.0).figures(2.0)["bpb"]
    by_words = Unit(name="ppl", tokens_per_byte=0.2).figures(10.0)["bpb"]
    by_sub_words = Unit(name="bpb", tokens_per_byte=0.4).of(5.0)
    assert by_words == pytest.approx(by_bytes)
    assert by_sub_words == pytest.approx(by_bytes)


def test_nothing_is_shown_twice_where_each_token_is_a_byte() -> None:
    assert Unit(name="bpc", tokens_per_byte=1.0).shown(EIGHT) == {"bpc": 3.0}
    assert list(Unit(name="bpc", tokens_per_byte=0.5).shown(EIGHT)) == ["bpc", "bpb"]
    assert list(Unit(name="ppl", tokens_per_byte=1.0).shown(EIGHT)) == ["ppl", "bpb"]


def test_units_in_words() -> None:
    assert [in_words(name) for name in ("ppl", "bpc", "bpb")] == ["ppl", "bpc", "bits per byte"]
