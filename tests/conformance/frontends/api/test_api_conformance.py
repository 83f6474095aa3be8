"""`/api` answers the same in the lane, without it, and through the gateway."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from plain_api import OP, PICTURE, Speaks, plain_server
from raw_http import Answer, Connection, request

from pipeline.frontends.http.server import HttpFrontend

JSON = "Content-Type: application/json"
EVENTS, LINES = "Accept: text/event-stream", "Accept: application/x-ndjson"
OF_THE_OP = ("a product's error", "an Op's error", "an error before events")
PLACES = ("lane", "routes", "gateway")


@dataclass(frozen=True)
class Case:
    """A request and its answer: of an error, its code, its name and a part of its message."""

    name: str
    body: bytes
    status: int
    answer: Any
    headers: tuple[str, ...] = (JSON,)
    path: str = "/api/plain"
    method: str = "POST"
    content_type: str = "application/json"


def ok(name: str, fields: Any, answer: Any, **more: Any) -> Case:
    return Case(name, json.dumps(fields).encode(), 200, answer, **more)


def bad(name: str, body: bytes, status: int, code: int, kind: str, text: str, **more: Any) -> Case:
    return Case(name, body, status, (code, kind, text), **more)


def package(name: str, body: bytes, text: str, status: int = 400, **more: Any) -> Case:
    return bad(name, body, status, 8000, "RPC_PACKAGE_ERROR", text, **more)


FIELDS = {"x": [0.5, 2, -3], "t": "ü", "n": None, "b": [True, {"a": {}}], "i": 2**70, "": []}
LARGE = {"x": [n / 7 for n in range(20_000)], "t": "y"}
CASES = (
    ok("fields", FIELDS, FIELDS),
    ok("no fields", {}, {}),
    ok("no content type", FIELDS, FIELDS, headers=()),
    ok("json of a kind", FIELDS, FIELDS, headers=("Content-Type: application/ld+json; q=1",)),
    ok("large", LARGE, LARGE),
    ok("types", {"do": "types", "a": 1, "b": 1.0, "c": None, "d": [], "e": {}},
       {"do": "str", "a": "int", "b": "float", "c": "NoneType", "d": "list", "e": "dict"}),
    ok("an array", {"do": "array"},
       {"x": [[0.0, 0.25, 0.5], [0.75, 1.0, 1.25]], "bytes": "YWJj"}),
    ok("a large array", {"do": "large"}, {"x": [n / 7 for n in range(30_000)]}),
    ok("not a number", {"do": "nan"}, {"x": [1.0, None], "y": None}),
    ok("a picture", {"do": "picture"}, PICTURE, content_type="image/png"),
    ok("one answer as events", {"x": 1}, b'data: {"x":1}\n\nevent: end\ndata: {}\n\n',
       headers=(JSON, EVENTS), content_type="text/event-stream"),
    ok("one answer as lines", {"x": 1}, b'{"x":1}\n', headers=(JSON, LINES),
       content_type="application/x-ndjson"),
    ok("the path is decoded", FIELDS, FIELDS, path="/api/pl%61in"),
    bad("a product's error", b'{"do": "product"}', 400, 51, "PRODUCT_ERROR", "no face"),
    bad("an Op's error", b'{"do": "raise"}', 500, 10000, "UNKNOWN", "ValueError: of the user"),
    bad("an error before events", b'{"do": "product"}', 400, 51, "PRODUCT_ERROR", "no face",
        headers=(JSON, EVENTS)),
    bad("no form", b'{"do": "object"}', 500, 7000, "TYPE_ERROR",
        "the answer's x[0].a is of type object, which has no form in JSON"),
    bad("another pipeline", b"{}", 404, 3002, "NO_SERVICE",
        "there is no pipeline 'other' here: POST /api/plain", path="/api/other"),
    bad("an Op alone", b"{}", 404, 3002, "NO_SERVICE", "no pipeline 'does'", path="/api/does"),
    bad("a longer path", b"{}", 404, 3002, "NO_SERVICE",
        "no such path: /api/plain/x; POST /api/plain", path="/api/plain/x"),
    bad("the path alone", b"{}", 404, 3002, "NO_SERVICE", "no such path: /api", path="/api"),
    bad("a GET", b"", 405, 3000, "NOT_IMPLEMENTED", "use POST", method="GET", headers=()),
    package("an empty body", b"", "the request is empty: send a JSON object like"),
    package("no object", b"[1]", "must be a JSON object like {\"x\": [0.1, 0.2]}, not a list"),
    package("no JSON", b'{"a": ', "the request is not JSON: Expecting value"),
    package("no UTF-8", b'{"a": "\xff"}', "the request is not UTF-8"),
    package("not a number comes", b'{"a": [{"b": NaN}]}', "the request's a[0].b is NaN"),
    package("a huge number", b'{"a": 1e999}', "the request's a is a number beyond the range"),
    package("a key twice", b'{"a": 1, "a": 2}', "has the key 'a' twice in one object"),
    package("deep nesting", b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
    package("deep nesting, large", b'{"a": ' + b"[" * 50_000, "nested too deeply"),
    package("a form", b"a=1", "the request is not JSON",
            headers=("Content-Type: application/x-www-form-urlencoded",)),
    package("an unknown type", b"<a/>", "the content-type 'application/xml' is not taken", 415,
            headers=("Content-Type: application/xml",)),
    package("an unknown packing", b"{}", "unsupported content-encoding", 415,
            headers=(JSON, "Content-Encoding: br")),
    package("broken packing", b"{}", "the body is not valid gzip",
            headers=(JSON, "Content-Encoding: gzip")),
    package("too large", b" " * (2**20 + 1), "larger than max_message_bytes", 413),
)  # fmt: skip


def form(*parts: tuple[str, bytes]) -> bytes:
    """A form of parts, each with what its head says."""
    pieces = [
        b"--b0\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (head.encode(), content)
        for head, content in parts
    ]
    return b"".join(pieces) + b"--b0--\r\n"


def typed(kind: str) -> tuple[str]:
    return (f"Content-Type: {kind}",)


FORM = typed("multipart/form-data; boundary=b0")
BYTES = bytes(range(256)) * 400
OTHER_BODIES = (
    Case("a picture in, a picture out", BYTES, 200, BYTES, typed("image/png"),
         path="/api/plain?key=picture", content_type="image/png"),
    Case("what curl says", b'{"a": 1}', 200, {"a": 1}, typed("application/x-www-form-urlencoded")),
    Case("bytes", b"\xff\0", 200, {"data": "/wA="}, typed("application/octet-stream")),
    Case("an image", b"\xff\0", 200, {"image": "/wA="}, typed("image/jpeg")),
    Case("a sound", b"\xff\0", 200, {"audio": "/wA="}, typed("audio/wav")),
    Case("a film", b"\xff\0", 200, {"video": "/wA="}, typed("Video/mp4; x=y")),
    Case("text", "ü\n".encode(), 200, {"text": "ü\n"}, typed("text/plain; charset=UTF-8")),
    Case("a key", b"a", 200, {"my key": "a"}, typed("text/plain"), path="/api/plain?key=my%20key"),
    Case("a form",
         form(('name="a"', b"1"), ('name="b"; filename="x.png"', b"\xff\0"),
              ('name="c"\r\nContent-Type: application/json', b'{"x": [1, null]}'),
              ('name="d"\r\nContent-Type: image/png', b"\xff"),
              ('name="a"', "ü".encode()), ('name="\u00fc"', b"")),
         200,
         {"a": ["1", "ü"], "b": "/wA=", "c": {"x": [1, None]}, "d": "/w==", "ü": ""}, FORM),
    Case("a large form", form(('name="a"; filename="x"', b"\r\n--b1 --\r" * 20_000)), 200,
         {"a": base64.b64encode(b"\r\n--b1 --\r" * 20_000).decode()}, FORM),
    Case("an empty form", b"--b0--\r\n", 200, {}, FORM),
    package("text that is not UTF-8", b"\xff", "not UTF-8: invalid start byte at byte 0; or send "
            "application/octet-stream", headers=typed("text/plain")),
    package("text of another charset", b"a", "send charset=utf-8 or none", 415,
            headers=typed("text/plain; charset=latin-1")),
    package("no boundary", form(), "has no boundary: leave the header",
            headers=typed("multipart/form-data")),
    package("another boundary", form(('name="a"', b"1")), "the form is broken",
            headers=typed("multipart/form-data; boundary=other")),
    package("a form that is cut short", form(('name="a"', b"1"))[:-8], "the form is cut short",
            headers=FORM),
    package("a form of nothing", b"", "the form is cut short", headers=FORM),
    package("a part without a name", form(("x=y", b"1")), "part 1 of the form has no name",
            headers=FORM),
    package("a part that is not UTF-8", form(('name="a"', b"\xff")), "the form's a is not UTF-8",
            headers=FORM),
    package("a part that is no JSON",
            form(('name="a"\r\nContent-Type: application/json', b'{"b": [NaN]}')),
            "the form's a's b[0] is NaN", headers=FORM),
    package("a part in base64", form(('name="a"\r\nContent-Transfer-Encoding: base64', b"YQ==")),
            "the transfer encoding 'base64': send its bytes unchanged", headers=FORM),
    package("too many parts", form(*[('name="a"', b"")] * 1001), "more than 1000 parts", 413,
            headers=FORM),
)  # fmt: skip


@contextlib.contextmanager
def without_lane() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HttpFrontend, "pipeline_has_lane", False)
        yield


@pytest.fixture(scope="module")
def ports(gateway_binary: Path, module_logs: None) -> Iterator[dict[str, int]]:
    limits = {"max_message_bytes": 2**20}
    with contextlib.ExitStack() as stack:
        with without_lane():
            routes = stack.enter_context(plain_server(**limits))
        lane = stack.enter_context(plain_server(**limits))
        gateway = stack.enter_context(plain_server(edge="gateway", **limits))
        result = {"lane": lane, "routes": routes, "gateway": gateway}
        yield {name: server.http_port for name, server in result.items()}


def answer_of(port: int, case: Case) -> Answer:
    with Connection(port) as connection:
        raw = request(case.body, *case.headers, path=case.path, method=case.method)
        connection.send(raw)
        return connection.answer(case.method)


@pytest.mark.parametrize("case", [*CASES, *OTHER_BODIES], ids=lambda case: case.name)
@pytest.mark.parametrize("place", PLACES)
def test_all_places_answer_as_in_the_table(ports: dict[str, int], place: str, case: Case):
    answer = answer_of(ports[place], case)
    assert (answer.status, answer.headers["content-type"]) == (case.status, case.content_type)
    if isinstance(case.answer, bytes):
        assert answer.body == case.answer
    elif isinstance(case.answer, tuple):
        code, name, text = case.answer
        error = answer.json.pop("error")
        assert error.keys() == {"code", "name", "message", "op"}
        assert (error["code"], error["name"]) == (code, name)
        assert error["op"] == (OP if case.name in OF_THE_OP else None)
        assert text in error["message"]
    else:
        assert answer.json == case.answer


@pytest.fixture(scope="module")
def speaking(gateway_binary: Path, module_logs: None) -> Iterator[dict[str, int]]:
    with (
        plain_server(Speaks()) as door,
        plain_server(Speaks(), edge="gateway") as gateway,
    ):
        yield {"door": door.http_port, "gateway": gateway.http_port}


@pytest.mark.parametrize("place", ["door", "gateway"])
class TestStreams:
    def test_parts_are_events(self, speaking: dict[str, int], place: str):
        answer = answer_of(speaking[place], ok("", {"n": 2}, None, headers=(JSON, EVENTS)))
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.body == (b'data: {"at":0}\n\ndata: {"at":1}\n\nevent: end\ndata: {}\n\n')

    def test_parts_are_lines(self, speaking: dict[str, int], place: str):
        answer = answer_of(speaking[place], ok("", {"n": 3}, None, headers=(JSON, LINES)))
        assert [json.loads(line) for line in answer.body.splitlines()] == [
            {"at": 0}, {"at": 1}, {"at": 2},
        ]  # fmt: skip

    def test_an_error_after_parts_is_the_last_event(self, speaking: dict[str, int], place: str):
        case = ok("", {"n": 2, "fails_at": 1}, None, headers=(JSON, EVENTS))
        answer = answer_of(speaking[place], case)
        assert answer.status == 200
        part, error, rest = answer.body.split(b"\n\n")
        assert (part, rest) == (b'data: {"at":0}', b"")
        assert error.startswith(b'event: error\ndata: {"error":{"code":52,"name":"PRODUCT_ERROR"')
        assert error.endswith(b'"op":"does"}}')

    def test_an_error_before_the_first_part_has_its_status(self, speaking, place: str):
        case = ok("", {"n": 2, "fails_at": 0}, None, headers=(JSON, EVENTS))
        answer = answer_of(speaking[place], case)
        assert (answer.status, answer.json["error"]["code"]) == (400, 52)

    def test_a_unary_request_gets_one_answer(self, speaking: dict[str, int], place: str):
        assert answer_of(speaking[place], ok("", {"n": 3}, None)).json == {"at": 2}
