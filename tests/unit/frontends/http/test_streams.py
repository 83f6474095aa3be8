"""Streams: the values of Accept that ask for one, the times of its parts; never in the lane."""

from __future__ import annotations

import asyncio

import pytest
from doubles import virtual

from pipeline.engine.offload import Offload
from pipeline.frontends.http.pairs import Pairs
from pipeline.frontends.http.routes import SizeLimit, WebRequest
from pipeline.frontends.http.streams import EVENTS, LINES, StreamedAnswer, stream_form
from pipeline.frontends.wire import JsonWire
from pipeline.proto.slices import Limits


@pytest.mark.parametrize(
    ("accepted", "form"),
    [
        ([], None),
        ([b""], None),
        ([b"*/*"], None),
        ([b"text/*"], None),
        ([b"application/*, text/*;q=0.1"], None),
        ([b"application/json"], None),
        ([b"application/xml"], None),
        ([b"text/event-stream"], EVENTS),
        ([b"Text/Event-Stream; charset=utf-8"], EVENTS),
        ([b"application/x-ndjson"], LINES),
        ([b"text/event-stream, */*"], EVENTS),
        ([b"*/*, text/event-stream"], EVENTS),
        ([b"*/*", b"text/event-stream"], EVENTS),
        ([b"text/event-stream, */*;q=0.1"], EVENTS),
        ([b"text/event-stream;q=0.5, */*"], None),
        ([b"text/event-stream;q=0.5, application/*;q=0.7"], None),
        ([b"application/json, text/event-stream"], None),
        ([b"text/event-stream, application/json"], EVENTS),
        ([b"application/json;q=0.9, text/event-stream"], EVENTS),
        ([b"text/event-stream;q=0.2, application/x-ndjson;q=0.3"], LINES),
        ([b"application/x-ndjson, text/event-stream"], LINES),
        ([b"text/event-stream;q=0"], None),
        ([b"text/event-stream;q=0, application/x-ndjson;q=0.001"], LINES),
        ([b"text/event-stream;q=high"], EVENTS),
        ([b"text/event-stream;q=nan"], EVENTS),
        ([b"text/event-stream;level=1;Q = 0"], None),
        ([b";;,,=;q"], None),
        ([b"\xff\xfe, text/event-stream"], EVENTS),
    ],
)
def test_an_accept_header_selects_the_form_of_a_stream(accepted, form):
    assert stream_form(accepted) is form


@pytest.mark.parametrize(("accept", "is_left"), [(b"*/*", False), (EVENTS.content_type, True)])
def test_the_lane_leaves_streams_alone(accept, is_left):
    wire, limit = JsonWire(Offload(threads=0), Limits()), SizeLimit("max_message_bytes", 9)
    pairs = Pairs(begin=None, wire=wire, limit=limit, takes_trace=False, forwarding=None)  # type: ignore[arg-type]
    path, headers = "/svc/prediction", {b"content-length": b"2", b"accept": accept}
    in_line = pairs.in_line(WebRequest("POST", path, path, "", headers, None, accepts=(accept,)))  # type: ignore[arg-type]
    assert (in_line is None) == is_left


class Handle:
    """A request; `taken` counts its parts that are on their way."""

    def __init__(self) -> None:
        self.taken = 0
        self.is_cancelled = False

    def took_part(self, count: int = 1) -> None:
        self.taken += count

    def cancel(self) -> None:
        self.is_cancelled = True


def streamed(request: Handle, heartbeat_s: float = 9.0) -> StreamedAnswer:
    """Return the stream of a request whose parts are bytes; those of one letter are short."""
    answer = StreamedAnswer(
        EVENTS, lambda part, _: part, lambda part: part if len(part) == 1 else None, heartbeat_s
    )
    answer.begin(lambda *_: request, None)
    return answer


@virtual
async def test_short_parts_are_written_at_once_and_others_in_order():
    request, sent = Handle(), []
    answer = streamed(request)
    stream = answer.stream()
    answer.add([b"a"])
    assert await anext(stream.pieces) == b"data: a\n\n"
    assert stream.begun is not None
    stream.begun(lambda piece: sent.append(piece) or True)
    answer.add([b"b"])  # the piece before it is not on its way yet
    assert (sent, request.taken) == ([], 0)
    assert await anext(stream.pieces) == b"data: b\n\n"
    following = asyncio.ensure_future(anext(stream.pieces))
    await asyncio.sleep(0)
    answer.add([b"c", b"d"])
    assert (sent, request.taken) == ([b"data: c\n\ndata: d\n\n"], 4)
    answer.add([b"e", b"long"])
    answer.add([b"f"])
    assert await following == b"data: e\n\ndata: long\n\ndata: f\n\n"
    answer.end(None)
    assert [piece async for piece in stream.pieces] == [EVENTS.end]
    assert (len(sent), request.taken, request.is_cancelled) == (1, 7, False)


@virtual
async def test_a_part_waits_for_room_in_the_connection():
    request = Handle()
    answer = streamed(request)
    stream = answer.stream()
    answer.add([b"a"])
    await anext(stream.pieces)
    assert stream.begun is not None
    stream.begun(lambda piece: False)
    following = asyncio.ensure_future(anext(stream.pieces))
    await asyncio.sleep(0)
    answer.add([b"b"])
    assert (await following, request.taken) == (b"", 1)
    answer.add([b"c"])
    assert (await anext(stream.pieces), request.taken) == (b"data: c\n\n", 2)
    await stream.pieces.aclose()
    assert request.is_cancelled


@virtual
async def test_a_heartbeat_follows_a_pause():
    loop, answer = asyncio.get_running_loop(), streamed(Handle(), heartbeat_s=10)
    stream = answer.stream()
    answer.add([b"a"])
    await anext(stream.pieces)
    assert stream.begun is not None
    stream.begun(lambda piece: True)
    began, following = loop.time(), asyncio.ensure_future(anext(stream.pieces))
    await asyncio.sleep(7)
    answer.add([b"b"])
    assert await following == EVENTS.heartbeat
    assert loop.time() == began + 17
    await stream.pieces.aclose()
