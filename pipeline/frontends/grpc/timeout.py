"""How gRPC writes the time that a caller gives: in a header, as `100m`."""

from __future__ import annotations

from pipeline.errors import PackageError

_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MOST_DIGITS = 8  # as gRPC over HTTP/2 says


def seconds_of(value: str, header: str) -> float:
    """`100m` -> 0.1: digits and a unit; spaces and tabs around them do not count.

    Raises:
        PackageError: it is something else; the text names the header.
    """
    text = value.strip(" \t")
    digits, unit = text[:-1], text[-1:]
    if not (
        digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS and unit in _UNITS_S
    ):
        raise PackageError(f"invalid {header} {text!r}: send digits and one of H M S m u n")
    return int(digits) * _UNITS_S[unit]
