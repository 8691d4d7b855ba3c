"""Tokenizers of words: between blanks, as sentences of the One Billion Words, and as WikiText was split (Moses)."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl import registry
from transformer_xl.data.characters import ListedTokenizer
from transformer_xl.data.tokenizer import (
    UNK,
    Decoder,
    Encoded,
    LearnSettings,
    Part,
    Tokenizer,
    character_border,
    flat_ids,
    may_lack_some,
)
from transformer_xl.errors import UserError

EOS = "<eos>"
# Thai, Lao, Myanmar, Khmer, Japanese, Chinese
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


class ListedWords(ListedTokenizer):
    """Words by id, most frequent first, equally frequent ones by first occurrence; `end` is the end of a line."""

    unit = "ppl"
    end: ClassVar[str] = EOS

    def __init__(self, symbols: Sequence[str], **options: bool) -> None:
        super().__init__(symbols, **options)
        if self.end not in symbols or self.unk not in symbols or (self.end == EOS and symbols[0] != EOS):
            raise UserError(f"a {self.kind} vocabulary must hold {self.end} and {self.unk}, {EOS} as its first symbol")
        self.ends_lines = self.options.get("line_ends", True)
        self.start = self.end_of_document
        if self.start is None and self.ends_lines:
            self.start = self.id_of_symbol[self.end]
        self._bytes_of_id = np.array([len(word.encode()) for word in symbols], np.int64)
        self._bytes_of_id[self.id_of_symbol[self.end]] = 1

    @abstractmethod
    def split(self, text: str) -> list[str]:
        r"""Return the words of a text whose lines end in `\n`, with `end` for every line end that is a symbol."""

    @classmethod
    def learn(cls, parts: Iterable[Part], settings: LearnSettings, **options: bool) -> Self:
        options = options or cls.options_of(settings)
        splitter = cls([cls.end, cls.unk], **options)
        counts: Counter[str] = Counter()  # breaks ties by first occurrence
        for part in parts:
            counts.update(splitter.split(splitter._lines(part)[0]))
        words = [word for word, count in counts.most_common(settings.max_size) if count >= settings.min_count]
        return cls(cls._listed(words, settings), **options)

    @classmethod
    def _listed(cls, words: list[str], settings: LearnSettings) -> list[str]:
        first = [cls.unk] if cls.unk not in words and may_lack_some(words, settings) else []
        last = [cls.unk] if cls.unk not in words and not first else []
        return [cls.end, *first, *(word for word in words if word != cls.end), *last]

    @classmethod
    def unfit(cls, text: str) -> str | None:
        words = text.split()
        letters = sum(map(len, words))
        length = letters / max(len(words), 1)
        if length <= (4 if len(_UNSPACED.findall(text)) > 0.2 * letters else 20):
            return None
        return f"has few blanks between its words ({length:.0f} characters from blank to blank): use char or bpe"

    def encode(self, text: str) -> NDArray[np.int64]:
        """Return the ids of a text; a last line without a line end is not closed, so that a prompt can stop in it."""
        return self._ids(self.split(_plain_lines(text)))[0]

    def encode_part(self, part: Part) -> Encoded:
        text, closed = self._lines(part)
        ids, missing = self._ids(self.split(text))
        known = ids[~missing] if missing.any() else ids
        text_bytes = int(self._bytes_of_id[known].sum()) + self._blanks(ids, text, cut=not part.ends)
        text_bytes -= closed and self.ends_lines  # that line end is not in the text
        return Encoded(ids, unknown=int(missing.sum()), text_bytes=min(text_bytes, len(part.data)))

    def _lines(self, part: Part) -> tuple[str, bool]:
        r"""Return a part's text with `\n` at every line's end, and whether the last one of a document was added."""
        text = _plain_lines(self.text_of_bytes(part.data))
        is_open = part.ends and text != "" and not text.endswith("\n")
        return text + "\n" * is_open, is_open

    def _ids(self, words: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        found = map(self.id_of_symbol.get, words, repeat(-1))
        ids = np.fromiter(found, np.int64, count=len(words))
        missing = ids < 0
        ids[missing] = self.id_of_symbol[self.unk]
        return ids, missing

    def _blanks(self, ids: NDArray[np.int64], text: str, *, cut: bool) -> int:
        """Count the blanks that decoding writes: between two words, the one at which a part is cut too."""
        is_word = ids != self.id_of_symbol[self.end]
        return int((is_word[1:] & is_word[:-1]).sum()) + (cut and text[-1:] in (" ", "\t") and bool(is_word[-1:].any()))

    def decode(self, ids: ArrayLike) -> str:
        """Return the words with blanks between them, the symbol of a line's end as a line end."""
        words = [self.symbols[number] for number in flat_ids(ids, size=self.size).tolist()]
        lines = " ".join("\n" if word == self.end else word for word in words)
        return lines.replace(" \n", "\n").replace("\n ", "\n")


@registry.register("tokenizer", "word")
class WordTokenizer(ListedWords):
    """Words as the published code splits them: by white space, `<eos>` (id 0) at every line's end.

    Case is kept, unless `lower_case`, as for the Penn Treebank. Without `line_ends` a line end is a blank like any
    other; `<eos>` keeps its id all the same, so that both ways of reading have the same ids.
    """

    kind = "word"
    defaults: ClassVar[Mapping[str, bool]] = {"lower_case": False, "line_ends": True}

    def split(self, text: str) -> list[str]:
        if self.options["lower_case"]:
            text = text.lower()
        return (text.replace("\n", f" {EOS} ") if self.ends_lines else text).split()


@registry.register("tokenizer", "sentence")
class SentenceTokenizer(ListedWords):
    """Words of the One Billion Words: every line is a sentence, with `<S>` on both sides.

    Neighbours share an `<S>`: it is the target that ends one and the input that begins the next. The published code
    writes two, but its batches never ask for the second, which the first foretells.
    """

    kind = "sentence"
    end = "<S>"
    unk = "<UNK>"

    def __init__(self, symbols: Sequence[str], **options: bool) -> None:
        super().__init__(symbols, **options)
        self.start = self.id_of_symbol[self.end]
        self.opening = (self.start,)

    @classmethod
    def _listed(cls, words: list[str], settings: LearnSettings) -> list[str]:
        return [*words, *(word for word in (cls.end, cls.unk) if word not in words)]

    def split(self, text: str) -> list[str]:
        return text.replace("\n", f" {self.end} ").split()

    def encode(self, text: str) -> NDArray[np.int64]:
        """Return the ids of a text, with `<S>` at its beginning."""
        return np.concatenate([self.opening, super().encode(text)])

    def decode(self, ids: ArrayLike) -> str:
        """Return the words with blanks between them, `<S>` as a line end; one at the very beginning is nothing."""
        numbers = flat_ids(ids, size=self.size)
        return super().decode(numbers[1:] if len(numbers) and numbers[0] == self.start else numbers)


@registry.register("tokenizer", "wikitext")
class WikitextTokenizer(ListedWords):
    """Words of raw text, split as WikiText's were: `23,000-year-old's` is `23 @,@ 000 @-@ year @-@ old 's`.

    `<eos>` (id 0) ends every line, case is kept. It splits as transformers' TransfoXLTokenizer does.
    """

    kind = "wikitext"

    def __init__(self, symbols: Sequence[str], **options: bool) -> None:
        super().__init__(symbols, **options)
        self._bytes_of_id[[number for number, word in enumerate(symbols) if word in _JOINED]] = 1

    def for_split_text(self) -> Tokenizer:
        return WordTokenizer(self.symbols)

    @classmethod
    def learning_split_point(cls, data: bytes) -> int:
        after_line = data.rfind(b"\n") + 1
        if after_line:
            return after_line
        text = data[: character_border(data)].decode(errors="surrogateescape")
        return len(text[: last_cut(text)].encode(errors="surrogateescape"))

    def split(self, text: str) -> list[str]:
        return moses_rules().split(text)

    def _blanks(self, ids: NDArray[np.int64], text: str, *, cut: bool) -> int:
        """Count the blanks between words of the text: decoding joins again what the rules took apart."""
        return sum(max(len(line.split()) - 1, 0) for line in text.split("\n")) + text.startswith(" ")

    def decode(self, ids: ArrayLike) -> str:
        """Return the words as plain text, `<eos>` as a line end."""
        lines: list[list[str]] = [[]]
        for number in flat_ids(ids, size=self.size).tolist():
            if self.symbols[number] == EOS:
                lines.append([])
            else:
                lines[-1].append(self.symbols[number])
        return "\n".join(map(moses_rules().join, lines))

    def decoder(self, after: Sequence[int] = ()) -> Decoder:
        return _LineDecoder(self, after=after)


class _LineDecoder(Decoder):
    """For words whose text depends on their line: a word is written when the next one has not changed it."""

    def __init__(self, tokenizer: WikitextTokenizer, *, after: Sequence[int]) -> None:
        self._decode = tokenizer.decode
        self._end = tokenizer.id_of_symbol[EOS]
        ends = [place for place, number in enumerate(after) if number == self._end]
        self._line = list(after[ends[-1] + 1 if ends else 0 :])
        self._text = self._decode(self._line)
        self._written = len(self._text)

    def feed(self, number: int) -> str:
        if number == self._end:
            last = self.finish() + "\n"
            self._line, self._text, self._written = [], "", 0
            return last
        self._line.append(number)
        before, self._text = self._text, self._decode(self._line)
        differs = [old != new for old, new in zip(before, self._text, strict=False)]
        return self._write(differs.index(True) if True in differs else len(differs))

    def finish(self) -> str:
        return self._write(len(self._text))

    def _write(self, end: int) -> str:
        text = self._text[self._written : end]
        self._written = max(self._written, end)
        return text


def _plain_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


# The Moses rules for English, with numbers and hyphens taken apart, as transformers' TransfoXLTokenizer uses the
# library sacremoses. They work on a whole line, at about 0.3 MB a second; here a line is cut first into segments that
# no rule looks across, and what a segment became is remembered.

_JOINED = ("@-@", "@,@", "@.@")
"""Words that are one character in the text."""
_SPECIAL = (EOS, UNK, "<formula>")
"""Words of the text that no rule takes apart."""
_REMEMBERED = 1 << 18
_REMEMBERED_CHARACTERS = 100  # longer segments hardly ever come again
_AT_SPECIAL = re.compile(f"({'|'.join(map(re.escape, _SPECIAL))})")
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
        self._remembered = lru_cache(maxsize=_REMEMBERED)(self._apply)

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
            words += [part] if part in _SPECIAL else self._split_part(part)
        return words

    def _split_part(self, part: str) -> list[str]:
        part = part.strip()
        if not part:
            return []
        segments = _SAFE_BLANKS.split(part)
        words: list[str] = []
        for segment, after in zip(segments, chain(segments[1:], [""]), strict=True):
            # Whether a full stop ends a sentence, and becomes a word, depends on what comes next.
            apply = self._remembered if len(segment) <= _REMEMBERED_CHARACTERS else self._apply
            words += apply(segment, self._kind_of(after) if segment[-1:] == "." else "")
        return words

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
            protected_patterns=_SPECIAL if 0 < text.count("<") <= _PROTECTED_AT_MOST else None,
        )
        if after:
            words.pop()
        return [part for word in words for part in _IN_NUMBERS.sub(r" @\g<0>@ ", word).split()]


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
