"""StreamRun: a batch whose Op is a generator: it runs in slices, between which it holds no worker.

Plain code for any worker, as `engine.batch_run`.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self, cast

import numpy as np
from msgspec import field

from pipeline.deadline import set_call_deadline
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.call import Call
from pipeline.engine.run.collate import slices, split_result
from pipeline.engine.run.stage_errors import ids_of, stage_error
from pipeline.engine.run.stages import BatchRun, CallWatch, keep_changes, restore
from pipeline.engine.streams.flow import ENDED, UNWANTED
from pipeline.errors import (
    DeadlineError,
    PayloadTypeError,
    PipelineError,
    PredictorError,
    PredictorUnavailableError,
    described,
    printable,
)
from pipeline.routes import Answer, Routed
from pipeline.tracing.context import call_trace, child, first_of, set_call_trace

DONE = "done"
"""The key by which a batch's `process` says, for each row, that this part is its last."""


NO_PART: Any = type("NoPart", (), {"__repr__": lambda self: "NO_PART"})()
"""In the place of a part: the stream ended before."""


class Pull:
    """A generator that runs, turn by turn.

    Args:
        generator: of `process` or `postprocess`.
        call: of the batch: its items, and how many rows each of them brought.
        wait_for: has what an asynchronous one yields.
        is_batched: whether None in the place of a row, or `done`, ends a request.
        skips_process: it is no generator of the user's, but has what `preprocess` returned.

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
        skips_process: bool = False,
    ) -> None:
        self.call: Call = call
        self.is_batched: bool = is_batched
        self.skips_process: bool = skips_process
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
        """Return what an asynchronous generator yields next; raises StopIteration at its end."""
        is_there, value = self._wait_for(_next_of(self._generator), "a part")
        if not is_there:
            raise StopIteration
        return value

    def pieces(self, result: Any) -> list[tuple[int, Any, bool]]:
        """Return (item, its part or NO_PART, whether its stream ends) of each request.

        Those that end have no rows from now on.

        Raises:
            PayloadTypeError: there is not a row for each row that goes on.
        """
        parts, cuts = cut(result, len(self.items), self._spans)
        ends = [end or part is NO_PART for part, end in zip(parts, cuts, strict=True)]
        pieces = list(zip(self.items, parts, ends, strict=True))
        if any(ends):
            stay = [place for place, is_last in enumerate(ends) if not is_last]
            self.items = [self.items[place] for place in stay]
            self._spans = [[column[place] for place in stay] for column in self._spans]
        return pieces

    def close(self) -> None:
        """End the generator, wherever it stands; raises what it raises."""
        self.is_over = True
        if isinstance(self._generator, AsyncGenerator):
            self._wait_for(self._generator.aclose(), "aclose")
        elif hasattr(self._generator, "close"):
            self._generator.close()


def cut(result: Any, count: int, spans: list[list[int]]) -> tuple[list[Any], list[bool]]:
    """Return what a batch's result has for each of its requests, and whether that is the last.

    NO_PART is in the place of what a request gets whose stream had its last part before: its rows
    are None. A row of the key DONE that is true says that this is the last one. Without `spans`
    there is one request, and all of the result is its.

    Raises:
        PayloadTypeError: there is not a row for each row that goes on.
    """
    done: Any = None
    if isinstance(result, Mapping) and _is_mask(result.get(DONE)):
        result = dict(result)
        done = result.pop(DONE)
    parts = split_result(result, spans) if spans else [result]
    ends = _ends(done, count, spans)
    values = result.values() if isinstance(result, Mapping) else [result]
    if any(isinstance(value, list | Mapping) for value in values):  # else there is no None in it
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
            f"process yielded {DONE!r} with {len(done)} rows for {sum(spans[0])} rows "
            "that go on: give one for each."
        )
    if spans[0].count(1) == count:  # a row each, as nearly always
        return list(map(bool, done.tolist() if getattr(done, "ndim", 0) == 1 else done))
    return [bool(np.all(rows)) for rows in slices(done, spans[0])]


async def _next_of(generator: AsyncGenerator[Any, Any]) -> tuple[bool, Any]:
    """Return (True, what comes next), or (False, None) at the end."""
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
    """Return whether a request has None in place of its rows."""
    values = part.values() if isinstance(part, Mapping) else [part]
    return any(
        isinstance(value, list) and value and all(row is None for row in value) for value in values
    )


_LOGGER = logging.getLogger(__name__)

SLICE_NS = 20_000_000  # after which others have their turn

NOBODY = sys.maxsize
"""Room of a generator whose parts nobody waits for."""

Entry = tuple[int, Any]
"""(place of the item, its next part | PipelineError or Answer, which end it | ENDED)

A part is a payload, or a Goto with one.
"""


class StreamWatch(CallWatch, Protocol):
    """Told what a generator makes, too."""

    def yielded(self, run: StreamRun, entries: Sequence[Entry]) -> None:
        """Have the owner of the workers told of parts, on the loop and in order."""


class StreamRun(BatchRun, eq=False):
    """A batch that answers in parts; see `run`.

    Attributes:
        tells_steps: whether each step has spans, and not the whole.
        allowed: how many parts each item may have got, UNWANTED if it is to have no more; only the
            loop writes it.
        made: how many each has got; as the next three only the worker writes it.
        ended: which of them get no more.
        groups: items that share one generator, of those that have not ended.
        is_finished: whether all generators are at their ends.
        least: room that is worth a slice. The loop's.
        ran_at: the worker that has them, once it has begun.
        is_out: whether it is at a worker, or on its way to one. The loop's, as the next one.
        is_counted: whether it counts as a batch that runs; until its first slice is over.
        busy_ns: time that its last slice took.
        latest: the generator whose trace is set. The worker's.
        outbox: what a thread has made and the loop did not take yet; `is_told`: it knows of that.
    """

    tells_steps: ClassVar[bool] = False

    allowed: list[int] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)
    groups: list[list[int]] | None = None
    is_finished: bool = False
    least: int = 1
    ran_at: int = 0
    is_out: bool = False
    is_counted: bool = False
    busy_ns: int = 0
    pulls: list[Pull] = field(default_factory=list)
    latest: Pull | None = None
    outbox: deque[Entry] = field(default_factory=deque)
    is_told: bool = False

    # On the loop, between slices ----------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Return whether a slice is worth its way: for several parts, or to close a generator.

        One that its time cut off had room left, so any room is.
        """
        if self.is_finished or self.is_superseded:
            return False
        least = 1 if self.busy_ns > SLICE_NS else self.least
        return any(self._room(group) >= least for group in self.groups or ())

    def live(self) -> list[int]:
        """Return the places of the items that wait for more."""
        return [place for place in range(len(self.items)) if self._is_live(place)]

    def again(self, error: PipelineError, attempts: int) -> list[Self]:
        """Return the runs to start over with; none if anybody has got a part."""
        return [] if any(self.made) else super().again(error, attempts)

    def _room(self, group: Sequence[int]) -> int:
        """Return how many turns a generator may have; NOBODY if it is to be closed."""
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

    # In the worker ------------------------------------------------------------------------------

    @property
    def goes_on(self) -> bool:
        """Return whether the slice that runs does more, if there is time."""
        return any(self._room(pull.items) for pull in self.pulls if not pull.is_over)

    def run(self, op: BoundOp, watch: CallWatch, clock_ns: Callable[[], int]) -> None:
        """Run a slice: until there is no room, all have ended, or others are to have a turn.

        Raises nothing. The first one prepares the batch.
        """
        began_ns, teller = clock_ns(), cast(StreamWatch, watch)
        try:
            self._go_on(op, teller, clock_ns, began_ns + SLICE_NS)
        except BaseException as error:  # ours, on data of any type: the worker must survive it
            failed = stage_error(error, op, "process", 0, *ids_of(self.items))
            self._end_all(failed, teller)
        self._pause(op)
        self.end_ns: int = clock_ns()
        self.busy_ns: int = self.end_ns - began_ns

    def _end_all(self, error: PipelineError, watch: StreamWatch) -> None:
        """End all that wait for more with an error."""
        self._tell(watch, [(place, error) for place in self.live()])
        self.pulls = []

    def _pause(self, op: BoundOp) -> None:
        """Take down how far it is, at the end of a slice."""
        self.pulls = [pull for pull in self.pulls if not pull.is_over]
        self.groups = [pull.items for pull in self.pulls]
        self.is_finished = not self.pulls

    def _begin(self, op: BoundOp, watch: StreamWatch, clock_ns: Callable[[], int]) -> None:
        count = len(self.items)
        self.ran_at = op.worker
        self.made, self.ended, self.groups = [0] * count, [False] * count, []
        before = dict(op.state)
        if self.calls is None:
            self.prepare(op, clock_ns)
        if not self.states and count == 1:  # others may have their turns in between
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
                self._tell(watch, [(place, outcome), (place, ENDED)])

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
                alone = Call(data, [place])
                self.pulls.append(self._pull(op, alone, iter([data]), skips_process=True))

    def _begin_behind_process(
        self, op: BoundOp, watch: StreamWatch, clock_ns: Callable[[], int]
    ) -> None:
        if self.calls:
            self._process(op, watch, self.calls, clock_ns)
        fetched = self._gather(op) if self.calls else self.prepared
        for place, item in enumerate(self.items):
            if self.outcomes[place] is not None or place not in self.prepared:
                continue
            data = fetched.get(place, self.prepared[place])
            if isinstance(data, PipelineError | Routed):
                self.outcomes[place] = data
                continue
            self._enter(op, place)
            try:
                made = (
                    iter([data])
                    if item.is_feed
                    else op.users_postprocess(item.inputs, data, item.data_id, item.log_id)
                )
                self.pulls.append(self._pull(op, Call(data, [place]), made))
            except BaseException as error:  # user code; a worker survives even SystemExit
                self.outcomes[place] = stage_error(
                    error, op, "postprocess", item.log_id, item.data_id
                )

    def _called(self, op: BoundOp, call: Call) -> Pull:
        """Call `process`, which runs nothing of a generator yet."""
        call.attempts += 1
        if self.contexts:
            op.context = tuple(self.contexts[place] for place in call.items)
        try:
            made = op.users_process([call.feed], self.items[call.items[0]].log_id)
        except BaseException as error:  # user code around the generator
            made = _raises(error)
        return self._pull(op, call, made, is_batched=op.op.pipeline_config.batch_size > 1)

    def _pull(self, op: BoundOp, call: Call, made: Any, **kind: bool) -> Pull:
        """Return what asks a generator."""
        pull = Pull(made, call, op.wait_for, **kind)
        pull.trace = first_of(self.items[place].trace for place in call.items)
        if op.timeout_s is None:
            pull.deadline = self._deadline(op, call)
        return pull

    def _go_on(
        self, op: BoundOp, watch: StreamWatch, clock_ns: Callable[[], int], until_ns: int
    ) -> None:
        """Have each generator make its next parts, in turns."""
        self.latest = None
        if self.groups is None:
            self._begin(op, watch, clock_ns)
        goes_on = True
        while goes_on:
            goes_on = False
            for pull in self.pulls[:]:
                if pull.is_over:
                    continue
                room = self._room(pull.items)
                if room == NOBODY:
                    self._close(pull, op, watch)
                    continue
                if room <= 0:
                    continue
                self._turn(pull, op, watch)
                goes_on = True
                if self.is_superseded:  # it took too long: another worker has what is left
                    self._close(pull, op, watch)
                    return
                if clock_ns() > until_ns:
                    return

    def _turn(self, pull: Pull, op: BoundOp, watch: StreamWatch) -> None:
        """Have a generator make its next parts."""
        if (self.states or self.contexts) and len(pull.items) == 1:
            self._enter(op, pull.items[0])
        deadline = pull.deadline
        if op.timeout_s is not None:
            deadline = self._deadline(op, pull.call)
        if deadline is not None:
            set_call_deadline(deadline)
        if pull.trace or pull is not self.latest:
            self._set_trace(op, pull)
        if op.notes is not None:
            op.notes.begin_call(op.name, op.streams, (self.items[i] for i in pull.call.items))
        watch.call_begins()
        try:
            value = pull.advance()
            pull.turns += 1
        except StopIteration:
            pull.is_over = True
            self._tell(watch, [(place, ENDED) for place in self._waiting(pull)])
            return
        except BaseException as error:  # user code; a worker survives even SystemExit
            pull.is_over = True
            self._failed_turn(pull, op, watch, error)
            return
        finally:
            watch.call_ends()
            if deadline is not None:
                set_call_deadline(None)
        if self.is_superseded:
            return
        try:
            if pull.is_batched:
                entries = self._entries(pull, op, value)
            else:
                place = pull.items[0]
                entries = [(place, self._answered(op, pull, place, value))]
        except BaseException as error:  # it is no answer, or not of that many rows
            self._close(pull, op, watch)
            self._failed_turn(pull, op, watch, error)
            return
        self._tell(watch, entries)

    def _entries(self, pull: Pull, op: BoundOp, value: Any) -> list[Entry]:
        """Return what one turn of a batch has for the items that still wait."""
        entries: list[Entry] = []
        for place, part, is_last in pull.pieces(op.processed(value)):
            if self.ended[place]:
                continue
            if part is not NO_PART:
                entries.append((place, self._posted(op, place, part)))
            if is_last:
                entries.append((place, ENDED))
        return entries

    def _answered(self, op: BoundOp, pull: Pull, place: int, value: Any) -> Any:
        """Return the part that a turn has made for the one item of a generator."""
        if op.streams == "postprocess":
            if type(value) is dict:  # as nearly always
                return value
            return op.answer(value) if self.items[place].is_feed else op.answered(value)
        if type(value) is not dict and not pull.skips_process:
            value = op.processed(value)
        return self._posted(op, place, value)

    def _posted(self, op: BoundOp, place: int, data: Any) -> Any:
        """Return what `postprocess` makes of a part."""
        item = self.items[place]
        if self.states or self.contexts:
            self._enter(op, place)
        return op.ended(item, data)

    def _failed_turn(
        self, pull: Pull, op: BoundOp, watch: StreamWatch, error: BaseException
    ) -> None:
        """End the items of a generator that raised; or call it again, where nobody got a part."""
        call = pull.call
        if op.streams == "postprocess":
            place = pull.items[0]
            item = self.items[place]
            failed = stage_error(error, op, "postprocess", item.log_id, item.data_id)
            self._tell(watch, [(place, failed)])
            return
        failed = self._process_error(error, op, call)
        if not pull.turns and not self.is_superseded:
            is_retryable = isinstance(error, PredictorError) and error.retryable
            if is_retryable and call.attempts < op.attempts:
                self.pulls.append(self._called(op, call))
                return
            if len(call.items) > 1 and not isinstance(
                failed, DeadlineError | PredictorUnavailableError
            ):
                self.pulls += [self._called(op, single) for single in call.alone(self.prepared)]
                return
        self._tell(watch, [(place, failed) for place in self._waiting(pull)])

    def _close(self, pull: Pull, op: BoundOp, watch: StreamWatch) -> None:
        """End a generator whose parts nobody waits for."""
        watch.call_begins()
        try:
            pull.close()
        except BaseException as error:  # user code; nobody waits for it
            what = printable(described(error))
            _LOGGER.warning("[%s] a generator raised %s when it was closed", op.name, what)
        finally:
            watch.call_ends()

    def _enter(self, op: BoundOp, place: int) -> None:
        """Have the Op be as `preprocess` of an item left it."""
        if place in self.states:
            restore(op.state, self.states[place])
        if self.contexts:
            op.context = self.contexts[place]

    def _set_trace(self, op: BoundOp, pull: Pull) -> None:
        """Have what a turn asks for belong to the trace of its first traced item."""
        self.latest = pull
        if pull.trace or call_trace():
            set_call_trace(child(pull.trace, op.name, "process") if pull.trace else "")

    def _waiting(self, pull: Pull) -> list[int]:
        return [place for place in pull.items if not self.ended[place]]

    def _tell(self, watch: StreamWatch, entries: Sequence[Entry]) -> None:
        """Have the loop told of parts and ends; not of items that are over."""
        told = []
        for place, outcome in entries:
            if self.ended[place]:
                continue
            if type(outcome) is dict:  # as nearly always
                self.made[place] += 1
            elif outcome is ENDED or isinstance(outcome, PipelineError | Answer):
                self.ended[place] = True
            else:
                self.made[place] += 1
            if self.allowed[place] != UNWANTED:
                told.append((place, outcome))
        if told and not self.is_superseded:
            watch.yielded(self, told)


def _raises(error: BaseException) -> Any:
    """Return a generator that raises `error` at once."""
    raise error
    yield
