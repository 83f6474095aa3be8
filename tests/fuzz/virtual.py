"""Runs a case on the engine alone: a virtual clock, and workers whose threads are strands."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from doubles import VirtualLoop

from fuzz import ops, pacing
from fuzz.case import REQUEST, Case, RequestSpec
from fuzz.checker import Ending, Outlook, check_endings
from fuzz.model import bound_s
from fuzz.strands import Strand, Strands, StrandWorld
from pipeline import Op
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.data import ChannelData
from pipeline.engine.admission import SharedQueue
from pipeline.engine.engine import Engine
from pipeline.engine.graph import build_graph
from pipeline.engine.journal.journal import EngineObservers, Journal
from pipeline.engine.op.channel import Item
from pipeline.engine.pack_jobs import PackRunner
from pipeline.engine.request import RequestTarget
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.state import WorkersState
from pipeline.engine.trips.trip import Trip
from pipeline.engine.worker_api import WorkersBase, WorkersOwner
from pipeline.errors import DeadlineError, OverloadedError, PipelineError
from pipeline.op import configure_op
from pipeline.proto import pipeline_service_pb2
from pipeline.workers.process.main import OpenedItem

_RESTART_S = 0.03  # for the start of a process that replaces another one
_EDGE_WORKERS = 4
_OVER_S = 1.0  # all requests come before this time
_MOST_HANGS = 10  # of one thread: one for each part of a mini-batch, and a later one


class VirtualWorker:
    """One worker. `strand` runs its job."""

    def __init__(self, pool: VirtualWorkers, op: BoundOp, number: int) -> None:
        self.pool = pool
        self.op = op
        self.number = number
        self.job: Any = None
        self.began_ns = 0
        self.run: Any = None  # the job of the strand: a copy of it in a process
        self.strand: Strand | None = None
        self.job_started: float | None = None
        self.call_started: float | None = None
        self.is_given_up = False
        self.timer: asyncio.TimerHandle | None = None
        self.is_lent = self.is_leaving = False
        self.addressed = ()

    def perform(self, run: Any, clock_ns: Callable[[], int]) -> None:
        """Run a batch in the current strand."""
        run.run(self.op, self, clock_ns)

    @property
    def visit(self) -> Callable[..., Any]:
        return self.op.plain

    def call_begins(self) -> None:
        self.call_started = self.pool.loop.time()

    def call_ends(self) -> None:
        self.call_started = None

    def yielded(self, run: Any, entries: Any) -> None:
        self.pool.loop.call_soon(self.pool.owner.parts, run, entries)


class VirtualWorkers(WorkersBase):
    """The workers of one Op, which behave as threads or processes; see `engine.worker_api.Workers`.

    `lent_items`: the number of requests that lent workers have processed.
    """

    def __init__(self, engine: VirtualEngine, op: Op, owner: WorkersOwner, count: int) -> None:
        self.op = op
        self.owner = owner
        self.loop = engine.loop
        self.is_process = (
            not isinstance(owner, PackRunner) and op.pipeline_config.workers == "process"
        )
        self.keeps_progress = not self.is_process
        self._engine = engine
        self._wanted = count
        self._workers: list[VirtualWorker] = []
        self._stuck: list[VirtualWorker] = []
        self._queue: list[Any] = []
        self.lent_items = 0
        self._replaced = 0
        self._is_stopped = False

    @property
    def count(self) -> int:
        return len(self._workers)

    @property
    def is_ready(self) -> bool:
        return bool(self._workers)

    @property
    def outage(self) -> PipelineError | None:
        return None if self._workers or self.is_process else DeadlineError("all workers hang")

    def state(self) -> WorkersState:
        busy = sum(worker.job is not None for worker in self._workers)
        kind = "process" if self.is_process else "thread"
        stuck = len(self._stuck)
        return WorkersState(kind, self._wanted, self.count, busy, stuck, self._replaced)

    async def start(self) -> None:
        self.op.init_op()
        self._workers = [
            VirtualWorker(self, BoundOp(self.op, number), number) for number in range(self._wanted)
        ]

    async def stop(self, timeout_s: float) -> int:
        self._is_stopped = True
        for worker in [*self._workers, *self._stuck]:
            self._end(worker)
        return 0

    def submit(self, jobs: Sequence[Any]) -> None:
        self._queue.extend(jobs)
        self._feed()

    def busy(self) -> Iterable[VirtualWorker]:
        return [worker for worker in self._workers if worker.job is not None]

    def replace(self, worker: VirtualWorker, job: Any) -> bool:
        self._workers.remove(worker)
        self._replaced += 1
        if self.is_process:
            self._end(worker)
            if job is not None:
                self._queue.insert(0, job)
            self._restart(worker)
        else:
            worker.is_given_up = True
            self._stuck.append(worker)
            following = VirtualWorker(self, worker.op.replacement(), worker.number)
            self._workers.append(following)
            if job is not None:
                self._begin(following, job)
            self._feed()
        return True

    # Jobs -----------------------------------------------------------------------------------

    def _feed(self) -> None:
        for worker in self._workers:
            if worker.job is None and not worker.is_lent and self._queue:
                self._begin(worker, self._queue.pop(0))

    def _begin(self, worker: VirtualWorker, job: Any) -> None:
        worker.job = worker.run = job
        if self.is_process:
            worker.run = _sent(job)
            if not worker.run.items:  # no sample to send
                now = self._engine.clock_ns()
                job.outcomes = [None] * len(job.items)
                job.start_ns = job.preprocess_end_ns = job.process_end_ns = job.end_ns = now
                self.loop.call_soon(self._finish, worker, job)
                return
        run = worker.run
        worker.strand = self._engine.strands.take()
        clock_ns = self._engine.clock_ns
        if isinstance(run, Trip):
            worker.strand.begin(lambda: run.go(worker, clock_ns))
        else:
            worker.strand.begin(lambda: run.run(worker.op, worker, clock_ns))
        self.loop.call_soon(self._go_on, worker, job)

    def _go_on(self, worker: VirtualWorker, job: Any) -> None:
        is_on_trip = isinstance(worker.run, Trip) and worker.run is job
        if (worker.job is not job and not is_on_trip) or worker.strand is None:  # killed meanwhile
            return
        worker.timer = None
        if worker.job_started is None:
            worker.job_started = self.loop.time()
        wish = worker.strand.step()
        if wish.kind == "done":
            self._leave(worker)
            self._finish(worker, job)
        elif wish.kind == "crash":
            self._crash(worker, job)
        elif wish.seconds is not None:
            worker.timer = self.loop.call_later(wish.seconds, self._go_on, worker, job)

    def _leave(self, worker: VirtualWorker) -> None:
        """Give the strand of `worker` back after its end."""
        strand, worker.strand = worker.strand, None
        if strand is not None:
            if strand.error is not None:
                self._engine.outlook.complain(f"a worker of {self.op.name} raised {strand.error!r}")
            self._engine.strands.give_back(strand)

    def _finish(self, worker: VirtualWorker, job: Any) -> None:
        run, worker.job, worker.run = worker.run, None, None
        worker.job_started = worker.call_started = None
        if self.is_process and run.items:
            _take_result(job, run)
        if worker.is_given_up:
            self._stuck.remove(worker)
        self.owner.done(worker, job)
        if not self._is_stopped:
            self._feed()

    def _crash(self, worker: VirtualWorker, job: Any) -> None:
        self._workers.remove(worker)
        self._replaced += 1
        self._end(worker)
        self._restart(worker)
        self.owner.lost(job, job.died(self.op.name, worker.number, "was killed"))
        self.owner.workers_changed()

    def _restart(self, worker: VirtualWorker) -> None:
        self.loop.call_later(_RESTART_S, self._came_up, worker.number)

    def _came_up(self, number: int) -> None:
        if not self._is_stopped:
            self._workers.append(VirtualWorker(self, BoundOp(self.op, number), number))
            self._feed()
            self.owner.workers_changed()

    def _end(self, worker: VirtualWorker) -> None:
        """Kill the strand that runs in a worker."""
        worker.job = None
        if worker.timer is not None:
            worker.timer.cancel()
        if worker.strand is not None:
            worker.strand.kill()
            self._leave(worker)

    def release(self) -> None:
        """End the hangs in threads."""
        for worker in [*self._stuck, *self._workers]:
            if worker.strand is not None and not self.is_process:
                self.loop.call_soon(self._go_on, worker, worker.job)


class Idle:
    """The idle workers of a pool: trips take them and put them back."""

    def __init__(self, pool: VirtualThreads) -> None:
        self._pool = pool

    def pop(self) -> VirtualWorker:
        pool = self._pool
        idle = [each for each in pool._workers if each.job is None and not each.is_lent]
        worker = idle.pop()
        worker.is_lent = True
        pool.lent_items += 1
        return worker

    def append(self, worker: VirtualWorker) -> None:
        worker.is_lent = False
        worker.job = worker.job_started = worker.call_started = None
        self._pool.loop.call_soon(self._pool._feed)


class VirtualThreads(VirtualWorkers):
    """Workers that can be lent. Strands run only while the loop waits, so a borrower is alone."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.idle = Idle(self)
        self.backlog = self._queue
        self.lender, self.visit_type = self, Item

    def employ(self, worker: VirtualWorker) -> None:
        self.loop.call_soon(self._feed)

    def states(self) -> Iterable[dict[str, Any]]:
        return [worker.op.state for worker in self._workers]

    def part(self, trip: Trip) -> tuple[int, Any, BatchRun] | None:
        found = trip.take_out()
        if found is None:
            return None
        place, stepping, run = found
        walker = trip.walker
        walker.run = None
        stepping.job = stepping.run = run
        stepping.is_lent = False
        stepping.strand, stepping.timer = walker.strand, walker.timer
        if stepping.timer is not None:
            when = stepping.timer.when()
            stepping.timer.cancel()
            stepping.timer = self.loop.call_at(when, stepping.pool._go_on, stepping, run)
        if place:
            stepping.job_started = trip.step_ns / 1e9
            walker.job = walker.strand = walker.timer = None
            walker.job_started = walker.call_started = None
            self._feed()
        return place, stepping, run


def _sent(job: BatchRun) -> BatchRun:
    """Return a job as another process gets it: copies of the samples that are not over."""
    kept = [place for place, item in enumerate(job.items) if not item.is_over]
    samples = [
        OpenedItem(
            item.data_id,
            item.log_id,
            {name: dict(part) for name, part in item.inputs.items()},
            item.deadline,
            item.trace,
            item.is_feed,
            info=item.info,
        )
        for item in (job.items[place] for place in kept)
    ]
    run = BatchRun(samples, places=job.places and [job.places[place] for place in kept])
    if job.given:
        run.given = {kept.index(at): states for at, states in job.given.items() if at in kept}
    return run


def _take_result(job: BatchRun, run: BatchRun) -> None:
    def spread(values: list[Any], absent: Any) -> list[Any]:
        by_id = dict(zip((sample.data_id for sample in run.items), values, strict=True))
        return [by_id.get(item.data_id, absent) for item in job.items]

    if run.kept:
        places = {item.data_id: place for place, item in enumerate(job.items)}
        job.kept = {places[run.items[at].data_id]: states for at, states in run.kept.items()}
    job.outcomes, job.jumped = spread(run.outcomes, None), run.jumped
    if run.rows:
        job.rows = spread(run.rows, 1)
    if run.executions:
        job.executions, job.execution_ends_ns = spread(run.executions, -1), run.execution_ends_ns
    job.start_ns, job.preprocess_end_ns = run.start_ns, run.preprocess_end_ns
    job.process_end_ns, job.end_ns = run.process_end_ns, run.end_ns


class VirtualEngine:
    """An Engine over virtual workers; `queue` is shared with the other pipelines of its server."""

    def __init__(
        self,
        case: Case,
        strands: Strands,
        loop: asyncio.AbstractEventLoop,
        queue: SharedQueue | None = None,
    ) -> None:
        self.case = case
        self.strands = strands
        self.loop = loop
        self.script = ops.Script(case, StrandWorld())
        self.outlook = Outlook(case, self.script.board)
        self.by_name, response_op = ops.build(case, self.script)
        self.pools: list[VirtualWorkers] = []
        graph = build_graph(response_op)
        settings = load_config(yml_dict=ops.config(case))
        for op in (graph.request_op, *graph.ops, graph.response_op):
            configure_op(op, resolve_op(op.name, op.pipeline_given, settings))
        self.journal = Journal([self.outlook])
        self.executor = Engine(
            graph,
            settings,
            self._factory,
            loop,
            EngineObservers(self.journal, clock_ns=self.clock_ns),
            queue=queue,
        )
        self.queue = queue

    def clock_ns(self) -> int:
        return int(self.loop.time() * 1e9)

    def _factory(self, pump: Callable[[], None]) -> Any:
        def make(op: Op, owner: WorkersOwner) -> VirtualWorkers:
            count = op.pipeline_config.concurrency
            if op.name == REQUEST:
                count = max(count, _EDGE_WORKERS)
            is_process = op.pipeline_config.workers == "process"
            kind = VirtualWorkers if is_process else VirtualThreads
            pool = kind(self, op, owner, count)
            self.pools.append(pool)
            return pool

        return make

    async def ask(self, spec: RequestSpec) -> Ending:
        """Send a request at its time; return its ending."""
        await asyncio.sleep(spec.at_s)
        started = self.loop.time()
        task = asyncio.ensure_future(self._handle(spec))
        leaving = None
        if spec.leaves_s is not None:
            leaving = self.loop.call_later(spec.leaves_s, task.cancel)
        try:
            ending = await task
        except asyncio.CancelledError:
            ending = Ending(spec.number, "left")
        except OverloadedError as error:
            ending = Ending(spec.number, "error", int(error.code), str(error))
        if leaving is not None:
            leaving.cancel()
        ending.took_s = self.loop.time() - started
        return ending

    async def _handle(self, spec: RequestSpec) -> Ending:
        if spec.alone_at:
            route = RequestTarget(
                op=self.by_name[spec.alone_at],
                payload={REQUEST: {"id": str(spec.number)}},
                wants_response=False,
            )
            return _of_data(spec, await self.executor.handle(None, spec.deadline_s, route))
        said = f"{spec.number}{spec.misfit}"
        raw = pipeline_service_pb2.Request(key=["id"], value=[said], logid=spec.log_id)
        if self.queue is not None:
            waiting = sum(member.queued for member in self.queue.members)
            if waiting > self.case.queue_size:
                self.outlook.complain(f"{waiting} wait in a queue of {self.case.queue_size}")
        response = await self.executor.handle(raw, spec.deadline_s)
        if response.err_no:
            return Ending(spec.number, "error", response.err_no, response.err_msg)
        answer = dict(zip(response.key, response.value, strict=True))
        return Ending(spec.number, "answer", text=answer.get("value", repr(answer)))


def _of_data(spec: RequestSpec, data: ChannelData) -> Ending:
    if data.error is not None:
        return Ending(spec.number, "error", int(data.error.code), str(data.error))
    return Ending(spec.number, "answer", text=data.payload["value"])


def run(case: Case, strands: Strands) -> list[str]:
    """Return the defects of the engine that this case shows."""
    loop = VirtualLoop()
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(_run(case, strands, loop))
    except Exception as error:  # of the engine, or of the fuzzer itself
        where = traceback.extract_tb(error.__traceback__)[-1]
        return [f"the engine raised {error!r} ({where.filename}:{where.lineno})"]


async def _run(case: Case, strands: Strands, loop: asyncio.AbstractEventLoop) -> list[str]:
    queue = SharedQueue(case.queue_size, len(case.pipelines)) if case.siblings else None
    engines = [VirtualEngine(one, strands, loop, queue) for one in case.pipelines]
    await asyncio.gather(*map(_served, engines))
    return [finding for engine in engines for finding in engine.outlook.findings]


async def _served(engine: VirtualEngine) -> None:
    """Run the requests of one pipeline."""
    case, outlook, loop = engine.case, engine.outlook, engine.loop
    most_s = bound_s(case)
    loop.set_exception_handler(lambda _, context: outlook.complain(f"the loop: {context}"))
    await engine.executor.start()
    pacing.pace(engine.executor, case)
    asked = [asyncio.ensure_future(engine.ask(spec)) for spec in case.requests]
    done, late = (
        await asyncio.wait(asked, timeout=_OVER_S + 2 * most_s) if asked else (set(), set())
    )
    endings = [task.result() for task in done]
    check_endings(case, endings, outlook)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late)
    await _settled(engine, most_s)
    outlook.check_state(engine.executor.state(), is_released=False)
    for _ in range(_MOST_HANGS):
        for pool in engine.pools:
            pool.release()
        await asyncio.sleep(0.1)
    engine.journal.flush()
    outlook.check_state(engine.executor.state())
    outlook.check_turns(engine.executor)
    await engine.executor.stop(0.0)
    engine.journal.flush()
    outlook.check_complaint()


async def _settled(engine: VirtualEngine, most_s: float) -> None:
    """Give abandoned work time to end."""
    for _ in range(50):
        if engine.outlook.is_idle(engine.executor.state()):
            break
        await asyncio.sleep(most_s / 50)
