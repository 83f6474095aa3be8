"""HttpReply: what a server answered over HTTP, and how it is asked by tests."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from pipeline.errors import PackageError, PipelineError, error_from_wire

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
        said = self.json() if is_json and self.body else None
        error = error_in(said)
        if error is not None:
            raise error
        if not 200 <= self.status < 300:
            raise PackageError(f"HTTP {self.status}: {self.body[:400].decode(errors='replace')}")


def error_in(said: object) -> PipelineError | None:
    """Return the error in an answer of any of our forms: pairs, plain JSON, v2; None for none."""
    if not isinstance(said, dict):
        return None
    told = said.get("error")
    if isinstance(told, dict) and isinstance(told.get("code"), int):
        error = error_from_wire(told["code"], str(told.get("message", "")))
        error.op = told.get("op")
        return error
    if isinstance(told, str):
        return error_of_v2(told) or PackageError(told)
    if said.get("err_no"):
        return error_from_wire(int(said["err_no"]), str(said.get("err_msg", "")))
    return None


def error_of_v2(text: str) -> PipelineError | None:
    """Return the product's error in an error's text of the v2 protocol: "[51] no words"."""
    found = re.search(r"\[(-?\d+)\] (.*)\Z", text, re.DOTALL)
    return None if found is None else error_from_wire(int(found[1]), found[2])


def ask(
    port: int, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> HttpReply:
    """Return what the server at `port` of this machine answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        named = {name.lower(): value for name, value in response.getheaders()}
        return HttpReply(response.status, named, response.read())
    finally:
        connection.close()


def ask_for_lines(port: int, path: str, body: bytes) -> Iterator[Any]:
    """Yield the JSON objects of an answer that streams, each when it comes.

    Raises the PipelineError that is one of them, or that the server answers instead.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", path, body, {"content-type": JSON, "accept": LINES})
        response = connection.getresponse()
        if not response.getheader("content-type", "").startswith(LINES):
            named = {name.lower(): value for name, value in response.getheaders()}
            HttpReply(response.status, named, response.read()).raise_for_error()
        for line in response:
            said = orjson.loads(line)
            error = error_in(said)
            if error is not None:
                raise error
            yield said
    finally:
        connection.close()
