"""From plain containers to the typed configuration, and names that are nearly right."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from transformer_xl.errors import UserError

T = TypeVar("T")


def nearest(name: str, known: list[str]) -> str:
    """Give the end of a sentence about a name that is not among `known`: the nearest one, or all of them."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    if close:
        return f"the nearest is {close[0]}"
    return f"known are {', '.join(sorted(known))}"


def parse(cls: type[T], value: Any, key: str = "") -> T:
    """Turn plain containers into the dataclass `cls`.

    Args:
        cls: a dataclass of this module.
        value: mapping of field names to plain values.
        key: dotted path of `value`, for messages.

    Raises:
        UserError: an unknown or missing key, or a value of another type; all of them in one sentence.
    """
    problems: list[str] = []
    result = _parse_dataclass(cls, value, key, problems)
    if problems:
        raise UserError("; ".join(problems))
    return result  # type: ignore[no-any-return]


def _parse_dataclass(cls: Any, value: Any, key: str, problems: list[str]) -> Any:
    if not isinstance(value, Mapping):
        problems.append(f"{key or 'the configuration'} is {value!r}, and must be a group of settings")
        return None
    hints = get_type_hints(cls)
    for name in value:
        if name not in hints:
            problems.append(f"{_join(key, str(name))} is not a setting ({nearest(str(name), list(hints))})")
    arguments = {}
    for name, hint in hints.items():
        if name not in value:
            problems.append(f"{_join(key, name)} is missing")
        else:
            arguments[name] = _parse_value(hint, value[name], _join(key, name), problems)
    return None if problems else cls(**arguments)


def _parse_value(hint: Any, value: Any, key: str, problems: list[str]) -> Any:
    options = list(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else [hint]
    classes = [option for option in options if dataclasses.is_dataclass(option)]
    if len(classes) > 1 and not (value is None and type(None) in options):
        return _parse_kind(classes, value, key, problems)
    for option in options:
        if option is type(None):
            if value is None:
                return None
        elif dataclasses.is_dataclass(option):
            if value is not None or len(options) == 1:
                return _parse_dataclass(option, value, key, problems)
        elif get_origin(option) is Literal:
            if value in get_args(option):
                return value
        elif get_origin(option) is list:
            (item,) = get_args(option)
            if isinstance(value, list | tuple):
                return [_parse_value(item, v, f"{key}[{i}]", problems) for i, v in enumerate(value)]
        elif option is float:
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        elif isinstance(value, option) and (option is bool or not isinstance(value, bool)):
            return value
    problems.append(f"{key} is {value!r}, and must be {_describe(options)}")
    return None


def _parse_kind(classes: list[Any], value: Any, key: str, problems: list[str]) -> Any:
    kinds = {kind: cls for cls in classes for kind in get_args(get_type_hints(cls)["kind"])}
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in kinds:
        problems.append(f"{key}.kind is {kind!r} ({nearest(str(kind), list(kinds))})")
        return None
    return _parse_dataclass(kinds[kind], value, key, problems)


def _describe(options: list[Any]) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "null"}
    words = []
    for option in options:
        if get_origin(option) is Literal:
            choices = [str(choice) for choice in get_args(option)]
            words.append(f"one of {', '.join(choices)}")
        elif get_origin(option) is list:
            words.append("a list")
        else:
            words.append(names.get(option, "a group of settings"))
    return " or ".join(words)


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
