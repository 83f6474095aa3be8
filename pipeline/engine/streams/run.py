"""StreamRun: requests that are answered in parts. It runs in slices, and holds no worker between
them.

Plain code for any worker, as `engine.run.stages`.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from copy import copy
from typing import Any, Protocol, Self, cast

import numpy as np
from msgspec import field

from pipeline.deadline import set_call_deadline
from pipeline.engine.run.bound_op import GENERATORS, BoundOp
from pipeline.engine.run.call import Call
from pipeline.engine.run.collate import slices, split_result
from pipeline.engine.run.stage_errors import ids_of, stage_error
from pipeline.engine.run.stages import BatchRun, CallWatch, keep_changes, restore
from pipeline.engine.streams.flow import ENDED, UNWANTED
from pipeline.errors import (
    DeadlineError,
    PayloadTypeError,
    PipelineError,
    PredictorUnavailableError,
    described,
    printable,
)
from pipeline.routes import Answer
from pipeline.tracing.context import call_trace, child, first_of, set_call_trace

DONE = "done"
"""The key by which a batch's `process` says, for each row, that this part is its last."""


NO_PART: Any = type("NoPart", (), {"__repr__": lambda self: "NO_PART"})()
"""Replaces a part of a request whose stream has ended before."""


class Pull:
    """A running generator, advanced turn by turn.

    Args:
        generator: of `process` or `postprocess`.
        call: of the batch: its items, and the number of rows of each.
        wait_for: returns what an asynchronous generator yields.
        is_batched: whether None in the place of a row, or `done`, ends a request.

    Attributes:
        items: indexes, in the batch, of the requests that have rows.
        turns: how often it has yielded.
        is_over: whether it has ended, or was closed.
        advance: returns what the generator yields next; raises StopIteration at its end.
        trace, deadline: of the call, the same at each turn.
    """

    def __init__(
        self,
        generator: Any,
        call: Call,
        wait_for: Callable[[Awaitable[Any], str], Any],
        is_batched: bool = False,
    ) -> None:
        self.call: Call = call
        self.is_batched: bool = is_batched
        self.items: list[int] = list(call.items)
        self.turns: int = 0
        self.is_over: bool = False
        self.trace: str = ""
        self.deadline: float | None = None
        self._generator = generator
        self._wait_for = wait_for
        self._spans = call.spans
        is_async = isinstance(generator, AsyncGenerator)
        self.advance: Callable[[], Any] = self._awaited if is_async else iter(generator).__next__

    def _awaited(self) -> Any:
        """Return the next value of an asynchronous generator; raises StopIteration at its end."""
        is_there, value = self._wait_for(_next_of(self._generator), "a part")
        if not is_there:
            raise StopIteration
        return value

    def pieces(self, result: Any) -> list[tuple[int, Any, bool]]:
        """Return (item, its part or NO_PART, whether its stream ends) of each request.

        Requests that end have no rows from now on.

        Raises:
            PayloadTypeError: the number of rows is wrong.
        """
        parts, cuts = cut(result, len(self.items), self._spans)
        ends = [end or part is NO_PART for part, end in zip(parts, cuts, strict=True)]
        pieces = list(zip(self.items, parts, ends, strict=True))
        if any(ends):
            stay = [place for place, is_last in enumerate(ends) if not is_last]
            self.items = [self.items[place] for place in stay]
            self._spans = [[column[place] for place in stay] for column in self._spans]
        return pieces

    def turn(
        self,
        run: StreamRun,
        op: BoundOp,
        watch: StreamWatch,
        clock_ns: Callable[[], int],
        until_ns: int,
    ) -> bool:
        room = run.room(self.items)
        if room <= 0:
            return False
        if room == NOBODY:
            self.close(op, watch)
            return False
        if (run.states or run.contexts) and len(self.items) == 1:
            run.enter(op, self.items[0])
        deadline = self.deadline
        if op.timeout_s is not None:
            deadline = run._deadline(op, self.call)
        if deadline is not None:
            set_call_deadline(deadline)
        if self.trace or self is not run.latest:
            self._set_trace(run, op)
        if op.notes is not None:
            op.notes.begin_call(op.name, op.streams, (run.items[i] for i in self.call.items))
        watch.call_begins()
        try:
            value = self.advance()
            self.turns += 1
        except StopIteration:
            self.is_over = True
            run.send_parts(watch, [(place, ENDED) for place in self._waiting(run)])
            return True
        except BaseException as error:  # user code; a worker survives even SystemExit
            self.is_over = True
            self._failed(run, op, watch, error)
            return True
        finally:
            watch.call_ends()
            if deadline is not None:
                set_call_deadline(None)
        if run.is_superseded:  # it took too long: another worker has the rest
            self.close(op, watch)
            return True
        try:
            if self.is_batched:
                entries = self._entries(run, op, value)
            else:
                place = self.items[0]
                entries = [(place, self._answered(run, op, place, value))]
        except BaseException as error:  # it is not an answer, or has the wrong number of rows
            self.close(op, watch)
            self._failed(run, op, watch, error)
            return True
        run.send_parts(watch, entries)
        return True

    def _entries(self, run: StreamRun, op: BoundOp, value: Any) -> list[Entry]:
        """Return the parts of one turn for the items that still wait."""
        entries: list[Entry] = []
        for place, part, is_last in self.pieces(op.processed(value)):
            if run.ended[place]:
                continue
            if part is not NO_PART:
                entries.append((place, _posted(run, op, place, part)))
            if is_last:
                entries.append((place, ENDED))
        return entries

    def _answered(self, run: StreamRun, op: BoundOp, place: int, value: Any) -> Any:
        """Return the part of a turn, for the one item of a generator."""
        if op.streams == "postprocess":
            return value if type(value) is dict else op.answered(value)
        if type(value) is not dict:
            value = op.processed(value)
        return _posted(run, op, place, value)

    def _failed(
        self, run: StreamRun, op: BoundOp, watch: StreamWatch, error: BaseException
    ) -> None:
        """End the items of a generator that raised; or call it again, if nobody got a part."""
        call = self.call
        if op.streams == "postprocess":
            item = run.items[self.items[0]]
            failed = stage_error(error, op, "postprocess", item.log_id, item.data_id)
        else:
            failed = run._process_error(error, op, call)
            if (
                not self.turns
                and not run.is_superseded
                and run.calls_again(op, call, error, failed)
            ):
                return
        run.send_parts(watch, [(place, failed) for place in self._waiting(run)])

    def close(self, op: BoundOp, watch: StreamWatch) -> None:
        self.is_over = True
        watch.call_begins()
        try:
            if isinstance(self._generator, AsyncGenerator):
                self._wait_for(self._generator.aclose(), "aclose")
            elif hasattr(self._generator, "close"):
                self._generator.close()
        except BaseException as error:  # user code; nobody waits for it
            what = printable(described(error))
            _LOGGER.warning("[%s] a generator raised %s when it was closed", op.name, what)
        finally:
            watch.call_ends()

    def take_unsent(self, run: StreamRun) -> list[Entry]:
        return []

    def without(self, places: Sequence[int]) -> Pull:
        return self

    def _set_trace(self, run: StreamRun, op: BoundOp) -> None:
        """Let the requests that a turn sends belong to the trace of its first traced item."""
        run.latest = self
        if self.trace or call_trace():
            set_call_trace(child(self.trace, op.name, "process") if self.trace else "")

    def _waiting(self, run: StreamRun) -> list[int]:
        return [place for place in self.items if not run.ended[place]]


def _posted(run: StreamRun, op: BoundOp, place: int, data: Any) -> Any:
    """Return the result of `postprocess` for a part."""
    if run.states or run.contexts:
        run.enter(op, place)
    return op.ended(run.items[place], data)


def cut(result: Any, count: int, spans: list[list[int]]) -> tuple[list[Any], list[bool]]:
    """Return the part of each request in a batch's result, and whether it is the last.

    NO_PART replaces the part of a request whose stream has ended before: its rows are None. A true
    row under the key DONE says that this part is the last. Without `spans` there is one request,
    which gets the whole result.

    Raises:
        PayloadTypeError: the number of rows is wrong.
    """
    done: Any = None
    if isinstance(result, Mapping) and _is_mask(result.get(DONE)):
        result = dict(result)
        done = result.pop(DONE)
    parts = split_result(result, spans) if spans else [result]
    ends = _ends(done, count, spans)
    values = result.values() if isinstance(result, Mapping) else [result]
    if any(isinstance(value, list | Mapping) for value in values):  # otherwise it contains no None
        parts = [NO_PART if _is_none(part) else part for part in parts]
    return parts, ends


def _ends(done: Any, count: int, spans: list[list[int]]) -> list[bool]:
    """Return which requests have their last part."""
    if done is None:
        return [False] * count
    if isinstance(done, bool | np.bool_) or not spans:
        return [bool(np.all(done))] * count
    if len(done) != sum(spans[0]):
        raise PayloadTypeError(
            f"process yielded {DONE!r} with {len(done)} rows, but {sum(spans[0])} rows continue: "
            "give one for each."
        )
    if spans[0].count(1) == count:  # one row each is the common case
        return list(map(bool, done.tolist() if getattr(done, "ndim", 0) == 1 else done))
    return [bool(np.all(rows)) for rows in slices(done, spans[0])]


async def _next_of(generator: AsyncGenerator[Any, Any]) -> tuple[bool, Any]:
    """Return (True, the next value), or (False, None) at the end."""
    try:
        return True, await anext(generator)
    except StopAsyncIteration:
        return False, None


def _is_mask(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype == np.bool_)
    rows = value if isinstance(value, list | tuple) and value else [value]
    return all(isinstance(row, bool | np.bool_) for row in rows)


def _is_none(part: Any) -> bool:
    """Return whether a request has None in the place of its rows."""
    values = part.values() if isinstance(part, Mapping) else [part]
    return any(
        isinstance(value, list) and value and all(row is None for row in value) for value in values
    )


_LOGGER = logging.getLogger(__name__)

SLICE_NS = 20_000_000  # after a slice others have their turn

NOBODY = sys.maxsize
"""Room of a generator whose parts nobody waits for."""

Entry = tuple[int, Any]
"""(place of the item, its next part | PipelineError or Answer, which end it | ENDED)

A part is a payload, or a Goto with one.
"""


class StreamWatch(CallWatch, Protocol):
    """Also notified of parts."""

    def yielded(self, run: StreamRun, entries: Sequence[Entry]) -> None:
        """Pass parts to the owner of the workers, on the loop and in order."""


class PartSource(Protocol):
    """Makes parts, at the worker: a generator, or the steps of all requests that are there.

    Attributes:
        items: places of the requests that share its parts; empty: each has its own.
        is_over: whether it makes no more parts.
    """

    items: list[int]
    is_over: bool

    def turn(
        self,
        run: StreamRun,
        op: BoundOp,
        watch: StreamWatch,
        clock_ns: Callable[[], int],
        until_ns: int,
    ) -> bool:
        """Make the next parts, if there is room for them; return whether there may be more.

        It closes itself if nobody waits for its parts.
        """

    def close(self, op: BoundOp, watch: StreamWatch) -> None:
        """End it in any state. Raises nothing."""

    def take_unsent(self, run: StreamRun) -> list[Entry]:
        """Take the parts that it has not sent, after its run was given up."""

    def without(self, places: Sequence[int]) -> PartSource:
        """Return the source for the run that follows, without the requests in these places."""


class EmptyPlace:
    """Item of a place that is free."""

    request = None
    data_id = -1
    log_id = 0
    deadline = None
    is_over = True

    def is_cancelled(self) -> bool:
        return True


VACANT = EmptyPlace()


class StreamRun(BatchRun, eq=False):
    """Requests that are answered in parts, each at its place; it runs in slices, see `run`.

    They are a batch whose `process` or `postprocess` returns generators. Or they join while it
    runs, and each leaves after its end was sent, also if nobody waits for it: only then its place
    is free.

    Attributes:
        allowed: how many parts each item may have got, UNWANTED if it wants no more; only the loop
            writes it.
        made: how many parts each item has got; only the worker writes this and the next five.
        ended: which items get no more.
        groups: places of the items that share a running generator; empty: each has its own. None:
            it
            has not begun.
        is_finished: whether no source makes parts any more.
        pulls: the sources of the parts, in the order of their turns.
        stepping: places of the items in the running step.
        least: room that is worth a slice. Only for the loop.
        ran_at: the worker that has them, once it has begun.
        is_out: whether it is at a worker, or on its way to one. Only for the loop, as the next one.
        is_counted: whether it counts as a running batch; until its first slice is over.
        busy_ns: time of its last slice.
        latest: the generator whose trace is set. Only for the worker.
        outbox: parts from a thread that the loop has not taken yet.
        is_notified: whether the loop knows that the outbox has parts.
        may_wait: whether the loop may find the parts by itself later, without being woken.
        reports_steps: whether each step has spans, and not the whole run.
        steps: the latest steps.
        holds: whether parts may be held for some time, because there is no limit between parts.
        joining: places whose items have not begun; the loop adds them, the worker takes them.
        free: places without an item. Only for the loop.
        numbers: of the sequences in each place; 0: the Op has no `sequence`. Only for the loop.
    """

    allowed: list[int] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)
    groups: list[list[int]] | None = None
    is_finished: bool = False
    pulls: list[PartSource] = field(default_factory=list)
    stepping: list[int] = field(default_factory=list)
    least: int = 1
    ran_at: int = 0
    is_out: bool = False
    is_counted: bool = False
    busy_ns: int = 0
    latest: Pull | None = None
    outbox: deque[Entry] = field(default_factory=deque)
    is_notified: bool = False
    may_wait: bool = False
    reports_steps: bool = False
    steps: deque[BatchRun] = field(default_factory=deque)
    holds: bool = False
    joining: deque[int] = field(default_factory=deque)
    free: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    # On the loop, between slices ----------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Return whether a slice is worth its transport: for several parts, or to close a
        generator.

        After a slice that its time limit ended there was room left, so any room is enough.
        """
        if self.is_finished or self.is_superseded:
            return False
        least = 1 if self.busy_ns > SLICE_NS else self.least
        groups = self.groups or [[place] for place, is_over in enumerate(self.ended) if not is_over]
        if self.joining or any(self.room(group) >= least for group in groups):
            return True
        # A slice ended as the last part of a batch did: its generator is still open.
        return self.groups == [] and not self.reports_steps

    def live(self) -> list[int]:
        """Return the places of the items that wait for more."""
        return [place for place in range(len(self.items)) if self._is_live(place)]

    def again(self, error: PipelineError, attempts: int) -> list[Self]:
        """Return the runs to start again with; none if any client has got a part."""
        return [] if any(self.made) else super().again(error, attempts)

    def room(self, group: Sequence[int]) -> int:
        """Return how many turns a generator may have; NOBODY if it has to be closed."""
        room = NOBODY
        for place in group:
            allowed = self.allowed[place]
            if not (self.ended[place] or allowed == UNWANTED or self.items[place].is_over):
                room = min(room, allowed - self.made[place])
        return room

    def _is_live(self, place: int) -> bool:
        """Return whether an item waits for more."""
        is_ended = self.ended[place] or self.allowed[place] == UNWANTED
        return not (is_ended or self.items[place].is_over)

    def join(self, item: Any, allowed: int, number: int = 0) -> int:
        """Add an item to the next step, as the sequence `number`; return its place."""
        place = self.free.pop() if self.free else len(self.items)
        self.join_at(place, item, number, allowed)
        return place

    def join_at(self, place: int, item: Any, number: int = 0, allowed: int | None = None) -> None:
        """Add an item to the next step, at a place that was chosen elsewhere."""
        items = cast(list[Any], self.items)
        while len(items) <= place:
            items.append(VACANT)
            self.allowed.append(0)
            self.made.append(0)
            self.ended.append(True)
            self.numbers.append(0)
        items[place], self.numbers[place] = item, number
        if allowed is not None:
            self.allowed[place] = allowed
        self.joining.append(place)

    def joined(self) -> list[int]:
        """Take the places of joining items, to send them to a worker elsewhere."""
        places = list(self.joining)
        self.joining.clear()
        for place in places:
            self.made[place], self.ended[place] = 0, False
        return places

    def leave(self, place: int) -> None:
        """Free a place whose end was sent."""
        cast(list[Any], self.items)[place] = VACANT
        self.free.append(place)

    @property
    def taken(self) -> list[int]:
        """Return the places that are taken."""
        return [place for place, item in enumerate(self.items) if item is not VACANT]

    @property
    def number(self) -> int:
        """Return the number of the worker."""
        return self.ran_at

    @property
    def at_work(self) -> Sequence[int]:
        return self.stepping or self.taken or [0]

    def without(self, places: Sequence[int]) -> StreamRun:
        """Return a run that continues without the items in these places."""
        run = copy(self)
        run.is_superseded = run.is_out = False
        run.items, run.steps = list(self.items), deque()
        run.allowed, run.made, run.ended = list(self.allowed), list(self.made), list(self.ended)
        run.joining, run.free = deque(self.joining), list(self.free)
        run.numbers, run.stepping = list(self.numbers), []
        run.pulls = [pull.without(places) for pull in self.pulls]
        for place in places:
            run.ended[place] = True
        return run

    def take_unsent(self) -> list[Entry]:
        """Take the parts that the worker had not sent when it was given up."""
        return [entry for pull in self.pulls for entry in pull.take_unsent(self)]

    # In the worker ------------------------------------------------------------------------------

    @property
    def continues(self) -> bool:
        """Return whether the running slice can do more, if there is time."""
        return any(self.room(pull.items) for pull in self.pulls if not pull.is_over)

    def run(self, op: BoundOp, watch: CallWatch, clock_ns: Callable[[], int]) -> None:
        """Run a slice: until there is no room, all have ended, or other runs need a turn.

        Raises nothing. The first slice of a batch prepares it.
        """
        began_ns, stream_watch = clock_ns(), cast(StreamWatch, watch)
        try:
            self._run_turns(op, stream_watch, clock_ns, began_ns + SLICE_NS)
        except BaseException as error:  # a defect of this library: the worker must survive it
            failed = stage_error(error, op, "process", 0, *ids_of(self.items))
            self.send_parts(stream_watch, [(place, failed) for place in self.live()])
            self.pulls = self.pulls if self.reports_steps else []
        self.pulls = [pull for pull in self.pulls if not pull.is_over]
        self.groups = [pull.items for pull in self.pulls if pull.items]
        self.is_finished = not self.pulls
        op.context = None  # it refers to the requests and their inputs
        self.end_ns: int = clock_ns()
        self.busy_ns = self.end_ns - began_ns

    def _begin(self, op: BoundOp, watch: StreamWatch, clock_ns: Callable[[], int]) -> None:
        count = len(self.items)
        self.ran_at = op.worker
        self.made, self.ended, self.groups = [0] * count, [False] * count, []
        before = dict(op.state)
        if self.calls is None:
            self.prepare(op, clock_ns)
        if not self.states and count == 1:  # other requests may have their turns in between
            self.states[0] = dict(op.state)
            keep_changes(before, self.states, op.state)
            self.states: dict[int, dict[str, Any]] = {
                place: kept for place, kept in self.states.items() if kept
            }
        if op.streams == "postprocess":
            self._begin_behind_process(op, watch, clock_ns)
        else:
            self._begin_process(op)
        for place, outcome in enumerate(self.outcomes):
            if outcome is None and place not in self.prepared:  # it was over
                self.ended[place] = True
            elif outcome is not None and not self.ended[place]:
                self.send_parts(watch, [(place, outcome), (place, ENDED)])

    def _begin_process(self, op: BoundOp) -> None:
        called = set()
        for call in self.calls or ():
            called.update(call.items)
            error = call.error
            if call.part is not None:
                error = PayloadTypeError(
                    f"Op {op.name!r}: preprocess returned a list of dicts, and process is a "
                    "generator: return one dict."
                )
            if error is not None:
                for place in call.items:
                    self.outcomes[place] = error
            else:
                self.pulls.append(self._called(op, call))
        for place, data in self.prepared.items():
            if place not in called and self.outcomes[place] is None:  # `process` is skipped
                self.outcomes[place] = _posted(self, op, place, data)

    def _begin_behind_process(
        self, op: BoundOp, watch: StreamWatch, clock_ns: Callable[[], int]
    ) -> None:
        if self.calls:
            self._process(op, watch, self.calls, clock_ns)
        self._postprocess(op)
        for place, outcome in enumerate(self.outcomes):
            if isinstance(outcome, GENERATORS):
                self.outcomes[place] = None
                self.pulls.append(self._pull(op, Call(None, [place]), outcome))

    def _called(self, op: BoundOp, call: Call) -> Pull:
        """Call `process`, which does not yet run the body of a generator."""
        call.attempts += 1
        if self.contexts:
            op.context = tuple(self.contexts[place] for place in call.items)
        try:
            made = op.users_process([call.feed], self.items[call.items[0]].log_id)
        except BaseException as error:  # user code around the generator
            made = _raises(error)
        return self._pull(op, call, made, is_batched=op.op.pipeline_config.batch_size > 1)

    def _pull(self, op: BoundOp, call: Call, made: Any, **kind: bool) -> Pull:
        """Return the Pull of a generator."""
        pull = Pull(made, call, op.wait_for, **kind)
        pull.trace = first_of(self.items[place].trace for place in call.items)
        if op.timeout_s is None:
            pull.deadline = self._deadline(op, call)
        return pull

    def _run_turns(
        self, op: BoundOp, watch: StreamWatch, clock_ns: Callable[[], int], until_ns: int
    ) -> None:
        """Let all sources make their next parts, in turns."""
        self.latest = None
        if self.groups is None and not self.pulls:
            self._begin(op, watch, clock_ns)
        continues = True
        while continues:
            continues = False
            for pull in self.pulls[:]:
                if pull.is_over or not pull.turn(self, op, watch, clock_ns, until_ns):
                    continue
                continues = True
                if self.is_superseded or clock_ns() > until_ns:
                    return

    def calls_again(
        self, op: BoundOp, call: Call, error: BaseException, failed: PipelineError
    ) -> bool:
        """Call `process` again, if it failed before any client got a part and may be retried."""
        if self._may_try_again(call, error, op.attempts):
            self.pulls.append(self._called(op, call))
            return True
        if len(call.items) == 1 or isinstance(failed, DeadlineError | PredictorUnavailableError):
            return False
        self.pulls += [self._called(op, single) for single in call.alone(self.prepared)]
        return True

    def enter(self, op: BoundOp, place: int) -> None:
        """Give the Op the state that `preprocess` of an item left."""
        if place in self.states:
            restore(op.state, self.states[place])
        if self.contexts:
            op.context = self.contexts[place]

    def send_parts(self, watch: StreamWatch, entries: Sequence[Entry]) -> None:
        """Send parts and ends to the loop, except those of items that are over."""
        ends = []
        for place, outcome in entries:
            if self.ended[place]:
                continue
            if type(outcome) is dict:  # the common case
                self.made[place] += 1
            elif outcome is ENDED or isinstance(outcome, PipelineError | Answer):
                self.ended[place] = True
            else:
                self.made[place] += 1
            if self.allowed[place] != UNWANTED:
                ends.append((place, outcome))
        if ends and not self.is_superseded:
            watch.yielded(self, ends)


def _raises(error: BaseException) -> Any:
    """Return a generator that raises `error` at once."""
    raise error
    yield
