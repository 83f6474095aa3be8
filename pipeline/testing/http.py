"""HttpReply: what a server answered over HTTP, and how tests ask it, also by the v2 protocol."""

from __future__ import annotations

import contextlib
import http.client
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from pipeline.errors import (
    InputError,
    NoServiceError,
    NotImplementedByOpError,
    OverloadedError,
    PackageError,
    PipelineError,
    UserCodeError,
    error_from_wire,
)
from pipeline.proto.v2.raw import array_to_raw, datatype_of, raw_to_array, with_text

JSON = "application/json"
LINES = "application/x-ndjson"
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class HttpReply:
    """An answer over HTTP.

    Attributes:
        status: of HTTP.
        headers: by their names in lower case.
        body: as it came.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode()

    def json(self) -> Any:
        """Return what the body says. Raises PackageError: it is no JSON."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            shown = self.body[:200]
            raise PackageError(f"HTTP {self.status}, and no JSON: {shown!r}: {error}") from None

    def raise_for_error(self) -> None:
        """Raise the PipelineError that the answer says, by its code; else if it is no 2xx."""
        is_json = self.headers.get("content-type", "").startswith(JSON)
        content = self.json() if is_json and self.body else None
        error = error_in(content)
        if error is not None:
            raise error
        if not 200 <= self.status < 300:
            raise PackageError(f"HTTP {self.status}: {self.body[:400].decode(errors='replace')}")


def error_in(content: object) -> PipelineError | None:
    """Return the error in an answer of any of our forms: pairs, plain JSON, v2; None for none."""
    if not isinstance(content, dict):
        return None
    member = content.get("error")
    if isinstance(member, dict) and isinstance(member.get("code"), int):
        error = error_from_wire(member["code"], str(member.get("message", "")))
        error.op = member.get("op")
        return error
    if isinstance(member, str):
        return error_of_v2(member) or PackageError(member)
    if content.get("err_no"):
        return error_from_wire(int(content["err_no"]), str(content.get("err_msg", "")))
    return None


def error_of_v2(text: str) -> PipelineError | None:
    """Return the product's error in an error's text of the v2 protocol: "[51] no words"."""
    match = re.search(r"\[(-?\d+)\] (.*)\Z", text, re.DOTALL)
    return None if match is None else error_from_wire(int(match[1]), match[2])


def ask(
    port: int, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> HttpReply:
    """Return what the server at `port` of this machine answers."""
    with _asked(port, method, path, body, headers) as response:
        return _reply(response)


def ask_for_lines(port: int, path: str, body: bytes) -> Iterator[Any]:
    """Yield the JSON objects of an answer that streams, each when it comes.

    Raises the PipelineError that is one of them, or that the server answers instead.
    """
    with _asked(port, "POST", path, body, {"content-type": JSON, "accept": LINES}) as response:
        if not response.getheader("content-type", "").startswith(LINES):
            _reply(response).raise_for_error()
        for line in response:
            value = orjson.loads(line)
            error = error_in(value)
            if error is not None:
                raise error
            yield value


@contextlib.contextmanager
def _asked(port: int, *request: Any) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request(*request)
        yield connection.getresponse()


def _reply(response: http.client.HTTPResponse) -> HttpReply:
    named = {name.lower(): value for name, value in response.getheaders()}
    return HttpReply(response.status, named, response.read())


# The v2 protocol --------------------------------------------------------------------------------


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
    body: dict[str, Any] = {"inputs": described, "parameters": {"binary_data_output": True}}
    if outputs is not None:
        body["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    head = orjson.dumps(body)
    return b"".join([head, *raws]), len(head)


def outputs_of(reply: HttpReply) -> dict[str, np.ndarray]:
    """Return the outputs in an answer by name; BYTES are text if they are UTF-8.

    Raises PipelineError: the error in it; a product's error has its code, other errors only their
    kind.
    """
    if reply.status != 200:
        text = str(reply.json().get("error", ""))
        kind = _BY_STATUS.get(reply.status, UserCodeError)
        raise error_of_v2(text) or kind(text)
    size = int(reply.headers.get(HEADER, len(reply.body)))
    at, outputs = size, {}
    for output in orjson.loads(reply.body[:size])["outputs"]:
        end = at + output["parameters"]["binary_data_size"]
        raw = reply.body[at:end]
        array = raw_to_array(output["datatype"], output["shape"], raw)
        outputs[output["name"]] = with_text(array)
        at = end
    return outputs
