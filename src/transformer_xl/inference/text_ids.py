"""Texts as ids: what precedes a text, what ends it, and what of it the vocabulary can say.

A text's tokens are those that it has in a corpus of the vocabulary's kind, so that the ids of texts that read on from
each other are, one behind the other, those of the text that they make together.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data import tokenizer
from transformer_xl.data.tokenizer import EncodeError, Tokenizer, after_blank
from transformer_xl.errors import UserError
from transformer_xl.inference.texts import FindCut, Part, Unit

_LAST_LINE_END = re.compile(rb"\r?\n\Z")


class Encoded(NamedTuple):
    """A part of a text.

    Attributes:
        ids: its tokens.
        text_bytes: of UTF-8 that decoding them gives back; 0 where they stand for no text.
        unknown: how many are `<unk>`.
    """

    ids: NDArray[np.int64]
    text_bytes: int
    unknown: int


class TextEncoder:
    r"""Turns texts into ids, part by part.

    A vocabulary of words writes its symbol for every line end, the last one too: a text that lacks it is closed, as a
    corpus is. A document ends with `<eod>`, where the vocabulary has it. Beyond that, the line end that parts a text
    from the next one belongs to it only where they read on from each other; alone, a text of nothing but blanks has no
    symbols of words. Line ends are left out where the corpus has none, as text8.

    Attributes:
        start: the id that precedes a text which begins anew; None: there is none.
        is_of_text: whether ids stand for text, and not for themselves.
    """

    def __init__(self, vocabulary: Tokenizer, *, unit: Unit, reads_on: bool, has_line_ends: bool) -> None:
        """Take what decides.

        Args:
            vocabulary: of the model.
            unit: what one text is.
            reads_on: whether each text but the first goes on from the one before.
            has_line_ends: whether line ends are symbols of the corpus, where its vocabulary has them.
        """
        self.start = vocabulary.start
        self.is_of_text = vocabulary.is_text
        self._vocabulary = vocabulary
        self._reads_on = reads_on
        end = vocabulary.end_of_document if unit == "document" else None
        self._end = np.array([] if end is None else [end], np.int64)
        self._strips_newlines = vocabulary.strips_newlines and not (has_line_ends and vocabulary.has_newlines)

    @property
    def find_cut(self) -> FindCut:
        """Give the function that finds where a long text may be cut."""
        return self._vocabulary.split_point if self.is_of_text else after_blank

    def encode(self, part: Part) -> Encoded:
        """Turn a part of a text into ids.

        Raises:
            UserError: it is no UTF-8, where bytes are no symbols, or the vocabulary lacks something; naming the line.
        """
        data = part.data
        if part.ends and not self._reads_on:
            data = _LAST_LINE_END.sub(b"", data)
        has_symbols = self._reads_on or not part.begins or bool(data.strip())
        if part.ends and self._vocabulary.ends_lines and has_symbols and not data.endswith(b"\n"):
            data += b"\n"
        if self._strips_newlines:
            data = data.translate(None, b"\r\n")
        found = self._encoded(tokenizer.Part(data, ends=part.ends and has_symbols), line=part.line)
        ids = found.ids
        if part.ends and (len(ids) or not part.begins):
            ids = np.concatenate([ids, self._end])
        return Encoded(ids, text_bytes=found.text_bytes, unknown=found.unknown)

    def _encoded(self, part: tokenizer.Part, *, line: int) -> tokenizer.Encoded:
        try:
            return self._vocabulary.encode_part(part)
        except EncodeError as error:
            line += part.data.count(b"\n", 0, error.byte)
            raise UserError(f"line {line} {error.problem}") from error
        except UserError as error:
            raise UserError(f"line {line}: {error}") from error
