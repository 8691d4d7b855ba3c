"""Write a page of HTML that shows a text, each token coloured by what it cost the model.

python examples/token_page.py RUN TEXT_FILE page.html --mem-len 640

Hover over a token for its loss. Tokens that are part of one character are shown together.
"""

import argparse
import html
import math
from collections.abc import Iterator
from pathlib import Path

import torch

import transformer_xl as txl

STEPS = (0.05, 0.25, 0.5, 1.0, 2.0, 3.0, 4.5, 6.0, 8.0)  # nats at which the colour changes, the same on every page
PAGE = """<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>main {{ font: 16px/1.7 monospace; white-space: pre-wrap; overflow-wrap: anywhere }} {colours}</style></head>
<body><h1>{title}</h1><p>{summary}</p><p>Nats from: {legend}</p><main dir="auto">{text}</main></body></html>
"""


def losses(model: torch.nn.Module, ids: list[int], *, segment_len: int, mem_len: int | None) -> list[float]:
    """Return the loss of every token but the first, in nats."""
    session = txl.stream(model, batch_size=1, mem_len=mem_len)
    tokens = torch.tensor([ids])
    read = zip(tokens[:, :-1].split(segment_len, 1), tokens[:, 1:].split(segment_len, 1), strict=True)
    return [cost for inputs, targets in read for cost in session.nll(inputs, targets)[0].tolist()]


def pieces(vocabulary, ids: list[int]) -> Iterator[tuple[str, list[int]]]:
    """Yield texts of whole characters, each with the places of the tokens that make it."""
    decoder, waiting = vocabulary.decoder(), []
    for place, token in enumerate(ids):
        waiting.append(place)
        if text := decoder.feed(token):
            yield text, waiting
            waiting = []
    if waiting:
        yield decoder.finish(), waiting


def span(text: str, symbols: list[str], costs: list[float | None]) -> str:
    """Write one piece: its text, coloured by the sum of its tokens, and what each cost as a tip."""
    known = [cost for cost in costs if cost is not None]
    name = f"n{sum(sum(known) >= step for step in STEPS)}" if known else "u"
    told = ("not predicted" if cost is None else f"{cost:.3f} nats" for cost in costs)
    tip = "\n".join(f"{symbol}: {words}" for symbol, words in zip(symbols, told, strict=True))
    written = html.escape(text).replace("\n", "\u21b5\n")
    return f'<span class="{name}" title="{html.escape(tip)}">{written}</span>'


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("text", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--segment-len", type=int, default=128)
    parser.add_argument("--mem-len", type=int, help="default: the model's own")
    asked = parser.parse_args()
    model = txl.load_model(asked.run)
    vocabulary = model.vocabulary
    ids = vocabulary.encode(asked.text.read_text(encoding="utf-8")).tolist()
    nats = [None, *losses(model, ids, segment_len=asked.segment_len, mem_len=asked.mem_len)]
    spans = (
        span(text, [vocabulary.symbol(ids[place]) for place in places], [nats[place] for place in places])
        for text, places in pieces(vocabulary, ids)
    )
    mean = sum(nats[1:]) / max(1, len(nats) - 1)
    shades = (f".n{step} {{ background: rgba(226, 84, 12, {0.08 * step:.2f}) }}" for step in range(len(STEPS) + 1))
    legend = "".join(f'<span class="n{step}"> {nats:g} </span>' for step, nats in enumerate((0, *STEPS)))
    page = PAGE.format(
        title=html.escape(f"{asked.text.name}, read by {asked.run}"),
        summary=f"{len(ids):,} tokens, {mean:.4f} nats each ({mean / math.log(2):.4f} bits)",
        colours=" ".join(shades),
        legend=legend,
        text="".join(spans),
    )
    asked.page.write_text(page, encoding="utf-8")
