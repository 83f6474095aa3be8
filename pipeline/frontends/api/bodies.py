"""Bodies of `/api` by their content type, as the fields of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from pipeline.engine.sequences.pairs import NAMES as SEQUENCE_NAMES
from pipeline.errors import PackageError, TooLargeError
from pipeline.frontends.api.multipart import fields_of_form
from pipeline.frontends.http.bodies import JSON, is_json, kind_of
from pipeline.frontends.http.routes import Body, HttpError
from pipeline.proto.plain_json import read_large_object, read_object
from pipeline.proto.slices import SHORT_BYTES, Limits
from pipeline.schema.bound import BoundSchema

MULTIPART = "multipart/form-data"
_TEXT = "text/plain"
_TEXT_KEY = "text"
_DATA = "application/octet-stream"
KEYS = {"image": "image", "audio": "audio", "video": "video"}
"""Keys of binary bodies, by the first part of their content type."""

TAKEN = (JSON, MULTIPART, "image/*", "audio/*", "video/*", _DATA, _TEXT)
"""Content types of bodies."""


def key_of(content_type: bytes) -> str:
    """Return the key of a body that is one value, its bytes; "" for other bodies."""
    kind = kind_of(content_type)
    return "data" if kind == _DATA else KEYS.get(kind.partition("/")[0], "")


def is_form(content_type: bytes) -> bool:
    """Return whether a body of this type is a form, which may have files."""
    return kind_of(content_type) == MULTIPART


def is_large(body: Body) -> bool:
    """Return whether a body is too large to read on the event loop."""
    return len(body) > SHORT_BYTES


def fields_of(
    body: Any,
    headers: Mapping[bytes, bytes],
    query: str,
    limits: Limits,
    schema: BoundSchema | None = None,
) -> dict[str, Any]:
    """Return the fields of a request; a large one is read in slices, so that others run between.

    A body that is one value has the key from `key=...` in the query, or by its type: `image`,
    `audio`, `video`, `text` or `data`. Text is read as JSON if `schema` has no `text`: browsers'
    fetch sends JSON as text by default. One value, and the files of a form, may be views of the
    body.

    Raises:
        PackageError: the body does not fit its content type.
        HttpError: 415: the content type is not supported.
    """
    content_type = headers.get(b"content-type", b"")
    if is_json(content_type):
        return object_of(body, content_type, limits)
    kind = kind_of(content_type)
    if kind == MULTIPART:
        return fields_of_form(body, content_type, limits)
    key = dict(parse_qsl(query)).get("key")
    if kind == _TEXT:
        if key is None and not takes_text(schema):
            return _object_in_text(body, content_type, limits)
        return {key or _TEXT_KEY: _text_of(body, content_type, limits)}
    if usual := key_of(content_type):
        return {key or usual: body}
    raise _unknown(kind)


def object_of(body: bytes, content_type: bytes, limits: Limits) -> dict[str, Any]:
    """Return the fields of a JSON body. Raises PackageError: it is not valid JSON."""
    try:
        return read_large_object(body, limits) if is_large(body) else read_object(body)
    except PackageError as error:
        if body[:16].isascii() or body.lstrip()[:1] in (b"{", b"["):
            raise
        named = kind_of(content_type)
        declared = f"as {named}" if named else "without a content-type"
        text = (
            f"{error}. It came {declared}, which is read as JSON, and begins as a file does: send "
            "its type, for a picture with curl -H 'content-type: image/png'"
        )
        raise PackageError(text) from None


def _object_in_text(body: bytes, content_type: bytes, limits: Limits) -> dict[str, Any]:
    try:
        return object_of(body, content_type, limits)
    except TooLargeError:
        raise
    except PackageError as error:
        raise PackageError(
            f"the request is {_TEXT}, of which the field {_TEXT_KEY!r} is made, and there is none "
            f"here; nor is it JSON: {error}. Send content-type: {JSON}"
        ) from None


def takes_text(schema: BoundSchema | None) -> bool:
    """Return whether a text/plain body, whose field is `text`, can fit a schema."""
    if schema is None:
        return True
    json_type, types = schema.json_schema()
    name = str(json_type.get("$ref", "")).rpartition("/")[2]
    described = types.get(name, json_type)
    return _TEXT_KEY in described.get("properties", ()) or "properties" not in described


def sequence_in(query: str) -> dict[str, str]:
    """Return the query's parameters of a sequence, as fields."""
    return {name: value for name, value in parse_qsl(query) if name in SEQUENCE_NAMES}


def _text_of(body: bytes, content_type: bytes, limits: Limits) -> str:
    if len(body) > limits.json_bytes:
        text = f"the request is larger than max_json_bytes ({limits.json_bytes} bytes)"
        raise TooLargeError(f"{text}: send it as {_DATA}")
    charset = content_type.decode("latin-1").lower().partition("charset=")[2]
    if charset.partition(";")[0].strip(" \t\"'") not in ("", "utf-8", "utf8", "us-ascii"):
        raise HttpError(415, PackageError("text is taken in UTF-8: send charset=utf-8 or none"))
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        text = f"the request is not UTF-8: {error.reason} at byte {error.start}; or send {_DATA}"
        raise PackageError(text) from None


def _unknown(kind: str) -> HttpError:
    mend = f"send {', '.join(TAKEN[:-1])} or {TAKEN[-1]}"
    return HttpError(415, PackageError(f"the content-type {kind[:100]!r} is not taken: {mend}"))
