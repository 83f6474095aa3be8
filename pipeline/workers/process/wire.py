"""Messages between the server and a worker process, and their way over a socket.

A frame is the length of its body, 8 bytes little-endian, and the body: msgpack of one `Init` or
`Jobs` (to the worker) or `WorkerReport` (from it). A frame holds everything that was ready at once.
Payloads travel in it serialized: neither side opens what it only passes on.
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
# Python allocates as much for each read, if it gets one byte. From 128 KiB on the C library may
# take that from the system and give it back each time, for ten times what a small read costs.
_RECEIVE_BYTES = 64 * 1024


class WireConvoy(msgspec.Struct, array_like=True):
    """Members of an item that is a convoy, see `engine.convoy`; `over` are places of who left."""

    ids: list[int]
    rows: list[int]
    infos: list[RequestInfo] = []
    over: list[int] = []


class WireItem(msgspec.Struct, array_like=True):
    """One request of a batch: `inputs` by the name of the Op that they come from.

    With `is_feed` they are what `process` is fed, by name. `deadline` is in `time.monotonic`,
    which all processes of a machine share. `info` is there if a hook of the Op asks for
    it, or its sequences need it.
    `gathered` has what of an input is all parts of a stream. `sequence` is its number as one, of
    who joins a StreamRun. `convoy` says of which requests it has the inputs.
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
    """One batch. `number` is the job's, rising from 1, for this worker.

    Of a StreamRun it is the first slice; `allowed` has how many parts each item may get. `places`
    are the slots of the sequences that the items belong to, `given` the states of those that the
    worker does not have, by the place of the item.
    """

    number: int
    items: list[WireItem]
    allowed: list[int] | None = None
    places: list[int] | None = None
    given: dict[int, SerializedPayload] | None = None


class WireSlice(msgspec.Struct, array_like=True):
    """A further slice of the job `stream`, as a job with a number of its own.

    `allowed` as in its WireJob, of all slices together; `over` are the places of the items that
    nobody waits for, `joining` those who join a StreamRun, and their places. Number 0: it tells
    a run this, and is no slice.
    """

    number: int
    stream: int
    allowed: list[int]
    over: list[int]
    joining: list[tuple[int, WireItem]] = []


class Init(msgspec.Struct, array_like=True):
    """The first frame to a worker: the region of the arena that it writes to, and the server's.

    `spec` says which Op it makes, that has this `config` and runs `warm_up`, where it was not
    forked with one. With a `calls_region` a socket for calls comes with the frame.
    """

    region: int
    server_region: int = 0
    spec: WorkerSpec | None = None
    config: OpConfig | None = None
    calls_region: int = -1
    warm_up: tuple[WarmUpSample, ...] = ()


class Jobs(msgspec.Struct, array_like=True):
    """`freed` are blocks of the worker's own region that nobody reads any more."""

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
    """Outcome of an item: one of both; of a part of a stream neither: the stream ended well.

    `to` are the Ops of a Goto; with `is_final` it is an Answer, with its `head`. `each` is that of
    each request of a convoy.
    """

    payload: SerializedPayload | None = None
    error: ErrorFields | None = None
    to: tuple[str, ...] | None = None
    is_final: bool = False
    each: list[ItemOutcome] | None = None
    head: AnswerHead | None = None


class StepTimes(msgspec.Struct, array_like=True):
    """Times and rows of one step; see `BatchRun`."""

    process_end_ns: int
    end_ns: int
    rows: list[int]
    executions: list[int]
    execution_ends_ns: list[int]


class WireParts(msgspec.Struct, array_like=True):
    """Parts that the job `number`, which runs, has made: (place of the item, part), in order.

    Of a run that tells its steps the number is that of its first job, and `step` what made them.
    """

    number: int
    entries: list[tuple[int, ItemOutcome]]
    start_ns: int = 0
    preprocess_end_ns: int = 0
    step: StepTimes | None = None


class SliceEnd(msgspec.Struct, array_like=True):
    """State of a StreamRun behind a slice."""

    made: list[int]
    ended: list[bool]
    groups: list[list[int]]
    is_finished: bool
    busy_ns: int


class Result(msgspec.Struct, array_like=True):
    """Outcome of a job, item by item; see `BatchRun`.

    The outcome of a slice is not here.
    `kept` has the states of sequences, by the place of the item.
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
    """From a worker.

    `note` is of the model that it has loaded. `failure` is the traceback of a start that failed,
    `records` are log lines, `skipped` are the numbers of jobs that were revoked, `parts`
    come before `results`. `counted` is what users' code has counted since the last report.
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
    """Return one message without a frame, for a way that keeps messages apart."""
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
        if start or stream is data:  # else a long frame would be copied with each of its pieces
            self._rest = bytearray(view[start:])
        return bodies


class Link(Generic[Message]):
    """One end of a socket pair on an event loop: the server's.

    Args:
        sock: connected; closed by `close`.
        kind: what the other side sends.
        on_message: called on the loop with each message. If it raises, the loop's exception
            handler is told, and the next message is as welcome.
        on_end: called once if the other side parts first.
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
        """Send, or keep until the worker takes more. What a dead worker misses is dropped."""
        if not self._is_open:
            return
        if self._unsent:
            self._unsent += frame
            return
        try:
            sent = self._socket.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:  # the reader is about to learn that it ended
            return
        if sent < len(frame):
            self._unsent += memoryview(frame)[sent:]
            self._loop.add_writer(self._socket, self._write)

    def close(self) -> None:
        """Part: the worker ends when it has read what was sent."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._unsent.clear()
            with contextlib.suppress(OSError):
                # What was forked from this process since may hold a copy of our end.
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

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
        """Read what is left of a worker that has ended, and part."""
        while self._is_open and self._receive():
            """Every report that it got out counts."""
        self.close()

    def _receive(self) -> bool | None:
        """Take in what has arrived; None if nothing has, False at the end of the stream."""
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:  # reset: it ended without reading all that we sent
            return False
        for body in self._unframer.feed(data):
            try:
                self._on_message(self._decode(body))
            except Exception as error:  # of a log handler of the user's, say
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
        """Return the next frame, waited for. EOFError: the server disconnected."""
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
        """Send a report; OSError when the server is gone."""
        frame = framed(report)
        with self._sending:
            self._socket.sendall(frame)
        self._send_records()

    def send_record(self, record: bytes) -> None:
        """Send a log record, from any thread, at the latest with the report that is being sent.

        It never waits: a finaliser may log in the midst of a send of the same thread.
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
