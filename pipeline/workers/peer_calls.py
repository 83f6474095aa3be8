"""Calls between models, on the loop of their server; and LoopCaller, for its threads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pipeline.data import ChannelData
from pipeline.engine.model_calls import (
    MetricHolder,
    MetricUse,
    ModelChange,
    ModelHost,
    ModelPart,
    OnPart,
    PeerCall,
)
from pipeline.engine.request import SinkBase, StreamHandle
from pipeline.errors import ClosedError, PipelineError, UserCodeError, described, with_text

_LOGGER = logging.getLogger(__name__)

_CHECK_S = 5.0  # as in Triton


class PeerSink(SinkBase):
    """Sink of one request to a model; `answered` gets each answer, and whether it is the last.

    Attributes:
        handle: the request, until it is over.
        is_over: whether no more answers come.
    """

    is_ours: ClassVar[bool] = True

    def __init__(
        self, takes_parts: bool, answered: Callable[[ChannelData | None, bool], None]
    ) -> None:
        self.takes_parts: bool = takes_parts
        self.handle: StreamHandle | None = None
        self.is_over: bool = False
        self._answered = answered

    def begin(self, models: ModelHost, call: PeerCall, feeds: dict[str, Any]) -> None:
        """Call a model; if that is impossible, the error is an answer, with Triton's text."""
        try:
            handle = models.begin(call, feeds, self)
        except Exception as error:  # our own, or of a plug-in, on some data
            self.is_over = True
            self._answered(ChannelData(0, error=refused(call.model, error)), True)
        else:
            self.handle = None if self.is_over else handle

    def add(self, answers: Sequence[Any]) -> None:
        for answer in answers:
            if not self.is_over:
                self._answered(answer, False)

    def end(self, answer: Any) -> None:
        self.is_over = True
        self.handle = None  # each refers to the other: only the gc could free them
        self._answered(answer, True)

    def took_part(self) -> None:
        """Note that one of several answers was taken."""
        if self.handle is not None:
            self.handle.took_part()

    def abandon(self) -> None:
        """Drop the request: nobody waits for it."""
        handle, self.handle = self.handle, None
        self.is_over = True
        if handle is not None:
            handle.cancel()


def refused(model: str, error: Exception) -> PipelineError:
    """Return the error of a call that could not begin, with Triton's text."""
    if not isinstance(error, PipelineError):
        _LOGGER.error("model '%s' could not be called", model, exc_info=error)
    error = failure_of(error)
    return with_text(error, f"Model {model} - Error when running inference: {error}")


def failure_of(error: Exception) -> PipelineError:
    """Return an exception as the error of a call."""
    return error if isinstance(error, PipelineError) else UserCodeError(described(error))


def untraced(error: Exception) -> PipelineError:
    """Return the same without its traceback, which keeps the arguments of the failed call."""
    failure = failure_of(error)
    return with_text(failure, str(failure))


def begin_check(work: Callable[[], None]) -> None:
    """Call a model's check in a thread of its own: it may hang."""
    threading.Thread(target=work, name="pipeline-check", daemon=True).start()


async def changed(models: ModelHost, change: ModelChange) -> ModelPart:
    try:
        return ModelPart(is_ready=await models.change(change))
    except PipelineError as error:
        return ModelPart(error=untraced(error))
    except Exception as error:
        _LOGGER.exception("model '%s' could not be changed", change.model)
        return ModelPart(error=untraced(error))


def used(metrics: MetricHolder, use: MetricUse) -> ModelPart:
    try:
        return ModelPart(value=metrics.use(use))
    except PipelineError as error:
        return ModelPart(error=error)


class ModelCheck:
    """A model's own check of its readiness: one call at a time, whose result all callers get.

    Args:
        begin: calls the check, somewhere; `answered` gets the result on the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, begin: Callable[[], None]) -> None:
        self._loop = loop
        self._begin = begin
        self._result: asyncio.Future[bool] | None = None

    async def is_ready(self) -> bool:
        """Return whether the model is ready; False if it has not answered in time."""
        if self._result is None:
            try:
                self._begin()
            except Exception as error:  # for example no thread could be started
                _LOGGER.warning("the check of a model's readiness cannot begin: %s", error)
                return False
            self._result = self._loop.create_future()
        done, _ = await asyncio.wait([self._result], timeout=_CHECK_S)
        return any(result.result() for result in done)

    def answered(self, is_ready: bool) -> None:
        """Take the result of the call, or False if it will never end."""
        if self._result is not None:
            self._result.set_result(is_ready)
            self._result = None


class LoopCaller:
    """The models of the server, for threads of its own process; see `ModelCaller`.

    Attributes:
        check: of the model that runs in these threads; None: it has none.
    """

    check: ModelCheck | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop, models: ModelHost) -> None:
        self._loop = loop
        self._models = models
        self._tasks: set[asyncio.Task[None]] = set()
        self._metrics = models.metrics()

    def begin(self, call: PeerCall, feeds: Mapping[str, Any], on_part: OnPart) -> _Begun:
        """Call a model. Raises ClosedError: the server has ended."""

        def answered(answer: ChannelData | None, is_final: bool) -> None:
            error = None if answer is None else answer.error
            outputs = None if answer is None or error is not None else answer.payload
            on_part(ModelPart(outputs, error, is_final))

        begun = _Begun(self, PeerSink(call.takes_parts, answered))
        self.soon(begun.sink.begin, self._models, call, dict(feeds))
        return begun

    def change(self, change: ModelChange, on_part: OnPart) -> None:
        """Have a model loaded or unloaded. Raises ClosedError: the server has ended."""

        async def work() -> None:
            on_part(await changed(self._models, change))

        def begin() -> None:
            task = self._loop.create_task(work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self.soon(begin)

    def metric(self, use: MetricUse, on_part: OnPart | None) -> None:
        """Use a metric. Raises ClosedError: the server has ended."""

        def work() -> None:
            metric = used(self._metrics, use)
            if on_part is not None:
                on_part(metric)

        self.soon(work)

    def drop_metrics(self, use: MetricUse) -> None:
        with contextlib.suppress(ClosedError):
            self.metric(use, None)

    def offer_check(self, check: Callable[[], bool]) -> None:
        def work() -> None:
            with contextlib.suppress(ClosedError):
                self.soon(own.answered, check())

        own = self.check = ModelCheck(self._loop, lambda: begin_check(work))

    def soon(self, work: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the loop. Raises ClosedError: the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(work, *arguments)
        except RuntimeError as error:
            raise ClosedError("the server has gone") from error


class _Begun:
    """A call that has begun; see `PendingCall`."""

    def __init__(self, caller: LoopCaller, sink: PeerSink) -> None:
        self.sink: PeerSink = sink
        self._caller = caller

    def cancel(self) -> None:
        self._caller.soon(self.sink.abandon)

    def took_part(self) -> None:
        self._caller.soon(self.sink.took_part)
