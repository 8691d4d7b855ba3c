"""What texts cost: read one by one from a file or a pipe, turned into ids, and scored token by token.

A text's tokens are those that it has in a corpus of the vocabulary's kind, so that the ids of texts that read on from
each other are, one behind the other, those of the text that they make together.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from transformer_xl.data.tokenizer import Encoded, EncodeError, Part, Tokenizer
from transformer_xl.errors import UserError
from transformer_xl.model.base import Context, LanguageModel
from transformer_xl.model.streaming import stream

Unit = Literal["line", "document"]
_LAST_LINE_END = re.compile(rb"\r?\n\Z")


class Text(NamedTuple):
    """A text: its bytes, line ends among them, and the number, from 1, of the line in which it begins."""

    data: bytes
    line: int


def read_texts(source: BinaryIO, *, unit: Unit) -> Iterator[Text]:
    r"""Yield texts in order, each as soon as its end has been read, so that it is answered before the next is there.

    Args:
        source: read to its end; a byte-order mark is no part of it.
        unit: `line`: a text ends with each `\n`; `document`: lines of nothing but blanks stand between texts.
    """
    held, first = list[bytes](), 1
    for number, line in enumerate(iter(source.readline, b""), start=1):
        line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if unit == "line":
            yield Text(line, number)
        elif line.strip():
            first = first if held else number
            held.append(line)
        elif held:
            yield Text(b"".join(held), first)
            held = []
    if held:
        yield Text(b"".join(held), first)


def encode_text(tokenizer: Tokenizer, text: Text, *, unit: Unit, reads_on: bool, has_line_ends: bool = True) -> Encoded:
    r"""Return the ids of a text.

    A vocabulary of words writes its symbol for every line end, the last one too: a text that lacks it is closed, as a
    corpus is. A document ends with `<eod>`, where the vocabulary has it. Beyond that, the line end that parts a text
    from the next one belongs to it only where they read on from each other; alone, a text of nothing but blanks has no
    symbols of words. `has_line_ends` says whether line ends are symbols of the corpus at all; in text8 they are not.

    Raises:
        UserError: the vocabulary cannot encode it; naming the line.
    """
    data = text.data if reads_on else _LAST_LINE_END.sub(b"", text.data)
    has_symbols = reads_on or bool(data.strip())
    if tokenizer.ends_lines and has_symbols and not data.endswith(b"\n"):
        data += b"\n"
    if tokenizer.strips_newlines and not (has_line_ends and tokenizer.has_newlines):
        data = data.translate(None, b"\r\n")
    try:
        found = tokenizer.encode_part(Part(data, ends=has_symbols))
    except EncodeError as error:
        line = text.line + data.count(b"\n", 0, error.byte)
        raise UserError(f"line {line} {error.problem}") from error
    except UserError as error:
        raise UserError(f"line {text.line}: {error}") from error
    if unit == "document" and len(found.ids) and tokenizer.end_of_document is not None:
        return found._replace(ids=np.append(found.ids, tokenizer.end_of_document))
    return found


class Scorer:
    """Reads texts token by token, and says what each token cost.

    A text alone has a session of its own, so that no other text changes its score by a bit. Texts that read on from
    each other share one, and the last token of each precedes the next. A model without memory, or one that knows the
    place of a token in its segment, reads anew every `segment_len` tokens from where a text begins.

    Attributes:
        last: the id that precedes what is read next, where texts read on from each other; None: nothing does.
    """

    def __init__(self, model: LanguageModel, context: Context, *, start: int | None, reads_on: bool) -> None:
        """Begin to read; the id `start` precedes a text, or nothing does, and its first token is not predicted."""
        self._model, self._context = model, context
        self._start, self._reads_on = start, reads_on
        self._device = next(model.parameters()).device
        self._session = stream(model, batch_size=1, **context.lengths)
        self.last = start

    def read(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the loss of each token of a text in nats; the first has none where nothing precedes it.

        Raises:
            UserError: a loss is no number.
        """
        if not self._reads_on:
            self._session, self.last = stream(self._model, batch_size=1, **self._context.lengths), self._start
        before = [] if self.last is None else [self.last]
        tokens = torch.from_numpy(np.concatenate([np.array(before, np.int64), ids])).to(self._device)
        self.last = int(ids[-1]) if len(ids) else self.last
        nats = np.zeros(max(0, len(tokens) - 1))
        for start in range(0, len(nats), self._context.segment_len):
            piece = tokens[start : start + self._context.segment_len + 1]
            nll = self._session.nll(piece[None, :-1], piece[None, 1:])[0]
            nats[start : start + len(nll)] = nll.cpu().double().numpy()
        if not np.isfinite(nats).all():
            raise UserError("the model gives a token a loss that is no number: its weights or its precision are broken")
        return nats
