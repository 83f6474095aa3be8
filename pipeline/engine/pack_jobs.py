"""Unpacker and Packer: requests into payloads, answers into responses; slow ones in threads.

This library's methods are quick, unless the data is large; a user's methods may be slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec

from pipeline.data import ChannelData, context_of
from pipeline.engine.answers import channel_data, not_unpacked, package_error, packing_error
from pipeline.engine.op.channel import Item
from pipeline.engine.ports import Links, TripStarts
from pipeline.engine.request import ACTIVE, ENDED, RequestState
from pipeline.engine.run.bound_op import BoundOp, unpack_result
from pipeline.engine.run.stages import CallWatch
from pipeline.engine.trips.pace import Pace
from pipeline.engine.worker_api import Worker, Workers, WorkersFactory
from pipeline.errors import PipelineError
from pipeline.op import (
    Op,
    RequestOp,
    ResponseOp,
    overrides,
    response_formats,
    runs_on_the_loop,
)
from pipeline.proto.pipeline.blocks import BlockMessage
from pipeline.proto.pipeline.plain import PlainRequest, pack_plain, pack_short
from pipeline.proto.pipeline.response import LargeResponse, is_cheap, is_short, pack_large
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.slices import AbandonedError, Limits, is_short_text, joined, wanted_while
from pipeline.routes import Answer


class PackJob(msgspec.Struct, eq=False):
    """A call of an unpack or pack method that may take long, run by a worker of that Op.

    As a step of a trip it has an `item`, and its result is in `outcomes`: the job itself, or for an
    unpacked request the payload that `read` returns.

    Attributes:
        method: the name of an overridden method, or a function of this library.
        packed: takes the result.
        keeps: the memory that `argument` needs; held until the job ends.
    """

    worker: ClassVar[None] = None  # any worker
    rows: ClassVar[tuple[int, ...]] = ()
    executions: ClassVar[tuple[int, ...]] = ()

    request: RequestState
    method: str | Callable[[Any], Any]
    argument: Any
    packed: Callable[[RequestState, Any], None]
    keeps: Any = None
    read: Callable[[RequestState, Any], Any] | None = None
    result: Any = None
    start_ns: int = 0
    preprocess_end_ns: int = 0
    process_end_ns: int = 0
    end_ns: int = 0
    item: Item | None = None
    outcomes: Sequence[Any] = ()
    is_under_way: bool = False

    def run(self, op: BoundOp, watch: CallWatch, clock_ns: Callable[[], int]) -> None:
        """Call the method, if the result is still needed."""
        self.start_ns = clock_ns()
        if self._is_wanted():
            self._call(op)
        self.preprocess_end_ns = self.process_end_ns = self.end_ns = clock_ns()
        if (item := self.item) is None:
            return
        self.outcomes = [self]
        if self.read is not None and not item.is_over:
            self.outcomes = [self.read(self.request, self.result)]
            item.log_id = self.request.log_id
            item.ready_ns = self.request.dispatched_ns = self.end_ns

    def _call(self, op: BoundOp) -> None:
        try:
            with wanted_while(self._is_wanted):
                if isinstance(self.method, str):
                    context = None
                    if self.method in op.asking:
                        context = context_of(
                            self.request, self.request.info, lambda: not self._is_wanted()
                        )
                    result = op.call(self.method, self.argument, self.request.data_id, context)
                else:
                    result = self.method(self.argument)
        except AbandonedError:
            return
        # Checked in this thread, so that the loop does not have to.
        is_large = isinstance(result, Response) and not is_short(result)
        self.result = LargeResponse(result) if is_large else result

    def _is_wanted(self) -> bool:
        return self.request.phase is not ENDED


class PackRunner:
    """Owner of the threads that unpack or pack.

    Attributes:
        trips: the trips that the user's method may be a step of; None: it runs alone.
    """

    def __init__(
        self,
        op: Op,
        method: str,
        make_workers: WorkersFactory,
        complete: Callable[..., None],
    ) -> None:
        self._complete = complete
        self.op: Op = op
        self.name: str = op.name
        self.is_inline: bool = runs_on_the_loop(op, method)
        self.workers: Workers = make_workers(op, self)
        self.pace: Pace = Pace()
        self.links: Links = Links()
        self.trips: TripStarts | None = None

    def done(self, worker: Worker | None, job: Any) -> None:
        """Pass on a thread's result."""
        trips = self.trips
        if trips is not None and type(job) is not PackJob:
            trips.done(worker, job)
            return
        if trips is not None and self.pace.took(job.end_ns - job.start_ns):
            trips.changed()
        job.packed(job.request, job.result)

    def enqueue(self, request: RequestState, slot: str, part: Any) -> None:
        """Take the last answer of a trip that ended before it was packed."""
        self._complete(request, part)

    def lost(self, job: Any, error: PipelineError) -> None:
        """Do nothing: threads lose no job."""

    def workers_changed(self) -> None:
        """Do nothing: the server's readiness does not depend on unpacking and packing."""


class Unpacker(PackRunner):
    """The RequestOp's side: makes payloads of requests.

    Args:
        unpacked: takes a request and its payload.
        complete: takes a request that cannot be unpacked, and the error; or one with its answer.

    Attributes:
        given: takes a request that came unpacked, and its payload.
        looks: the filters' `on_input` hooks for requests unpacked in a trip; they run in any
            thread.
        keeps_views: returns whether all readers of a payload accept a view instead of bytes.
    """

    looks: Sequence[Callable[[RequestState, Any], None]] = ()
    keeps_views: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(
        self,
        op: RequestOp,
        make_workers: WorkersFactory,
        unpacked: Callable[[RequestState, Any], None],
        complete: Callable[[RequestState, Any], None],
    ) -> None:
        super().__init__(op, "unpack_request_package", make_workers, complete)
        self._op = op
        self._unpacked = unpacked
        self.given: Callable[[RequestState, Any], None] = unpacked
        self._is_ours = not overrides(op, "unpack_request_package")

    def unpack(self, request: RequestState) -> None:
        """Unpack a request; at once if that is quick."""
        raw, target = request.raw, request.target
        if type(raw) is PlainRequest and self._is_ours:
            payload = raw.pairs()
            if payload is not None:
                request.log_id = raw.logid
                self._unpacked(request, payload)
                return
        if not self.is_inline:
            job: Any = PackJob(
                request, "unpack_request_package", raw, self._take, read=self._read_within
            )
            if self.trips is not None and self.pace.was_fusable:
                job = self.trips.begin_before(self, job, request)
            self.workers.submit([job])
        elif target is not None and target.is_large:
            self.workers.submit([PackJob(request, self._unpack_large, raw, self._take)])
        else:
            try:
                unpacked = self._op.unpack_request_package(raw)
            except Exception as error:  # our own unpack failed on a client's data: tell that client
                self.end(request, not_unpacked(error))
                return
            if self._is_ours:  # then the result has one form
                payload, request.log_id = unpacked[:2]
                request.as_tensors = bool(raw.tensors)
                self._unpacked(request, payload)
            else:
                self._take(request, unpacked)

    def _unpack_large(self, raw: Any) -> Any:
        """Return the result of our own RequestOp for a large request; runs in a thread."""
        try:
            unpacked = self._op.unpack_request_package(raw)
            # the client's view holds the message until there is an answer
            if isinstance(raw, BlockMessage):
                raw.release()
                if not self.keeps_views():
                    _copy_views(unpacked[0])
            return unpacked
        except AbandonedError:
            raise
        except Exception as error:  # as in `unpack`
            return not_unpacked(error)

    def _take(self, request: RequestState, unpacked: Any) -> None:
        """Pass on the result of the Op, if the request still waits for it."""
        if request.phase is ACTIVE:
            self.route(request, self.read(request, unpacked))

    def _read_within(self, request: RequestState, unpacked: Any) -> Any:
        """Return the payload of a request on a trip; runs in the trip's thread."""
        payload = self.read(request, unpacked)
        for look in self.looks if type(payload) is dict else ():
            look(request, payload)
        return payload

    def count(self, run: PackJob) -> None:
        """Note that a request leaves its trip and is unpacked alone."""
        run.request.live -= 1

    def route(self, request: RequestState, payload: Any) -> None:
        """Pass on the payload of a request, or the error or Answer that ends it."""
        if isinstance(payload, PipelineError | Answer):
            self.end(request, payload)
        else:
            self._unpacked(request, payload)

    def end(self, request: RequestState, result: PipelineError | Answer) -> None:
        """End a request that no Op has processed."""
        if isinstance(result, Answer):
            request.head = result.head
            self._complete(request, result.answer)
        else:
            self._complete(request, result)

    def read(self, request: RequestState, unpacked: Any) -> Any:
        """Return the payload from the Op's result, which may have several forms; or an error or
        Answer.

        Runs in any thread that has the request; sets the request's log_id and as_tensors.
        """
        try:
            if isinstance(unpacked, PipelineError):
                raise unpacked
            payload, log_id = unpack_result(unpacked)
        except PipelineError as error:
            return error
        request.log_id = int(log_id or 0)
        request.as_tensors = bool(getattr(request.raw, "tensors", None))  # of a Request alone
        return payload


def _copy_views(payload: dict[str, Any]) -> None:
    """Replace memoryviews in a payload by bytes."""
    for name, value in payload.items():
        if type(value) is memoryview:
            payload[name] = joined((value,))


class Packer(PackRunner):
    """The ResponseOp's side: makes responses of answers.

    Args:
        packed: takes a request and its response; a PlainResponse for a PlainRequest, if it fits.
        limits: of large text.
        complete: takes a request and its last answer, and the PackJob if a trip has packed it.

    Attributes:
        combine: the user's function that makes one answer of a stream's parts; None: the default
            does.
    """

    def __init__(
        self,
        op: ResponseOp,
        make_workers: WorkersFactory,
        packed: Callable[[RequestState, Any], None],
        limits: Limits,
        complete: Callable[..., None],
    ) -> None:
        super().__init__(op, "pack_response_package", make_workers, complete)
        self._op = op
        self._packed = packed
        self._limits = limits
        self.combine: Callable[[list[Any]], Any] | None = op.pipeline_combine
        self._is_ours = not overrides(op, "pack_response_package")

    def pack(
        self,
        request: RequestState,
        payload: Any,
        error: PipelineError | None,
        keeps: Any,
        packed: Callable[[RequestState, Any], None] | None = None,
    ) -> None:
        """Pack an answer; at once if that is quick. Its arrays may show memory of `keeps`.

        `packed` takes the response if it is only a part of the answer.
        """
        if error is None and self.fits_plain(request):
            response = pack_short(payload)  # the common case
            if response is not None:
                (packed or self._packed)(request, response)
                return
        data, packed = channel_data(request, payload, error), packed or self._packed
        if self.is_inline and (
            data.error is not None
            or self._op.pipeline_is_quick
            or is_short_text(data.payload)  # the common case
            or is_cheap(data.payload, response_formats(self._op, data.as_tensors)[0])
        ):
            packed(request, self._pack_now(request, data))
            return
        pack = self._pack_large if self.is_inline else "pack_response_package"
        passed = partial(_pass, packed)
        self.workers.submit([PackJob(request, pack, data, passed, keeps)])

    def step(self, items: Sequence[Item]) -> PackJob:
        """Return the job that packs the last answer of a trip."""
        (item,) = items
        ((_, payload),) = item.inputs.items()
        data, packed = channel_data(item.request, payload, None), partial(_pass, self._packed)
        return PackJob(item.request, "pack_response_package", data, packed, item=item)

    def count(self, run: PackJob) -> None:
        """Note that the worker has started the job at the end of a trip."""
        run.is_under_way = True
        self._complete(run.request, {}, run)

    def route(self, request: RequestState, answer: PackJob) -> None:
        """Pass on a request whose answer was packed at the end of a trip."""
        self._complete(request, {}, answer)

    def fits_plain(self, request: RequestState) -> bool:
        """Return whether a PlainResponse fits: the client takes one, and the answer is text."""
        is_plain = self._is_ours and type(request.raw) is PlainRequest and not request.is_profiled
        return is_plain and not response_formats(self._op, request.as_tensors)[1]

    def _pack_now(self, request: RequestState, data: ChannelData) -> Any:
        """Return the response of our own ResponseOp to an answer that is not large."""
        try:
            is_plain = data.error is None and self.fits_plain(request)
            plain = pack_plain(data.payload) if is_plain else None
            return plain or self._op.pack_response_package(data)
        # our own pack failed on an answer of some type: tell that client
        except Exception as error:
            return packing_error(request, package_error(error))

    def _pack_large(self, data: ChannelData) -> Any:
        """Return the response of our own ResponseOp to a large answer, or an error; runs in a
        thread.
        """
        try:
            return pack_large(
                data.payload, *response_formats(self._op, data.as_tensors), self._limits
            )
        except AbandonedError:
            raise
        except Exception as error:  # as in `pack`
            return package_error(error)


def _pass(
    packed: Callable[[RequestState, Any], None], request: RequestState, response: Any
) -> None:
    """Pass on a response; an error becomes a response first."""
    if isinstance(response, PipelineError):
        response = packing_error(request, response)
    packed(request, response)
