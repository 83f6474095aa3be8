"""Cases of the conformance table: paths, methods, headers, bodies in odd ways, connections."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

from conformance_dialogue import (
    END,
    Case,
    ErrorBody,
    Expected,
    and_close,
    answers,
    ask,
    fail,
    line,
    refused,
    simple,
)
from conformance_server import NAME
from raw_http import chunked

ECHO = b'{"key": ["a"], "value": ["1"]}'
ECHOED = answers(key=["a"], value=["1"])
CHUNKS = "Transfer-Encoding: chunked"


def _pairs(**pairs: str) -> Expected:
    return answers(key=list(pairs), value=list(pairs.values()))


def _told(method: str = "told", logid: int = 0, clientip: str = "") -> Expected:
    return _pairs(name=NAME, method=method, logid=str(logid), clientip=clientip)


def nowhere(path: str) -> Expected:
    """Where there is nothing; who answers before it has read the body may hang up."""
    return fail(3002, f"no such path: {path}; POST /<name>/<method>", 404, connection=None)


def _no_service(name: str) -> Expected:
    text = f"Service name error. This server is {NAME!r}, the request names {name!r}."
    return fail(3002, f"Failed to inference: {text}")


def not_allowed(method: str, allowed: str = "POST", **more: Any) -> Expected:
    text = f"method {method} is not allowed here: use {allowed}"
    return fail(3000, text, 405, allow=allowed, **more)


_NO_PROBE = fail(3002, "no such path; GET /health/live or /health/ready", 404)
_OK = Expected(200, {"status": "ok"})


def at(path: str, expected: Expected, method: str = "POST", **more: Any) -> Case:
    """A request to another path."""
    return simple(f"{method} {path[:50]}", ask(ECHO, path=path, method=method), expected, **more)


# Paths --------------------------------------------------------------------------------------

_PATHS = (
    at("/conf/told", _told()),
    at("/conf/told?name=evil&method=x&key=y", _told()),
    at("/conf/told?", _told()),
    at("/conf/told?%zz", _told()),
    at("http://elsewhere:80/conf/told", _told()),
    at("/c%6fnf/%74old", _told()),
    at("/conf/told:predict", ECHOED),
    *(
        at(f"/conf/{method}", ECHOED)
        for method in (
            "to%20ld", "%00", "%F0%9F%98%80", "%0a", "%0d%0aX:1",
            "%7f", "told%3Fx", "told%23x", "told;x=1", "told+x", 'a"b', "a<b>", "a|b", "a\\b",
            "{x}", "a^b", "a`b", "~", "..", ".", "%2e%2e", "%2e", "a*b", "a,b=c&d$e!(f)'",
            "m" * 5000, "%25zz",
        )
    ),
    *(
        at(path, _no_service(name))
        for path, name in (
            ("/%E6%9C%8D%201/told", "服 1"), ("/%00/told", "\x00"),
            ("/conf:x/told", "conf:x"), ("/:/:", ":"), ("/../told", ".."), ("/./told", "."),
            ("/%2e%2e/told", ".."), ("/v2x/told", "v2x"), ("/V2/x", "V2"),
            ("/Health/live", "Health"), ("/metrics/x", "metrics"), ("/CONF/told", "CONF"),
            ("/%20conf/told", " conf"),
            ("/%27%22/told", "'\""), ("/a%0ab/x", "a\nb"),
        )
    ),
    *(
        at(path, nowhere(shown))
        for path, shown in (
            ("/conf", "/conf"), ("/conf/", "/conf/"), ("/conf/told/", "/conf/told/"),
            ("/conf/told/x", "/conf/told/x"), ("//told", "//told"), ("//", "//"), ("///", "///"),
            ("/conf//told", "/conf//told"), ("/conf//", "/conf//"), ("/a%2Fb/told", "/a/b/told"),
            ("/conf/a%2Fb", "/conf/a/b"), ("/%2f/x", "///x"), ("/conf/%2F", "/conf//"),
            ("/conf/../conf", "/conf/../conf"), ("/health/", "/health/"),
            ("/x/y/z?q", "/x/y/z"), ("/%E6%9C%8D", "/服"), ("/%FF", "/\ufffd"),
        )
    ),
    at("/%76%32/x", nowhere("/v2/x")),
    at("/x/y/z", nowhere("/x/y/z"), "GET"),
    at("/conf", nowhere("/conf"), "GET"),
    at("/conf/told/", nowhere("/conf/told/"), "PUT"),
    simple("HEAD of an unknown path", ask(method="HEAD", path="/conf"),
           Expected(404, None, to="HEAD")),
)  # fmt: skip


def _no_text(path: str, expected: Expected) -> Case:
    raw = ask(ECHO, path=path)
    no_path = Expected(404, ErrorBody(3002, "no such path", is_parsers=True))
    return Case(f"POST {path}", (raw, expected), grpc_only=(raw, no_path), why=_NO_TEXT)


_NO_TEXT = "a Request has no place for bytes that are no UTF-8; the door replaces them"
_NO_TEXTS = (
    *(_no_text(f"/conf/{method}", ECHOED) for method in ("%FF", "%ED%A0%80", "%C3%28")),
    *(
        _no_text(path, _no_service(name))
        for path, name in (
            ("/%FF%FE/told", "\ufffd\ufffd"), ("/%C3%28/x", "\ufffd("),
            ("/%ED%A0%80/x", "\ufffd" * 3), ("/%F0%9F%98/x", "\ufffd"),
            ("/%F4%90%80%80/x", "\ufffd" * 4),
        )
    ),
)  # fmt: skip

_OVERRIDDEN = json.dumps(
    {"name": "other", "method": "other", "clientip": "1.2.3.4", "logid": "9007199254740993"}
)
_URL_WINS = (
    simple("name and method of the body",
           ask(_OVERRIDDEN, path="/conf/told"), _told(logid=9007199254740993, clientip="1.2.3.4")),
    simple("name and method of the body are null",
           ask('{"name": null, "method": null, "logid": -1}', path="/conf/told"), _told(logid=-1)),
    simple("another service in the body", ask('{"name": "other"}', path="/conf/told"), _told()),
    simple("the service in the body, another in the URL",
           ask('{"name": "conf"}', path="/other/told"), _no_service("other")),
)  # fmt: skip


# Methods ------------------------------------------------------------------------------------

_METHODS = (
    *(
        at("/conf/echo", not_allowed(method), method)
        for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "LINK")
    ),
    *(
        simple(f"{method} without a body", line(f"{method} /conf/echo HTTP/1.1", "Host: x"),
               not_allowed(method))
        for method in ("GET", "DELETE", "OPTIONS")
    ),
    simple("HEAD of a service", ask(method="HEAD"), Expected(405, None, allow="POST", to="HEAD")),
    simple("X-HTTP-Method-Override: GET", ask(ECHO, "X-HTTP-Method-Override: GET"), ECHOED),
    simple("X-HTTP-Method-Override: POST",
           ask(ECHO, "X-HTTP-Method-Override: POST", method="GET"), not_allowed("GET")),
    simple("POST of a form with X-HTTP-Method-Override",
           ask("key=a", "X-HTTP-Method-Override: GET",
               "Content-Type: application/x-www-form-urlencoded"),
           refused("the request is not JSON")),
)  # fmt: skip

_HEALTH = (
    *(at(f"/health/{probe}", _OK, "GET") for probe in ("live", "ready", "live?x=y")),
    at("/%68ealth/li%76e", _OK, "GET"),
    *(
        simple(f"HEAD /health/{probe}", ask(method="HEAD", path=f"/health/{probe}"),
               Expected(200, None, to="HEAD"))
        for probe in ("live", "ready")
    ),
    *(
        at("/health/live", not_allowed(method, "GET, HEAD"), method)
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    ),
    at("/health/ready", not_allowed("POST", "GET, HEAD")),
    at("/health", not_allowed("POST", "GET, HEAD")),
    at("/healthz", not_allowed("POST", "GET, HEAD")),
    *(at(f"/health/{probe}", _NO_PROBE, method)
      for probe in ("x", "LIVE", "liveness") for method in ("GET", "POST")),
)  # fmt: skip


# Headers ------------------------------------------------------------------------------------

_ELSEWHERE = ask(ECHO, "Origin: http://x")
_ALLOWED = "add its host to allowed_hosts, or "
_NO_PAGE = (
    "a web page from 'http://x' may not ask this server: {}send content-type: application/json "
    "from a page of this server's own"
)

_HEADERS = (
    *(
        simple(header[:60], ask(ECHO, header), ECHOED)
        for header in (
            "Content-Type: application/json; charset=utf-8", "Content-Type: rubbish",
            "Content-Type: application/x-www-form-urlencoded", "Content-Type: ",
            "Content-Type: multipart/form-data; boundary=x", "Content-Type: application/grpc",
            "Content-Type: application/octet-stream", "Accept: text/xml", "Accept-Encoding: gzip",
            "Cookie: a", "A:b", "A: \xe9", "Connection: keep-alive",
            "Range: bytes=0-1", "If-None-Match: *", "TE: trailers", "Authorization: Bearer x",
            "Grpc-Metadata-X: 1", "Grpc-Metadata-Bin-Bin: !!", "Grpc-Metadata-A: \xe9",
            "Traceparent: rubbish", "X-Request-Id: \xe9", "Authorization: \xff",
            "A: " + "b" * 20_000,
            "Grpc-Metadata-Pipeline-Timeout: 1n", "Grpc-Metadata-Grpc-Timeout: 1n",
            "Pipeline-Timeout: 1n", "Grpc-Encoding: br",
            "Grpc-Metadata-A: " + "b" * 20_000, "Authorization: Bearer " + "b" * 20_000,
            "Content-Encoding: identity", "Content-Encoding: IDENTITY", "Content-Encoding: ",
        )
    ),
    Case("Connection: close", (ask(ECHO, "Connection: close"), and_close(ECHOED), END)),
    simple("JSON of a page from elsewhere",
           ask(ECHO, "Origin: http://x", "Content-Type: application/json"), ECHOED),
    simple("a page of this host", ask(ECHO, "Origin: https://LocalHost:443"), ECHOED),
    Case("a page from elsewhere", (_ELSEWHERE, fail(3002, _NO_PAGE.format(_ALLOWED), 403)),
         grpc_only=(_ELSEWHERE, fail(3002, _NO_PAGE.format(""), 403)),
         why="that gateway knows no allowed_hosts"),
)  # fmt: skip


# Bodies -------------------------------------------------------------------------------------

_GZIP, _DEFLATE = gzip.compress(ECHO), zlib.compress(ECHO)
OF_GZIP, OF_DEFLATE = "Content-Encoding: gzip", "Content-Encoding: deflate"


def _broken(name: str, packed: bytes, header: str, part: str) -> Case:
    return simple(f"{header}: {name}", ask(packed, header), refused(part))


def _unsupported(header: str) -> Case:
    return simple(header, ask(ECHO, header), refused("send gzip, deflate or none", 415))


def _named(packed: bytes) -> bytes:
    """gzip data with a file's name in its head."""
    return packed[:3] + b"\x08" + packed[4:10] + b"name\0" + packed[10:]


_BODIES = (
    simple("in one chunk", ask(chunked(ECHO), CHUNKS), ECHOED),
    simple("in three chunks", ask(chunked(ECHO[:3], ECHO[3:9], ECHO[9:]), CHUNKS), ECHOED),
    simple("in no chunk", ask(chunked(), CHUNKS), answers()),
    simple("Transfer-Encoding: Chunked",
           ask(chunked(ECHO), "Transfer-Encoding: Chunked"), ECHOED),
    simple("chunks with an extension and a trailer",
           ask(b'2;a="b"\r\n{}\r\n0\r\nX-Sum: 1\r\n\r\n', CHUNKS), answers()),
    simple("chunks that are no JSON", ask(chunked(b"{"), CHUNKS), refused("not JSON")),
    Case("byte by byte", (*(bytes([byte]) for byte in ask(ECHO)), ECHOED)),
    Case("chunks byte by byte", (*(bytes([byte]) for byte in ask(chunked(ECHO), CHUNKS)), ECHOED)),
    simple("no Content-Length", line("POST /conf/echo HTTP/1.1", "Host: x"), answers()),
    *(
        simple(f"Content-Encoding: {name}", ask(_GZIP, f"Content-Encoding: {name}"), ECHOED)
        for name in ("gzip", "GZip", "x-gzip", "gzip \t")
    ),
    simple(OF_DEFLATE, ask(_DEFLATE, OF_DEFLATE), ECHOED),
    simple("gzip in chunks", ask(chunked(_GZIP[:7], _GZIP[7:]), CHUNKS, OF_GZIP), ECHOED),
    simple("gzip of nothing", ask(gzip.compress(b""), OF_GZIP), answers()),
    simple("deflate of nothing", ask(zlib.compress(b""), OF_DEFLATE), answers()),
    simple("gzip of no JSON", ask(gzip.compress(b"{"), OF_GZIP), refused("not JSON")),
    simple("gzip with the name of a file", ask(_named(_GZIP), OF_GZIP), ECHOED),
    simple("the last Content-Encoding counts",
           ask(ECHO, OF_GZIP, "Content-Encoding: identity"), ECHOED),
    _broken("no gzip", ECHO, OF_GZIP, "not valid gzip"),
    _broken("zlib", _DEFLATE, OF_GZIP, "not valid gzip"),
    _broken("cut short", _GZIP[:-1], OF_GZIP, "cut short"),
    _broken("only its head", _GZIP[:4], OF_GZIP, "cut short"),
    _broken("nothing", b"", OF_GZIP, "cut short"),
    _broken("a wrong sum", _GZIP[:-5] + b"\x00" * 5, OF_GZIP, "not valid gzip"),
    _broken("garbage behind it", _GZIP + b"garbage", OF_GZIP, "behind"),
    _broken("two members", gzip.compress(b"{") + gzip.compress(b"}"), OF_GZIP, "behind"),
    _broken("two members, one empty", _GZIP + gzip.compress(b""), OF_GZIP, "behind"),
    _broken("no zlib", ECHO, OF_DEFLATE, "not valid deflate"),
    _broken("raw deflate", _DEFLATE[2:-4], OF_DEFLATE, "not valid deflate"),
    _broken("gzip", _GZIP, OF_DEFLATE, "not valid deflate"),
    _broken("cut short", _DEFLATE[:-1], OF_DEFLATE, "cut short"),
    _broken("nothing", b"", OF_DEFLATE, "cut short"),
    _broken("a wrong sum", _DEFLATE[:-1] + b"\x00", OF_DEFLATE, "not valid deflate"),
    _broken("garbage behind it", _DEFLATE + b"garbage", OF_DEFLATE, "behind"),
    *map(_unsupported, (
        "Content-Encoding: br", "Content-Encoding: zstd", "Content-Encoding: gzip, gzip",
        "Content-Encoding: identity, gzip", "Content-Encoding: \xe9", "Content-Encoding: 'q'",
    )),
)  # fmt: skip

HTTP_CASES = (*_PATHS, *_NO_TEXTS, *_URL_WINS, *_METHODS, *_HEALTH, *_HEADERS, *_BODIES)
