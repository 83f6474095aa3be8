"""ConvoyCollector: requests of one form in the same round of the loop continue as a Convoy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pipeline.data import ChannelData, RequestInfo
from pipeline.engine.convoy import Arrays, Convoy, MemberLostError, member_outcomes
from pipeline.engine.engine import Engine
from pipeline.engine.request import Begin, RequestHandle, RequestTarget, ResponseSink, UnarySink
from pipeline.engine.run.payload import opened
from pipeline.errors import PipelineError, UserCodeError, described
from pipeline.proto.slices import SHORT_BYTES

Routed = Callable[[Arrays, int], tuple[Any, RequestTarget]]

_LOGGER = logging.getLogger(__name__)

_MOST_ROUNDS = 4  # of the loop, in which requests wait for others
_ENOUGH = 32  # requests that wait for no more: each bears less of the convoy than its own cost
_OBJECTS = "OSUV"  # kinds of arrays whose elements differ in size


class ConvoyRequest(msgspec.Struct, eq=False):
    """A request that waits for others, and may continue with them.

    Attributes:
        sink: gets the engine's answer.
        inputs: its arrays, or data that becomes arrays when the convoy is complete.
        rows: its number of samples.
        info: about its caller.
        handle: of the begun request, or of the convoy.
        place: in its convoy; -1: it is alone.
        is_over: it was answered, or its caller has left.
    """

    sink: ResponseSink
    inputs: Any
    rows: int
    info: RequestInfo
    handle: Any = None
    place: int = -1
    is_over: bool = False

    def cancel(self) -> None:
        """Drop the request, because its caller has left."""
        if self.is_over:
            return
        self.is_over = True
        if self.place >= 0:
            self.handle.leave(self.place)
        elif self.handle is not None:
            self.handle.cancel()
        self.handle = None  # breaks the cycle, which otherwise waits for the garbage collector

    def end(self, answer: Any) -> None:
        """Pass on the answer, unless the request is over."""
        if self.is_over:
            return
        self.is_over, self.handle = True, None
        try:
            self.sink.end(answer)
        except Exception:  # a bug in this library: other requests continue
            _LOGGER.exception("an answer could not be handed over")


class ConvoyCollector:
    """Collects requests of one form for one model.

    A request for an idle model begins at once, unless the last round formed a convoy: its callers
    may send their next requests together again. The others wait for a round that brings none: a
    convoy costs the server as much as 20 requests that join it. A request that would wait for
    admission is alone.

    Args:
        engine: of the model.
        rows: samples of each request.
        routed: makes the engine's request of inputs with so many samples.
        successor: returns the replacement of a model that was loaded again; None: not replaced.
        written: makes the answers for the sinks from the arrays for all of them; None: the sinks
            get the engine's own form.
        stacked: joins the arrays of several requests' inputs.
    """

    def __init__(
        self,
        engine: Engine,
        rows: int,
        routed: Routed,
        successor: Callable[[Any], tuple[Begin, Routed] | None],
        written: Callable[[Arrays, Sequence[ResponseSink]], Sequence[Any] | None],
        stacked: Callable[[Sequence[Any]], Arrays],
    ) -> None:
        self._convoys = engine.executor.convoys
        self._begin = engine.begin
        self._routed = routed
        self._successor = successor
        self._written = written
        self._stacked = stacked
        self._size = 0  # bytes of one request's inputs
        self._enough = 0  # requests that wait for no more
        self._rows = rows
        self._waiting: list[ConvoyRequest] = []
        self._is_rush = False  # the last round formed a convoy

    @property
    def is_open(self) -> bool:
        """Return whether a request shall wait for others, by `add`."""
        if self._waiting or self._is_rush:
            return True
        return not self._convoys.is_idle and self._convoys.size(self._rows) > 1

    def add(self, request: ConvoyRequest) -> ConvoyRequest:
        """Have a request begin at the end of this round of the loop; return it."""
        self._waiting.append(request)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._begin_waiting)
        return request

    def _begin_waiting(self, known: int = 0, rounds: int = _MOST_ROUNDS) -> None:
        """Begin the requests that wait, unless this round brought more than `known` ones."""
        count = len(self._waiting)
        if rounds and known < count < self._enough:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._begin_waiting, count, rounds - 1)
            return
        waiting, self._waiting = self._waiting, []
        self._is_rush = False
        requests = [request for request in waiting if not request.is_over]
        try:
            self._begin_all(requests)
        except Exception as failure:  # a bug in this library: the clients get an answer
            _LOGGER.exception("requests could not be joined to a batch")
            failed = ChannelData(0, error=UserCodeError(described(failure)))
            for request in requests:
                request.end(failed)

    def _begin_all(self, requests: list[ConvoyRequest]) -> None:
        """Begin requests, together where they may; `requests` keeps the ones that are left."""
        successor = self._successor(requests[0].inputs) if requests else None
        while requests and successor is not None:
            self._alone(requests[0], *successor)
            del requests[0]
        while requests:
            count = self._count(requests)
            if count == 1:
                self.alone(requests[0])
            else:
                self._is_rush = True
                self._together(requests[:count])
            del requests[:count]

    def _count(self, requests: Sequence[ConvoyRequest]) -> int:
        """Return how many requests, from the first, form a convoy."""
        if not self._size:
            arrays = self._stacked([requests[0].inputs]).values()
            self._size = max(1, sum(array.nbytes for array in arrays))
        most = min(self._convoys.size(self._rows), SHORT_BYTES // self._size)
        self._enough = min(most, _ENOUGH)
        return max(1, min(most, len(requests)))

    def alone(self, request: ConvoyRequest) -> None:
        """Begin one request by itself."""
        self._alone(request, self._begin, self._routed)

    def _alone(self, request: ConvoyRequest, begin: Begin, routed: Routed) -> None:
        request.place = -1
        raw, target = routed(self._stacked([request.inputs]), request.rows)
        target = msgspec.structs.replace(target, info=request.info)
        try:
            handle = begin(raw, None, target, _Alone(request))
            if not request.is_over:
                request.handle = handle
        except PipelineError as error:
            request.end(ChannelData(0, error=error))

    def answers(
        self, answer: ChannelData, rows: list[int], requests: Sequence[ConvoyRequest]
    ) -> Any:
        """Return the answer for each request from the answer to all."""
        if type(answer.payload) is dict:
            written = self._written(answer.payload, [request.sink for request in requests])
            if written is not None:
                return written
        return [_answered(answer, outcome) for outcome in member_outcomes(answer.payload, rows)]

    def _together(self, requests: Sequence[ConvoyRequest]) -> None:
        first = requests[0]
        rows = [member.rows for member in requests]
        stack = self._stacked([member.inputs for member in requests])
        infos = [member.info for member in requests]
        if all(info is first.info for info in infos):
            infos = []
        convoy = Convoy(rows, infos)
        raw, target = self._routed(stack, sum(rows))
        target = msgspec.structs.replace(target, info=first.info, convoy=convoy)
        sink = _Together(self, convoy, requests)
        for place, request in enumerate(requests):
            request.place, request.handle = place, sink
        try:
            sink.began(self._begin(raw, None, target, sink))
        except PipelineError as error:
            sink.end(ChannelData(0, error=error))


class _Alone(UnarySink):
    """Sink of a request by itself."""

    __slots__ = ("_request",)

    def __init__(self, request: ConvoyRequest) -> None:
        self._request = request

    def end(self, answer: Any) -> None:
        self._request.end(answer)


class _Together(UnarySink):
    """Sink of a convoy."""

    __slots__ = ("_collector", "_convoy", "_handle", "_is_over", "_requests")

    def __init__(
        self, collector: ConvoyCollector, convoy: Convoy, requests: Sequence[ConvoyRequest]
    ) -> None:
        self._collector = collector
        self._convoy = convoy
        self._requests = requests
        self._handle: RequestHandle | None = None
        self._is_over = False

    def began(self, handle: RequestHandle) -> None:
        """Keep the handle until the convoy is over."""
        if not self._is_over:
            self._handle = handle

    def leave(self, place: int) -> None:
        """Drop one request, because its caller has left."""
        self._convoy.leave(place)
        if self._handle is not None and len(self._convoy.left) == len(self._convoy):
            self._handle.cancel()
            self._handle = None

    def end(self, answer: ChannelData) -> None:
        """Pass on the answers."""
        self._is_over, self._handle = True, None
        error = answer.error
        if error is not None and self._convoy.runs_again(error):
            for place, request in enumerate(self._requests):
                if isinstance(error, MemberLostError) and place == error.member:
                    request.end(ChannelData(answer.data_id, error=error.error))
                elif not request.is_over:
                    self._collector.alone(request)
            return
        if error is not None:
            for request in self._requests:
                request.end(answer)
            return
        try:
            answers = self._collector.answers(answer, self._convoy.rows, self._requests)
        except Exception as failure:  # a bug in this library, with a model's data
            _LOGGER.exception("the answers to a batch could not be split")
            failed = UserCodeError(described(failure))
            answers = [ChannelData(answer.data_id, error=failed)] * len(self._requests)
        for request, own_answer in zip(self._requests, answers, strict=True):
            if not request.is_over:
                request.end(own_answer)


def _answered(answer: ChannelData, outcome: Any) -> ChannelData:
    """Return the engine's form of the answer to one request of several."""
    payload = opened(outcome)
    if isinstance(payload, PipelineError):
        return ChannelData(answer.data_id, error=payload)
    return ChannelData(answer.data_id, payload=payload)


def can_stack(inputs: Arrays, rows: int) -> bool:
    """Return whether arrays of such a form can be joined: each has a row for each sample."""
    return bool(inputs) and all(
        value.shape[:1] == (rows,) and value.dtype.kind not in _OBJECTS for value in inputs.values()
    )
