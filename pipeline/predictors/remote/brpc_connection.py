"""A TCP connection to a brpc server; one caller uses it at a time.

It has no thread: a caller sends and receives as on a plain blocking socket, so nothing has to be
started, joined, or made again after a fork. After a system call that releases the GIL, all other
threads may run first. So a call releases it once, to receive. Sending a short request takes a few
microseconds and holds the GIL.
"""

from __future__ import annotations

import ctypes
import select
import socket
import struct

from pipeline.predictors.remote.pool import (
    ConnectionLostError,
    OutOfTimeError,
    Waiting,
    has_ended,
    prepare,
)
from pipeline.proto.brpc.frames import (
    BrpcFrame,
    FrameError,
    FrameReader,
    code_name,
    error_of,
    pack,
)
from pipeline.proto.brpc_meta_pb2 import RpcMeta

MAX_ANSWER_BYTES = 512 * 2**20
"""Limit of one answer, compressed and decompressed."""

_RECEIVE_BYTES = 64 * 2**10
_MAX_RECEIVE_BYTES = 4 * 2**20
_USUAL_LIMIT_BYTES = 64 * 2**20
_SHORT_BYTES = 16 * 2**10  # of a request
_SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_DONT_WAIT = int(socket.MSG_DONTWAIT)
_LONGEST_WAIT_S = 1.0  # of one receive; the next one follows
_TIMEVAL = struct.Struct("@ll")
_Answer = tuple[RpcMeta, bytes | memoryview]
_send_with_gil = ctypes.PyDLL(None).send
_send_with_gil.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_send_with_gil.restype = ctypes.c_ssize_t


class BrpcConnection:
    """Asks a server over a connected TCP socket, which it then owns.

    `max_bytes` is the limit of one answer on the wire.
    """

    def __init__(self, connected: socket.socket, max_bytes: int = MAX_ANSWER_BYTES) -> None:
        connected.setblocking(True)
        prepare(connected)
        self._socket = connected
        self._wait_s = 0.0  # the longest wait of a receive, as set on the socket
        self._frames = FrameReader(max_bytes)
        self._receive_bytes = _RECEIVE_BYTES
        self._answer: _Answer | None = None  # to the last request; answers to earlier ones are late
        self._last_id = 0
        self.is_usable: bool = True
        """Whether another request may follow, as far as is known without a system call."""
        self.has_answered: bool = False
        """Whether it ever received an answer: a server may close an idle connection."""

    def has_ended(self) -> bool:
        """Return whether the server has closed an idle connection."""
        return has_ended(self._socket)  # late answers do not count: they are dropped

    def ask(self, meta: RpcMeta, body: bytes, waiting: Waiting) -> _Answer:
        """Send a request; return the answer's meta and body.

        It sets the correlation_id of `meta`.

        Raises:
            OutOfTimeError: there was no answer in time; a late one is dropped.
            ConnectionLostError: the connection broke, or the peer does not speak baidu_std.
            ClosedError: no caller waits any more; the connection cannot be used again.
            FrameError: the request is too large for the format.
        """
        self._last_id = meta.correlation_id = self._last_id + 1
        frame = pack(meta, body)
        self.is_usable = False  # until another request can follow
        self._send(frame, waiting)
        while (answer := self._answer) is None:
            try:
                wait_s = min(waiting.step_s(), _LONGEST_WAIT_S)
            except OutOfTimeError:
                self.is_usable = True
                raise
            if wait_s != self._wait_s:
                self._limit_wait(wait_s)
            self._receive()
        self._answer = None  # an idle connection keeps none
        self.is_usable = True
        return answer

    def _limit_wait(self, wait_s: float) -> None:
        """Limit the wait of a receive; unlike poll, this keeps the GIL."""
        self._wait_s = wait_s
        limit = _TIMEVAL.pack(int(wait_s), int(wait_s % 1 * 1e6) or 1)  # 0 means unlimited
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def close(self) -> None:
        """Close the socket; in a forked child the parent's connection stays open."""
        self._socket.close()

    def _send(self, frame: bytes, waiting: Waiting) -> None:
        try:
            sent = -1
            if len(frame) <= _SHORT_BYTES:
                sent = _send_with_gil(self._socket.fileno(), frame, len(frame), _SEND_FLAGS)
            if sent < 0:  # after an error the socket has the reason
                sent = self._send_some(frame)
            if sent < len(frame):
                self._send_rest(memoryview(frame), sent, waiting)
        except OSError as error:
            raise ConnectionLostError(_why_not_sent(error, len(frame))) from None

    def _send_some(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data, _SEND_FLAGS)
        except BlockingIOError:
            return 0

    def _send_rest(self, frame: memoryview, sent: int, waiting: Waiting) -> None:
        """Send the rest of a frame.

        It also reads: a peer may accept nothing more until it has sent its answers to abandoned
        calls.
        """
        events = select.poll()
        events.register(self._socket, select.POLLOUT | select.POLLIN)
        while sent < len(frame):
            ready = events.poll(min(waiting.step_s(), _LONGEST_WAIT_S) * 1000)
            if not ready:
                continue
            if ready[0][1] & select.POLLIN:
                self._receive(_DONT_WAIT)
            sent += self._send_some(frame[sent:])

    def _receive(self, flags: int = 0) -> None:
        """Read once, and keep the answer if it is complete."""
        try:
            data = self._socket.recv(self._receive_bytes, flags)
            if not data:
                raise ConnectionLostError("it closed the connection")
            for frame in self._frames.feed(data):
                self._take(frame)
        except BlockingIOError:
            return  # nothing arrived in time
        except OSError as error:
            reason = f"the connection broke: {error.strerror or error}"
            raise ConnectionLostError(reason) from None
        except FrameError as error:
            raise ConnectionLostError(f"it answers garbage: {error}") from None
        if len(data) == self._receive_bytes:
            self._receive_bytes = min(self._receive_bytes * 4, _MAX_RECEIVE_BYTES)
        else:
            self._receive_bytes = _RECEIVE_BYTES

    def _take(self, frame: BrpcFrame) -> None:
        number = frame.meta.correlation_id
        if not 0 < number <= self._last_id:
            raise _answer_to_nobody(frame)
        self.has_answered = True
        if number == self._last_id:
            self._answer = frame.meta, frame.body


def _answer_to_nobody(frame: BrpcFrame) -> FrameError:
    """Return the error; some servers (brpc-java) answer so to requests that they cannot read."""
    code, text = error_of(frame.meta)
    reason = f": error {code_name(code)}: {text}" if code else ""
    number = frame.meta.correlation_id
    return FrameError(f"an answer to call {number}, which was never made{reason}")


def _why_not_sent(error: OSError, size: int) -> str:
    text = f"the connection broke while a request was sent: {error.strerror or error}"
    if size > _USUAL_LIMIT_BYTES:
        text += f" (it has {size} bytes; brpc's flag max_body_size is 64 MiB unless it is set)"
    return text
