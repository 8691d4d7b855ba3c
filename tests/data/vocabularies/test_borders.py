"""The last place where a letter or digit ends a word, and texts cut there."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer_xl.data.vocabularies import borders
from transformer_xl.data.vocabularies.borders import in_parts, last_border

ENDS = " \t\r\n\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f"
TEXTS = st.text(st.sampled_from(f"aZ9._'-\u00e9\u0301\u4ed6\u3000\U0001f600\u00a0{ENDS}"), max_size=40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, missing=st.integers(0, 3), window=st.integers(1, 9))
def test_the_last_border_is_found_whatever_is_looked_through_at_a_time(
    text: str, missing: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(borders, "_WINDOW", window)
    data = text.encode()
    data = data[: len(data) - missing]
    whole = data.decode(errors="ignore")
    places = [place for place in range(1, len(whole)) if whole[place - 1].isalnum() and whole[place] in ENDS]
    assert last_border(data) == len(whole[: places[-1] if places else 0].encode())


@given(TEXTS, st.integers(1, 20))
def test_parts_are_the_text_and_no_longer_than_they_must_be(text: str, size: int) -> None:
    parts = list(in_parts(text.encode(), last_border, size=size))
    assert b"".join(parts) == text.encode()
    assert all(parts[1:])
    for part in parts[:-1]:
        assert part.decode()[-1].isalnum()
        assert len(part) <= size or not last_border(part[:size])


def test_a_text_without_borders_is_one_part() -> None:
    assert list(in_parts(b"a" * 100, last_border, size=7)) == [b"a" * 100]
    assert list(in_parts(b"a b c", lambda data: 0, size=1)) == [b"a b c"]
