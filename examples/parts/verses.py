"""Verses that are made up while they are read: a corpus of one's own."""

from collections.abc import Iterator
from typing import Literal

import transformer_xl as txl
from transformer_xl.data_config import CountedConfig


class Verses(CountedConfig):
    """How many there are; each is a document."""

    kind: Literal["verses"] = "verses"
    verses: int = 200
    documents: Literal["none", "record"] = "record"
    reset_memory: Literal["document", "never"] = "document"


def lines(number: int, word: str) -> Iterator[str]:
    """Yield verses of one kind."""
    for line in range(number):
        yield f"{word} number {line}\nand so it ends\n"


@txl.register("corpus", "verses", config=Verses)
def made_up(settings: Verses) -> dict[str, Iterator[str]]:
    """Return the documents of each split."""
    return {
        "train": lines(settings.verses, "verse"),
        "valid": lines(settings.verses // 4, "song"),
        "test": lines(settings.verses // 4, "tune"),
    }
