"""How the text of a corpus is read into symbols: what its configuration says, and a vocabulary that it is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from transformer_xl.config import CorpusConfig, PublishedConfig
from transformer_xl.data.building.pieces import read_bytes, read_raw_words, read_text, read_words
from transformer_xl.data.sources.files import Piece
from transformer_xl.data.tokenizer import (
    ByteVocabulary,
    CharVocabulary,
    ListedWords,
    RankedByteVocabulary,
    SentenceVocabulary,
    SymbolVocabulary,
    Vocabulary,
    WikitextVocabulary,
    WordVocabulary,
)
from transformer_xl.errors import UserError

LINE_ENDS = "\r\n"
_LINE_END_BYTES = LINE_ENDS.encode()
_SAMPLE_CHARACTERS = 1 << 20
_LONG_WORDS = 20
_UNSPACED_SHARE = 0.2
# Thai, Lao, Myanmar, Khmer, Japanese, Chinese: first and last code points.
_UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How text becomes symbols.

    Attributes:
        kind: of the vocabulary.
        drop_newlines: line ends are no symbols.
        split_already: words stand in the files as they are, whatever the vocabulary would make of raw text.
        lower_case: words are counted in lower case.
        count_all: words are counted over all splits, not over the training split alone.
    """

    kind: str
    drop_newlines: bool = False
    split_already: bool = False
    lower_case: bool = False
    count_all: bool = False

    def bytes(self, piece: Piece) -> Iterator[bytes]:
        """Yield the bytes of a piece that are symbols."""
        for chunk in read_bytes(piece):
            yield chunk.translate(None, _LINE_END_BYTES) if self.drop_newlines else chunk

    def text(self, piece: Piece) -> Iterator[str]:
        """Yield the characters of a piece that are symbols."""
        for text in read_text(piece):
            yield text.replace("\n", "").replace("\r", "") if self.drop_newlines else text

    def words(self, piece: Piece) -> Iterator[list[str]]:
        """Yield the words of a piece, with the vocabulary's line end after every line."""
        if self.kind == WikitextVocabulary.kind and not self.split_already:
            return read_raw_words(piece)
        end = SentenceVocabulary.end if self.kind == SentenceVocabulary.kind else ListedWords.end
        return read_words(piece, lower_case=self.lower_case, end=end)


def reading_for(config: CorpusConfig, vocabulary: Vocabulary | None) -> Reading:
    """Say how a corpus is read: the vocabulary that it is given decides, or else the configuration.

    Raises:
        UserError: the given vocabulary is none for this text.
    """
    kind = _kind_of(config) if vocabulary is None else vocabulary.kind
    if kind == SymbolVocabulary.kind:
        raise UserError(
            f"data is {config.kind}, which is text, and the vocabulary of init_from has numbers without a meaning: it "
            "must come from a model of text"
        )
    drop_newlines = config.newline == "drop"
    if drop_newlines and kind not in (ByteVocabulary.kind, RankedByteVocabulary.kind, CharVocabulary.kind):
        raise UserError(
            "data.newline is 'drop', and must be 'keep' for words, which the vocabulary has: they end at line ends"
        )
    if vocabulary is None:
        lower_case = config.kind == "ptb"  # as the published preparation has it
    else:
        lower_case = isinstance(vocabulary, WordVocabulary) and vocabulary.lower_case
    return Reading(
        kind=kind,
        drop_newlines=drop_newlines,
        split_already=isinstance(config, PublishedConfig),
        lower_case=lower_case,
        count_all=config.kind in ("wikitext2", "ptb"),
    )


def _kind_of(config: CorpusConfig) -> str:
    """Name the kind of vocabulary that a corpus has by itself."""
    if config.kind == "enwik8" and config.tokenizer == CharVocabulary.kind:
        return RankedByteVocabulary.kind  # the published preparation takes its bytes for characters
    if config.kind == "lm1b" and config.tokenizer == WordVocabulary.kind:
        return SentenceVocabulary.kind
    return config.tokenizer


def unspaced_note(reading: Reading, pieces: Sequence[Piece]) -> str | None:
    """Give a line for text that is split at blanks and does not have them, as the beginning of it shows."""
    if reading.kind not in (WordVocabulary.kind, WikitextVocabulary.kind):
        return None
    sample = ""
    for piece in pieces:
        sample += next(read_text(piece), "")[: _SAMPLE_CHARACTERS - len(sample)]
        if len(sample) >= _SAMPLE_CHARACTERS:
            break
    words = sample.split()
    if not words:
        return None
    letters = sum(map(len, words))
    codes = np.frombuffer(sample.encode("utf-32-le"), "<u4")
    unspaced = sum(int(((codes >= first) & (codes <= last)).sum()) for first, last in _UNSPACED)
    if letters / len(words) <= _LONG_WORDS and unspaced / letters <= _UNSPACED_SHARE:
        return None
    return (
        f"this text seems to have few blanks between its words ({letters / len(words):.0f} characters a word); "
        "data.tokenizer=char does not need them"
    )
