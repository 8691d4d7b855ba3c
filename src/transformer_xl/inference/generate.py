"""Continue texts: a prompt is read, tokens are sampled one by one, and text is written as soon as it is whole.

Letters: B texts, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.errors import UserError
from transformer_xl.inference_config import SamplingParams, SegmentLen
from transformer_xl.model.base import Context, LanguageModel
from transformer_xl.model.streaming import stream
from transformer_xl.settings import Length, Seed, parse

Ending = Literal["n_tokens", "stop", "document"]
"""What ended a text: its length, a stop string, the end of a document."""
_COLDEST = torch.finfo(torch.float32).tiny  # below, a quotient may be 0 / 0; the likeliest token has all weight anyway
_LARGE_PIECE = 1024  # tokens of a prompt that are read at once where it makes no difference how many are


# ---- one text: which token comes next, and what is written


def filtered(log_probs: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Return the tokens that may be sampled at a temperature above 0, the likeliest first, and the weight of each.

    Weights are 0 where a token is left out, and need not add up to 1.
    """
    likeliest, tokens = log_probs.topk(min(params.top_k or len(log_probs), len(log_probs)))
    weights = ((likeliest - likeliest.max()) / params.temperature).softmax(dim=-1)
    if params.top_p is not None and params.top_p < 1:
        before = weights.double().cumsum(dim=0) - weights
        weights = weights.masked_fill(before >= params.top_p, 0)
    if params.min_p is not None:
        weights = weights.masked_fill(weights < params.min_p * weights[0], 0)
    return tokens, weights


def sample(log_probs: Tensor, present: Tensor, params: SamplingParams, generator: torch.Generator) -> Tensor:
    """Sample the next token (1) of a text, which holds those that are `present` (V) already; -1: a NaN is predicted.

    The host does not wait for the device: this is `torch.multinomial`, to the bit, without its look at the weights.
    """
    if params.repetition_penalty != 1:
        log_probs = torch.where(present, log_probs * params.repetition_penalty, log_probs)
    if params.temperature < _COLDEST:
        weights, tokens = log_probs.max(dim=0, keepdim=True)
    else:
        tokens, weights = filtered(log_probs, params)
        drawn = (weights / torch.empty_like(weights).exponential_(generator=generator)).argmax(dim=0, keepdim=True)
        tokens, weights = tokens[drawn], weights[drawn]
    return tokens.masked_fill(weights.isnan(), -1)


def seed_of_sample(seed: int, number: int) -> int:
    """Return a sample's own seed, so that it is the same whatever other texts are made with it; the first: `seed`."""
    if number == 0:
        return seed
    return int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0]) % (1 << 63)


class Continuation:
    """What follows one prompt: `tokens` until it has `ended`, and their text as soon as it is whole characters."""

    def __init__(
        self, tokenizer: Tokenizer | None, params: SamplingParams, *, after: Sequence[int] = (), end: int | None = None
    ) -> None:
        # ids are written as if nothing stood before them
        self._decoder = None if tokenizer is None else tokenizer.decoder(after if tokenizer.is_text else ())
        self._n_tokens = params.n_tokens
        self._stops = [params.stop] if isinstance(params.stop, str) else params.stop
        self._end = end
        self._waiting = ""
        self.tokens: list[int] = []
        self.ended: Ending | None = None

    def append(self, token: int) -> str:
        """Append the next token; return the text that can be written now, which may be none."""
        if token == self._end:
            self.ended = "document"
        else:
            self.tokens.append(token)
            if self._decoder is not None:
                self._waiting += self._decoder.feed(token)
            if len(self.tokens) == self._n_tokens:
                self.ended = "n_tokens"
        if self._decoder is not None and self.ended is not None:
            self._waiting += self._decoder.finish()
        found = [(start + len(stop), start) for stop in self._stops if (start := self._waiting.find(stop)) >= 0]
        if found:
            self.ended, text = "stop", self._waiting[: min(found)[1]]
            return text
        border = len(self._waiting)
        if self.ended is None:  # what may begin a stop string waits
            begun = (n for stop in self._stops for n in range(1, len(stop)) if self._waiting.endswith(stop[:n]))
            border -= max(begun, default=0)
        text, self._waiting = self._waiting[:border], self._waiting[border:]
        return text


# ---- several texts: how a model reads them


def supports_unequal(model: LanguageModel, context: Context) -> bool:
    """Return whether each token is read once, wherever it stands, so that unequal texts can be read together."""
    return model.relative and context.mem_len != 0


def _pieces_in_reach(model: LanguageModel, context: Context) -> int | None:
    """Return how many of the last pieces of a text its next token depends on, layer by layer; None: on all."""
    back = -(-(context.mem_len or 0) // context.segment_len)
    return 1 + model.config.n_layer * back if model.attends else None


class _CachedReader:
    """Reads each token once, over cached keys and values or a recurrent state.

    Pieces end where the text does, so that texts that are read together are cut as each would be alone. A text that is
    shorter than another begins later; what is read in its lane before is no text, and forgotten there.
    """

    def __init__(self, model: LanguageModel, context: Context, *, texts: int) -> None:
        self._pieces = _pieces_in_reach(model, context)
        self._segment_len = context.segment_len if self._pieces else max(context.segment_len, _LARGE_PIECE)
        self._device = next(model.parameters()).device
        self._session = stream(model, batch_size=texts, **context.lengths)

    def read(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Read the next tokens of each text; return log-probabilities (B, V) of the token after them."""
        longest = max(map(len, texts))
        tokens = torch.zeros(len(texts), longest, dtype=torch.int64)
        resets = torch.zeros_like(tokens, dtype=torch.bool)
        for lane, text in enumerate(texts):
            tokens[lane, longest - len(text) :] = torch.as_tensor(text)
            resets[lane, longest - len(text)] = len(text) < longest
        is_unequal = min(map(len, texts)) < longest
        stops = list(range(longest, 0, -self._segment_len))[: self._pieces][::-1]
        for stop in stops:
            piece = slice(max(stop - self._segment_len, 0), stop)
            begun = resets[:, piece].to(self._device, non_blocking=True) if is_unequal else None
            log_probs = self._session.next_log_probs(tokens[:, piece].to(self._device, non_blocking=True), begun)
        return log_probs


class _WindowReader:
    """Reads the last segment again as it grows, after those before it; without memory, the last tokens.

    So a model is read whose predictions depend on a token's place within its segment.
    """

    def __init__(self, model: LanguageModel, context: Context, *, texts: int) -> None:
        self._model = model.with_context(clamp_len=context.clamp_len, same_length=context.same_length)
        self._context = context
        self._pieces = _pieces_in_reach(model, context)
        self._memory = model.empty_memory(texts, context.mem_len)
        self._segment = torch.empty(texts, 0, dtype=torch.int64, device=next(model.parameters()).device)

    @torch.no_grad()
    def read(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Read the next tokens of each text; return log-probabilities (B, V) of the token after them."""
        length = self._context.segment_len
        new = torch.tensor([list(text) for text in texts]).to(self._segment.device, non_blocking=True)
        segment = torch.cat([self._segment, new], dim=1)
        if self._context.mem_len == 0:
            segment = segment[:, -length:]
        elif self._pieces is not None:
            whole = (segment.shape[1] - 1) // length  # the last one may grow further
            segment = segment[:, max(0, whole - self._pieces + 1) * length :]
        while segment.shape[1] > length:
            self._memory = self._model(segment[:, :length], self._memory).memory
            segment = segment[:, length:]
        self._segment = segment
        hidden = self._model(segment, self._memory).hidden_BTD
        return self._model.softmax.log_probs(hidden[:, -1:])[:, 0]


class Session:
    """Texts that one model continues together, a token of each at a time.

    Attributes:
        tokens: all of each text: prompts, and what was sampled after them.
        texts: what follows each of the last prompts.
    """

    def __init__(
        self,
        model: LanguageModel,
        context: Context,
        params: SamplingParams,
        *,
        seed: int,
        tokenizer: Tokenizer | None,
        samples: Sequence[int] = (0,),
    ) -> None:
        """Begin texts without a token, which have these numbers among the samples of their prompts."""
        reader = _CachedReader if supports_unequal(model, context) else _WindowReader
        self._reader = reader(model, context, texts=len(samples))
        self._params = params
        self.tokenizer = tokenizer
        device = next(model.parameters()).device
        self._generators = [torch.Generator(device).manual_seed(seed_of_sample(seed, number)) for number in samples]
        self._present_BV = torch.zeros(len(samples), model.vocab_size, dtype=torch.bool, device=device)
        self._unread: list[list[int]] = [[] for _ in samples]
        self.tokens: list[list[int]] = [[] for _ in samples]
        self.texts: list[Continuation] = []
        self.end = model.vocabulary.end_of_document if model.vocabulary and params.end_at_document else None

    def continued(self, prompts: Sequence[Sequence[int]]) -> Iterator[list[str]]:
        """Continue the texts after further prompts; yield what can be written of each after each token.

        All prompts have as many tokens, but for the first time where `supports_unequal` says so.
        """
        self._append(prompts)
        self.texts = [Continuation(self.tokenizer, self._params, after=tokens, end=self.end) for tokens in self.tokens]
        while any(text.ended is None for text in self.texts):
            sampled = self._sample()
            pairs = zip(self.texts, sampled, strict=True)
            written = [text.append(token) if text.ended is None else "" for text, token in pairs]
            if any(text.ended != "document" for text in self.texts):  # those that have ended are read on with others
                self._append([[token] for token in sampled])
            yield written

    def _append(self, texts: Sequence[Sequence[int]]) -> None:
        for present, tokens, unread, new in zip(self._present_BV, self.tokens, self._unread, texts, strict=True):
            if self._params.repetition_penalty != 1:
                held = torch.as_tensor(new, dtype=torch.int64).to(present.device, non_blocking=True)
                present.index_fill_(0, held, True)
            tokens.extend(new)
            unread.extend(new)

    def _sample(self) -> list[int]:
        unread, self._unread = self._unread, [[] for _ in self._unread]
        texts = zip(self._reader.read(unread).float(), self._present_BV, self._generators, strict=True)
        samples = [sample(of_text, present, self._params, generator) for of_text, present, generator in texts]
        sampled: list[int] = torch.cat(samples).tolist()  # the one time that the host waits for the device
        if min(sampled) < 0:
            raise UserError("the model predicts NaN: its weights are damaged, or the precision is too small for them")
        return sampled


def first_tokens(tokenizer: Tokenizer) -> list[int]:
    """Return what a text without a prompt begins after: as in a corpus, or a line end or blank."""
    if tokenizer.start is not None:
        return [tokenizer.start]
    for text in ("\n", " "):
        try:
            tokens: list[int] = tokenizer.encode(text).tolist()
        except UserError:
            continue
        if tokens and tokenizer.decode(tokens) == text:
            return tokens
    raise UserError(f"prompt is empty, and the {tokenizer.kind} vocabulary has nothing to begin after: give a prompt")


# ---- Python API


class _Arguments(SamplingParams):
    """The settings of `generate`."""

    seed: Seed
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
    settings = parse(_Arguments, given | {"stop": stop if isinstance(stop, str) else list(stop)})
    if model.training:
        raise ValueError("generating needs weights that stay as they are: call eval() on the model first")
    context = model.own_context(segment_len=settings.segment_len).resolved(
        mem_len="own" if settings.mem_len is None else settings.mem_len,
        clamp_len="own" if settings.clamp_len == "model" else settings.clamp_len,
        same_length="own" if settings.same_length is None else settings.same_length,
    )
    tokenizer: Tokenizer | None = model.vocabulary
    if prompt is None or isinstance(prompt, str):
        if tokenizer is None:
            raise UserError("the model has no vocabulary, and a prompt must be ids")
        tokens = tokenizer.encode(prompt or "").tolist() or first_tokens(tokenizer)
        session = Session(model, context, settings, seed=settings.seed, tokenizer=tokenizer)
        return filter(None, (piece for (piece,) in session.continued([tokens])))
    if settings.stop:
        raise UserError(f"stop is {stop!r} with a prompt of ids, and needs a prompt that is text")
    ids = _checked_ids(prompt, vocab_size=model.vocab_size)
    return _sampled_ids(Session(model, context, settings, seed=settings.seed, tokenizer=None), ids)


def _sampled_ids(session: Session, prompt: Sequence[int]) -> Iterator[int]:
    for _ in session.continued([prompt]):
        if session.texts[0].ended != "document":
            yield session.texts[0].tokens[-1]


def _checked_ids(prompt: Iterable[int] | Tensor, *, vocab_size: int) -> list[int]:
    ids = np.asarray(prompt.cpu() if isinstance(prompt, Tensor) else prompt)
    ids = ids[0] if ids.ndim == 2 and len(ids) == 1 else ids
    is_row = ids.ndim == 1 and len(ids) and np.issubdtype(ids.dtype, np.integer)
    if not is_row or ids.min() < 0 or ids.max() >= vocab_size:
        raise UserError(f"prompt is {prompt!r:.100}, and must be a text, or a row of ids from 0 to {vocab_size - 1}")
    numbers: list[int] = ids.tolist()
    return numbers
