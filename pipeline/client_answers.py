"""Answers that a client waits for: futures, and answers in parts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Self

import grpc

from pipeline.errors import PipelineError
from pipeline.proto.messages import PROFILE_KEY, CallOptions, PipelineResponse, cut_answer
from pipeline.proto.pipeline_service_pb2 import Response


class PipelinePredictFuture:
    """The future answer of `predict(..., asyn=True)`."""

    def __init__(self, call: Any, options: CallOptions) -> None:
        self._call = call
        self._options = options
        self._has_shown_profile = False

    def result(self, timeout: float | None = None) -> PipelineResponse:
        """Wait for the answer, at most `timeout` seconds.

        Raises grpc.FutureTimeoutError after that time, grpc.FutureCancelledError after `cancel`,
        and grpc.RpcError when the call failed.
        """
        answer = self._call.result(timeout)
        if not self._has_shown_profile:
            self._has_shown_profile = True
            show_profile(answer, self._options)
        return cut_answer(answer, self._options)

    def done(self) -> bool:
        return bool(self._call.done())

    def cancel(self) -> bool:
        return bool(self._call.cancel())

    def add_done_callback(self, callback: Callable[[PipelinePredictFuture], None]) -> None:
        """Call `callback` with this future, in a thread of gRPC, when it is done."""
        self._call.add_done_callback(lambda _: callback(self))


class PipelineStream:
    """The parts of an answer, from `predict_stream`: an iterator, and a context manager.

    The iteration ends after the last part. An error of the application is a last part, with its
    `err_no`; grpc.RpcError is raised when the call failed, over HTTP PipelineError. A slow reader
    makes the server wait. One thread reads; another one may close it.
    """

    def __init__(self, call: Any, options: CallOptions) -> None:
        self._call = call
        self._options = options
        self._is_closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PipelineResponse:
        if self._is_closed:
            raise StopIteration
        try:
            answer = next(self._call)
        except (grpc.RpcError, PipelineError):
            if self._is_closed:  # meanwhile
                raise StopIteration from None
            raise
        show_profile(answer, self._options)
        return cut_answer(answer, self._options)

    def close(self) -> None:
        """Cancel the call, unless it has ended: no part follows, and the server makes no more."""
        self._is_closed = True
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncPipelineStream:
    """`PipelineStream` for asyncio: `async for`, `async with`, `await close()`."""

    def __init__(self, call: Any, options: CallOptions) -> None:
        self._call = call
        self._options = options
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PipelineResponse:
        if self._is_closed:
            raise StopAsyncIteration
        try:
            answer = await self._call.read()
        except (asyncio.CancelledError, PipelineError):
            task = asyncio.current_task()
            if not self._is_closed or task is None or task.cancelling():
                raise
            raise StopAsyncIteration from None  # another task has closed it meanwhile
        if not isinstance(answer, Response):  # the end, in gRPC's form or HTTP's
            raise StopAsyncIteration
        show_profile(answer, self._options)
        return cut_answer(answer, self._options)

    async def close(self) -> None:
        """Cancel the call, unless it has ended: no part follows, and the server makes no more."""
        self._is_closed = True
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def show_profile(answer: Response, options: CallOptions) -> None:
    """Write the requested profile to stdout, for a file that `Analyst` reads.

    A server may return the request's own pair, "1", which is not a profile.
    """
    if options.profile and sys.stdout is not None:  # None: a program without a console
        for key, value in zip(answer.key, answer.value, strict=False):
            if key == PROFILE_KEY and "PROFILE" in value:
                sys.stdout.write(value if value.endswith("\n") else value + "\n")
