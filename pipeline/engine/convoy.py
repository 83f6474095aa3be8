"""Convoy: requests of one form that pass an engine as one request with all their samples.

The engine works once for all of them: at each model, and at each step of an ensemble. The code of a
model gets single requests: the worker takes a convoy apart, and puts the answers together. If the
answers differ, for example because one is an error, they continue as `MemberOutcomes`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
from msgspec import field

from pipeline.data import NO_INFO, RequestInfo
from pipeline.engine.journal.journal import Outcome, outcome_of, packed_request_of
from pipeline.engine.request import LAST_ID, MemberRequests, Members
from pipeline.engine.run.collate import slices
from pipeline.engine.run.stage_errors import ids_of, stage_error
from pipeline.engine.run.stages import BatchRun
from pipeline.errors import PipelineError, WorkerDiedError, note_op
from pipeline.proto.slices import SHORT_BYTES

if TYPE_CHECKING:
    from pipeline.engine.journal.journal import EngineObservers
    from pipeline.engine.request import RequestState
    from pipeline.engine.run.bound_op import BoundOp

Arrays = dict[str, Any]

_pack_three = struct.Struct("3q").pack
_THREE = 3 * 8  # bytes of the first fields of REQUEST: data_id, target, rows
_ARRAYS, _DICTS = {np.ndarray}, {dict}
_DTYPE_AND_NDIM, _SHAPE = attrgetter("dtype", "ndim"), attrgetter("shape")
_OBJECTS = "OSUV"  # kinds of arrays whose elements differ in size


class MemberOutcomes(msgspec.Struct, eq=False):
    """Outcomes of the members of a convoy that cannot continue together.

    `outcomes`: the answer or error of each; None for a member whose client has left.
    """

    outcomes: list[Any]


class MemberLostError(WorkerDiedError):
    """The loss of a worker that ran the members of a convoy one after the other.

    Attributes:
        member: place of the member that ran.
        error: of that member; the others run again.
    """

    def __init__(self, member: int, error: PipelineError) -> None:
        super().__init__(str(error))
        self.member = member
        self.error = error


class Convoy(msgspec.Struct, eq=False):
    """The members of one request.

    Attributes:
        rows: number of samples of each; the request has all samples, in this order.
        infos: the parameters and so on of each; empty: those of the request.
        ids: data id of each, in the engine that has the request.
        left: places of the members whose clients have left.
        errors: the errors of failed members, by place.
        forget: tells the engine's workers to forget an id.
        followers: the requests to other models on behalf of the members.
        success_endings: the `endings` of a success of all of them.
    """

    rows: list[int]
    infos: list[RequestInfo] = []
    ids: list[int] = []
    left: set[int] = field(default_factory=set)
    errors: dict[int, PipelineError] = field(default_factory=dict)
    forget: Callable[[int], None] = lambda data_id: None
    followers: list[MemberRequests] = field(default_factory=list)
    success_endings: list[bytes] = []

    def __len__(self) -> int:
        return len(self.rows)

    def enter(
        self, request: RequestState, numbers: Iterator[int], forget: Callable[[int], None]
    ) -> None:
        """Become the convoy of a request that an engine begins; `numbers` are the next data ids."""
        request.convoy, request.count = self, len(self.rows)
        self.ids = list(islice(numbers, len(self.rows)))
        if self.ids[-1] >= LAST_ID:
            self.ids = [data_id % LAST_ID for data_id in self.ids]
        self.forget = forget

    def leave(self, place: int) -> None:
        """Note that the client of a member has left."""
        self.left.add(place)
        self.forget(self.ids[place])
        for follower in self.followers:
            follower.leave(place)

    def following(self, infos: list[RequestInfo]) -> Convoy:
        """Return the same members for a request to another engine."""
        following = Convoy(self.rows, infos, left=set(self.left))
        self.followers.append(following)
        return following

    def note_failures(self, answer: Any, op: str) -> None:
        """Record which members have failed at the Op of this name."""
        for place, outcome in enumerate(answer.outcomes if type(answer) is MemberOutcomes else ()):
            if isinstance(outcome, PipelineError):
                note_op(outcome, op)
                self.errors[place] = outcome

    def codes(self, outcome: Any) -> list[int]:
        """Return the ending of each member, after one outcome for all, or MemberOutcomes."""
        if type(outcome) is MemberOutcomes:
            codes = [_code_of(member) for member in outcome.outcomes]
        else:
            codes = [_code_of(outcome)] * len(self)
        for place in self.left:
            codes[place] = int(Outcome.CANCELED)
        return codes

    def runs_again(self, error: PipelineError | None) -> bool:
        """Return whether the members run again one by one, after all failed with this error.

        As for any batch whose worker died, only the member at fault shall fail. If that member is
        known, only the others run again.
        """
        return isinstance(error, WorkerDiedError)

    def ending(self, error: PipelineError | None) -> Sequence[int]:
        """Return the places of the members that end, after all failed so or were dropped."""
        if isinstance(error, MemberLostError):
            return (error.member,)
        return () if self.runs_again(error) else range(len(self))

    def endings(self, outcome: Any) -> list[bytes]:
        """Return (data id, rows, ending) of each, packed; `outcome`: of all, or MemberOutcomes."""
        if self.left or type(outcome) is MemberOutcomes or isinstance(outcome, PipelineError):
            return list(map(_pack_three, self.ids, self.rows, self.codes(outcome)))
        if not self.success_endings:
            self.success_endings = list(
                map(_pack_three, self.ids, self.rows, [int(Outcome.OK)] * len(self))
            )
        return self.success_endings

    def report_ends(self, observers: EngineObservers, request: RequestState, target: int) -> bool:
        """Report the ends of the members that do not run again; see
        `EngineObservers.report_end`.

        Returns True: there is nothing else to report for the request.
        """
        request.end_ns = request.end_ns or observers.clock_ns()
        if self.errors or self.left or request.error is not None or observers.on_success:
            for place in self.ending(request.error):
                observers.report_end(self._state(request, place), target)
        elif observers.journal is not None:
            tail = packed_request_of(request, target)[_THREE:]
            heads = map(_pack_three, self.ids, [target] * len(self), self.rows)
            observers.journal.requests.append(tail.join((*heads, b"")))
        return True

    def _state(self, request: RequestState, place: int) -> RequestState:
        """Return the state of a member as if it had been the request, which has ended."""
        state = copy(request)
        state.convoy, state.count = None, 1
        state.data_id, state.rows = self.ids[place], self.rows[place]
        error = self.errors.get(place)
        if isinstance(request.error, MemberLostError):
            error = request.error.error
        if place in self.left:
            state.outcome = Outcome.CANCELED
        elif error is not None:
            state.error, state.outcome = error, outcome_of(error)
        return state


def _code_of(outcome: Any) -> int:
    return int(outcome_of(outcome) if isinstance(outcome, PipelineError) else Outcome.OK)


def extra_members(items: Iterable[Any]) -> int:
    """Return how many more requests than items there are, because some items are convoys."""
    convoys = (item.convoy for item in items)
    return sum(len(convoy) - 1 for convoy in convoys if convoy is not None)


# Together and apart ------------------------------------------------------------------------------


def stacked(parts: Sequence[Any], rows: Sequence[int]) -> Arrays | None:
    """Return the arrays of all members, one after the other; None: they cannot be joined.

    They can be joined if they are short, differ only in their elements, and have a row for each
    sample.
    """
    first: Arrays = parts[0]
    if set(map(type, parts)) != _DICTS or not first:
        return None
    names = first.keys()
    if not all(map(names.__eq__, map(dict.keys, parts))):
        return None
    size, count, columns = 0, sum(rows), {}
    for name in first:
        column = columns[name] = list(map(itemgetter(name), parts))
        if set(map(type, column)) != _ARRAYS or len(set(map(_DTYPE_AND_NDIM, column))) > 1:
            return None
        if not column[0].ndim or column[0].dtype.kind in _OBJECTS:
            return None
        if len({shape[1:] for shape in set(map(_SHAPE, column))}) > 1:
            return None
        if list(map(len, column)) != rows:
            return None
        size += column[0][:1].nbytes * count
    if size > SHORT_BYTES:
        return None
    if len(parts) == 1:
        return first
    return {name: np.concatenate(column) for name, column in columns.items()}


def parts_of(stack: Arrays, rows: Sequence[int]) -> list[Arrays]:
    """Return the arrays of each member."""
    names, columns = list(stack), [slices(value, rows) for value in stack.values()]
    return [dict(zip(names, part, strict=True)) for part in zip(*columns, strict=True)]


def together(outcomes: list[Any], rows: Sequence[int]) -> Any:
    """Return the outcomes of the members as one answer, or as MemberOutcomes."""
    stack = stacked(outcomes, rows)
    return MemberOutcomes(outcomes) if stack is None else stack


def member_outcomes(answer: Any, rows: Sequence[int]) -> list[Any]:
    """Return the outcome of each member from the answer to all; None for one that has left."""
    if type(answer) is MemberOutcomes:
        return answer.outcomes
    return parts_of(answer, rows)


class Member(msgspec.Struct, eq=False):
    """One request of a convoy as an item of a BatchRun, which feeds `process`."""

    failure: ClassVar[None] = None
    deadline: ClassVar[None] = None
    trace: ClassVar[str] = ""
    is_feed: ClassVar[bool] = True

    data_id: int
    log_id: int
    inputs: Arrays
    info: RequestInfo
    is_over: bool
    cancelled: Callable[[int], bool]

    def is_cancelled(self) -> bool:
        """Return whether its client has left; in any thread."""
        return self.cancelled(self.data_id)


class BatchMembers:
    """The items of a batch, with the members of convoys as items of their own.

    Attributes:
        members: all of them, as items.
    """

    def __init__(self) -> None:
        self.members: list[Any] = []
        # the rows of each item's members; None: it is not a convoy
        self._rows: list[list[int] | None] = []

    def add(self, item: Any, convoy: Members | None, is_gone: Callable[[int], bool]) -> None:
        """Add an item, or the members of a convoy.

        Args:
            is_gone: returns whether nobody waits for the request with this data id.
        """
        if convoy is None:
            self.members.append(item)
            self._rows.append(None)
            return
        infos = convoy.infos or [item.info or NO_INFO] * len(convoy.rows)
        members = zip(convoy.ids, infos, parts_of(item.inputs, convoy.rows), strict=True)
        self.members += [
            Member(data_id, item.log_id, inputs, info, place in convoy.left, is_gone)
            for place, (data_id, info, inputs) in enumerate(members)
        ]
        self._rows.append(convoy.rows)

    def close(self, run: BatchRun) -> None:
        """Convert the results of a run of the members into results of the items."""
        outcomes, member_rows, executions, start = run.outcomes, run.rows, run.executions, 0
        run.outcomes, run.rows, run.executions = [], [], []
        for rows in self._rows:
            end = start + (1 if rows is None else len(rows))
            own = outcomes[start:end]
            run.outcomes.append(own[0] if rows is None else together(own, rows))
            if member_rows:
                run.rows.append(sum(member_rows[start:end]))
            if executions:
                run.executions.append(max(executions[start:end]))
            start = end
        if len(self._rows) == 1:
            run.executions = executions


class ConvoyRun(BatchRun, eq=False):
    """A batch with convoys in it, run by a thread of this process.

    Another worker cannot continue it.
    """

    @property
    def is_prepared(self) -> bool:
        return False

    def run(self, op: BoundOp, watch: Any, clock_ns: Callable[[], int]) -> None:
        """Run the stages with all members, see `BatchRun.run`. Raises nothing."""
        try:
            ranks = BatchMembers()
            for item in self.items:
                ranks.add(item, item.convoy, partial(_has_left, item))
            inner = BatchRun(ranks.members, self.worker)
            inner.run(op, watch, clock_ns)
            ranks.close(inner)
            for name in _RESULT_FIELDS:
                setattr(self, name, getattr(inner, name))
        except Exception as error:  # a defect of this library: the worker must survive it
            now_ns = clock_ns()
            self.start_ns: int = now_ns
            self.preprocess_end_ns: int = now_ns
            self.process_end_ns: int = now_ns
            self.end_ns: int = now_ns
            failed = stage_error(error, op, "process", 0, *ids_of(self.items))
            self.outcomes: list[Any] = [failed] * len(self.items)


_RESULT_FIELDS = (
    *("outcomes", "rows", "executions", "execution_ends_ns"),
    *("start_ns", "preprocess_end_ns", "process_end_ns", "end_ns"),
)


def _has_left(item: Any, data_id: int) -> bool:
    convoy = item.convoy
    return item.is_cancelled() or convoy.ids.index(data_id) in convoy.left
