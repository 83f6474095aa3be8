"""Calls of one method on several brpc servers: choice of the server, retries, and errors."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from google.protobuf.message import DecodeError
from msgspec import Struct

from pipeline.errors import (
    ClosedError,
    DeadlineError,
    InputError,
    PredictorError,
    PredictorUnavailableError,
)
from pipeline.predictors.remote.brpc_connection import (
    MAX_ANSWER_BYTES,
    WENT_WELL,
    BrpcConnection,
)
from pipeline.predictors.remote.pool import (
    CannotConnectError,
    ConnectionLostError,
    EndpointPolicy,
    OutOfTimeError,
    Pool,
    Waiting,
)
from pipeline.proto.brpc.frames import (
    BrpcCode,
    BrpcTrace,
    FrameError,
    code_name,
    decompress,
    error_of,
    repeat_meta,
    request_meta,
)
from pipeline.proto.brpc_meta_pb2 import RpcMeta
from pipeline.tracing.context import call_trace, child, parse_traceparent

_LOGGER = logging.getLogger(__name__)
_MAX_SHOWN_CHARACTERS = 400
_MAX_WAIT_S = 1e6  # sent to a server; the field holds at most 2^31 ms
_forks = 0  # number of forks between the first process and this one


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)

Read = Callable[[bytes | memoryview], Any]
"""Reads the body of an answer; raises DecodeError if it is not such a message."""

# Codes of a server that did not process the request: another server may.
_NOT_NOW = frozenset(
    {
        BrpcCode.TOO_MANY_FAILS,
        BrpcCode.FAILED_SOCKET,
        BrpcCode.OVERCROWDED,
        BrpcCode.EOF,
        BrpcCode.LOGOFF,
        BrpcCode.LIMIT,
    }
)


class _ServerFailedError(Exception):
    """A server gave no answer, for the reason in the text; another server may.

    Args:
        is_final: whether this request need not ask it again.
        is_healthy: whether the server may be well: it is busy, or only an old connection ended.
    """

    def __init__(self, text: str, *, is_final: bool = False, is_healthy: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final
        self.is_healthy = is_healthy


class _Question(Struct, frozen=True, gc=False):
    body: bytes
    log_id: int
    waiting: Waiting
    read: Read


class _Servers:
    """The state of a channel. A forked child makes its own; it must not use its parent's."""

    def __init__(self, addresses: Sequence[tuple[str, int]]) -> None:
        self.forks = _forks
        self.pools = [Pool(address, BrpcConnection) for address in addresses]
        self.policy = EndpointPolicy(len(addresses))
        self.lock = threading.Lock()  # of the policy


class BrpcChannel:
    """Asks one of several equivalent servers. Safe to use from many threads.

    `name` and `endpoints`, one for each of `addresses`, are for error texts; `method` is one of the
    general model service.
    """

    def __init__(
        self,
        name: str,
        endpoints: Sequence[str],
        addresses: Sequence[tuple[str, int]],
        method: str = "inference",
    ) -> None:
        self._name = name
        self._endpoints = endpoints
        self._addresses = addresses
        self._method = method
        self._is_closed = False
        self._own = _Servers(addresses)

    def ask(self, body: bytes, log_id: int, waiting: Waiting, read: Read) -> Any:
        """Return the answer to a request; it may reach several servers, or one server twice.

        Raises:
            PredictorUnavailableError: no server could be reached or accepts calls now, or their
                answers cannot be read.
            PredictorError: the server answered an error.
            DeadlineError: there was no answer in time.
            ClosedError: `close` was called, or no caller waits for the answer any more.
        """
        question = _Question(body, log_id, waiting, read)
        servers = self._servers()
        if servers.policy.count_down:
            self._probe_due(servers)
        reasons: list[str] = []
        useless: set[int] = set()
        attempts = len(servers.pools) + 1
        while attempts > 0:
            with servers.lock:
                index = servers.policy.pick(useless)
            if index is None:
                break
            time_s = waiting.ends - time.monotonic()
            try:
                return self._ask(servers, index, question)
            except OutOfTimeError:
                self._refuse_late(servers, index, time_s, reasons)
            except _ServerFailedError as error:
                # Ended connections do not count: their number is limited.
                attempts -= 0 if error.is_healthy and not error.is_final else 1
                if error.is_final:
                    useless.add(index)
                if not error.is_healthy:
                    with servers.lock:
                        was_well = servers.policy.failed(index)
                    if was_well:
                        self._log_left_out(index, str(error))
                reasons.append(f"{self._endpoints[index]}: {error}")
        self._refuse_if_closed()
        raise PredictorUnavailableError(f"[{self._name}] no server answers: {_joined(reasons)}")

    def connect(self, time_s: float) -> list[str]:
        """Connect to each server; return the problems of unreachable servers."""
        servers = self._servers()
        problems = []
        for index, pool in enumerate(servers.pools):
            try:
                pool.give_back(pool.take(Waiting(time.monotonic() + time_s)))
            except (CannotConnectError, OutOfTimeError) as error:
                problems.append(f"{self._endpoints[index]}: {error}")
                with servers.lock:
                    servers.policy.failed(index)
        return problems

    def close(self) -> None:
        """Refuse new calls; calls in progress finish."""
        self._is_closed = True
        for pool in self._own.pools:
            pool.close()

    def _servers(self) -> _Servers:
        self._refuse_if_closed()
        servers = self._own
        if servers.forks != _forks:
            for pool in servers.pools:
                pool.abandon()
            self._own = servers = _Servers(self._addresses)
        return servers

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise ClosedError(f"[{self._name}] the predictor is closed")

    # One attempt

    def _ask(self, servers: _Servers, index: int, question: _Question) -> Any:
        meta, body = self._call(servers.pools[index], question)
        try:
            if meta is not WENT_WELL:
                body = self._body(servers, index, meta, body)
            answer = question.read(body)
        except (FrameError, DecodeError) as error:
            raise _ServerFailedError(f"it answers garbage: {error}") from error
        if not servers.policy.all_are_well:
            self._note_answer(servers, index)
        return answer

    def _body(
        self, servers: _Servers, index: int, meta: RpcMeta, body: bytes | memoryview
    ) -> bytes | memoryview:
        """Return the body as the server wrote it. Raises as `_ask`, and FrameError."""
        if meta.response.error_code:
            self._refuse_code(servers, index, *error_of(meta))
        if meta.HasField("request"):
            raise FrameError("a request, where an answer should be")
        if meta.compress_type:
            return decompress(meta.compress_type, body, MAX_ANSWER_BYTES)
        return body

    def _call(
        self, pool: Pool[BrpcConnection], question: _Question
    ) -> tuple[RpcMeta, bytes | memoryview]:
        try:
            connection = pool.take(question.waiting)
        except CannotConnectError as error:
            raise _ServerFailedError(str(error), is_final=True) from error
        was_idle = connection.has_answered
        try:
            meta = self._meta(connection, question)
            return connection.ask(meta, question.body, question.waiting)
        except ConnectionLostError as error:
            raise _ServerFailedError(str(error), is_healthy=was_idle) from error
        except FrameError as error:
            raise InputError(f"[{self._name}] the request is too large: {error}") from error
        finally:
            pool.give_back(connection)

    def _meta(self, connection: BrpcConnection, question: _Question) -> RpcMeta:
        log_id = question.log_id
        time_s = min(question.waiting.ends - time.monotonic(), _MAX_WAIT_S)
        time_ms = max(int(time_s * 1000), 1)
        trace = call_trace()
        if trace and (known := _trace_of_call(trace, self._name)) is not None:
            return request_meta(self._method, 0, log_id=log_id, timeout_ms=time_ms, trace=known)
        if connection.meta is None:
            connection.meta = request_meta(self._method, 0)
        repeat_meta(connection.meta, log_id=log_id, timeout_ms=time_ms)
        return connection.meta

    def _refuse_code(self, servers: _Servers, index: int, code: int, text: str) -> NoReturn:
        reason = f"{code_name(code)}: {text[:_MAX_SHOWN_CHARACTERS]}"
        if code in _NOT_NOW:
            is_healthy = code != BrpcCode.LOGOFF
            raise _ServerFailedError(f"it refuses: {reason}", is_final=True, is_healthy=is_healthy)
        self._note_answer(servers, index)
        kind = DeadlineError if code == BrpcCode.TIMED_OUT else PredictorError
        raise kind(f"[{self._name}] the server at {self._endpoints[index]} answered error {reason}")

    def _refuse_late(
        self, servers: _Servers, index: int, time_s: float, reasons: Sequence[str]
    ) -> NoReturn:
        with servers.lock:  # a call without time at its start says nothing about the server
            hangs = time_s > 0 and servers.policy.timed_out(index, time_s)
        if hangs:  # its host may be down: the open connections are useless
            servers.pools[index].retire_all()
            self._log_left_out(index, "several calls in a row got no answer")
        before = f" (before, {_joined(reasons)})" if reasons else ""
        raise DeadlineError(
            f"[{self._name}] no answer from the server at {self._endpoints[index]} "
            f"within {time_s:.3g} s{before}"
        ) from None

    # Health

    def _probe_due(self, servers: _Servers) -> None:
        with servers.lock:
            due = servers.policy.due()
        for index in due:
            is_back = servers.pools[index].probe()
            if is_back:
                self._note_answer(servers, index)
            elif is_back is not None:
                with servers.lock:
                    servers.policy.failed(index)

    def _note_answer(self, servers: _Servers, index: int) -> None:
        with servers.lock:
            is_back = servers.policy.answered(index)
        if is_back and len(self._endpoints) > 1:
            _LOGGER.info("[%s] %s is asked again", self._name, self._endpoints[index])

    def _log_left_out(self, index: int, why: str) -> None:
        """Log it if other servers take over, so that an operator notices."""
        if len(self._endpoints) > 1:
            _LOGGER.warning("[%s] %s is left out: %s", self._name, self._endpoints[index], why)


def _trace_of_call(trace: str, name: str) -> BrpcTrace | None:
    """Return a `traceparent` in brpc's form; None if it is not recorded, which brpc cannot express.

    A server uses the span's id for its own span, so the call gets a child span's id.
    """
    caller = parse_traceparent(trace)
    if caller is None or not caller.is_sampled:
        return None
    called = parse_traceparent(child(trace, name, "brpc"))
    assert called is not None, "it is ours"
    return BrpcTrace(caller.trace_id, called.span_id, caller.span_id)


def _joined(reasons: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(reasons))
