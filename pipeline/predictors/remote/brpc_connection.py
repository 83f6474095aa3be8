"""One TCP connection to a brpc server, shared by threads: many calls in flight at a time.

There is no thread of its own. Of the callers that wait, one reads for all ("leads"); when it has
its answer the one that has waited longest takes over. So a lone caller sends and receives like a
plain blocking socket, and there is nothing to start, to join, or to make anew after a fork.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from typing import NoReturn

from pipeline.proto.brpc.frames import BrpcFrame, FrameError, FrameReader, code_name, error_of, pack
from pipeline.proto.brpc_meta_pb2 import RpcMeta

MAX_ANSWER_BYTES = 512 * 2**20
"""Of one answer, as it travels and when it is unpacked."""

FRESH_FOR_S = 1.0
"""A connection that was used so recently is not looked at before it is used again."""

_RECEIVE_BYTES = 64 * 2**10
_MAX_RECEIVE_BYTES = 4 * 2**20
_USUAL_LIMIT_BYTES = 64 * 2**20
_SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_PEEK_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_PEEK)
_DONT_WAIT = int(socket.MSG_DONTWAIT)
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # A host that is gone without a word is noticed within a minute.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class ConnectionLostError(Exception):
    """The connection cannot be used any more; the text says why, but not whose it is."""


class OutOfTimeError(Exception):
    """The deadline passed. Other calls on the connection go on."""


class BrpcCall:
    """One place on a connection: to be used, or given back, once."""

    __slots__ = ("_connection", "_wake", "frame", "leads", "number", "waits")

    def __init__(self, connection: BrpcConnection, number: int) -> None:
        self._connection = connection
        self._wake: threading.Lock | None = None
        # The connection's lock guards these.
        self.number: int = number
        self.frame: BrpcFrame | None = None
        self.leads: bool = False
        self.waits: bool = False

    @property
    def may_find_it_ended(self) -> bool:
        """Return whether the connection has been idle: a server may end such a one at any time."""
        return self._connection.has_answered

    def run(self, meta: RpcMeta, body: bytes, deadline: float) -> BrpcFrame:
        """Ask and wait for the answer, until `time.monotonic()` is `deadline`.

        Args:
            meta: of the request; its correlation_id is set here.
            body: the request message.

        Raises:
            OutOfTimeError: no answer in time; a late one is dropped.
            ConnectionLostError: the connection broke, or the peer does not speak baidu_std.
            WireError: the request is too large for the format.
        """
        meta.correlation_id = self.number
        try:
            self._connection.send(pack(meta, body), deadline)
            return self._connection.answer(self, deadline)
        finally:
            self._connection.leave(self)

    def give_back(self) -> None:
        """Do not ask."""
        self._connection.leave(self)

    def begin_to_wait(self) -> threading.Lock:
        """Return a lock that can be acquired when `wake_up` is called."""
        self.waits = True
        self._wake = threading.Lock()
        self._wake.acquire()
        return self._wake

    def wake_up(self) -> None:
        """Wake the caller, unless it does not wait (yet): it looks before it does."""
        if self.waits and self._wake is not None:
            self.waits = False
            self._wake.release()


class BrpcConnection:
    """A way to ask a server over a connected TCP socket, which it owns from now on.

    A caller reserves a place first. The socket is closed when the connection is retired or lost,
    and the last caller has left.

    Args:
        connected: the socket.
        max_bytes: of one answer as it travels.
        fresh_s: after so many seconds without callers the next one first sees whether the server
            has closed the connection.
    """

    def __init__(
        self,
        connected: socket.socket,
        max_bytes: int = MAX_ANSWER_BYTES,
        fresh_s: float = FRESH_FOR_S,
    ) -> None:
        connected.setblocking(True)
        for option in _OPTIONS:
            connected.setsockopt(*option)
        self._socket = connected
        self._fresh_s = fresh_s
        self._send_lock = threading.Lock()  # one frame after the other
        self._has_half_a_frame = False  # on the wire: nothing can follow it
        # These belong to the caller that leads.
        self._readable = select.poll()
        self._readable.register(connected, select.POLLIN)
        self._frames = FrameReader(max_bytes)
        self._receive_bytes = _RECEIVE_BYTES
        self._lock = threading.Lock()  # of all below
        self._calls: dict[int, BrpcCall] = {}
        self._last_id = 0
        self._is_read = False  # there is a caller that leads
        self._is_retired = False
        self._used_at = time.monotonic()
        self._lost: str | None = None
        self.load: int = 0
        """How many callers have reserved a place."""
        self.has_answered: bool = False
        """Whether there ever was an answer."""

    @property
    def is_usable(self) -> bool:
        """Return whether new calls may use it, as far as is known without looking."""
        return not (self._is_retired or self._lost)

    @property
    def is_sending(self) -> bool:
        """Return whether a frame is on its way out: the next one has to wait."""
        return self._send_lock.locked()

    def reserve(self) -> BrpcCall | None:
        """Return a place for one call; None if the connection is not usable."""
        with self._lock:
            if not self.load:
                self._look_for_its_end()
            if self._is_retired or self._lost:
                return None
            self.load += 1
            self._last_id = number = self._last_id + 1
            self._calls[number] = call = BrpcCall(self, number)
            return call

    def retire(self) -> None:
        """Take no new callers."""
        with self._lock:
            self._is_retired = True
            self._close_if_unused()

    def abandon(self) -> None:
        """Close what a forked child has inherited; its parent's end of the line stays open."""
        self._socket.close()

    def _look_for_its_end(self) -> None:
        """Retire a connection that the server has closed; under the lock, without callers."""
        if not self.is_usable or time.monotonic() - self._used_at < self._fresh_s:
            return
        try:
            if self._socket.recv(1, _PEEK_FLAGS):
                return  # a late answer, which the next caller drops
        except BlockingIOError:
            return
        except OSError:
            pass
        self._is_retired = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        """Close it, but not while a caller may be in a system call: the number could be reused."""
        if not self.load and not self.is_usable:
            self._socket.close()

    # For the calls

    def send(self, frame: bytes, deadline: float) -> None:
        """Send one frame; see `BrpcCall.run`."""
        lock = self._send_lock
        if not lock.acquire(blocking=False) and not lock.acquire(timeout=_left(deadline)):
            raise OutOfTimeError
        try:
            if self._lost or self._has_half_a_frame:
                raise ConnectionLostError(self._lost or "a request could not be sent whole")
            sent = self._send_some(frame)
            if sent < len(frame):
                self._send_rest(memoryview(frame), sent, deadline)
        except OSError as error:
            self._lose(_why_not_sent(error, len(frame)))
        finally:
            lock.release()

    def answer(self, call: BrpcCall, deadline: float) -> BrpcFrame:
        """Return the answer to a request that was sent; see `BrpcCall.run`."""
        wake = None
        with self._lock:
            if call.frame is None and self._lost is None:
                if self._is_read:
                    wake = call.begin_to_wait()
                else:
                    call.leads = self._is_read = True
        if wake is not None and not wake.acquire(timeout=_left(deadline)):
            self._stop_waiting(call)
        if call.leads:
            while call.frame is None:
                if not self._receive(deadline):
                    raise OutOfTimeError
        if call.frame is None:
            raise ConnectionLostError(self._lost)
        return call.frame

    def leave(self, call: BrpcCall) -> None:
        """Take a call off that has ended, one way or the other."""
        with self._lock:
            self._calls.pop(call.number, None)
            self._used_at = time.monotonic()
            self.load -= 1
            if call.leads:
                self._pass_the_lead_on()
            if not self.load:
                self._close_if_unused()

    # Sending

    def _send_some(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data, _SEND_FLAGS)
        except BlockingIOError:
            return 0

    def _send_rest(self, frame: memoryview, sent: int, deadline: float) -> None:
        events = select.poll()
        while sent < len(frame):
            if not self._wait_to_send(events, deadline):
                if sent:
                    self._has_half_a_frame = True
                    self.retire()
                raise OutOfTimeError
            sent += self._send_some(frame[sent:])

    def _wait_to_send(self, events: select.poll, deadline: float) -> bool:
        """Wait until more can be sent; return whether there was time for it.

        Where nobody leads it also reads: a peer may take nothing more until it gets rid of answers
        to calls that have been given up.
        """
        leads = self._take_the_lead()
        try:
            events.register(self._socket, select.POLLOUT | (select.POLLIN if leads else 0))
            ready = events.poll(_left(deadline) * 1000)
            if leads and ready and ready[0][1] & select.POLLIN:
                self._receive(0.0)
            return bool(ready)
        finally:
            if leads:
                with self._lock:
                    self._pass_the_lead_on()

    def _take_the_lead(self) -> bool:
        with self._lock:
            if self._is_read:
                return False
            self._is_read = True
            return True

    # Receiving

    def _stop_waiting(self, call: BrpcCall) -> None:
        """Raise OutOfTimeError, unless an answer or the lead came at the last moment."""
        with self._lock:
            if call.waits:
                call.waits = False
                raise OutOfTimeError

    def _pass_the_lead_on(self) -> None:
        """Let the caller read that has waited longest; under the lock."""
        self._is_read = False
        for call in self._calls.values():  # the oldest first
            if call.waits:
                call.leads = self._is_read = True
                call.wake_up()
                return

    def _receive(self, deadline: float) -> bool:
        """Wait for bytes, read once, and give out the answers that are complete.

        False: the deadline passed before there was anything.
        """
        if not self._readable.poll(_left(deadline) * 1000):
            return False
        try:
            data = self._socket.recv(self._receive_bytes, _DONT_WAIT)
            if not data:
                self._lose("it closed the connection")
            self._give_out(self._frames.feed(data))
        except BlockingIOError:
            return True  # woken for nothing
        except OSError as error:
            self._lose(f"the connection broke: {error.strerror or error}")
        except FrameError as error:
            self._lose(f"it answers garbage: {error}")
        is_full = len(data) == self._receive_bytes
        self._receive_bytes = (
            min(self._receive_bytes * 4, _MAX_RECEIVE_BYTES) if is_full else _RECEIVE_BYTES
        )
        return True

    def _give_out(self, frames: list[BrpcFrame]) -> None:
        with self._lock:
            for frame in frames:
                number = frame.meta.correlation_id
                if not 0 < number <= self._last_id:
                    raise _answer_to_nobody(frame)
                self.has_answered = True
                call = self._calls.pop(number, None)
                if call is not None:  # else its caller has given up
                    call.frame = frame
                    call.wake_up()

    def _lose(self, reason: str) -> NoReturn:
        """End all calls that have no answer yet, among them the one that found out."""
        with self._lock:
            if self._lost is None:
                self._lost = reason
            reason = self._lost
            for call in self._calls.values():
                call.wake_up()
        with contextlib.suppress(OSError):  # it may not be connected any more
            self._socket.shutdown(socket.SHUT_RDWR)  # whoever is in a system call comes back
        raise ConnectionLostError(reason) from None


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)


def _answer_to_nobody(frame: BrpcFrame) -> FrameError:
    """Return the error; some servers (brpc-java) answer so to what they could not make sense of."""
    code, text = error_of(frame.meta)
    said = f": error {code_name(code)}: {text}" if code else ""
    number = frame.meta.correlation_id
    return FrameError(f"an answer to call {number}, which was never made{said}")


def _why_not_sent(error: OSError, size: int) -> str:
    text = f"the connection broke while a request was sent: {error.strerror or error}"
    if size > _USUAL_LIMIT_BYTES:
        text += f" (it has {size} bytes; brpc's flag max_body_size is 64 MiB unless it is set)"
    return text
