"""JSON objects in v2's requests other than inference."""

from __future__ import annotations

from typing import Any

import orjson

from pipeline.frontends.v2.errors import V2Error, V2Status, invalid
from pipeline.proto.slices import SHORT_BYTES


def json_object(body: bytes, what: str, most_bytes: int = SHORT_BYTES) -> dict[str, Any]:
    """Return the object in the body of a request to do `what`; an empty body has no members.

    Raises V2Error, with Triton's words for invalid JSON; also for a body that is too large.
    """
    if len(body) > most_bytes:
        text = f"the {what} request has {len(body)} bytes, and {most_bytes} are allowed"
        raise V2Error(V2Status.TOO_LARGE, text)
    if not body.strip():
        return {}
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"failed to parse the {what} JSON buffer: {error}") from error
    if not isinstance(value, dict):
        raise invalid(f"the {what} request must be a JSON object")
    return value
