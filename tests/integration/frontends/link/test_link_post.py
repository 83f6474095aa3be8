"""POSTs over the link: what is answered there, and what is left to the HTTP port."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from link_peer import SUCCESS, linked, message

from pipeline.engine.offload import Offload
from pipeline.engine.request import RequestHandle, ResponseSink
from pipeline.errors import PipelineError
from pipeline.frontends.http.heads import HeadMemory
from pipeline.frontends.http.routes import HandOverError, LaneReply, WebRequest, WebResponse
from pipeline.frontends.link.frames import ENDED, LEFT, RESET
from pipeline.frontends.link.methods import LinkMethod
from pipeline.frontends.link.post import POST, PostCall, PostService
from pipeline.frontends.link.server import LinkFrontend
from pipeline.proto.slices import SHORT_BYTES


class Echo:
    """A lane that answers at once with the size of the body, and with what `says` gives."""

    takes_large = True

    def __init__(self, says: WebResponse | None = None) -> None:
        self._says = says

    def in_line(self, request: WebRequest) -> Echo | None:
        return self if request.path == "/echo" else None

    def begin(self, body: Any, sink: ResponseSink) -> RequestHandle:
        if bytes(body) == b"other":
            raise HandOverError
        sink.end(b"%d" % len(body))
        return _Ended()

    def reply(self, answer: Any, failure: PipelineError | None) -> LaneReply:
        return answer if self._says is None else self._says


class _Ended(RequestHandle):
    def cancel(self) -> None:
        raise AssertionError("it has ended")


def link_with(lane: Echo, path: Path) -> LinkFrontend:
    heads = HeadMemory([lane], most_large_bytes=2**20)
    return LinkFrontend([LinkMethod(POST, PostCall, PostService(heads, Offload(threads=0)))], path)


def post(body: bytes, target: bytes = b"/echo") -> bytes:
    head = b"POST %b HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (target, len(body))
    return message(1, body, metadata=head, method=1)


def answer_to(lane: Echo, path: Path, asked: bytes) -> tuple[int, bytes]:
    """The kind and payload of what the link says to a POST."""

    async def run() -> tuple[int, bytes]:
        link = link_with(lane, path)
        await link.start(is_ready=True)
        try:
            async with linked(path) as gateway:
                gateway.say(asked)
                kind, _, payload = await gateway.hear()
                return kind, payload
        finally:
            await link.stop(0.0)

    return asyncio.run(run())


# With its head the longest short body is two frames.
@pytest.mark.parametrize("size", [0, 1, SHORT_BYTES - 50, SHORT_BYTES])
def test_a_short_body_of_any_size_is_answered(tmp_path: Path, size: int) -> None:
    _, payload = answer_to(Echo(), tmp_path / "link", post(b"x" * size))
    assert payload == SUCCESS + b"%d" % size


@pytest.mark.parametrize(
    ("asked", "is_by_head"),
    [
        (post(b"x" * (SHORT_BYTES + 1)), False),  # the server's memory had no room for it
        (post(b"other"), False),
        (post(b"", b"/elsewhere"), True),
    ],
)
def test_a_request_that_the_lane_cannot_answer_is_left_to_the_http_port(
    tmp_path: Path, asked: bytes, is_by_head: bool
) -> None:
    kind, payload = answer_to(Echo(), tmp_path / "link", asked)
    assert (kind, payload[0], len(payload) > 1) == (RESET, LEFT, is_by_head)


def test_an_answer_has_its_head(tmp_path: Path) -> None:
    lane = Echo(WebResponse(418, b"short", b"text/plain", ((b"retry-after", b"3"),)))
    _, payload = answer_to(lane, tmp_path / "link", post(b"x"))
    _, status, _, _, _, size = ENDED.unpack_from(payload)
    assert status == 418
    assert payload[ENDED.size :][:size] == b"content-type\ntext/plain\nretry-after\n3\n"
    assert payload.endswith(b"short")
