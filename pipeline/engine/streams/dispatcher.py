"""StreamDispatcher: the dispatcher of an Op that makes or reads streams."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from pipeline.engine.detours import bad_goto
from pipeline.engine.journal.journal import (
    FROM_OUTSIDE,
    MAX_ROWS,
    EngineObservers,
    Journal,
    Outcome,
    PartKind,
    outcome_of,
    pack_part,
)
from pipeline.engine.journal.spans import SpanRecorder
from pipeline.engine.op.channel import Item, first_error, own_dict
from pipeline.engine.op.dispatcher import OpDispatcher, Shortcut, item_of
from pipeline.engine.ports import OpNode, Router
from pipeline.engine.request import Recipient, RequestState
from pipeline.engine.run.payload import Absent
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.streams.combine import StreamLimits
from pipeline.engine.streams.flow import (
    ALL,
    ENDED,
    OUT,
    UNWANTED,
    Bundle,
    End,
    Flow,
    Part,
    opened_part,
)
from pipeline.engine.streams.inlet import Inlet, inlet_of
from pipeline.engine.streams.plan import StreamPlan, check_streams
from pipeline.engine.streams.run import Entry, StreamRun
from pipeline.engine.trips.trip import Trip
from pipeline.engine.worker_api import Loop, Worker, WorkersFactory
from pipeline.errors import PipelineError, note_op
from pipeline.op import Op
from pipeline.routes import Answer, Goto, Routed

_GIVEN = int(PartKind.GIVEN)


class StreamDispatcher(OpDispatcher):
    """Joins part by part, processes one part of a request at a time, and sends parts on in order.

    If the Op is a generator, its runs come back after each slice, and go to their worker again when
    there is room for more parts or a generator has to be closed.

    Attributes:
        makes_parts: whether the Op is a generator.
        deliver: takes the parts, and the end, of a request's answer.
        ends: the places where its stream ends.
        limits: of collected parts, if it gathers.
    """

    streams: bool = True

    def __init__(
        self,
        plan: StreamPlan,
        window: int,
        op: Op,
        make_workers: WorkersFactory,
        router: Router,
        loop: Loop,
        index: int,
        observers: EngineObservers,
        channel_size: int = 0,
    ) -> None:
        super().__init__(op, make_workers, router, loop, index, observers, channel_size)
        self.shortcut: Shortcut | None = None
        self.makes_parts: bool = op in plan.makers
        self.deliver: Callable[[RequestState, Any], None]
        self.ends: tuple[End, ...] = ()
        self.limits: StreamLimits
        own: type[BatchRun] = self.workers.stream_type or StreamRun
        self.run_type: type[BatchRun] = own if self.makes_parts else BatchRun
        self._plan = plan
        self._loop = loop
        self._window = window
        self._reads = plan.reads.get(op, frozenset())
        self._sends_parts = op in plan.sources
        self._inlets: dict[RequestState, Inlet] = {}
        self._runs: dict[RequestState, Flow] = {}
        self._slices = 0  # at the workers, in addition to the runs that count
        check_streams(self)

    # In -----------------------------------------------------------------------------------------

    def enqueue(
        self,
        request: RequestState,
        slot: str,
        part: Any,
        stand_in: str | None = None,
        entered: tuple[Recipient, ...] = (),
        is_all: bool = False,
    ) -> None:
        """Take a message of a producer; of one that streams a Part, ENDED or a PipelineError."""
        if not self._reads:
            super().enqueue(request, slot, part, stand_in, entered, is_all)
            return
        inlet = self._inlets.get(request)
        if inlet is None:
            inlet = self._inlets[request] = inlet_of(self, self._reads)
        if self.links.opens_payloads:
            part = opened_part(part)
        inlet.take(slot, part)
        if self.op.pipeline_gathers and isinstance(part, Part):
            source_of(self, slot).took(request, (self, slot))
        self._advance(request, inlet)

    def _advance(self, request: RequestState, inlet: Inlet) -> None:
        """Begin the next part of a request, if it has come and none is being processed."""
        while not (inlet.is_busy or inlet.has_failed) and self._inlets.get(request) is inlet:
            inputs = inlet.next()
            if inputs is None:
                return
            if isinstance(inputs, PipelineError):
                self._fail_stream(request, inputs)
            elif inputs is ENDED:
                del self._inlets[request]
                self._send(request, ENDED)
            elif (absent := first_error(inputs)) is not None:
                self._pass_over(request, inlet, absent)
            else:
                inlet.is_busy = True
                if self.op.pipeline_gathers:
                    del self._inlets[request]
                self.add(item_of(self, request, inputs))
                return

    def _pass_over(self, request: RequestState, inlet: Inlet, absent: Any) -> None:
        """Note that nothing came for a part, or for the whole request."""
        self.links.skipped += 1
        if not inlet.has_streams:
            del self._inlets[request]
            self._router.route(self, request, absent)
            return
        inlet.number += 1
        if self.makes_parts:
            source_of(self, next(iter(self._reads))).took(request, (self, ""))
        else:
            self._send(request, absent, inlet.number - 1)

    def begin_lap(self, request: RequestState, again: Container[str] | None = None) -> None:
        super().begin_lap(request, again)
        if (inlet := self._inlets.get(request)) is not None:
            inlet.begin_lap(again or ())

    def drop(self, request: RequestState) -> None:
        super().drop(request)
        self._inlets.pop(request, None)
        flow = self._runs.get(request)
        if flow is not None:
            note_cut(self.spans, flow)
            self._resume(self._left(flow, request))

    def _drop_ready(self, request: RequestState) -> int:
        flow = None if request.stream is None else request.stream.flows.get(self)
        if self.run_type.is_step and flow is not None and flow.has_left and request.error is None:
            return 0  # it ended well, and may have been a step of a sequence
        return super()._drop_ready(request)

    # Runs of a generator ------------------------------------------------------------------------

    def count(self, run: BatchRun) -> BatchRun:
        super().count(run)
        if isinstance(run, StreamRun):
            run.is_counted = run.is_out = True
            run.least = max(1, self._window // 2)
            for place, item in enumerate(run.items):
                flow = flow_of(self, item.request)
                run.allowed.append(flow.first_room(self._window))
                if not item.is_over:
                    self._runs[item.request] = flow.begin(run, place)
        return run

    def _left(self, flow: Flow, request: RequestState) -> StreamRun:
        """Note that a request has left its run; return the run."""
        del self._runs[request]
        run: StreamRun = flow.run
        # otherwise they would refer to each other, and generators would be closed late
        flow.run, flow.has_left = None, True
        return run

    def parts(self, run: StreamRun, entries: Sequence[Entry]) -> None:
        """Take parts, and ends, from a generator."""
        for place, outcome in entries:
            item = run.items[place]
            flow = self._runs.get(item.request)
            # otherwise it has ended
            if flow is not None and flow.run is run and flow.place == place:
                self._tell(flow, item, outcome)

    def _tell(self, flow: Flow, item: Item, outcome: Any) -> None:
        """Send parts, or the end of a request, to the next Ops."""
        request, run = item.request, flow.run
        if type(outcome) is Bundle:
            count = len(outcome.parts)
            flow.sent += count
            self.links.answered += count
            if self.spans.journal is not None:
                note_made(self.spans, flow, item, outcome)
            if flow.is_answer:
                self.deliver(request, outcome)
            else:
                self._send(request, outcome, flow.sent - count)
        elif outcome is ENDED:
            note_end(self.spans, flow, item, PartKind.EMPTY)
            note_stream(self.spans, run, item, Outcome.OK)
            self._left(flow, request)
            inlet = self._inlets.get(request)
            if inlet is None:
                self._send(request, ENDED)
            else:  # the end of one input part; all slots have one source
                source_of(self, next(iter(self._reads))).took(request, (self, ""))
                self._next(request, inlet)
            self._router.item_done(item)
        elif isinstance(outcome, PipelineError):
            note_end(self.spans, flow, item, PartKind.FAILED)
            note_stream(self.spans, run, item, outcome_of(outcome))
            self.pass_on(item, outcome)
        else:
            flow.sent += 1
            self.links.answered += 1
            note_made(self.spans, flow, item, Bundle([outcome]))
            if is_last := isinstance(outcome, Answer):
                note_stream(self.spans, run, item, Outcome.OK)
                self._left(flow, request)
            self._send_part(request, flow.sent - 1, outcome)
            if is_last:
                self._resume(run)

    def took(self, request: RequestState, end: End = OUT, count: int = 1) -> None:
        """Note that parts were taken at an end; there may be room for others."""
        running = self._runs.get(request)
        flow = running or flow_of(self, request)
        taken = flow.taken
        before = taken[end]
        taken[end] = slowest = before + count
        if len(taken) > 1:
            before = min(before, *(count for at, count in taken.items() if at != end))
            slowest = min(taken.values())
        if slowest >= ALL:
            read_no_more(self, request)
        if running is not None and slowest > before:
            run, place = flow.run, flow.place
            more = run.allowed[place] + slowest - before
            run.allowed[place] = UNWANTED if slowest >= ALL else more
            if not run.is_out:
                self._resume(run)

    def _resume(self, run: StreamRun) -> None:
        """Let a waiting run continue, if it can."""
        if not run.is_out and run.has_work:
            run.is_out = True
            run.worker = run.ran_at if self.workers.addressable else None
            self._slices += 1
            self.submit([run])

    def done(self, worker: Worker, job: BatchRun | Item | Trip) -> None:
        if not isinstance(job, StreamRun):
            super().done(worker, job)
            return
        if job.is_superseded:
            return
        if job.is_counted:
            self.load.served(job.busy_ns / 1e9)
        self._is_back(job)
        self._resume(job)
        if not self.is_dirty and len(self.scheduler):
            self._router.cycle.mark_dirty(self)

    def schedule(self) -> None:
        super().schedule()
        if self._runs and (outage := self.workers.outage) is not None:
            for run in [flow.run for flow in self._runs.values()]:
                self.lost(run, outage)

    def _is_awaited(self) -> bool:
        return self._slices > 0 or super()._is_awaited()

    def _is_back(self, run: StreamRun) -> None:
        """Note that a run is at no worker."""
        if run.is_counted:
            run.is_counted = False
            self.release(run)
        elif run.is_out:
            self._slices -= 1
        run.is_out = False

    def _give_up(self, worker: Worker, run: BatchRun | Item) -> None:
        if not isinstance(run, StreamRun):
            super()._give_up(worker, run)
            return
        run.is_superseded = True
        self.workers.replace(worker, None)
        self.start_over(run, run.timed_out(self.name, worker.number))

    def start_over(self, job: BatchRun, error: PipelineError) -> None:
        if not isinstance(job, StreamRun):
            super().start_over(job, error)
            return
        runs, failed, error = self.again(job, error)
        self._is_back(job)
        # A given-up worker may still write to its run, so only what has come here counts.
        if runs:
            self.submit([self.count(run) for run in runs if waits_for(self, job, run.items[0])])
        else:
            items = job.items if job.ended else failed
            left = [item for item in items if waits_for(self, job, item)]
            self.fail(left, error, outcome_of(error))
        self._router.cycle.mark_dirty(self)

    # Out ----------------------------------------------------------------------------------------

    def pass_on(self, item: Item, outcome: Any, jumped: bool = False) -> None:
        request = item.request
        inlet = self._inlets.get(request)
        is_part = self._sends_parts and (inlet is not None or self.makes_parts)
        if not is_part or item.is_over:
            super().pass_on(item, outcome, jumped)
            return
        if isinstance(outcome, PipelineError):
            self._fail_stream(request, outcome)
        else:
            assert inlet is not None, "what a generator makes goes by `parts`"
            self._send_part(request, inlet.number, outcome)
            self._next(request, inlet)
        self._router.item_done(item)

    def _next(self, request: RequestState, inlet: Inlet) -> None:
        """Continue with the next part of a request, unless the request has ended."""
        if self._inlets.get(request) is inlet:
            inlet.number += 1
            inlet.is_busy = False
            self._advance(request, inlet)

    def _fail_stream(self, request: RequestState, error: PipelineError) -> None:
        """Send an error after the parts that were sent: the stream ends with it."""
        note_op(error, self.name)
        read_no_more(self, request)
        flow = self._runs.get(request)
        if flow is not None:
            flow.run.allowed[flow.place] = UNWANTED
            self._resume(self._left(flow, request))
        if self._sends_parts:
            self._send(request, error)
        else:  # an Op that gathers has one answer
            self._router.route(self, request, error)

    def _send_part(self, request: RequestState, number: int, outcome: Any) -> None:
        """Send an answer, or the Goto or Answer that contains it."""
        stream = request.stream
        if type(outcome) is dict or not isinstance(outcome, Routed):
            self._send(request, Bundle([outcome]), number)
        elif isinstance(outcome, Goto):
            if is_for_one_op(request):
                self.deliver(request, Bundle([outcome.answer]))
            else:
                self._goto(request, number, outcome)
        elif stream is None or stream.out is None:
            self._router.route(self, request, outcome)
        else:  # the last part of all
            self.deliver(request, Bundle([outcome.answer]))
            self.deliver(request, ENDED)

    def _goto(self, request: RequestState, number: int, goto: Goto) -> None:
        """Send a part to the named Ops, and an Absent to the others."""
        links, to = self.links, goto.to
        named = [reader for reader in links.successors if reader.name in to]
        if len(named) < len(to):
            error, flow = bad_goto(self, to), self._runs.get(request)
            if flow is None:
                self._fail_stream(request, error)
            else:
                self._tell(flow, flow.run.items[flow.place], error)
            return
        absent = Absent((self.name,))
        if self is self._router.last:
            self.deliver(request, absent)
            return
        others = [reader for reader in links.successors if reader not in named]
        links.withheld.update(others)
        generation = request.generation
        _spread(self.name, request, Part(number, goto.answer), named)
        if request.generation == generation:  # otherwise it has ended, or started again
            _spread(self.name, request, Part(number, absent), others)

    def _send(self, request: RequestState, message: Any, number: int = 0) -> None:
        """Send the end of a stream; or a Bundle or Absent, for parts from this number on."""
        if self is self._router.last or is_for_one_op(request):
            self.deliver(request, message)
            return
        parts = [message]
        if type(message) is Bundle:
            parts = [Part(place, part) for place, part in enumerate(message.parts, number)]
        elif isinstance(message, Absent):
            parts = [Part(number, message)]
        generation = request.generation
        for part in parts:
            if request.generation == generation:  # otherwise it has ended, or started again
                _spread(self.name, request, part, self.links.successors)


def flow_of(node: StreamDispatcher, request: RequestState) -> Flow:
    """Return the stream that a node makes of a request."""
    stream = request.stream
    assert stream is not None, "made before its request is sent into the graph"
    flow = stream.flows.get(node)
    if flow is None:
        is_alone = is_for_one_op(request)
        flow = Flow(node, dict.fromkeys((OUT,) if is_alone else node.ends, 0))
        flow.is_answer = is_alone or node is node._router.last
        stream.flows[node] = flow
    return flow


def waits_for(node: StreamDispatcher, run: StreamRun, item: Item) -> bool:
    """Return whether a request waits for more of a run."""
    flow = node._runs.get(item.request)
    return flow is not None and flow.run is run and run.allowed[flow.place] != UNWANTED


def read_no_more(node: StreamDispatcher, request: RequestState) -> None:
    """Stop waiting for an Op to take parts of a request."""
    inlet = node._inlets.get(request)
    if inlet is None or inlet.has_failed:
        return
    inlet.has_failed = True
    gathers = node.op.pipeline_gathers
    for slot in node._reads if gathers else [*node._reads][: node.makes_parts]:
        source_of(node, slot).took(request, (node, slot if gathers else ""), ALL)


def source_of(node: StreamDispatcher, producer: str) -> StreamDispatcher:
    """Return the dispatcher that makes the stream of a producer of `node`."""
    nodes = node._router.nodes
    maker = nodes[node._plan.sources[next(op for op in nodes if op.name == producer)]]
    assert isinstance(maker, StreamDispatcher), "every maker has one"
    return maker


def _spread(by: str, request: RequestState, message: Any, to: Sequence[OpNode]) -> None:
    """Send a message to these Ops; each gets its own dict."""
    generation, own = request.generation, message
    for place, reader in enumerate(to):
        if request.generation == generation:
            if place and isinstance(message, Part):
                own = Part(message.number, own_dict(message.payload))
            reader.enqueue(request, by, own)


def is_for_one_op(request: RequestState) -> bool:
    """Return whether a request is for one Op alone."""
    return request.target is not None and request.target.op is not None


def note_stream(spans: SpanRecorder, run: StreamRun, item: Item, outcome: int) -> None:
    """Record the span of a request whose generator has ended: one for all its parts."""
    if run.reports_steps or not spans.is_wanted:
        return
    request, now = item.request, spans.clock_ns()
    began, prepared = run.start_ns or now, run.preprocess_end_ns or now
    times = item.ready_ns, began, prepared, now, now, now
    spans.batches += 1
    spans.row(request, run.ran_at, spans.batches, request.rows, outcome, *times)
    request.input_ns += prepared - began
    request.infer_ns += now - prepared


def note_cut(spans: SpanRecorder, flow: Flow) -> None:
    """Record a stream that ends with its request, or has to start again with it."""
    item = flow.run.items[flow.place]
    request, outcome = item.request, Outcome(item.request.outcome)
    if request.generation != RequestState.OVER or outcome not in (Outcome.OK, *FROM_OUTSIDE):
        outcome = Outcome.OTHER
    if outcome is Outcome.CANCELED:
        note_end(spans, flow, item, PartKind.CANCELED)
    note_stream(spans, flow.run, item, outcome)


def note_made(spans: SpanRecorder, flow: Flow, item: Item, bundle: Bundle) -> None:
    """Record the last parts that an Op has made."""
    journal = spans.journal
    if journal is None:
        return
    parts, target, data_id, count = journal.parts, spans.index, item.data_id, len(bundle.parts)
    times_ns = bundle.times_ns or [spans.clock_ns()] * count
    number, began_ns = flow.sent - count, flow.sent_ns or flow.run.start_ns or times_ns[0]
    for made_ns in times_ns:
        parts.append(pack_part(data_id, target, number, _GIVEN, began_ns, made_ns, made_ns))
        number, began_ns = number + 1, made_ns
    flow.sent_ns = began_ns
    if len(parts) >= MAX_ROWS:
        journal.flush_parts()


def note_end(spans: SpanRecorder, flow: Flow, item: Item, kind: PartKind) -> None:
    """Record the end of a stream that an Op has made."""
    if spans.journal is not None:
        now = spans.clock_ns()
        began_ns = flow.sent_ns or flow.run.start_ns or now
        row = pack_part(item.data_id, spans.index, flow.sent, kind, began_ns, now, now)
        note_parts(spans.journal, [row])
        flow.sent_ns = now


def note_parts(journal: Journal, rows: Sequence[bytes]) -> None:
    """Record parts of streams, see `journal.PART`."""
    journal.parts += rows
    if len(journal.parts) >= MAX_ROWS:
        journal.flush_parts()
