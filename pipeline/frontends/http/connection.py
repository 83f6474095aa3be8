"""HttpConnection: a client's connection. Plain POSTs use the lane, other requests a task.

The lane leads from bytes to the engine and back without a task, future or parser; HeadMemory knows
the heads that lead there. A RequestReader reads anything else, for example GET, chunks or a partial
head, and a task answers it by the routes. A BodyReceiver receives large bodies in their final
place. In both cases requests are served one at a time; later ones wait as bytes. The connection
stops reading from a client that does not read its answers, and limits the time for a request to
arrive.

LaneServices (see `routes`) decide which paths have a lane; frontends add them to
`FrontendContext.lanes`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pipeline.answer_head import AnswerHead
from pipeline.engine.request import RequestHandle, UnarySink
from pipeline.errors import DeadlineError, OverloadedError, PipelineError
from pipeline.frontends.http.exchange import Exchange
from pipeline.frontends.http.reader import END, RequestReader
from pipeline.frontends.http.receiver import BodyReceiver
from pipeline.frontends.http.routes import (
    HandOverError,
    HttpError,
    LaneEndpoint,
    LaneReply,
    WebResponse,
    error_body,
    failed_reply,
    with_head,
)
from pipeline.proto.slices import SHORT_BYTES

if TYPE_CHECKING:
    from pipeline.frontends.http.listener import HttpListener

_MAX_AHEAD_BYTES = SHORT_BYTES  # that wait for the previous request; plus one packet
_LINGER_TIMEOUT_S = 5.0  # so that a client that still sends sees the answer
_LINGER_BYTES = 4 << 20  # a client that has sent so many bytes in this time gets it again
_MAX_LINGER_S = 30.0
_NO_HEAD = AnswerHead()


class HttpConnection(UnarySink, asyncio.Protocol):
    """One connection; also the sink of its active request in the lane.

    Attributes:
        listener: shared by all connections.
        endpoint: of the active request in the lane, or None.
        request: that request, if the engine has it.
        is_full: the client does not read its answers.
        has_left: the connection is lost.
        is_held: reading is paused, because there is no room.
    """

    __slots__ = (
        "_at", "_data", "_due", "_exchange", "_failure", "_head", "_heads", "_ignored_bytes",
        "_is_busy", "_is_ignoring", "_is_last", "_linger_ends", "_loop", "_needed", "_reader",
        "_receiver", "_timer", "_timer_due", "endpoint", "has_left", "is_full", "is_held",
        "listener", "request", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, listener: HttpListener) -> None:
        self.listener: HttpListener = listener
        self.is_full: bool = False
        self.has_left: bool = False
        self.is_held: bool = False
        self._heads = listener.heads
        self.endpoint: LaneEndpoint | None = None
        self.request: RequestHandle | None = None
        self._head: AnswerHead | None = None  # of the request's answer
        self._failure: PipelineError | None = None  # in the request's answer; only with a head
        self._reader: RequestReader | None = None  # of requests outside the lane
        self._receiver: BodyReceiver | None = None  # of large bodies
        self._exchange: Exchange | None = None  # the active request outside the lane
        self._is_busy = False  # a request is being parsed or answered: later bytes wait
        self._is_last = False  # the connection ends with the next answer
        self._is_ignoring = False  # all further bytes, until the connection ends
        self._ignored_bytes = 0  # in this part of the linger time
        self._linger_ends = 0.0  # on the loop's clock
        self._data = b""  # received bytes; read up to `_at`
        self._at = 0
        self._needed = (
            0  # minimum of bytes in `_data` before a partial request is read again; 0: none
        )
        self._due = 0.0  # on the loop's clock: when a silent client is disconnected
        self._timer: asyncio.Handle | None = None
        self._timer_due = 0.0  # uvloop has no `when` for a timer that is due at once

    # What the event loop calls ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's are not subclasses
        self._loop = asyncio.get_running_loop()
        self.listener.connections[self] = None
        self._wait(self.listener.read_timeout_s)

    def data_received(self, data: bytes) -> None:
        if self._data:
            self._data = self._data[self._at :] + data
            self._at = 0
        else:
            self._data = data
        if self._is_busy or self.is_full:
            self._read_on()
            self.pace()
        elif len(self._data) >= self._needed:
            self._take()

    def pause_writing(self) -> None:
        self.is_full = True
        self.pace()

    def resume_writing(self) -> None:
        self.is_full = False
        if self._exchange is not None:
            self._exchange.wake()
        self.pace()
        if not self._is_busy:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_left = True
        self.listener.connections.pop(self, None)
        self.listener.lost.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ignore()
        request, self.request = self.request, None
        exchange, self._exchange = self._exchange, None
        if request is not None:
            request.cancel()
        elif exchange is not None:
            exchange.wake()
            if exchange.task is not None:
                exchange.task.cancel()

    # Requests in the lane -----------------------------------------------------------------

    def _take(self) -> None:
        """Begin the next request, in the lane if all of it has arrived."""
        data, at = self._data, self._at
        start = data.find(END, at) + len(END)
        head = self._heads.find(data[at:start])
        if head is None:
            self._read()
            return
        end = start + head.length
        if head.length > SHORT_BYTES:
            try:
                body = self.listener.memory.place(head.length, head.aligned_at).data
            except OverloadedError:
                self._read()
                return
            self._is_busy, self._needed = True, 0
            self._data, self._at = data[end:], 0
            self._wait(self.listener.read_timeout_s)
            receiver = self._receiver = self._receiver or BodyReceiver(self)
            receiver.take(head, data[at:start], body, memoryview(data)[start:end])
            return
        if end > len(data):
            self._data, self._at, self._needed = data[at:], 0, end - at
            self._wait(self.listener.read_timeout_s)
            return
        self._needed = 0
        if end == len(data):
            self._data, self._at = b"", 0
        else:
            self._at = end
        self.endpoint, self._is_busy = head.endpoint, True
        try:
            request = head.endpoint.begin(data[start:end], self)
        except HandOverError:
            self.endpoint, self._data, self._at = None, data, at
            self._read()
        except Exception as error:
            self.end(error)
        else:
            if self.endpoint is not None:  # it has not ended yet
                self.request = request

    def take_head(self, head: AnswerHead) -> None:
        """Note the head that user code set."""
        self._head = head

    def fail(self, error: PipelineError) -> None:
        """Note the error in the answer."""
        self._failure, self._head = error, error.head or _NO_HEAD

    def end(self, answer: Any) -> None:
        """Write the answer of the request."""
        endpoint, self.endpoint, self.request = self.endpoint, None, None
        reply: LaneReply
        try:
            assert endpoint is not None, "a request ends once"
            reply = endpoint.reply(answer, self._failure)
        except Exception as error:  # a bug in this library: the client gets an error
            reply = failed_reply(error)
        if self._head is not None:
            reply = _headed(reply, self._head)
            self._head = self._failure = None
        if type(reply) is bytes and not (self._is_last or self.listener.is_draining):
            self.transport.write(b"%b%d\r\n\r\n%b" % (self.listener.ok_head, len(reply), reply))
        elif isinstance(reply, bytes | WebResponse):
            reply = WebResponse(body=reply) if isinstance(reply, bytes) else reply
            is_last = self.is_last
            answer = self.listener.answer(reply, is_last)
            if reply.tail:
                self.transport.writelines((answer, *reply.tail))
            else:
                self.transport.write(answer)
            if is_last:
                self.hang_up()
                return
        else:
            exchange = Exchange()
            exchange.given, exchange.has_more = reply, False
            self.serve(exchange)
            return
        self._due = self._loop.time() + self.listener.keep_alive_s
        if self._data:
            self._loop.call_soon(self._go_on)
        else:
            self._is_busy = False

    def _go_on(self) -> None:
        """Begin the next pipelined request."""
        if self._is_ignoring:
            return
        self._is_busy = False
        if self._data and not self.is_full and len(self._data) >= self._needed:
            self._take()
        elif self._is_last and not self._data:  # shut down after the head of that answer was sent
            self.hang_up()
            return
        self.pace()

    # Requests beside the lane -------------------------------------------------------------

    def _read(self) -> None:
        """Parse the received bytes, at most to the end of the request."""
        reader = self._reader
        if reader is None:
            reader = self._reader = RequestReader(self.serve)
        if not reader.is_inside:  # the first byte of a request
            if reader.due != self._due:  # the lane has answered a request since
                reader.pending_bytes = 0
            self._wait(self.listener.read_timeout_s)
            reader.due = self._due
        self._needed = 0
        error = None
        try:
            self._at = reader.read(self._data, self._at)
        except HttpError as refused:
            error = refused
        if self._at == len(self._data):
            self._data, self._at = b"", 0
        if self._exchange is not None:
            self._exchange.wake()
        if error is not None:
            self._refuse(error)
        elif reader.is_inside and len(self._data) - self._at >= len(END):
            self._loop.call_soon(self._read_on)
        self._is_busy = reader.is_inside or self._exchange is not None or self._is_ignoring
        self.pace()

    def _read_on(self) -> None:
        """Continue to read a partial request."""
        if self._is_ignoring:
            self._ignored_bytes += len(self._data)
            self._data = b""
        elif self._reader is not None and self._reader.is_inside:
            self._read()

    def receive(self, exchange: Exchange, body: memoryview) -> None:
        """Receive the rest of a body of a declared length in `place`."""
        if self._reader is not None:  # which must not see the rest
            self._reader.close()
            self._reader = None
        came, exchange.body = exchange.body, bytearray()
        self._receiver = self._receiver or BodyReceiver(self)
        self._receiver.fill(body, came, exchange.has_come)
        self.pace()

    def serve(self, exchange: Exchange) -> None:
        """Have the routes answer a request."""
        self._is_busy = True
        self._exchange, exchange.connection = exchange, self
        task = self._loop.create_task(self.listener.app(exchange))
        self.listener.tasks.add(task)
        task.add_done_callback(self.listener.tasks.discard)

    def ended(self, exchange: Exchange) -> None:
        """Continue with the next request after an answer."""
        if exchange is not self._exchange:  # the client has disconnected
            return
        self._exchange = None
        if not exchange.keeps_alive:
            self.hang_up(exchange.has_more or self._is_ignoring or bool(self._data))
            return
        self._due = self._loop.time() + self.listener.keep_alive_s
        self._loop.call_soon(self._go_on)

    def _refuse(self, error: HttpError) -> None:
        """Answer the current request with an error, and close the connection."""
        self._ignore()
        if self._exchange is not None:
            self._exchange.body_error = error
            self._exchange.wake()
            return
        reply = WebResponse(error.status, error_body(error.error))
        self.transport.write(self.listener.answer(reply, is_last=True))
        self.hang_up(still_sends=True)

    def pace(self) -> None:
        """Read from the client only while there is room."""
        exchange, is_held = self._exchange, False
        if self._is_ignoring:
            pass
        elif self._is_busy and len(self._data) - self._at > _MAX_AHEAD_BYTES:
            is_held = True
        elif exchange is None:
            is_held = self.is_full
        else:
            is_held = len(exchange.body) > _MAX_AHEAD_BYTES
        if is_held is not self.is_held and not (self.has_left or self.transport.is_closing()):
            self.is_held = is_held
            if is_held:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    # The end of the connection ------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Return whether no request is active."""
        return not (self._is_busy or self._data)

    @property
    def is_last(self) -> bool:
        """Return whether the next answer ends the connection: not if more requests have arrived."""
        return (self._is_last or self.listener.is_draining) and self._data.find(END, self._at) < 0

    def shutdown(self) -> None:
        """End the connection, after the answer to an active request."""
        self._is_last = True
        is_inside = self._reader is not None and self._reader.is_inside
        is_unasked = self._exchange is None and (is_inside or self._is_ignoring)
        if is_unasked or not (self._is_busy or self._needed):
            self.hang_up()
        elif self._exchange is not None and self._exchange.socket is not None:
            self._exchange.socket.shutdown()

    def hang_up(self, still_sends: bool = False) -> None:
        """Close; a client that still sends gets time to read its answer.

        Otherwise its system drops unread data as soon as we refuse what it sends.
        """
        self._ignore()
        if not still_sends or self.transport.is_closing():
            self.transport.close()
            return
        self.transport.write_eof()
        self.pace()
        self._ignored_bytes, self._linger_ends = 0, self._loop.time() + _MAX_LINGER_S
        self._wait(_LINGER_TIMEOUT_S)

    def _ignore(self) -> None:
        """Drop all further bytes."""
        self._is_ignoring = self._is_busy = True
        self._data, self._at = b"", 0
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._receiver is not None:
            self._receiver.stop()

    def _wait(self, seconds: float) -> None:
        """Disconnect a client that is silent for too long."""
        self._due = self._loop.time() + seconds
        if self._timer is None or self._timer_due > self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due = self._due
            self._timer = self._loop.call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        self._timer = None
        left_s = self._due - self._loop.time()
        if left_s > 0:
            self._wait(left_s)
            return
        if self._needed:
            self._read()
        elif self._receiver is not None and (given_up := self._receiver.give_up()) is not None:
            self.serve(given_up)
        exchange = self._exchange
        if exchange is not None and exchange.has_more and not self._is_ignoring:
            text = f"the request's body did not arrive within {self.listener.read_timeout_s:g} s"
            self._refuse(HttpError(408, DeadlineError(text)))
        if (
            exchange is not None or self.endpoint is not None
        ):  # the server takes that long, not the client
            self._wait(self.listener.keep_alive_s)
        elif self._ignored_bytes >= _LINGER_BYTES and self._loop.time() < self._linger_ends:
            self._ignored_bytes = 0
            self._wait(_LINGER_TIMEOUT_S)
        else:
            self.hang_up()


def _headed(reply: LaneReply, head: AnswerHead) -> LaneReply:
    if isinstance(reply, bytes | WebResponse):
        return with_head(reply, head)

    async def later() -> WebResponse:
        return with_head(await reply, head)

    return later()
