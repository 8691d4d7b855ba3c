"""Which split a file's name says it belongs to."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

_BEGINNING = re.compile(
    r"(?P<train>training|train)|(?P<valid>validation|valid|val|dev)|(?P<test>test)",
    re.IGNORECASE,
)
_AFTER = re.compile(r"$|[-._0-9]")


def split_of_name(name: str) -> str | None:
    """Give `train`, `valid` or `test` where a file's name says so, None where it does not.

    `name` is the file's path below the corpus's folder, with forward slashes. Its first folder decides before the
    file's own name: `train/test_of_time.txt` is training text. The word must end there or be followed by `.`, `-`, `_`
    or a digit: `trains.txt`, `testament.txt` and `devotion.txt` say nothing.
    """
    path = PurePosixPath(name)
    for part in (path.parts[0], path.name):
        found = _BEGINNING.match(part)
        if found and _AFTER.match(part, found.end()):
            return found.lastgroup
    return None
