"""Sequences for clients: they set START and END, and keep the order of requests."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Literal, Protocol, Self, TypedDict, Unpack, overload

import grpc

from pipeline.client_answers import PipelinePredictFuture
from pipeline.errors import ClosedError, PipelineError
from pipeline.proto.messages import PipelineResponse

_ID, _START, _END = "sequence_id", "sequence_start", "sequence_end"
_END_TIMEOUT_S = 5.0
_NOT_SENT = (grpc.RpcError, PipelineError)

Id = int | str | None


class PredictOptions(TypedDict, total=False):
    """The other arguments of `PipelineClient.predict`."""

    pack_tensor_format: bool
    use_tensor_bytes: bool
    profile: bool
    log_id: int
    timeout: float | None


class _Client(Protocol):
    @property
    def predict(self) -> Callable[..., Any]: ...


class _SequenceBase:
    """The common part of both kinds: the sequence's fields, and its state.

    The first request has START, and so has the next one until one was answered without an error.

    Attributes:
        id: of the sequence.
    """

    def __init__(self, client: _Client, id: Id, close_client: Callable[[], Any] | None) -> None:
        if isinstance(id, bool) or not isinstance(id, int | str | None):
            raise TypeError(f"the id of a sequence must be int or str, but get {id!r}")
        if id is not None and not id:
            raise TypeError(f"the id of a sequence must not be {id!r}: that means no sequence")
        self.id: int | str = uuid.uuid4().hex if id is None else id
        self._client = client
        self._close_client = close_client
        self._is_over = False  # no further requests are accepted
        self._was_sent = self._is_known = self._has_ended = False

    def _check(self, feed_dict: object, end: bool) -> None:
        if self._is_over:
            raise ClosedError(f"the sequence {self.id!r} has ended: begin another one")
        if isinstance(feed_dict, dict):  # `predict` refuses other values
            for key in (_ID, _START, _END):
                if key in feed_dict:
                    raise TypeError(f"feed_dict[{key!r}] cannot be sent: the sequence sets it")
        self._is_over = end

    def _fed(self, feed_dict: Any, end: bool) -> Any:
        """Return a feed dict with the fields of the sequence; call it when its turn has come."""
        if not isinstance(feed_dict, dict):
            return feed_dict
        fields: dict[str, Any] = {_ID: str(self.id)}
        if not self._is_known:
            fields[_START] = "true"
        if end:
            fields[_END] = "true"
        self._was_sent = True
        return {**fields, **feed_dict}

    def _note(self, answer: PipelineResponse, end: bool) -> None:
        if answer.err_no == 0:
            self._is_known = True
            self._has_ended |= end

    def _end_alone(self) -> dict[str, Any] | None:
        """Return the request that only ends the sequence; None: it has ended, or never begun."""
        is_open = self._was_sent and not self._has_ended
        return {_ID: str(self.id), _END: "true"} if is_open else None


class PipelineSequence(_SequenceBase):
    """Requests of one sequence, which the server gets one after the other; a context manager.

    Leaving the block ends the sequence, after all its requests are answered. After an exception the
    running requests are cancelled first. A server that cannot be reached then ends it by itself,
    after `max_idle_ms`. Its Ops do not see such an end: send `end=True` with the last request if
    they need it.
    """

    def __init__(
        self, client: _Client, id: Id = None, close_client: Callable[[], None] | None = None
    ) -> None:
        super().__init__(client, id, close_client)
        self._line = _Line()
        self._calls: set[_QueuedPrediction] = set()
        self._is_closed = False

    @overload
    def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        *,
        asyn: Literal[False] = False,
        end: bool = False,
        **options: Unpack[PredictOptions],
    ) -> PipelineResponse: ...

    @overload
    def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        *,
        asyn: Literal[True],
        end: bool = False,
        **options: Unpack[PredictOptions],
    ) -> PipelinePredictFuture: ...

    def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        *,
        asyn: bool = False,
        end: bool = False,
        **options: Unpack[PredictOptions],
    ) -> PipelineResponse | PipelinePredictFuture:
        """Send the next request of the sequence, as `PipelineClient.predict` does.

        With `asyn` it returns at once, over gRPC; the request is sent when the one before it is
        answered, and its `timeout` begins then. `end` marks the last request: further ones raise
        ClosedError. Raises TypeError for keys that the sequence sets.
        """
        self._check(feed_dict, end)

        def send() -> Any:
            return self._client.predict(self._fed(feed_dict, end), fetch, asyn=asyn, **options)

        if asyn:
            call = _QueuedPrediction(self._line, send, lambda answer: self._note(answer, end))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            call.queue()
            return call
        with self._line.turn():
            answer: PipelineResponse = send()
            self._note(answer, end)
        return answer

    def close(self) -> None:
        """End the sequence, after its requests. May be called again."""
        self._close(None)

    def _close(self, patience_s: float | None) -> None:
        self._is_over = True
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with self._line.turn(patience_s):
                end = self._end_alone()
                if end is not None:
                    self._client.predict(end, timeout=_END_TIMEOUT_S)
        except _NOT_SENT:
            pass  # the server will find the sequence idle
        finally:
            if self._close_client is not None:
                self._close_client()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._close(None)
            return
        for call in list(self._calls):
            call.cancel()
        self._close(_END_TIMEOUT_S)


class AsyncPipelineSequence(_SequenceBase):
    """`PipelineSequence` for asyncio: `async with`, `await predict(...)`, `await close()`.

    Requests of several tasks are sent one after the other, in the order of their calls.
    """

    def __init__(
        self,
        client: _Client,
        id: Id = None,
        close_client: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(client, id, close_client)
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        *,
        end: bool = False,
        **options: Unpack[PredictOptions],
    ) -> PipelineResponse:
        """Send the next request of the sequence; see `PipelineSequence.predict`."""
        self._check(feed_dict, end)
        async with self._lock:
            answer: PipelineResponse = await self._client.predict(
                self._fed(feed_dict, end), fetch, **options
            )
            self._note(answer, end)
        return answer

    async def close(self) -> None:
        """End the sequence, after its requests. May be called again."""
        self._is_over = True
        if self._is_closed:
            return
        self._is_closed = True
        try:
            async with self._lock:
                end = self._end_alone()
                if end is not None:
                    await self._client.predict(end, timeout=_END_TIMEOUT_S)
        except _NOT_SENT:
            pass  # the server will find the sequence idle
        finally:
            if self._close_client is not None:
                await self._close_client()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


# The order of requests ------------------------------------------------------------------------


class _Line:
    """Turns, one at a time, in the order of the calls; for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], bool]] = deque()
        self._first: Callable[[], bool] | None = None

    def enter(self, begin: Callable[[], bool]) -> None:
        """Have `begin` called when its turn has come; it returns whether it takes the turn.

        The caller then calls `leave` in the end.
        """
        with self._lock:
            self._waiting.append(begin)
        self._go_on()

    def leave(self, begin: Callable[[], bool]) -> None:
        """Let the next one have its turn."""
        with self._lock:
            if self._first is begin:
                self._first = None
            elif begin in self._waiting:
                self._waiting.remove(begin)
        self._go_on()

    def _go_on(self) -> None:
        while True:
            with self._lock:
                if self._first is not None or not self._waiting:
                    return
                begin = self._first = self._waiting.popleft()
            if begin():
                return
            with self._lock:
                self._first = None

    @contextlib.contextmanager
    def turn(self, patience_s: float | None = None) -> Any:
        """Wait for a turn, and keep it during the block. Raises ClosedError after `patience_s`."""
        has_come = threading.Event()

        def begin() -> bool:
            has_come.set()
            return True

        self.enter(begin)
        try:
            if not has_come.wait(patience_s):
                raise ClosedError("other requests of the sequence have not ended")
            yield
        finally:
            self.leave(begin)


class _QueuedPrediction(PipelinePredictFuture):
    """The future answer of a request that waits until the requests before it are answered."""

    def __init__(
        self,
        line: _Line,
        send: Callable[[], PipelinePredictFuture],
        note: Callable[[PipelineResponse], None],
    ) -> None:
        self._line = line
        self._send = send
        self._note = note
        self._answer: Future[PipelineResponse] = Future()
        self._sent: PipelinePredictFuture | None = None
        self._begin = self._begun  # one object, which the line compares

    def queue(self) -> None:
        """Wait for a turn."""
        self._line.enter(self._begin)

    def _begun(self) -> bool:
        if not self._answer.set_running_or_notify_cancel():
            return False
        try:
            self._sent = self._send()
        except Exception as error:
            self._answer.set_exception(error)
            return False
        self._sent.add_done_callback(self._take)
        return True

    def _take(self, sent: PipelinePredictFuture) -> None:
        try:
            answer = sent.result()
            self._note(answer)
        except Exception as error:
            self._line.leave(self._begin)
            self._answer.set_exception(error)
        else:
            self._line.leave(self._begin)
            self._answer.set_result(answer)

    def result(self, timeout: float | None = None) -> PipelineResponse:
        """Wait for the answer; see `PipelinePredictFuture.result`."""
        try:
            return self._answer.result(timeout)
        except CancelledError:
            raise grpc.FutureCancelledError from None
        except TimeoutError:
            if self._answer.done():
                raise
            raise grpc.FutureTimeoutError from None

    def done(self) -> bool:
        return self._answer.done()

    def cancel(self) -> bool:
        """Cancel the request; one that is not sent yet is never sent."""
        if self._answer.cancel():
            return True
        return self._sent is not None and self._sent.cancel()

    def add_done_callback(self, callback: Callable[[PipelinePredictFuture], None]) -> None:
        """Call `callback` with this future, in a thread of gRPC, when it is done."""
        self._answer.add_done_callback(lambda _: callback(self))
