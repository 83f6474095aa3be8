"""LogSettings: shows and changes a server's log settings by the v2 protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pipeline.frontends.v2.errors import V2Error, V2Status, invalid
from pipeline.observe.logs.setup import log_switches, switch_logs

_NO_FILE = "log file location can not be updated through network protocol"
_SWITCHES = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
_VERBOSE, _FORMAT, _FILE = "log_verbose_level", "log_format", "log_file"
_FORMATS = ("default", "ISO8601")
_MOST = 2**31 - 1


class LogSettings:
    """The settings of one server; the levels apply to all logs of its process.

    The format has no effect: our lines have one form.

    Args:
        file: of the log; "": none. It is read-only.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._format = _FORMATS[0]

    def shown(self) -> dict[str, bool | int | str]:
        """Return all settings, in the words of the protocol."""
        now = log_switches()
        switches = {name: getattr(now, field) for name, field in _SWITCHES.items()}
        settings = {_VERBOSE: now.verbose, _FORMAT: self._format}
        return {_FILE: self._file, **switches, **settings}

    def change(self, values: Mapping[str, Any]) -> None:
        """Change settings; None leaves a setting unchanged, and unknown ones are ignored.

        Raises V2Error, in Triton's words, before anything is changed.
        """
        set_values = {name: value for name, value in values.items() if value is not None}
        if _FILE in set_values:
            raise V2Error(V2Status.UNSUPPORTED, _NO_FILE)
        changes = {}
        for name, field in _SWITCHES.items():
            if name in set_values:
                _check(name, set_values[name], bool, "boolean")
                changes[field] = set_values[name]
        if _VERBOSE in set_values:
            _check(_VERBOSE, set_values[_VERBOSE], int, "int32")
            changes["verbose"] = set_values[_VERBOSE]
        if _FORMAT in set_values:
            _check(_FORMAT, set_values[_FORMAT], str, "string")
            if set_values[_FORMAT] not in _FORMATS:
                raise invalid(f"invalid argument for log_format, got: {set_values[_FORMAT]}")
            self._format = set_values[_FORMAT]
        switch_logs(msgspec.structs.replace(log_switches(), **changes))


def settings_of_message(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a message; None: a setting without a value."""
    changes = {}
    for name, value in settings.items():
        kind = value.WhichOneof("parameter_choice")
        changes[name] = None if kind is None else getattr(value, kind)
    return changes


def _check(name: str, value: object, kind: type, word: str) -> None:
    is_kind = type(value) is kind
    if not is_kind or (isinstance(value, int) and not 0 <= value <= _MOST):
        raise invalid(f"expect {word} for '{name}'")
