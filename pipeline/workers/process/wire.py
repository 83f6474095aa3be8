"""Messages between the server and a worker process, and their transport over a socket.

A frame is the length of its body, 8 bytes little-endian, and the body: msgpack of one `Init` or
`Jobs` (to the worker) or `WorkerReport` (from it). A frame contains everything that was ready at
once. Payloads are serialized in it: neither side opens what it only passes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from pipeline.answer_head import AnswerHead
from pipeline.config.schema import OpConfig
from pipeline.data import RequestInfo
from pipeline.metrics import SeriesChange
from pipeline.op import WorkerSpec
from pipeline.predictors.base import ModelMetadata
from pipeline.workers.shm.arena import Block
from pipeline.workers.shm.payload import SerializedPayload
from pipeline.workers.warm_up import WarmUpSample

_LENGTH = struct.Struct("<Q")
# Python allocates this much for each read, even for one byte. From 128 KiB on the C library may
# take the memory from the system and return it each time, which makes a small read ten times
# slower.
_RECEIVE_BYTES = 64 * 1024


class WireConvoy(msgspec.Struct, array_like=True):
    """Members of a convoy, see `engine.convoy`; `over`: places of members that have left."""

    ids: list[int]
    rows: list[int]
    infos: list[RequestInfo] = []
    over: list[int] = []


class WireItem(msgspec.Struct, array_like=True):
    """One request of a batch.

    Attributes:
        inputs: by the name of the Op that they come from.
        deadline: in `time.monotonic`, which all processes of a machine share.
        is_feed: the inputs are the feed of `process`, by name.
        info: if a hook of the Op asks for it, or its sequences need it.
        gathered: inputs that consist of all parts of a stream.
        sequence: the number of the sequence of a request that joins a StreamRun.
        convoy: the requests whose inputs the item holds.
    """

    data_id: int
    log_id: int
    inputs: dict[str, SerializedPayload]
    deadline: float | None = None
    trace: str = ""
    is_feed: bool = False
    info: RequestInfo | None = None
    gathered: dict[str, list[SerializedPayload]] = {}
    sequence: int = 0
    convoy: WireConvoy | None = None


class WireJob(msgspec.Struct, array_like=True):
    """One batch.

    Attributes:
        number: the job's, rising from 1, for this worker.
        allowed: for the first slice of a StreamRun, how many parts each item may get.
        places: the slots of the items' sequences.
        given: the states of sequences that the worker does not have, by the place of the item.
    """

    number: int
    items: list[WireItem]
    allowed: list[int] | None = None
    places: list[int] | None = None
    given: dict[int, SerializedPayload] | None = None


class WireSlice(msgspec.Struct, array_like=True):
    """A further slice of the job `stream`, as a job with its own number.

    Attributes:
        number: 0: only news for the running slice.
        allowed: as in its WireJob, for all slices together.
        over: the places of the items that nobody waits for.
        joining: requests that join a StreamRun, with their places.
    """

    number: int
    stream: int
    allowed: list[int]
    over: list[int]
    joining: list[tuple[int, WireItem]] = []


class Init(msgspec.Struct, array_like=True):
    """The first frame to a worker: the region of the arena that it writes to, and the server's.

    Attributes:
        spec: makes the Op, if the worker was not forked with one.
        config: of that Op.
        warm_up: samples for that Op.
        calls_region: if set, a socket for calls comes with the frame.
    """

    region: int
    server_region: int = 0
    spec: WorkerSpec | None = None
    config: OpConfig | None = None
    calls_region: int = -1
    warm_up: tuple[WarmUpSample, ...] = ()


class Jobs(msgspec.Struct, array_like=True):
    """Jobs for a worker. `freed`: blocks of the worker's own region that nobody reads any more."""

    jobs: list[WireJob]
    freed: list[Block]
    slices: list[WireSlice] = []


class ErrorFields(msgspec.Struct, array_like=True):
    """See `errors.error_to_fields`; `op` is the Op that failed."""

    name: str
    code: int
    text: str
    retry_after_s: int | None = None
    head: AnswerHead | None = None
    op: str | None = None


class ItemOutcome(msgspec.Struct, array_like=True):
    """Outcome of an item: a payload or an error; neither: a stream has succeeded.

    Attributes:
        to: the Ops of a Goto.
        is_final: it is an Answer, with its `head`.
        members: the outcomes of the requests in a convoy.
    """

    payload: SerializedPayload | None = None
    error: ErrorFields | None = None
    to: tuple[str, ...] | None = None
    is_final: bool = False
    members: list[ItemOutcome] | None = None
    head: AnswerHead | None = None


class StepTimes(msgspec.Struct, array_like=True):
    """Times and rows of one step; see `BatchRun`."""

    process_end_ns: int
    end_ns: int
    rows: list[int]
    executions: list[int]
    execution_ends_ns: list[int]


class WireParts(msgspec.Struct, array_like=True):
    """Parts of a running job: (place of the item, part), in order.

    Attributes:
        number: of the running job; of a run that reports its steps the number of its first job.
        step: the step that made the parts.
    """

    number: int
    entries: list[tuple[int, ItemOutcome]]
    start_ns: int = 0
    preprocess_end_ns: int = 0
    step: StepTimes | None = None


class SliceEnd(msgspec.Struct, array_like=True):
    """State of a StreamRun after a slice."""

    made: list[int]
    ended: list[bool]
    groups: list[list[int]]
    is_finished: bool
    busy_ns: int


class Result(msgspec.Struct, array_like=True):
    """Result of a job, item by item; see `BatchRun`.

    Attributes:
        outcomes: empty for a slice.
        kept: the states of sequences, by the place of the item.
    """

    number: int
    outcomes: list[ItemOutcome]
    jumped: bool
    start_ns: int
    preprocess_end_ns: int
    process_end_ns: int
    end_ns: int
    rows: list[int] = []
    executions: list[int] = []
    execution_ends_ns: list[int] = []
    slice_end: SliceEnd | None = None
    kept: dict[int, ItemOutcome] | None = None


class WorkerReport(msgspec.Struct, array_like=True):
    """Report of a worker.

    Attributes:
        failure: the traceback of a failed start.
        records: log records.
        skipped: numbers of jobs that were revoked.
        note: metadata of the model that it has loaded.
        parts: come before `results`.
        counted: changes of users' metrics since the last report.
    """

    is_ready: bool = False
    failure: str = ""
    results: list[Result] = []
    records: list[bytes] = []
    skipped: list[int] = []
    note: ModelMetadata | None = None
    parts: list[WireParts] = []
    counted: list[SeriesChange] = []


Message = TypeVar("Message", bound=msgspec.Struct)

_encoder = msgspec.msgpack.Encoder()


def encoded(message: msgspec.Struct) -> bytes:
    """Return one message without a frame, for a transport that keeps messages apart."""
    return _encoder.encode(message)


def framed(message: msgspec.Struct) -> bytes:
    body = bytearray(_LENGTH.size)
    _encoder.encode_into(message, body, _LENGTH.size)
    _LENGTH.pack_into(body, 0, len(body) - _LENGTH.size)
    return bytes(body)


class Unframer:
    """Cuts a stream of bytes into the bodies of its frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[memoryview]:
        """Return the bodies that are complete with `data`."""
        stream: bytes | bytearray = data
        body_size = len(data) - _LENGTH.size
        if not self._rest and body_size >= 0 and _LENGTH.unpack_from(data)[0] == body_size:
            return [memoryview(data)[_LENGTH.size :]]  # as with nearly every message
        if self._rest:
            self._rest += data
            stream = self._rest
        view, start = memoryview(stream), 0
        bodies = []
        while len(view) - start >= _LENGTH.size:
            body = start + _LENGTH.size
            end = body + _LENGTH.unpack_from(view, start)[0]
            if end > len(view):
                break
            bodies.append(view[body:end])
            start = end
        # otherwise a long frame would be copied with each of its pieces
        if start or stream is data:
            self._rest = bytearray(view[start:])
        return bodies


class Link(Generic[Message]):
    """One end of a socket pair on an event loop: the server's.

    Args:
        sock: connected; closed by `close`.
        kind: the type of the other side's messages.
        on_message: called on the loop with each message. If it raises, the loop's exception handler
            is
            called, and further messages are read.
        on_end: called once if the other side closes first.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        kind: type[Message],
        on_message: Callable[[Message], None],
        on_end: Callable[[], None],
    ) -> None:
        self._socket = sock
        self._loop = loop
        self._on_message = on_message
        self._on_end = on_end
        self._unframer = Unframer()
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._unsent = bytearray()
        self._is_open = True
        sock.setblocking(False)
        loop.add_reader(sock, self._read)

    def send(self, frame: bytes) -> None:
        """Send, or keep until the worker takes more. Messages to a dead worker are dropped."""
        if not self._is_open:
            return
        if self._unsent:
            self._unsent += frame
            return
        try:
            sent = self._socket.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:  # the reader is about to see the end
            return
        if sent < len(frame):
            self._unsent += memoryview(frame)[sent:]
            self._loop.add_writer(self._socket, self._write)

    def finish(self) -> None:
        """Send no more: the worker ends when it has read what was sent; its messages are read."""
        if self._is_open:
            self._shut(socket.SHUT_WR)

    def close(self) -> None:
        """Close: no more messages are sent or read."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._socket)
            self._shut(socket.SHUT_RDWR)
            self._socket.close()

    def _shut(self, how: int) -> None:
        self._loop.remove_writer(self._socket)
        self._unsent.clear()
        with contextlib.suppress(OSError):
            # Processes forked since then may hold a copy of our end.
            self._socket.shutdown(how)

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        if self._receive() is False and self._is_open:
            self.close()
            self._on_end()

    def drain(self) -> None:
        """Read the last messages of a worker that has ended, and close."""
        while self._is_open and self._receive():
            """Every report that it got out counts."""
        self.close()

    def _receive(self) -> bool | None:
        """Read what has arrived; None if nothing has, False at the end of the stream."""
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:  # reset: it ended without reading all messages
            return False
        for body in self._unframer.feed(data):
            try:
                self._on_message(self._decode(body))
            except Exception as error:  # for example of a user's log handler
                self._loop.call_exception_handler(
                    {"message": "a message of a worker was lost", "exception": error}
                )
        return bool(data)


class WorkerLink:
    """The worker's end: blocking.

    Attributes:
        calls: a socket for calls to models of the server, if one came with the first frame.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.calls: socket.socket | None = None
        self._socket = sock
        self._unframer = Unframer()
        self._decode = msgspec.msgpack.Decoder(Jobs).decode
        self._bodies: deque[memoryview] = deque()  # of frames that have arrived
        self._records: deque[bytes] = deque()
        self._sending = threading.Lock()  # the user's threads may log while a result is sent

    def init(self) -> Init:
        """Return the first frame, which the server sends at once."""
        flags = socket.MSG_CMSG_CLOEXEC
        data, fds, _, _ = socket.recv_fds(self._socket, _RECEIVE_BYTES, 1, flags)
        if not data:
            raise EOFError
        self.calls = socket.socket(fileno=fds[0]) if fds else None
        self._bodies.extend(self._unframer.feed(data))
        return msgspec.msgpack.decode(self._next(), type=Init)

    def next(self) -> Jobs:
        """Wait for the next frame and return it. EOFError: the server disconnected."""
        return self._decode(self._next())

    def next_if_there(self) -> Jobs | None:
        """Return the next frame if it has arrived."""
        try:
            return self._decode(self._next(socket.MSG_DONTWAIT))
        except BlockingIOError:
            return None

    def _next(self, flags: int = 0) -> memoryview:
        while not self._bodies:
            data = self._socket.recv(_RECEIVE_BYTES, flags)
            if not data:
                raise EOFError
            self._bodies.extend(self._unframer.feed(data))
        return self._bodies.popleft()

    def send(self, report: WorkerReport) -> None:
        """Send a report; OSError if the server has ended."""
        frame = framed(report)
        with self._sending:
            self._socket.sendall(frame)
        self._send_records()

    def send_record(self, record: bytes) -> None:
        """Send a log record, from any thread, at the latest with the report that is being sent.

        It never waits: a finaliser may log in the middle of a send of the same thread.
        """
        self._records.append(record)
        self._send_records()

    def _send_records(self) -> None:
        while self._records and self._sending.acquire(blocking=False):
            try:
                records = [self._records.popleft() for _ in range(len(self._records))]
                self._socket.sendall(framed(WorkerReport(records=records)))
            finally:
                self._sending.release()
