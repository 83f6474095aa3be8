"""What Accept has to say for a stream, and that the lane leaves such requests alone."""

from __future__ import annotations

import pytest

from pipeline.engine.offload import Offload
from pipeline.frontends.http.pairs import Pairs
from pipeline.frontends.http.routes import SizeLimit, WebRequest
from pipeline.frontends.http.streams import EVENTS, LINES, stream_form
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
def test_what_is_accepted(accepted, form):
    assert stream_form(accepted) is form


@pytest.mark.parametrize(("accept", "is_left"), [(b"*/*", False), (EVENTS.content_type, True)])
def test_the_lane_leaves_streams_alone(accept, is_left):
    wire, limit = JsonWire(Offload(threads=0), Limits()), SizeLimit("max_message_bytes", 9)
    pairs = Pairs(begin=None, wire=wire, limit=limit, takes_trace=False, forwarding=None)  # type: ignore[arg-type]
    path, headers = "/svc/prediction", {b"content-length": b"2", b"accept": accept}
    found = pairs.in_line(WebRequest("POST", path, path, "", headers, None, accepts=(accept,)))  # type: ignore[arg-type]
    assert (found is None) == is_left
