"""Requests that are about shared memory of callers, as HTTP and gRPC bring them."""

from __future__ import annotations

from pipeline.frontends.v2.errors import V2Error, V2Status
from pipeline.frontends.v2.json_objects import json_object
from pipeline.frontends.v2.shared_regions import Region

_LACKS = "Shared memory register request has no '{}' field"
_NO_NAME = "'region name' is necessary to register system shared memory region"


def region_of_json(name: str, body: bytes) -> Region:
    """Return the region that is to be registered. Raises V2Error, in Triton's words."""
    if not name:
        raise V2Error(V2Status.INVALID, _NO_NAME)
    said = json_object(body, "register")
    for field in ("key", "byte_size"):
        if field not in said:
            raise V2Error(V2Status.INVALID, _LACKS.format(field))
    key, offset, size = said["key"], said.get("offset", 0), said["byte_size"]
    if not isinstance(key, str):
        raise V2Error(V2Status.INVALID, "attempt to access JSON non-string as string: 'key'")
    for field, value in (("offset", offset), ("byte_size", size)):
        if type(value) is not int or value < 0:
            unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer"
            raise V2Error(V2Status.INVALID, f"{unsigned}: '{field}'")
    return Region(name, key, offset, size)


def no_cuda(name: str, is_new: bool) -> V2Error:
    """Return why memory of cards is neither registered nor unregistered."""
    what = "register" if is_new else "unregister"
    text = f"failed to {what} CUDA shared memory region: '{name}', GPUs not supported"
    return V2Error(V2Status.INVALID, text)


def no_cuda_region(name: str) -> V2Error:
    """Return why there is nothing to say of memory of cards."""
    text = f"Unable to find cuda shared memory region: '{name}'"
    return V2Error(V2Status.NOT_FOUND, text)
