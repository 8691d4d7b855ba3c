"""How the text of a corpus becomes symbols: what its configuration says, and a vocabulary that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_xl import registry
from transformer_xl.data.building.decoding import is_utf8
from transformer_xl.data.building.text import Chunk, Stretch, read_chunks
from transformer_xl.data.subwords import SubwordTokenizer, load_pretrained, local_path
from transformer_xl.data.tokenizer import EncodeError, LearnSettings, Part, Tokenizer, character_border
from transformer_xl.data_config import CorpusConfig, CountedConfig, PublishedConfig, TextConfig, tokenizers
from transformer_xl.errors import UserError

_LINE_END_BYTES = b"\r\n"
_SAMPLE_CHARACTERS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How text becomes symbols.

    Attributes:
        tokenizer: of the vocabulary.
        settings: how it is learnt.
        drop_newlines: line ends are taken out of the text.
        split_already: words stand between blanks, whatever the tokenizer would make of raw text.
        count_all: words are counted over all splits, not over the training split alone.
        are_documents: whether rows of the text are documents.
    """

    tokenizer: type[Tokenizer]
    settings: LearnSettings
    drop_newlines: bool = False
    split_already: bool = False
    count_all: bool = False
    are_documents: bool = False

    @property
    def kind(self) -> str:
        """Return the name of the tokenizer."""
        return self.tokenizer.kind

    def parts(self, chunk: Chunk) -> list[Part]:
        """Return the documents of a chunk, or parts of them, as a tokenizer takes them."""
        found = chunk.parts()
        if self.drop_newlines:
            found = [data.translate(None, _LINE_END_BYTES) for data in found]
        last = len(found) - 1
        return [Part(data, ends=chunk.ends or number < last) for number, data in enumerate(found)]


def reading_for(config: CorpusConfig, vocabulary: Tokenizer | None) -> Reading:
    """Return how a corpus is read: the vocabulary that it is given decides, or else the configuration.

    Raises:
        UserError: the given vocabulary is none for this text.
    """
    found: Any = type(vocabulary) if vocabulary is not None else registry.lookup("tokenizer", _kind_of(config)).factory
    tokenizer: type[Tokenizer] = found
    if not tokenizer.is_text:
        raise UserError(
            f"data is {config.kind}, which is text, and the trained model's vocabulary has numbers without a meaning: "
            "it must come from a model of text"
        )
    if config.newline == "drop" and not tokenizer.strips_newlines and tokenizer.kind != "word":
        raise UserError(
            f"data.newline is 'drop', and must be 'keep' for a vocabulary of kind {tokenizer.kind}: its lines end by a "
            "symbol"
        )
    settings = LearnSettings(
        newline=config.newline,
        # the published preparation of the Penn Treebank is in lower case
        lower_case=config.lower_case if isinstance(config, CountedConfig) else config.kind == "ptb",
        min_count=config.min_count if isinstance(config, CountedConfig) else 1,
        max_size=config.max_size if isinstance(config, CountedConfig) else None,
        bpe_size=config.bpe_size if isinstance(config, CountedConfig) else None,
    )
    return Reading(
        tokenizer=tokenizer,
        settings=settings,
        drop_newlines=tokenizer.strips_newlines and config.newline == "drop",
        split_already=isinstance(config, PublishedConfig),
        count_all=config.kind in ("wikitext2", "ptb"),
        are_documents=config.documents != "none",
    )


def misplaced(reading: Reading, stretch: Stretch, chunk: Chunk, part: int, error: EncodeError) -> UserError:
    """Return the error about a part of a chunk with the place in its file."""
    offset = error.byte
    if reading.drop_newlines:
        kept = [place for place, value in enumerate(chunk.parts()[part]) if value not in _LINE_END_BYTES]
        offset = kept[offset]
    advice = (
        ": data.encoding names another encoding, data.errors=replace goes on, data.tokenizer=byte takes any file"
        if "UTF-8" in error.problem
        else ": training from its model with init_vocabulary=extend adds it, data.newline=drop leaves line ends out"
    )
    return UserError(f"{stretch.place(chunk.place(part, offset))}, {error.problem}{advice}")


def is_raw(config: CorpusConfig, reading: Reading) -> bool:
    """Return whether the files' bytes are the symbols, whatever they stand for."""
    if not reading.tokenizer.any_bytes:
        return False
    return not isinstance(config, TextConfig) or (is_utf8(config.encoding) and config.errors == "strict")


def _kind_of(config: CorpusConfig) -> str:
    """Return the kind of vocabulary that a corpus has by itself."""
    if config.kind == "enwik8" and config.tokenizer == "char":
        return "ranked_byte"  # the published preparation takes its bytes for characters
    if config.kind == "lm1b" and config.tokenizer == "word":
        return "sentence"
    return config.tokenizer if config.tokenizer in tokenizers() else SubwordTokenizer.kind


def foreign_tokenizer(config: CorpusConfig) -> Path | str | None:
    """Return the file or Hub name of a tokenizer that another program trained, where the configuration names one."""
    if config.tokenizer in tokenizers():
        return None
    return local_path(config.tokenizer) or config.tokenizer


def load_foreign_tokenizer(config: CorpusConfig) -> SubwordTokenizer:
    """Load the tokenizer that `foreign_tokenizer` names; `UserError` where that fails."""
    return load_pretrained(config.tokenizer)


def require_fit(reading: Reading, stretches: Sequence[Stretch], *, setting: str) -> None:
    """Refuse text that the tokenizer is not for, as the beginning of it shows.

    Raises:
        UserError: it says what to use instead.
    """
    if reading.tokenizer.any_bytes:
        return
    sample = ""
    for stretch in stretches:
        chunk = next(read_chunks(stretch, find_cut=character_border), None)
        if chunk is not None:
            sample += chunk.data.decode(errors="ignore")[: _SAMPLE_CHARACTERS - len(sample)]
        if len(sample) >= _SAMPLE_CHARACTERS:
            break
    if reason := reading.tokenizer.unfit(sample):
        raise UserError(f"data.tokenizer is {reading.kind!r}, and {setting} {reason}")
