"""Doubles: worker processes that a test plays, at the other ends of real socket pairs."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
from doubles import RecordingOwner, in_place_of, settle, virtual

from pipeline import Op
from pipeline.config.schema import OpConfig
from pipeline.engine.run.stages import BatchRun
from pipeline.workers.process.pages import StatusPage
from pipeline.workers.process.pool import ProcessContext, ProcessWorkers
from pipeline.workers.process.wire import (
    ErrorFields,
    Init,
    ItemOutcome,
    Jobs,
    Result,
    SliceEnd,
    Unframer,
    WireParts,
    WorkerReport,
    framed,
)
from pipeline.workers.shm.arena import Arena, RegionAllocator
from pipeline.workers.shm.payload import deserialize, serialize
from pipeline.workers.shm.server_memory import ServerMemory

MIB = 2**20
KILLED = "was killed by SIGKILL"


@dataclass
class Sample:
    data_id: int
    inputs: dict[str, Any] = field(default_factory=dict)
    log_id: int = 0
    is_over: bool = False
    deadline: float | None = None
    trace: str = ""
    is_feed: bool = False
    convoy: None = None
    request: Any = field(default_factory=lambda: SimpleNamespace(target=None))


def run_of(*data_ids: int, **inputs: Any) -> BatchRun:
    return BatchRun([Sample(data_id, {"read": dict(inputs)}) for data_id in data_ids])


class FakeChild:
    """A `Child` whose process the test plays: it reads frames, reports, stops and ends."""

    def __init__(self, number: int, arena: Arena, on_change: Any) -> None:
        self.number = number
        self.sock, self.end = socket.socketpair()
        self.end.setblocking(False)
        self.pid = 4711
        self.state = "running"
        self.ending = ""
        self.is_killed = False
        self.works: list[Jobs] = []
        self._arena = arena
        self._on_change = on_change
        self._unframer = Unframer()
        self._region: int | None = None
        self._memory: RegionAllocator | None = None

    def kill(self) -> None:
        self.is_killed = True

    # What the process does --------------------------------------------------------------

    def take(self) -> list[Any]:
        """The jobs that have arrived and were not taken before."""
        jobs = []
        with contextlib.suppress(BlockingIOError):
            while data := self.end.recv(MIB):
                jobs += self._take_frames(data)
        return jobs

    def _take_frames(self, data: bytes) -> list[Any]:
        jobs: list[Any] = []
        for body in self._unframer.feed(data):
            if self._region is None:
                self._region = msgspec.msgpack.decode(body, type=Init).region
                continue
            work = msgspec.msgpack.decode(body, type=Jobs)
            self.works.append(work)
            jobs += [*work.jobs, *work.slices]
            for block in work.freed:
                self.memory.free(block)
        return jobs

    @property
    def taken_ids(self) -> list[list[int]]:
        """Data ids of the batches that have arrived and were not taken before."""
        return [[sample.data_id for sample in job.items] for job in self.take()]

    @property
    def region(self) -> int:
        if self._region is None:
            self.take()
        assert self._region is not None, "the first frame is the init"
        return self._region

    @property
    def status(self) -> StatusPage:
        return StatusPage(self._arena.view(self.region))

    @property
    def memory(self) -> RegionAllocator:
        if self._memory is None:
            self._memory = RegionAllocator(self._arena.view(self.region), self.region)
        return self._memory

    def says(self, **report: Any) -> None:
        self.end.sendall(framed(WorkerReport(**report)))

    def is_ready(self) -> None:
        self.says(is_ready=True)

    def begins(self, job: Any) -> None:
        self.status.begins(job.number)

    def result(self, job: Any, payload: Any = None) -> Result:
        """Every sample of `job` is answered: with `payload`, an error, or what it was given."""
        outcomes = [
            self._outcome(
                deserialize(sample.inputs["read"], self._arena) if payload is None else payload
            )
            for sample in job.items
        ]
        self.status.ends()
        return Result(job.number, outcomes, False, 1, 2, 3, 4)

    def _outcome(self, payload: Any) -> ItemOutcome:
        if isinstance(payload, ErrorFields):
            return ItemOutcome(error=payload)
        return ItemOutcome(serialize(payload, self.memory, self._arena))

    def yields(self, job: Any, *parts: Any, end: SliceEnd | None = None) -> None:
        """Parts of the first item of `job`, and the end of the slice, if it has one."""
        entries = [(0, ItemOutcome() if part is None else self._outcome(part)) for part in parts]
        results = [] if end is None else [Result(job.number, [], False, 1, 2, 3, 4, slice_end=end)]
        if end is not None:
            self.status.ends()
        self.says(parts=[WireParts(job.number, entries, 1, 2)], results=results)

    def answers(self, *jobs: Any, payload: Any = None) -> None:
        self.says(results=[self.result(job, payload) for job in jobs])

    # What the system reports of it --------------------------------------------------------

    def stops(self) -> None:
        self.state = "stopped"
        self._on_change(self)

    def continues(self) -> None:
        self.state = "running"
        self._on_change(self)

    def closes_its_socket(self) -> None:
        self.end.close()

    def dies(self, ending: str = KILLED) -> None:
        """It is reported before what it sent was read."""
        self.end.close()
        if self.state != "ended":
            self.state, self.ending = "ended", ending
            self._on_change(self)


class FakeZygotes:
    """Starts `FakeChild`ren; `refusals` are raised instead, one after the other."""

    def __init__(self, arena: Arena) -> None:
        self.children: list[FakeChild] = []
        self.started_at: list[float] = []
        self.refusals: list[Exception] = []
        self._arena = arena

    def start(self, main: int, number: int, on_change: Any) -> FakeChild:
        self.started_at.append(asyncio.get_running_loop().time())
        if self.refusals:
            raise self.refusals.pop(0)
        child = FakeChild(number, self._arena, on_change)
        self.children.append(child)
        return child


class FakePool:
    """ProcessWorkers over processes that the test plays."""

    def __init__(self, count: int = 1, on_record: Any = None) -> None:
        self.arena = Arena(MIB)
        self.memory = ServerMemory(self.arena)
        self.zygotes = FakeZygotes(self.arena)
        self.owner = RecordingOwner()
        self.records: list[bytes] = []
        op = Op("op")
        op.pipeline_config = OpConfig()
        processes = ProcessContext(
            self.zygotes, self.memory, {op: 7}, on_record or self.records.append
        )
        self.loop = asyncio.get_running_loop()
        self.workers = ProcessWorkers(op, count, self.loop, processes, self.owner)
        self.starting: asyncio.Task[None] | None = None

    @property
    def children(self) -> list[FakeChild]:
        return self.zygotes.children

    @property
    def finished(self) -> list[BatchRun]:
        return [run for _, run in self.owner.finished]

    @property
    def lost(self) -> list[BatchRun]:
        return [run for run, _ in self.owner.losses]

    async def begin(self) -> list[FakeChild]:
        """Let it start, up to where the workers have to report."""
        self.starting = asyncio.ensure_future(self.workers.start())
        await settle()
        return self.children

    async def up(self) -> list[FakeChild]:
        """Let it start."""
        children = await self.begin()
        for child in children:
            child.is_ready()
        assert self.starting is not None
        await self.starting
        return children

    async def __aenter__(self) -> FakePool:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.starting is not None and not self.starting.done():
            self.starting.cancel()
        stopping = asyncio.ensure_future(self.workers.stop(1.0))
        await settle()
        for child in self.children:
            child.dies()
        assert await stopping == 0
        if self.starting is not None:
            await asyncio.gather(self.starting, return_exceptions=True)
        self.owner.finished.clear()
        self.owner.losses.clear()
        self.arena.close()


def played(count: int = 1) -> Callable[[Any], Callable[..., Any]]:
    """Run an async test on a virtual loop, of a pool with so many workers, which are up.

    Its first parameters are the `pool` and, as far as it wants them, the children.
    """

    def decorate(test: Any) -> Callable[..., Any]:
        wanted = {"pool", "child", "first", "second"} & inspect.signature(test).parameters.keys()

        @virtual
        async def run(**fixtures: Any) -> None:
            async with FakePool(count) as pool:
                parts = (pool, *await pool.up())
                await test(*parts[: len(wanted)], **fixtures)

        return in_place_of(test, run, *wanted)

    return decorate
