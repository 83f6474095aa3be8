"""LinkFrontend: calls of our own gateway on a Unix socket, many at a time on one connection."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import socket
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import cast

import msgspec

from pipeline.engine.offload import Offload
from pipeline.engine.run.payload import LOCAL, MemoryDomain
from pipeline.errors import ClosedError, InitError, PipelineError
from pipeline.frontends.link import frames
from pipeline.frontends.link.calls import LinkCall, end_of_error
from pipeline.frontends.link.frames import (
    OPENED,
    BrokenError,
    Hello,
    Inbox,
    LinkLimits,
    MethodEntry,
    Window,
)
from pipeline.frontends.link.memory import GatewayMemory, InReach
from pipeline.frontends.link.methods import LinkMethod
from pipeline.frontends.link.outbox import Message, Outbox, Sending
from pipeline.frontends.link.places import server_at
from pipeline.frontends.listen import BACKLOG, UNIX, bind
from pipeline.proto.slices import Piece
from pipeline.workers.shm.arena import new_arena
from pipeline.workers.shm.server_memory import ServerMemory

_LOGGER = logging.getLogger(__name__)

_LARGEST = 2**31 - 1  # limit of protobuf's messages; the gateway has its own limit for answers
_MAX_CALLS = 16384  # in flight on a connection; further calls are refused before they begin
_WHOLE = frames.MESSAGE | frames.LAST
_OPENED_BYTES, _read_opened = OPENED.size, OPENED.unpack_from
_CHECK_INTERVAL_S = 5.0  # a gateway sends something at least this often
_MAX_SILENT_CHECKS = 3  # in a row: the gateway is gone


class LinkFrontend:
    """A Unix socket at which gateways call methods of a server.

    Args:
        methods: its methods.
        path: of the socket; an existing one is replaced.
        takes_trace: gateways send the client's traceparent.
        takes_headers: gateways send all headers of their clients.
        max_message_bytes: limit of a message.
        max_calls: limit of the calls in flight on a connection.
        secret: that a gateway must know; "": no secret.
        memory: of the workers, which gateways share if it is mapped.
        own_memory_mib: most memory of each region only for gateways, if it is not mapped; 0: none.
    """

    port = 0

    def __init__(
        self,
        methods: Sequence[LinkMethod],
        path: Path,
        takes_trace: bool = False,
        takes_headers: bool = False,
        max_message_bytes: int = _LARGEST,
        max_calls: int = _MAX_CALLS,
        secret: str = "",
        memory: MemoryDomain = LOCAL,
        own_memory_mib: int = 0,
    ) -> None:
        self.hello: Hello = Hello(
            limits=LinkLimits(calls=max_calls, message_bytes=max_message_bytes),
            methods=[
                MethodEntry(number, method.name, method.is_stream)
                for number, method in enumerate(methods, start=1)
            ],
            trace=takes_trace,
            headers=takes_headers,
        )
        self.methods: dict[int, LinkMethod] = dict(enumerate(methods, start=1))
        self.connections: set[Connection] = set()
        self.is_ready: bool = False
        self._secret = secret.encode()
        self._memory = cast(ServerMemory, memory) if memory.is_mapped else None
        self._own_memory_mib = own_memory_mib
        self._own_memory: ServerMemory | None = None
        self._shared: set[GatewayMemory] = set()  # with gateways whose processes may still exist
        self._path = path
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None

    async def start(self, is_ready: bool = False) -> None:
        """Bind and listen. Raises InitError: the path cannot be a socket."""
        self.is_ready = is_ready
        if self._memory is None and self._own_memory_mib:
            with contextlib.suppress(InitError, OSError):  # then all data uses the socket
                self._memory = self._own_memory = ServerMemory(new_arena(self._own_memory_mib))
        self._socket = bind(f"{UNIX}{self._path}", 0, "http_server")
        self._server = await asyncio.get_running_loop().create_unix_server(
            self.accept, sock=self._socket, backlog=BACKLOG
        )

    def accept(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return Connection(self)

    def knows(self, secret: str) -> bool:
        """Return whether `secret` is correct."""
        return hmac.compare_digest(secret.encode(), self._secret)

    def greet(self, transport: asyncio.Transport, outbox: Outbox) -> GatewayMemory | None:
        """Send the Hello, with the memory that is shared with the gateway, if any."""
        memory = self._share()
        if memory is None:
            outbox.send(frames.hello(self.hello))
            return None
        greeting = frames.hello(msgspec.structs.replace(self.hello, memory=memory.description))
        sent = memory.give(transport, greeting)
        if sent < len(greeting):
            outbox.send(greeting[sent:])
        return memory

    def _share(self) -> GatewayMemory | None:
        """Return memory to share with a gateway, or None."""
        if self._memory is None:
            return None
        try:
            shared = GatewayMemory(self._memory)
        except (OSError, ValueError, InitError):
            return None
        self._shared.add(shared)
        return shared

    def forget(self, shared: GatewayMemory, loop: asyncio.AbstractEventLoop) -> None:
        """Take memory back from a gateway when that has released it."""
        shared.leave(loop, lambda: self._shared.discard(shared))

    async def set_ready(self, ready: bool) -> None:
        """Notify every gateway."""
        self.is_ready = ready
        for connection in self.connections:
            connection.tell_state()

    async def drain(self) -> None:
        """Notify every gateway that the server is not ready."""
        await self.set_ready(False)

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop accepting connections; open ones continue."""
        if self._server is not None:
            self._server.close()
        if self._socket is not None:
            self._socket.close()

    async def stop(self, grace_s: float = 1.0) -> None:
        """End all connections; calls that are not answered after `grace_s` are refused."""
        await self.close(grace_s)
        for connection in self.connections:
            connection.leave()
        busy = [connection.when_idle() for connection in self.connections if connection.calls]
        if busy:
            await asyncio.wait(busy, timeout=grace_s)
        leaving = list(self.connections)
        for connection in leaving:
            connection.refuse_all(ClosedError("the server has stopped"))
        if leaving:
            await asyncio.wait([connection.lost for connection in leaving], timeout=grace_s)
        for connection in leaving:
            connection.transport.abort()  # the gateway does not read
        for shared in self._shared:
            shared.close()
        self._shared.clear()
        if self._own_memory is not None:
            self._own_memory.close()


class Connection(asyncio.Protocol):
    """The connection of one gateway.

    Reading pauses while the gateway does not read its answers; a silent gateway is disconnected.

    Args:
        door: has the methods.

    Attributes:
        calls: calls in flight, by id.
        lost: done when the connection is closed.
        max_bytes: limit of a message.
    """

    transport: asyncio.Transport
    lost: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop
    _outbox: Outbox
    _timer: asyncio.TimerHandle

    def __init__(self, door: LinkFrontend) -> None:
        self._door = door
        self._methods = door.methods
        self.max_bytes: int = door.hello.limits.message_bytes
        self._most_calls: int = door.hello.limits.calls
        self.calls: dict[int, LinkCall] = {}
        self._idle: asyncio.Future[None] | None = None
        self._inbox = Inbox(lambda *_: self._meet(frames.OPEN, 0, 0, b""), self._meet)
        self._last = 0  # id of the last call
        self._has_met = self._is_leaving = False
        self._reported = 0  # calls in flight, as last reported
        self._was_heard = False  # received something since the last check_alive
        self._silent_checks = 0

    # What the event loop calls --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transports are not subclasses
        self.loop = asyncio.get_running_loop()
        self._outbox = Outbox(self.loop, self.transport.write)
        self.lost = self.loop.create_future()
        self._door.connections.add(self)
        self._timer = self.loop.call_later(_CHECK_INTERVAL_S, self.check_alive)
        peer = server_at(transport.get_extra_info("socket"))
        if peer is not None and peer.is_stranger:
            self._give_up(f"it is of user {peer.user}, and this server of {os.geteuid()}")

    def data_received(self, data: bytes) -> None:
        try:
            if self._inbox.take(data):
                self._was_heard = True
        except BrokenError as error:
            self._give_up(str(error))

    def pause_writing(self) -> None:
        if not self._outbox.has_long:  # long messages fill the connection
            self.transport.pause_reading()
        self._outbox.pause()

    def resume_writing(self) -> None:
        self.transport.resume_reading()
        self._outbox.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._door.connections.discard(self)
        self.lost.set_result(None)
        self._outbox.clear()
        if self._outbox.memory is not None:
            self._door.forget(self._outbox.memory, self.loop)
        calls, self.calls = self.calls, {}
        for call in calls.values():
            call.cancel()
        self._check_idle()

    def check_alive(self) -> None:
        """Disconnect a gateway that was silent at several checks: a single check may be late
        itself.

        A partial frame does not count.
        """
        self._silent_checks = 0 if self._was_heard else self._silent_checks + 1
        self._was_heard = False
        if self._silent_checks >= _MAX_SILENT_CHECKS:
            self._give_up(f"it has said nothing for {_CHECK_INTERVAL_S * _MAX_SILENT_CHECKS:g} s")
        else:
            self._timer = self.loop.call_later(_CHECK_INTERVAL_S, self.check_alive)

    def _give_up(self, why: str) -> None:
        _LOGGER.warning("a gateway's connection is closed: %s", why)
        self.transport.abort()

    # Frames -----------------------------------------------------------------------------------

    def _meet(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Take the first frame, and send the Hello."""
        try:
            hello = frames.read_hello(kind, payload)
            if not self._door.knows(hello.secret):
                raise BrokenError("its secret is wrong")
        except BrokenError as error:
            _LOGGER.warning("a gateway's connection is closed: %s", error)
            self._inbox.use(_pass_over, _pass_over)
            self.transport.write(frames.goaway(0, str(error)))
            self.transport.close()  # after the output is sent
            return
        self._has_met = True
        self._outbox.call_credit = hello.limits.call_credit
        self._outbox.stream_credit = hello.limits.stream_credit
        self._inbox.use(self._open, self._take)
        self._outbox.memory = self._door.greet(self.transport, self._outbox)
        self.tell_state()

    def _open(self, flags: int, method: int, number: int, data: bytes, body: int, end: int) -> None:
        if end - body < _OPENED_BYTES:
            raise BrokenError(f"an OPEN of {end - body} bytes")
        timeout_ns, caller_bytes, metadata_bytes = _read_opened(data, body)
        body += _OPENED_BYTES + caller_bytes
        message = body + metadata_bytes
        if message > end:
            raise BrokenError(
                f"an OPEN with {caller_bytes} bytes of a caller and {metadata_bytes} of metadata"
            )
        if number <= self._last:
            raise BrokenError(f"the id {number} comes after {self._last}")
        self._last = number
        called = self._methods.get(method)
        if called is None:
            placed = data[message:end] if flags & frames.PLACED else b""
            self._outbox.refuse(number, placed, frames.NO_METHOD, f"no method {method}")
            return
        if self._is_leaving or len(self.calls) >= self._most_calls:
            placed = data[message:end] if flags & frames.PLACED else b""
            self._outbox.refuse(number, placed, frames.REFUSED)
            return
        metadata = data[body:message] if metadata_bytes else b""
        call = self.calls[number] = called.call(self, number, timeout_ns, metadata, called.argument)
        if flags == _WHOLE:
            call.begin(data[message:end])
        elif flags & frames.PLACED:
            call.begin_long(self._outbox.message_at(data[message:end]))
        else:
            call.open(flags, data[message:end])

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == frames.DATA:
            self._take_data(flags, number, payload)
        elif kind == frames.CREDIT:
            self._outbox.add_credit(number, frames.read_credit(payload))
        elif kind == frames.RESET:
            self._outbox.drop(number)
            if (call := self.calls.pop(number, None)) is not None:
                call.cancel()
                self._check_idle()
        elif kind == frames.PING:
            self._outbox.send(frames.frame(frames.PONG, number))
            if self._reported != len(self.calls):
                self.tell_state()
        elif kind == frames.FREED and self._outbox.memory is not None:
            self._outbox.memory.is_mapped = True
            self._outbox.memory.has_read(number)
        elif kind not in (frames.PONG, frames.GOAWAY):
            raise BrokenError(f"a frame of kind {kind} with {len(payload)} bytes")

    def _take_data(self, flags: int, number: int, payload: bytes) -> None:
        call = self.calls.get(number)
        if call is not None:
            call.take(flags, payload)
        elif number > self._last:
            raise BrokenError(f"DATA of {number}, which was not opened")

    # For calls (see `calls.Peer`) ---------------------------------------------------------

    def answer(self, number: int, message: Message | InReach, end: bytes = frames.SUCCESS) -> None:
        """Answer a unary call, and end it with `end`."""
        if self.calls.pop(number, None) is not None:
            self._outbox.answer(number, message, end)
            if self._idle is not None:
                self._check_idle()

    def answer_long(
        self, number: int, pieces: Sequence[Piece], end: bytes, offload: Offload
    ) -> asyncio.Task[None] | None:
        """Answer a unary call with a long message, where the gateway can read it if possible.

        Returns a task that still copies it; None: it is sent.
        """
        memory = self._outbox.memory
        if memory is None:
            self.answer(number, pieces, end)
            return None
        places = memory.in_reach(pieces, frames.FRAME_BYTES - len(end))
        if places is not None:
            self.answer(number, places, end)
            return None
        copied = memory.copied(pieces, offload)
        return self.loop.create_task(_answer_copied(self, number, copied, end))

    def fail(self, number: int, end: bytes) -> None:
        """End a call with `end`."""
        if self.calls.pop(number, None) is not None:
            self._outbox.fail(number, end)
            self._check_idle()

    def reset(self, number: int, reason: int, text: str) -> None:
        """Drop a call, with a reason."""
        if (call := self.calls.pop(number, None)) is not None:
            call.cancel()
            self._outbox.drop(number)
            self._outbox.send(frames.reset(number, reason, text))
            self._check_idle()

    def begin(self, number: int) -> Sending:
        """Return the sender of a stream's answers."""
        return self._outbox.begin(number)

    def send(self, sending: Sending, message: bytes) -> None:
        """Send an answer of a stream."""
        self._outbox.add(sending, message)

    def finish(self, sending: Sending, end: bytes = frames.SUCCESS) -> None:
        """End a successful stream after its answers."""
        if self.calls.pop(sending.number, None) is not None:
            self._outbox.finish(sending, end)
            self._check_idle()

    def give_back(self, number: int, window: Window, size: int) -> None:
        """Give credit back for a call."""
        if size and (due := window.give_back(size)) and number in self.calls:
            self._outbox.send(frames.credit(number, due))

    def _check_idle(self) -> None:
        if self._idle is not None and not self.calls and not self._idle.done():
            self._idle.set_result(None)

    def when_idle(self) -> asyncio.Future[None]:
        """Return a future that is done when no call is in flight."""
        self._idle = self.loop.create_future()
        self._check_idle()
        return self._idle

    # Messages to the gateway -----------------------------------------------------------------

    def tell_state(self) -> None:
        """Send a STATE."""
        if self._has_met:
            self._reported = len(self.calls)
            state = frames.STATED.pack(self._door.is_ready, self._reported)
            self._outbox.send(frames.frame(frames.STATE, 0, state))

    def leave(self) -> None:
        """Accept no new calls, and end streams after the answers to their messages."""
        self._is_leaving = True
        if self._has_met:
            self._outbox.send(frames.goaway(self._last, "the server stops"))
        for call in list(self.calls.values()):
            call.end_messages()

    def refuse_all(self, error: PipelineError) -> None:
        """Refuse all unanswered calls, and close when that is sent."""
        refusal = end_of_error(error)
        for number, call in self.calls.items():
            call.cancel()
            self._outbox.drop(number)
            self._outbox.fail(number, refusal)
        self.calls.clear()
        self._outbox.empty()
        self.transport.close()


async def _answer_copied(
    connection: Connection,
    number: int,
    copied: Awaitable[Sequence[Piece] | InReach],
    end: bytes,
) -> None:
    try:
        pieces = await copied
    except PipelineError as error:  # too late
        connection.fail(number, end_of_error(error))
    else:
        connection.answer(number, pieces, end)


def _pass_over(*_: object) -> None:
    """Ignore a peer's further bytes."""
