"""What all settings are made of: typed, frozen groups, and their mistakes in words.

A group is a subclass of `Settings`: fields with types and bounds, and `rules` for what holds between them. The numbers
stand in `conf/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, model_validator

from transformer_xl.errors import UserError, first_line
from transformer_xl.registry import lookup, names, nearest

S = TypeVar("S", bound="Settings")

Count = Annotated[int, Field(ge=1)]
"""At least one."""
Number = Annotated[int, Field(ge=0)]
"""None or more."""
Amount = Annotated[float, Field(ge=0)]
"""Zero or more."""
Share = Annotated[float, Field(ge=0, lt=1)]
"""At least 0 and below 1."""
Width = Annotated[int, Field(ge=1, lt=1 << 24)]
"""Of a tensor."""
Length = Annotated[int, Field(ge=0, lt=1 << 31)]
"""A number of tokens that a memory can hold."""
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
"""Of a random generator."""


class Settings(BaseModel):
    """A group of settings: frozen, of these names and exact types only; a whole number may stand for any number."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    def rules(self) -> Iterator[str]:
        """Yield a part of a sentence for each combination of values that cannot work.

        It begins with the name of a setting of this group, as in "d_head is 7, and must be even".
        """
        return iter(())

    @model_validator(mode="after")
    def _follow_rules(self) -> Self:
        broken = list(self.rules())
        if broken:
            raise _BrokenRulesError(broken)
        return self


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
    """Turn plain containers into settings.

    Args:
        cls: the group's class.
        value: mapping of names to plain values, or settings.
        key: dotted name of the group, for messages.

    Raises:
        UserError: all that is wrong, each part naming a setting by its dotted name.
    """
    try:
        return cls.model_validate(value)
    except ValidationError as error:
        raise UserError("; ".join(dict.fromkeys(_problems(error, cls, value, key)))) from error


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
    """Return a copy with other values, which are validated.

    Raises:
        UserError: they cannot work.
    """
    return parse(type(settings), dict(settings) | changes)


def plain(settings: Settings) -> dict[str, Any]:
    """Return settings as plain containers, with all that a group's own class has."""
    return settings.model_dump(mode="json", serialize_as_any=True)


def defaults(cls: type[Settings]) -> dict[str, Any]:
    """Return what a group's class itself says of its settings, as plain containers."""
    fields = {name: field for name, field in cls.model_fields.items() if not field.is_required() and name != "kind"}
    values = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    return {name: plain(value) if isinstance(value, Settings) else value for name, value in values.items()}


def names_in(cls: type[Settings], key: str = "") -> Iterator[str]:
    """Yield the dotted names of all settings of a group, those of all its kinds, and the groups' own."""
    for name, field in cls.model_fields.items():
        yield _join(key, name)
        inner = _class_in(field.annotation)
        if inner is not None:
            yield from names_in(inner, _join(key, name))
    for kind in cls.__subclasses__():
        yield from names_in(kind, key)


def by_kind(
    part: str,
    base: type[Settings],
    own: Mapping[str, type[Settings]] | None = None,
    *,
    without: type[Settings] | None = None,
) -> Any:
    """Return the annotation of a group whose `kind` says which class its settings have.

    Args:
        part: the kind of part in the registry, where each `kind` is registered with its class.
        base: of all these classes.
        own: further classes, of what is made without the registry.
        without: what a part without settings of its own has; None: `base`.
    """

    def validate(value: object) -> Settings:
        if isinstance(value, base):
            return value
        if not isinstance(value, Mapping):
            raise ValueError("must be a group of settings")
        kind, classes = str(value.get("kind")), own or {}
        if kind not in classes and kind not in names(part):
            near = nearest(kind, [*classes, *names(part)])
            raise _BrokenRulesError(
                [f"kind is {_shown(value.get('kind'))} ({near}); a part of your own needs plugins=[FILE]"]
            )
        cls: type[Settings] = classes[kind] if kind in classes else lookup(part, kind).config or without or base
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise _BrokenGroupError(error, cls) from error

    return PlainValidator(validate)


class _BrokenRulesError(ValueError):
    """Sentences of `rules`."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class _BrokenGroupError(ValueError):
    """What is wrong with a group whose class its kind chose."""

    def __init__(self, error: ValidationError, cls: type[Settings]) -> None:
        super().__init__(str(error))
        self.error, self.cls = error, cls


_KINDS_OF_VALUES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "string_too_short": "a text of at least {min_length} character",
    "bool_type": "true or false",
    "none_required": "null",
    "list_type": "a list",
    "model_type": "a group of settings",
    "greater_than_equal": "at least {ge}",
    "greater_than": "above {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
}
"""What a value must be, by pydantic's names of errors."""


def _problems(error: ValidationError, cls: type[Settings], value: object, key: str) -> Iterator[str]:
    needed: dict[tuple[str, str, bool], list[str]] = {}  # of a setting of several types each says what it needs
    for found in error.errors(include_url=False):
        name, owner = _place(cls, value, found["loc"], key)
        cause = found.get("ctx", {}).get("error")
        if isinstance(cause, _BrokenGroupError):
            yield from _problems(cause.error, cause.cls, found["input"], name)
        elif isinstance(cause, _BrokenRulesError):
            yield from (_join(name, problem) for problem in cause.problems)
        elif isinstance(cause, UserError):
            yield str(cause)
        elif found["type"] == "missing":
            yield f"{name} is missing"
        elif found["type"] == "extra_forbidden":
            yield f"{name} is not a setting ({_nearest_setting(name, owner)})"
        else:
            limits = found.get("ctx", {}).items()
            bounds = {bound: f"{limit:.15g}" for bound, limit in limits if isinstance(limit, int | float)}
            message = found["msg"].removeprefix("Value error, must be ")
            text = _KINDS_OF_VALUES[found["type"]].format_map(bounds) if found["type"] in _KINDS_OF_VALUES else message
            if found["type"] == "literal_error":
                text = found["ctx"]["expected"].replace("'", "")
            field = owner.model_fields.get(name.rpartition(".")[2])
            may_be_null = field is not None and type(None) in get_args(field.annotation)
            needed.setdefault((name, _shown(found["input"]), may_be_null), []).append(text)
    for (name, what, may_be_null), texts in needed.items():
        yield f"{name} is {what}, and must be {' or '.join(dict.fromkeys([*texts, *['null'] * may_be_null]))}"


def _nearest_setting(key: str, cls: type[Settings]) -> str:
    """Return the nearest name of a group's, or one like it of the groups in it: `trainer.max_steps` for `max_steps`."""
    *groups, name = key.split(".")
    known = sorted(set(names_in(cls)), key=lambda known: (known.count("."), known.startswith("recipe."), known))
    last = {known.rpartition(".")[2]: known for known in reversed(known)}
    close = get_close_matches(name, list(last), n=1, cutoff=0.7)
    return f"the nearest is {'.'.join([*groups, last[close[0]]])}" if close else nearest(name, list(cls.model_fields))


def _place(cls: type[Settings], value: object, loc: tuple[int | str, ...], key: str) -> tuple[str, type[Settings]]:
    """Return the dotted name of a place, and the class of the group that it is in; types of a union are left out."""
    for part in loc:
        is_group = isinstance(value, Mapping | Settings)
        if is_group:
            fields = cls.model_fields
            key = _join(key, str(part))
            value = value.get(part) if isinstance(value, Mapping) else getattr(value, str(part), None)
            inner = _class_in(fields[part].annotation) if isinstance(part, str) and part in fields else None
            cls = inner if inner is not None and isinstance(value, Mapping | Settings) else cls
        elif isinstance(part, int) and isinstance(value, list | tuple):
            key, value = f"{key}[{part}]", value[part]
    return key, cls


def _class_in(annotation: object) -> type[Settings] | None:
    for option in (annotation, *get_args(annotation)):
        if isinstance(option, type) and issubclass(option, Settings):
            return option
    return None


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _shown(value: object) -> str:
    words = ((None, "null"), (True, "true"), (False, "false"))
    return next((word for constant, word in words if value is constant), f"{value!r:.200}")
