"""LinkCall: a gateway's call, from its first frame to its END."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import functools
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from pipeline.answer_head import AnswerHead, http_status_for
from pipeline.engine.offload import Offload
from pipeline.engine.request import RequestHandle, UnarySink
from pipeline.errors import ClosedError, PipelineError, TooLargeError, UserCodeError, http_status_of
from pipeline.frontends.grpc.server import (
    GrpcCall,
    GrpcError,
    grpc_error,
    trailing,
)
from pipeline.frontends.link.frames import (
    CALL_CREDIT,
    FRAME_BYTES,
    LAST,
    MESSAGE,
    MORE,
    OVERRUN,
    STREAM_CREDIT,
    SUCCESS,
    Window,
    end_of,
    fields,
)
from pipeline.frontends.link.outbox import Message, Sending
from pipeline.proto.inflate import whole
from pipeline.proto.slices import SHORT_BYTES, Piece

_LOGGER = logging.getLogger(__name__)

_NS_PER_S = 1e9
_BINARY = "-bin"
_AHEAD_BYTES = FRAME_BYTES  # waiting answers of a stream; above it the stream pauses
_INTERNAL = "internal error of the server"


class Peer(Protocol):
    """The connection of a call."""

    loop: asyncio.AbstractEventLoop
    max_bytes: int
    """Limit of a message."""

    def answer(self, number: int, message: Message, end: bytes = SUCCESS) -> None:
        """Answer a unary call, and end it with `end`."""

    def answer_long(
        self, number: int, pieces: Sequence[Piece], end: bytes, offload: Offload
    ) -> asyncio.Task[None] | None:
        """Answer a unary call with a long message, where the gateway can read it if possible.

        Returns a task that still copies it; None: it is sent.
        """

    def fail(self, number: int, end: bytes) -> None:
        """End a call with `end`."""

    def reset(self, number: int, reason: int, text: str) -> None:
        """Drop a call, with a reason."""

    def give_back(self, number: int, window: Window, size: int) -> None:
        """Give credit back for a call."""

    def begin(self, number: int) -> Sending:
        """Return the sender of a stream's answers."""

    def send(self, sending: Sending, message: bytes) -> None:
        """Send an answer of a stream."""

    def finish(self, sending: Sending, end: bytes = SUCCESS) -> None:
        """End a successful stream after its answers."""


class _Over:
    def cancel(self) -> None:
        """There is nothing to stop."""


OVER: RequestHandle = _Over()
"""The work of a call whose request has ended.

A request has its call for its sink: if the call kept it, both would wait for the garbage collector,
with the body.
"""


def end_of_error(error: PipelineError, grpc_status: int | None = None) -> bytes:
    """Return an END for a PipelineError, with the HTTP port's status and the gRPC port's.

    With `grpc_status` the gRPC status differs from that of its kind.
    """
    failure = grpc_error(error)
    code: int = grpc_status or failure.status.value[0]
    status = http_status_of(error) if grpc_status is None else PipelineError.http_status
    retry_after_s = failure.retry_after_s or 0
    trailers = fields(failure.trailers)
    return end_of(code, status, error.code, retry_after_s, str(error), trailers)


def end_of_exception(error: Exception, name: str) -> bytes:
    """Return an END for an exception of the method `name` of the gRPC port."""
    if isinstance(error, PipelineError):
        error = grpc_error(error)
    if not isinstance(error, GrpcError):
        _LOGGER.exception("%s failed", name, exc_info=error)  # a bug in this library
        return end_of_error(UserCodeError(_INTERNAL))
    code: int = error.status.value[0]
    status = http_status_for(error.status.name)
    trailers = fields(error.trailers)
    return end_of(code, status, error.err_no or 0, error.retry_after_s or 0, str(error), trailers)


class LinkCall(GrpcCall):
    """One call of a gateway; a GrpcCall for the methods of the gRPC port.

    Args:
        peer: its connection.
        number: its id.
        timeout_ns: the client's timeout; negative: none.
        metadata: unchanged.
    """

    __slots__ = ("_metadata", "_number", "_peer", "_pieces", "_size", "_timeout_ns", "_window")

    takes_pieces: ClassVar[bool] = True
    credit: ClassVar[int] = CALL_CREDIT
    """Bytes of DATA that its caller may send before it is given more."""

    def __init__(self, peer: Peer, number: int, timeout_ns: int, metadata: bytes) -> None:
        self._peer = peer
        self._number = number
        self._timeout_ns = timeout_ns
        self._metadata = metadata

    def headers(self) -> Iterator[tuple[str, str | bytes]]:
        """Return the client's metadata."""
        texts = self._metadata.decode("latin-1").split("\n")
        for name, value in zip(texts[::2], texts[1::2], strict=False):
            if not name.endswith(_BINARY):
                yield name, value
            else:
                with contextlib.suppress(binascii.Error):
                    yield name, base64.b64decode(value, validate=True)

    @property
    def timeout_s(self) -> float | None:
        """The client's timeout in seconds, from the call's first frame; None: none."""
        return None if self._timeout_ns < 0 else self._timeout_ns / _NS_PER_S

    # What the connection calls --------------------------------------------------------------

    def begin(self, message: bytes) -> None:
        """Begin a unary call with its complete message."""
        raise NotImplementedError

    def begin_long(self, message: memoryview) -> None:
        """Begin a unary call whose message is in the server's memory."""
        self._begin_long([message])

    def open(self, flags: int, data: bytes) -> None:
        """Begin a call with the first of several frames."""
        self._window = Window(self.credit)
        self._pieces: list[Piece] = []
        self._size = 0
        self._take(flags, data, 0)

    def take(self, flags: int, data: bytes) -> None:
        """Take a frame of DATA."""
        if self._window.take(len(data)):
            self._take(flags, data, len(data))
        else:
            self._peer.reset(self._number, OVERRUN, "more DATA than there is credit for")

    def cancel(self) -> None:
        """Stop the work of the call: its client has left."""
        raise NotImplementedError

    def end_messages(self) -> None:
        """Read no more messages, because the server stops."""

    # For the kinds of calls -----------------------------------------------------------------

    def _take(self, flags: int, data: bytes, owed: int) -> None:
        """Add a piece of a message; `size` bytes of credit are due for it."""
        self._add(data)
        self._peer.give_back(self._number, self._window, owed)
        if flags & LAST and self._size >= 0:
            pieces, self._pieces = self._pieces, []
            self._begin_long(pieces)

    def _add(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > (limit := self._peer.max_bytes):
            self._size = -1
            self._pieces.clear()
            text = f"the request is larger than max_message_bytes ({limit} bytes)"
            self._peer.fail(self._number, end_of_error(TooLargeError(text)))

    def _begin_long(self, pieces: list[Piece]) -> None:
        """Begin a unary call, of a message of any size."""
        raise NotImplementedError


class _TaskCall(LinkCall):
    """A call that a coroutine answers."""

    __slots__ = ("_end", "_method", "_offload", "_task")

    def __init__(
        self, peer: Peer, number: int, timeout_ns: int, metadata: bytes, method: Method
    ) -> None:
        super().__init__(peer, number, timeout_ns, metadata)
        self._method = method
        self._end = SUCCESS
        self._task: asyncio.Task[None] | None = None
        self.time_left: Callable[[], float | None] = (
            _unlimited if timeout_ns < 0 else _clock(peer.loop, timeout_ns / _NS_PER_S)
        )

    def take_head(self, head: AnswerHead) -> None:
        """Send the head that user code set, after the answer."""
        status = head.status or 200
        self._end = end_of(0, status, trailers=fields(trailing(None, head=head)))

    def cancel(self) -> None:
        """Cancel the coroutine, and release it: its exception refers to this call."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()


def _unlimited() -> None:
    """Return None: the client set no time limit."""


def _clock(loop: asyncio.AbstractEventLoop, timeout_s: float) -> Callable[[], float]:
    """Return a function that returns the remaining seconds."""
    deadline = loop.time() + timeout_s
    return lambda: deadline - loop.time()


class UnaryCall(_TaskCall):
    """A call of a unary method of the gRPC port."""

    __slots__ = ()

    def begin(self, message: bytes) -> None:
        """Begin."""
        self._begin_long([message])

    def _begin_long(self, pieces: list[Piece]) -> None:
        self._answer_with(self._asked(pieces))

    async def _asked(self, pieces: list[Piece]) -> Message:
        message = await self._method.joined(pieces)
        answer: Message = await self._method.answer(message, self)
        return answer

    def _answer_with(self, answer: Awaitable[Message]) -> None:
        self._task = self._peer.loop.create_task(self._answer(answer))

    async def _answer(self, answer: Awaitable[Message]) -> None:
        try:
            self._send(await answer)
        except Exception as error:
            self._fail(error)

    def _send(self, message: Message) -> None:
        if isinstance(message, bytes):
            self._peer.answer(self._number, message, self._end)
        else:
            offload = self._method.offload
            self._task = self._peer.answer_long(self._number, message, self._end, offload)

    def _fail(self, error: Exception) -> None:
        self._peer.fail(self._number, end_of_exception(error, self._method.name))


class DirectCall(UnarySink, UnaryCall):
    """A call of a method that is also a DirectMethod: the sink of its own answer."""

    __slots__ = ("_work",)

    def __init__(
        self, peer: Peer, number: int, timeout_ns: int, metadata: bytes, method: Method
    ) -> None:
        super().__init__(peer, number, timeout_ns, metadata, method)
        self._work: RequestHandle | None = None

    def begin(self, message: Piece) -> None:
        """Begin, with a coroutine only if the method needs one."""
        try:
            begun = self._method.direct.begin(message, self, self)
        except Exception as error:
            self._fail(error)
        else:
            if begun is None:
                self._begin_long([message])
            else:
                self._work = self._work or begun  # it may have ended already

    def begin_long(self, message: memoryview) -> None:
        """Begin with a message in the server's memory."""
        self.begin(message)

    def end(self, answer: Any) -> None:
        """Send the answer."""
        self._work = OVER
        try:
            reply = self._method.direct.reply(answer, self)
            if isinstance(reply, bytes | list):
                self._send(reply)
            else:
                self._answer_with(reply)
        except Exception as error:
            self._fail(error)

    def cancel(self) -> None:
        """Stop the work of the call."""
        super().cancel()
        work, self._work = self._work, OVER
        if work is not None:
            work.cancel()


class StreamCall(_TaskCall):
    """A call of a streaming method of the gRPC port.

    Credit for a message is given back when the method takes it; for a piece at once if no message
    waits. So a call holds at most its credit and one message.
    """

    __slots__ = ("_arrived", "_has_ended", "_is_closed", "_messages", "_owed", "_sending")

    credit = STREAM_CREDIT

    def open(self, flags: int, data: bytes) -> None:
        """Begin, with the first message if it has arrived."""
        self._messages: deque[tuple[list[Piece], int]] = deque()
        self._arrived = asyncio.Event()
        self._has_ended = self._is_closed = False
        self._owed = 0
        self._sending = self._peer.begin(self._number)
        self._task = self._peer.loop.create_task(self._run())
        super().open(flags, data)

    def begin(self, message: bytes) -> None:
        """Begin, with the only message."""
        self.open(MESSAGE | LAST, message)

    def end_messages(self) -> None:
        """End the stream after the answers to its messages, unless its messages have ended."""
        if self._has_ended and not self._messages:
            return
        self._is_closed = self._has_ended = True
        self._messages.clear()
        self._arrived.set()

    def _take(self, flags: int, data: bytes, owed: int) -> None:
        if self._is_closed:
            return
        if flags & MESSAGE:
            self._add(data)
            if self._size < 0:
                return
            self._owed += owed
            if flags & MORE:
                if not self._messages:
                    self._pay()
            else:
                self._messages.append((self._pieces, self._owed))
                self._pieces, self._size, self._owed = [], 0, 0
                self._arrived.set()
        if flags & LAST:
            self._has_ended = True
            self._arrived.set()

    def _pay(self) -> None:
        """Give back the credit that is due for the arriving message."""
        owed, self._owed = self._owed, 0
        self._peer.give_back(self._number, self._window, owed)

    async def _read(self) -> AsyncGenerator[Piece, None]:
        while True:
            while self._messages:
                pieces, owed = self._messages.popleft()
                message = await self._method.joined(pieces)
                self._peer.give_back(self._number, self._window, owed)
                if not self._messages:
                    self._pay()
                yield message
                del pieces, message  # free their data while this waits
            if self._has_ended:
                return
            self._arrived.clear()
            await self._arrived.wait()

    async def _run(self) -> None:
        stream, name = self._method.answer, self._method.name
        try:
            async with contextlib.aclosing(stream(self._read(), self)) as answers:
                async for message in answers:
                    await self._send(message)
            if self._is_closed:
                raise ClosedError("the server has stopped")
        except Exception as error:
            self._peer.fail(self._number, end_of_exception(error, name))
        else:
            self._peer.finish(self._sending, self._end)

    async def _send(self, message: bytes) -> None:
        """Send an answer; wait while too many are unsent."""
        sending = self._sending
        self._peer.send(sending, message)
        while sending.size > _AHEAD_BYTES:
            sending.room = self._peer.loop.create_future()
            await sending.room


class Method(NamedTuple):
    """A method of the gRPC port.

    `answer` is its function, a Unary or a Stream; `direct` is for a DirectCall; `offload` joins
    long messages.
    """

    name: str
    offload: Offload
    answer: Any
    direct: Any = None

    async def joined(self, pieces: list[Piece]) -> Piece:
        """Return a message from its pieces."""
        if len(pieces) == 1 or sum(map(len, pieces)) <= SHORT_BYTES:
            return whole(pieces)
        return (await self.offload.run(functools.partial(whole, pieces)))[0]
