"""PostCall: a POST of the HTTP edge, answered over the link as the lane of the HTTP port does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, NamedTuple

from pipeline.answer_head import AnswerHead
from pipeline.engine.offload import Offload
from pipeline.engine.request import RequestHandle, UnarySink
from pipeline.errors import PipelineError
from pipeline.frontends.http.heads import HeadMemory
from pipeline.frontends.http.routes import (
    HandOverError,
    LaneEndpoint,
    LaneReply,
    WebResponse,
    failed_reply,
    whole,
    with_head,
)
from pipeline.frontends.link.calls import OVER, LinkCall, Peer
from pipeline.frontends.link.frames import LEFT, end_of, fields
from pipeline.proto.slices import SHORT_BYTES, Piece

POST = "post"
"""Method of the HTTP edge: the body of a POST, whose head is the metadata."""

_NO_HEAD = AnswerHead()


class PostService(NamedTuple):
    """The heads of plain POSTs with their endpoints, and the writer of large answers."""

    heads: HeadMemory
    offload: Offload


class PostCall(UnarySink, LinkCall):
    """One POST, and the sink of its answer; the HTTP port answers what the lane cannot."""

    __slots__ = ("_endpoint", "_failure", "_head", "_service", "_work")

    def __init__(
        self, peer: Peer, number: int, timeout_ns: int, metadata: bytes, service: PostService
    ) -> None:
        super().__init__(peer, number, timeout_ns, metadata)
        self._service = service
        self._endpoint: LaneEndpoint | None = None
        self._head: AnswerHead | None = None
        self._failure: PipelineError | None = None
        self._work: RequestHandle | asyncio.Task[None] | None = None

    def begin(self, message: Piece) -> None:
        """Begin a complete request."""
        head = self._service.heads.find(self._metadata)
        if head is None:
            self._peer.reset(self._number, LEFT, "its head")
            return
        self._endpoint = head.endpoint
        try:
            begun = head.endpoint.begin(message, self)
        except HandOverError:
            self._peer.reset(self._number, LEFT, "")
        except Exception as error:
            self.end(error)
        else:
            self._work = self._work or begun  # it may have ended by now, and be written

    def begin_long(self, message: memoryview) -> None:
        """Begin a request whose body is in the server's memory."""
        self.begin(message)

    def _begin_long(self, pieces: list[Piece]) -> None:
        """Begin a request whose body arrived in several frames; the HTTP port gets a large one."""
        if self._size > SHORT_BYTES:
            self._peer.reset(self._number, LEFT, "")
        else:
            self.begin(b"".join(pieces))

    def take_head(self, head: AnswerHead) -> None:
        """Note the head that user code set."""
        self._head = head

    def fail(self, error: PipelineError) -> None:
        """Note the error in the answer."""
        self._failure, self._head = error, error.head or _NO_HEAD

    def end(self, answer: Any) -> None:
        """Send the answer."""
        assert self._endpoint is not None, "it has begun"
        self._work = OVER
        reply: LaneReply
        try:
            reply = self._endpoint.reply(answer, self._failure)
        except Exception as error:
            reply = failed_reply(error)
        if isinstance(reply, bytes) and self._head is None:
            self._peer.answer(self._number, reply)
        elif isinstance(reply, bytes | WebResponse):
            self._send(with_head(reply, self._head))
        else:
            self._work = self._peer.loop.create_task(self._answer(reply))

    async def _answer(self, reply: Awaitable[WebResponse]) -> None:
        try:
            complete = await whole(reply, self._head)
        except Exception as error:
            complete = failed_reply(error)
        self._send(complete)

    def _send(self, reply: WebResponse) -> None:
        sent_fields = [(b"content-type", reply.content_type), *reply.headers]
        texts = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in sent_fields)
        end = end_of(0, reply.status, trailers=fields(texts))
        if reply.tail:
            pieces: list[Piece] = [reply.body, *reply.tail]
            offload = self._service.offload
            self._work = self._peer.answer_long(self._number, pieces, end, offload) or OVER
        else:
            self._peer.answer(self._number, reply.body, end)

    def cancel(self) -> None:
        """Stop its work."""
        work, self._work = self._work, OVER
        if work is not None:
            work.cancel()
