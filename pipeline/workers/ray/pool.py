"""RayWorkers: the workers of one Op, which are actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pipeline.config.sections import RayOpConfig
from pipeline.engine.run.hooks import asking
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.worker_api import Worker, WorkersOwner
from pipeline.errors import DataLostError, InitError
from pipeline.op import Op
from pipeline.workers.process.handle import ProcessWorker
from pipeline.workers.process.pool import ProcessWorkers
from pipeline.workers.ray.api import Demands
from pipeline.workers.ray.cargo import ActorSetup
from pipeline.workers.ray.handle import RayWorker
from pipeline.workers.ray.link import RayContext, Sender
from pipeline.workers.restart_policy import RestartSlot

_LOGGER = logging.getLogger(__name__)

_LOOKS = 4  # checks of an actor's call within the Op's timeout
_LEAST_LOOK_S = 0.05
_MOST_OBJECTS = 32  # in a reply


class ActorMaker(Protocol):
    """The part of the kind that the workers of an Op need."""

    start_timeout_s: float

    async def prepare(self, op: Op) -> Sequence[Any]:
        """Connect, and wait for the actors that have to start before; return the model's files."""

    def cargo(self, op: Op, number: int, look_s: float) -> ActorSetup:
        """Return the description of an actor of an Op."""

    def node_for(self, op: Op, number: int, silent: str) -> str | None:
        """Return the node for an actor, not `silent`; None: any node.

        `silent` is a node that seems unreachable; "": there is none.
        """

    async def describe_room(self) -> str:
        """Return a text about the nodes' resources."""


class RayWorkers(ProcessWorkers):
    """The actors of one Op; see `Workers`.

    They are supervised like processes: only the start and the transport differ.

    Args:
        maker: starts them.
        passes_on: whether all readers of the Op's answers are also actors.

    Attributes:
        sender: makes the calls with batches.
        model_refs: the files of its model, if they are sent.
        objects: number of objects that a reply of an actor may have: as many as one has had, with a
            limit.
        look_s: how often an actor reports its progress.
        has_started: set when all of them run for the first time.
    """

    kind: str = "ray"
    ahead: int = 1
    takes_convoys: bool = False

    def __init__(
        self,
        op: Op,
        count: int,
        loop: asyncio.AbstractEventLoop,
        context: RayContext,
        owner: WorkersOwner,
        schedule: Callable[[], None],
        maker: ActorMaker,
        passes_on: bool,
    ) -> None:
        super().__init__(op, count, loop, context, owner, schedule)
        self.passes_on: bool = passes_on
        self.sender: Sender = context.make_sender(op.name)
        self.model_refs: Sequence[Any] = ()
        self.objects: int = int(
            passes_on
        )  # otherwise the first object is always fetched to this process
        timeout_s = op.pipeline_config.timeout_s
        self.look_s: float = max(_LEAST_LOOK_S, timeout_s / _LOOKS) if timeout_s else 0.0
        self.has_started: asyncio.Event = asyncio.Event()
        self._context = context
        self._maker = maker
        self._asks = asking(op)
        self._following: list[RestartSlot] = []
        self._silent: dict[int, str] = {}  # nodes of actors that hung without a report

    @property
    def nodes(self) -> list[str]:
        """Return the ids of the nodes of its actors."""
        return [worker.node for worker in self.pool.alive if isinstance(worker, RayWorker)]

    def cargo(self, number: int) -> ActorSetup:
        return self._maker.cargo(self._op, number, self.look_s)

    def demands(self, node: str | None) -> Demands:
        """Return the resources that an actor needs."""
        wanted: RayOpConfig = self._op.pipeline_config.ray
        spreads = wanted.placement == "spread"
        return Demands(wanted.num_cpus, wanted.num_gpus, wanted.resources, spreads, node)

    async def start(self) -> None:
        self.model_refs = await self._maker.prepare(self._op)
        self.sender.start()
        try:
            async with asyncio.timeout(self._maker.start_timeout_s):
                await super().start()
        except TimeoutError:
            room = await self._maker.describe_room()
            demands = self.demands(None)
            raise InitError(
                f"Op {self.name!r} failed to start: {self.count} of {len(self._slots)} actors are "
                f"up after {self._maker.start_timeout_s:g} s; each needs {_wants(demands)}; "
                f"there are {room}. See op.{self.name}.ray and dag.ray.start_timeout_s"
            ) from None
        self.has_started.set()

    def _launch_all(self) -> None:
        if self._op.pipeline_config.ray.placement != "pack":
            super()._launch_all()
            return
        first, *self._following = self._slots  # these start on the node of the first one
        self._launch(first)

    def on_ready(self, worker: ProcessWorker) -> None:
        following, self._following = self._following, []
        for slot in following:
            self._launch(slot)
        super().on_ready(worker)

    def _make(self, slot: RestartSlot) -> ProcessWorker:
        node = self._maker.node_for(self._op, slot.number, self._silent.pop(slot.number, ""))
        return RayWorker(self, slot, self._context, self._op, node)

    def has_large(self, count: int) -> None:
        """Note that a reply had so many large answers."""
        self.objects = min(_MOST_OBJECTS, max(self.objects, count))

    def replace(self, worker: Worker, job: Any) -> bool:
        if isinstance(worker, RayWorker) and worker.is_silent:
            self.on_unreachable(worker)
        return super().replace(worker, job)

    def on_unreachable(self, worker: RayWorker) -> None:
        """Start the next worker of this place on another node, if there is one that replies."""
        self._silent[worker.number] = worker.node

    def forget(self, data_id: int) -> None:
        if not (self._asks or self._op_streams):
            return
        for worker in self.pool.alive:
            assert isinstance(worker, RayWorker), "it has no others"
            if worker.sent or worker.streams:
                worker.link.forget([data_id])

    @property
    def _op_streams(self) -> bool:
        return any(worker.streams for worker in self.pool.alive)

    def on_exiting(self, worker: ProcessWorker) -> None:
        """End an actor that could not start: it does not end by itself."""
        super().on_exiting(worker)
        worker.kill("failed to start")

    def on_job_lost(self, worker: RayWorker, run: BatchRun, why: str) -> None:
        """Report a lost batch whose actor still lives."""
        worker.streams.pop(run, None)
        died = run.died(self.name, worker.number, f"got no data: {why}")
        self._owner.lost(run, DataLostError(str(died)))
        self.pool.on_reported()

    async def stop(self, timeout_s: float) -> int:
        left = await super().stop(timeout_s)
        self.sender.close()
        return left


def _wants(demands: Demands) -> str:
    own = {"num_cpus": demands.num_cpus, "num_gpus": demands.num_gpus, **demands.resources}
    return ", ".join(f"{name} {amount:g}" for name, amount in own.items() if amount)
