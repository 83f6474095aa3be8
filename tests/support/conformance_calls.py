"""Cases of the conformance table: sizes, connections, deadlines, errors, the server's sites."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from dataclasses import replace

from conformance_dialogue import (
    CONTINUE,
    END,
    HANG_UP,
    TEXT,
    Case,
    ErrorBody,
    Expected,
    Holding,
    answers,
    ask,
    different,
    fail,
    line,
    refused,
    simple,
)
from conformance_http import (
    CHUNKS,
    ECHO,
    ECHOED,
    OF_DEFLATE,
    OF_GZIP,
    not_allowed,
    nowhere,
)
from conformance_server import LIMIT
from raw_http import chunked

# Sizes --------------------------------------------------------------------------------------

_LARGE = fail(
    8000, f"the request is larger than max_message_bytes ({LIMIT} bytes)", 413, connection=None
)
_LARGE_AND_CLOSED = fail(8000, _LARGE.body.text, 413, connection="close")
_AT_LIMIT = b" " * (LIMIT - 2) + b"{}"
_ZEROS = b'{"tensors": [{"float64_data": [' + b"0," * 800_000 + b"0]}]}"
_CHARACTERS = 4 * 2**20 + 1000  # more than gRPC takes by default

_SIZES = (
    simple("a body at the limit", ask(_AT_LIMIT), answers()),
    simple("a body at the limit in chunks",
           ask(chunked(_AT_LIMIT[:70_000], _AT_LIMIT[70_000:]), CHUNKS), answers()),
    simple("a gzip body at the limit", ask(gzip.compress(_AT_LIMIT, 1), OF_GZIP), answers()),
    simple("a body above the limit", ask(_AT_LIMIT + b" "), _LARGE),
    Case("a Content-Length above the limit", (ask(length=LIMIT + 1), _LARGE_AND_CLOSED, END)),
    Case("a Content-Length above the limit, in gzip",
         (ask(b"", OF_GZIP, length=LIMIT + 1), _LARGE_AND_CLOSED, END)),
    Case("a Content-Length of exabytes", (ask(length=2**62), _LARGE_AND_CLOSED, END)),
    Case("chunks above the limit, before the last",
         (ask(b"%x\r\n%s\r\n" % (LIMIT + 1, b" " * (LIMIT + 1)), CHUNKS), _LARGE_AND_CLOSED, END)),
    Case("gzip in chunks above the limit, before the last",
         (ask(b"%x\r\n%s\r\n" % (LIMIT + 1, b" " * (LIMIT + 1)), CHUNKS, OF_GZIP),
          _LARGE_AND_CLOSED, END)),
    simple("a bomb of gzip", ask(gzip.compress(b" " * (3 * LIMIT), 9), OF_GZIP), _LARGE),
    simple("a bomb of deflate", ask(zlib.compress(b" " * (3 * LIMIT), 9), OF_DEFLATE), _LARGE),
    simple("a bomb of gzip that is cut short",
           ask(gzip.compress(b" " * (3 * LIMIT), 9)[:-8], OF_GZIP), _LARGE),
    simple("another encoding, above the limit",
           ask(_AT_LIMIT + b" ", "Content-Encoding: br"), _LARGE),
    simple("an answer that is large", ask(f'{{"value": ["{_CHARACTERS}"]}}', path="/conf/large"),
           answers(key=["large"], value=["x" * _CHARACTERS])),
    simple("a message that is larger than its JSON, and than the limit",
           ask(_ZEROS, path="/conf/told"),
           answers(key=["name", "method", "logid", "clientip"], value=["conf", "told", "0", ""]),
           grpc_only=(ask(_ZEROS, path="/conf/told"), _LARGE),
           why="gRPC has its limit on the message: doubles have eight bytes there"),
)  # fmt: skip


# Connections --------------------------------------------------------------------------------

_WAITS = "Expect: 100-continue"


def _numbered(number: int) -> tuple[bytes, Expected]:
    return ask(f'{{"value": ["{number}"]}}'), answers(value=[str(number)])


_MANY = tuple(_numbered(number) for number in range(10))
_OLD = line("POST /conf/echo HTTP/1.0", "Content-Length: 30", body=ECHO)

_CONNECTIONS = (
    Case("several requests on one connection", tuple(step for pair in _MANY for step in pair)),
    Case("requests of all kinds on one connection", (
        ask(ECHO), ECHOED,
        ask("{"), refused("not JSON"),
        ask(method="GET"), not_allowed("GET"),
        ask(method="HEAD"), Expected(405, None, allow="POST", to="HEAD"),
        ask(path="/health/live", method="GET"), Expected(200, {"status": "ok"}),
        ask(path="/conf/told/x", method="GET"), nowhere("/conf/told/x"),
        ask(chunked(ECHO), CHUNKS), ECHOED,
        ask(gzip.compress(ECHO), OF_GZIP), ECHOED,
        ask(ECHO), ECHOED,
    )),
    Case("requests that come at once",
         (b"".join(raw for raw, _ in _MANY), *(expected for _, expected in _MANY))),
    Case("requests that come at once, with refusals among them",
         (ask(ECHO) + ask("[") + ask(method="GET") + ask(ECHO),
          ECHOED, refused("not JSON"), not_allowed("GET"), ECHOED)),
    Case("a caller that has nothing more to say", (ask(ECHO, "A: b"), ECHOED, HANG_UP, END)),
    Case("HTTP/1.0", (_OLD, replace(ECHOED, connection=None), END)),
    Case("HTTP/1.0 without a length",
         (line("POST /conf/echo HTTP/1.0"), replace(answers(), connection=None), END)),
    Case("HTTP/1.0 with a Host", (line("GET /health/live HTTP/1.0", "Host: x"),
         Expected(200, {"status": "ok"}, connection=None), END)),
    Case("a caller that asks before it sends",
         (ask(b"", _WAITS, length=len(ECHO)), CONTINUE, ECHO, ECHOED)),
    Case("a caller that asks before it sends in chunks",
         (line("POST /conf/echo HTTP/1.1", "Host: x", CHUNKS, _WAITS), CONTINUE,
          chunked(ECHO), ECHOED)),
    Case("a caller that asks before it sends is spared a body that is too large",
         (ask(b"", _WAITS, length=LIMIT + 1), _LARGE_AND_CLOSED, END)),
    Case("a caller that asks before it sends is spared a body for nobody",
         (ask(b"", _WAITS, length=2, path="/conf/told/x"),
          fail(3002, "no such path: /conf/told/x; POST /<name>/<method>", 404, connection="close"),
          END)),
    Case("a caller that asks before it sends is spared a body by another method",
         (ask(b"", _WAITS, length=2, method="PUT"), not_allowed("PUT", connection="close"), END)),
    Case("an offer of HTTP/2", (
        ask(ECHO, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c",
            "HTTP2-Settings: AAEAAEAA"), ECHOED,
        ask(ECHO), ECHOED,
    )),
    Case("an offer of WebSocket",
         (ask(ECHO, "Connection: Upgrade", "Upgrade: websocket"), ECHOED, ask(ECHO), ECHOED)),
    Case("an offer of an unknown protocol",
         (ask(ECHO, "Connection: Upgrade", "Upgrade: web\xd5", path="/conf/told/x"),
          fail(3002, "no such path: /conf/told/x; POST /<name>/<method>", 404),
          ask(ECHO), ECHOED)),
)  # fmt: skip


# Deadlines ----------------------------------------------------------------------------------

_EXPIRED = fail(6000, "(data_id=N log_id=0) the request's deadline passed before it was answered.")

_DEADLINES = (
    *(
        simple(f"Grpc-Timeout: {value}, to no effect", ask(ECHO, f"Grpc-Timeout: {value}"), ECHOED)
        for value in ("20S", "1H", "99999999H", "99999999M", "20000m", "20000000u", "99999999u ",
                      " \t20S \t", "00000020S")
    ),
    *(
        simple(f"Grpc-Timeout: {value}, on time",
               ask(b"", f"Grpc-Timeout: {value}", path="/conf/hold"), _EXPIRED)
        for value in ("0S", "0H", "00000000m", "0n", "1n", "1u", "30m", "30000u", "30000000n")
    ),
    simple("the log id of who was too late",
           ask('{"logid": "7"}', "Grpc-Timeout: 30m", path="/conf/hold"),
           fail(6000, _EXPIRED.body.text.replace("log_id=0", "log_id=7"))),
    *(
        simple(f"Grpc-Timeout: {value!r}, no deadline", ask(ECHO, f"Grpc-Timeout: {value}"),
               refused("invalid Grpc-Timeout"))
        for value in ("", "m", "5", "-1S", "+1S", "1.5S", "123456789S", "1s", "1 S", "1SS", "S1",
                      "1e3m", "0x1S", "1_0S", "\xb2S", "1S, 2S", "infinity", "\xa01S", "1S\x85")
    ),
    simple("the last Grpc-Timeout counts",
           ask(ECHO, "Grpc-Timeout: 20H", "Grpc-Timeout: 20S"), ECHOED),
    simple("the last Grpc-Timeout counts, which has passed",
           ask(b"", "Grpc-Timeout: 20S", "Grpc-Timeout: 30m", path="/conf/hold"), _EXPIRED),
    simple("a wrong Grpc-Timeout among good ones",
           ask(ECHO, "Grpc-Timeout: x", "Grpc-Timeout: 20S"), refused("invalid Grpc-Timeout")),
    simple("a wrong Grpc-Timeout counts for less than the method",
           ask(ECHO, "Grpc-Timeout: x", method="GET"), not_allowed("GET")),
    simple("a wrong Grpc-Timeout counts for more than the body",
           ask("{", "Grpc-Timeout: x"), refused("invalid Grpc-Timeout")),
)  # fmt: skip


# Errors of the application ------------------------------------------------------------------


def _raises(code: int, text: str) -> bytes:
    return json.dumps({"value": [str(code), text]}).encode()


_ERRORS = (
    simple("an Op that raises", ask(path="/conf/raise"), Expected(200, fail(
        10000, "Log_id: 0  Raise_msg: ValueError: of the user  ClassName: Does.preprocess"
               "  FunctionName: preprocess").body)),
    simple("an Op over its limit", ask(path="/conf/optimeout"), fail(
        6000, "[does] failed to predict. (data_id=N log_id=0) [does|N] Failed to process(batch: "
              "[N]): exceeded retry count. Please check the input dict and checkout "
              "PipelineServingLogs/pipeline.log for more details.")),
    simple("a pack method that gives no Response", ask(path="/conf/wrong"),
           fail(8000, "pack_response_package returned dict, not a Response", 500)),
    *(
        simple(f"the product's error {code} {text[:10]!r}, {how}",
               ask(_raises(code, text), path=f"/conf/{how}"), fail(code, text or "ProductError"))
        for how in ("product", "returned")
        for code, text in (
            (51, "no face ☺ 漢字"), (99, ""), (51, "nul \x00 \n\t\""), (-(2**31), "the least"),
            (2**31 - 1, "the greatest"), (3004, "as if overloaded"), (3001, "as if closed"),
            (3002, "as if nobody"), (6000, "as if too late"), (8000, "as if wrong"),
            (51, "long " * 3000),
        )
    ),
    simple("a code that the wire cannot hold", ask(_raises(2**31, "far out"), path="/conf/product"),
           fail(50, "[2147483648] far out")),
)  # fmt: skip


# The server's sites -------------------------------------------------------------------------

_INFER = "/v2/models/conf/infer"
_INPUT = {"name": "x", "datatype": "FP32", "shape": [2]}
_HEAD = json.dumps(
    {
        "inputs": [{**_INPUT, "parameters": {"binary_data_size": 8}}],
        "outputs": [{"name": "x", "parameters": {"binary_data": True}}],
    }
).encode()
_BINARY = struct.pack("<2f", 1.5, 2.0)
_LENGTH = f"Inference-Header-Content-Length: {len(_HEAD)}"
_MODEL = {"model_name": "conf", "model_version": "1"}
_OCTETS = "application/octet-stream"


_SITE = "a site of the server's HTTP port, which that gateway does not know"


def _site(name: str, raw: bytes, expected: Expected) -> Case:
    nobody = None if expected.to == "HEAD" else ErrorBody(3002, "no such path", is_parsers=True)
    nowhere_else = Expected(404, nobody, connection=None, to=expected.to)
    return Case(name, (raw, expected), grpc_only=(raw, nowhere_else), why=_SITE)


def _unknown(model: str) -> Expected:
    text = f"Request for unknown model: '{model}' is not found"
    return Expected(404, Holding(f'{{"error":"{text}"}}'), content_type=TEXT)


_SITES = (
    _site("v2 is ready", ask(path="/v2/health/ready", method="GET"),
          Expected(200, {"ready": True})),
    _site("v2 lives", ask(path="/v2/health/live", method="GET"), Expected(200, {"live": True})),
    _site("HEAD of v2", ask(path="/v2/health/ready", method="HEAD"),
          Expected(405, None, content_type=TEXT, allow="GET", to="HEAD")),
    _site("v2 by another method", ask(path="/v2"),
          Expected(405, {"error": "Method Not Allowed"}, allow="GET")),
    _site("an unknown path of v2", ask(path="/v2/x"),
          Expected(404, Holding('{"error":"Not Found"}'), content_type=TEXT)),
    _site("v2 with a slash", ask(path="/v2/", method="GET"),
          Expected(404, Holding('{"error":"Not Found"}'), content_type=TEXT)),
    _site("v2 infers", ask(json.dumps({"inputs": [{**_INPUT, "data": [1.5, 2]}]}), path=_INFER),
          Expected(200, {**_MODEL, "outputs": [{**_INPUT, "data": [1.5, 2.0]}]})),
    _site("v2 infers in chunks",
          ask(chunked(json.dumps({"inputs": [{**_INPUT, "data": [1.5, 2]}]}).encode()), CHUNKS,
              path=_INFER),
          Expected(200, {**_MODEL, "outputs": [{**_INPUT, "data": [1.5, 2.0]}]})),
    _site("v2 infers from binary data", ask(_HEAD + _BINARY, _LENGTH, path=_INFER),
          Expected(200, Holding("\x00\x00\\xc0?\x00\x00\x00@"), content_type=_OCTETS)),
    _site("v2 infers from binary data in gzip",
          ask(gzip.compress(_HEAD + _BINARY), _LENGTH, OF_GZIP, path=_INFER),
          Expected(200, Holding("\x00\x00\\xc0?\x00\x00\x00@"), content_type=_OCTETS)),
    _site("v2 knows no such model", ask(path="/v2/models/no/infer"),
          _unknown("no")),
    _site("v2 with a slash in a name", ask(path="/v2/models/a%2Fb/infer"),
          _unknown("a/b")),
    _site("a body of v2 that is not JSON", ask("{", path=_INFER), Expected(400, {
        "error": "failed to parse the request JSON buffer: the request is not valid JSON: "
                 "unexpected end of data: line 1 column 2 (char 1)"})),
    _site("the page", ask(path="/", method="GET"),
          Expected(200, Holding("<!doctype html>"), content_type="text/html; charset=utf-8")),
    _site("HEAD of the page", ask(path="/", method="HEAD"),
          Expected(200, None, content_type="text/html; charset=utf-8", to="HEAD")),
    _site("POST to the page", ask(path="/"), not_allowed("POST", "GET, HEAD")),
    _site("a part of the page", ask(path="/page.css", method="GET"),
          Expected(200, Holding("{"), content_type="text/css; charset=utf-8")),
    simple("POST to the metrics", ask(path="/metrics"), not_allowed("POST", "GET, HEAD")),
)  # fmt: skip

_METRICS = "text/plain; version=0.0.4; charset=utf-8"

_LARGEST = ask(f'{{"value": ["{LIMIT}"]}}', path="/conf/large")
_LARGEST_ANSWER = answers(key=["large"], value=["x" * LIMIT])

CALL_DIFFERENT = (
    different("the metrics", ask(path="/metrics", method="GET"),
              Expected(200, Holding("nv_inference_request_success"), content_type=_METRICS),
              Expected(200, Holding("pipeline_gateway_backend_up"),
                       content_type=f"{_METRICS}; escaping=underscores"),
              "the gateway has figures of its own"),
    different("an answer that is larger than max_message_bytes", _LARGEST, _LARGEST_ANSWER,
              Expected(500, ErrorBody(8000, "larger", is_parsers=True)),
              "gRPC has a limit for answers; the door, and its inner twin, have none",
              own=(_LARGEST, _LARGEST_ANSWER)),
)  # fmt: skip

CALL_CASES = (*_SIZES, *_CONNECTIONS, *_DEADLINES, *_ERRORS, *_SITES)
