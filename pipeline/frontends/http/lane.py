"""LaneConnection: plain POSTs from bytes to the engine and back, without a task, future or ASGI.

A connection begins here. The first thing on it that is unusual has it handed over to
HttpConnection for good, with the bytes as they came: GET, chunks, half a head, a body that is large
or no valid request; see `heads` for all of it. So there is little to do: one request at a time,
those behind it wait as bytes; who does not read its answers is not read from; who takes too long
for a body is handed over to be told so.

Which paths have a lane is up to LaneServices (see `routes`), which frontends add to
`FrontendContext.lanes`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from pipeline.answer_head import AnswerHead
from pipeline.engine.request import RequestHandle, UnarySink
from pipeline.errors import PipelineError, UserCodeError
from pipeline.frontends.http.heads import HeadMemory
from pipeline.frontends.http.routes import (
    HandOverError,
    LaneEndpoint,
    LaneReply,
    WebResponse,
    error_body,
    with_head,
)
from pipeline.proto.slices import SHORT_BYTES

if TYPE_CHECKING:
    from pipeline.frontends.http.connection import HttpConnection
    from pipeline.frontends.http.listener import HttpListener

_LOGGER = logging.getLogger(__name__)

_END = b"\r\n\r\n"
_MAX_AHEAD_BYTES = SHORT_BYTES  # that wait for the request before them; plus one packet
_ANSWER_ONLY = b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n"
_PACKET_BYTES = 32768  # less than HttpConnection lets a head have
_NO_HEAD = AnswerHead()


class LaneConnection(UnarySink, asyncio.Protocol):
    """One connection, and the sink of the request that is answered on it.

    Args:
        heads: those of plain requests.
        take_over: makes the HttpConnection that the unusual is left to.
    """

    __slots__ = (
        "_at", "_data", "_due", "_endpoint", "_failure", "_head", "_heads", "_is_busy", "_is_full",
        "_is_held", "_is_last", "_listener", "_loop", "_needed", "_request", "_take_over", "_timer",
        "_timer_due", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(
        self, listener: HttpListener, heads: HeadMemory, take_over: Callable[[], HttpConnection]
    ) -> None:
        self._listener = listener
        self._heads = heads
        self._take_over = take_over
        self._endpoint: LaneEndpoint | None = None  # of the request that is answered
        self._request: RequestHandle | None = None
        self._head: AnswerHead | None = None  # of its answer
        self._failure: PipelineError | None = None  # that its answer tells; none without a head
        self._is_busy = False  # one is answered: what comes now waits
        self._is_full = False  # the caller does not read its answers
        self._is_held = False  # it has sent too much ahead, and is not read from
        self._is_last = False  # the connection ends with the answer that is given next
        self._data = b""  # what came; up to `_at` it is answered
        self._at = 0
        self._needed = 0  # bytes of `_data` that begin with half a request; 0: they do not
        self._due = 0.0  # on the loop's clock: when a caller that is silent is given up
        self._timer: asyncio.Handle | None = None
        self._timer_due = 0.0  # uvloop has no `when` of what is due at once

    # What the event loop calls ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's are no subclasses
        self._loop = asyncio.get_running_loop()
        self._listener.connections.add(self)
        self._wait(self._listener.read_timeout_s)

    def data_received(self, data: bytes) -> None:
        if self._data:
            self._data = self._data[self._at :] + data
            self._at = 0
        else:
            self._data = data
        if self._is_busy or self._is_full:
            if len(self._data) > _MAX_AHEAD_BYTES:
                self._is_held = True
                self.transport.pause_reading()
        elif len(self._data) >= self._needed:
            self._take()

    def pause_writing(self) -> None:
        self._is_full = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        if not self._is_held:
            self.transport.resume_reading()
        if not self._is_busy:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._data = b""
        request, self._request = self._request, None
        if request is not None:
            request.cancel()
        self._listener.lost.set()

    # Requests -----------------------------------------------------------------------------

    def _take(self) -> None:
        """Begin the next request, if all of it is there."""
        data, at = self._data, self._at
        start = data.find(_END, at) + len(_END)
        head = self._heads.find(data[at:start])
        if head is None:
            self._hand_over()
            return
        end = start + head.length
        if end > len(data):
            self._data, self._at, self._needed = data[at:], 0, end - at
            self._wait(self._listener.read_timeout_s)
            return
        self._needed = 0
        if end == len(data):
            self._data, self._at = b"", 0
        else:
            self._at = end
        self._endpoint, self._is_busy = head.endpoint, True
        try:
            request = head.endpoint.begin(data[start:end], self)
        except HandOverError:
            self._data, self._at = data, at
            self._hand_over()
        except Exception as error:
            self.end(error)
        else:
            if self._endpoint is not None:  # it has not ended by now
                self._request = request

    def say(self, head: AnswerHead) -> None:
        """Take what user code says of the answer's head."""
        self._head = head

    def fail(self, error: PipelineError) -> None:
        """Take the error that the answer tells."""
        self._failure, self._head = error, error.head or _NO_HEAD

    def end(self, answer: Any) -> None:
        """Write the answer of the request."""
        endpoint, self._endpoint, self._request = self._endpoint, None, None
        reply: LaneReply
        try:
            assert endpoint is not None, "a request ends once"
            reply = endpoint.reply(answer, self._failure)
        except Exception as error:  # a bug of ours: that caller is told
            _LOGGER.exception("a request failed", exc_info=error)
            reply = WebResponse(500, error_body(UserCodeError("internal error of the server")))
        if self._head is not None:
            reply = _headed(reply, self._head)
            self._head = self._failure = None
        if type(reply) is bytes and not (self._is_last or self._listener.is_draining):
            self.transport.write(b"%b%d\r\n\r\n%b" % (self._listener.ok_head(), len(reply), reply))
        elif isinstance(reply, bytes | WebResponse):
            self._write(WebResponse(body=reply) if isinstance(reply, bytes) else reply)
        else:
            self._hand_over(reply)
            return
        self._due = self._loop.time() + self._listener.keep_alive_s
        if self._data:
            self._loop.call_soon(self._go_on)
        else:
            self._is_busy = False

    def _write(self, reply: WebResponse) -> None:
        """Write an answer, and hang up if it is the last: unless more was asked before it."""
        is_last = self._is_last or self._listener.is_draining
        is_last = is_last and self._data.find(_END, self._at) < 0
        self.transport.write(self._listener.answer(reply, is_last))
        if is_last:
            self._data = b""
            self.transport.close()

    def _go_on(self) -> None:
        """Take the next of the requests that were sent ahead."""
        self._is_busy = False
        if self._is_full or self.transport.is_closing():
            return
        if self._data and len(self._data) >= self._needed:
            self._take()
        is_short = len(self._data) - self._at <= _MAX_AHEAD_BYTES
        if self._is_held and (is_short or not self._is_busy):
            self._is_held = False
            if not self._is_full:
                self.transport.resume_reading()

    # The end of the lane ------------------------------------------------------------------

    def _hand_over(self, answer: Awaitable[WebResponse] | None = None) -> HttpConnection:
        """Leave the connection to HttpConnection, which gives `answer` first."""
        self._leave()
        data = self._data[self._at :]
        successor = self._take_over()
        self.transport.set_protocol(successor)
        successor.connection_made(self.transport)
        if self._is_held:
            self._is_held = False
            self.transport.resume_reading()
        if answer is not None:
            successor.given = answer
            successor.data_received(_ANSWER_ONLY)
        for at in range(0, len(data), _PACKET_BYTES):
            successor.data_received(data[at : at + _PACKET_BYTES])
        if self._is_last:
            successor.shutdown()
        return successor

    @property
    def is_idle(self) -> bool:
        """True if nothing is asked on it."""
        return not (self._is_busy or self._data or self._needed)

    def shutdown(self) -> None:
        """End the connection, with its answer if one is asked for."""
        self._is_last = True
        if self._needed and not self._is_busy:
            self._hand_over()
        elif not self._is_busy:
            self.transport.close()

    def _leave(self) -> None:
        self._listener.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, seconds: float) -> None:
        """Give the caller up if it says nothing for so long."""
        self._due = self._loop.time() + seconds
        if self._timer is None or self._timer_due > self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due = self._due
            self._timer = self._loop.call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        self._timer = None
        left_s = self._due - self._loop.time()
        if self._is_busy:  # it is we who take that long
            self._wait(self._listener.keep_alive_s)
        elif left_s > 0:
            self._wait(left_s)
        elif self._needed:
            self._hand_over().time_out()
        else:
            self.transport.close()


def _headed(reply: LaneReply, head: AnswerHead) -> LaneReply:
    if isinstance(reply, bytes | WebResponse):
        return with_head(reply, head)

    async def later() -> WebResponse:
        return with_head(await reply, head)

    return later()
