"""Texts that a model continues together, each with draws of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.errors import UserError
from transformer_xl.inference.drawing import Drawer
from transformer_xl.inference.drawing_rule import DrawingRule
from transformer_xl.inference.reading_on import ReadingRule, growing_texts, takes_unequal
from transformer_xl.inference.text_writing import Growing, NumberWriter
from transformer_xl.model.base import LanguageModel


class Continuation:
    """Texts that one model continues together, a token of each at a time.

    Each text has a seed of its own, and what is drawn for it does not depend on the others.
    """

    def __init__(
        self, model: LanguageModel, *, drawing: DrawingRule, reading: ReadingRule, seeds: Sequence[int]
    ) -> None:
        """Begin texts of which nothing is known yet.

        Args:
            model: in evaluation mode.
            drawing: how tokens are drawn.
            reading: how texts are read.
            seeds: of the texts' draws, one for each text.
        """
        self._texts = growing_texts(model, reading, texts=len(seeds))
        self._drawers = [Drawer(drawing, seed=seed, vocab_size=model.vocab_size) for seed in seeds]
        self._unread: list[list[int]] = [[] for _ in seeds]

    def add(self, texts: Sequence[Sequence[int]]) -> None:
        """Put further tokens behind each text; drawn ones are no part of it before.

        Args:
            texts: of all as many, but for the first time where `takes_unequal` says so.
        """
        for drawer, unread, tokens in zip(self._drawers, self._unread, texts, strict=True):
            drawer.hold(tokens)
            unread.extend(tokens)

    def draw(self) -> list[int]:
        """Draw what may follow each text, which has got at least one token since the last draw.

        Raises:
            UserError: the model's predictions are no numbers.
        """
        unread, self._unread = self._unread, [[] for _ in self._unread]
        log_probs = self._texts.read(unread).float().cpu()
        if bool(log_probs.isnan().any()):
            raise UserError("the model predicts NaN: its weights are damaged, or the precision is too small for them")
        return [drawer.draw(of_text) for drawer, of_text in zip(self._drawers, log_probs, strict=True)]


def continued(continuation: Continuation, prompt: Sequence[int], growing: Growing) -> Iterator[str]:
    """Let one text grow until it ends; give what can be printed after each token, which may be nothing."""
    continuation.add([prompt])
    while growing.ended is None:
        (token,) = continuation.draw()
        text = growing.take(token)
        if growing.ended != "document":
            continuation.add([[token]])
        yield text


def sample_tokens(
    model: LanguageModel, prompt: Sequence[int], *, n_tokens: int, segment_len: int, drawing: DrawingRule, seed: int
) -> list[int]:
    """Continue a prompt; a model that can read it at once does, whatever `segment_len`.

    Args:
        model: in evaluation mode.
        prompt: at least one token id.
        n_tokens: how many tokens to draw.
        segment_len: the most tokens that a model reads at once which knows places, or has no memory.
        drawing: how tokens are drawn.
        seed: of the draws.

    Returns:
        The drawn tokens, without the prompt.
    """
    reading = ReadingRule(segment_len=segment_len)
    if takes_unequal(model, reading):
        reading = ReadingRule(segment_len=max(segment_len, len(prompt)))
    continuation = Continuation(model, drawing=drawing, reading=reading, seeds=[seed])
    growing = Growing(NumberWriter(), n_tokens=n_tokens, end=None)
    for _ in continued(continuation, prompt, growing):
        pass
    return growing.tokens


def first_tokens(vocabulary: Tokenizer) -> list[int]:
    """Give what a text begins after that has no prompt: what stands before the texts of a corpus.

    That is the vocabulary's `start`, or where there is none a line end, or else a blank.

    Raises:
        UserError: it has none of them.
    """
    if vocabulary.start is not None:
        return [vocabulary.start]
    for text in ("\n", " "):
        try:
            tokens: list[int] = vocabulary.encode(text).tolist()
        except UserError:
            continue
        if tokens and vocabulary.decode(tokens) == text:
            return tokens
    raise UserError(
        f"prompt is null or empty, and the {vocabulary.kind} vocabulary has no end of a document or line that a text "
        "could begin after: give a prompt"
    )
