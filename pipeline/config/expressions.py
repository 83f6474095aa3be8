"""Expressions in values of config.yml: `${NAME}`, `${NAME:-default}`, `${file:PATH}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

MAX_FILE_BYTES = 64 * 1024
"""Largest file that an expression may name: what it is for are passwords and keys."""

_EXPRESSION = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE = "file:"
_DEFAULT = ":-"


class ExpressionError(ValueError):
    """An expression stands for nothing. The text has the expression, and what to do."""


class Expanded(NamedTuple):
    """A value with the text in place of its expressions; secret: some came from files."""

    text: str
    is_secret: bool


class Expressions:
    """The meaning of expressions: an environment, and the folder of files that are named."""

    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        self._environ = environ
        self._folder = folder

    def expand(self, text: str) -> Expanded | None:
        """Return a value with its expressions replaced; None: there are none, not even `$${`.

        What they are replaced by is not looked at again. Raises ExpressionError.
        """
        if "${" not in text:
            return None
        is_secret = False

        def replacement(match: re.Match[str]) -> str:
            nonlocal is_secret
            if match[0] == "$${":
                return "${"
            if match[1] is None:
                raise ExpressionError("${ without its }: write $${ for these two characters")
            name, has_default, default = match[1].partition(_DEFAULT)
            if name.startswith(_FILE):
                is_secret = True
                return self._file(name.removeprefix(_FILE), default if has_default else None)
            return self._variable(name, default if has_default else None)

        return Expanded(_EXPRESSION.sub(replacement, text), is_secret)

    def _variable(self, name: str, default: str | None) -> str:
        if not _NAME.fullmatch(name):
            raise ExpressionError(
                f"${{{name}}}: expected the name of an environment variable or file:PATH; write "
                "$${ for these two characters themselves"
            )
        value = self._environ.get(name)
        if default is not None:
            value = value or default
        if value is None:
            raise ExpressionError(
                f"${{{name}}}: the environment variable {name} is not set; set it, or give a "
                f"default: ${{{name}{_DEFAULT}...}}"
            )
        if not is_text(value):
            raise ExpressionError(f"${{{name}}}: the environment variable is no text in UTF-8")
        return value

    def _file(self, path: str, default: str | None) -> str:
        """Return a file's text without the ends of lines behind it."""
        place = f"${{{_FILE}{path}}}"
        try:
            file = self._folder / path
            if not file.exists() and default is not None:
                return default
            if file.exists() and not file.is_file():  # a pipe would be waited for
                raise ExpressionError(f"{place}: it is no file")
            with file.open("rb") as opened:
                data = opened.read(MAX_FILE_BYTES + 1)
            text = data.decode()
        except UnicodeDecodeError:
            raise ExpressionError(f"{place}: the file is no text in UTF-8") from None
        except (OSError, ValueError) as error:
            if isinstance(error, ExpressionError):
                raise
            reason = getattr(error, "strerror", None) or error
            raise ExpressionError(f"{place}: {reason}") from None
        if len(data) > MAX_FILE_BYTES:
            raise ExpressionError(f"{place}: the file is larger than {MAX_FILE_BYTES} bytes")
        return text.rstrip("\r\n")


def is_text(value: str) -> bool:
    """Return whether a value of the environment or a command line was UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:  # Python has put stand-ins for the other bytes
        return False
    return True
