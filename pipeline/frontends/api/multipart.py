"""Forms: reads a `multipart/form-data` body as the fields of a request."""

from __future__ import annotations

import logging
import re
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from pipeline.errors import PackageError, TooLargeError
from pipeline.proto.plain_json import read_large_value, read_value
from pipeline.proto.slices import SHORT_BYTES, SLICE_BYTES, Limits, Piece, breathe, joined

_MAX_PARTS = 1000
_LONG_BYTES = 16 * 1024  # a longer file is not copied from the body
_FEW = 16
_ORDINARY_HEAD = re.compile(
    rb'Content-Disposition: form-data; name="([^"\\%\r\n]+)"(; filename="[^"\\\r\n]*")?'
    rb"(?:\r\nContent-Type: ([a-z0-9.+-]+/[a-z0-9.+-]+))?\r\n\r\n"
)
_PLAIN = ("", "7bit", "8bit", "binary")
_UNHEARD = logging.Logger(
    ""
)  # the parser would warn about each broken form, which is a client's fault
_UNHEARD.disabled = True


def fields_of_form(body: Piece, content_type: bytes, limits: Limits) -> dict[str, Any]:
    """Return the parts of a form by name, read in slices, so that others run between.

    A file (a part with a `filename`), and a part with a content type, is `bytes`; a part of type
    `application/json` is its value, any other part is text. Parts with one name become a list, in
    order. A long file may be a view of the body.

    Raises:
        PackageError: the form is broken or cut off, or a part does not fit its type.
        TooLargeError: it has too many parts.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise PackageError(
            "the content-type multipart/form-data has no boundary: leave the header to what makes "
            "the form, which sets it"
        )
    if (ordinary := _ordinary_parts(body, boundary)) is not None:
        return _by_name([_value(*part, limits) for part in ordinary])
    parts = _Parts()
    try:
        parser = MultipartParser(boundary, parts.callbacks())
        parser.logger = _UNHEARD
        for at in range(0, len(body), SLICE_BYTES):
            breathe()
            parser.write(bytes(body[at : at + SLICE_BYTES]))
    except FormParserError as error:
        raise PackageError(f"the form is broken: {error}") from None
    if not parts.has_ended:
        raise PackageError("the form is cut short: there is no end, a last line --boundary--")
    return _by_name(
        [
            _field(number, headers, b"".join(pieces), limits)
            for number, (headers, pieces) in enumerate(parts.found, 1)
        ]
    )


def without_views(value: Any) -> Any:
    """Return a file, or a list of files, of a form as bytes; any other value unchanged."""
    if isinstance(value, list):
        return [without_views(item) for item in value]
    return joined((value,)) if isinstance(value, memoryview) else value


def _by_name(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, list[Any]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


def _ordinary_parts(body: Piece, boundary: bytes) -> list[tuple[bytes, bytes, bool, Piece]] | None:
    """Return name, content type, whether it is a file, and content of each part of a form.

    None: the form differs from the usual ones, so the general parser has to read it, which takes
    ten times as long.
    """
    delimiter = b"\r\n--" + boundary
    at = len(delimiter)  # less two bytes before it, and two after it
    if body[:at] != delimiter[2:] + b"\r\n":
        return None
    parts: list[tuple[bytes, bytes, bool, Piece]] = []
    while len(parts) < _FEW:
        head = _ORDINARY_HEAD.match(body, at)
        end = -1 if head is None else _find(body, delimiter, head.end())
        if head is None or end < 0:
            return None
        name, filename, content_type = head.groups()
        content = body[head.end() : end]
        is_file = filename is not None
        if len(content) < _LONG_BYTES or not is_file:
            content = bytes(content)
        parts.append((name, content_type or b"", is_file, content))
        at = end + len(delimiter) + 2
        follows = body[at - 2 : at]
        if follows == b"--" and body[at:] in (b"", b"\r\n"):
            return parts
        if follows != b"\r\n":
            return None
    return None


def _find(body: Piece, sought: bytes, at: int) -> int:
    """Return the place of `wanted` from `at` on, as `bytes.find`, searching in slices."""
    if len(body) <= SHORT_BYTES and isinstance(body, bytes):
        return body.find(sought, at)
    for start in range(at, len(body), SLICE_BYTES):
        breathe()
        place = bytes(body[start : start + SLICE_BYTES + len(sought) - 1]).find(sought)
        if place >= 0:
            return start + place
    return -1


class _Parts:
    """The parts of a form, as the parser tells them.

    Attributes:
        found: (headers by their lower-case names, pieces of the content) of each.
        has_ended: the end of the form was there.
    """

    def __init__(self) -> None:
        self.found: list[tuple[dict[bytes, bytes], list[bytes]]] = []
        self.has_ended = False
        self._name = self._value = b""

    def callbacks(self) -> Any:
        """Return the parser's callbacks."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._add_to_name,
            "on_header_value": self._add_to_value,
            "on_header_end": self._end_header,
            "on_part_data": self._add_content,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        if len(self.found) == _MAX_PARTS:
            raise TooLargeError(f"the form has more than {_MAX_PARTS} parts")
        self.found.append(({}, []))

    def _add_to_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self.found[-1][0][self._name.lower()] = self._value
        self._name = self._value = b""

    def _add_content(self, data: bytes, start: int, end: int) -> None:
        self.found[-1][1].append(data[start:end])

    def _end(self) -> None:
        self.has_ended = True


def _field(
    number: int, headers: dict[bytes, bytes], content: bytes, limits: Limits
) -> tuple[str, Any]:
    """Return the name and the value of a part."""
    kind, options = parse_options_header(headers.get(b"content-disposition"))
    if kind != b"form-data" or b"name" not in options:
        raise PackageError(
            f"part {number} of the form has no name: begin it with "
            'Content-Disposition: form-data; name="..."'
        )
    named = options[b"name"]
    encoding = headers.get(b"content-transfer-encoding", b"").decode("latin-1").strip().lower()
    if encoding not in _PLAIN:
        what = f"the form's {_text_of(named)} has the transfer encoding {encoding!r}"
        raise PackageError(f"{what}: send its bytes unchanged")
    content_type, _ = parse_options_header(headers.get(b"content-type"))
    return _value(named, content_type, b"filename" in options, content, limits)


def _value(
    named: bytes, content_type: bytes, is_file: bool, content: Piece, limits: Limits
) -> tuple[str, Any]:
    """Return the name and the value of a part, by its declared type."""
    name = _text_of(named)
    if isinstance(content, memoryview):  # a file
        return name, content
    if content_type == b"application/json" and not is_file:
        what = f"the form's {name}"
        if len(content) <= SHORT_BYTES:
            return name, read_value(content, what)
        return name, read_large_value(content, limits, what)
    if is_file or content_type not in (b"", b"text/plain"):
        return name, content
    return name, _text(content, f"the form's {name}")


def _text_of(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _text(content: bytes, what: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        text = f"{what} is not UTF-8: {where}; send bytes as a file, with a filename"
        raise PackageError(text) from None
