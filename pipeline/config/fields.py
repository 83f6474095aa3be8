"""Keys of YAML from the fields of a configuration Struct: name, type, unit, default, words.

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

from pipeline.config import registry
from pipeline.config.registry import did_you_mean
from pipeline.config.yaml import KeyPath, Source, shown
from pipeline.errors import ConfigError

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
        """Return the word as it is spelt where it is known; else as it is."""
        return next((name for name in self.also if name.lower() == word.lower()), None) or (
            registry.known_as(self.kind, word) or word
        )

    def holds(self, word: str) -> bool:
        return word in self.also or registry.known_as(self.kind, word) == word


@dataclass(frozen=True, slots=True)
class OptionsOf:
    """The field holds the options of what the key `chosen_by` names, by their fields.

    They are keys beside that key, those of its implementation's Struct. Where `built_in`, those
    of all of ours are keys in any case, as files of the predecessor have them.
    """

    kind: registry.Kind
    chosen_by: str
    built_in: bool = False

    def settings(self, name: str, field: str) -> dict[str, Setting]:
        """Return the settings of the implementation called `name`, to be kept in `field`."""
        struct = registry.options_of(self.kind, name)
        known = settings_of(struct) if struct is not None else {}
        return {key: replace(setting, kept_in=field) for key, setting in known.items()}

    def of_plug_in(self, word: object, field: str) -> dict[str, Setting]:
        """Return the settings of the plug-in that is chosen; none: it is one of ours."""
        name = registry.known_as(self.kind, word) if isinstance(word, str) else None
        if name is None or name in registry.BUILT_IN[self.kind]:
            return {}
        return self.settings(name, field)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The key holds a mapping of names from the registry to the options of each, in order.

    The field holds the Struct of the options by the name; None: there are none.
    """

    kind: registry.Kind


@dataclass(frozen=True, slots=True)
class Alias:
    """A second key that sets the field too, for files written for the predecessor."""

    key: str


@dataclass(frozen=True, slots=True)
class Masked:
    """The value is shown to nobody."""


class Mismatch(ValueError):
    """A value does not fit its key. The text says what was expected and what was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key: where its value goes, and what it has to be.

    `default` is as the file would hold it, None when the key is simply absent. `section` is
    the Struct of a nested mapping, `many` says that it is one such mapping for every name,
    `listed` that it is a list of them.
    `kept_in` is the field that holds the value by the name `field`; None: it is that field.
    """

    field: str
    key: str
    doc: str
    default: object
    value_type: Any
    duration: Duration | None = None
    off: bool = False
    rule: Rule | OneOf | None = None
    chosen: Chosen | None = None
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
        """Return the field's value for the key's `value`; raises `Mismatch`."""
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
        """Read a constructor's argument: a duration need not be a whole number there."""
        if self.duration is None:
            return self.read(value)
        return replace(self, value_type=_duration_type(float, self.off)).read(value)

    @property
    def _choices(self) -> tuple[str, ...]:
        """Return the words of a closed set, in the order of the annotation; else none."""
        is_closed = typing.get_origin(self.value_type) is Literal
        return typing.get_args(self.value_type) if is_closed else ()

    def _canonical(self, value: object) -> object:
        """Return words of a set as it spells them; they are read in any case: FP16, Info."""
        if value is False and "off" in self._choices:  # so YAML reads it
            return "off"
        if not isinstance(value, str):
            return value
        if isinstance(self.rule, OneOf):
            return self.rule.canonical(value)
        return next((word for word in self._choices if word.lower() == value.lower()), value)

    def _mismatch(self, value: object) -> Mismatch:
        note = ""
        if isinstance(value, bool) and isinstance(inspect.type_info(self.value_type), _NUMBER):
            note = ": true, false, yes, no, on and off are no numbers"
        elif _is_huge(value):
            note = ": more than 64 bits"
        elif isinstance(value, str) and isinstance(self.rule, OneOf):
            note = did_you_mean(value, self.rule.known)
        return Mismatch(f"expected {self.expected}, found {found(value)}{note}")


@functools.cache
def settings_of(struct: type[msgspec.Struct]) -> Mapping[str, Setting]:
    """Return the keys of a Struct in the order of its fields, aliases not among them."""
    hints = typing.get_type_hints(struct, include_extras=True)
    settings: dict[str, Setting] = {}
    for field in msgspec.structs.fields(struct):
        base, notes, optional = _unwrap(hints[field.name])
        options = _first(OptionsOf, notes)
        if options is not None and options.built_in:
            for name in registry.BUILT_IN[options.kind]:
                settings |= options.settings(name, field.name)
        doc = _first(str, notes)
        if doc is not None:
            setting = _setting(field, base, notes, optional, doc)
            settings[setting.key] = setting
    return settings


@functools.cache
def _options_of(struct: type[msgspec.Struct]) -> Mapping[str, OptionsOf]:
    """Return what a Struct says of its fields that hold options, by the field."""
    hints = typing.get_type_hints(struct, include_extras=True)
    notes = {field: _first(OptionsOf, _unwrap(hint)[1]) for field, hint in hints.items()}
    return {field: note for field, note in notes.items() if note is not None}


def chosen_by(
    struct: type[msgspec.Struct],
) -> tuple[tuple[str, registry.Kind, tuple[str, ...]], ...]:
    """Return the keys that name implementations which may bring keys of their own.

    Each with the kind, and the names that are known beside those of the registry.
    """
    settings, found_keys = settings_of(struct), []
    for options in _options_of(struct).values():
        rule = settings[options.chosen_by].rule
        also = rule.also if isinstance(rule, OneOf) else ()
        found_keys.append((options.chosen_by, options.kind, also))
    return tuple(found_keys)


def known_keys(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    """Yield every key of a Struct and its sections: `dag.retry`, `op.<name>.timeout`."""
    for key, setting in settings_of(struct).items():
        yield prefix + key, setting
        if setting.section is not None and not setting.listed:
            inner = f"{prefix}{key}.<name>." if setting.many else f"{prefix}{key}."
            yield from known_keys(setting.section, inner)


class Reader:
    """A reader of the sections of one source, with what is wrong or odd about them."""

    def __init__(self, source: Source, root: type[msgspec.Struct]) -> None:
        self.problems: list[str] = list(source.problems)
        self.warnings: list[str] = list(source.warnings)
        self._source = source
        self._root = root

    def problem(self, path: KeyPath, text: str) -> None:
        self.problems.append(f"{self._source.place(path)}: {text}")

    def fields(self, struct: type[msgspec.Struct], raw: object, path: KeyPath) -> dict[str, Any]:
        """Return values for the fields of `struct`: those that `raw` gives, without bad ones."""
        given = self._mapping(raw, path)
        settings = self._with_plug_ins(struct, given, path)
        aliases = {setting.alias: setting for setting in settings.values() if setting.alias}
        values: dict[str, Any] = {}
        for key, value in given.items():
            setting = settings.get(key) or aliases.get(key)  # type: ignore[call-overload]
            here = (*path, key)
            if setting is None:
                self._unknown(struct, settings, key, here)
            elif (meant := as_meant(self._source, setting, value, here)) is not None:
                self._read_into(values, setting, meant, here)
        for key, setting in settings.items():
            if setting.is_required and given.get(key) is None and struct is not self._root:
                self.problem((*path, key), f"expected {setting.expected}, found nothing")
        return values

    def _with_plug_ins(
        self, struct: type[msgspec.Struct], raw: Mapping[object, object], path: KeyPath
    ) -> dict[str, Setting]:
        """Return the settings of `struct`, and of those plug-ins that `raw` names."""
        settings = dict(settings_of(struct))
        for field, options in _options_of(struct).items():
            here = (*path, options.chosen_by)
            try:
                plugged = options.of_plug_in(raw.get(options.chosen_by), field)
            except ConfigError as error:
                self.problem(here, str(error))
                continue
            for key, setting in plugged.items():
                if settings.get(key, setting).kept_in != field:
                    self.problem(here, f"its option {key} is something else here already")
                settings[key] = setting
        return settings

    def _read_into(
        self, values: dict[str, Any], setting: Setting, value: object, path: KeyPath
    ) -> None:
        try:
            result = self._value(setting, value, path)
        except Mismatch as mismatch:
            self._mismatched(path, setting, mismatch)
            return
        if setting.kept_in is not None:
            values = values.setdefault(setting.kept_in, {})
        if values.setdefault(setting.field, result) != result:
            self.problem(path, f"{setting.key} and {setting.alias} differ; keep {setting.key} only")

    def _mismatched(self, path: KeyPath, setting: Setting, mismatch: Mismatch) -> None:
        """Note that a value does not fit; one that is secret is not shown."""
        text = self._source.texts.get(path)
        written = f", which is {text.written}" if text is not None and text.written else ""
        is_secret = setting.is_secret or self._source.is_secret(path)
        said = f"expected {setting.expected}, found a secret" if is_secret else str(mismatch)
        self.problem(path, f"{said}{written}")

    def _value(self, setting: Setting, value: object, path: KeyPath) -> object:
        if setting.section is None and setting.chosen is None:
            return setting.read(value)
        if setting.section is not None and setting.listed:
            return self._listed(setting.section, value, path)
        if setting.section is not None and not setting.many:
            return setting.section(**self.fields(setting.section, value, path))
        named: dict[str, object] = {}
        for name, raw in self._mapping(value, path).items():
            here = (*path, name)
            if not isinstance(name, str):
                self.problem(here, f"expected a name (put it in quotes), found {found(name)}")
            elif setting.section is not None:
                named[name] = setting.section(**self.fields(setting.section, raw, here))
            else:
                assert setting.chosen is not None
                self._choose(named, setting.chosen.kind, name, raw, here)
        return named

    def _listed(
        self, section: type[msgspec.Struct], value: object, path: KeyPath
    ) -> tuple[msgspec.Struct, ...]:
        """Return a list of sections, without bad ones; one alone need not be in a list."""
        made = []
        for place, raw in enumerate(value if isinstance(value, list | tuple) else [value]):
            before = len(self.problems)
            values = self.fields(section, raw, (*path, place))
            if len(self.problems) == before:
                made.append(section(**values))
        return tuple(made)

    def _choose(
        self, named: dict[str, object], kind: registry.Kind, name: str, raw: object, path: KeyPath
    ) -> None:
        """Note the options of one implementation by its name; None: it has none."""
        try:
            name = registry.known_as(kind, name) or name
            struct = registry.options_of(kind, name)
        except ConfigError as error:
            self.problem(path, str(error))
            return
        before = len(self.problems)
        if struct is not None:
            keys = {setting.field for setting in settings_of(struct).values()}
            for field in set(struct.__struct_fields__) - keys:
                text = f'{field}: Annotated[..., "What it is for."]'
                self.problem(path, f"its option {field} has no sentence: annotate it as {text}")
        values = self.fields(struct or msgspec.Struct, raw, path)
        if len(self.problems) == before:
            named[name] = struct and struct(**values)

    def _mapping(self, raw: object, path: KeyPath) -> Mapping[object, object]:
        if raw is None:
            return {}
        if not isinstance(raw, Mapping):
            it = "a secret" if self._source.is_secret(path) else found(raw)
            self.problem(path, f"expected a mapping (key: value), found {it}")
            return {}
        return raw

    def _unknown(
        self,
        struct: type[msgspec.Struct],
        settings: Mapping[str, Setting],
        key: object,
        path: KeyPath,
    ) -> None:
        if key in getattr(struct, "ignored_keys", ()):
            return
        hint = did_you_mean(key, settings) if isinstance(key, str) else ""
        elsewhere = [full for full, setting in known_keys(self._root) if setting.key == key]
        if elsewhere:
            hint = f"; it belongs at {' or '.join(elsewhere)}"
        self.warnings.append(f"{self._source.place(path)}: unknown key, ignored{hint}")


def as_meant(source: Source, setting: Setting, value: object, path: KeyPath) -> object:
    """Return a value of `source`: the text that it was given as, where its key holds text.

    An empty text, and null, are none where the key may be absent.
    """
    texts = source.texts
    if not texts or setting.section is not None or setting.chosen is not None:
        return value
    info = inspect.type_info(setting.value_type)
    if path in texts and isinstance(info, inspect.StrType):
        text = texts[path].text
        return None if setting.is_optional and text in _NOTHING else text
    if isinstance(value, list) and isinstance(getattr(info, "item_type", None), inspect.StrType):
        items = ((texts.get((*path, index)), item) for index, item in enumerate(value))
        return [item if text is None else text.text for text, item in items]
    if isinstance(value, dict) and isinstance(getattr(info, "value_type", None), inspect.StrType):
        values = ((key, texts.get((*path, key)), item) for key, item in value.items())
        return {key: item if text is None else text.text for key, text, item in values}
    return value


def found(value: object) -> str:
    """Return `'abc' (str)`, cut to a line."""
    return f"{shown(value)} ({type(value).__name__})"


_NUMBER = (inspect.IntType, inspect.FloatType)
_NOTHING = ("", "null", "~")


def _is_huge(value: object) -> bool:
    """Return whether no code below Python could hold it; Python would not even print it."""
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
        # `timeout` for the field `timeout_s`; a key in seconds says so itself.
        key=field.name.removesuffix("_s" if duration and duration.unit != "s" else ""),
        doc=doc,
        default=None if section and not listed else _file_default(field.default, duration),
        value_type=_duration_type(int, optional) if duration else value_type,
        duration=duration,
        off=optional and duration is not None,
        rule=_first((Rule, OneOf), notes),
        chosen=_first(Chosen, notes),
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
    """Return the bare type, all that Annotated says about it, and whether it may be None."""
    notes: list[Any] = []
    optional = False
    while True:
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            notes += args[1:]
            hint = args[0]
        elif origin in (typing.Union, types.UnionType):
            others = [arg for arg in args if arg is not types.NoneType]
            if len(others) > 1:  # no key's type, so that of a field which is none
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
