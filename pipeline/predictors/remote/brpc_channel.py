"""Calls of one method on several brpc servers: choice of the server, retries, and errors."""

from __future__ import annotations

import os
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
    BrpcConnection,
)
from pipeline.predictors.remote.pool import (
    CannotConnectError,
    ConnectionLostError,
    OutOfTimeError,
    Pool,
    Servers,
    Waiting,
)
from pipeline.proto.brpc.frames import (
    BrpcCode,
    BrpcTrace,
    FrameError,
    code_name,
    decompress,
    error_of,
    request_meta,
)
from pipeline.proto.brpc_meta_pb2 import RpcMeta
from pipeline.tracing.context import call_trace, child, parse_traceparent

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
        self._own = _forks, self._new_servers()

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
        reasons: list[str] = []
        useless: set[int] = set()
        attempts = len(servers.pools) + 1
        while attempts > 0:
            index = servers.pick(useless)
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
                    servers.failed(index, str(error))
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
                servers.failed(index)
        return problems

    def close(self) -> None:
        """Refuse new calls; calls in progress finish."""
        self._is_closed = True
        self._own[1].close()

    def _servers(self) -> Servers[BrpcConnection]:
        """Return the servers; a forked child makes its own, it must not use its parent's."""
        self._refuse_if_closed()
        before = made_at, servers = self._own
        if made_at == _forks:
            return servers
        for pool in servers.pools:
            pool.abandon()
        own = _forks, self._new_servers()  # without a lock, which a thread of the parent may hold
        if self._own is before:  # else another thread was first
            self._own = own
        return self._own[1]

    def _new_servers(self) -> Servers[BrpcConnection]:
        pools = [Pool(address, BrpcConnection) for address in self._addresses]
        return Servers(self._name, self._endpoints, pools)

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise ClosedError(f"[{self._name}] the predictor is closed")

    # One attempt

    def _ask(self, servers: Servers[BrpcConnection], index: int, question: _Question) -> Any:
        meta, body = self._call(servers.pools[index], question)
        try:
            answer = question.read(self._body(servers, index, meta, body))
        except (FrameError, DecodeError) as error:
            raise _ServerFailedError(f"it answers garbage: {error}") from error
        servers.answered(index)
        return answer

    def _body(
        self, servers: Servers[BrpcConnection], index: int, meta: RpcMeta, body: bytes | memoryview
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
            return connection.ask(self._meta(question), question.body, question.waiting)
        except ConnectionLostError as error:
            raise _ServerFailedError(str(error), is_healthy=was_idle) from error
        except FrameError as error:
            raise InputError(f"[{self._name}] the request is too large: {error}") from error
        finally:
            pool.give_back(connection)

    def _meta(self, question: _Question) -> RpcMeta:
        time_s = min(question.waiting.ends - time.monotonic(), _MAX_WAIT_S)
        time_ms = max(int(time_s * 1000), 1)
        trace = _trace_of_call(call_trace(), self._name)
        log_id = question.log_id
        return request_meta(self._method, 0, log_id=log_id, timeout_ms=time_ms, trace=trace)

    def _refuse_code(
        self, servers: Servers[BrpcConnection], index: int, code: int, text: str
    ) -> NoReturn:
        reason = f"{code_name(code)}: {text[:_MAX_SHOWN_CHARACTERS]}"
        if code in _NOT_NOW:
            is_healthy = code != BrpcCode.LOGOFF
            raise _ServerFailedError(f"it refuses: {reason}", is_final=True, is_healthy=is_healthy)
        servers.answered(index)
        kind = DeadlineError if code == BrpcCode.TIMED_OUT else PredictorError
        raise kind(f"[{self._name}] the server at {self._endpoints[index]} answered error {reason}")

    def _refuse_late(
        self, servers: Servers[BrpcConnection], index: int, time_s: float, reasons: Sequence[str]
    ) -> NoReturn:
        servers.timed_out(index, time_s)
        before = f" (before, {_joined(reasons)})" if reasons else ""
        raise DeadlineError(
            f"[{self._name}] no answer from the server at {self._endpoints[index]} "
            f"within {time_s:.3g} s{before}"
        ) from None


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
