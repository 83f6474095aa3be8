"""Cases of the conformance table that are no HTTP, or hardly: net/http and llhttp differ there."""

from __future__ import annotations

from conformance_dialogue import (
    END,
    Case,
    ErrorBody,
    Expected,
    and_close,
    answers,
    ask,
    different,
    fail,
    line,
    refused,
)
from conformance_http import CHUNKS, ECHO, ECHOED, at, not_allowed, nowhere
from raw_http import chunked

_BAD_HTTP = refused("this is not a valid HTTP/1.1 request", connection="close")
_HEAD_TOO_LONG = fail(
    8000, "the request's header fields are longer than 65536 bytes", 431, connection="close"
)


_LIVE = Expected(200, {"status": "ok"})


def _no_http(name: str, raw: bytes) -> Case:
    return Case(name, (raw, _BAD_HTTP, END))


def _in_chunks(body: bytes) -> Case:
    return _no_http(f"broken chunks: {body!r}", ask(body, CHUNKS))


# The same, but for the words of the parser ---------------------------------------------------

HTTP_IN_OTHER_WORDS = (
    Case("garbage behind a request", (ask(ECHO) + b"garbage\r\n\r\n", ECHOED, _BAD_HTTP, END)),
    _no_http("garbage", b"garbage\r\n\r\n"),
    _no_http("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n"),
    _no_http("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    _no_http("HTTP/9.9", line("POST /conf/echo HTTP/9.9", "Host: x")),
    _no_http("http/1.1", line("POST /conf/echo http/1.1", "Host: x")),
    _no_http("a blank behind the version", line("POST /conf/echo HTTP/1.1 ", "Host: x")),
    _no_http("a blank before the method", line(" POST /conf/echo HTTP/1.1", "Host: x")),
    _no_http("a method that is not a token", ask(method="P(ST")),
    _no_http("a path without a slash", ask(path="conf/told")),
    _no_http("no path", line("POST  HTTP/1.1", "Host: x")),
    _no_http("a blank in the path", ask(path="/conf/a b")),
    *(
        _no_http(f"{odd!r} in the path", ask(path=f"/conf/a{odd}"))
        for odd in ("\x01", "\x7f", "\t")
    ),
    _no_http("a control character in the query", ask(path="/conf/echo?\x01")),
    _no_http("a port that is not a number", ask(path="http://x:y/conf/echo")),
    _no_http("a bracket that is not closed", ask(path="http://[::1/conf/echo")),
    *(
        _no_http(f"Content-Length: {length!r}", ask(b"" if not length else b"{}", length=length))
        for length in ("-1", "+2", "0x2", "99999999999999999999999", "a", "2, 2", "")
    ),
    _no_http("two lengths", ask(b"{}", "Content-Length: 3")),
    _no_http("HTTP/1.2", line("POST /conf/echo HTTP/1.2", "Host: x")),
    _no_http("line ends without CR", b"POST /conf/echo HTTP/1.1\nHost: x\n\n"),
    _no_http("the length twice", ask(ECHO, f"Content-Length: {len(ECHO)}")),
    _no_http("a length and chunks", ask(chunked(ECHO), CHUNKS, f"Content-Length: {len(ECHO)}")),
    _no_http("chunks and a length", ask(chunked(ECHO), f"Content-Length: {len(ECHO)}", CHUNKS)),
    _no_http("a request inside of one with two ends",
             ask(b"0\r\n\r\n" + line("GET /health/live HTTP/1.1", "Host: x"), CHUNKS,
                 "Content-Length: 5")),
    _no_http("a header in two lines", ask(ECHO, "A: b\r\n c")),
    _no_http("a header in two lines, by a tab", ask(ECHO, "A: b\r\n\tc")),
    _no_http("a coding in two lines", ask(chunked(ECHO), "Transfer-Encoding:\r\n chunked")),
    _no_http("a length in two lines", line("POST /conf/echo HTTP/1.1", "Content-Length:\r\n 0")),
    *(
        _no_http(f"the header {header!r}", ask(b"{}", header))
        for header in (
            "A\x00: b", "A(: b", "\xe9: b", "A: b\x01", "A: b\x7f", "A: b\x00", "Abc", ": b",
            "A: b\rc", "A : b", "Transfer-Encoding : chunked", "Content-Length : 2",
            "A: b\nTransfer-Encoding: chunked", "A: b\rTransfer-Encoding: chunked",
        )
    ),
    *(
        _no_http(f"Transfer-Encoding: {coding}",
                 ask(chunked(b"{}"), f"Transfer-Encoding: {coding}"))
        for coding in ("identity", "chunked, chunked", "xchunked", "gzip, chunked")
    ),
    _no_http("Transfer-Encoding: chunked, twice", ask(chunked(b"{}"), CHUNKS, CHUNKS)),
    _no_http("Transfer-Encoding: gzip, then chunked",
             ask(chunked(b"{}"), "Transfer-Encoding: gzip", CHUNKS)),
    *map(_in_chunks, (
        b"z\r\n{}\r\n", b"2\r\n{}\r\nz\r\n", b"-2\r\n{}\r\n0\r\n\r\n", b"0x2\r\n{}\r\n0\r\n\r\n",
        b"2\r\n{}0\r\n\r\n", b"2\n{}\n0\n\n", b"ffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
        b"2\n{}\r\n0\r\n\r\n", b"2\r\n{}\n0\r\n\r\n", b"2;a\n{}\r\n0\r\n\r\n",
        b"2;a\rb\r\n{}\r\n0\r\n\r\n", b"1_0\r\n{}\r\n0\r\n\r\n",
    )),
)  # fmt: skip


# The same --------------------------------------------------------------------------------------

HTTP_EDGE_CASES = (
    *(
        Case(f"a head that is too long: {name}", (raw, _HEAD_TOO_LONG, END))
        for name, raw in (
            ("a header", ask(b"{}", "A: " + "b" * 500_000)),
            ("headers", ask(b"{}", *["A: b"] * 100_000)),
            ("the path", ask(path="/conf/" + "m" * 500_000)),
            ("the path, in one packet", ask(path="/conf/" + "m" * 75_000)),
            ("trailers", ask(b"0\r\n", CHUNKS) + b"A: b\r\n" * 100_000),
            ("a trailer", ask(b"0\r\n", CHUNKS) + b"A: " + b"b" * 500_000),
        )
    ),
    Case(
        "CONNECT",
        (
            b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
            fail(8000, "method CONNECT: this is not a proxy", 405, connection="close"),
            END,
        ),
    ),
    at("*", nowhere("*")),
    at("*", nowhere("*"), "GET"),
    at("*", nowhere("*"), "OPTIONS"),
    at("/conf/told#fragment", answers(key=["name", "method", "logid", "clientip"],
                                      value=["conf", "told", "0", ""])),
    at("ftp://elsewhere/conf/echo", ECHOED),
    Case("an empty Host", (line("GET /health/live HTTP/1.1", "Host:"), _LIVE)),
)  # fmt: skip


# Not the same ----------------------------------------------------------------------------------

_GATEWAY_MINDS = "net/http refuses what llhttp takes"
_DOOR_MINDS = "llhttp refuses what net/http takes"


def _only_gateway(name: str, raw: bytes, door: Expected) -> Case:
    return different(name, raw, door, _BAD_HTTP, _GATEWAY_MINDS)


def _only_door(name: str, raw: bytes, gateway: Expected) -> Case:
    return different(name, raw, _BAD_HTTP, gateway, _DOOR_MINDS)


HTTP_DIFFERENT = (
    _only_gateway("no Host", line("POST /conf/echo HTTP/1.1", "Content-Length: 0"), answers()),
    _only_gateway("two Hosts", ask(ECHO, "Host: y"), ECHOED),
    _only_gateway("a Host with a blank", line("GET /health/live HTTP/1.1", "Host: a b"), _LIVE),
    *(
        _only_gateway(f"the path {path}", ask(ECHO, path=path), ECHOED)
        for path in ("/conf/%zz", "/conf/%", "/conf/%e")
    ),
    _only_gateway("a line end before the request", b"\r\n" + ask(ECHO), ECHOED),
    _only_gateway("two blanks", line("GET  /health/live HTTP/1.1", "Host: x"), _LIVE),
    _only_gateway("HTTP/0.9", b"GET /health/live\r\n\r\n", and_close(_LIVE)),
    different(
        "an Expect that nobody knows",
        ask(ECHO, "Expect: nonsense"),
        ECHOED,
        Expected(417, None, content_type="", connection="close"),
        "net/http answers by itself, and has no words",
    ),
    Case(
        "a host without a path",
        (ask(path="http://x"), _BAD_HTTP, END),
        gateway=(ask(path="http://x"), not_allowed("POST", "GET, HEAD")),
        grpc_only=(ask(path="http://x"), Expected(404, ErrorBody(3002, "no such path", True))),
        why="to net/http it is the path /, where the server has its page",
    ),
    _only_door(
        "a blank behind a chunk's size", ask(b"2 \r\n{}\r\n0\r\n\r\n", CHUNKS), answers()
    ),
)  # fmt: skip

# The door's parser hangs up on these; a gateway's connection to its caller is another one.

_ODD = refused("this is not a valid HTTP/1.1 request", connection=None)
_ODD_METHODS = tuple((f"the method {method}", ask(ECHO, method=method), not_allowed(method))
                     for method in ("FOO", "post"))  # fmt: skip
_ODD_TARGETS = tuple((f"{path!r} unencoded", ask(ECHO, path=path), refused("", connection=None))
                     for path in ("/conf/\xff", "/conf/\xc3\xa9", "/conf/echo?\xff"))  # fmt: skip

HTTP_HANDED_OVER = tuple(
    Case(name, (raw, _ODD), grpc_only=(raw, blind), why="the door has its own words for it")
    for name, raw, blind in (*_ODD_METHODS, *_ODD_TARGETS)
)
