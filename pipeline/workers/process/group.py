"""Processes that run walks: each has a copy of every Op of a group; see `engine.hosting`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, cast

from pipeline.engine.batch_run import BatchRun
from pipeline.engine.walk import Step, Walk, WalkPlan
from pipeline.engine.walk_api import WalkOwner
from pipeline.engine.worker_api import Owner, Worker
from pipeline.errors import InitError, PipelineError, note_op
from pipeline.op import Op
from pipeline.workers.process.handle import ProcessContext, ProcessWorker, error_of
from pipeline.workers.process.pages import StepTimes
from pipeline.workers.process.pool import ProcessWorkers
from pipeline.workers.process.wire import StepResult, WireStep

_LOGGER = logging.getLogger(__name__)

_WAIT_S = 0.005  # a walk that waits so long behind another one goes Op by Op
_STOP_TIMEOUT_S = 2.0


class MemberWorkers(ProcessWorkers):
    """The process workers of one Op, which may be in groups with others."""

    @cached_property
    def hosts(self) -> list[GroupWorkers]:
        """Return those of the groups that this Op leads, until they have ended."""
        return []

    @cached_property
    def visited(self) -> list[GroupWorkers]:
        """Return the hosts of those that it is in."""
        return []

    def host(self, plan: WalkPlan, owner: WalkOwner) -> GroupWorkers:
        """Start the processes of a group that this Op leads."""
        group = GroupWorkers(
            plan,
            self.loop,
            cast(ProcessContext, self._processes),
            self._owner,
            self._schedule,
            owner,
            len(self._slots),
        )
        self.hosts.append(group)
        group.begin()
        return group

    def busy(self) -> Iterable[Worker]:
        own = super().busy()
        if not self.visited:
            return own
        return [*own, *(view for group in self.visited for view in group.at_work(self))]

    def replace(self, worker: Worker, job: Any) -> bool:
        if isinstance(worker, AtWork):
            return worker.group.replace(worker.process, None)
        return super().replace(worker, job)

    async def stop(self, timeout_s: float) -> int:
        hosts = [group.stop(timeout_s) for group in self.hosts]
        return sum(await asyncio.gather(super().stop(timeout_s), *hosts))


class AtWork:
    """A host's process as a worker of the Op whose step it runs, or is to begin."""

    def __init__(
        self, group: GroupWorkers, process: ProcessWorker, place: int, run: BatchRun
    ) -> None:
        self.group: GroupWorkers = group
        self.process: ProcessWorker = process
        self.number: int = process.number
        self.job: BatchRun = run
        self.place: int = place

    @property
    def job_started(self) -> float | None:
        return self.process.status.step_started if self.place else self.process.job_started

    @property
    def call_started(self) -> float | None:
        return self.process.call_started


class GroupWorkers(ProcessWorkers):
    """The host of a group; see `walk.Host`.

    Args:
        owner: of the leader's workers: told what is done.
        walks: told the rest.
    """

    def __init__(
        self,
        plan: WalkPlan,
        loop: asyncio.AbstractEventLoop,
        processes: ProcessContext,
        owner: Owner,
        schedule: Callable[[], None],
        walks: WalkOwner,
        count: int,
    ) -> None:
        leader = plan.steps[0].node.op
        super().__init__(leader, count, loop, processes, owner, schedule)
        self.group: tuple[Op, ...] = tuple(step.node.op for step in plan.steps)
        self.entries: tuple[int, ...] = plan.entries
        self.has_failed: bool = False
        self._plan = plan
        self._walks = walks
        self._under_way: dict[BatchRun, Walk] = {}
        self._is_retired = False
        self._is_idle = asyncio.Event()  # once it is retired
        self._task: asyncio.Task[None] | None = None

    # What fusing asks ---------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        if not self._is_started or self._is_retired:
            return False
        moved = sum(walk.moved is not None for walk in self._under_way.values())
        return len(self._up) > moved

    def walk(self, walks: Sequence[Walk]) -> None:
        for walk in walks:
            self._under_way[walk.lead] = walk
        self.submit([walk.lead for walk in walks])
        self.feed()

    def slow_step(self, walk: Walk, limit_s: float) -> tuple[int, Any, BatchRun] | None:
        for worker in self._alive:
            if worker.running is walk.lead:
                place, began = worker.status.step, worker.status.step_started
                if place and began is not None and self.loop.time() - began > limit_s:
                    self._hold(walk, worker, place)
                    return walk.held[0]
        return None

    def part(self, walk: Walk) -> tuple[int, Any, BatchRun] | None:
        if not walk.held or self._take_out(walk.lead) is None:
            return None
        place, view, run = walk.held.pop()
        for finished, times in view.process.status.finished_steps():
            if finished < place:
                self._book(walk, view.process, finished, times)
        return place, view, run

    def take_back_all(self) -> None:
        for worker in self._up:
            self._give_back(worker.revoke())

    def retire(self) -> None:
        self._is_retired = True
        self.take_back_all()
        self._task = self.loop.create_task(self._retire())

    async def _retire(self) -> None:
        if self._under_way:
            await self._is_idle.wait()
        await super().stop(_STOP_TIMEOUT_S)
        self._leave()

    # Start and end ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the processes, in the background."""
        self._task = self.loop.create_task(self._begin())

    async def _begin(self) -> None:
        try:
            await self.start()
        except (InitError, OSError) as error:
            if self._is_stopped:
                return
            names = ", ".join(op.name for op in self.group)
            _LOGGER.warning("Ops %s do not share processes: %s", names, error)
            self.has_failed = True
            await super().stop(_STOP_TIMEOUT_S)
            self._leave()
        else:
            for pool in self._pools():
                pool.visited.append(self)
        self._walks.host_changed()

    async def stop(self, timeout_s: float) -> int:
        self._under_way.clear()
        self._is_idle.set()
        left = await super().stop(timeout_s)
        if self._task is not None:
            await asyncio.wait([self._task])
        return left

    def _leave(self) -> None:
        """Be forgotten, as it has ended."""
        for pool in self._pools():
            if self in pool.visited:
                pool.visited.remove(self)
        self._pools()[0].hosts.remove(self)

    def _pools(self) -> list[MemberWorkers]:
        pools = [step.node.workers for step in self._plan.steps]
        return [pool for pool in pools if isinstance(pool, MemberWorkers)]

    def steps(self) -> list[WireStep]:
        numbers = cast(ProcessContext, self._processes).entry_points
        return [
            WireStep(numbers[op], step.name, step.producers, step.readers)
            for op, step in zip(self.group, self._plan.steps, strict=True)
        ]

    def on_changed(self, places: Sequence[int]) -> None:
        for place in places:
            self._pools()[place].keeps_state = True
        self._walks.host_changed()

    # Who is at what -----------------------------------------------------------------------------

    def at_work(self, pool: ProcessWorkers) -> Iterable[AtWork]:
        """Return the processes that run a step of an Op, or are to begin a walk that it leads."""
        for worker in self.busy():
            assert isinstance(worker, ProcessWorker), "it has no others"
            lead = worker.running or worker.job
            walk = self._under_way.get(lead) if isinstance(lead, BatchRun) else None
            if walk is not None:
                view = self._hold(walk, worker, _step(worker, walk))
                if self._plan.steps[view.place].node.workers is pool:
                    yield view

    def _hold(self, walk: Walk, worker: ProcessWorker, place: int) -> AtWork:
        """Return who is at a step of a walk, and keep in it that it is."""
        if walk.held and walk.held[0][0] == place and walk.held[0][1].process is worker:
            view: AtWork = walk.held[0][1]
            return view
        run = walk.lead
        if place:
            run = BatchRun([walk.lead.items[0].following({}, walk.lead.items[0].ready_ns)])
            run.is_step = True
        view = AtWork(self, worker, place, run)
        walk.held[:] = [(place, view, run)]
        return view

    # What becomes of walks ----------------------------------------------------------------------

    def walked(
        self,
        worker: ProcessWorker,
        lead: BatchRun,
        steps: Sequence[StepResult],
        outcomes: Sequence[tuple[int, Any]],
        left: dict[int, dict[str, Any]],
    ) -> None:
        walk = self._take_out(lead)
        if walk is None:
            return
        for step in steps:
            times = (step.start_ns, step.preprocess_end_ns, step.process_end_ns, step.end_ns)
            run = self._book(walk, worker, step.place, times, error_of(step.error))
            if step.rows >= 0:
                run.rows = [step.rows]
        walk.began_ns = walk.finished[0][2].start_ns if walk.finished else 0
        walk.outs = [(walk.plan.steps[place], 0, outcome) for place, outcome in outcomes]
        walk.came = [left.get(place) for place in range(len(walk.plan.steps))]
        self._done(worker, walk)

    def _book(
        self,
        walk: Walk,
        worker: ProcessWorker,
        place: int,
        times: StepTimes,
        error: PipelineError | None = None,
    ) -> BatchRun:
        """Take down that a step is finished; what it made is not here, but that it made it."""
        step = walk.plan.steps[place]
        run = walk.lead if place == 0 else self._run(walk, step)
        run.outcomes = [True if error is None else error]
        run.start_ns, run.preprocess_end_ns, run.process_end_ns, run.end_ns = times
        walk.finished.append((place, worker, run))
        return run

    def _run(self, walk: Walk, step: Step) -> BatchRun:
        lead = walk.lead.items[0]
        steps = walk.plan.steps
        ends = [
            run.end_ns for place, _, run in walk.finished if steps[place].name in step.producers
        ]
        return BatchRun([lead.following({}, max(ends, default=lead.ready_ns))])

    def _done(self, worker: ProcessWorker, walk: Walk) -> None:
        self._owner.done(worker, walk)
        if worker.slot.failures:
            self._is_steady(worker.slot)

    def _unsent(self, worker: ProcessWorker, run: BatchRun) -> None:
        walk = self._take_out(run)
        if walk is None:
            return
        walk.finished = [(0, worker, run)]
        walk.began_ns = run.start_ns
        for outcome in run.outcomes:
            note_op(outcome, walk.plan.steps[0].name)
        walk.outs = [(walk.plan.steps[-1], 0, each) for each in run.outcomes if each is not None]
        self._owner.done(worker, walk)

    def _give_back(self, runs: Sequence[BatchRun]) -> None:
        for run in runs:
            walk = self._take_out(run)
            if walk is not None:
                self._walks.returned(walk)

    def _died(self, worker: ProcessWorker, running: BatchRun) -> None:
        walk = self._under_way.get(running)
        if walk is None:
            return
        view = self._hold(walk, worker, worker.status.step)
        name = walk.plan.steps[view.place].name
        error = view.job.died(name, worker.number, worker.slot.last_cause)
        self._walks.crashed(walk, error)

    def _take_out(self, lead: BatchRun) -> Walk | None:
        """Return the walk of a batch, which is here no more; None: it is not."""
        walk = self._under_way.pop(lead, None)
        if self._is_retired and not self._under_way:
            self._is_idle.set()
        return walk

    def feed(self) -> None:
        """See to it that no walk waits long behind another one."""
        is_somebody_waiting = any(len(worker.sent) > 1 for worker in self._up)
        if self._rescue_timer is None and is_somebody_waiting:
            self._rescue_timer = self.loop.call_later(_WAIT_S, self._rescue)

    def _rescue(self) -> None:
        self._rescue_timer = None
        now = self.loop.time()
        for worker in self._up:
            if worker.is_slow(now, _WAIT_S):
                self._give_back(worker.revoke())
        self.feed()


def _step(worker: ProcessWorker, walk: Walk) -> int:
    """Return the place of the step that a worker is at, or is to begin with."""
    return worker.status.step if worker.running is walk.lead else 0
