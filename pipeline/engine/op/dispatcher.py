"""OpDispatcher: one Op's inbox, batches and workers. Plain code on the event loop, no locks."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from pipeline.config.batching import traits_of
from pipeline.data import announced_batch, declares, max_batch_size_of
from pipeline.engine.journal.journal import EngineObservers, Outcome, outcome_of
from pipeline.engine.journal.spans import SpanRecorder, TripRows
from pipeline.engine.op.channel import Channel, ChannelBound, Item, first_error
from pipeline.engine.op.filter import Again, OpFilter
from pipeline.engine.op.worker_watch import WorkerWatch
from pipeline.engine.ports import Links, Router
from pipeline.engine.request import Recipient, RequestState, RequestTarget
from pipeline.engine.run.op_facts import OpFacts
from pipeline.engine.run.payload import Absent, opened
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.schedulers.base import Batch, Load, Refusal, Scheduler
from pipeline.engine.schedulers.guarded import SchedulerError, scheduler_for
from pipeline.engine.shedding import Shedder
from pipeline.engine.state import OpState
from pipeline.engine.trips.pace import Pace
from pipeline.engine.trips.trip import Trip
from pipeline.engine.worker_api import Loop, Worker, Workers, WorkersFactory
from pipeline.errors import DeadlineError, PipelineError
from pipeline.op import Op

_AHEAD_S = 0.004  # work that may wait at busy workers, so that they need not wait for the loop


class OpDispatcher:
    """Joins the inputs of one Op, has its scheduler cut batches, and sends them to its workers.

    Args:
        op: a configured Op.
        index: the Op's place in the graph, which the journal uses as its number.
        channel_size: how many requests may be ready here before producers have to wait; 0: any
            number.

    Attributes:
        streams: whether its Op makes or reads streams.
        goes_alone: why the Op cannot join a group, from its own side; "": nothing prevents it.
        run_type: the class of its batches.
        may_spare: whether some requests need not wait here, because their answers may be cached.
        filters: the filters around its scheduler, the outermost first; see `op.filter`.
    """

    streams: bool = False
    group_obstacle: str = ""
    run_type: type[BatchRun] = BatchRun
    may_spare: bool = False
    filters: tuple[OpFilter, ...] = ()

    def __init__(
        self,
        op: Op,
        make_workers: WorkersFactory,
        router: Router,
        loop: Loop,
        index: int,
        observers: EngineObservers,
        channel_size: int = 0,
    ) -> None:
        config = op.pipeline_config
        producers = [producer.name for producer in op.get_input_ops()]
        self.op = op
        self.name: str = op.name
        self.channel: Channel = Channel(producers, bool(config.channel_recv_first_arrive))
        self.scheduler: Scheduler = scheduler_for(op)
        self.workers: Workers = make_workers(op, self)
        most = max_batch_size_of(op)
        # The most samples that one execution may get: before the model is loaded, and after.
        limits = (most if declares(op) else 0, announced_batch(most, config.batch_size))
        self.load: Load = Load(rows_limits=limits, ahead=self.workers.ahead)
        self.shedder: Shedder = Shedder(op.name, self.scheduler, self.load, config.batch_size)
        self.pace: Pace = Pace()
        self.links: Links = Links()
        self.room: ChannelBound = ChannelBound(channel_size, self.scheduler)
        self.spans: SpanRecorder = SpanRecorder(index, observers)
        waits = config.timeout_s, op.pipeline_patience_s
        self.watch: WorkerWatch = WorkerWatch(
            self.workers, self.load, self._is_awaited, *waits, loop, self._give_up
        )
        self.is_dirty: bool = False
        self._router = router
        self.shortcut: Shortcut | None = _shortcut_of(self, router, loop)

    # In ---------------------------------------------------------------------------------

    def enqueue(
        self,
        request: RequestState,
        slot: str,
        part: Any,
        stand_in: str | None = None,
        entered: tuple[Recipient, ...] = (),
        is_all: bool = False,
    ) -> None:
        """Take the answer of the producer `slot`, or of `stand_in`, which jumped in its place.

        `entered`: other Ops that read the same answer and run in a trip with this Op. `is_all`: the
        Op reads only this answer now, because a loop or jump makes it run again.
        """
        if (self.channel.is_join and not is_all) or stand_in is not None:
            inputs = self.channel.join(request, slot, part, stand_in)
            if inputs is None:
                return
        else:
            inputs = {slot: part}
        # otherwise `part` is neither unopened nor an error
        if type(part) is not dict or len(inputs) > 1:
            if self.links.opens_payloads:
                inputs = {name: opened(part) for name, part in inputs.items()}
            error = first_error(inputs)
            if error is not None:
                self._pass_by(request, error)
                return
        if self.shortcut is None or not self.shortcut.take(request, inputs, entered):
            self.add(item_of(self, request, inputs, entered=entered))

    def _pass_by(self, request: RequestState, error: PipelineError | Absent) -> None:
        """Pass on an error or Absent that this Op does not process."""
        for op_filter in self.filters:
            op_filter.passed_by(request, error)
        if type(error) is Absent:
            self.links.skipped += 1
        self._router.route(self, request, error)

    def add(self, item: Item) -> None:
        """Queue an item, unless it cannot run before its deadline."""
        request, now = item.request, self._router.loop.time()
        if request.deadline is not None and (shed := self.shedder.refusal_on_arrival(request, now)):
            self.pass_on(item, shed)  # it never waited, and has no span
            return
        self.load.has_ready = True
        refusal = self.scheduler.add(item, now)
        if refusal is not None:
            self.fail([item], refusal, outcome_of(refusal))
        if not self.is_dirty:
            self._router.cycle.mark_dirty(self)

    def begin_lap(self, request: RequestState, again: Container[str] | None = None) -> None:
        """Drop the items and parts of a request for which a jump back, or a loop, runs this Op
        again.

        `again`: the producers that answer again; None: the Op reads none of them now.
        """
        request.detoured().laps[self] += 1
        if again is not None and self.channel.is_join:
            self.channel.begin_lap(request, again)
        request.live -= self._drop_ready(request)

    def drop(self, request: RequestState) -> None:
        """Drop the items of a request that has ended or starts again."""
        if self.channel.is_join:
            self.channel.discard_parts(request)
        self._drop_ready(request)
        if self._is_awaited():
            if request.generation == RequestState.OVER:
                self.workers.forget(request.data_id)
            self.watch.abandoned()

    def _drop_ready(self, request: RequestState) -> int:
        """Drop the items that are ready here; their spans end as failed. Return how many."""
        dropped = self.scheduler.drop(request)
        if dropped:
            self.spans.unfinished(dropped, Outcome.OTHER)
        if self.room.size and (self.room.release_request(request) or dropped):
            self.places_freed()
        return len(dropped)

    def places_freed(self) -> None:
        """Let requests continue that waited for a place: here, before this Op, and at the
        frontends.

        Called after an item left the scheduler, and after an answer that has a promised place
        behind this Op will not come.
        """
        self._router.cycle.mark_dirty(self)
        for node in self.room.held_back:
            self._router.cycle.mark_dirty(node)

    @property
    def waiting(self) -> int:
        """Return how many requests wait here."""
        return len(self.scheduler) + sum(op_filter.parked for op_filter in self.filters)

    def state(self, group: tuple[str, ...] = ()) -> OpState:
        """Return the current state."""
        state = OpState(
            name=self.name,
            joining=self.channel.waiting_for_parts,
            queued=self.waiting,
            running=self.load.items,
            workers=self.workers.state(),
            group=group,
            skipped=self.links.skipped,
            edges=self.links.edges,
        )
        for op_filter in self.filters:
            state = op_filter.complete_state(state)
        return state

    # Batches ----------------------------------------------------------------------------

    def schedule(self) -> None:
        """Send all batches that are ready to the workers; set a timer for the next one."""
        self.is_dirty = False
        scheduler, load, room, runs = self.scheduler, self.load, self.room, []
        now = self._router.loop.time()
        if not load.workers and self.shortcut is not None:
            self.shortcut.on_workers_started()
        load.workers = min(self.workers.count, load.most_workers)
        load.max_rows = load.rows_limits[self.workers.note is not None]
        while True:
            if room.size:
                load.max_items, load.is_full = room.places(), room.is_full
            try:
                batch = scheduler.next(load, now)
            except SchedulerError as failed:
                self.fail(failed.items, failed.error, Outcome.OTHER)
                batch = None
            if isinstance(batch, Refusal):
                if batch.outcome is not None:
                    self.spans.unfinished(batch.items, batch.outcome)
                for item in batch.items:
                    self.pass_on(item, batch.error)
            elif not isinstance(batch, Batch):
                break
            else:
                run = self.run_type(batch.items, batch.worker, places=batch.places)
                runs.append(self.count(run))
                if self.shedder.is_on:
                    self.shedder.began(batch.items)
            if room.size:
                self.places_freed()
            if not len(scheduler):
                break
        if self.shedder.is_on:
            self.shedder.look(now)
        if isinstance(batch, int | float):
            self._router.cycle.wake_at(self, batch)
        if runs:
            trips = self._router.trips
            self.submit(trips.begin(self, runs) if self.pace.was_fusable else runs)
        load.has_ready = len(scheduler) > 0
        if load.has_ready and (outage := self.workers.outage) is not None:
            self.fail(scheduler.clear(), outage, Outcome.OTHER)
            self.places_freed()

    def route(self, request: RequestState, answer: Any) -> None:
        """Pass on the answer of this Op in a trip that ended here."""
        self._router.route(self, request, answer)

    def count(self, run: BatchRun) -> BatchRun:
        """Count a batch that goes to the workers, or is there already."""
        self.load.running += 1
        self.load.items += len(run.items)
        if self.room.size:
            self.room.promise(run.items)
        return run

    def submit(self, runs: Sequence[BatchRun | Item | Trip]) -> None:
        self.workers.submit(runs)
        if self.watch.timeout_s is not None:
            self.watch.submitted()

    def workers_changed(self) -> None:
        self.load.workers = self.workers.count
        self._router.workers_changed()
        self._router.cycle.mark_dirty(self)

    # Out --------------------------------------------------------------------------------

    def _is_awaited(self) -> bool:
        """Return whether anything runs here, or may still come in a trip."""
        return self.load.running > 0 or self._router.trips.has_trips(self)

    def done(self, worker: Worker, job: BatchRun | Item | Trip) -> None:
        if isinstance(job, Item):
            assert self.shortcut is not None, "the shortcut made the item"
            self.shortcut.done(worker, job)
            return
        if isinstance(job, Trip):
            self._router.trips.done(worker, job)
            return
        if job.is_superseded:
            return
        self.load.served((job.end_ns - job.start_ns) / 1e9)
        if self.pace.is_fusable and self.pace.took(job.end_ns - job.start_ns, len(job.items)):
            self._router.trips.changed()
        self.release(job)
        self.links.answered += len(job.items)
        received_ns = self.spans.batch(worker, job) if self.spans.is_wanted else 0
        for item, outcome in zip(job.items, job.outcomes, strict=False):
            if outcome is not None:
                item.request.passed_ns = received_ns
                self.pass_on(item, outcome, job.jumped)
                item.request.passed_ns = 0
        if not self.is_dirty and len(self.scheduler):
            self._router.cycle.mark_dirty(self)

    def lost(self, job: BatchRun | Item | Trip, error: PipelineError) -> None:
        """Start the job again as configured; otherwise its requests end with `error`."""
        if isinstance(job, Item):
            job = as_batch(job)
        if isinstance(job, Trip):
            self._router.trips.lost(job, error)
        elif not job.is_superseded:
            job.is_superseded = True
            self.start_over(job, error)

    def close(self) -> None:
        """Cancel the timers, and close the filters."""
        for op_filter in self.filters:
            op_filter.close()
        self.watch.close()
        self._router.cycle.wake_at(self, None)

    def _give_up(self, worker: Worker, run: BatchRun | Item) -> None:
        """Replace a worker that hangs; its batch continues or starts again, as configured."""
        if isinstance(run, Item):
            run = as_batch(run)
        self._router.trips.hung(self)
        run.is_superseded = True
        may_continue = self.workers.keeps_progress and run.is_prepared and run.places is None
        if not may_continue:  # there is no progress to continue from, or it would be a second step
            self.workers.replace(worker, None)
            self.start_over(run, run.timed_out(self.name, worker.number))
            return
        resumed = None
        if any(not item.is_over for item in run.items):
            resumed = run.resumed(self.name, worker.number, self.op.pipeline_config.retry)
        is_replaced = self.workers.replace(worker, resumed)
        if resumed is not None and (is_replaced or self.workers.count):
            if not is_replaced:  # other workers are alive
                self.submit([resumed])
            return
        self.release(run)
        error = DeadlineError(f"[{self.name}] the worker hangs and cannot be replaced.")
        self.fail(run.items, error, Outcome.OTHER)
        self._router.cycle.mark_dirty(self)

    def again(self, job: BatchRun, error: PipelineError) -> Again:
        runs = job.again(error, self.op.pipeline_config.retry)
        return runs, () if runs else job.items, error

    def start_over(self, job: BatchRun, error: PipelineError) -> None:
        """Start a lost batch again; items that may not begin again end with `error`."""
        runs, failed, error = self.again(job, error)
        self.release(job)
        if runs:
            self.spans.unfinished([item for item in job.items if item.is_over], Outcome.OTHER)
            self.submit([self.count(run) for run in runs])
        is_timeout = isinstance(error, DeadlineError)
        self.fail(failed, error, Outcome.BACKEND if is_timeout else Outcome.OTHER)
        self._router.cycle.mark_dirty(self)

    def release(self, run: BatchRun | Item) -> None:
        """Count a batch that has left the workers."""
        self.load.running -= 1
        self.load.items -= len(run.items)
        if isinstance(run, BatchRun):  # the scheduler never had an Item
            self.scheduler.done(run, self._router.loop.time())
        if self.room.size:
            self.room.release(run.items)
            self.places_freed()

    def fail(self, items: Sequence[Item], error: PipelineError, outcome: Outcome) -> None:
        """End items without a worker's answer; a mistake of the client is not counted."""
        if not error.is_callers:
            self.spans.unfinished(items, outcome, error)
        for item in items:
            self.pass_on(item, error)

    def pass_on(self, item: Item, outcome: Any, jumped: bool = False) -> None:
        """Route the outcome of one item, unless its request has ended or started again."""
        request = item.request
        if item.generation != request.generation:
            return
        if request.detours is None or item.lap == request.lap(self):
            self._router.route(self, request, outcome, jumped)
        self._router.item_done(item)


def as_batch(item: Item) -> BatchRun:
    """Return a batch of an item that ran as a job, so that it can be given up or started again."""
    item.apart = BatchRun([item])
    return item.apart


def item_of(
    node: OpDispatcher,
    request: RequestState,
    inputs: dict[str, Any],
    is_feed: bool = False,
    entered: tuple[Recipient, ...] = (),
) -> Item:
    """Return the item of a request at an Op, and count it as live."""
    spans = node.spans
    if request.spans is not None:
        spans.is_wanted = True
    ready_ns = spans.clock_ns() if spans.is_wanted else 0
    request.live += 1
    lap = 0 if request.detours is None else request.lap(node)
    return Item(
        request,
        request.generation,
        request.data_id,
        request.log_id,
        inputs,
        node._router.loop.time(),
        ready_ns,
        is_feed,
        lap,
        entered,
    )


def direct_item(node: OpDispatcher, request: RequestState, target: RequestTarget) -> Item:
    """Return the item of a request for one Op alone, with copies of its dicts."""
    inputs = {
        name: dict(part) if isinstance(part, dict) else part
        for name, part in target.payload.items()
    }
    item = item_of(node, request, inputs, target.raw_inputs)
    item.ready_ns = target.ready_ns or item.ready_ns
    return item


class Shortcut:
    """Path around an Op's scheduler, if the scheduler would let each request go at once.

    A single request goes to the workers at once. Several requests of one round of the loop go
    together at the end of the round: they wake a thread once, and do not compete with it for the
    interpreter.

    Workers that pass requests to others take each at once, as their own kind of Item.

    Args:
        make: the kind of Item that the workers take.

    Attributes:
        taken: the number of requests that went this way.
    """

    def __init__(self, node: OpDispatcher, router: Router, loop: Loop, make: type[Item]) -> None:
        self.taken: int = 0
        self._make = make
        self._hands_on = make is not Item
        self._node = node
        self._router = router
        self._loop = loop
        self._takes_items = False  # the workers decide it when they have started
        self._rows: TripRows | None = None  # set if the graph has no other Op
        self._waiting: list[Any] = []
        self._is_rush = False  # several requests came in the last round

    def take(
        self, request: RequestState, inputs: dict[str, Any], entered: tuple[Recipient, ...]
    ) -> bool:
        """Send a request to the workers if it may go now; return whether it may."""
        node = self._node
        load, spans = node.load, node.spans
        running = load.running
        if running >= load.workers and not (
            self._hands_on or 0 < running * load.service_s < _AHEAD_S
        ):
            return False
        if not load.workers or load.has_ready:
            return False
        if request.detours is not None and request.detours.laps:
            return False
        if request.spans is not None:
            spans.is_wanted = True
        ready_ns = spans.clock_ns() if spans.is_wanted else 0
        self.taken += 1
        request.live += 1  # before other Ops may answer in its place and end it
        load.running += 1
        load.items += 1
        job: Any = self._make(
            request,
            request.generation,
            request.data_id,
            request.log_id,
            inputs,
            0.0 if self._takes_items else self._loop.time(),
            ready_ns,
        )
        job.entered = entered
        if not self._takes_items:
            job = BatchRun([job])
            if node.pace.was_fusable:
                (job,) = self._router.trips.begin(node, [job])
        elif node.pace.was_fusable:
            job = self._router.trips.begin_alone(node, job)
        if (self._is_rush or running) and not self._hands_on:
            self._waiting.append(job)
            if len(self._waiting) == 1:
                self._loop.call_soon(self._hand_over)
        else:
            self._node.submit([job])
        return True

    def _hand_over(self) -> None:
        jobs, self._waiting = self._waiting, []
        self._is_rush = len(jobs) > 1
        self._node.submit(jobs)

    def on_workers_started(self) -> None:
        """Find out what kind of jobs the workers take; called when they have started."""
        self._takes_items = self._hands_on or OpFacts(self._node.op).is_plain
        spans = self._node.spans
        is_only = len(self._router.nodes) == 1 and not self._hands_on
        if is_only and spans.journal is not None:
            self._rows = self._rows or TripRows(spans.journal, [spans], [-1])

    def done(self, worker: Worker, job: Item) -> None:
        """Record the outcome of an item, and pass it on."""
        if job.apart is not None and job.apart.is_superseded:
            return
        node, router, request, outcome = self._node, self._router, job.request, job.outcome
        load, pace, spans = node.load, node.pace, node.spans
        load.running -= 1
        load.items -= 1
        if outcome is None:  # it had ended before it began
            spans.unfinished([job], Outcome.OTHER)
        else:
            start_ns, end_ns, rows = job.start_ns, job.end_ns, self._rows
            load.served((end_ns - start_ns) / 1e9)
            if pace.is_fusable and pace.took(end_ns - start_ns):
                router.trips.changed()
            if spans.is_wanted:
                request.passed_ns = now_ns = request.passed_ns or spans.clock_ns()
                number = worker.number
                ends = job.preprocess_end_ns, job.process_end_ns, end_ns
                is_usual = (
                    type(outcome) is dict and request.spans is None and request.trip_rows is None
                )
                if rows is not None and is_usual and job.generation == request.generation:
                    # It can have no other span: it is recorded in its request.
                    request.trip_rows = rows, (job.ready_ns, start_ns, now_ns, number, *ends)
                else:
                    spans.alone(job, outcome, number, (start_ns, *ends), now_ns)
            node.links.answered += 1
            if job.generation == request.generation:
                if request.detours is None or not request.lap(node):  # it was made in the first lap
                    router.route(node, request, outcome)
                if job.generation == request.generation:  # the request is not over
                    router.item_done(job)
            request.passed_ns = 0
        if load.has_ready:
            router.cycle.mark_dirty(node)


def _shortcut_of(node: OpDispatcher, router: Router, loop: Loop) -> Shortcut | None:
    """Return the path around an Op's scheduler; None: the scheduler needs to see each request."""
    config, make = node.op.pipeline_config, node.workers.visit_type
    is_alone = config.batch_size == 1 and not node.room.size
    if make is None or not (is_alone and traits_of(config.batching).lets_pass):
        return None
    return Shortcut(node, router, loop, make)
