"""Tokenizers of words: between blanks, as sentences of the One Billion Words, and as WikiText was split (Moses)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl import registry
from transformer_xl.data.characters import ListedTokenizer, may_lack_some
from transformer_xl.data.tokenizer import UNK, Decoder, Encoded, LearnSettings, Part, Tokenizer
from transformer_xl.errors import UserError

EOS = "<eos>"


@registry.register("tokenizer", "word")
class WordTokenizer(ListedTokenizer):
    """Words as the published code splits them: by white space, `<eos>` (id 0) at every line's end.

    Words have ids by frequency, equally frequent ones by first occurrence. Case is kept, unless `lower_case`, as for
    the Penn Treebank. Without `line_ends` a line end is a blank like any other; `<eos>` keeps its id all the same, so
    that both ways of reading have the same ids.

    Attributes:
        end: the symbol of a line's end.
    """

    kind = "word"
    unit = "ppl"
    defaults: ClassVar[Mapping[str, bool]] = {"lower_case": False, "line_ends": True}
    end: ClassVar[str] = EOS

    def __init__(self, symbols: Sequence[str], **options: bool) -> None:
        super().__init__(symbols, **options)
        if self.end not in symbols or self.unk not in symbols or (self.end == EOS and symbols[0] != EOS):
            raise UserError(f"a {self.kind} vocabulary must hold {self.end} and {self.unk}, {EOS} as its first symbol")
        self.ends_lines = self.options.get("line_ends", True)
        if self.start is None and self.ends_lines:
            self.start = self.id_of_symbol[self.end]
        self._bytes_of_id[self.id_of_symbol[self.end]] = 1

    def split(self, text: str) -> list[str]:
        r"""Return the words of a text whose lines end in `\n`, with `end` for every line end that is a symbol."""
        if self.options.get("lower_case"):
            text = text.lower()
        return (text.replace("\n", f" {self.end} ") if self.ends_lines else text).split()

    @classmethod
    def count(cls, parts: Iterable[Part], settings: LearnSettings, options: Mapping[str, bool]) -> list[str]:
        splitter = cls([cls.end, cls.unk], **options)
        counts: Counter[str] = Counter()  # breaks ties by first occurrence
        for part in parts:
            counts.update(splitter.split(splitter._lines(part)))
        words = [word for word, count in counts.most_common(settings.max_size) if count >= settings.min_count]
        first = [cls.unk] if cls.unk not in words and may_lack_some(words, settings) else []
        return list(dict.fromkeys([*([EOS, *first] if cls.end == EOS else []), *words, cls.end, cls.unk]))

    def encode(self, text: str) -> NDArray[np.int64]:
        """Return the ids of a text; a last line without a line end is not closed, so that a prompt can stop in it."""
        return self._ids(_plain_lines(text))[0]

    def encode_part(self, part: Part) -> Encoded:
        text = self._lines(part)
        ids, missing = self._ids(text)
        known = ids[~missing] if missing.any() else ids
        text_bytes = self.text_bytes(known) + self._blanks(ids, text)
        if self.ends_lines and part.ends and not part.data.endswith((b"\n", b"\r")):
            text_bytes -= len(text) > 0  # the last line end is not in the text
        return Encoded(ids, unknown=len(ids) - len(known), text_bytes=min(text_bytes, len(part.data)))

    def _lines(self, part: Part) -> str:
        r"""Return a part's text with `\n` at every line's end, also at that of the document."""
        text = _plain_lines(self.text_of_bytes(part.data))
        return text + "\n" if part.ends and text and not text.endswith("\n") else text

    def _ids(self, text: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        words = self.split(text)
        ids = np.fromiter(map(self.id_of_symbol.get, words, repeat(-1)), np.int64, count=len(words))
        missing = ids < 0
        ids[missing] = self.id_of_symbol[self.unk]
        return ids, missing

    def _blanks(self, ids: NDArray[np.int64], text: str) -> int:
        """Count the blanks that decoding writes: between two words."""
        is_word = ids != self.id_of_symbol[self.end]
        return int(np.count_nonzero(is_word[1:] & is_word[:-1]))

    def decode(self, ids: ArrayLike) -> str:
        """Return the words with blanks between them, the symbol of a line's end as a line end."""
        words = [self.symbols[number] for number in np.asarray(ids).tolist()]
        lines = " ".join("\n" if word == self.end else word for word in words)
        return lines.replace(" \n", "\n").replace("\n ", "\n")


@registry.register("tokenizer", "sentence")
class SentenceTokenizer(WordTokenizer):
    """Words of the One Billion Words: every line is a sentence, with `<S>` on both sides.

    Neighbours share an `<S>`: it is the target that ends one and the input that begins the next. The published code
    writes two, but its batches never ask for the second, which the first foretells.
    """

    kind = "sentence"
    defaults: ClassVar[Mapping[str, bool]] = {}
    end = "<S>"
    unk = "<UNK>"

    def __init__(self, symbols: Sequence[str]) -> None:
        super().__init__(symbols)
        self.start = self.id_of_symbol[self.end]
        self.opening = (self.start,)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Return the ids of a text, with `<S>` at its beginning."""
        return np.concatenate([self.opening, super().encode(text)])

    def decode(self, ids: ArrayLike) -> str:
        return super().decode(ids).removeprefix("\n")  # the `<S>` before the first sentence


@registry.register("tokenizer", "wikitext")
class WikitextTokenizer(WordTokenizer):
    """Words of raw text, split as WikiText's were: `23,000-year-old's` is `23 @,@ 000 @-@ year @-@ old 's`.

    `<eos>` (id 0) ends every line, case is kept. It splits as transformers' TransfoXLTokenizer does.
    """

    kind = "wikitext"
    defaults: ClassVar[Mapping[str, bool]] = {}

    def __init__(self, symbols: Sequence[str]) -> None:
        super().__init__(symbols)
        self._bytes_of_id[[number for number, word in enumerate(symbols) if word in _JOINED]] = 1

    def for_split_text(self) -> Tokenizer:
        return WordTokenizer(self.symbols)

    @classmethod
    def learning_split_point(cls, data: bytes) -> int:
        found = _CUT.match(data)
        return found.end() if found else 0

    def split(self, text: str) -> list[str]:
        return moses_split(text)

    def _blanks(self, ids: NDArray[np.int64], text: str) -> int:
        """Count the blanks between words of the text: decoding joins again what the rules took apart."""
        return sum(max(len(line.split()) - 1, 0) for line in text.split("\n")) + text.startswith(" ")

    def decode(self, ids: ArrayLike) -> str:
        """Return the words as plain text, `<eos>` as a line end."""
        lines: list[list[str]] = [[]]
        for number in np.asarray(ids).tolist():
            if self.symbols[number] == EOS:
                lines.append([])
            else:
                lines[-1].append(self.symbols[number])
        return "\n".join(map(moses_join, lines))

    def decoder(self, after: Sequence[int] = ()) -> Decoder:
        ends = [place for place, number in enumerate(after) if self.symbols[number] == EOS]
        return _LineDecoder(self, after[ends[-1] + 1 if ends else 0 :])


class _LineDecoder(Decoder):
    """For words whose text depends on their line: a word is written when the next one has not changed it."""

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int]) -> None:
        super().__init__(tokenizer, after)
        self._text = self._decode(self._ids)
        self._written = len(self._text)

    def feed(self, number: int) -> str:
        self._ids.append(number)
        before, self._text = self._text, self._decode(self._ids)
        if not self._text.endswith("\n"):
            differs = [old != new for old, new in zip(before, self._text, strict=False)]
            return self._write(differs.index(True) if True in differs else len(differs))
        last = self.finish()
        self._ids, self._text, self._written = [], "", 0
        return last

    def finish(self) -> str:
        return self._write(len(self._text))

    def _write(self, end: int) -> str:
        text = self._text[self._written : end]
        self._written = max(self._written, end)
        return text


def _plain_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


# The Moses rules for English, with numbers and hyphens taken apart, as transformers' TransfoXLTokenizer uses the
# library sacremoses. They work on a whole line, at about 0.3 MB per second; here a line is cut first into segments that
# no rule looks across, and what a segment became is remembered.

_JOINED = ("@-@", "@,@", "@.@")
"""Words that are one character in the text."""
_SPECIAL = (EOS, UNK, "<formula>")
"""Words of the text that no rule takes apart."""
_AT_SPECIAL = re.compile(f"({'|'.join(map(re.escape, _SPECIAL))})")
_CUT = re.compile(rb".*\n|.*[0-9A-Za-z] (?=[0-9A-Za-z])", re.DOTALL)
"""Up to the last line end, else to the last blank between letters or digits, which no rule looks across."""
_IN_NUMBERS = re.compile(r"(?<=\d)[,.](?=\d)")
_BETWEEN_NUMBERS = re.compile(r" @([,.])@ ")
# Blanks that no rule of Moses looks across. All rules see one character on either side of a blank, and those that do
# something there name brackets, punctuation marks and apostrophes: a blank is safe between characters that no such
# rule has on that side. A full stop on the left is not, and is treated apart.
_SAFE_BLANKS = re.compile(
    r"(?<=[^\W_]|[\]=<>*/+_|&~^\\@#$,.;:!?)%\"\u201d\u2013\u2014-]) +"
    r"(?=[^\W_]|[\[=<>*/+_|&~^\\@#$(\"\u201c\u2013\u2014-])"
)


def moses_split(text: str) -> list[str]:
    r"""Split text whose lines end in `\n` into words, with `<eos>` for every line end."""
    words: list[str] = []
    for line in text.split("\n"):
        for part in _AT_SPECIAL.split(line):
            words += [part] if part in _SPECIAL else _split_part(part.strip())
        words.append(EOS)
    return words[:-1]


def moses_join(words: Sequence[str]) -> str:
    """Write the words of one line as text."""
    _, _, detokenizer = _moses()
    return _BETWEEN_NUMBERS.sub(r"\1", detokenizer.detokenize(words)).strip()


def _split_part(part: str) -> list[str]:
    segments = _SAFE_BLANKS.split(part) if part else []
    words: list[str] = []
    for segment, after in zip(segments, chain(segments[1:], [""]), strict=False):
        # whether a full stop ends a sentence, and becomes a word, depends on what comes next
        words += _apply(segment, _kind_of(after[:1]) if segment.endswith(".") else "")
    return words


def _kind_of(first: str) -> str:
    """Return the shortest text that stands for all that may follow and begins with the same kind of character."""
    if not first:
        return ""
    _, tokenizer, _ = _moses()
    if tokenizer.islower(first):
        return " a"
    return " 1" if first.isascii() and first.isdigit() else " A"


@lru_cache(maxsize=1 << 18)
def _apply(segment: str, after: str) -> list[str]:
    if segment.isascii() and segment.isalnum() and "MULTI" not in segment:
        return [segment]  # "MULTI" is what the library writes for dots in between
    normalizer, tokenizer, _ = _moses()
    text = normalizer.normalize(segment + after)
    words = tokenizer.tokenize(
        text.strip(),
        aggressive_dash_splits=True,
        return_str=False,
        escape=False,
        # the special words in other letters; the library refuses more of them in one text than anybody writes
        protected_patterns=_SPECIAL if 0 < text.count("<") <= 1000 else None,
    )
    if after:
        words.pop()
    return [part for word in words for part in _IN_NUMBERS.sub(r" @\g<0>@ ", word).split()]


@lru_cache(maxsize=1)
def _moses() -> tuple[Any, Any, Any]:
    import sacremoses  # type: ignore[import-untyped]

    class Tokenizer(sacremoses.MosesTokenizer):  # type: ignore[misc]
        """Moses with the same answers, not building the set of all lower-case characters for each of them."""

        lower = frozenset(sacremoses.MosesTokenizer.IsLower)
        alpha = frozenset(sacremoses.MosesTokenizer.IsAlpha)

        def islower(self, text: str) -> bool:
            return self.lower.issuperset(text)

        def isanyalpha(self, text: str) -> bool:
            return not self.alpha.isdisjoint(text)

    return sacremoses.MosesPunctNormalizer("en"), Tokenizer("en"), sacremoses.MosesDetokenizer("en")
