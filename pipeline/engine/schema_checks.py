"""Checks of requests and answers by their schemas, if the RequestOp or ResponseOp has one.

They replace the Unpacker and the delivery of answers, after every frontend. Large values, and
schemas that may run user code, are checked in the threads of these Ops. The classes are chosen when
an engine is made: without a schema none of this is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline.engine.pack_jobs import Packer, PackJob, Unpacker
from pipeline.engine.request import ACTIVE, RequestState
from pipeline.engine.run.payload import opened
from pipeline.engine.streams.delivery import StreamDelivery
from pipeline.engine.streams.dispatcher import is_for_one_op
from pipeline.engine.streams.flow import Bundle, RequestStream
from pipeline.engine.streams.plan import StreamPlan
from pipeline.engine.worker_api import WorkersFactory
from pipeline.errors import PackageError, PipelineError, UserCodeError, described
from pipeline.op import RequestOp, ResponseOp
from pipeline.proto.slices import is_short

if TYPE_CHECKING:
    from pipeline.schema.bound import BoundSchema

Complete = Callable[[RequestState, Any], None]


def unpacker_of(
    op: RequestOp, make_workers: WorkersFactory, unpacked: Complete, complete: Complete
) -> Unpacker:
    """Return the RequestOp's side."""
    schema = op.pipeline_schema
    if schema is None:
        return Unpacker(op, make_workers, unpacked, complete)
    return CheckedUnpacker(op, make_workers, unpacked, complete, schema)


def completing(op: ResponseOp, complete: Complete, packer: Callable[[], Packer]) -> Complete:
    """Return the function that takes the last Op's answers and errors."""
    schema = op.pipeline_schema
    return complete if schema is None else AnswerCheck(schema, complete, packer)


def delivery_of(op: ResponseOp, plan: StreamPlan | None, *args: Any) -> StreamDelivery | None:
    """Return the delivery of a graph's streams; None: it has no streams."""
    if plan is None or op.pipeline_schema is None:
        return StreamDelivery.made(plan, *args)
    return CheckedDelivery(op.pipeline_schema, plan, *args)


def _is_at_once(schema: BoundSchema, values: Any) -> bool:
    """Return whether values can be checked on the event loop."""
    try:
        return schema.is_quick and is_short(values)
    except RecursionError:  # a thread gets the same error, and reports it to the client
        return False


def _checked(check: Callable[[dict[str, Any]], dict[str, Any]], values: dict[str, Any]) -> Any:
    """Return the checked values, or an error; raises nothing."""
    try:
        return check(values)
    except PackageError as error:
        error.is_callers = True
        return error
    except PipelineError as error:
        return error
    except Exception as error:  # a defect of this library: that request fails
        return UserCodeError(f"a schema could not be applied: {described(error)}")


class CheckedUnpacker(Unpacker):
    """Unpacker whose payloads are checked by a schema, whatever their protocol."""

    def __init__(
        self,
        op: RequestOp,
        make_workers: WorkersFactory,
        unpacked: Complete,
        complete: Complete,
        schema: BoundSchema,
    ) -> None:
        super().__init__(op, make_workers, self._take_text, complete)
        self.given: Complete = self._take_given
        self._take_checked = unpacked
        self._schema = schema
        self._check_text = functools.partial(
            _checked, functools.partial(schema.check, is_text=True)
        )
        self._check_values = functools.partial(_checked, schema.check)

    def _take_text(self, request: RequestState, payload: Any) -> None:
        """Check a payload of the pipeline protocol, whose numbers are text."""
        self._check(request, payload, self._check_text)

    def _take_given(self, request: RequestState, payload: Any) -> None:
        """Check a payload that a frontend has unpacked, unless it is for one Op."""
        target = request.target
        if target is not None and target.op is not None:
            self._take_checked(request, payload)
        else:
            is_text = target is not None and target.is_text
            self._check(request, payload, self._check_text if is_text else self._check_values)

    def _check(
        self, request: RequestState, payload: Any, check: Callable[[dict[str, Any]], Any]
    ) -> None:
        if _is_at_once(self._schema, payload):
            self._pass(request, check(payload))
        else:
            self.workers.submit([PackJob(request, check, payload, self._pass)])

    def _pass(self, request: RequestState, payload: Any) -> None:
        if request.phase is not ACTIVE:
            return
        if isinstance(payload, PipelineError):
            self.end(request, payload)
        else:
            self._take_checked(request, payload)


class AnswerCheck:
    """Replaces `Engine._complete`: checks the last Op's answers before it.

    Args:
        complete: the engine's.
        packer: returns the packer, whose threads check large values.
    """

    def __init__(
        self, schema: BoundSchema, complete: Complete, packer: Callable[[], Packer]
    ) -> None:
        self._schema = schema
        self._complete = complete
        self._packer = packer
        self._check = functools.partial(_checked, schema.check_answer)

    def __call__(self, request: RequestState, answer: Any) -> None:
        """Take the last Op's payload, or an error in its place."""
        values = answer
        if request.phase is ACTIVE and not is_for_one_op(request) and type(answer) is not dict:
            values = opened(answer, copy=True)
        if type(values) is not dict or request.phase is not ACTIVE or is_for_one_op(request):
            self._complete(request, answer)
        elif _is_at_once(self._schema, values):
            self._complete(request, self._check(values))
        else:
            request.live += 1  # it is active, although no Op has it
            done = functools.partial(self._done, request.generation)
            job = PackJob(request, self._check, values, done, answer)
            self._packer().workers.submit([job])

    def _done(self, generation: int, request: RequestState, answer: Any) -> None:
        """Continue with the result of a thread, unless the request has started again."""
        if request.generation == generation:
            request.live -= 1
            self._complete(request, answer)


class CheckedDelivery(StreamDelivery):
    """StreamDelivery whose parts are checked by a schema, each like an answer."""

    def __init__(self, schema: BoundSchema, *args: Any) -> None:
        super().__init__(*args)
        self._schema = schema
        self._check = functools.partial(_checked, schema.check_answer)

    def _take(self, request: RequestState, message: Any) -> None:
        assert request.stream is not None, "it has made a part"
        self._wait(request, request.stream, message)

    def _pass(self, request: RequestState, stream: RequestStream, bundle: Bundle) -> None:
        if is_for_one_op(request):
            super()._pass(request, stream, bundle)
            return
        payload = stream.first_of(bundle.parts)
        values = payload if type(payload) is dict else opened(payload, copy=True)
        if type(values) is not dict:
            self._pass_checked(request, stream, values)
        elif _is_at_once(self._schema, values):
            self._pass_checked(request, stream, self._check(values))
        else:
            stream.is_packing = True
            job = PackJob(request, self._check, values, self._part_checked, payload)
            self._packer.workers.submit([job])

    def _pass_checked(self, request: RequestState, stream: RequestStream, values: Any) -> None:
        if isinstance(values, PipelineError):
            self._ends.complete(request, values)
        else:
            super()._pass(request, stream, Bundle([values]))

    def _part_checked(self, request: RequestState, values: Any) -> None:
        """Continue with a part that a thread has checked."""
        stream = request.stream
        if stream is None or request.phase is not ACTIVE:
            return
        stream.is_packing = False
        self._pass_checked(request, stream, values)
        self._process_waiting(request, stream)
