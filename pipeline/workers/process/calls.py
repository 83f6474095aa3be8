"""Messages of a worker process that calls models of its server, and the worker's end of them.

They have their own socket pair, with frames as for jobs: a model waits for an answer while its
worker runs a job. Large values lie in a region of the worker that is only for calls.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from pipeline.engine.model_calls import MetricUse, ModelChange, ModelPart, OnPart, PeerCall
from pipeline.engine.streams.flow import ENDED
from pipeline.errors import ClosedError, InputError, PipelineError, error_from_fields
from pipeline.workers.peer_calls import begin_check
from pipeline.workers.process.outcomes import outcome_of
from pipeline.workers.process.wire import ErrorFields, ItemOutcome, Unframer, WireParts, framed
from pipeline.workers.shm.arena import Arena, Block, RegionAllocator
from pipeline.workers.shm.payload import SerializedPayload, deserialize, serialize

_RECEIVE_BYTES = 64 * 1024
_Message = TypeVar("_Message", PeerCall, ModelChange, MetricUse)
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode


class WireCall(msgspec.Struct, array_like=True):
    """One of three calls, by its number, which rises from 1; 0: nobody waits for an answer.

    `feeds` are the inputs of a `call`, or the files of a `change`.
    """

    number: int
    call: PeerCall | None = None
    feeds: SerializedPayload | None = None
    change: ModelChange | None = None
    metric: MetricUse | None = None


class CallsMessage(msgspec.Struct, array_like=True):
    """From a worker. `cancelled` and `taken` are numbers of calls, `taken` once for each part.

    `parts` are those of a job, see `sending`. `has_check`: see `ModelCaller.offer_check`;
    `is_ready` is the result of a check.
    """

    calls: list[WireCall] = []
    cancelled: list[int] = []
    taken: list[int] = []
    parts: WireParts | None = None
    has_check: bool = False
    is_ready: bool | None = None


class WireAnswer(msgspec.Struct, array_like=True):
    """An answer to a call; see `ModelPart`."""

    number: int
    outputs: SerializedPayload | None = None
    error: ErrorFields | None = None
    is_final: bool = True
    is_ready: bool = False
    value: float = 0.0


class WirePartLimit(msgspec.Struct, array_like=True):
    """Number of parts that an item of a job may have got; `is_over`: no more are wanted."""

    number: int
    allowed: int
    is_over: bool
    place: int = 0


class AnswersMessage(msgspec.Struct, array_like=True):
    """To a worker. `freed` are blocks of its region for calls that nobody reads any more.

    `checks`: the model is asked whether it is ready.
    """

    answers: list[WireAnswer]
    freed: list[Block] = []
    room: WirePartLimit | None = None
    checks: bool = False


class CallLink:
    """The worker's end; see `ModelCaller`. A thread reads the answers, from the first call on.

    Args:
        sock: connected to the server.
        region: of the arena, only for calls.

    Attributes:
        on_room: called with the number of wanted parts of a job, in the thread that reads.
    """

    def __init__(self, sock: socket.socket, arena: Arena, region: int) -> None:
        self.on_room: Callable[[WirePartLimit], None] = lambda room: None
        self._socket = sock
        self._arena = arena
        self._region = region
        self._lock = threading.Lock()  # for everything below
        self._memory: RegionAllocator | None = None
        self._waiting: dict[int, OnPart] = {}
        self._last_number = 0
        self._dropped: queue.SimpleQueue[MetricUse] = queue.SimpleQueue()
        self._pid = os.getpid()
        self._is_over = False
        self._check: Callable[[], bool] | None = None

    def begin(self, call: PeerCall, feeds: Mapping[str, Any], on_part: OnPart) -> _SentCall:
        """Call a model. Raises PipelineError: the server has ended, or inputs cannot be sent."""
        with self._lock:
            memory = self._begun()
            payload = serialize(dict(feeds), memory, self._arena)
            return self._ask(WireCall(0, _checked(call, PeerCall), payload), on_part)

    def change(self, change: ModelChange, on_part: OnPart) -> None:
        """Have a model loaded or unloaded. Raises PipelineError: the server has ended."""
        change = _checked(change, ModelChange)
        files, change = dict(change.files), msgspec.structs.replace(change, files={})
        with self._lock:
            payload = serialize(files, self._begun(), self._arena)
            self._ask(WireCall(0, feeds=payload, change=change), on_part)

    def metric(self, use: MetricUse, on_part: OnPart | None) -> None:
        """Use a metric. Raises PipelineError: the server has ended, or a type is wrong."""
        with self._lock:
            self._begun()
            self._send_dropped()
            wire = WireCall(0, metric=_checked(use, MetricUse))
            if on_part is None:
                self._send(CallsMessage([wire]))
            else:
                self._ask(wire, on_part)

    def drop_metrics(self, use: MetricUse) -> None:
        """Drop a family of metrics, at once or before the next use of any.

        The garbage collector may call this in a thread that is making a call: it never waits. In a
        process that a model has forked it does nothing: the family belongs to the parent.
        """
        if os.getpid() != self._pid:
            return
        self._dropped.put(use)
        if self._lock.acquire(blocking=False):
            try:
                self._send_dropped()
            except PipelineError:
                pass  # the server has ended
            finally:
                self._lock.release()

    def offer_check(self, check: Callable[[], bool]) -> None:
        with self._lock:
            self._check = check
            self._begun()
            self._send(CallsMessage(has_check=True))

    def _run_check(self) -> None:
        assert self._check is not None, "the server knows it"
        self._send_ready(self._check())

    def _send_ready(self, is_ready: bool) -> None:
        with self._lock, contextlib.suppress(ClosedError):
            self._send(CallsMessage(is_ready=is_ready))

    def _send_dropped(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._send(CallsMessage([WireCall(0, metric=self._dropped.get_nowait())]))

    def _begun(self) -> RegionAllocator:
        if os.getpid() != self._pid:
            raise ClosedError("a process that a model has forked cannot call models of the server")
        if self._memory is None:
            view = self._arena.view(self._region)
            self._memory = RegionAllocator(view, self._region, reserved=0)
            threading.Thread(target=self._read, name="pipeline-calls", daemon=True).start()
        return self._memory

    def _ask(self, wire: WireCall, on_part: OnPart) -> _SentCall:
        self._last_number = wire.number = self._last_number + 1
        self._waiting[wire.number] = on_part
        try:
            self._send(CallsMessage([wire]))
        except PipelineError:
            del self._waiting[wire.number]
            raise
        return _SentCall(self, wire.number)

    def _send(self, calls: CallsMessage) -> None:
        if self._is_over:
            raise ClosedError("the server has gone")
        try:
            self._socket.sendall(framed(calls))
        except OSError as error:
            raise ClosedError(f"the server has gone: {error}") from error

    def send_parts(self, parts: WireParts, made: Sequence[tuple[int, Any]], maker: str) -> None:
        """Send parts, errors and ENDED of a job; does nothing if the server has ended."""
        with self._lock, contextlib.suppress(ClosedError):
            memory = self._begun()
            for place, outcome in made:
                part_outcome = ItemOutcome()
                if outcome is not ENDED:
                    part_outcome = outcome_of(outcome, maker, memory, self._arena)
                parts.entries.append((place, part_outcome))
            self._send(CallsMessage(parts=parts))

    def send_taken(self, number: int) -> None:
        """Tell the server that an answer was taken."""
        with self._lock, contextlib.suppress(PipelineError):
            self._send(CallsMessage(taken=[number]))

    def cancel(self, number: int) -> None:
        """Forget a call, also in the server."""
        with self._lock, contextlib.suppress(PipelineError):
            self._waiting.pop(number, None)
            self._send(CallsMessage(cancelled=[number]))

    # Answers ------------------------------------------------------------------------------------

    def _read(self) -> None:
        unframer, decode = Unframer(), msgspec.msgpack.Decoder(AnswersMessage).decode
        with contextlib.suppress(OSError):
            while data := self._socket.recv(_RECEIVE_BYTES):
                for body in unframer.feed(data):
                    self._take(decode(body))
                    del body  # free its data while the thread waits
                del data
        with self._lock:
            self._is_over = True
            left, self._waiting = self._waiting, {}
        for on_part in left.values():
            on_part(ModelPart(error=ClosedError("the server has gone")))

    def _take(self, answers: AnswersMessage) -> None:
        with self._lock:
            assert self._memory is not None, "there is an answer"
            for block in answers.freed:
                self._memory.free(block)
        if answers.checks:
            try:
                begin_check(self._run_check)
            except RuntimeError:  # no thread could be started
                self._send_ready(False)
        if answers.room is not None:
            self.on_room(answers.room)
        for answer in answers.answers:
            on_part = self._waiting.get(answer.number)
            if on_part is None:  # it was cancelled
                continue
            part = self._part(answer)
            if answer.is_final:
                self._waiting.pop(answer.number, None)
            if answer.outputs is not None and answer.outputs.buffers and answer.is_final:
                self.send_taken(answer.number)
            on_part(part)

    def _part(self, answer: WireAnswer) -> ModelPart:
        """Return an answer, whose arrays are copies: a model may keep them."""
        error: PipelineError | None = None
        outputs = None
        if answer.error is not None:
            fields = answer.error
            error = error_from_fields(fields.name, fields.code, fields.text, fields.retry_after_s)
        elif answer.outputs is not None:
            try:
                outputs = deserialize(answer.outputs, self._arena)
            except PipelineError as failure:
                error = failure
        return ModelPart(outputs, error, answer.is_final, answer.is_ready, answer.value)


def _checked(message: _Message, kind: type[_Message]) -> _Message:
    """Return a message that the server can read; an invalid one would never be answered."""
    try:
        return _decode(_encode(message), type=kind)
    except (msgspec.ValidationError, TypeError, OverflowError) as error:
        raise InputError(f"a call with an argument of a wrong type: {error}") from error


class _SentCall:
    """A call that has begun; see `PendingCall`."""

    def __init__(self, link: CallLink, number: int) -> None:
        self._link = link
        self._number = number

    def cancel(self) -> None:
        self._link.cancel(self._number)

    def took_part(self) -> None:
        self._link.send_taken(self._number)
