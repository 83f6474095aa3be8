"""Objects in Ray's store, with the blocks of payloads that are sent by reference.

An object is a list of byte arrays. In a message, `Block.region` is the number of an object, and
`Block.offset` is the index in its list.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np

from pipeline.engine.run.payload import MemoryDomain
from pipeline.errors import PayloadTypeError
from pipeline.workers.process.wire import ItemOutcome, Jobs, WorkerReport
from pipeline.workers.ray.api import ObjectGoneError, RayApi
from pipeline.workers.ray.clock import items_of
from pipeline.workers.shm.arena import Block
from pipeline.workers.shm.payload import (
    Loads,
    SerializedPayload,
    SharedPayload,
    serialize,
)
from pipeline.workers.shm.pickling import anything_of, data_of

MIN_BYTES = 100 * 1024
"""Least size of an object: Ray itself sends smaller ones with the result of a call."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_MADE = -1  # the region of a block that is in no object yet
_GET_TIMEOUT_S = 10.0


Running = tuple[int, float, float]
"""(number of a running job, its age, age of its `process` call or -1), ages in seconds."""


class ActorCall(msgspec.Struct, array_like=True):
    """Message to an actor. It is a single argument, because each argument of a Ray call costs time.

    `sent_ns` is on the server's clock; `numbers` are the numbers of the objects sent along; the
    reply may have up to `count` objects.
    """

    sent_ns: int
    numbers: list[int]
    count: int
    work: Jobs


class ActorReply(msgspec.Struct, array_like=True):
    """Message of an actor: reports with their sequence numbers."""

    reports: list[tuple[int, WorkerReport]]
    running: Running | None = None
    node: str = ""
    pid: int = 0


decode_reply: Callable[[bytes], ActorReply] = msgspec.msgpack.Decoder(ActorReply).decode


def outcomes_of(report: WorkerReport) -> Iterator[ItemOutcome]:
    """Yield all outcomes in a report: answers, parts of streams, states of sequences."""
    for result in report.results:
        yield from result.outcomes
        yield from (result.kept or {}).values()
    for parts in report.parts:
        for _, outcome in parts.entries:
            yield outcome


def objects_in(report: WorkerReport) -> list[int]:
    """Return the numbers of all objects that a report refers to."""
    payloads = (outcome.payload for outcome in outcomes_of(report))
    return sorted({block.region for payload in payloads if payload for block in payload.buffers})


def renumber(report: WorkerReport, numbers: Mapping[int, int]) -> None:
    """Replace the object numbers in a report."""
    for outcome in outcomes_of(report):
        payload = outcome.payload
        if payload is not None and payload.buffers:
            payload.buffers = [
                Block(numbers[block.region], block.offset, block.size) for block in payload.buffers
            ]


def numbers_in(work: Jobs) -> list[int]:
    """Return the numbers of all objects that a message refers to."""
    payloads: list[SerializedPayload] = []
    for item in items_of(work):
        payloads += item.inputs.values()
        for parts in item.gathered.values():
            payloads += parts
    for job in work.jobs:
        payloads += (job.given or {}).values()
    return sorted({block.region for payload in payloads for block in payload.buffers})


class ActorMemory:
    """The actor's side: the objects of the running call and of its reply."""

    min_bytes: ClassVar[int] = MIN_BYTES
    most_bytes: ClassVar[int] = sys.maxsize

    def __init__(self) -> None:
        self.objects: dict[int, Sequence[Bytes]] = {}
        self._made: dict[int, Bytes] = {}
        self._count = 0

    def alloc(self, size: int) -> Block:
        """Return a block to write to."""
        self._count += 1
        self._made[self._count] = np.empty(size, np.uint8)
        return Block(_MADE, self._count, size)

    def free(self, block: Block) -> None:
        """Give back an unused block."""
        self._made.pop(block.offset, None)

    def read(self, block: Block) -> memoryview:
        if block.region == _MADE:
            return self._made[block.offset].data
        return self.objects[block.region][block.offset].data

    def pack(self, reply: ActorReply, count: int) -> Any:
        """Return a reply in its wire form, and `count` objects with its large values.

        With `count` 0 the reply is alone, unless it has large values unexpectedly: then one object
        is added.
        """
        objects: list[list[Bytes]] = [[] for _ in range(count or 1)]
        place = 0
        for _, report in reply.reports:
            for outcome in outcomes_of(report):
                payload = outcome.payload
                if payload is not None and payload.buffers:
                    into = objects[place]
                    payload.buffers = [self._moved(b, place, into) for b in payload.buffers]
                    place = (place + 1) % len(objects)
        message = msgspec.msgpack.encode(reply)
        if not count and not objects[0]:
            return message
        return message, *(ref or None for ref in objects)

    def _moved(self, block: Block, number: int, into: list[Bytes]) -> Block:
        into.append(self._made.pop(block.offset))
        return Block(number, len(into) - 1, block.size)


@dataclass(slots=True, eq=False)
class _Stored:
    """An object: its reference, or a value to store, or both; and the number of blocks in use."""

    ref: Any
    value: Sequence[Bytes] | None
    used: int = 0


class RayMemory(MemoryDomain):
    """The server's side: the memory domain of actors. Methods run on the loop unless they say so.

    It holds a reference to each object until no payload needs it.

    Args:
        api: access to Ray's store.
        trusts_workers: whether any data that an actor has serialized may be unpickled here.
    """

    min_bytes: ClassVar[int] = MIN_BYTES
    most_bytes: ClassVar[int] = sys.maxsize

    def __init__(self, api: RayApi, trusts_workers: bool = False) -> None:
        self._api = api
        self._loads: Loads = anything_of if trusts_workers else data_of
        self._objects: dict[int, _Stored] = {}
        self._released: deque[Block] = deque()
        self._last = 0
        self._writing: list[Bytes] = []

    @property
    def count(self) -> int:
        """Return how many objects are held."""
        self._settle()
        return len(self._objects)

    # Payloads -----------------------------------------------------------------------------------

    def serialize(self, payload: Any) -> SharedPayload:
        """Serialize a payload for another process. Raises as `payload.serialize` does."""
        self._settle()
        try:
            serialized = serialize(payload, self, self)
            if serialized.buffers:
                self._last += 1
                self._objects[self._last] = _Stored(None, self._writing)
                serialized.buffers = [
                    Block(self._last, block.offset, block.size) for block in serialized.buffers
                ]
        finally:
            self._writing = []
        return self._payload(serialized, anything_of, "")

    def payload(self, serialized: SerializedPayload, maker: str = "") -> SharedPayload:
        """Return the payload of a serialized one; `maker` is the Op of the actor that sent it."""
        return self._payload(serialized, self._loads, maker)

    def _payload(self, serialized: SerializedPayload, loads: Loads, maker: str) -> SharedPayload:
        for block in serialized.buffers:
            self._objects[block.region].used += 1
        return SharedPayload(serialized, self, self._released.extend, loads, maker)

    def alloc(self, size: int) -> Block:
        """Add a block to the object that is being written."""
        self._writing.append(np.empty(size, np.uint8))
        return Block(_MADE, len(self._writing) - 1, size)

    def free(self, block: Block) -> None:
        """Ignore a block that is not needed: it is deleted with its object."""

    def read(self, block: Block) -> memoryview:
        """Return the bytes of a block; in any thread. Waits if the object is not fetched yet."""
        if block.region == _MADE:
            return self._writing[block.offset].data
        stored = self._objects[block.region]
        value = stored.value
        if value is None:
            try:
                value = stored.value = self._api.get(stored.ref, _GET_TIMEOUT_S)
            except ObjectGoneError as error:
                raise PayloadTypeError(f"an answer is lost: {error}") from error
        assert value is not None, "a missing value raises an error"
        return value[block.offset].data

    # Objects ------------------------------------------------------------------------------------

    def adopt(self, ref: Any, value: Sequence[Bytes] | None = None) -> int:
        """Add an object of a reply and return its number; the caller must `hold` it."""
        self._settle()
        self._last += 1
        self._objects[self._last] = _Stored(ref, value)
        return self._last

    def hold(self, number: int) -> None:
        """Keep an object until `release`, also if no payload needs it."""
        self._objects[number].used += 1

    def release(self, number: int) -> None:
        """Undo one `hold`, or the use by one block; delete the object after the last."""
        stored = self._objects.get(number)
        if stored is not None:
            stored.used -= 1
            if not stored.used:
                del self._objects[number]

    def ref(self, number: int) -> Any:
        """Return a reference to an object; store the object first if needed. In a sender's thread.

        Raises:
            ObjectGoneError: the object was deleted.
        """
        stored = self._objects.get(number)
        if stored is None:
            raise ObjectGoneError("nobody waits for it any more")
        if stored.ref is None:
            stored.ref = self._api.put(stored.value)
        return stored.ref

    def is_here(self, number: int) -> bool:
        """Return whether an object can be read without a wait."""
        stored = self._objects.get(number)
        return stored is None or stored.value is not None

    def when_here(self, number: int, notify: Callable[[Exception | None], None]) -> None:
        """Fetch an object, then call `notify`, in any thread."""
        stored = self._objects[number]

        def keep(value: Any, error: Exception | None) -> None:
            stored.value = value
            notify(error)

        self._api.when_done(stored.ref, keep)

    def _settle(self) -> None:
        """Release the blocks of payloads that were deleted in any thread. Runs on the loop."""
        while self._released:
            self.release(self._released.popleft().region)
