"""Continuing texts: a prompt is read, tokens are sampled one by one, and text is written as soon as it is whole.

Letters: B texts, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.errors import UserError
from transformer_xl.inference.sampling import Continuation, Ending, Sampler, seed_of_sample
from transformer_xl.inference_config import SamplingParams, SegmentLen
from transformer_xl.model.base import Context, LanguageModel
from transformer_xl.model.streaming import stream
from transformer_xl.settings import Count, Length, Seed, parse

_LARGE_PIECE = 1024
"""Tokens of a prompt that are read at once where it makes no difference how many are."""
_PROMPT_ENDS = "[end of prompt]"


class Lanes:
    """Texts that one model continues together, a token of each at a time, each with a sampler of its own."""

    def __init__(self, model: LanguageModel, context: Context, params: SamplingParams, *, seeds: Sequence[int]) -> None:
        reader = _CachedReader if supports_unequal(model, context) else _WindowReader
        self._reader = reader(model, context, texts=len(seeds))
        self._samplers = [Sampler(params, seed=seed, vocab_size=model.vocab_size) for seed in seeds]
        self._unread: list[list[int]] = [[] for _ in seeds]

    def append(self, texts: Sequence[Sequence[int]]) -> None:
        """Put further tokens behind each text; sampled ones are no part of it before.

        Args:
            texts: of all as many, but for the first time where `supports_unequal` says so.
        """
        for sampler, unread, tokens in zip(self._samplers, self._unread, texts, strict=True):
            sampler.append(tokens)
            unread.extend(tokens)

    def sample(self) -> list[int]:
        """Sample what may follow each text, which has got at least one token since the last time.

        Raises:
            UserError: the model's predictions are no numbers.
        """
        unread, self._unread = self._unread, [[] for _ in self._unread]
        log_probs = self._reader.read(unread).float().cpu()
        if bool(log_probs.isnan().any()):
            raise UserError("the model predicts NaN: its weights are damaged, or the precision is too small for them")
        return [sampler.sample(of_text) for sampler, of_text in zip(self._samplers, log_probs, strict=True)]


def supports_unequal(model: LanguageModel, context: Context) -> bool:
    """Return whether each token is read once, wherever it stands, so that unequal texts can be read together."""
    return model.relative and context.mem_len != 0


def pieces_in_reach(model: LanguageModel, context: Context) -> int | None:
    """Return how many of the last pieces of a text its next token depends on; None: on all.

    Each layer looks back over the memory from the beginning of a piece, and what it finds there was made by the layer
    below in the same way.
    """
    if not model.attends:
        return None
    layers: int = model.config.n_layer
    return 1 + layers * -(-(context.mem_len or 0) // context.segment_len)


class _CachedReader:
    """Reads each token once, over cached keys and values or a recurrent state.

    Pieces end where the text does, so that texts that are read together are cut as each would be alone. A text that is
    shorter than another begins later; what is read in its lane before is no text, and forgotten there.
    """

    def __init__(self, model: LanguageModel, context: Context, *, texts: int) -> None:
        self._pieces = pieces_in_reach(model, context)
        self._segment_len = context.segment_len if self._pieces else max(context.segment_len, _LARGE_PIECE)
        self._device = next(model.parameters()).device
        self._session = stream(
            model,
            batch_size=texts,
            mem_len=context.mem_len,
            clamp_len=context.clamp_len,
            same_length=context.same_length,
        )

    def read(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Read the next tokens of each text; return log-probabilities (B, V) of the token after them."""
        longest = max(map(len, texts))
        tokens = torch.zeros(len(texts), longest, dtype=torch.int64)
        resets = torch.zeros_like(tokens, dtype=torch.bool)
        for lane, text in enumerate(texts):
            tokens[lane, longest - len(text) :] = torch.as_tensor(text)
            resets[lane, longest - len(text)] = len(text) < longest
        is_unequal = bool(resets.any())
        stops = list(range(longest, 0, -self._segment_len))[: self._pieces][::-1]
        for stop in stops:
            piece = slice(max(stop - self._segment_len, 0), stop)
            begun = resets[:, piece].to(self._device) if is_unequal else None
            log_probs = self._session.next_log_probs(tokens[:, piece].to(self._device), begun)
        return log_probs


class _WindowReader:
    """Reads the last segment again as it grows, after those before it; without memory, the last tokens.

    So a model is read whose predictions depend on a token's place within its segment.
    """

    def __init__(self, model: LanguageModel, context: Context, *, texts: int) -> None:
        self._model = model.with_context(clamp_len=context.clamp_len, same_length=context.same_length)
        self._mem_len = context.mem_len
        self._segment_len = context.segment_len
        self._pieces = pieces_in_reach(model, context)
        self._memory = model.empty_memory(texts, self._mem_len)
        self._segment = torch.empty(texts, 0, dtype=torch.int64, device=next(model.parameters()).device)

    @torch.no_grad()
    def read(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Read the next tokens of each text; return log-probabilities (B, V) of the token after them."""
        new = torch.tensor([list(text) for text in texts], device=self._segment.device)
        segment = torch.cat([self._segment, new], dim=1)
        if self._mem_len == 0:
            segment = segment[:, -self._segment_len :]
        elif self._pieces is not None:
            whole = (segment.shape[1] - 1) // self._segment_len  # the last one may grow further
            segment = segment[:, max(0, whole - self._pieces + 1) * self._segment_len :]
        while segment.shape[1] > self._segment_len:
            self._memory = self._model(segment[:, : self._segment_len], self._memory).memory
            segment = segment[:, self._segment_len :]
        self._segment = segment
        hidden = self._model(segment, self._memory).hidden_BTD
        return self._model.softmax.log_probs(hidden[:, -1:])[:, 0]


class Made(NamedTuple):
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
class Generator:
    """How texts are continued with one model.

    Attributes:
        model: in evaluation mode.
        context: how texts are read; at most `segment_len` tokens at once.
        params: how tokens are sampled.
        seed: of the samples; each sample of a prompt has a seed of its own that follows from it, alike for all prompts.
        n_tokens: the most that are sampled for each text.
        tokenizer: writes the text; None: there is none.
        stops: texts that end a text.
        end: the token that ends a text; None: none does.
        writes_alone: text is written as if nothing stood before it, as numbers are.
    """

    model: LanguageModel
    context: Context
    params: SamplingParams
    seed: int
    n_tokens: int
    tokenizer: Tokenizer | None = None
    stops: Sequence[str] = ()
    end: int | None = None
    writes_alone: bool = False

    def lanes(self, samples: Sequence[int] = (0,)) -> Lanes:
        """Begin texts that have these numbers among the samples of their prompts."""
        seeds = [seed_of_sample(self.seed, sample) for sample in samples]
        return Lanes(self.model, self.context, self.params, seeds=seeds)

    def continuation(self, prompt: Sequence[int]) -> Continuation:
        """Begin what follows a prompt."""
        after = () if self.writes_alone else prompt
        return Continuation(self.tokenizer, after=after, n_tokens=self.n_tokens, stops=self.stops, end=self.end)

    def texts(self, prompts: Sequence[Sequence[int]], *, samples: int, batch_size: int) -> Iterator[Made]:
        """Make all samples of all prompts, in order.

        Args:
            prompts: at least one token each.
            samples: of each prompt.
            batch_size: the most texts that are made at once.
        """
        unequal = supports_unequal(self.model, self.context)
        tasks = list(product(range(len(prompts)), range(samples)))
        while tasks:
            length = len(prompts[tasks[0][0]])
            count = 1
            while count < min(batch_size, len(tasks)) and (unequal or len(prompts[tasks[count][0]]) == length):
                count += 1
            batch, tasks = tasks[:count], tasks[count:]
            yield from self._batch(prompts, batch)

    def _batch(self, prompts: Sequence[Sequence[int]], tasks: Sequence[tuple[int, int]]) -> Iterator[Made]:
        lanes = self.lanes([sample for _, sample in tasks])
        lanes.append([prompts[prompt] for prompt, _ in tasks])
        texts = [self.continuation(prompts[prompt]) for prompt, _ in tasks]
        written = [""] * len(texts)
        while any(text.ended is None for text in texts):
            tokens = lanes.sample()
            for place, (text, token) in enumerate(zip(texts, tokens, strict=True)):
                if text.ended is None:
                    written[place] += text.append(token)
            # those that have ended are read on with the others, and nobody looks at them
            lanes.append([[token] for token in tokens])
        for (prompt, sample), text, whole in zip(tasks, texts, written, strict=True):
            assert text.ended is not None
            yield Made(prompt + 1, sample + 1, whole, len(text.tokens), text.ended)


def continued(lanes: Lanes, prompt: Sequence[int], continuation: Continuation) -> Iterator[str]:
    """Let one text grow until it ends; yield what can be written after each token, which may be nothing."""
    lanes.append([prompt])
    while continuation.ended is None:
        (token,) = lanes.sample()
        text = continuation.append(token)
        if continuation.ended != "document":
            lanes.append([[token]])
        yield text


def first_tokens(tokenizer: Tokenizer) -> list[int]:
    """Return what a text without a prompt begins after: what stands before texts in a corpus, else a line end or blank.

    Raises:
        UserError: the tokenizer has none of them.
    """
    if tokenizer.start is not None:
        return [tokenizer.start]
    for text in ("\n", " "):
        try:
            tokens: list[int] = tokenizer.encode(text).tolist()
        except UserError:
            continue
        if tokens and tokenizer.decode(tokens) == text:
            return tokens
    raise UserError(
        f"prompt is null or empty, and the {tokenizer.kind} vocabulary has no end of a document or line that a text "
        "could begin after: give a prompt"
    )


def sample_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    *,
    n_tokens: int,
    segment_len: int,
    params: SamplingParams,
    seed: int,
) -> str:
    """Continue a prompt, and return both with a mark between them; documents may end and begin within.

    A model that can read the prompt at once does, whatever `segment_len`.
    """
    context = model.own_context(segment_len=segment_len)
    if supports_unequal(model, context):
        context = model.own_context(segment_len=max(segment_len, len(prompt)))
    continuation = Continuation(tokenizer, after=prompt, n_tokens=n_tokens)
    text = "".join(continued(Lanes(model, context, params, seeds=[seed]), prompt, continuation))
    return f"{tokenizer.decode(prompt)}{_PROMPT_ENDS}{text}"


class _Arguments(SamplingParams):
    """The settings of `generate`."""

    n_tokens: Count
    seed: Seed
    stop: list[Annotated[str, Field(min_length=1)]]
    end_at_document: bool
    segment_len: SegmentLen
    mem_len: Length | None
    clamp_len: Length | Literal["model"] | None
    same_length: bool | None


def generate(
    model: LanguageModel,
    prompt: str | Iterable[int] | Tensor | None = None,
    *,
    n_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int = 1,
    stop: str | Sequence[str] = (),
    end_at_document: bool = True,
    segment_len: int = 128,
    mem_len: int | None = None,
    clamp_len: int | Literal["model"] | None = "model",
    same_length: bool | None = None,
) -> Iterator[Any]:
    """Continue a text, token by token.

    Args:
        model: in evaluation mode, as `load_model` returns it.
        prompt: a text, or the ids of one, as a tensor (T) or (1, T); None or "": a text is begun.
        n_tokens: the most tokens that are sampled.
        temperature: divides log-probabilities; 0: always the likeliest token. For this and the next see
            `SamplingParams`.
        top_k: only the k likeliest tokens are sampled; None: all.
        top_p: only the likeliest tokens that have this probability together; None: all.
        min_p: only tokens at least so likely, as a share of the likeliest; None: all.
        repetition_penalty: multiplies the log-probabilities of tokens that the text holds already.
        seed: of the samples; global random state is neither used nor changed.
        stop: texts at which generation ends; no part of them is given. For a prompt of text only.
        end_at_document: whether the id that ends a document, where the vocabulary has one, ends the text.
        segment_len: the most tokens of a prompt that are read at once; those that a model without memory sees.
        mem_len: how many tokens from before are seen; None: as many as the model's own memory holds.
        clamp_len: distances above it count as it; None: no limit; "model": the model's own.
        same_length: whether every query sees `mem_len` keys; None: the model's own.

    Returns:
        What follows the prompt: for a text pieces of text, as soon as they are whole characters; for ids the ids.

    Raises:
        UserError: a setting makes no sense, or the vocabulary cannot encode the prompt.
        ValueError: the model is in training mode, or cannot follow `mem_len`, `clamp_len` or `same_length`.
    """
    given = {name: value for name, value in locals().items() if name in _Arguments.model_fields}
    given["stop"] = [stop] if isinstance(stop, str) else list(stop)
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    settings = parse(_Arguments, plain)
    if model.training:
        raise ValueError("generating needs weights that stay as they are: call eval() on the model first")
    tokenizer: Tokenizer | None = model.vocabulary
    is_text = prompt is None or isinstance(prompt, str)
    if is_text and tokenizer is None:
        raise UserError("the model has no vocabulary, and a prompt must be ids")
    if settings.stop and not is_text:
        raise UserError(f"stop is {stop!r} with a prompt of ids, and needs a prompt that is text")
    context = model.own_context(segment_len=settings.segment_len).resolved(
        mem_len="own" if settings.mem_len is None else settings.mem_len,
        clamp_len="own" if settings.clamp_len == "model" else settings.clamp_len,
        same_length="own" if settings.same_length is None else settings.same_length,
    )
    generator = Generator(
        model=model,
        context=context,
        params=settings,
        seed=settings.seed,
        n_tokens=settings.n_tokens,
        tokenizer=tokenizer if is_text else None,
        stops=settings.stop,
        end=tokenizer.end_of_document if tokenizer is not None and settings.end_at_document else None,
    )
    if isinstance(prompt, str) or prompt is None:
        assert tokenizer is not None
        tokens = tokenizer.encode(prompt or "").tolist() or first_tokens(tokenizer)
        return filter(None, continued(generator.lanes(), tokens, generator.continuation(tokens)))
    return _ids(generator, _checked_ids(prompt, vocab_size=model.vocab_size))


def _ids(generator: Generator, prompt: Sequence[int]) -> Iterator[int]:
    continuation = generator.continuation(prompt)
    for _ in continued(generator.lanes(), prompt, continuation):
        if continuation.ended != "document":
            yield continuation.tokens[-1]


def _checked_ids(prompt: Iterable[int] | Tensor, *, vocab_size: int) -> list[int]:
    """Return ids as plain numbers, those of a tensor (1, T) as its row; `UserError` where they are none of a text's."""
    try:
        ids = np.asarray(prompt.cpu() if isinstance(prompt, Tensor) else prompt)
        ids = ids[0] if ids.ndim == 2 and len(ids) == 1 else ids
        if ids.ndim != 1 or not (np.issubdtype(ids.dtype, np.integer) or not len(ids)):
            raise ValueError("no row of whole numbers")
    except ValueError as error:
        shown = " ".join(repr(prompt).split())[:100]
        raise UserError(f"prompt is {shown}, and must be a text, or a row of ids") from error
    if not len(ids):
        raise UserError("there is no id, and there must be at least one")
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        wrong = int(ids[(ids < 0) | (ids >= vocab_size)][0])
        raise UserError(f"the id {wrong} is none of the model's, which are 0 to {vocab_size - 1}")
    return [int(number) for number in ids]
