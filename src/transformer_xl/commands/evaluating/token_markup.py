"""How a page of tokens is written: HTML that holds whatever a text can hold, readable by day and by night."""

from __future__ import annotations

import html
import math
import unicodedata

from transformer_xl.commands.evaluating.token_texts import Piece
from transformer_xl.data.tokenizer import Vocabulary

_STEPS = (0.05, 0.25, 0.5, 1.0, 2.0, 3.0, 4.5, 6.0, 8.0)
"""Nats at which the colours change, the same on every page; tokens of any kind mostly cost between the first two."""

_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"
"""Parts of letters in some scripts, and of pictures."""


def _colours() -> str:
    """Give a class for each step between 0 and all of the colour."""
    return "".join(
        f".n{step} {{ background: rgba(var(--heat), calc(var(--most) * {step / len(_STEPS):.3f})) }}\n"
        for step in range(len(_STEPS) + 1)
    )


STYLE = """\
:root { color-scheme: light dark; --page: #fff; --ink: #16181d; --dim: #5c6370; --heat: 226, 84, 12; --most: 0.78 }
@media (prefers-color-scheme: dark) {
  :root { --page: #15171b; --ink: #f1f2f4; --dim: #a0a7b4; --heat: 255, 96, 24; --most: 0.62 }
}
body { background: var(--page); color: var(--ink); font: 16px/1.7 system-ui, sans-serif; margin: 2rem auto;
  max-width: 60rem; padding: 0 1rem }
h1 { font-size: 1.2rem; margin-bottom: 0.3rem }
p { color: var(--dim); font-size: 0.85rem; margin: 0.3rem 0 }
main { font-family: ui-monospace, monospace; font-size: 0.95rem; margin: 1.5rem 0; white-space: pre-wrap;
  overflow-wrap: anywhere; tab-size: 4 }
main span, .legend span { border-radius: 2px; padding: 0.15em 0 }
.legend span { font-family: ui-monospace, monospace; padding: 0.15em 0.5em }
main span:hover { outline: 2px solid var(--ink) }
.end { opacity: 0.45 }
.mark { border: 1px dotted var(--dim); font-size: 0.8em }
.u { text-decoration: underline dotted var(--dim) }
""" + _colours()


def span(piece: Piece[float | None], vocabulary: Vocabulary) -> str:
    """Write one piece; what it cost is the sum of its tokens."""
    costs = [nats for _, nats in piece.tokens if nats is not None]
    classes = [f"n{_step(sum(costs))}"] if costs else ["u"]
    if not piece.is_text:
        classes.append("mark")
    tip = "\n".join(_told(vocabulary.symbol(number), number, nats) for number, nats in piece.tokens)
    if len(costs) > 1:
        tip += f"\ntogether {sum(costs):.3f} nats"
    shown = _shown(piece.text) if piece.is_text else plain(piece.text)
    return f'<span class="{" ".join(classes)}" title="{html.escape(tip)}">{shown}</span>'


def _told(symbol: str, number: int, nats: float | None) -> str:
    cost = "not predicted" if nats is None else f"{nats:.3f} nats, 1 in {_odds(nats)}"
    return f"{visible(symbol)}  (id {number}): {cost}"


def _odds(nats: float) -> str:
    """Write e^nats: of how many equally likely tokens this would be one."""
    return f"{math.exp(nats):,.3g}" if nats < 100 else "more than 1e43"


def _shown(text: str) -> str:
    """Write a text as HTML: line ends and tabs do what they do, a line end with a sign that can be coloured."""
    parts = []
    for char in text:
        if char == "\n":
            parts.append('<i class="end">\u21b5</i>\n')
        elif char == "\t":
            parts.append(char)
        else:
            parts.append(plain(char))
    return "".join(parts) or '<i class="end">\u2205</i>'


def plain(text: str) -> str:
    """Write a text as HTML on one line, with signs for what would not be seen."""
    return html.escape(visible(text))


def visible(text: str) -> str:
    """Replace what would not be seen, or would change the order of what is: by its picture, or its code."""
    return "".join(_picture(char) if unicodedata.category(char) in _UNSEEN else char for char in text)


def _picture(char: str) -> str:
    code = ord(char)
    if char in _JOINERS:
        return char
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\u27e8{code:X}\u27e9"


def _step(nats: float) -> int:
    return sum(nats >= step for step in _STEPS)


def legend() -> str:
    """Show the colours, each with the nats from which it is used."""
    names = ["0", *(f"{step:g}" for step in _STEPS)]
    return "".join(f'<span class="n{step}">{name}</span>' for step, name in enumerate(names))
