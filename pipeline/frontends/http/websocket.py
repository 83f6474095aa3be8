"""WebSockets (RFC 6455) on an HttpConnection: frames to messages and back, pings, closing."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pipeline.errors import PackageError
from pipeline.frontends.http.routes import HttpError
from pipeline.proto.slices import SHORT_BYTES, SLICE_BYTES

if TYPE_CHECKING:
    from pipeline.frontends.http.exchange import Exchange

MORE, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
DONE, GOING_AWAY, PROTOCOL, NOT_UTF8, POLICY, TOO_BIG = 1000, 1001, 1002, 1007, 1008, 1009

MOST_BYTES = 16 * 2**20
"""Limit of a message: use a POST for a larger one, which is received in its final place."""

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_FIN, _RESERVED, _MASKED = 0x80, 0x70, 0x80
_MOST_CONTROL_BYTES = 125
_MOST_QUEUED = 16  # messages that wait for the coroutine
_MOST_FRAMES = 64  # read in one round of the event loop
_PING_S = 20.0
_CLOSE_S = 5.0  # for the client to answer our close
_CODES_OF_CALLERS = (*range(1000, 1004), *range(1007, 1015), *range(3000, 5000))
_UPGRADE = (b"upgrade", b"websocket")


def accepted(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the head that accepts an upgrade. Raises HttpError: it is not a valid upgrade."""
    tokens = {token.strip() for token in headers.get(b"connection", b"").lower().split(b",")}
    key = headers.get(b"sec-websocket-key", b"")
    if not key or b"upgrade" not in tokens:
        text = (
            "this path is a WebSocket: open it with ws://. The gateway passes none on: behind it, "
            "ask the server's own port (http_server: embedded), or POST for a stream of events"
        )
        raise HttpError(426, PackageError(text), _UPGRADE)
    if headers.get(b"sec-websocket-version") != b"13":
        error = PackageError("Sec-WebSocket-Version has to be 13")
        raise HttpError(426, error, _UPGRADE, (b"sec-websocket-version", b"13"))
    try:
        is_key = len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        is_key = False
    if not is_key:
        raise HttpError(400, PackageError("Sec-WebSocket-Key has to be 16 bytes in base64"))
    digest = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"sec-websocket-accept: %b\r\n\r\n" % digest
    )


class WebMessage(NamedTuple):
    """A whole message, or a control frame: TEXT, BINARY, PING, PONG or CLOSE; MORE: incomplete."""

    kind: int
    data: bytes


class WebSocketError(Exception):
    """The client broke the protocol; `code` is the close code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class WebSocketReader:
    """Reader of a client's frames.

    The work of each call of `take` depends on its bytes, not on the size of the message.

    Args:
        most_bytes: limit of one message.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._came = bytearray()
        self._kind = MORE  # kind of the incomplete message; MORE: there is none
        self._message = bytearray()
        self._frame: _Frame | None = None

    def take(self, data: bytes) -> Iterator[WebMessage]:
        """Yield each complete message; a caller that stops early continues with no data.

        Raises WebSocketError; nothing is read after it.
        """
        self._came += data
        while True:
            frame = self._frame or self._head()
            if frame is None:
                return
            self._frame = frame
            piece = bytes(self._came[: frame.left])
            del self._came[: frame.left]
            target = frame.data if frame.kind >= CLOSE else self._message
            target += frame.unmasked(piece)
            if frame.left:
                return
            self._frame = None
            if frame.kind >= CLOSE:
                yield WebMessage(frame.kind, bytes(frame.data))
            elif frame.is_last:
                message = WebMessage(self._kind, bytes(self._message))
                self._kind, self._message = MORE, bytearray()
                yield message
            else:
                yield WebMessage(MORE, b"")

    def _head(self) -> _Frame | None:
        """Return the frame that begins; None: its head is incomplete."""
        came = self._came
        if len(came) < 2:
            return None
        first, second = came[0], came[1]
        kind, size, at = first & 0x0F, second & 0x7F, 2
        self._check(kind, first, second, size)
        if size > _MOST_CONTROL_BYTES:
            width = 2 if size == 126 else 8
            if len(came) < 2 + width:
                return None
            size, at = int.from_bytes(came[2 : 2 + width]), 2 + width
            if size < (126 if width == 2 else 65536) or size >> 63:
                raise WebSocketError(PROTOCOL, "the length of a frame is not in its shortest form")
        if kind < CLOSE and len(self._message) + size > self._most_bytes:
            raise WebSocketError(TOO_BIG, f"a message is larger than {self._most_bytes} bytes")
        if len(came) < at + 4:
            return None
        mask = bytes(came[at : at + 4])
        del came[: at + 4]
        if kind in (TEXT, BINARY):
            self._kind = kind
        return _Frame(kind, bool(first & _FIN), size, mask)

    def _check(self, kind: int, first: int, second: int, size: int) -> None:
        if first & _RESERVED:
            raise WebSocketError(PROTOCOL, "a frame has bits of an extension that was not agreed")
        if kind not in (MORE, TEXT, BINARY, CLOSE, PING, PONG):
            raise WebSocketError(PROTOCOL, f"there is no opcode {kind}")
        if not second & _MASKED:
            raise WebSocketError(PROTOCOL, "the frames of callers have to be masked")
        if kind >= CLOSE and (size > _MOST_CONTROL_BYTES or not first & _FIN):
            raise WebSocketError(PROTOCOL, "a control frame is one frame of 125 bytes at most")
        if kind < CLOSE and (kind == MORE) != (self._kind != MORE):
            raise WebSocketError(PROTOCOL, "the frames of two messages are mixed")


class _Frame:
    """A frame that is arriving."""

    def __init__(self, kind: int, is_last: bool, size: int, mask: bytes) -> None:
        self.kind = kind
        self.is_last = is_last
        self.left = size
        self.data = bytearray()  # of a control frame
        self._mask = mask

    def unmasked(self, piece: bytes) -> bytes:
        """Return the next piece of the payload, unmasked."""
        size, mask = len(piece), self._mask
        self.left -= size
        at = size % 4
        self._mask = mask[at:] + mask[:at]  # for the next piece
        key = (mask * (size // 4 + 1))[:size]
        plain = int.from_bytes(piece, "little") ^ int.from_bytes(key, "little")
        return plain.to_bytes(size, "little")


def frame(kind: int, data: bytes, is_last: bool = True) -> bytes:
    """Return a server's frame, which has no mask."""
    size, first = len(data), kind | (_FIN if is_last else 0)
    if size < 126:
        return bytes((first, size)) + data
    if size < 65536:
        return bytes((first, 126)) + size.to_bytes(2) + data
    return bytes((first, 127)) + size.to_bytes(8) + data


def _close_code(data: bytes) -> int:
    """Return the code of a client's close. Raises WebSocketError."""
    if not data:
        return DONE
    code = int.from_bytes(data[:2])
    if len(data) == 1 or code not in _CODES_OF_CALLERS:
        raise WebSocketError(PROTOCOL, "a close has a code of 1000 to 4999 that callers may use")
    try:
        data[2:].decode()
    except UnicodeDecodeError:
        raise WebSocketError(NOT_UTF8, "the reason of a close is not UTF-8") from None
    return code


class WebSocket(asyncio.Protocol):
    """A connection that has left HTTP, for the coroutine that uses it.

    Args:
        exchange: the request for the upgrade.
        most_bytes: limit of a client's message.
        ping_s: interval of pings; a client that is silent for twice that time is disconnected.

    Attributes:
        is_last: the server stops: no further request is accepted.
    """

    def __init__(self, exchange: Exchange, most_bytes: int, ping_s: float = _PING_S) -> None:
        self.is_last: bool = False
        self._exchange = exchange
        self._connection = exchange.connection
        self._transport = exchange.connection.transport
        self._loop = asyncio.get_running_loop()
        self._frames = WebSocketReader(most_bytes)
        self._messages: deque[WebMessage] = deque()
        self._news = asyncio.Event()  # for the receiver
        self._room = asyncio.Event()  # for the senders
        self._room.set()
        self._sending = asyncio.Lock()
        self._has_left = False  # the client has closed, or its frames are ignored now
        self._is_closing = False  # we sent a close
        self._is_closed = False  # the client's close arrived, or is not awaited
        self._is_held = False  # reading is paused
        self._has_unread = False  # frames wait for the next turn of the loop
        self._next: asyncio.Handle | None = None  # of that turn
        self._ping_s = ping_s
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(ping_s, self._look)

    # What the event loop calls ------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._read(data)

    def pause_writing(self) -> None:
        self._connection.pause_writing()
        self._room.clear()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_left = True
        self._timer.cancel()
        self._room.set()
        self._connection.connection_lost(exc)

    # Messages ----------------------------------------------------------------------------

    async def receive(self, is_stopping: bool = False) -> WebMessage | None:
        """Return the next message; None: the client has left, or the server stops.

        `is_stopping`: continue although the server stops.
        """
        while not (self._has_left or (self.is_last and not is_stopping)):
            if self._messages:
                message = self._messages.popleft()
                self._go_on()
                return message
            self._news.clear()
            await self._news.wait()
        return None

    async def send(self, text: bytes) -> None:
        """Send a text; return when the client has room for another one."""
        async with self._sending:
            kind = TEXT
            for at in range(0, len(text) or 1, SLICE_BYTES):
                try:
                    await self._room.wait()
                except asyncio.CancelledError:
                    if kind == MORE and not (self._has_left or self._is_closing):
                        self._transport.write(
                            frame(MORE, text[at:])
                        )  # frames of two messages do not mix
                    raise
                if self._has_left or self._is_closing:
                    return
                is_last = at + SLICE_BYTES >= len(text)
                self._transport.write(frame(kind, text[at : at + SLICE_BYTES], is_last))
                kind = MORE
            self._exchange.sent_bytes += len(text)
            await self._room.wait()

    def close(self, code: int, why: str = "") -> None:
        """Announce that nothing follows."""
        if not self._is_closing and not self._transport.is_closing():
            self._is_closing = True
            reason = why.encode()[: _MOST_CONTROL_BYTES - 2].decode("utf-8", "ignore").encode()
            self._transport.write(frame(CLOSE, code.to_bytes(2) + reason))

    def shutdown(self) -> None:
        """Accept no further request, because the server stops."""
        self.is_last = True
        self._news.set()

    async def end(self) -> None:
        """Close, wait for the client's close, and disconnect."""
        self.close(GOING_AWAY if self.is_last else DONE)
        self.is_last = True
        self._messages.clear()
        self._go_on()
        try:
            async with asyncio.timeout(_CLOSE_S):
                while not self._has_left:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            self._has_left = self._is_closed = True  # the wait was long enough
        self._timer.cancel()
        self._exchange.has_more = not self._is_closed
        self._connection.ended(self._exchange)

    # Within -------------------------------------------------------------------------------

    def _read(self, data: bytes = b"") -> None:
        """Read some of the waiting frames, while there is room for messages."""
        frames = () if self._has_left else self._frames.take(data)
        self._has_unread = False
        try:
            for count, message in enumerate(frames):
                self._got(message)
                if self._has_left:
                    break
                if count >= _MOST_FRAMES or len(self._messages) >= _MOST_QUEUED:
                    self._has_unread = True
                    break
        except WebSocketError as error:
            self._leave(error.code, str(error))
        self._go_on()

    def _go_on(self) -> None:
        """Read the remaining frames in another turn of the loop, after other connections."""
        if self._has_unread and self._next is None and len(self._messages) < _MOST_QUEUED:
            self._next = self._loop.call_soon(self._turn)
        self._pace()

    def _turn(self) -> None:
        self._next = None
        self._read()

    def _got(self, message: WebMessage) -> None:
        if message.kind == PING:
            if self._room.is_set() and not self._is_closing:  # otherwise it reads nothing
                self._transport.write(frame(PONG, message.data))
        elif message.kind == CLOSE:
            code = _close_code(message.data)
            self._is_closed = True
            self._leave(code)
        elif message.kind in (TEXT, BINARY):
            is_short = len(message.data) <= SHORT_BYTES  # the reader of a longer message checks it
            if message.kind == TEXT and is_short and not _is_utf8(message.data):
                raise WebSocketError(NOT_UTF8, "a text is not UTF-8")
            if not self._is_closing:
                self._messages.append(message)
            self._news.set()

    def _leave(self, code: int, why: str = "") -> None:
        """Close, and ignore all further frames."""
        self.close(code, why)
        self._has_left = True
        self._news.set()
        self._room.set()

    def _pace(self) -> None:
        """Read from the client only while its messages are taken."""
        queued = self._messages
        is_held = self._has_unread or sum(len(m.data) for m in queued) > SHORT_BYTES
        if is_held is not self._is_held and not self._transport.is_closing():
            self._is_held = is_held
            if is_held:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _look(self) -> None:
        """Ping a client; disconnect one that has not answered the last ping."""
        is_listening = self._room.is_set() and not self._is_held
        if is_listening and self._loop.time() - self._heard_at >= 2 * self._ping_s:
            self._transport.abort()
            return
        if is_listening and not self._is_closing:
            self._transport.write(frame(PING, b""))
        self._timer = self._loop.call_later(self._ping_s, self._look)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
