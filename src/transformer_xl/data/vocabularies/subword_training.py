"""Sub-words learnt from a corpus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from transformer_xl.data.vocabularies.base import utf8
from transformer_xl.data.vocabularies.borders import in_parts, last_border
from transformer_xl.data.vocabularies.subwords import BYTES, PART_BYTES, SubwordVocabulary
from transformer_xl.errors import UserError

# Merging takes the square of a word's length, and a text can be one word: DNA, base64, a line of blanks.
_LONG_WORD = re.compile(r"\w{256}|\s{256}|[^\w\s]{256}")


def train_bpe(texts: Iterable[str], *, size: int) -> SubwordVocabulary:
    """Learn byte-level BPE that splits text as GPT-2 does: the same from the same texts, and able to say any text.

    Args:
        texts: parts of a corpus, of a few megabytes each.
        size: symbols, the 256 bytes among them; fewer are learnt where nothing comes twice any more.

    Raises:
        UserError: the size is too small.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if size < BYTES:
        raise UserError(f"data.bpe_size is {size}, and must be at least {BYTES}, since every byte is a symbol")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
    )
    # The library takes 256 texts at a time into memory.
    tokenizer.train_from_iterator(_training_parts(texts), trainer)
    return SubwordVocabulary(json.loads(tokenizer.to_str()), end_of_document=None)


def _training_parts(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for part in in_parts(utf8(text, restores_bytes=False), last_border, size=PART_BYTES):
            words = part.decode()
            start = 0
            for word in _LONG_WORD.finditer(words):
                yield words[start : word.end()]
                start = word.end()
            yield words[start:]
