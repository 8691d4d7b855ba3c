"""Typed, frozen groups of settings, whose numbers stand in `conf/`, and their mistakes in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from transformer_xl.errors import UserError, first_line
from transformer_xl.registry import lookup, names, nearest

S = TypeVar("S", bound="Settings")

Count = Annotated[int, Field(ge=1)]
Number = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Width = Annotated[int, Field(ge=1, lt=1 << 24)]
"""Of a tensor."""
Length = Annotated[int, Field(ge=0, lt=1 << 31)]
"""A number of tokens that a memory can hold."""
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
"""Of a random generator."""


class Settings(BaseModel):
    """A group of settings: frozen, of these names and exact types only; a whole number may stand for any number."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    def rules(self) -> Iterator[str]:
        """Yield a part of a sentence for each combination of values that cannot work.

        It begins with the name of a setting of this group, as in "d_head is 7, and must be even".
        """
        return iter(())

    @model_validator(mode="after")
    def _follow_rules(self) -> Self:
        refuse(self.rules())
        return self


def refuse(problems: Iterable[str]) -> None:
    """Raise pydantic's error with a part of a sentence for each problem, as `Settings.rules` yields them."""
    details = [
        InitErrorDetails(type=PydanticCustomError("rule", "{text}", {"text": text}), input=None) for text in problems
    ]
    if details:
        raise ValidationError.from_exception_data("settings", details)


class OptimizerConfig(Settings):
    """Learning rate and weight decay, common to all optimizers."""

    kind: str
    lr: Amount
    weight_decay: Amount
    decay_embeddings: bool


class SchedulerConfig(Settings):
    """Warm-up, common to all schedules."""

    kind: str
    warmup_steps: Number


def parse(cls: type[S], value: object, key: str = "") -> S:
    """Turn plain containers into the settings of a group, whose dotted name `key` is.

    Raises:
        UserError: all that is wrong, each part naming a setting by its dotted name.
    """
    try:
        return cls.model_validate(value)
    except ValidationError as error:
        raise UserError("; ".join(_problems(error, cls, value, key))) from error


def parse_kind(part: str, value: object) -> Any:
    """Turn plain containers into the settings of the part that their `kind` names, as `parse` does."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    return parse(lookup(part, str(kind)).config or Settings, value, part)


def read_settings(path: Path) -> dict[str, Any]:
    """Read a YAML file as plain containers; `UserError` where it is damaged."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    if not isinstance(settings, dict):
        raise UserError(f"{path} is damaged: it holds no settings")
    return settings


def replace(settings: S, **changes: object) -> S:
    """Return a copy with other values; `UserError` where they cannot work."""
    return parse(type(settings), dict(settings) | changes)


def plain(settings: Settings) -> dict[str, Any]:
    """Return settings as plain containers, with all that a group's own class has."""
    return settings.model_dump(mode="json", serialize_as_any=True)


def defaults(cls: type[Settings]) -> dict[str, Any]:
    """Return what a group's class itself says of its settings, as plain containers."""
    return cls.model_construct().model_dump(mode="json", serialize_as_any=True, exclude={"kind"})


def names_in(cls: type[Settings], key: str = "") -> Iterator[str]:
    """Yield the dotted names of all settings of a group, those of all its kinds, and the groups' own."""
    for name, field in cls.model_fields.items():
        yield (own := f"{key}.{name}".removeprefix("."))
        for option in (field.annotation, *get_args(field.annotation)):
            if isinstance(option, type) and issubclass(option, Settings):
                yield from names_in(option, own)
    for kind in cls.__subclasses__():
        yield from names_in(kind, key)


def by_kind(
    part: str, base: type[Settings], own: Mapping[str, type[Settings]] | None = None, without: Any = None
) -> Any:
    """Return the annotation of a group whose `kind` says which class its settings have, all of them `base`'s.

    The classes are those of `own` and of the registry's parts; a part that names no class has `without`, else `base`.
    """

    def validate(value: object) -> Settings:
        if not isinstance(value, Mapping):
            return base.model_validate(value)
        kind, classes = str(value.get("kind")), own or {}
        if kind not in classes and kind not in names(part):
            near = nearest(kind, [*classes, *names(part)])
            refuse([f"kind is {kind!r} ({near}); a part of your own needs plugins=[FILE]"])
        cls: type[Settings] = classes[kind] if kind in classes else lookup(part, kind).config or without or base
        return cls.model_validate(value)

    return PlainValidator(validate)


_SHORTER = {
    "Input should be ": "",
    "String should have": "a text of",
    "String should match": "a text that matches",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a valid integer": "a whole number",
    "a valid list": "a list",
    "a valid boolean": "true or false",
}
"""Words of pydantic's messages, and what stands for them in ours."""


def _problems(error: ValidationError, cls: type[Settings], value: object, key: str) -> Iterator[str]:
    wrong: dict[str, dict[str, None]] = {}  # of a setting of several types each says what it must be
    for found in error.errors(include_url=False):
        name, message = _name(found, value, key), found["msg"]
        if found["type"] == "rule":
            yield f"{name}.{message}".removeprefix(".")
        elif found["type"] == "value_error":
            yield message.removeprefix("Value error, ")
        elif found["type"] == "missing":
            yield f"{name} is missing"
        elif found["type"] == "extra_forbidden":
            yield f"{name} is not a setting{_nearest_setting(name, cls, key)}"
        else:
            for long, short in _SHORTER.items():
                message = message.replace(long, short)
            given = found["input"]
            shown = "null" if given is None else str(given).lower() if isinstance(given, bool) else f"{given!r:.200}"
            wrong.setdefault(f"{name} is {shown}, and must be ", {})[message] = None
    yield from (setting + " or ".join(needed) for setting, needed in wrong.items())


def _name(found: Mapping[str, Any], value: object, key: str) -> str:
    """Return the dotted name of the setting that an error is about: its place, without the types of a union."""
    for part in found["loc"]:
        if isinstance(value, Mapping) and (part in value or found["type"] == "missing"):
            key, value = f"{key}.{part}".removeprefix("."), value.get(part)
        elif isinstance(value, list) and isinstance(part, int):
            key, value = f"{key}[{part}]", value[part]
    return key


def _nearest_setting(name: str, cls: type[Settings], key: str) -> str:
    known = sorted(
        one for one in {*names_in(cls, key)} - {name} if one.startswith("recipe.") <= name.startswith("recipe.")
    )
    same = [one for one in known if one.rpartition(".")[2] == name.rpartition(".")[2]]
    close = same or get_close_matches(name, known, n=1)
    return f" (the nearest is {close[-1]})" if close else ""
