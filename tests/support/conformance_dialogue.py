"""The parts of a conformance case: a dialogue over a bare socket, and the expected answers."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, NoReturn

from raw_http import Answer, Connection, request

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
BAD_PACKAGE = 8000  # what a caller did wrong
_DATA_IDS = re.compile(r"(data_id=|\[does\||batch: \[)\d+")


# Expected answers -------------------------------------------------------------------------


@dataclass(frozen=True)
class ErrorBody:
    """The body of an error: a Response without results.

    `text` is all of `err_msg`, or a part of it where a parser writes the text: a gateway without
    a door to ask has another parser.
    """

    err_no: int
    text: str
    is_parsers: bool = False


@dataclass(frozen=True)
class Holding:
    """A body other than JSON that contains this text."""

    part: str


@dataclass(frozen=True)
class Expected:
    """One answer: status, the headers that matter and the body.

    Of these headers an answer has exactly the ones that are named here. `connection` is None where
    it depends on how the request came in pieces.
    """

    status: int
    body: Any  # parsed JSON, Told or Holding; None for an answer without
    content_type: str = JSON
    allow: str = ""
    retry_after: str = ""
    connection: str | None = ""
    to: str = "POST"


class Step(Enum):
    """The other steps of a dialogue."""

    END = auto()  # the connection is hung up
    CONTINUE = auto()  # the server asks the caller to send its body
    HANG_UP = auto()  # the caller has nothing more to send


END, CONTINUE, HANG_UP = Step

Dialogue = tuple[bytes | Expected | Step, ...]


class Place(Enum):
    """The server of a dialogue."""

    DOOR = "the server's own door"
    GATEWAY = "a gateway"
    GRPC_ONLY = "a gateway that does not know the HTTP port"
    OWN = "the gateway of the server itself"


@dataclass(frozen=True)
class Case:
    """One case: the dialogue with the server's own door, and with a gateway before it.

    Attributes:
        gateway: the dialogue with a gateway where it differs; `why` has the reason.
        grpc_only: the dialogue with a gateway that knows no HTTP port of the server, where it
            differs.
        own: the dialogue with the gateway of a server with `http_server: gateway`, where it
            differs from the one with a separate gateway.
    """

    name: str
    door: Dialogue
    gateway: Dialogue | None = None
    grpc_only: Dialogue | None = None
    own: Dialogue | None = None
    why: str = ""

    def dialogue_at(self, place: Place) -> Dialogue:
        dialogues = {
            Place.DOOR: self.door,
            Place.GRPC_ONLY: self.grpc_only or self.gateway,
            Place.OWN: self.own or self.gateway,
        }
        return dialogues.get(place, self.gateway) or self.door


# Words for tables ---------------------------------------------------------------------------

EMPTY = {"err_no": 0, "err_msg": "", "key": [], "value": [], "tensors": []}
EMPTY_TENSOR = {
    "int64_data": [], "float_data": [], "int_data": [], "float64_data": [], "uint32_data": [],
    "bool_data": [], "complex64_data": [], "complex128_data": [], "str_data": [], "byte_data": "",
    "elem_type": 0, "shape": [], "lod": [], "name": "",
}  # fmt: skip


def ask(body: bytes | str = b"", *headers: str, path: str = "/conf/echo", **more: Any) -> bytes:
    """A request to the server of the table, as it is on the wire; see `raw_http.request`."""
    data = body.encode() if isinstance(body, str) else body
    return request(data, *headers, path=path, **more)


def line(text: str, *headers: str, body: bytes = b"") -> bytes:
    """A request from its first line; no header is added."""
    return "\r\n".join([text, *headers, "", ""]).encode("latin-1") + body


def answers(**fields: Any) -> Expected:
    """A Response with these fields."""
    return Expected(200, {**EMPTY, **fields})


def and_close(expected: Expected) -> Expected:
    """The same answer on a connection that ends with it."""
    return replace(expected, connection="close")


def fail(err_no: int, text: str, status: int = 200, **headers: Any) -> Expected:
    """An error with a text of our own."""
    return Expected(status, ErrorBody(err_no, text), **headers)


def refused(part: str, status: int = 400, **headers: Any) -> Expected:
    """A refusal in the words of a parser; `part` is in the text of the door's parser."""
    return Expected(status, ErrorBody(BAD_PACKAGE, part, is_parsers=True), **headers)


def simple(name: str, raw: bytes, expected: Expected, **more: Any) -> Case:
    """One request, one answer."""
    return Case(name, (raw, expected), **more)


def different(
    name: str, raw: bytes, door: Expected, gateway: Expected, why: str, **more: Any
) -> Case:
    """One request, and two answers."""
    return Case(name, _whole(raw, door), gateway=_whole(raw, gateway), why=why, **more)


def _whole(raw: bytes, expected: Expected) -> Dialogue:
    return (raw, expected, END) if expected.connection == "close" else (raw, expected)


# Running a dialogue -------------------------------------------------------------------------


def run_dialogue(port: int, dialogue: Dialogue, is_loose: bool = False) -> list[Any]:
    """Hold a conversation with the server at `port`; every answer has to be as expected.

    Args:
        is_loose: accept any text of a parser, and additions to our own texts.

    Returns:
        the answers, in a form in which two dialogues can be compared.
    """
    received: list[Any] = []
    with Connection(port) as connection:
        for step in dialogue:
            if isinstance(step, bytes):
                connection.send(step)
            elif isinstance(step, Expected):
                answer = connection.answer(step.to)
                received.append(normal(answer))
                _check(answer, step, is_loose)
            elif step is HANG_UP:
                connection.end_sending()
            elif step is END:
                assert connection.is_at_end(), "the connection stays open"
            else:
                assert connection.line() == b"HTTP/1.1 100 Continue\r\n"
                while connection.line() != b"\r\n":
                    pass
    return received


def normal(answer: Answer) -> Any:
    """Return an answer without its accidental parts, also without the end of the connection."""
    headers = _headers(answer, (*_OF_THE_TABLE[:-1], *_OF_SITES))
    return answer.status, headers, _unnumbered(parsed(answer))


def parsed(answer: Answer) -> Any:
    """The body: of JSON the values, of other types the text.

    A number is a double, however it is written: 1 is 1.0, -0 is -0.0, and of more digits than a
    double has the last may be anything.
    """
    if answer.headers.get("content-type") != JSON or not answer.body:
        return answer.body.decode("utf-8", "backslashreplace")
    return json.loads(answer.body.decode(), parse_int=float, parse_constant=_refuse)


def _refuse(text: str) -> NoReturn:
    raise AssertionError(f"{text} is not JSON")


def same(one: Any, other: Any) -> bool:
    """Whether two values of JSON are the same: True is not 1, and -0.0 is not 0.0."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


def _unnumbered(body: Any) -> Any:
    """Remove the numbers of requests from a text."""
    if isinstance(body, dict) and isinstance(body.get("err_msg"), str):
        return {**body, "err_msg": _DATA_IDS.sub(r"\1N", body["err_msg"])}
    return body


_OF_THE_TABLE = ("content-type", "allow", "retry-after", "connection")
_OF_SITES = (
    "cache-control", "content-encoding", "content-security-policy", "etag", "location",
    "inference-header-content-length", "referrer-policy", "x-content-type-options",
)  # fmt: skip


def _headers(answer: Answer, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(answer.headers.get(name, "") for name in names)


def _check(answer: Answer, expected: Expected, is_loose: bool) -> None:
    assert answer.status == expected.status, answer
    wanted = (expected.content_type, expected.allow, expected.retry_after)
    *headers, connection = _headers(answer, _OF_THE_TABLE)
    assert tuple(headers) == wanted, answer
    assert expected.connection in (None, connection.lower()), answer
    body = _unnumbered(parsed(answer))
    if expected.body is None:
        assert body == "", answer
    elif isinstance(expected.body, Holding):
        assert expected.body.part in body, answer
    elif isinstance(expected.body, ErrorBody):
        _check_error(body, expected.body, is_loose)
    else:
        assert same(body, expected.body), (body, expected.body)


def _check_error(body: Any, wanted: ErrorBody, is_loose: bool) -> None:
    assert body == {**EMPTY, "err_no": wanted.err_no, "err_msg": body.get("err_msg")}, body
    text = body["err_msg"]
    if wanted.is_parsers:
        assert wanted.text in text or (is_loose and text), body
    else:
        assert text == wanted.text or (is_loose and text.startswith(f"{wanted.text}. ")), body
