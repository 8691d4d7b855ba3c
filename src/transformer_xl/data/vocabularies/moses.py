"""Raw text to the words of WikiText and back: the Moses rules for English, with numbers and hyphens taken apart.

The rules are those of the `sacremoses` library, used as transformers' TransfoXLTokenizer uses it. They work on a whole
line, at about 0.3 MB a second; here a line is cut first into segments that no rule looks across, and what a segment
became is remembered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from transformer_xl.data.vocabularies.base import UNK
from transformer_xl.data.vocabularies.words import EOS
from transformer_xl.errors import UserError

SPECIAL = (EOS, UNK, "<formula>")
"""Words of the text that no rule takes apart."""
_REMEMBERED = 1 << 18
_REMEMBERED_CHARACTERS = 24  # longer segments hardly ever come again
_AT_SPECIAL = re.compile(f"({'|'.join(map(re.escape, SPECIAL))})")
_IN_NUMBERS = re.compile(r"(?<=\d)[,.](?=\d)")
_BETWEEN_NUMBERS = re.compile(r" @([,.])@ ")
# All that the rules for punctuation look for: they leave text without any of it as it is.
_PUNCTUATION = re.compile("[\r()%:;`'\"\u00a0\u00ab\u00b4\u00bb\u2013\u2014\u2018-\u201e\u2026]|  ")
_PROTECTED_AT_MOST = 1000
# Blanks that no rule of Moses looks across. All rules see one character on either side of a blank, and those that do
# something there name brackets, punctuation marks and apostrophes: a blank is safe between characters that no such
# rule has on that side. A full stop on the left is not, and is treated apart.
_SAFE_BLANKS = re.compile(
    r"(?<=[^\W_]|[\]=<>*/+_|&~^\\@#$,.;:!?)%\"\u201d\u2013\u2014-]) +"
    r"(?=[^\W_]|[\[=<>*/+_|&~^\\@#$(\"\u201c\u2013\u2014-])"
)
# Inside what remains: every one of these signs becomes a word, and between it and a letter or digit no rule applies,
# but for a quotation mark after a letter, which changes places with a full stop or a comma that follows.
_SAFE_BORDERS = re.compile(
    r"(?<=[^\W_])(?=[\]\[=*/+_|&~^\\@#$:;?!()%{}]|,$)|(?<=[\]\[=*/+_|&~^\\@#$:;?!()%\"{}])(?=[^\W_])"
)


class MosesRules:
    """The rules, and what they made of segments seen lately."""

    def __init__(self) -> None:
        try:
            import sacremoses  # type: ignore[import-untyped]
        except ModuleNotFoundError as error:
            raise UserError(
                "data.tokenizer=wikitext and vocabularies of this kind need the package sacremoses: "
                "pip install sacremoses"
            ) from error

        class Tokenizer(sacremoses.MosesTokenizer):  # type: ignore[misc]
            """Moses with the same answers, not building the set of all lower-case characters for each of them."""

            lower = frozenset(sacremoses.MosesTokenizer.IsLower)
            alpha = frozenset(sacremoses.MosesTokenizer.IsAlpha)

            def islower(self, text: str) -> bool:
                return self.lower.issuperset(text)

            def isanyalpha(self, text: str) -> bool:
                return not self.alpha.isdisjoint(text)

        self._lower = Tokenizer.lower
        rules = sacremoses.MosesPunctNormalizer("en").substitutions
        self._punctuation = [(re.compile(pattern), replacement) for pattern, replacement in rules]
        self._tokenizer: Any = Tokenizer("en")
        self._detokenizer: Any = sacremoses.MosesDetokenizer("en")
        self._remembered: dict[str, list[str]] = {}

    def split(self, text: str) -> list[str]:
        r"""Split text whose lines end in `\n` into words, with `<eos>` for every line end.

        Text may be split in parts that `last_cut` finds.
        """
        lines = text.split("\n")
        words: list[str] = []
        for line in lines[:-1]:
            words += self._split_line(line)
            words.append(EOS)
        return words + self._split_line(lines[-1])

    def join(self, words: Sequence[str]) -> str:
        """Write the words of one line as text."""
        return _BETWEEN_NUMBERS.sub(r"\1", self._detokenizer.detokenize(words)).strip()

    def _split_line(self, line: str) -> list[str]:
        if "<" not in line:
            return self._split_part(line)
        words: list[str] = []
        for part in _AT_SPECIAL.split(line):
            words += [part] if part in SPECIAL else self._split_part(part)
        return words

    def _split_part(self, part: str) -> list[str]:
        part = part.strip()
        if not part:
            return []
        segments = _SAFE_BLANKS.split(part)
        remembered = self._remembered
        found = []
        for segment, after in zip(segments, chain(segments[1:], [""]), strict=True):
            # Whether a full stop ends a sentence, and becomes a word, depends on what comes next.
            key = segment + self._kind_of(after) if segment[-1:] == "." else segment
            found.append(remembered.get(key) or self._split_segment(segment, key[len(segment) :]))
        return list(chain.from_iterable(found))

    def _split_segment(self, segment: str, after: str) -> list[str]:
        *parts, last = _SAFE_BORDERS.split(segment)
        words = [word for part in parts for word in self._remembered.get(part) or self._apply(part, "")]
        words += self._remembered.get(last + after) or self._apply(last, after)
        self._remember(segment + after, words)
        return words

    def _remember(self, text: str, words: list[str]) -> None:
        if len(text) > _REMEMBERED_CHARACTERS:
            return
        if len(self._remembered) >= _REMEMBERED:
            self._remembered.clear()
        self._remembered[text] = words

    def _kind_of(self, after: str) -> str:
        """Give the shortest text that stands for all that may follow and begins with the same kind of character."""
        first = after[:1]
        if not first:
            return ""
        if first in self._lower:
            return " a"
        return " 1" if first.isascii() and first.isdigit() else " A"

    def _apply(self, segment: str, after: str) -> list[str]:
        if segment.isascii() and segment.isalnum() and "MULTI" not in segment:
            return [segment]  # "MULTI" is what the library writes for dots in between
        text = segment + after
        if _PUNCTUATION.search(text):
            for pattern, replacement in self._punctuation:
                text = pattern.sub(replacement, text)
        words = self._tokenizer.tokenize(
            text.strip(),
            aggressive_dash_splits=True,
            return_str=False,
            escape=False,
            # The special words in other letters; the library refuses more of them in one text than anybody writes.
            protected_patterns=SPECIAL if 0 < text.count("<") <= _PROTECTED_AT_MOST else None,
        )
        if after:
            words.pop()
        split = [part for word in words for part in _IN_NUMBERS.sub(r" @\g<0>@ ", word).split()]
        self._remember(segment + after, split)
        return split


@lru_cache(maxsize=1)
def moses_rules() -> MosesRules:
    """Load the rules, once; `UserError` where their library is not installed."""
    return MosesRules()


def last_cut(text: str) -> int:
    r"""Find the last place where text may be cut before it is split: after `\n`, else before a blank; 0: nowhere."""
    after_line = text.rfind("\n") + 1
    if after_line:
        return after_line
    last = 0
    for blank in _SAFE_BLANKS.finditer(text):
        # whether a full stop is a word of its own depends on what comes next
        if text[blank.start() - 1] != ".":
            last = blank.start()
    return last
