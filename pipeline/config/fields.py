"""Keys of YAML from the fields of a configuration Struct: name, type, unit, default, text.

A field of such a Struct is a key of the file if its annotation has a `str`: one sentence of
documentation. The rest is derived from the field: `Annotated[int, Meta(ge=1), "..."]` gives the
check, the words "int >= 1" of the error, and the line in config.yml.
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

from pipeline.config import registry
from pipeline.config.registry import did_you_mean
from pipeline.config.yaml import KeyPath, shown

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000}
_MAX_DURATION = 2**31 - 1  # of any unit; the platform's timers overflow after some hundred years


@dataclass(frozen=True, slots=True)
class Duration:
    """The file has a whole number of `unit`; the field `..._s` has seconds.

    A field that may be None is None for zero or less: no limit, or off.
    """

    unit: Literal["s", "ms", "us"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A check that a type cannot express, and the words for the expected value."""

    words: str
    holds: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class OneOf:
    """A name from the registry, or one of `also`, in any case."""

    kind: registry.Kind
    also: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        return (*registry.names(self.kind), *self.also)

    @property
    def words(self) -> str:
        return " or ".join(self.known)

    def canonical(self, word: str) -> str:
        """Return the word in its registered spelling; unchanged if it is unknown."""
        return next((name for name in self.also if name.lower() == word.lower()), None) or (
            registry.known_as(self.kind, word) or word
        )

    def holds(self, word: str) -> bool:
        return word in self.also or registry.known_as(self.kind, word) == word


@dataclass(frozen=True, slots=True)
class OptionsOf:
    """The field holds the options of the implementation that the key `chosen_by` names.

    They are keys next to that key: the fields of the implementation's Struct. With `built_in`, the
    keys of all built-in implementations are always allowed, as in files of the predecessor.
    """

    kind: registry.Kind
    chosen_by: str
    built_in: bool = False

    def settings(self, name: str, field: str) -> dict[str, Setting]:
        """Return the settings of the implementation called `name`, to be kept in `field`."""
        struct = registry.options_of(self.kind, name)
        known = settings_of(struct) if struct is not None else {}
        return {key: replace(setting, kept_in=field) for key, setting in known.items()}

    def of_chosen(self, word: object, field: str) -> dict[str, Setting]:
        """Return the settings of the chosen implementation."""
        name = registry.known_as(self.kind, word) if isinstance(word, str) else None
        return {} if name is None else self.settings(name, field)

    def without_own(self) -> tuple[str, ...]:
        """Return the built-in names without keys that depend on the choice."""
        return tuple(
            name
            for name in registry.BUILT_IN[self.kind]
            if self.built_in or registry.options_of(self.kind, name) is None
        )


@dataclass(frozen=True, slots=True)
class RegistryChoices:
    """The key holds a mapping of names from the registry to the options of each, in order.

    The field holds the Struct of the options by the name; None: there are none.
    """

    kind: registry.Kind


@dataclass(frozen=True, slots=True)
class Alias:
    """A second key for the field, for files written for the predecessor."""

    key: str


@dataclass(frozen=True, slots=True)
class Masked:
    """The value is secret: nothing shows it."""


class Mismatch(ValueError):
    """A value does not fit its key. The text has the expected and the found value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key: the field of its value, and the allowed values.

    `default` is the value in the file's form, None if the key is absent by default. `section` is
    the Struct of a nested mapping; `many`: there is one such mapping per name; `listed`: there is a
    list of them. `kept_in` is the field that holds the value under the name `field`; None: the
    field itself.
    """

    field: str
    key: str
    doc: str
    default: object
    value_type: Any
    duration: Duration | None = None
    off: bool = False
    rule: Rule | OneOf | None = None
    chosen: RegistryChoices | None = None
    alias: str | None = None
    kept_in: str | None = None
    is_required: bool = False
    is_secret: bool = False
    is_optional: bool = False
    section: type[msgspec.Struct] | None = None
    many: bool = False
    listed: bool = False

    @property
    def expected(self) -> str:
        """Return `int >= 1`, `full or adaptive`, `int <= 2147483647 (ms)`."""
        if self.rule is not None:
            return self.rule.words
        if self._choices:
            return " or ".join(self._choices)
        words = _words(inspect.type_info(self.value_type))
        return f"{words} ({self.duration.unit})" if self.duration else words

    def read(self, value: object) -> object:
        """Return the field's value for the key's `value`. Raises `Mismatch`."""
        try:
            result = msgspec.convert(self._canonical(value), self.value_type)
        except msgspec.ValidationError:
            raise self._mismatch(value) from None
        if _is_huge(result) or (self.rule is not None and not self.rule.holds(result)):
            raise self._mismatch(value)
        if self.duration is None:
            return result
        return None if self.off and result <= 0 else result / _PER_SECOND[self.duration.unit]

    def read_argument(self, value: object) -> object:
        """Read a constructor's argument, in which a duration need not be a whole number."""
        if self.duration is None:
            return self.read(value)
        return replace(self, value_type=_duration_type(float, self.off)).read(value)

    @property
    def _choices(self) -> tuple[str, ...]:
        """Return the words of a closed set, in the order of the annotation; () for other types."""
        is_closed = typing.get_origin(self.value_type) is Literal
        return typing.get_args(self.value_type) if is_closed else ()

    def _canonical(self, value: object) -> object:
        """Return words of a set in its spelling; input may have any case: FP16, Info."""
        if value is False and "off" in self._choices:  # YAML reads `off` as false
            return "off"
        if not isinstance(value, str):
            return value
        if isinstance(self.rule, OneOf):
            return self.rule.canonical(value)
        return next((word for word in self._choices if word.lower() == value.lower()), value)

    def _mismatch(self, value: object) -> Mismatch:
        note = ""
        if isinstance(value, bool) and isinstance(inspect.type_info(self.value_type), _NUMBER):
            note = ": true, false, yes, no, on and off are not numbers"
        elif _is_huge(value):
            note = ": more than 64 bits"
        elif isinstance(value, str) and isinstance(self.rule, OneOf):
            note = did_you_mean(value, self.rule.known)
        return Mismatch(f"expected {self.expected}, found {found(value)}{note}")


@functools.cache
def settings_of(struct: type[msgspec.Struct]) -> Mapping[str, Setting]:
    """Return the keys of a Struct in the order of its fields, without aliases."""
    hints = typing.get_type_hints(struct, include_extras=True)
    settings: dict[str, Setting] = {}
    for field in msgspec.structs.fields(struct):
        base, notes, optional = _unwrap(hints[field.name])
        options = _first(OptionsOf, notes)
        if options is not None and options.built_in:
            for name in registry.BUILT_IN[options.kind]:
                for key, setting in options.settings(name, field.name).items():
                    settings.setdefault(key, setting)
        doc = _first(str, notes)
        if doc is not None:
            setting = _setting(field, base, notes, optional, doc)
            settings[setting.key] = setting
    return settings


@functools.cache
def options_in(struct: type[msgspec.Struct]) -> Mapping[str, OptionsOf]:
    """Return the OptionsOf of a Struct's fields that hold options, by field."""
    hints = typing.get_type_hints(struct, include_extras=True)
    notes = {field: _first(OptionsOf, _unwrap(hint)[1]) for field, hint in hints.items()}
    return {field: note for field, note in notes.items() if note is not None}


def chosen_by(struct: type[msgspec.Struct]) -> Mapping[str, tuple[str, ...]]:
    """Return the keys that name implementations, and the names that bring no keys."""
    settings, names = settings_of(struct), {}
    for options in options_in(struct).values():
        rule = settings[options.chosen_by].rule
        also = rule.also if isinstance(rule, OneOf) else ()
        names[options.chosen_by] = (*options.without_own(), *also)
    return names


REMOVED: Mapping[KeyPath, str] = {
    ("dag", "fuse_processes"): "Ops in processes always run in their own",
}
"""Why former keys have no effect any more, by path."""


def known_keys(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    """Yield every key of a Struct and its sections: `dag.retry`, `op.<name>.timeout`."""
    for key, setting in settings_of(struct).items():
        yield prefix + key, setting
        if setting.section is not None and not setting.listed:
            inner = f"{prefix}{key}.<name>." if setting.many else f"{prefix}{key}."
            yield from known_keys(setting.section, inner)


def found(value: object) -> str:
    """Return `'abc' (str)`, shortened to a line."""
    return f"{shown(value)} ({type(value).__name__})"


_NUMBER = (inspect.IntType, inspect.FloatType)


def _is_huge(value: object) -> bool:
    """Return whether an integer is too large for C, and even for Python to print."""
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def _setting(
    field: msgspec.structs.FieldInfo, base: Any, notes: list[Any], optional: bool, doc: str
) -> Setting:
    duration = _first(Duration, notes)
    section, many, listed = _section(base)
    alias = _first(Alias, notes)
    metas = [note for note in notes if isinstance(note, Meta)]
    value_type = Annotated[(base, *metas)] if metas else base
    return Setting(
        field=field.name,
        # `timeout` for the field `timeout_s`; a key in seconds keeps its suffix.
        key=field.name.removesuffix("_s" if duration and duration.unit != "s" else ""),
        doc=doc,
        default=None if section and not listed else _file_default(field.default, duration),
        value_type=_duration_type(int, optional) if duration else value_type,
        duration=duration,
        off=optional and duration is not None,
        rule=_first((Rule, OneOf), notes),
        chosen=_first(RegistryChoices, notes),
        is_required=field.required,
        is_secret=_first(Masked, notes) is not None,
        is_optional=optional,
        alias=alias.key if alias else None,
        section=section,
        many=many,
        listed=listed,
    )


def _duration_type(base: type, optional: bool) -> Any:
    return Annotated[base, Meta(ge=None if optional else 0, le=_MAX_DURATION)]


def _unwrap(hint: Any) -> tuple[Any, list[Any], bool]:
    """Return the bare type, the notes of its Annotated, and whether it may be None."""
    notes: list[Any] = []
    optional = False
    while True:
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            notes += args[1:]
            hint = args[0]
        elif origin in (typing.Union, types.UnionType):
            others = [arg for arg in args if arg is not types.NoneType]
            if len(others) > 1:  # not a key's type: the field is not a key
                return hint, notes, optional
            hint = others[0]
            optional = True
        else:
            return hint, notes, optional


def _section(base: Any) -> tuple[type[msgspec.Struct] | None, bool, bool]:
    """Return the Struct of a section, whether there is one for each name, or a list of them."""
    many, listed = typing.get_origin(base) is Mapping, typing.get_origin(base) is tuple
    inner = typing.get_args(base)[1] if many else typing.get_args(base)[0] if listed else base
    is_struct = isinstance(inner, type) and issubclass(inner, msgspec.Struct)
    return (inner, many, listed) if is_struct else (None, False, False)


def _file_default(default: Any, duration: Duration | None) -> object:
    if default is msgspec.NODEFAULT:
        return None
    if duration is None:
        return list(default) if isinstance(default, tuple) else default
    return -1 if default is None else round(default * _PER_SECOND[duration.unit])


def _first(kind: type | tuple[type, ...], notes: list[Any]) -> Any:
    return next((note for note in notes if isinstance(note, kind)), None)


def _words(info: inspect.Type) -> str:
    match info:
        case inspect.BoolType():
            return "true or false"
        case inspect.VarTupleType(item_type=item):
            return f"list of {_words(item)}"
        case inspect.DictType(value_type=inspect.StrType()):
            return "mapping of str to str"
        case inspect.DictType(value_type=inspect.FloatType()):
            return "mapping of str to number"
        case inspect.IntType(ge=least, le=most):
            return f"int{_range(least, most)}"
        case inspect.FloatType(ge=least, le=most):
            return f"number{_range(least, most)}"
    return "str"


def _range(least: float | None, most: float | None) -> str:
    if most is None:
        return "" if least is None else f" >= {least:.0f}"
    return f" <= {most:.0f}" if least is None else f" {least:.0f}..{most:.0f}"
