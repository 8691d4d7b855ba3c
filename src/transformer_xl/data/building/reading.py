"""How the text of a corpus becomes symbols: what its configuration says, and a vocabulary that it is given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transformer_xl.data.building.decoding import is_utf8
from transformer_xl.data.building.text import (
    Chunk,
    FindCut,
    Stretch,
    after_blank,
    after_line,
    anywhere,
    character_border,
    read_chunks,
)
from transformer_xl.data.tokenizer import (
    ByteVocabulary,
    CharVocabulary,
    RankedByteVocabulary,
    SentenceVocabulary,
    SubwordVocabulary,
    SymbolVocabulary,
    Vocabulary,
    WikitextVocabulary,
    WordVocabulary,
    load_tokenizer,
)
from transformer_xl.data.vocabularies.moses import last_cut, moses_rules
from transformer_xl.data.vocabularies.words import EOS, plain_lines
from transformer_xl.data_config import TOKENIZERS, CorpusConfig, CountedConfig, PublishedConfig, TextConfig
from transformer_xl.errors import UserError

LINE_ENDS = "\r\n"
_LINE_END_BYTES = LINE_ENDS.encode()
_OF_BYTES = (ByteVocabulary.kind, RankedByteVocabulary.kind)
_OF_WORDS = (WordVocabulary.kind, WikitextVocabulary.kind, SentenceVocabulary.kind)
_SAMPLE_CHARACTERS = 1 << 20
_LONG_WORDS = 20
_LONG_UNSPACED_WORDS = 4
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
        lower_case: words and characters are taken in lower case.
        count_all: words are counted over all splits, not over the training split alone.
        min_count: rarer words and characters are `<unk>`.
        max_size: so many words or characters at most are counted; None: all.
        bpe_size: sub-words of a vocabulary that is trained.
        are_documents: whether rows of the text are documents.
    """

    kind: str
    drop_newlines: bool = False
    split_already: bool = False
    lower_case: bool = False
    count_all: bool = False
    min_count: int = 1
    max_size: int | None = None
    bpe_size: int | None = None
    are_documents: bool = False

    @property
    def is_of_bytes(self) -> bool:
        """Say whether any bytes will do, not only text."""
        return self.kind in _OF_BYTES

    @property
    def is_of_words(self) -> bool:
        """Say whether symbols are words between blanks."""
        return self.kind in _OF_WORDS

    def find_cut(self, vocabulary: Vocabulary | None) -> FindCut:
        """Give the function that finds where a chunk may end."""
        if self.is_of_bytes:
            return anywhere
        if self.is_raw_wikitext:
            return _before_safe_blank
        if self.is_of_words:
            return after_blank
        if isinstance(vocabulary, SubwordVocabulary):
            return vocabulary.cut
        return after_blank if self.lower_case else character_border

    def bytes(self, data: bytes) -> bytes:
        """Give the bytes that are symbols."""
        return data.translate(None, _LINE_END_BYTES) if self.drop_newlines else data

    def text(self, data: str) -> str:
        """Give the characters that are symbols."""
        if self.drop_newlines:
            data = data.replace("\n", "").replace("\r", "")
        return data.lower() if self.lower_case else data

    @property
    def is_raw_wikitext(self) -> bool:
        """Say whether text must be split into words by rules, not only at blanks."""
        return self.kind == WikitextVocabulary.kind and not self.split_already

    def words(self, text: str, *, is_whole: bool) -> list[str]:
        """Give the words of a document's end (`is_whole`) or of a part of it that ends after a line or a blank."""
        if self.is_raw_wikitext:
            return moses_rules().split(_closed(text, is_whole=is_whole))
        return self.marked(text, is_whole=is_whole).split()

    def marked(self, text: str, *, is_whole: bool) -> str:
        """Give the same as text in which only blanks stand between words, where no rules split them."""
        text = _closed(text, is_whole=is_whole)
        if self.lower_case:
            text = text.lower()
        if self.drop_newlines:
            return text
        end = SentenceVocabulary.end if self.kind == SentenceVocabulary.kind else EOS
        return text.replace("\n", f" {end} ")


def _closed(text: str, *, is_whole: bool) -> str:
    """Write every line end alike, with one behind the last line of a document."""
    text = plain_lines(text)
    return text + "\n" if is_whole and text and not text.endswith("\n") else text


def _before_safe_blank(data: bytes) -> int:
    """Find the last place where no rule of Moses looks across, at line ends first."""
    after = after_line(data)
    if after:
        return after
    text = data[: character_border(data)].decode(errors="surrogateescape")
    return len(text[: last_cut(text)].encode(errors="surrogateescape"))


def decoded(chunk: Chunk, stretch: Stretch) -> list[str]:
    """Give the text of each part of a chunk; `UserError` naming the file and the byte that is not UTF-8."""
    texts = []
    for number, part in enumerate(chunk.parts()):
        try:
            texts.append(part.decode())
        except UnicodeDecodeError as error:
            raise _undecodable(stretch, chunk.place(number, error.start)) from error
    return texts


def _undecodable(stretch: Stretch, place: int) -> UserError:
    line, searched = 1, 0
    with stretch.path.open("rb") as file:
        while searched < place and (block := file.read(min(1 << 20, place - searched))):
            line += block.count(b"\n")
            searched += len(block)
        byte = file.read(1)
    return UserError(
        f"{stretch.place(place)}, in line {line}, has the byte {byte[0]:#04x}, which is not UTF-8 there: data.encoding "
        "names another encoding, data.errors=replace goes on, data.tokenizer=byte takes any file"
    )


def reading_for(config: CorpusConfig, vocabulary: Vocabulary | None) -> Reading:
    """Say how a corpus is read: the vocabulary that it is given decides, or else the configuration.

    Raises:
        UserError: the given vocabulary is none for this text.
    """
    kind = _kind_of(config) if vocabulary is None else vocabulary.kind
    if kind == SymbolVocabulary.kind:
        raise UserError(
            f"data is {config.kind}, which is text, and the trained model's vocabulary has numbers without a meaning: "
            "it must come from a model of text"
        )
    drop_newlines = config.newline == "drop"
    if isinstance(vocabulary, WordVocabulary):
        drop_newlines = not vocabulary.line_ends
    elif drop_newlines and kind in (WikitextVocabulary.kind, SentenceVocabulary.kind, SubwordVocabulary.kind):
        raise UserError(
            f"data.newline is 'drop', and must be 'keep' for a vocabulary of kind {kind}: its lines end by a symbol"
        )
    if isinstance(vocabulary, WordVocabulary | CharVocabulary):
        lower_case = vocabulary.lower_case
    else:
        # the published preparation of the Penn Treebank is in lower case
        lower_case = config.lower_case if isinstance(config, CountedConfig) else config.kind == "ptb"
    return Reading(
        kind=kind,
        drop_newlines=drop_newlines,
        split_already=isinstance(config, PublishedConfig),
        lower_case=lower_case and kind in (WordVocabulary.kind, CharVocabulary.kind),
        count_all=config.kind in ("wikitext2", "ptb"),
        min_count=config.min_count if isinstance(config, CountedConfig) else 1,
        max_size=config.max_size if isinstance(config, CountedConfig) else None,
        bpe_size=config.bpe_size if isinstance(config, CountedConfig) else None,
        are_documents=config.documents != "none",
    )


def is_raw(config: CorpusConfig, reading: Reading) -> bool:
    """Say whether the files' bytes are the symbols, whatever they stand for."""
    if not reading.is_of_bytes:
        return False
    return not isinstance(config, TextConfig) or (is_utf8(config.encoding) and config.errors == "strict")


def _kind_of(config: CorpusConfig) -> str:
    """Name the kind of vocabulary that a corpus has by itself."""
    if config.kind == "enwik8" and config.tokenizer == CharVocabulary.kind:
        return RankedByteVocabulary.kind  # the published preparation takes its bytes for characters
    if config.kind == "lm1b" and config.tokenizer == WordVocabulary.kind:
        return SentenceVocabulary.kind
    return config.tokenizer if config.tokenizer in TOKENIZERS else SubwordVocabulary.kind


def foreign_tokenizer(config: CorpusConfig) -> Path | str | None:
    """Give the file or Hub name of a tokenizer that another program trained, where the configuration names one."""
    if config.tokenizer in TOKENIZERS:
        return None
    path = Path(os.path.expanduser(config.tokenizer))
    path = path / "tokenizer.json" if path.is_dir() else path
    return path.absolute() if path.exists() else config.tokenizer


def load_foreign_tokenizer(config: CorpusConfig) -> SubwordVocabulary:
    """Load the tokenizer that `foreign_tokenizer` names; `UserError` where that fails."""
    return load_tokenizer(str(foreign_tokenizer(config)))


def require_blanks(reading: Reading, stretches: Sequence[Stretch], *, setting: str) -> None:
    """Refuse text that is to be split at blanks and does not have them, as the beginning of it shows.

    Raises:
        UserError: it says what to use instead.
    """
    if reading.kind not in (WordVocabulary.kind, WikitextVocabulary.kind) or reading.split_already:
        return
    sample = ""
    for stretch in stretches:
        chunk = next(read_chunks(stretch, find_cut=character_border), None)
        if chunk is not None:
            sample += "".join(decoded(chunk, stretch))[: _SAMPLE_CHARACTERS - len(sample)]
        if len(sample) >= _SAMPLE_CHARACTERS:
            break
    words = sample.split()
    if not words:
        return
    letters = sum(map(len, words))
    codes = np.frombuffer(sample.encode("utf-32-le"), "<u4")
    unspaced = sum(int(((codes >= first) & (codes <= last)).sum()) for first, last in _UNSPACED)
    length = letters / len(words)
    if length > _LONG_WORDS or (unspaced / letters > _UNSPACED_SHARE and length > _LONG_UNSPACED_WORDS):
        raise UserError(
            f"data.tokenizer is {reading.kind!r}, and {setting} has few blanks between its words "
            f"({length:.0f} characters from blank to blank): use char or bpe"
        )
