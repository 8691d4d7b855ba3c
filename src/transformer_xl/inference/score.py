"""What texts cost: read one by one from a file or a pipe, turned into ids, and scored token by token.

A text's tokens are those that it has in a corpus of the vocabulary's kind, so that the ids of texts that read on from
each other are, one behind the other, those of the text that they make together.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_xl.data.tokenizer import EncodeError, Part, Tokenizer, after_blank, character_border
from transformer_xl.errors import UserError
from transformer_xl.model.base import Context, LanguageModel
from transformer_xl.model.streaming import Stream, stream

Unit = Literal["line", "document"]
PART_BYTES = 1 << 16
"""From so many bytes on a text comes in parts."""
_LONGEST_BYTES = 64 << 20
"""A text in which no place to cut is found grows to this, and is then cut between two characters."""
_LINE_ENDS = b"\r\n"
_BLANKS = b" \t\r\n"
_LAST_LINE_END = re.compile(rb"\r?\n\Z")
_NONE: NDArray[np.int64] = np.zeros(0, np.int64)
_LARGEST_EXPONENT = 700.0


class Input(Protocol):
    """Bytes, as `open(path, "rb")` and `sys.stdin.buffer` give them."""

    def read1(self, size: int, /) -> bytes:
        """Return what is there, at most so much; wait only where nothing is; nothing at the end."""


class TextPart(NamedTuple):
    """A text or a part of one, cut where the ids of the parts are those of the whole.

    Attributes:
        data: its bytes, line ends among them.
        begins: whether the text begins with it.
        ends: whether the text ends with it.
        line: number, from 1, of the line in which it begins.
    """

    data: bytes
    begins: bool
    ends: bool
    line: int


def read_texts(
    source: Input, *, unit: Unit, keeps_blank_lines: bool, split_point: Callable[[bytes], int]
) -> Iterator[TextPart]:
    r"""Yield texts in order, in parts of bounded size, each as soon as its end has been read.

    Args:
        source: read to its end; a byte-order mark is no part of it.
        unit: `line`: a text ends with each `\n`; `document`: lines of nothing but blanks stand between texts.
        keeps_blank_lines: whether those belong to the document before them, as in a corpus, which then ends only where
            the next one begins, or to none.
        split_point: finds the last place where a long text may be cut; 0: there is none.
    """
    held = _Held(split_point)
    if unit == "line":
        for piece in _pieces(source):
            yield from held.add(piece)
            if piece.endswith(b"\n"):
                yield held.end()
    else:
        yield from _documents(source, held, keeps_blank_lines=keeps_blank_lines)
    if not held.is_empty:
        yield held.end()


def _documents(source: Input, held: _Held, *, keeps_blank_lines: bool) -> Iterator[TextPart]:
    """Yield all documents but the end of the last one."""
    blanks = b""  # the beginning of a line that may still be blank
    in_line = has_text = is_over = False
    for piece in _pieces(source):
        line, blanks = blanks + piece, b""
        ends_line = line.endswith(b"\n")
        is_blank = not in_line and not line.strip(_BLANKS)
        if is_blank and not ends_line and len(line) < PART_BYTES:
            blanks = line
        elif is_blank and keeps_blank_lines:
            yield from held.add(line)
            is_over = has_text
        elif is_blank:
            if not held.is_empty:
                yield held.end()
            held.skip(line)
        else:
            if is_over:
                yield held.end()
            yield from held.add(line)
            in_line, has_text, is_over = not ends_line, True, False
    if keeps_blank_lines:
        yield from held.add(blanks)


class _Held:
    """What has been read of a text and not been handed on."""

    def __init__(self, split_point: Callable[[bytes], int]) -> None:
        self._split_point = split_point
        self._pieces: list[bytes] = []
        self._size = 0
        self._cut_from = PART_BYTES
        self._begins = True
        self._line = 1

    @property
    def is_empty(self) -> bool:
        return self._begins and not self._size

    def add(self, data: bytes) -> Iterator[TextPart]:
        """Take more of the text, and yield what can be handed on of a long one; never its last line end."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._cut_from:
            return
        text = b"".join(self._pieces)
        settled = text.rstrip(_LINE_ENDS)
        cut = self._split_point(settled)
        if not cut and len(text) >= _LONGEST_BYTES:
            cut = character_border(settled)
        if cut:
            yield self._hand_on(text[:cut], rest=text[cut:], ends=False)
        else:
            self._pieces, self._cut_from = [text], 2 * len(text)

    def end(self) -> TextPart:
        """Return the rest of the text."""
        return self._hand_on(b"".join(self._pieces), rest=b"", ends=True)

    def skip(self, data: bytes) -> None:
        """Count lines that belong to no text."""
        self._line += data.count(b"\n")

    def _hand_on(self, data: bytes, *, rest: bytes, ends: bool) -> TextPart:
        part = TextPart(data, begins=self._begins, ends=ends, line=self._line)
        self._line += data.count(b"\n")
        self._pieces, self._size, self._begins, self._cut_from = [rest], len(rest), ends, PART_BYTES
        return part


def _pieces(source: Input) -> Iterator[bytes]:
    """Yield lines, or parts of them, as they come; a line's last part has its line end."""
    block = source.read1(PART_BYTES).removeprefix(codecs.BOM_UTF8)
    while block:
        start = 0
        while start < len(block):
            stop = block.find(b"\n", start) + 1 or len(block)
            yield block[start:stop]
            start = stop
        block = source.read1(PART_BYTES)


class EncodedText(NamedTuple):
    """A part of a text.

    Attributes:
        ids: its tokens.
        text_bytes: of UTF-8 that decoding them gives back; 0 where they stand for no text.
        unknown: how many are `<unk>`.
    """

    ids: NDArray[np.int64]
    text_bytes: int
    unknown: int


@dataclass(frozen=True, kw_only=True)
class TextEncoder:
    r"""Turns texts into ids, part by part.

    A vocabulary of words writes its symbol for every line end, the last one too: a text that lacks it is closed, as a
    corpus is. A document ends with `<eod>`, where the vocabulary has it. Beyond that, the line end that parts a text
    from the next one belongs to it only where they read on from each other; alone, a text of nothing but blanks has no
    symbols of words. Line ends are left out where the corpus has none, as text8.

    Attributes:
        tokenizer: of the model.
        unit: what one text is.
        reads_on: whether each text but the first goes on from the one before.
        has_line_ends: whether line ends are symbols of the corpus, where its vocabulary has them.
    """

    tokenizer: Tokenizer
    unit: Unit
    reads_on: bool
    has_line_ends: bool

    @property
    def split_point(self) -> Callable[[bytes], int]:
        """The function that finds where a long text may be cut."""
        return self.tokenizer.split_point if self.tokenizer.is_text else after_blank

    def encode(self, part: TextPart) -> EncodedText:
        """Return the ids of a part of a text.

        Raises:
            UserError: it is no UTF-8, where bytes are no symbols, or the vocabulary lacks something; naming the line.
        """
        data, tokenizer = part.data, self.tokenizer
        if part.ends and not self.reads_on:
            data = _LAST_LINE_END.sub(b"", data)
        has_symbols = self.reads_on or not part.begins or bool(data.strip())
        if part.ends and tokenizer.ends_lines and has_symbols and not data.endswith(b"\n"):
            data += b"\n"
        if tokenizer.strips_newlines and not (self.has_line_ends and tokenizer.has_newlines):
            data = data.translate(None, _LINE_ENDS)
        try:
            found = tokenizer.encode_part(Part(data, ends=part.ends and has_symbols))
        except EncodeError as error:
            line = part.line + data.count(b"\n", 0, error.byte)
            raise UserError(f"line {line} {error.problem}") from error
        except UserError as error:
            raise UserError(f"line {part.line}: {error}") from error
        ids, end = found.ids, tokenizer.end_of_document if self.unit == "document" else None
        if part.ends and end is not None and (len(ids) or not part.begins):
            ids = np.append(ids, end)
        return EncodedText(ids, text_bytes=found.text_bytes, unknown=found.unknown)


class TokenCosts(NamedTuple):
    """What neighbouring tokens of a text cost.

    Attributes:
        position: of the first of them in the text, from 0.
        ids: theirs, int64.
        nats: the loss of each, float64.
    """

    position: int
    ids: NDArray[np.int64]
    nats: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TextScore:
    """What a text cost, or several together.

    Attributes:
        nats: sum of losses.
        predictions: tokens that were predicted; one less than `tokens` where nothing preceded the first.
        tokens: of the text.
        text_bytes: of UTF-8 that they stand for; 0 where they stand for no text.
        unknown: tokens that are `<unk>`, whatever the text has there.
    """

    nats: float = 0.0
    predictions: int = 0
    tokens: int = 0
    text_bytes: int = 0
    unknown: int = 0

    def __add__(self, other: TextScore) -> TextScore:
        return TextScore(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    @property
    def nats_per_token(self) -> float | None:
        """The mean loss; None where nothing was predicted."""
        return self.nats / self.predictions if self.predictions else None

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of UTF-8, as for a corpus: a first token that nothing precedes counts as the mean does.

        None where nothing was predicted, or tokens stand for no text.
        """
        mean = self.nats_per_token
        return mean / math.log(2) * self.tokens / self.text_bytes if mean is not None and self.text_bytes else None

    @property
    def perplexity(self) -> float | None:
        """The perplexity per token; None where nothing was predicted, or no number can say it."""
        mean = self.nats_per_token
        return math.exp(mean) if mean is not None and mean < _LARGEST_EXPONENT else None


class Scorer:
    """Reads texts token by token, and says what each token cost.

    A text alone has a session of its own, so that no other text changes its score by a bit. Texts that read on from
    each other share one, and the last token of each precedes the next. A model without memory, or one that knows the
    place of a token in its segment, reads anew every `segment_len` tokens from where a text begins.

    Attributes:
        last: the id that precedes what is read next, where texts read on from each other; None: nothing does.
    """

    def __init__(self, model: LanguageModel, context: Context, *, start: int | None, reads_on: bool) -> None:
        """Begin to read.

        Args:
            model: in evaluation mode.
            context: how to read; segments are counted from where a text begins.
            start: the id that precedes a text; None: nothing does, and its first token is not predicted.
            reads_on: whether each text but the first goes on from the one before.

        Raises:
            UserError: the model cannot be read with such lengths.
        """
        self._model = model
        self._context = context
        self._start = start
        self._reads_on = reads_on
        self._device = next(model.parameters()).device
        self._require_readable()
        self._session = self._new_session()
        self._unread = _NONE
        self._position = 0
        self.last = start

    def read(self, ids: NDArray[np.int64], *, begins: bool, ends: bool) -> Iterator[TokenCosts]:
        """Read more of a text, and yield what its tokens cost, a segment at a time.

        Args:
            ids: any number of them.
            begins: whether a text begins with them; one that has not ended before is given up.
            ends: whether it ends with them; before its end some of its last tokens may be kept back.

        Raises:
            UserError: a loss is no number.
        """
        if begins:
            self._position, self._unread = 0, _NONE
            if not self._reads_on:
                self._session, self.last = self._new_session(), self._start
        self._unread = np.concatenate([self._unread, ids])
        if self.last is None and len(self._unread):
            self.last, self._unread, self._position = int(self._unread[0]), self._unread[1:], 1
        while len(self._unread) >= (1 if ends else self._context.segment_len):
            yield self._read_segment(self._unread[: self._context.segment_len])

    def _read_segment(self, targets: NDArray[np.int64]) -> TokenCosts:
        assert self.last is not None
        inputs = np.concatenate([np.array([self.last], np.int64), targets[:-1]])
        nll = self._session.nll(self._on_device(inputs), self._on_device(targets))[0]
        costs = TokenCosts(self._position, targets, nll.cpu().double().numpy())
        for place in np.flatnonzero(~np.isfinite(costs.nats)).tolist():
            raise UserError(
                f"the model gives token {self._position + place} of the text, counted from 0, a loss of "
                f"{costs.nats[place]}, which is no score: its weights are broken, or need precision=32-true"
            )
        self.last, self._unread = int(targets[-1]), self._unread[len(targets) :]
        self._position += len(targets)
        return costs

    def _on_device(self, ids: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(ids, np.int64))[None].to(self._device)

    def _new_session(self) -> Stream:
        context = self._context
        return stream(
            self._model,
            batch_size=1,
            mem_len=context.mem_len,
            clamp_len=context.clamp_len,
            same_length=context.same_length,
        )

    def _require_readable(self) -> None:
        longest, segment_len = self._model.max_segment_len, self._context.segment_len
        if longest is not None and segment_len > longest:
            raise UserError(f"segment_len is {segment_len}, and the model can read at most {longest} tokens at once")
        token = torch.zeros(1, 1, dtype=torch.int64, device=self._device)
        try:
            self._new_session().nll(token, token)
        except ValueError as error:
            raise UserError(f"the model cannot be read so: {error}") from error
