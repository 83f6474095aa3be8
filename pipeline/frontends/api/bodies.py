"""Bodies of `/api` by their content type, as the fields of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import PackageError
from pipeline.frontends.http.routes import HttpError
from pipeline.proto.plain_json import read_large_object, read_object
from pipeline.proto.slices import SHORT_BYTES, Limits

_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"  # what curl says of all that it is given


def is_large(body: bytes) -> bool:
    """Return whether a body is too large to be read on the event loop."""
    return len(body) > SHORT_BYTES


def is_json(content_type: bytes) -> bool:
    """Return whether a body of this type is JSON: b"", for none, too."""
    kind = _kind_of(content_type)
    return kind in ("", _JSON) or kind.endswith("+json")


def fields_of(
    body: bytes, headers: Mapping[bytes, bytes], query: str, limits: Limits
) -> dict[str, Any]:
    """Return the fields of a request; large ones in slices between which others run.

    Raises:
        PackageError: the body is not what its content type says.
        HttpError: 415: there is nothing to be made of that type.
    """
    content_type = headers.get(b"content-type", b"")
    if is_json(content_type):
        return read_large_object(body, limits) if is_large(body) else read_object(body)
    raise _unknown(_kind_of(content_type))


def _kind_of(content_type: bytes) -> str:
    return content_type.decode("latin-1").partition(";")[0].strip(" \t").lower()


def _unknown(kind: str) -> HttpError:
    mend = "send application/json"
    if kind == _FORM:
        mend += " (curl: -H 'content-type: application/json')"
    return HttpError(415, PackageError(f"the content-type {kind[:100]!r} is not taken: {mend}"))
