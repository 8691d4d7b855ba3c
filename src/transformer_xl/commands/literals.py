"""Values that are taken as the user typed them, written so that Hydra's and OmegaConf's grammars give them back."""

from __future__ import annotations

import re
import shlex
from typing import cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import ListConfig, OmegaConf

from transformer_xl.errors import UserError

LITERAL_KEYS = frozenset(
    {"prompt", "prompt_file", "texts", "state", "run", "resume", "init_from", "name"}
    | {"data.path", "data.dir", "data.vocabulary", "data.document_marker"}
)

ALREADY_QUOTED = "--already-quoted"
"""First argument of a command whose values are in Hydra's grammar already: a sweep gives it to its jobs.

It stays in the job's command, so that further processes which are started with the same arguments read them alike.
"""

_MISSING = "???"


def quote(text: str) -> str:
    r"""Write any text as a value of Hydra's grammar whose composed value is that text.

    OmegaConf reads `${`, and halves the backslashes before it; it takes `???` for a value that is missing, which only
    a resolver's result is not. Everything else inside quotes is literal.
    """
    if text == _MISSING:
        return "'${three_question_marks:}'"
    escaped = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", text)
    return QuotedString(text=escaped, quote=Quote.single).with_quotes()


def register_resolver() -> None:
    """Make known the resolver that `quote` uses."""
    OmegaConf.register_new_resolver("three_question_marks", lambda: _MISSING, replace=True)


def quote_literals(argv: list[str]) -> list[str]:
    """Rewrite the literal values among a user's own arguments into Hydra's grammar, once."""
    return argv[1:] if is_quoted(argv) else [_quote_argument(argument) for argument in argv]


def is_quoted(argv: list[str]) -> bool:
    """Say whether these are the arguments that a sweep gave to a job."""
    return argv[:1] == [ALREADY_QUOTED]


def _quote_argument(argument: str) -> str:
    key, equals, value = argument.partition("=")
    name = key.removeprefix("+").removeprefix("+")
    if not equals or name not in LITERAL_KEYS:
        return argument
    if name == "run" and value.startswith("[") and value.endswith("]"):
        items = value[1:-1].split(",") if value != "[]" else []
        return f"{key}=[{','.join(quote(item.strip()) for item in items)}]"
    return f"{key}={quote(value)}"


def key_of(argument: str) -> str:
    """Give the key of an override, without what says how it is laid on."""
    return argument.partition("=")[0].lstrip("+~")


def as_written(overrides: object) -> list[str]:
    """Read a list of Hydra's as it stands, without looking up the `${` in it, which reading it item by item does."""
    lines = OmegaConf.to_container(cast(ListConfig, overrides), resolve=False)
    assert isinstance(lines, list)
    return lines


def plain_overrides(arguments: list[str]) -> dict[str, object]:
    """Read overrides that Hydra shall not compose into plain values, the last of a key counting.

    Raises:
        UserError: several values, a deletion, or a group laid at another place.
        OverrideParseException: an argument is not of Hydra's grammar.
    """
    values: dict[str, object] = {}
    for override in OverridesParser.create().parse_overrides(arguments):
        line = override.input_line
        if override.is_sweep_override():
            raise UserError(f"{line} names several values, and resume= goes on with one run: it must name one")
        if override.is_delete():
            raise UserError(f"{line} takes a setting away, and with resume= a setting can only be given another value")
        if override.package is not None:
            raise UserError(
                f"{line} lays a group elsewhere, which resume= cannot: write {override.key_or_group}=CHOICE"
            )
        values[override.key_or_group] = _plain_value(override)
    return values


def _plain_value(override: Override) -> object:
    value: object = override.value()
    if override.key_or_group in LITERAL_KEYS:
        plain = OmegaConf.to_container(OmegaConf.create({"value": value}), resolve=True)
        assert isinstance(plain, dict)
        return plain["value"]
    return value


def explain_unreadable(argument: str) -> str:
    """Say what is wrong with an argument that Hydra's grammar refuses, and how to write it."""
    key, equals, value = argument.partition("=")
    if not equals or not key:
        return f"{argument} is no setting: a setting is written key=value, as in {key or 'seed'}=VALUE"
    quoted = f"{key}={quote(value)}"
    try:
        OverridesParser.create().parse_override(quoted)
    except HydraException:
        return f"{argument} is no setting: {key!r} is no key; a setting is written key=value, as in model.n_layer=4"
    return (
        f"{argument} cannot be read: its value has characters of Hydra's grammar; quote it, as in {_for_shell(quoted)}"
    )


def _for_shell(argument: str) -> str:
    return shlex.quote(argument) if re.search(r'["$`\\!]', argument) else f'"{argument}"'


def as_typed(line: str) -> str:
    """Give an override of Hydra's grammar as its user typed it, for messages and tables."""
    override = OverridesParser.create().parse_override(line)
    if override.key_or_group in LITERAL_KEYS and isinstance(value := _plain_value(override), str):
        return f"{override.get_key_element()}={value}"
    return line
