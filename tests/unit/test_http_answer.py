"""Answers over HTTP, as bytes come."""

from __future__ import annotations

import pytest

from pipeline.client_http import HttpAnswer, HttpService, services_of
from pipeline.errors import (
    ClosedError,
    ConfigError,
    OverloadedError,
    PackageError,
    TooLargeError,
)

SERVICE = HttpService("::1", 80, "/svc/prediction")
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
CHUNKED = EVENTS + b"Transfer-Encoding: chunked\r\n\r\n"
PART = b'data: {"err_no":0,"key":["a"],"value":["1"]}\n\n'
END = b"event: end\ndata: {}\n\n"
FULL = b'{"err_no":3004,"err_msg":"full"}'
ERROR = b'event: error\ndata: {"err_no":3001,"err_msg":"stop"}\n\n'


def chunks(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


def answer(most_bytes: int = 1000) -> HttpAnswer:
    return HttpAnswer(SERVICE, most_bytes)


def body(status: bytes, kind: bytes, text: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"
    return head % (status, kind, len(text), text)


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_events_however_they_are_cut(step):
    came = CHUNKED + chunks(b": heartbeat\n\n", PART, PART[:9], PART[9:] + ERROR)
    taken = answer()
    for at in range(0, len(came), step):
        taken.take(came[at : at + step])
    assert [part.err_no for part in taken.parts] == [0, 0, 3001]
    assert taken.is_over


def test_bytes_after_the_end_are_ignored():
    taken = answer()
    taken.take(CHUNKED + chunks(PART + END + PART))
    assert (len(taken.parts), taken.is_over) == (1, True)


@pytest.mark.parametrize("last", [b"", b"0\r\n\r\n"])
def test_an_answer_without_its_end_was_cut_off(last):
    taken = answer()
    taken.take(CHUNKED + chunks(PART))
    with pytest.raises(ClosedError, match=r"\[::1\]:80/svc.* cut off"):
        taken.take(last)
    assert len(taken.parts) == 1


def test_one_answer():
    taken = answer()
    came = body(b"200 OK", b"application/json", b'{"key":["a"],"value":["1"]}')
    taken.take(came[:-1])
    assert (list(taken.parts), taken.is_over) == ([], False)
    taken.take(came[-1:])
    assert (taken.parts[0].value, taken.is_over) == (["1"], True)


@pytest.mark.parametrize(
    ("came", "kind", "text"),
    [
        (body(b"503 Busy", b"application/json", FULL), OverloadedError, "full"),
        (body(b"502 Bad", b"text/html", b"<p>no"), ClosedError, "502: <p>no"),
        (body(b"404 No", b"application/json", b"{}"), ClosedError, "404: {}"),
        (body(b"200 OK", b"application/json", b"[1]"), PackageError, "no Response"),
        (EVENTS + b"Content-Length: 9\r\n\r\ndata: 1\n\n", PackageError, "no Response"),
        (b"SSH-2.0\r\n", ClosedError, "no HTTP"),
        (CHUNKED + chunks(b"data: " + b"x" * 2000), TooLargeError, "max_message_bytes"),
        (body(b"200 OK", b"application/json", b"x" * 2000), TooLargeError, "max_message"),
    ],
)
def test_an_invalid_answer_is_an_error(came, kind, text):
    with pytest.raises(kind, match=text):
        answer().take(came)


def test_the_method_may_be_named():
    assert [service.path for service in services_of(["http://a:1/s", "http://a:1/s/m/"])] == [
        "/s/prediction",
        "/s/m/",
    ]


def test_a_change_of_protocol_is_an_error() -> None:
    (service,) = services_of("http://there:1/x")
    head = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"
    with pytest.raises(ClosedError, match="another protocol"):
        HttpAnswer(service, 1000).take(head)


def test_a_head_that_does_not_end_is_refused() -> None:
    (service,) = services_of("http://there:1/x")
    answer = HttpAnswer(service, 1000)
    answer.take(b"HTTP/1.1 200 OK\r\nx: ")
    with pytest.raises(ClosedError, match="head"):
        answer.take(b"a" * 65536)


@pytest.mark.parametrize("path", ["s\r\nx: y", "s\ty", "s?x", "s#x", "s\x7f", "a b", "\u00e9"])
def test_an_invalid_path_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="http://host:port/"):
        services_of(f"http://there:1/{path}")


def test_an_endpoint_that_is_not_text_is_refused() -> None:
    with pytest.raises(TypeError, match="9998"):
        services_of(["http://there:1/s", 9998])  # type: ignore[list-item]


# Where an answer ends (RFC 9112, 6.3) ---------------------------------------------------------

OLD = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n"
ONE = b'{"key":["a"],"value":["1"]}'


@pytest.mark.parametrize(
    "head",
    [OLD, b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\n"],
)
@pytest.mark.parametrize("step", [1, 10_000])
def test_an_answer_without_a_length_ends_with_its_connection(head: bytes, step: int) -> None:
    taken, came = answer(), head + b"\r\n" + ONE
    for at in range(0, len(came), step):
        taken.take(came[at : at + step])
        assert not taken.is_over
    taken.take(b"")
    assert (taken.parts[0].value, taken.is_over) == (["1"], True)


def test_an_error_without_a_length_ends_with_its_connection() -> None:
    taken = answer()
    taken.take(b"HTTP/1.0 502 Bad\r\n\r\n<p>no")
    with pytest.raises(ClosedError, match="502: <p>no"):
        taken.take(b"")


@pytest.mark.parametrize(
    "came",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n",
        OLD + b"Content-Length: 28\r\n\r\n" + ONE,
        OLD.replace(b"1.0", b"1.1") + b"Transfer-Encoding: chunked\r\n\r\n" + chunks(ONE),
        OLD + b"Content-Type: text/event-stream\r\n\r\n" + PART,
    ],
)
def test_an_answer_that_ends_before_its_end_was_cut_off(came: bytes) -> None:
    taken = answer()
    taken.take(came or b"H")
    with pytest.raises(ClosedError, match="cut off"):
        taken.take(b"")


def test_events_without_a_length_end_by_their_last() -> None:
    taken = answer()
    taken.take(OLD + b"Content-Type: text/event-stream\r\n\r\n" + PART + END)
    assert (len(taken.parts), taken.is_over) == (1, True)


@pytest.mark.parametrize("step", [1, 10_000])
def test_an_interim_response_is_skipped(step: int) -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\nContent-Type: text/event-stream\r\n\r\n"
    came = hint + b"HTTP/1.1 100 Continue\r\n\r\n" + body(b"200 OK", b"application/json", ONE)
    taken = answer()
    for at in range(0, len(came), step):
        taken.take(came[at : at + step])
    assert (taken.parts[0].value, taken.is_over) == (["1"], True)


def test_a_stream_without_a_part_is_over_at_its_end() -> None:
    taken = answer()
    taken.take(CHUNKED + chunks(END))
    assert (list(taken.parts), taken.is_over) == ([], True)


@pytest.mark.parametrize(
    "text", [b"[1]", b"{", b'{"err_no":"x"}', b'{"tensors":1}', b'{"tensors":[{"shape":["x"]}]}']
)
def test_an_error_about_an_answer_names_the_answer(text: bytes) -> None:
    with pytest.raises(PackageError) as result:
        answer().take(body(b"200 OK", b"application/json", text))
    assert "answered with no Response: the answer " in str(result.value)
    assert "request" not in str(result.value)
