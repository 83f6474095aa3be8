"""GrpcCalls: calls of predictors over gRPC, with retries, and errors by class."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from pipeline.data import RequestContext
from pipeline.errors import (
    ClosedError,
    ConfigError,
    DeadlineError,
    InitError,
    PipelineError,
    PredictorError,
    PredictorUnavailableError,
    one_line,
)
from pipeline.predictors.remote.base import Ask, RemoteModel, waiting_of
from pipeline.predictors.remote.pool import LOOK_S, Waiting
from pipeline.proto.channels import channel_options, close_at_exit
from pipeline.proto.proxies import proxy_hint
from pipeline.proto.targets import Address, grpc_target
from pipeline.tracing.context import call_metadata

_LOGGER = logging.getLogger(__name__)

_STARTUP_PROBE_S = 2.0  # wait for servers at start, before a warning that none answers
_HEALTH_PATH = "/grpc.health.v1.Health/Check"
_NOT_THERE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

Method = Callable[[bytes, float, Waiting], bytes]
"""A method of the peer: (request, seconds, limits of the call) -> response, both serialised."""


class GrpcCalls:
    """Calls to the servers of one model, over one channel to all of them.

    Messages are serialised, because gRPC would log an answer that cannot be parsed with a
    traceback. The channel is closed when the last call in progress has ended. `peer` is the
    server's address, if there is only one.

    Raises InitError: an endpoint cannot be called, such as "localhost" without a port.
    """

    def __init__(self, model: RemoteModel) -> None:
        self.peer: Address | None
        try:
            target, self.peer = grpc_target(model.endpoints)
        except (ConfigError, TypeError) as error:
            raise InitError(f"op.{model.name}.server_endpoints: {error}") from error
        self._name = model.name
        self._timeout_s = model.timeout_s
        self._attempts = len(model.endpoints) + 1
        self._endpoints = ", ".join(model.endpoints)
        word = "the server at" if len(model.endpoints) == 1 else "one of the servers at"
        self._peer = f"{word} {self._endpoints}"
        options = channel_options(endpoints=model.endpoints)
        self._channel = grpc.insecure_channel(target, options=options)
        self._hosts = model.endpoints
        close_at_exit(self._channel)
        self._lock = threading.Lock()
        self._under_way = 0
        self._is_closed = False

    def method(self, path: str, waits: bool = False) -> Method:
        """Return the method at `path`; with `waits` it waits until a server is up.

        The call's metadata carry the trace of the running request.
        """
        call: Any = self._channel.unary_unary(path)
        waits_for = True if waits else None  # None: the channel's default

        def ask(request: bytes, time_s: float, waiting: Waiting) -> Any:
            given = {"wait_for_ready": waits_for, "metadata": call_metadata()}
            if waiting.is_cancelled is None:
                return call(request, timeout=time_s, **given)
            return _watched(call.future(request, timeout=time_s, **given), waiting)

        return ask

    def warn_if_down(self) -> None:
        """Connect before the first call; log a warning if no server is there."""
        try:
            self.method(_HEALTH_PATH)(b"", _STARTUP_PROBE_S, Waiting(math.inf))
        except grpc.RpcError as error:
            if (
                _code(error) in _NOT_THERE
            ):  # otherwise it answered, for example that it lacks the method
                _LOGGER.warning(
                    "[%s] no server is available at %s yet, calls fail until one is: %s",
                    self._name,
                    self._endpoints,
                    self._why(error),
                )

    def asker(self, path: str, read: Callable[[bytes], Any]) -> Ask:
        """Return a caller of the method at `path`, for a RemotePredictor; see `run`.

        `read` reads an answer; it raises DecodeError.
        """
        method = self.method(path)

        def ask(
            body: bytes, log_id: int, deadline_s: float | None, context: Sequence[RequestContext]
        ) -> Any:
            answer = self.run(method, body, deadline_s, context)
            try:
                return read(answer)
            except DecodeError as error:
                self.refuse_answer(error)

        return ask

    def run(
        self,
        method: Method,
        request: bytes,
        deadline_s: float | None = None,
        context: Sequence[RequestContext] = (),
    ) -> bytes:
        """Return the answer of a method; see `RemotePredictor.predict`.

        If the servers cannot be reached or the connection is lost, the call is repeated at once, at
        most once for each endpoint and once more. gRPC sends it to another connected server, and
        refuses it at once if there is none. So a server may get a request twice.

        Raises:
            PredictorUnavailableError: no server could be reached or accepts calls now.
            PredictorError: the server answered an error.
            DeadlineError: the time has passed.
            ClosedError: `close` was called, or no caller waits for the answer any more.
        """
        with self._lock:
            if self._is_closed:
                raise ClosedError(f"[{self._name}] the predictor is closed")
            self._under_way += 1
        try:
            waiting = waiting_of(context, deadline_s, self._timeout_s)
            for attempts_left in reversed(range(self._attempts)):
                time_s = waiting.ends - time.monotonic()
                try:
                    return method(request, time_s, waiting)
                except grpc.RpcError as error:
                    is_final = not attempts_left or time.monotonic() >= waiting.ends
                    if is_final or _code(error) is not grpc.StatusCode.UNAVAILABLE:
                        raise self._named(error, time_s) from error
            raise AssertionError("the last attempt returns or raises")
        finally:
            with self._lock:
                self._under_way -= 1
                is_last = self._is_closed and not self._under_way
            if is_last:
                self._channel.close()

    def refuse_answer(self, why: object) -> NoReturn:
        """Raise PredictorError: the answer violates the protocol, or does not fit the call."""
        raise PredictorError(f"[{self._name}] the answer of {self._peer} cannot be used: {why}")

    def close(self) -> None:
        """Refuse new calls; close when the calls in progress have ended."""
        with self._lock:
            self._is_closed = True
            is_last = not self._under_way
        if is_last:
            self._channel.close()

    def _why(self, error: grpc.RpcError) -> str:
        """Return why a server cannot be reached, with the proxy that gRPC used."""
        return " ".join(filter(None, (brief(error), proxy_hint(self._hosts))))

    def _named(self, error: grpc.RpcError, time_s: float) -> PipelineError:
        """Return gRPC's error as a PipelineError."""
        code, text = _code(error), brief(error)
        if code is grpc.StatusCode.UNAVAILABLE:
            return PredictorUnavailableError(
                f"[{self._name}] no server is available at {self._endpoints}: {self._why(error)}"
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineError(
                f"[{self._name}] no answer from {self._endpoints} within {time_s:.3g} s"
            )
        # Busy, unless the code has its other meaning: a message that is too large.
        is_busy = code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" not in text
        kind = PredictorUnavailableError if is_busy else PredictorError
        return kind(f"[{self._name}] {self._peer} answered {code.name}: {text}")


def brief(error: grpc.RpcError) -> str:
    """Return the details of an error in a line that is short enough for an answer."""
    return one_line(str(error.details()))


def _watched(call: Any, waiting: Waiting) -> Any:
    """Return the answer of a call; cancel the call when no caller waits for it any more."""
    try:
        while True:
            waiting.check()
            with contextlib.suppress(grpc.FutureTimeoutError):
                return call.result(timeout=LOOK_S)
    finally:
        call.cancel()  # without effect on an ended call


def _code(error: grpc.RpcError) -> grpc.StatusCode:
    code: grpc.StatusCode = error.code()
    return code
