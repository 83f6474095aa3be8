"""Requests and answers of the v2 protocol over HTTP, with raw tensors, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from pipeline.errors import (
    InputError,
    NoServiceError,
    NotImplementedByOpError,
    OverloadedError,
    PipelineError,
    UserCodeError,
)
from pipeline.proto.v2.raw import array_to_raw, datatype_of, raw_to_array, with_text
from pipeline.testing.http import HttpReply, error_of_v2

HEADER = "inference-header-content-length"
_KINDS: tuple[type[PipelineError], ...] = (
    InputError,
    NoServiceError,
    NotImplementedByOpError,
    OverloadedError,
)
_BY_STATUS = {kind.http_status: kind for kind in _KINDS}


def infer_body(inputs: Mapping[str, Any], outputs: Sequence[str] | None) -> tuple[bytes, int]:
    """Return a request's body, and how much of it is its JSON."""
    described, raws = [], []
    for name, value in inputs.items():
        array = np.asarray(value)
        raw = array_to_raw(array)
        raws.append(raw)
        described.append(
            {
                "name": name,
                "shape": array.shape,
                "datatype": datatype_of(array.dtype),
                "parameters": {"binary_data_size": len(raw)},
            }
        )
    said: dict[str, Any] = {"inputs": described, "parameters": {"binary_data_output": True}}
    if outputs is not None:
        said["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    head = orjson.dumps(said)
    return b"".join([head, *raws]), len(head)


def outputs_of(reply: HttpReply) -> dict[str, np.ndarray]:
    """Return the outputs in an answer by name; BYTES are text where they are UTF-8.

    Raises PipelineError: the error in it, with the code of a product's; of all others only the
    kind is told.
    """
    if reply.status != 200:
        text = str(reply.json().get("error", ""))
        kind = _BY_STATUS.get(reply.status, UserCodeError)
        raise error_of_v2(text) or kind(text)
    size = int(reply.headers.get(HEADER, len(reply.body)))
    at, found = size, {}
    for output in orjson.loads(reply.body[:size])["outputs"]:
        end = at + output["parameters"]["binary_data_size"]
        raw = reply.body[at:end]
        array = raw_to_array(output["datatype"], output["shape"], raw)
        found[output["name"]] = with_text(array)
        at = end
    return found
