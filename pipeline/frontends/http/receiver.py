"""BodyReceiver: the protocol of a connection while large bodies come straight to their places."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.frontends.http.connection import HttpConnection

_HEAD_BYTES = 4096


class BodyReceiver(asyncio.BufferedProtocol):
    """A connection whose bodies are not copied when they have been read from the socket.

    Who has sent a large body sends another one as a rule: behind it little is read at once, so that
    the next body does not begin there. Behind anything else the connection is its own protocol.
    """

    def __init__(self, connection: HttpConnection) -> None:
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
