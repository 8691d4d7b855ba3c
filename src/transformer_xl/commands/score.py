"""`score.py`: what each text of a file, or of standard input, costs a model."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_xl.commands import cli
from transformer_xl.commands.call import Call
from transformer_xl.errors import UserError
from transformer_xl.inference_config import ScoreConfig

if TYPE_CHECKING:
    from transformer_xl.data.tokenizer import Encoded, Tokenizer
    from transformer_xl.inference.score import Scorer, Text

_COLUMNS = {"text": 8, "nats": 16, "bits_per_byte": 13, "ppl": 16, "tokens": 10}
"""And their widths on a terminal: rows are printed one by one, before it is known how wide the next will be."""
_SHOWN_CHARACTERS = 80
"""Of a text that stand in its JSON object."""

_LARGEST_EXPONENT = 700.0


class TextScore(NamedTuple):
    """What a text cost, or several together; where nothing precedes it, there is a prediction less than tokens."""

    nats: float = 0.0
    predictions: int = 0
    tokens: int = 0
    text_bytes: int = 0
    unknown: int = 0

    @property
    def means(self) -> tuple[float | None, float | None, float | None]:
        """Nats per token, bits per byte, perplexity; None where nothing was predicted, or no number can say it.

        In bits per byte a first token that nothing precedes counts as the mean does.
        """
        if not self.predictions:
            return None, None, None
        mean = self.nats / self.predictions
        bits = mean / math.log(2) * self.tokens / self.text_bytes if self.text_bytes else None
        return mean, bits, math.exp(mean) if mean < _LARGEST_EXPONENT else None


def main() -> None:
    """Run the command line and exit with its status."""
    cli.main(lambda: cli.run("score", score))


def score(call: Call) -> None:
    """Score texts, and print what each cost."""
    config = call.settings(ScoreConfig)
    path = os.path.expanduser(config.texts)
    if config.texts != "-" and (not os.path.exists(path) or os.path.isdir(path)):
        raise UserError(f"texts={config.texts} is no file, and must name one, or be - for standard input")
    # torch takes seconds, which `--help` need not wait for
    from transformer_xl.commands.models import find_model
    from transformer_xl.data.characters import SymbolTokenizer
    from transformer_xl.inference.score import Scorer, encode_text, read_texts

    found = find_model(config.run, checkpoint=config.checkpoint)
    loaded = found.load(device=config.device, precision=config.precision)
    model, carries = loaded.model, config.context == "carry"
    tokenizer: Tokenizer = model.vocabulary or SymbolTokenizer(model.vocab_size)
    context = found.context(model, config.memory, segment_len=config.segment_len, group="data")
    if carries and context.mem_len == 0:
        raise UserError("context is carry and memory.mem_len is 0: carry needs a model with a memory")
    scorer = Scorer(model, context, start=tokenizer.start, reads_on=carries)
    encode = partial(
        encode_text,
        tokenizer,
        unit=config.unit,
        reads_on=carries,
        has_line_ends=not found.settings or found.settings["data"].get("newline") != "drop",
    )
    may_skip = config.unknown == "skip" and not carries and model.vocabulary is not None
    first = "nothing: its first token is not scored" if scorer.last is None else tokenizer.symbol(scorer.last)
    which = "the first text" if carries else "each text"
    print(f"{found.name}: {loaded.described}; {which} begins after {first}", file=sys.stderr, flush=True)
    settings = {"unit": config.unit, "context": config.context, **asdict(context)}
    settings |= {"precision": loaded.precision, "checkpoint": found.checkpoint}
    scores: list[TextScore | None] = []
    with loaded.autocast(), nullcontext(sys.stdin.buffer) if config.texts == "-" else open(path, "rb") as source:
        if config.format == "table" and not config.tokens:
            _print_row(list(_COLUMNS))
        try:
            for number, text in enumerate(read_texts(source, unit=config.unit), start=1):
                scores.append(_answer(config, tokenizer, encode, scorer, number, text, may_skip=may_skip))
        finally:
            _sum_up(scores, settings)


def _answer(
    config: ScoreConfig,
    tokenizer: Tokenizer,
    encode: Callable[[Text], Encoded],
    scorer: Scorer,
    number: int,
    text: Text,
    *,
    may_skip: bool,
) -> TextScore | None:
    """Score a text and print what it costs; None: it is skipped."""
    try:
        ids, unknown, text_bytes = encode(text)
    except UserError as error:
        if not may_skip:
            way = "" if tokenizer.kind == "symbol" else "; with context=none unknown=skip it is left out"
            raise UserError(f"texts={config.texts}, {error}{way}") from error
        _print_text(config, number, text, TextScore(), error=str(error))
        return None
    nats = scorer.read(ids)
    found = TextScore(float(nats.sum()), len(nats), len(ids), text_bytes, unknown)
    if not config.tokens:
        _print_text(config, number, text, found)
        return found
    begins = len(ids) - len(nats)  # the first token is not scored where nothing precedes it
    for place, (token, cost) in enumerate(zip(ids[begins:].tolist(), nats.tolist(), strict=True), start=begins):
        told = {"text": number, "position": place, "token": tokenizer.text_of(token), "id": token, "nats": cost}
        print(json.dumps(told), flush=True)
    return found


def _print_text(config: ScoreConfig, number: int, text: Text, found: TextScore, **more: str) -> None:
    mean, bits_per_byte, perplexity = found.means
    nats, count = None if mean is None else found.nats, None if more else found.predictions
    values = [number, nats, bits_per_byte, perplexity, count]
    if config.format == "jsonl" or config.tokens:
        shown = text.data[: 4 * _SHOWN_CHARACTERS].decode(errors="replace").rstrip("\r\n")[:_SHOWN_CHARACTERS]
        print(json.dumps(dict(zip(_COLUMNS, values, strict=True)) | {"text_begins": shown} | more), flush=True)
    else:
        _print_row(["" if v is None else f"{v:.6f}" if isinstance(v, float) else str(v) for v in values])


def _print_row(cells: list[str]) -> None:
    if sys.stdout.isatty():
        print("  ".join(cell.rjust(width) for cell, width in zip(cells, _COLUMNS.values(), strict=True)), flush=True)
    else:
        print("\t".join(cells), flush=True)


def _sum_up(scores: list[TextScore | None], settings: dict[str, Any]) -> None:
    """Print the sums, and all settings that they depend on, on standard error."""
    known = [score for score in scores if score is not None]
    total = TextScore(*map(sum, zip(TextScore(), *known, strict=True)))
    said = [f"{len(scores):,} texts", f"{total.predictions:,} tokens"]
    forms = ("{:.4f} nats per token", "{:.4f} bits per byte", "ppl {:.4f}", "{:,} unknown", "{:,} texts skipped")
    counts = (total.unknown or None, len(scores) - len(known) or None)
    said += [
        form.format(value) for form, value in zip(forms, (*total.means, *counts), strict=True) if value is not None
    ]
    read = ", ".join(f"{name} {'null' if value is None else value}" for name, value in settings.items())
    print(f"score    {', '.join(said)}\nread     {read}", file=sys.stderr, flush=True)
