"""What a choice's name stands for: shipped parts and parts from outside are registered and found in the same way."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from transformer_xl.errors import UserError

Factory = TypeVar("Factory", bound=Callable[..., Any])

HOMES: dict[str, tuple[str, ...]] = {
    "position": ("transformer_xl.model.positions",),
    "model": ("transformer_xl.model.transformer", "transformer_xl.model.recurrent"),
    "optimizer": ("transformer_xl.training.optim",),
    "scheduler": ("transformer_xl.training.optim",),
    "memory": ("transformer_xl.model.memory",),
    "tokenizer": tuple(f"transformer_xl.data.{module}" for module in ("characters", "words", "subwords")),
    "corpus": tuple(f"transformer_xl.data.{module}" for module in ("text", "token_ids", "corpora")),
    "callback": (),
    "logger": (),
}
"""Kind -> the modules that hold the shipped parts of that kind; they are imported when a part of it is looked up."""


class Entry(NamedTuple):
    """A registered part: its name, what makes it, and the class of its settings; None: it has none."""

    name: str
    factory: Callable[..., Any]
    config: type[Any] | None


_entries: dict[str, dict[str, Entry]] = {kind: {} for kind in HOMES}


def register(kind: str, name: str, config: type[Any] | None = None) -> Callable[[Factory], Factory]:
    """Return a decorator that makes a class or function a choice of `kind` named `name`, as in `optimizer=NAME`.

    Args:
        kind: one of `HOMES`; how parts of each kind are called stands in docs/extend.md.
        name: of the choice.
        config: the `Settings` class of its settings.

    Raises:
        UserError: there is no such kind, or the name is taken.
    """
    if kind not in HOMES:
        raise UserError(f"{kind!r} is no kind of part ({nearest(kind, list(HOMES))})")

    def decorate(factory: Factory) -> Factory:
        if not factory.__module__.startswith("transformer_xl."):
            names(kind)  # those of the shipped parts are taken
        taken = _entries[kind].get(name)
        if taken is not None and _origin(taken.factory) != _origin(factory):
            raise UserError(f"{kind} {name!r} of {_origin(factory)} is taken by {_origin(taken.factory)}: rename it")
        _entries[kind][name] = Entry(name, factory, config)
        return factory

    return decorate


def lookup(kind: str, name: str) -> Entry:
    """Return the part of a kind that a name stands for; `UserError` where there is none."""
    if name not in (known := names(kind)):
        raise UserError(
            f"there is no {kind} {name!r} ({nearest(name, known)}); a part of your own needs plugins=[FILE]"
        )
    return _entries[kind][name]


def names(kind: str) -> list[str]:
    """Return the names of all parts of a kind, sorted."""
    for module in HOMES[kind]:
        import_module(module)
    return sorted(_entries[kind])


def outside(kind: str) -> list[Entry]:
    """Return the parts of a kind that did not come with this package."""
    return [entry for entry in _entries[kind].values() if not entry.factory.__module__.startswith("transformer_xl.")]


def nearest(name: str, known: list[str]) -> str:
    """Return the end of a sentence about a name that is not among `known`: the nearest one, or all of them."""
    close = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f"the nearest is {close[0]}" if close else f"known are {', '.join(sorted(known))}"


loaded: dict[str, str] = {}
"""Plugin, as it was named -> sha256 of its file."""


def program(command: str) -> str:
    """Return how a command is started, as this process was: `python train.py` or `txl-train`, with its plugins."""
    name = f"txl-{command}" if Path(sys.argv[0]).name.startswith("txl-") else f"python {command}.py"
    return f"{name} plugins={shlex.quote('[' + ','.join(loaded) + ']')}" if loaded else name


def _origin(factory: Callable[..., Any]) -> str:
    return f"{factory.__module__}.{factory.__qualname__}"
