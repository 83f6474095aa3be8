"""Reader: converts values of a Source to fields of Structs, and collects their faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect

from pipeline.config import registry
from pipeline.config.fields import (
    REMOVED,
    Mismatch,
    Setting,
    found,
    known_keys,
    options_in,
    settings_of,
)
from pipeline.config.registry import did_you_mean
from pipeline.config.yaml import ConfigSource, KeyPath
from pipeline.errors import ConfigError

_NOTHING = ("", "null", "~")


class Reader:
    """A reader of the sections of one source, with its problems and warnings."""

    def __init__(self, source: ConfigSource, root: type[msgspec.Struct]) -> None:
        self.problems: list[str] = list(source.problems)
        self.warnings: list[str] = list(source.warnings)
        self._source = source
        self._root = root

    def problem(self, path: KeyPath, text: str) -> None:
        self.problems.append(f"{self._source.place(path)}: {text}")

    def fields(self, struct: type[msgspec.Struct], raw: object, path: KeyPath) -> dict[str, Any]:
        """Return the valid values in `raw` for the fields of `struct`."""
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
        """Return the settings of `struct`, and of plug-ins that `raw` names."""
        settings = dict(settings_of(struct))
        for field, options in options_in(struct).items():
            here = (*path, options.chosen_by)
            try:
                plugged = options.of_chosen(raw.get(options.chosen_by), field)
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
        """Report a value that does not fit, without showing a secret."""
        text = self._source.texts.get(path)
        written = f", which is {text.written}" if text is not None and text.written else ""
        is_secret = setting.is_secret or self._source.is_secret(path)
        reason = f"expected {setting.expected}, found a secret" if is_secret else str(mismatch)
        self.problem(path, f"{reason}{written}")

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
        """Return a list of the valid sections; a single one need not be in a list."""
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
        """Read the options of one implementation, by its name; None without options."""
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
        if key in getattr(struct, "ignored_keys", ()):  # a plug-in's
            return
        removed = REMOVED.get(path)
        if removed is not None:
            self.warnings.append(f"{self._source.place(path)}: ignored: {removed}")
            return
        hint = did_you_mean(key, settings) if isinstance(key, str) else ""
        elsewhere = [full for full, setting in known_keys(self._root) if setting.key == key]
        if elsewhere:
            hint = f"; it belongs at {' or '.join(elsewhere)}"
        self.warnings.append(f"{self._source.place(path)}: unknown key, ignored{hint}")


def as_meant(source: ConfigSource, setting: Setting, value: object, path: KeyPath) -> object:
    """Return a value of `source`, as its original text if the key holds text.

    An empty text and null are an absent value if the key may be absent.
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
