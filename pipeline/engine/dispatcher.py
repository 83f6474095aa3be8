"""OpDispatcher: one Op's inbox, batches and workers. Plain code on the event loop, no locks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from pipeline.data import announced_batch, declares, max_batch_size_of
from pipeline.engine.batch_run import BatchRun, executions
from pipeline.engine.channel import Channel, Item, Room, first_error
from pipeline.engine.journal import FROM_OUTSIDE, NO_WORKER, Outcome, outcome_of, pack_span
from pipeline.engine.observers import EngineObservers
from pipeline.engine.payload import LOCAL, opened
from pipeline.engine.request import RequestState, RequestTarget
from pipeline.engine.schedulers.dynamic import BatchPolicy, Load, batches_ahead
from pipeline.engine.state import OpState
from pipeline.engine.worker_api import Loop, Worker, Workers, WorkersFactory
from pipeline.errors import DeadlineError, PipelineError
from pipeline.op import Op

_LOGGER = logging.getLogger(__name__)

_STUCK_AFTER_S = 1.0  # a worker nobody waits for any more is given at least this long to finish
_STUCK_FACTOR = 5.0  # ... and this many times what a batch usually takes

_OK = int(Outcome.OK)

_SHORTEST_WATCH_S = 0.001  # a loop's clock may be that coarse; looking again sooner is a spin


class ResultRouter(Protocol):
    """Where an Op's answers go; the executor."""

    def deliver(
        self, source: OpDispatcher, request: RequestState, answer: Any, jumped: bool
    ) -> None:
        """Pass on a payload or a PipelineError of a request that is not over."""

    def strand(self, request: RequestState) -> None:
        """End a request that no Op works on and that was not answered."""

    def workers_changed(self) -> None:
        """Look at whether every worker takes work."""

    def touch(self, node: OpDispatcher) -> None:
        """See to it that `node.pump` is called before long."""


class OpDispatcher:
    """Cuts batches from one Op's channel and hands them to its workers.

    Args:
        op: configured.
        make_workers: makes the Op's workers.
        router: takes the answers.
        loop: clock and timers.
        index: the Op's place in the graph, by which the journal knows it.
        watchers: who is told what happens.
        channel_size: requests that may be ready here before producers are held back; 0 = any.
    """

    def __init__(
        self,
        op: Op,
        make_workers: WorkersFactory,
        router: ResultRouter,
        loop: Loop,
        index: int = 0,
        watchers: EngineObservers | None = None,
        channel_size: int = 0,
    ) -> None:
        config = op.pipeline_config
        producers = [producer.name for producer in op.get_input_ops()]
        self.op = op
        self.name: str = op.name
        self.channel: Channel = Channel(producers, bool(config.channel_recv_first_arrive))
        self.successors: tuple[OpDispatcher, ...] = ()
        self.below: frozenset[OpDispatcher] = frozenset()  # all that its answers lead to
        self.targets: tuple[OpDispatcher, ...] = ()  # of its jumps
        self.runs_again: frozenset[OpDispatcher] = frozenset()  # after it jumped back
        self.begins_laps: tuple[OpDispatcher, ...] = ()  # those of them that read no other Op
        self.is_target = False
        self.held_back: tuple[OpDispatcher, ...] = ()  # who waits for a place in its channel
        self.is_touched: bool = False
        self.opens_payloads = False
        self.running: int = 0
        self.load: Load = Load()
        self.workers: Workers = make_workers(op, self)
        self._policy = BatchPolicy(
            config.batch_size, config.auto_batching_timeout_s, config.batching == "adaptive"
        )
        most = max_batch_size_of(op)
        self._declared_rows = most if declares(op) else 0
        self._noted_rows = announced_batch(most, config.batch_size)
        self._timeout_s = config.timeout_s
        self._attempts = max(1, config.retry)
        self._router = router
        self._loop = loop
        self.index: int = index
        self._journal = watchers.journal if watchers is not None else None
        self._clock_ns = watchers.clock_ns if watchers is not None else time.monotonic_ns
        self._batches = 0
        self.room: Room = Room(channel_size)
        self._is_bounded = channel_size > 0
        self._items_running = 0
        self._has_deadlines = False  # nobody's request so far
        self._cut_timer: Any = None
        self._watch_timer: Any = None

    # In ---------------------------------------------------------------------------------

    def offer(
        self, request: RequestState, slot: str, part: Any, stand_in: str | None = None
    ) -> None:
        """Take the answer of the producer `slot`, or of `stand_in`, which jumped to it."""
        inputs = self.channel.join(request, slot, part, stand_in)
        if inputs is None:
            return
        if self.opens_payloads:
            inputs = {name: opened(part) for name, part in inputs.items()}
        error = first_error(inputs)
        if error is not None:
            self._router.deliver(self, request, error, jumped=False)
            return
        self._queue(request, inputs)

    def offer_alone(self, request: RequestState, target: RequestTarget) -> None:
        """Take a request that is for this Op alone, perhaps again: what came stays as it is."""
        inputs = {
            name: dict(part) if isinstance(part, dict) else part
            for name, part in target.payload.items()
        }
        self._queue(request, inputs, target.raw_inputs)

    def _queue(self, request: RequestState, inputs: dict[str, Any], is_feed: bool = False) -> None:
        now = self._loop.time()
        is_told = self._journal is not None or request.spans is not None
        ready_ns = self._clock_ns() if is_told else 0
        request.live += 1
        generation, data_id, log_id = request.generation, request.data_id, request.log_id
        lap = 0 if request.laps is None else self._lap_of(request)
        if request.deadline is not None:
            self._has_deadlines = True
        self.channel.push(
            Item(request, generation, data_id, log_id, inputs, now, ready_ns, is_feed, lap)
        )
        if self._policy.adaptive:
            self.load.arrived(now)
        if not self.is_touched:
            self._touch()

    def _lap_of(self, request: RequestState) -> int:
        return request.laps.get(self, 0) if request.laps is not None else 0

    def begin_lap(self, request: RequestState) -> None:
        """Drop what there is of a request that a jump back has run here again."""
        request.laps = {**(request.laps or {}), self: self._lap_of(request) + 1}
        request.live -= self._drop(request)

    def forget(self, request: RequestState) -> None:
        """Drop what is queued here for a request that is over, or starts anew."""
        self._drop(request)
        if self.running and request.generation == RequestState.OVER:
            self.workers.forget(request.data_id)
        if self.running and self._watch_timer is None:
            self._watch_in(_STUCK_AFTER_S)

    def _drop(self, request: RequestState) -> int:
        """Drop what waits here for parts, or is ready: so many spans, which come to nothing."""
        dropped = self.channel.discard(request)
        if dropped:
            self._note_unfinished(dropped, Outcome.OTHER)
        if self._is_bounded and (self.room.release_request(request) or dropped):
            self._places_freed()
        return len(dropped)

    def _places_freed(self) -> None:
        """Let go on who waited for a place: at this Op, in front of it, and at the door.

        Whatever takes an item out of the channel, or ends the wait for an answer that has been
        promised a place behind this Op, comes here.
        """
        self._router.touch(self)
        for node in self.held_back:
            self._router.touch(node)

    @property
    def is_full(self) -> bool:
        """Whether producers have to wait before they send more."""
        return self.room.is_full(self.channel)

    @property
    def is_backed_up(self) -> bool:
        """Whether more wait here than can be begun: a full batch that no worker has taken."""
        return len(self.channel) >= self._policy.batch_size

    def state(self) -> OpState:
        """How it stands."""
        return OpState(
            name=self.name,
            joining=self.channel.waiting_for_parts,
            queued=len(self.channel),
            running=self._items_running,
            workers=self.workers.state(),
        )

    # Batches ----------------------------------------------------------------------------

    def pump(self) -> bool:
        """Hand out all batches that should leave now; set a timer for the next one.

        Returns whether any request is left.
        """
        self.is_touched = False
        channel = self.channel
        # Samples that one execution may get; 0: any number.
        most_rows = self._declared_rows if self.workers.note is None else self._noted_rows
        runs = []
        while channel:
            size = self._next_batch(most_rows)
            if not size:
                break
            runs.append(self._count(BatchRun(self._take(size, most_rows))))
        if runs:
            self._submit(runs)
        if not channel:
            return False
        if (outage := self.workers.outage) is not None:
            self._fail(self._take(len(channel)), outage, Outcome.OTHER)
        return True

    def _take(self, count: int, most_rows: int = 0) -> list[Item]:
        channel = self.channel
        if self._has_deadlines and (most_rows or len(channel) > count):  # else all go at once
            channel.set_aside(self._loop.time, self.load.service_s)
        items = channel.pop(count, most_rows)
        if self._is_bounded:
            self._places_freed()
        return items

    def _next_batch(self, most_rows: int) -> int:
        """How many of the ready requests should leave now, as one batch."""
        workers, size = self.workers.count, self._policy.batch_size
        is_full_batch = len(self.channel) >= size or 0 < most_rows <= self.channel.rows
        if self.running >= workers and not (is_full_batch and self._may_queue_ahead(workers)):
            return 0
        if self._is_bounded:
            size = self.room.most(size)
        if size > 0 and (is_full_batch or self._is_ready_to_cut()):
            return size
        return 0

    def _may_queue_ahead(self, workers: int) -> bool:
        ahead = batches_ahead(self.load.service_s, self._policy.batch_size, workers)
        return workers > 0 and self.running < workers + ahead

    def _is_ready_to_cut(self) -> bool:
        policy = self._policy
        if policy.timeout_s is None or self.is_full:  # no other can come while it is full
            return True
        first = self.channel.first_ready_at()
        target = policy.target(self.load, max(1, self.workers.count))
        if policy.ready_to_cut(len(self.channel), target, first, self._loop.time()):
            return True
        self._cut_at(policy.due(first))
        return False

    def _cut_at(self, when: float) -> None:
        if self._cut_timer is not None:
            self._cut_timer.cancel()
        self._cut_timer = self._loop.call_at(when, self._touch)

    def _count(self, run: BatchRun) -> BatchRun:
        self.running += 1
        self._items_running += len(run.samples)
        if self._is_bounded:
            self.room.promise(run.samples)
        return run

    def _submit(self, runs: list[BatchRun]) -> None:
        self.workers.submit(runs)
        if self._timeout_s is not None and self._watch_timer is None:
            self._watch_in(self._timeout_s)

    def _touch(self) -> None:
        self._router.touch(self)

    def workers_changed(self) -> None:
        self._router.workers_changed()
        self._touch()

    # Out --------------------------------------------------------------------------------

    def done(self, worker: Worker, job: BatchRun) -> None:
        if job.is_superseded:
            return
        self._forget_run(job)
        self.load.served((job.end_ns - job.start_ns) / 1e9)
        if self._journal is not None or _wants_spans(job):
            self._note_batch(worker, job)
        for item, outcome in zip(job.samples, job.outcomes, strict=False):
            if outcome is not None:
                self._pass_on(item, outcome, job.jumped)
        if self.channel and not self.is_touched:
            self._touch()

    def lost(self, job: BatchRun, error: PipelineError) -> None:
        """Start the job over as configured; else its requests end with `error`."""
        if not job.is_superseded:
            job.is_superseded = True
            self._start_over(job, error)

    def _start_over(self, job: BatchRun, error: PipelineError) -> None:
        self._forget_run(job)
        runs = [self._count(run) for run in job.again(error, self._attempts)]
        if runs:
            self._note_unfinished([item for item in job.samples if item.is_over], Outcome.OTHER)
            self._submit(runs)
        else:
            is_timeout = isinstance(error, DeadlineError)
            self._fail(job.samples, error, Outcome.BACKEND if is_timeout else Outcome.OTHER)
        self._touch()

    def _fail(self, items: Sequence[Item], error: PipelineError, outcome: Outcome) -> None:
        """End items that no worker has an answer for."""
        self._note_unfinished(items, outcome)
        for item in items:
            self._pass_on(item, error)

    def _pass_on(self, item: Item, outcome: Any, jumped: bool = False) -> None:
        """Deliver one item's outcome, unless its request is over or was started anew."""
        request = item.request
        if item.generation != request.generation:
            return
        if request.laps is None or item.lap == self._lap_of(request):
            self._router.deliver(self, request, outcome, jumped)
        if item.generation != request.generation:  # answered, or started anew
            return
        request.live -= 1
        if not request.live:
            self._router.strand(request)

    def _forget_run(self, run: BatchRun) -> None:
        self.running -= 1
        self._items_running -= len(run.samples)
        if self._is_bounded:
            self.room.release(run.samples)
            self._places_freed()

    # What is told of it -----------------------------------------------------------------

    def _note_batch(self, worker: Worker, run: BatchRun) -> None:
        """Take down the spans of a batch that a worker is done with; see `journal.SPAN`."""
        result_received_ns = self._clock_ns()
        if run.executions:
            missed = []
            for indexes, times in executions(run):
                missed += self._note_execution(worker, run, indexes, (*times, result_received_ns))
        else:
            whole = (
                run.start_ns,
                run.preprocess_end_ns,
                run.process_end_ns,
                run.end_ns,
                result_received_ns,
            )
            missed = self._note_execution(worker, run, range(len(run.samples)), whole)
        if missed:
            self._note_unfinished(missed, Outcome.OTHER)
        if self._journal is not None:
            self._journal.flush_if_long()

    def _note_execution(
        self,
        worker: Worker,
        run: BatchRun,
        indexes: Iterable[int],
        times: tuple[int, int, int, int, int],
    ) -> list[Item]:
        """Take down the spans of those that ran together; returns who was over before."""
        self._batches += 1
        journal, rows, missed = self._journal, run.rows, []
        start_ns, preprocess_end_ns, process_end_ns, end_ns, result_received_ns = times
        for index in indexes:
            item, outcome = run.samples[index], run.outcomes[index]
            if outcome is None:
                missed.append(item)
                continue
            request, is_failed = item.request, isinstance(outcome, PipelineError)
            brought = rows[index] if rows else request.rows
            span = pack_span(
                self.index,
                worker.number,
                self._batches,
                item.data_id,
                brought,
                outcome_of(outcome) if is_failed else _OK,
                item.ready_ns,
                start_ns,
                preprocess_end_ns,
                process_end_ns,
                end_ns,
                result_received_ns,
            )
            if journal is not None:
                journal.spans.append(span)
            if request.spans is not None:
                request.spans.append(span)
            if not is_failed and item.generation == request.generation:
                request.input_ns += preprocess_end_ns - start_ns
                request.infer_ns += process_end_ns - preprocess_end_ns
                request.output_ns += end_ns - process_end_ns
        return missed

    def _note_unfinished(self, items: Iterable[Item], outcome: Outcome) -> None:
        """Take down spans that came to nothing: as their request ended, or else as `outcome`."""
        if self._journal is None:
            return
        now = self._clock_ns()
        for item in items:
            ended = item.request.outcome
            reason = ended if ended in FROM_OUTSIDE else outcome
            ends = (item.data_id, item.request.rows, reason, item.ready_ns, now, now, now, now, now)
            self._journal.spans.append(pack_span(self.index, NO_WORKER, -1, *ends))

    # Timeouts ---------------------------------------------------------------------------

    def _watch_in(self, seconds: float) -> None:
        if self._watch_timer is not None:
            self._watch_timer.cancel()
        self._watch_timer = self._loop.call_at(self._loop.time() + seconds, self._watch)

    def _watch(self) -> None:
        """Give up the workers whose call is over its timeout, or whose work nobody awaits.

        A call that starts after this check cannot be over its timeout before the next one, so
        looking again at the earliest possible time keeps timeouts exactly.
        """
        self._watch_timer = None
        now = self._loop.time()
        next_due = [now + self._timeout_s] if self._timeout_s is not None else []
        for worker in self.workers.busy():
            run, due = worker.job, self._due(worker)
            if due is None or not isinstance(run, BatchRun):
                continue
            if due <= now:
                self._give_up(worker, run)
            else:
                next_due.append(due)
        if next_due and self.running:
            self._watch_in(max(_SHORTEST_WATCH_S, min(next_due) - now))

    def _due(self, worker: Worker) -> float | None:
        """When `worker` has to be given up, if its job goes on; None if never."""
        run, started = worker.job, worker.call_started
        if not isinstance(run, BatchRun):
            return None
        began = worker.job_started
        if began is not None and all(item.is_over for item in run.samples):
            usual = self.load.service_s * _STUCK_FACTOR
            return began + max(_STUCK_AFTER_S, usual)
        if started is None or self._timeout_s is None:
            return None
        return started + self._timeout_s

    def _give_up(self, worker: Worker, run: BatchRun) -> None:
        run.is_superseded = True
        if not (self.workers.keeps_progress and run.is_prepared):  # nothing to go on with
            self.workers.replace(worker, None)
            self._start_over(run, run.timed_out(self.name, worker.number))
            return
        resumed = None
        if any(not item.is_over for item in run.samples):
            resumed = run.resumed(self.name, worker.number, self._attempts)
        is_replaced = self.workers.replace(worker, resumed)
        if resumed is not None and (is_replaced or self.workers.count):
            if not is_replaced:  # but there are others
                self._submit([resumed])
            return
        self._forget_run(run)
        error = DeadlineError(f"[{self.name}] the worker hangs and cannot be replaced.")
        self._fail(run.samples, error, Outcome.OTHER)
        self._touch()

    def close(self) -> None:
        """Cancel the timers."""
        for timer in (self._cut_timer, self._watch_timer):
            if timer is not None:
                timer.cancel()


def _wants_spans(run: BatchRun) -> bool:
    """Whether the caller of a request in it asked for a profile."""
    return any(item.request.spans is not None for item in run.samples)


def link(nodes: dict[Op, OpDispatcher], successors_of: Callable[[Op], list[Op]]) -> None:
    """Tell every dispatcher of its neighbours. `nodes` are in the order of the graph."""
    domains = {node.workers.memory_domain for node in nodes.values()}
    for op, node in reversed(nodes.items()):
        node.successors = tuple(nodes[successor] for successor in successors_of(op))
        node.below = frozenset(node.successors).union(*(after.below for after in node.successors))
        node.opens_payloads = bool(domains - {LOCAL, node.workers.memory_domain})
    for op, node in nodes.items():
        node.targets = tuple(nodes[target] for target in op.get_jump_to_ops())
        back = [target.below for target in node.targets if node in target.below]
        node.runs_again = frozenset().union(*back)
        node.begins_laps = _wholly_below(node, nodes)
        for target in node.targets:
            target.is_target = True
    _bound(list(nodes.values()))


def _wholly_below(jumper: OpDispatcher, nodes: dict[Op, OpDispatcher]) -> tuple[OpDispatcher, ...]:
    """The Ops that run again, with all that they read, when `jumper` jumps back."""
    found: dict[OpDispatcher, None] = {}
    for target in jumper.targets:
        inside = {target}
        for op, node in nodes.items() if jumper in target.below else ():
            if all(nodes.get(producer) in inside for producer in op.get_input_ops()):
                inside.add(node)
                found[node] = None
    return tuple(found)


def _bound(nodes: list[OpDispatcher]) -> None:
    """Say who waits for a place in whose channel.

    An Op fills the channels of its successors and, where it jumps, of its targets' successors. It
    waits only for those further down, so that two never wait for each other.
    """
    for place, node in enumerate(nodes):
        readers = {*node.successors, *(after for t in node.targets for after in t.successors)}
        behind = [other for other in nodes[place + 1 :] if other in readers]
        node.room.behind = tuple(other.channel for other in behind)
        for other in behind:
            other.held_back += (node,)
