"""BodyReceiver: receives large bodies in their final place."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pipeline.frontends.http.exchange import Exchange
from pipeline.frontends.http.heads import Head
from pipeline.frontends.http.reader import RequestReader
from pipeline.frontends.http.routes import HandOverError

if TYPE_CHECKING:
    from pipeline.frontends.http.connection import HttpConnection

_HEAD_BYTES = 4096
# In one turn of the loop: 1 MiB takes 0.2 ms, and all other connections wait.
_PIECE_BYTES = 128 * 1024  # of a body
_TURN_BYTES = 2 * _PIECE_BYTES  # of all bodies that continue


class PieceTurns:
    """Queue of the connections that have more of a large body to read, a few in each turn."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def add(self, size: int, read_on: Callable[[], None]) -> None:
        """Have a connection read `size` bytes more in one of the next turns of the loop."""
        self._waiting.append((size, read_on))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        room = _TURN_BYTES
        try:
            while self._waiting and room > 0:
                size, read_on = self._waiting.popleft()
                room -= size
                read_on()
        finally:
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._take)


class BodyReceiver(asyncio.BufferedProtocol):
    """The protocol of a connection while a large body arrives; it reads into the body's place.

    A client that sent a large body usually sends another one: after it the next read is short, so
    that the next body does not begin in it. After anything else the connection is its own protocol
    again.
    """

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self._head = bytearray(_HEAD_BYTES)
        self._left: memoryview | None = None  # of the place; None: no body is arriving
        self._done: Callable[[], None] | None = None
        self._raw_head = b""  # head of the request in the lane whose body is arriving

    def take(self, head: Head, raw_head: bytes, body: memoryview, came: memoryview) -> None:
        """Begin a request in the lane when its body has arrived; `raw_head` is its head."""
        self._raw_head = raw_head
        self.fill(body, came, functools.partial(self._begin, head, body))

    def _begin(self, head: Head, body: memoryview) -> None:
        connection, raw_head = self._connection, self._raw_head
        self._raw_head = b""
        connection.endpoint = head.endpoint
        try:
            request = head.endpoint.begin(body, connection)
        except HandOverError:
            connection.endpoint = None
            exchange = _exchange_of(raw_head)
            exchange.placed, exchange.has_more = body, False
            connection.serve(exchange)
        except Exception as error:
            connection.end(error)
        else:
            if connection.endpoint is not None:  # it has not ended yet
                connection.request = request

    def fill(
        self, body: memoryview, came: bytearray | memoryview, done: Callable[[], None]
    ) -> None:
        """Receive the rest of a body that began in other bytes; call `done` then."""
        size = len(came)
        body[:size] = came
        transport = self._connection.transport
        if transport.get_protocol() is not self:  # otherwise uvloop registers the socket again
            transport.set_protocol(self)
        if size == len(body):
            done()
        else:
            self._left, self._done = body[size:], done

    def stop(self) -> None:
        """Release the place of a body that has not arrived completely."""
        self._left = self._done = None
        self._raw_head = b""
        if not self._connection.has_left:
            self._connection.transport.set_protocol(self._connection)

    def give_up(self) -> Exchange | None:
        """Return the request in the lane whose body does not arrive, for the routes, or None."""
        raw_head = self._raw_head
        if not raw_head:
            return None
        self.stop()
        return _exchange_of(raw_head)

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        return self._head if self._left is None else self._left[:_PIECE_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        left, done, connection = self._left, self._done, self._connection
        if left is None:
            connection.data_received(bytes(memoryview(self._head)[:nbytes]))
            if self._left is None:
                connection.transport.set_protocol(connection)
        elif nbytes < len(left):
            self._left = left[nbytes:]
            if nbytes == _PIECE_BYTES:  # uvloop reads the next piece at once
                connection.transport.pause_reading()
                size = min(len(left) - nbytes, _PIECE_BYTES)
                connection.listener.piece_turns.add(size, self._read_on)
        else:
            self._left = self._done = None
            assert done is not None, "they come together"
            done()

    def _read_on(self) -> None:
        connection = self._connection
        if not (connection.is_held or connection.has_left):
            connection.transport.resume_reading()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)


def _exchange_of(raw_head: bytes) -> Exchange:
    """Return the request of a plain head; its body follows."""
    exchanges: list[Exchange] = []
    reader = RequestReader(exchanges.append)
    reader.read(raw_head, 0)
    reader.close()
    return exchanges[0]
