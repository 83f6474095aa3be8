"""Known defects, put back into the engine: the fuzzer has to find each of them.

A mutant is a context manager. `python -m fuzz --mutant NAME` runs the fuzzer with one; the exit
status is 1 if it is found, as with any defect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from pipeline.engine.admission import AdmissionController, SharedQueue
from pipeline.engine.detours import Detours
from pipeline.engine.engine import Engine
from pipeline.engine.executor import Executor
from pipeline.engine.filters import Deadline
from pipeline.engine.journal.journal import Outcome
from pipeline.engine.journal.spans import SpanRecorder
from pipeline.engine.models import ModelRegistry
from pipeline.engine.op import channel
from pipeline.engine.op.channel import Channel
from pipeline.engine.op.dispatcher import OpDispatcher
from pipeline.engine.run import bound_op, collate, op_facts
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.schedulers.base import ReadyQueue
from pipeline.engine.schema_checks import CheckedUnpacker
from pipeline.errors import PipelineError
from pipeline.frontends.api.pipelines import Pipelines
from pipeline.frontends.v2 import forms
from pipeline.frontends.v2.convoys import ConvoyCollector
from pipeline.workers.shm.server_memory import ServerMemory

Mutant = Callable[[], contextlib.AbstractContextManager[Any]]

MUTANTS: dict[str, Mutant] = {}
REAL_MUTANTS: dict[str, Mutant] = {}
"""Mutants that only real servers show."""
TOGETHER_MUTANTS: dict[str, Mutant] = {}
"""Mutants that simultaneous requests to models show."""


def mutant(function: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    MUTANTS[function.__name__] = contextlib.contextmanager(function)
    return function


def real_mutant(function: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    REAL_MUTANTS[function.__name__] = contextlib.contextmanager(function)
    return function


def together_mutant(function: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    TOGETHER_MUTANTS[function.__name__] = contextlib.contextmanager(function)
    return function


@contextlib.contextmanager
def _wrapped(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace `owner.name` by the result of `make`."""
    with mock.patch.object(owner, name, make(getattr(owner, name))):
        yield


@mutant
def a_lost_wake_up() -> Iterator[None]:
    """An Op whose worker becomes idle does not look for more requests."""

    def make(done: Any) -> Any:
        def lazy(self: OpDispatcher, worker: Any, job: Any) -> None:
            self.is_dirty, before = True, self.is_dirty
            done(self, worker, job)
            self.is_dirty = before

        return lazy

    with _wrapped(OpDispatcher, "done", make):
        yield


@mutant
def parts_of_two_requests_mixed() -> Iterator[None]:
    """A join sometimes gives a request a part of the request before it."""

    def make(push: Any) -> Any:
        def mixing(self: ReadyQueue, item: Any, now: float) -> None:
            before = getattr(self, "mixed_up", None)
            if before is not None and len(item.inputs) > 1 and item.data_id % 4 == 3:
                item.inputs = {**before, **dict(list(item.inputs.items())[1:])}
            self.mixed_up = dict(item.inputs)
            push(self, item, now)

        return mixing

    with _wrapped(ReadyQueue, "add", make):
        yield


@mutant
def rows_split_one_off() -> Iterator[None]:
    """A batch's rows are given to the wrong requests."""

    def shifted(value: Any, counts: Any) -> Any:
        pieces, start = [], len(value) and 1
        for count in counts:
            pieces.append(value[start : start + count])
            start += count
        pieces[-1] = value[len(value) - counts[-1] :]
        return pieces

    with mock.patch.object(collate, "slices", shifted):
        yield


@mutant
def an_error_wins_a_first_arrival() -> Iterator[None]:
    """A join that takes the first answer also takes the first error."""

    def make(join: Any) -> Any:
        def hasty(self: Channel, request: Any, slot: str, part: Any, *more: Any) -> Any:
            if self._first_arrival and isinstance(part, PipelineError):
                return {slot: part}
            return join(self, request, slot, part, *more)

        return hasty

    with _wrapped(Channel, "join", make):
        yield


@mutant
def errors_in_the_order_of_time() -> Iterator[None]:
    """A full join fails with the error that came first, not with the first producer's."""

    def make(join: Any) -> Any:
        def hasty(self: Channel, request: Any, slot: str, part: Any, *more: Any) -> Any:
            if not self._first_arrival and isinstance(part, PipelineError):
                return {slot: part}
            return join(self, request, slot, part, *more)

        return hasty

    with _wrapped(Channel, "join", make):
        yield


@mutant
def losers_stay() -> Iterator[None]:
    """The loser of a race of branches is not dropped, and no deadline watches its worker."""

    def make(finish: Any) -> Any:
        def careless(self: Engine, request: Any, answer: Any) -> None:
            request.live = min(request.live, 1)
            finish(self, request, answer)

        return careless

    with _wrapped(Engine, "_complete", make):
        yield


@mutant
def waiting_requests_are_not_admitted() -> Iterator[None]:
    """A request that ends does not make room for one that waits for admission."""

    def release(self: AdmissionController, request: Any, is_served: bool) -> None:
        self.active.discard(request)
        self._queue.pop(request, None)

    with mock.patch.object(AdmissionController, "release", release):
        yield


@mutant
def deadlines_are_late() -> Iterator[None]:
    """A deadline ends a request a fifth too late."""

    def make(on_admission: Any) -> Any:
        def late(self: Deadline, request: Any) -> None:
            request.timeout_s = request.timeout_s and request.timeout_s * 1.2
            on_admission(self, request)

        return late

    with _wrapped(Deadline, "on_admission", make):
        yield


@mutant
def an_attempt_too_few() -> Iterator[None]:
    """A call that hung has used up two attempts."""

    def make(resumed: Any) -> Any:
        def impatient(self: BatchRun, op_name: str, worker: int, attempts: int) -> Any:
            return resumed(self, op_name, worker, attempts - 1)

        return impatient

    with _wrapped(BatchRun, "resumed", make):
        yield


@mutant
def the_batch_pays_for_one() -> Iterator[None]:
    """A batch that fails is not taken apart."""
    with mock.patch.object(BatchRun, "_is_worth_isolating", return_value=False):
        yield


@mutant
def a_span_is_not_recorded() -> Iterator[None]:
    """A dropped turn does not get into the statistics."""

    def make(note: Any) -> Any:
        def forgetful(self: SpanRecorder, items: Any, outcome: Any) -> None:
            note(self, list(items)[1:], outcome)

        return forgetful

    with _wrapped(SpanRecorder, "unfinished", make):
        yield


@mutant
def cancelled_requests_keep_their_place() -> Iterator[None]:
    """A cancelled request still counts as inside."""

    def make(end: Any) -> Any:
        def stay(self: Engine, request: Any) -> None:
            if request.outcome != Outcome.CANCELED:
                end(self, request)

        return stay

    with _wrapped(Engine, "_end", make):
        yield


@mutant
def a_state_of_another_request() -> Iterator[None]:
    """Postprocess of one request of a batch reads the state of another one."""

    def make(postprocess: Any) -> Any:
        def confused(self: BatchRun, op: Any) -> None:
            self.states = {}
            postprocess(self, op)

        return confused

    with _wrapped(BatchRun, "_postprocess", make):
        yield


@mutant
def a_full_channel_notifies_no_op() -> Iterator[None]:
    """An Op that waits for a place in a channel is not notified of one."""
    with mock.patch.object(OpDispatcher, "places_freed", return_value=None):
        yield


@mutant
def an_answer_after_a_jump_has_the_targets_name() -> Iterator[None]:
    """After a jump, the answer has the name of the target."""

    def make(join: Any) -> Any:
        def renamed(self: Channel, request: Any, slot: str, part: Any, name: Any = None) -> Any:
            return join(self, request, slot, part)

        return renamed

    with _wrapped(Channel, "join", make):
        yield


@mutant
def more_samples_than_a_model_takes() -> Iterator[None]:
    """A batch is merged without regard to its number of samples."""

    def make(plan: Any) -> Any:
        return lambda samples, most_rows=0: plan(samples)

    with _wrapped(op_facts, "plan", make):
        yield


@mutant
def scalars_run_apart() -> Iterator[None]:
    """Scalars of requests are not columns of a batch."""
    with _wrapped(bound_op, "with_columns", lambda made: lambda feed: feed):
        yield


@mutant
def a_retry_of_the_request_keeps_its_parts() -> Iterator[None]:
    """`dag.retry` starts a request again while parts of its first start remain."""

    def make(restart: Any) -> Any:
        def hasty(self: Executor, request: Any, payload: Any) -> None:
            with mock.patch.object(OpDispatcher, "drop", return_value=None):
                restart(self, request, payload)

        return hasty

    with _wrapped(Executor, "start_over", make):
        yield


@mutant
def an_absent_answer_wins_a_first_arrival() -> Iterator[None]:
    """A join takes the notice that no answer comes as the first answer."""
    with mock.patch.object(channel, "_is_answer", lambda part: not isinstance(part, PipelineError)):
        yield


@mutant
def a_lap_begins_with_the_last_ones_parts() -> Iterator[None]:
    """A join in a loop continues with the parts of the previous lap."""
    with mock.patch.object(Channel, "begin_lap", autospec=True, return_value=None):
        yield


@mutant
def loops_are_of_all_requests() -> Iterator[None]:
    """An Op counts its loops over all requests, not for each one."""

    def make(loop: Any) -> Any:
        def counting(self: Detours, source: Any, request: Any, way: Any, answer: Any) -> None:
            request.detoured().loops[source] = source.links.taken[way.target]
            loop(self, source, request, way, answer)

        return counting

    with _wrapped(Detours, "_loop", make):
        yield


@mutant
def a_pipeline_takes_the_whole_queue() -> Iterator[None]:
    """No part of the shared queue is kept for each pipeline."""

    def make(init: Any) -> Any:
        def greedy(self: SharedQueue, size: int, graphs: int) -> None:
            init(self, size, graphs)
            self.kept = 0

        return greedy

    with _wrapped(SharedQueue, "__init__", make):
        yield


@mutant
def the_shared_queue_has_no_bound() -> Iterator[None]:
    """Pipelines wait in a queue that is never full."""
    with mock.patch.object(SharedQueue, "has_room", return_value=True):
        yield


@mutant
def a_schema_lets_all_pass() -> Iterator[None]:
    """A request that a schema refuses continues unchanged."""

    def make(check: Any) -> Any:
        return lambda self, request, payload: self._go_on(request, payload)

    with _wrapped(CheckedUnpacker, "_take_text", make):
        yield


@real_mutant
def a_body_is_freed_while_it_is_read() -> Iterator[None]:
    """The memory of a body is reused at once."""

    def make(body_of: Any) -> Any:
        def hasty(self: ServerMemory, block: Any) -> Any:
            body = body_of(self, block)
            self._released.append(block)
            return body

        return hasty

    with _wrapped(ServerMemory, "body_of", make):
        yield


@real_mutant
def a_body_is_never_freed() -> Iterator[None]:
    """A body is referred to forever."""
    kept = []

    def make(body_of: Any) -> Any:
        def keeping(self: ServerMemory, block: Any) -> Any:
            kept.append(body_of(self, block))
            return kept[-1]

        return keeping

    with _wrapped(ServerMemory, "body_of", make):
        yield


@real_mutant
def messages_come_to_the_first_pipeline() -> Iterator[None]:
    """The server ignores the name in a message."""

    def begin(self: ModelRegistry, *asked: Any) -> Any:
        return next(iter(self._members)).engine.begin(*asked)

    with mock.patch.object(ModelRegistry, "_begin", begin):
        yield


@real_mutant
def paths_lead_to_the_last_pipeline() -> Iterator[None]:
    """The server ignores the name in a path."""

    def make(entry: Any) -> Any:
        return lambda self, name: entry(self, self.names()[-1])

    with _wrapped(Pipelines, "entry", make):
        yield


@together_mutant
def tensors_without_samples_are_joined() -> Iterator[None]:
    """Requests share a message although their first axis is not a sample axis."""

    def make(can_stack: Any) -> Any:
        return lambda inputs, rows: can_stack(
            {name: v.reshape(1, -1) for name, v in inputs.items()}, 1
        )

    with _wrapped(forms, "can_stack", make):
        yield


@together_mutant
def requests_get_each_others_answers() -> Iterator[None]:
    """The answers to requests that went together are in another order."""

    def make(answers: Any) -> Any:
        return lambda self, answer, *given: list(answers(self, answer, *given))[::-1]

    with _wrapped(ConvoyCollector, "answers", make):
        yield
