"""Double: a Ray whose actors are objects in this thread, and do what a test lets them do."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from doubles import RecordingOwner, settle

from pipeline import Op
from pipeline.config.schema import OpConfig
from pipeline.metrics import Ledger
from pipeline.op import configure_op
from pipeline.workers.inbox import LoopInbox
from pipeline.workers.ray.actor import RayActor
from pipeline.workers.ray.api import ActorGoneError, Demands, ObjectGoneError, OnValue
from pipeline.workers.ray.cargo import ActorSetup, for_transport
from pipeline.workers.ray.link import RayContext, Sender
from pipeline.workers.ray.objects import RayMemory
from pipeline.workers.ray.pool import RayWorkers

KILLED = "The actor is dead because it was killed"


class InlineSender(Sender):
    """Makes its calls at once, in the thread that asks for them."""

    def start(self) -> None:
        """Do nothing: this double has no thread."""

    def do(self, call: Callable[[], object]) -> None:
        call()

    def close(self) -> None:
        """Do nothing: this double has no thread."""


@dataclass(eq=False)
class Ref:
    """A reference: of what will be there, is there, or is lost."""

    value: Any = None
    error: Exception | None = None
    is_done: bool = False
    waiting: list[OnValue] = field(default_factory=list)

    def settle(self, value: Any, error: Exception | None = None) -> None:
        if self.is_done:
            return
        self.value, self.error, self.is_done = value, error, True
        for notify in self.waiting:
            notify(value, error)
        self.waiting.clear()


class FakeActor:
    """An actor: its calls run when the test says so, the control calls at once."""

    def __init__(self, cargo: ActorSetup, demands: Demands) -> None:
        self.demands = demands
        self.calls: deque[tuple[str, Sequence[Any], list[Ref]]] = deque()
        self.is_dead = False
        self.told: list[str] = []
        self.revoked = 0
        self._begun = 0
        self._made = RayActor(cargo, Ledger())
        self._polls: list[list[Ref]] = []

    def call(self, method: str, args: Sequence[Any], refs: list[Ref]) -> None:
        if self.is_dead:
            for ref in refs:
                ref.settle(None, ActorGoneError(KILLED))
            return
        self.told.append(method)
        if method == "poll":
            self._polls.append(refs)
        elif method in ("tell", "revoke", "forget"):
            self.revoked = args[0] if method == "revoke" else self.revoked
            _settle(refs, getattr(self._made, method)(*_values(args)))
        else:
            self.calls.append((method, args, refs))

    def runs(self, count: int = 1) -> None:
        """Run the next calls that wait."""
        for _ in range(count):
            method, args, refs = self.calls.popleft()
            lost = [arg.error for arg in args if isinstance(arg, Ref) and arg.error]
            if lost:
                for ref in refs:
                    ref.settle(None, lost[0])
                continue
            status, revoked = self._made._status, self.revoked
            status.revoke(self._begun - 1 if self._begun else revoked)  # it had begun before
            result = getattr(self._made, method)(*_values(args))
            self._begun = status.revoke(revoked) and 0
            self.polls()
            _settle(refs, result)

    def begins(self, job: int) -> None:
        """Begin a job, which `run` continues."""
        self._made._status.begins(job)
        self._begun = job

    def polls(self) -> None:
        """Have who polls told of what is due."""
        while self._polls and self._made._box.wait(0.0):
            _settle(self._polls.pop(0), self._made.poll())

    def says_late(self, record: bytes) -> Callable[[], None]:
        """Log something that is fetched now; it arrives when what is returned is called."""
        self._made._box.add_record(record)
        refs, reply = self._polls.pop(0), self._made.poll()
        return lambda: _settle(refs, reply)

    def dies(self, why: str | Exception = KILLED) -> None:
        self.is_dead = True
        everybody = [ref for _, _, refs in self.calls for ref in refs]
        everybody += [ref for refs in self._polls for ref in refs]
        self.calls.clear()
        for ref in everybody:
            ref.settle(None, ActorGoneError(why) if isinstance(why, str) else why)


def _values(args: Sequence[Any]) -> list[Any]:
    return [arg.value if isinstance(arg, Ref) else arg for arg in args]


def _settle(refs: Sequence[Ref], result: Any) -> None:
    values = result if isinstance(result, tuple) and len(refs) > 1 else [result]
    for ref, value in zip(refs, values, strict=True):
        ref.settle(value)


class FakeRay:
    """A RayApi. `full`: nothing can be put."""

    def __init__(self) -> None:
        self.actors: list[FakeActor] = []
        self.stored: list[Ref] = []
        self.is_full = False
        self.refusal: Exception | None = None
        self.gets = 0

    def where(self) -> str:
        return "node"

    def connect(self, config: Any) -> None:
        """It is there."""

    def start(self, actor: type, cargo: Any, demands: Demands, name: str) -> FakeActor:
        if self.refusal is not None:
            raise self.refusal
        self.actors.append(FakeActor(cargo, demands))
        return self.actors[-1]

    def call(self, actor: FakeActor, method: str, args: Sequence[Any], returns: int) -> list[Ref]:
        refs = [Ref() for _ in range(returns)]
        actor.call(method, args, refs)
        return refs

    def put(self, value: Any) -> Ref:
        if self.is_full:
            raise ObjectGoneError("the store is full")
        ref = Ref(value, None, is_done=True)
        self.stored.append(ref)
        return ref

    def get(self, ref: Ref, timeout_s: float) -> Any:
        self.gets += 1
        return ref.value

    def when_done(self, ref: Ref, notify: OnValue) -> None:
        if ref.is_done:
            notify(ref.value, ref.error)
        else:
            ref.waiting.append(notify)

    def kill(self, actor: FakeActor) -> None:
        actor.dies()

    def describe_room(self) -> str:
        return "1 nodes: CPU 2"

    def close(self) -> None:
        """It stays."""


class FakeMaker:
    """Double of the kind, as far as RayWorkers ask it."""

    start_timeout_s = 60.0

    def __init__(self, api: FakeRay) -> None:
        self.api = api
        self.silent: list[str] = []

    async def prepare(self, op: Op) -> Sequence[Any]:
        return []

    def cargo(self, op: Op, number: int, look_s: float) -> ActorSetup:
        return ActorSetup(
            for_transport(op), number, lambda op, number: None, lambda send: None, "",
            self.api.where, look_s
        )  # fmt: skip

    def node_for(self, op: Op, number: int, silent: str) -> str | None:
        self.silent.append(silent)
        return None

    async def describe_room(self) -> str:
        return self.api.describe_room()


class RayPool:
    """RayWorkers of an Op over a Ray that the test plays. `keys` are those of `op.<name>`."""

    def __init__(self, op: Op, count: int = 1, passes_on: bool = False, **keys: Any) -> None:
        self.api = FakeRay()
        self.memory = RayMemory(self.api)
        self.owner = RecordingOwner()
        self.loop = asyncio.get_running_loop()
        inbox = LoopInbox(self.loop, after=lambda: None)
        context = RayContext(
            self.api, self.memory, inbox, InlineSender("control"), lambda record: None,
            make_sender=InlineSender,
        )  # fmt: skip
        configure_op(op, OpConfig(workers="ray", **keys))
        self.maker = maker = FakeMaker(self.api)
        self.workers = RayWorkers(
            op, count, self.loop, context, self.owner, lambda: None, maker, passes_on
        )

    @property
    def actors(self) -> list[FakeActor]:
        return self.api.actors

    @property
    def finished(self) -> list[Any]:
        return [run for _, run in self.owner.finished]

    async def up(self) -> list[FakeActor]:
        starting = asyncio.ensure_future(self.workers.start())
        await settle()
        for actor in self.actors:
            actor.runs()
        await starting
        return self.actors

    async def __aenter__(self) -> RayPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        stopping = asyncio.ensure_future(self.workers.stop(1.0))
        await settle()
        for actor in self.actors:
            while actor.calls:
                actor.runs()
        assert await stopping == 0


def big(value: int, size: int = 1 << 18) -> Any:
    return np.full(size, value, np.uint8)
