"""Several texts, made together and given in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from transformer_xl.commands.generating.token_codecs import Codec
from transformer_xl.inference.continuation import Continuation
from transformer_xl.inference.drawing import seed_of_text
from transformer_xl.inference.drawing_rule import DrawingRule
from transformer_xl.inference.reading_on import ReadingRule, takes_unequal
from transformer_xl.inference.text_writing import Ending, Growing
from transformer_xl.model.base import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Made:
    """A text that is complete.

    Attributes:
        prompt: the number of its prompt, from 1.
        sample: its number among those of the prompt, from 1.
        text: what follows the prompt.
        tokens: how many were made, the end of a document not among them.
        ended: what ended it.
    """

    prompt: int
    sample: int
    text: str
    tokens: int
    ended: Ending


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Makes texts with one model.

    Attributes:
        model: in evaluation mode.
        codec: between tokens and texts.
        drawing: how tokens are drawn.
        reading: how texts are read.
        seed: of the draws; each sample of a prompt has one of its own that follows from it, alike for all prompts.
        n_tokens: the most that are drawn for each text.
        end: the token that ends a text; None: none does.
    """

    model: LanguageModel
    codec: Codec
    drawing: DrawingRule
    reading: ReadingRule
    seed: int
    n_tokens: int
    end: int | None

    def begin(self, samples: Sequence[int] = (0,)) -> Continuation:
        """Begin texts that have these numbers among the samples of their prompts."""
        seeds = [seed_of_text(self.seed, sample) for sample in samples]
        return Continuation(self.model, drawing=self.drawing, reading=self.reading, seeds=seeds)

    def growing(self, prompt: Sequence[int]) -> Growing:
        """Begin what follows a prompt."""
        return Growing(self.codec.writer(after=prompt), n_tokens=self.n_tokens, end=self.end)

    def texts(self, prompts: Sequence[Sequence[int]], *, samples: int, batch_size: int) -> Iterator[Made]:
        """Make all samples of all prompts, in order.

        Args:
            prompts: at least one token each.
            samples: of each prompt.
            batch_size: the most texts that are made at once.
        """
        tasks = list(product(range(len(prompts)), range(samples)))
        while tasks:
            batch = [task for task in tasks[:batch_size] if self._goes_with(prompts[task[0]], prompts[tasks[0][0]])]
            # in order: one that does not go with the first begins a batch of its own
            batch = [task for place, task in enumerate(batch) if task == tasks[place]]
            del tasks[: len(batch)]
            yield from self._batch(prompts, batch)

    def _goes_with(self, prompt: Sequence[int], first: Sequence[int]) -> bool:
        return len(prompt) == len(first) or takes_unequal(self.model, self.reading)

    def _batch(self, prompts: Sequence[Sequence[int]], tasks: Sequence[tuple[int, int]]) -> Iterator[Made]:
        continuation = self.begin([sample for _, sample in tasks])
        continuation.add([prompts[prompt] for prompt, _ in tasks])
        texts = [self.growing(prompts[prompt]) for prompt, _ in tasks]
        written = [""] * len(texts)
        while any(text.ended is None for text in texts):
            drawn = continuation.draw()
            for place, (text, token) in enumerate(zip(texts, drawn, strict=True)):
                if text.ended is None:
                    written[place] += text.take(token)
            # those that have ended are read on with the others, and nobody looks at them
            continuation.add([[token] for token in drawn])
        for (prompt, sample), text, whole in zip(tasks, texts, written, strict=True):
            assert text.ended is not None
            yield Made(prompt=prompt + 1, sample=sample + 1, text=whole, tokens=len(text.tokens), ended=text.ended)
