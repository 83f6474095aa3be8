"""What the fields of a configuration Struct are in YAML: key, type, unit, default, words.

A field of such a Struct is a key of the file when its annotation holds a `str`: one sentence
that says what it is for. All else is derived from the field: `Annotated[int, Meta(ge=1), "..."]`
gives the check, the words "int >= 1" of the error, and the line in config.yml.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, inspect

from pipeline.config.registry import did_you_mean
from pipeline.config.yaml import KeyPath, Source, shown

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000}
_MAX_DURATION = 2**31 - 1  # of any unit; timers of the platform overflow beyond some hundred years


@dataclass(frozen=True, slots=True)
class Duration:
    """The file holds a whole number of `unit`, the field seconds, as its name `..._s` says.

    A field that may be None holds it for zero or less: no limit, or off.
    """

    unit: Literal["s", "ms", "us"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A check beyond what a type can say, and the words for what it expects."""

    words: str
    holds: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Alias:
    """A second key that sets the field too, for files written for the predecessor."""

    key: str


class Mismatch(ValueError):
    """A value does not fit its key. The text says what was expected and what was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key: where its value goes, and what it has to be.

    `default` is as the file would hold it, None when the key is simply absent. `section` is
    the Struct of a nested mapping, `many` says that it is one such mapping for every name.
    """

    field: str
    key: str
    doc: str
    default: object
    value_type: Any
    duration: Duration | None = None
    off: bool = False
    rule: Rule | None = None
    alias: str | None = None
    section: type[msgspec.Struct] | None = None
    many: bool = False

    @property
    def expected(self) -> str:
        """`int >= 1`, `full or adaptive`, `int <= 2147483647 (ms)`."""
        if self.rule is not None:
            return self.rule.words
        if self._choices:
            return " or ".join(self._choices)
        words = _words(inspect.type_info(self.value_type))
        return f"{words} ({self.duration.unit})" if self.duration else words

    def read(self, value: object) -> object:
        """The field's value for the key's `value`; raises `Mismatch`."""
        try:
            result = msgspec.convert(self._canonical(value), self.value_type)
        except msgspec.ValidationError:
            raise self._mismatch(value) from None
        if _is_huge(result) or (self.rule is not None and not self.rule.holds(result)):
            raise self._mismatch(value)
        return result if self.duration is None else self._seconds(result)

    def read_argument(self, value: object) -> object:
        """`read` for a constructor's argument: a duration need not be a whole number there."""
        if self.duration is None:
            return self.read(value)
        return replace(self, value_type=_duration_type(float, self.off)).read(value)

    @property
    def _choices(self) -> tuple[str, ...]:
        """The words of a closed set, in the order of the annotation; else none."""
        is_closed = typing.get_origin(self.value_type) is Literal
        return typing.get_args(self.value_type) if is_closed else ()

    def _seconds(self, value: float) -> float | None:
        if self.off and value <= 0:
            return None
        assert self.duration is not None
        return value / _PER_SECOND[self.duration.unit]

    def _canonical(self, value: object) -> object:
        """Words of a closed set are read in any case: FP16, Info."""
        if not isinstance(value, str):
            return value
        return next((word for word in self._choices if word.lower() == value.lower()), value)

    def _mismatch(self, value: object) -> Mismatch:
        note = ""
        if isinstance(value, bool) and isinstance(inspect.type_info(self.value_type), _NUMBER):
            note = ": true, false, yes, no, on and off are no numbers"
        elif _is_huge(value):
            note = ": more than 64 bits"
        return Mismatch(f"expected {self.expected}, found {found(value)}{note}")


@functools.cache
def settings_of(struct: type[msgspec.Struct]) -> Mapping[str, Setting]:
    """The keys of a Struct in the order of its fields, aliases not among them."""
    hints = typing.get_type_hints(struct, include_extras=True)
    settings = {}
    for field in msgspec.structs.fields(struct):
        base, notes, optional = _unwrap(hints[field.name])
        doc = _first(str, notes)
        if doc is not None:
            setting = _setting(field, base, notes, optional, doc)
            settings[setting.key] = setting
    return settings


def known_keys(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    """Every key of a Struct and its sections: `dag.retry`, `op.<name>.timeout`."""
    for key, setting in settings_of(struct).items():
        yield prefix + key, setting
        if setting.section is not None:
            inner = f"{prefix}{key}.<name>." if setting.many else f"{prefix}{key}."
            yield from known_keys(setting.section, inner)


class Reader:
    """Reads the sections of one source, and collects what is wrong or odd about them."""

    def __init__(self, source: Source, root: type[msgspec.Struct]) -> None:
        self.problems: list[str] = list(source.problems)
        self.warnings: list[str] = []
        self._source = source
        self._root = root

    def problem(self, path: KeyPath, text: str) -> None:
        self.problems.append(f"{self._source.place(path)}: {text}")

    def fields(self, struct: type[msgspec.Struct], raw: object, path: KeyPath) -> dict[str, Any]:
        """Values for the fields of `struct`: those that `raw` gives, without the bad ones."""
        settings = settings_of(struct)
        aliases = {setting.alias: setting for setting in settings.values() if setting.alias}
        values: dict[str, Any] = {}
        for key, value in self._mapping(raw, path).items():
            setting = settings.get(key) or aliases.get(key)  # type: ignore[call-overload]
            if setting is None:
                self._unknown(struct, key, (*path, key))
            elif value is not None:
                self._read_into(values, setting, value, (*path, key))
        return values

    def _read_into(
        self, values: dict[str, Any], setting: Setting, value: object, path: KeyPath
    ) -> None:
        try:
            result = self._value(setting, value, path)
        except Mismatch as mismatch:
            self.problem(path, str(mismatch))
            return
        if values.setdefault(setting.field, result) != result:
            self.problem(path, f"{setting.key} and {setting.alias} differ; keep {setting.key} only")

    def _value(self, setting: Setting, value: object, path: KeyPath) -> object:
        if setting.section is None:
            return setting.read(value)
        if not setting.many:
            return setting.section(**self.fields(setting.section, value, path))
        named = {}
        for name, raw in self._mapping(value, path).items():
            here = (*path, name)
            if not isinstance(name, str):
                self.problem(here, f"expected a name (put it in quotes), found {found(name)}")
            else:
                named[name] = setting.section(**self.fields(setting.section, raw, here))
        return named

    def _mapping(self, raw: object, path: KeyPath) -> Mapping[object, object]:
        if raw is None:
            return {}
        if not isinstance(raw, Mapping):
            self.problem(path, f"expected a mapping (key: value), found {found(raw)}")
            return {}
        return raw

    def _unknown(self, struct: type[msgspec.Struct], key: object, path: KeyPath) -> None:
        if key in getattr(struct, "ignored_keys", ()):
            return
        hint = did_you_mean(key, settings_of(struct)) if isinstance(key, str) else ""
        elsewhere = [full for full, setting in known_keys(self._root) if setting.key == key]
        if elsewhere:
            hint = f"; it belongs at {' or '.join(elsewhere)}"
        self.warnings.append(f"{self._source.place(path)}: unknown key, ignored{hint}")


def found(value: object) -> str:
    """`'abc' (str)`, cut to a line."""
    return f"{shown(value)} ({type(value).__name__})"


_NUMBER = (inspect.IntType, inspect.FloatType)


def _is_huge(value: object) -> bool:
    """Whether no code below Python could hold it; Python would not even print it."""
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def _setting(
    field: msgspec.structs.FieldInfo, base: Any, notes: list[Any], optional: bool, doc: str
) -> Setting:
    duration = _first(Duration, notes)
    section, many = _section(base)
    alias = _first(Alias, notes)
    metas = [note for note in notes if isinstance(note, Meta)]
    value_type = Annotated[(base, *metas)] if metas else base
    return Setting(
        field=field.name,
        key=_key(field.name, duration),
        doc=doc,
        default=None if section else _file_default(field.default, duration),
        value_type=_duration_type(int, optional) if duration else value_type,
        duration=duration,
        off=optional and duration is not None,
        rule=_first(Rule, notes),
        alias=alias.key if alias else None,
        section=section,
        many=many,
    )


def _duration_type(base: type, optional: bool) -> Any:
    return Annotated[base, Meta(ge=None if optional else 0, le=_MAX_DURATION)]


def _unwrap(hint: Any) -> tuple[Any, list[Any], bool]:
    """The bare type, all that Annotated says about it, and whether it may be None."""
    notes: list[Any] = []
    optional = False
    while True:
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            notes += args[1:]
            hint = args[0]
        elif origin in (typing.Union, types.UnionType):
            (hint,) = (arg for arg in args if arg is not types.NoneType)
            optional = True
        else:
            return hint, notes, optional


def _section(base: Any) -> tuple[type[msgspec.Struct] | None, bool]:
    many = typing.get_origin(base) is Mapping
    inner = typing.get_args(base)[1] if many else base
    is_struct = isinstance(inner, type) and issubclass(inner, msgspec.Struct)
    return (inner, many) if is_struct else (None, False)


def _key(field: str, duration: Duration | None) -> str:
    """`timeout` for the field `timeout_s`; a key in seconds says so itself."""
    if duration is None or duration.unit == "s":
        return field
    return field.removesuffix("_s")


def _file_default(default: Any, duration: Duration | None) -> object:
    if default is msgspec.NODEFAULT:
        return None
    if duration is None:
        return list(default) if isinstance(default, tuple) else default
    return -1 if default is None else round(default * _PER_SECOND[duration.unit])


def _first(kind: type, notes: list[Any]) -> Any:
    return next((note for note in notes if isinstance(note, kind)), None)


def _words(info: inspect.Type) -> str:
    match info:
        case inspect.BoolType():
            return "true or false"
        case inspect.VarTupleType(item_type=item):
            return f"list of {_words(item)}"
        case inspect.IntType(ge=least, le=most):
            return f"int{_range(least, most)}"
        case inspect.FloatType(ge=least, le=most):
            return f"number{_range(least, most)}"
    return "str"


def _range(least: float | None, most: float | None) -> str:
    if most is None:
        return "" if least is None else f" >= {least:.0f}"
    return f" <= {most:.0f}" if least is None else f" {least:.0f}..{most:.0f}"
