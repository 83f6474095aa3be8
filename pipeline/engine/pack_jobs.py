"""Unpacker and Packer: requests into payloads, answers into responses; in threads what takes long.

Methods of ours are quick, unless the data is large; a user's own methods may be anything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import msgspec

from pipeline.data import ChannelData, context_of
from pipeline.engine.answers import channel_data, not_unpacked, package_error, packing_error
from pipeline.engine.request import ACTIVE, ENDED, RequestState
from pipeline.engine.run.bound_op import BoundOp, unpack_result
from pipeline.engine.run.stages import CallWatch
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
from pipeline.proto.pipeline.large import LargeResponse, is_short
from pipeline.proto.pipeline.plain import PlainRequest, PlainResponse, pack_plain, pack_short
from pipeline.proto.pipeline.response import is_cheap, pack_large
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.slices import AbandonedError, Limits, is_short_text, wanted_while
from pipeline.routes import Answer


class PackJob(msgspec.Struct, eq=False):
    """A call of an unpack or pack method that may take a while, run by a worker of that Op.

    `method` is the name of an overridden one, or a function of ours. `keeps` is whatever the
    argument needs to stay alive. `packed` takes the result.
    """

    worker: ClassVar[None] = None  # any will do

    request: RequestState
    method: str | Callable[[Any], Any]
    argument: Any
    packed: Callable[[RequestState, Any], None]
    keeps: Any = None
    result: Any = None

    def run(self, op: BoundOp, watch: CallWatch, clock_ns: Callable[[], int]) -> None:
        """Call the method, if somebody waits for its result."""
        if not self._is_wanted():
            return
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
        # Known here, so that who writes the answers that are packed on the loop need not look.
        is_large = isinstance(result, Response) and not is_short(result)
        self.result = LargeResponse(result) if is_large else result

    def _is_wanted(self) -> bool:
        return self.request.phase is not ENDED


class PackRunner:
    """Owner of the workers of unpack or pack, which are always threads."""

    def __init__(self, op: Op, method: str, make_workers: WorkersFactory) -> None:
        self.op: Op = op
        self.is_inline: bool = runs_on_the_loop(op, method)
        self.workers: Workers = make_workers(op, self)

    def done(self, worker: Worker | None, job: PackJob) -> None:
        """Pass on what a thread made."""
        job.packed(job.request, job.result)

    def lost(self, job: PackJob, error: PipelineError) -> None:
        """Ignore it: threads lose no job."""

    def workers_changed(self) -> None:
        """Ignore it: unpacking and packing count for nothing in the server's readiness."""


class Unpacker(PackRunner):
    """The RequestOp's side: makes payloads of requests.

    Args:
        unpacked: takes a request and its payload.
        complete: takes a request that cannot be unpacked, and the reason; or one that is answered.

    Attributes:
        given: takes a request that came unpacked, and its payload.
    """

    def __init__(
        self,
        op: RequestOp,
        make_workers: WorkersFactory,
        unpacked: Callable[[RequestState, Any], None],
        complete: Callable[[RequestState, Any], None],
    ) -> None:
        super().__init__(op, "unpack_request_package", make_workers)
        self._op = op
        self._unpacked = unpacked
        self.given: Callable[[RequestState, Any], None] = unpacked
        self._complete = complete
        self._is_ours = not overrides(op, "unpack_request_package")

    def unpack(self, request: RequestState) -> None:
        """Unpack a request, at once if it is quick."""
        raw, target = request.raw, request.target
        if type(raw) is PlainRequest and self._is_ours:
            payload = raw.pairs()
            if payload is not None:
                request.log_id = raw.logid
                self._unpacked(request, payload)
                return
        if not self.is_inline:
            self.workers.submit([PackJob(request, "unpack_request_package", raw, self._take)])
        elif target is not None and target.is_large:
            self.workers.submit([PackJob(request, self._unpack_large, raw, self._take)])
        else:
            try:
                unpacked = self._op.unpack_request_package(raw)
            except Exception as error:  # ours, on a caller's data: that caller is told
                self.end(request, not_unpacked(error))
                return
            if self._is_ours:  # and has one form
                payload, request.log_id = unpacked[:2]
                request.as_tensors = bool(raw.tensors)
                self._unpacked(request, payload)
            else:
                self._take(request, unpacked)

    def _unpack_large(self, raw: Any) -> Any:
        """Return what our own RequestOp makes of a large request, in a thread."""
        try:
            unpacked = self._op.unpack_request_package(raw)
            if isinstance(raw, BlockMessage):  # who asks holds it until there is an answer
                raw.release()
            return unpacked
        except AbandonedError:
            raise
        except Exception as error:  # as in `unpack`
            return not_unpacked(error)

    def _take(self, request: RequestState, unpacked: Any) -> None:
        """Pass on what the Op made of a request, if that still waits for it."""
        if request.phase is not ACTIVE:
            return
        payload = self.read(request, unpacked)
        if isinstance(payload, PipelineError | Answer):
            self.end(request, payload)
        else:
            self._unpacked(request, payload)

    def end(self, request: RequestState, result: PipelineError | Answer) -> None:
        """End a request that no Op works on."""
        if isinstance(result, Answer):
            request.head = result.head
            self._complete(request, result.answer)
        else:
            self._complete(request, result)

    def read(self, request: RequestState, unpacked: Any) -> Any:
        """Return the payload in what the Op made of a request, in any form; or an error or Answer.

        In whatever thread has the request; what else is in it the request gets.
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


class Packer(PackRunner):
    """The ResponseOp's side: makes responses of answers.

    Args:
        packed: takes a request and its response; a PlainResponse for a PlainRequest, where it fits.
        limits: of text that is large.

    Attributes:
        combine: makes one answer of the parts of a stream; None: ours does.
    """

    def __init__(
        self,
        op: ResponseOp,
        make_workers: WorkersFactory,
        packed: Callable[[RequestState, Any], None],
        limits: Limits,
    ) -> None:
        super().__init__(op, "pack_response_package", make_workers)
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
        """Pack an answer, at once if it is quick. Its arrays may show memory of `keeps`.

        `packed` takes it, if it is a part of the answer only.
        """
        if error is None and self.goes_plain(request):
            response = pack_short(payload)  # as most are
            if response is not None:
                (packed or self._packed)(request, response)
                return
        data, packed = channel_data(request, payload, error), packed or self._packed
        if self.is_inline and (self._is_at_once(data) or self._is_cheap(data)):
            packed(request, self._pack_now(request, data))
            return
        pack = self._pack_large if self.is_inline else "pack_response_package"
        passed = partial(_pass, packed)
        self.workers.submit([PackJob(request, pack, data, passed, keeps)])

    def goes_plain(self, request: RequestState) -> bool:
        """Return whether who asks takes a PlainResponse, and text is all that is answered."""
        is_plain = self._is_ours and type(request.raw) is PlainRequest and not request.is_profiled
        return is_plain and not response_formats(self._op, request.as_tensors)[1]

    def _is_at_once(self, data: ChannelData) -> bool:
        """Return whether our own method is done with it in no time."""
        return (
            data.error is not None
            or self._op.pipeline_is_quick
            or is_short_text(data.payload)  # as most are
        )

    def _is_cheap(self, data: ChannelData) -> bool:
        """Return whether the arrays of an answer are packed in little time."""
        return is_cheap(data.payload, response_formats(self._op, data.as_tensors)[0])

    def _pack_now(self, request: RequestState, data: ChannelData) -> Any:
        """Return what our own ResponseOp makes of an answer that is not large."""
        try:
            return self._plain(request, data) or self._op.pack_response_package(data)
        except Exception as error:  # ours, on an answer of any type: that caller is told
            return packing_error(request, package_error(error))

    def _plain(self, request: RequestState, data: ChannelData) -> PlainResponse | None:
        """Return the answer without protobuf, if it has that form and who asks takes it."""
        if data.error is not None or not self.goes_plain(request):
            return None
        return pack_plain(data.payload)

    def _pack_large(self, data: ChannelData) -> Any:
        """Return what our own ResponseOp makes of a large answer, or an error, in a thread."""
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
    """Pass on a response, or that of an error."""
    if isinstance(response, PipelineError):
        response = packing_error(request, response)
    packed(request, response)
