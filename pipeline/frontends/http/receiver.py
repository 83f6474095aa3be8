"""ReceivingConnection and BodyReceiver: large bodies are received where they are to stay."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline.engine.request import RequestHandle, UnarySink
from pipeline.errors import OverloadedError
from pipeline.frontends.http.exchange import Exchange
from pipeline.frontends.http.heads import Head
from pipeline.frontends.http.reader import RequestReader
from pipeline.frontends.http.routes import HandOverError, LaneEndpoint

if TYPE_CHECKING:
    from pipeline.frontends.http.listener import HttpListener

_HEAD_BYTES = 4096


class ReceivingConnection(UnarySink, asyncio.Protocol):
    """A connection, as far as large bodies go; the rest is an HttpConnection's."""

    __slots__ = (
        "_at", "_data", "_endpoint", "_exchange", "_is_busy", "_needed", "_reader", "_receiver",
        "_request", "_told", "has_left", "listener", "transport",
    )  # fmt: skip

    listener: HttpListener
    transport: asyncio.Transport
    has_left: bool
    _at: int
    _data: bytes
    _endpoint: LaneEndpoint | None
    _exchange: Exchange | None
    _is_busy: bool
    _needed: int
    _reader: RequestReader | None
    _receiver: BodyReceiver | None
    _request: RequestHandle | None
    _told: bytes

    def _take_large(self, head: Head, start: int) -> None:
        """Begin the next request when its body has come in, for which there is a place."""
        data, end = self._data, start + head.length
        try:
            body = self.listener.memory.place(head.length, head.aligned_at).data
        except OverloadedError:
            self._read()
            return
        self._told, self._is_busy, self._needed = data[self._at : start], True, 0
        self._data, self._at = data[end:], 0
        self._wait(self.listener.read_timeout_s)
        done = functools.partial(self._begin_large, head, body)
        self._receiver = self._receiver or BodyReceiver(self)
        self._receiver.fill(body, memoryview(data)[start:end], done)

    def _begin_large(self, head: Head, body: memoryview) -> None:
        told, self._told = self._told, b""
        self._endpoint = head.endpoint
        try:
            request = head.endpoint.begin(body, self)
        except HandOverError:
            self._endpoint = None
            exchange = self._exchange_of(told)
            exchange.placed, exchange.has_more = body, False
            self._leave_reader()
        except Exception as error:
            self.end(error)
        else:
            if self._endpoint is not None:  # it has not ended by now
                self._request = request

    def _exchange_of(self, told: bytes) -> Exchange:
        """Return the request that has a head which was found to be plain; the routes answer it."""
        rest, self._data, self._at = self._data[self._at :], told, 0
        self._read()
        self._data, self._at = rest, 0
        assert self._exchange is not None, "httptools has read it before"
        return self._exchange

    def receive(self, exchange: Exchange, body: memoryview) -> None:
        """Have the body of a request that says its length received there."""
        came, exchange.body = exchange.body, bytearray()
        if exchange.has_more:
            self._leave_reader()  # which has to see no more of it
        self._receiver = self._receiver or BodyReceiver(self)
        self._receiver.fill(body, came, exchange.has_come)
        self.pace()

    def _leave_reader(self) -> None:
        """Have the next request that the lane does not take read by another parser."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def end(self, answer: Any) -> None:
        """Write the answer of the request in the lane."""
        raise NotImplementedError

    def pace(self) -> None:
        """Read from the caller only while there is room for what it sends."""
        raise NotImplementedError

    def _read(self) -> None:
        raise NotImplementedError

    def _wait(self, seconds: float) -> None:
        raise NotImplementedError


class BodyReceiver(asyncio.BufferedProtocol):
    """A connection whose bodies are not copied when they have been read from the socket.

    Who has sent a large body sends another one as a rule: behind it little is read at once, so that
    the next body does not begin there. Behind anything else the connection is its own protocol.
    """

    def __init__(self, connection: ReceivingConnection) -> None:
        self._connection = connection
        self._head = bytearray(_HEAD_BYTES)
        self._left: memoryview | None = None  # of the place; None: between two bodies
        self._done: Callable[[], None] | None = None

    def fill(
        self, body: memoryview, came: bytearray | memoryview, done: Callable[[], None]
    ) -> None:
        """Receive the rest of a body, of which something came; call `done` then."""
        size = len(came)
        body[:size] = came
        if size == len(body):
            done()
            return
        self._left, self._done = body[size:], done
        self._connection.transport.set_protocol(self)

    def stop(self) -> None:
        """Let go of the place of a body that has not come in whole."""
        self._left = self._done = None
        if not self._connection.has_left:
            self._connection.transport.set_protocol(self._connection)

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        return self._head if self._left is None else self._left

    def buffer_updated(self, nbytes: int) -> None:
        left, done, connection = self._left, self._done, self._connection
        if left is None:
            connection.data_received(bytes(memoryview(self._head)[:nbytes]))
            if self._left is None:
                connection.transport.set_protocol(connection)
        elif nbytes < len(left):
            self._left = left[nbytes:]
        else:
            self._left = self._done = None
            assert done is not None, "they come together"
            done()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)
