"""Values that the program gave before its redesign: one JSON file a test module, one entry a case.

`record.py` wrote them. They are compared within a tolerance that each test names; texts and checksums exactly.
"""

from __future__ import annotations

import json
import math
from typing import Any

from tests.oracles.tiny import HERE

FOLDER = HERE / "recorded"


def read(name: str) -> dict[str, Any]:
    entries: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return entries


def assert_same(actual: Any, expected: Any, *, within: float, place: str = "") -> None:
    """Compare plain containers; `within` is relative to numbers above 1, absolute below."""
    if isinstance(expected, dict):
        assert isinstance(actual, dict), place
        assert list(actual) == list(expected), place
        for key in expected:
            assert_same(actual[key], expected[key], within=within, place=f"{place}/{key}")
    elif isinstance(expected, list):
        assert isinstance(actual, list), place
        assert len(actual) == len(expected), place
        for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_same(one, other, within=within, place=f"{place}[{number}]")
    elif isinstance(expected, float):
        assert math.isclose(actual, expected, rel_tol=within, abs_tol=within), f"{place}: {actual} is not {expected}"
    else:
        assert actual == expected, place
