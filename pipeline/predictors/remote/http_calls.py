"""HttpCalls: calls of predictors over HTTP on pooled connections; answers are whole or streamed."""

from __future__ import annotations

import contextlib
import random
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, NoReturn, TypeVar

from pipeline.errors import (
    ConfigError,
    DeadlineError,
    InputError,
    PipelineError,
    PredictorError,
    PredictorUnavailableError,
    one_line,
)
from pipeline.predictors.remote.pool import (
    LOOK_S,
    CannotConnectError,
    ConnectionLostError,
    OutOfTimeError,
    Pool,
    Servers,
    Waiting,
    has_ended,
    prepare,
)
from pipeline.proto.http import HttpReader, retry_after_s
from pipeline.proto.targets import host_and_port

MAX_ANSWER_BYTES = 256 * 2**20
"""Limit of one answer, and of one part of a stream; it is not configurable."""

_RECEIVED_BYTES = 65536
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.5, 60.0
_MOST_SAID = 1000  # characters of a server's error text
_LATER = (408, 429, 502, 503, 504)  # statuses after which a later attempt may succeed
_CALLERS = (400, 413, 422)  # statuses for faults of the caller
_FORM = re.compile(r"(?:(https?)://)?([^/?#@\s]+)(/[^?#\s]*)?", re.ASCII)
_Result = TypeVar("_Result")


class HttpTarget(NamedTuple):
    """A server, and the path prefix of its calls."""

    host: str
    port: int
    path: str
    is_tls: bool

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.path}"

    @property
    def authority(self) -> str:
        """Return the value of the header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _port_of(self.is_tls) else f"{host}:{self.port}"


def target_of(endpoint: str, path: str) -> HttpTarget:
    """Return the server of "http://host:port/path"; `path` is the default. Raises ConfigError."""
    form = _FORM.fullmatch(endpoint.strip())
    if form is None:  # the error does not show it: it may have a password
        raise ConfigError("an endpoint has to be http://host:port/v1 or https://host/v1")
    is_tls = form[1] == "https"
    has_port = form[1] is None or re.search(r":\d+$", form[2])
    address = form[2] if has_port else f"{form[2]}:{_port_of(is_tls)}"
    return HttpTarget(*host_and_port(address), (form[3] or path).rstrip("/"), is_tls)


def _port_of(is_tls: bool) -> int:
    return 443 if is_tls else 80


class UpstreamConnection:
    """A connection to a server; one caller uses it at a time."""

    def __init__(self, connected: socket.socket, tls: ssl.SSLContext | None, host: str) -> None:
        prepare(connected)
        connected.setblocking(False)
        self._tls: ssl.SSLSocket | None = None
        if tls is not None:
            connected = self._tls = tls.wrap_socket(
                connected, server_hostname=host, do_handshake_on_connect=False
            )
        self._socket: socket.socket = connected
        self.is_usable: bool = True
        self.has_answered: bool = False

    def has_ended(self) -> bool:
        """Return whether the server has closed an idle connection."""
        return has_ended(self._socket)

    def close(self) -> None:
        """Close the socket, which tells the server that no caller waits for an answer."""
        self._socket.close()

    def ask(self, request: bytes, reader: HttpReader, waiting: Waiting) -> None:
        """Send a request, and receive until the head of its answer is complete.

        Raises as `receive`.
        """
        self.is_usable = False
        if self._tls is not None and not self.has_answered:
            self._do(self._tls.do_handshake, select.POLLIN, waiting)
        rest = memoryview(request)
        try:
            while rest:
                sent = self._do(partial(self._socket.send, rest), select.POLLOUT, waiting)
                rest = rest[sent:]
        except ConnectionLostError:
            pass  # the server may have refused it before it read all; its answer says why
        while not reader.is_behind_head:
            self.receive(reader, waiting)

    def receive(self, reader: HttpReader, waiting: Waiting) -> None:
        """Receive once, and pass the bytes to the reader.

        Raises:
            ConnectionLostError: an answer ends early, or is not valid HTTP.
            OutOfTimeError, ClosedError: see `Waiting.left_s`.
        """
        waiting.left_s()  # a server may send endlessly
        data = self._do(partial(self._socket.recv, _RECEIVED_BYTES), select.POLLIN, waiting)
        try:
            reader.take(data)
            reader.check_size(reader.body)
        except PipelineError as error:  # its code would blame the caller or this library
            raise ConnectionLostError(str(error)) from None
        self.has_answered = self.has_answered or bool(data)
        self.is_usable = reader.keeps_open
        if not data and not reader.is_whole:
            raise ConnectionLostError("it closed the connection")

    def _do(self, work: Callable[[], _Result], event: int, waiting: Waiting) -> _Result:
        while True:
            try:
                return work()
            except ssl.SSLWantReadError:
                waiting.until(self._socket, select.POLLIN)
            except (ssl.SSLWantWriteError, BlockingIOError) as error:
                is_tls = isinstance(error, ssl.SSLError)
                waiting.until(self._socket, select.POLLOUT if is_tls else event)
            except OSError as error:
                raise ConnectionLostError(f"the connection broke: {error.strerror or error}") from (
                    None
                )


class UpstreamCall:
    """An answer in progress. `close` ends it, and also the server's work on it."""

    def __init__(
        self, calls: HttpCalls, index: int, connection: UpstreamConnection, reader: HttpReader
    ) -> None:
        self.reader: HttpReader = reader
        self.index: int = index
        self._calls = calls
        self._connection = connection

    def body(self, waiting: Waiting) -> bytes:
        """Return the whole body. Raises PipelineError."""
        while not self.reader.is_whole:
            self.receive(waiting)
        return bytes(self.reader.body)

    def receive(self, waiting: Waiting) -> None:
        """Receive more of the body. Raises PipelineError."""
        try:
            self._connection.receive(self.reader, waiting)
        except ConnectionLostError as error:
            self._calls.refuse(self.index, f"the answer was cut off: {error}")
        except OutOfTimeError:  # the server began its answer: it is slow, but not stuck
            raise self._calls.too_late(self.index) from None

    def finish(self) -> None:
        """Read the rest after the last part, if it has arrived, to keep the connection."""
        waiting = Waiting(time.monotonic() + LOOK_S)
        with contextlib.suppress(PipelineError, ConnectionLostError, OutOfTimeError):
            while not self.reader.is_whole:
                self._connection.receive(self.reader, waiting)

    def close(self) -> None:
        """Give the connection back, or close it."""
        self._calls.servers.pools[self.index].give_back(self._connection)


class _NotNowError(Exception):
    """An attempt failed; another may succeed, after `after_s` seconds, or at once if `is_free`."""

    def __init__(self, text: str, after_s: float | None = None, is_free: bool = False) -> None:
        super().__init__(text)
        self.after_s = after_s
        self.is_free = is_free


class HttpCalls:
    """Calls of one model at servers that all have it. Safe to use from many threads.

    Args:
        name: name of the model, for error texts.
        targets: the servers; they take turns.
        head: header lines of each request.
        retries: number of attempts after the first one.
        secret: a text that errors never show, whatever a server answers; "" without one.
    """

    def __init__(
        self, name: str, targets: Sequence[HttpTarget], head: bytes, retries: int, secret: str
    ) -> None:
        tls = ssl.create_default_context() if any(one.is_tls for one in targets) else None
        self.servers: Servers[UpstreamConnection] = Servers(
            name, targets, [_pool_of(target, tls) for target in targets]
        )
        self._name = name
        self._targets = targets
        self._head = head
        self._retries = retries
        self._secret = secret

    def begin(self, path: str, head: bytes, body: bytes, waiting: Waiting) -> UpstreamCall:
        """Send a request; return the answer, whose head has arrived and reports success.

        A server may get a request twice.

        Raises:
            PredictorUnavailableError: no server could be reached or accepts calls now.
            InputError, PredictorError: the server answered an error.
            DeadlineError: the time has passed.
            ClosedError: no caller waits for the answer any more.
        """
        tries = 0
        while True:
            waiting.check()
            index = self.servers.pick()
            assert index is not None, "there is a server"
            time_s = waiting.ends - time.monotonic()
            if time_s <= 0:  # no server is asked, so none is at fault
                raise self.too_late(index)
            try:
                return self._once(index, path, head, body, waiting)
            except OutOfTimeError:
                self.servers.timed_out(index, time_s)
                raise self.too_late(index) from None
            except _NotNowError as error:
                if error.is_free:
                    continue
                pause_s = error.after_s
                if pause_s is None:
                    pause_s = _FIRST_PAUSE_S * 2.0**tries * random.uniform(0.5, 1.0)
                others = len(self._targets) - self.servers.policy.count_down
                if error.after_s is None and others:
                    pause_s = 0.0  # ask another server
                tries += 1
                most_s = min(_MOST_PAUSE_S, waiting.ends - time.monotonic())
                if tries > self._retries or pause_s >= most_s:
                    raise PredictorUnavailableError(
                        f"[{self._name}] {self._targets[index]}: {error}"
                    ) from None
                with contextlib.suppress(OutOfTimeError):  # the next round raises it
                    waiting.pause(pause_s)

    def refuse(self, index: int, why: object) -> NoReturn:
        """Raise PredictorError: the answer cannot be used."""
        text = self.shown(str(why))
        raise PredictorError(f"[{self._name}] {self._targets[index]}: {text}")

    def too_late(self, index: int) -> DeadlineError:
        """Return the error of a call whose time has passed."""
        return DeadlineError(f"[{self._name}] {self._targets[index]} did not answer in time")

    def shown(self, text: str) -> str:
        """Return a server's text as one line without the secret."""
        return one_line(text.replace(self._secret, "***") if self._secret else text)

    def close(self) -> None:
        """Refuse new calls; calls in progress finish."""
        self.servers.close()

    def _once(
        self, index: int, path: str, head: bytes, body: bytes, waiting: Waiting
    ) -> UpstreamCall:
        target, pool = self._targets[index], self.servers.pools[index]
        try:
            connection = pool.take(waiting)
        except CannotConnectError as error:
            self._failed(index, str(error))
        was_idle = connection.has_answered
        reader = HttpReader(target, MAX_ANSWER_BYTES, "a remote model's answer may be")
        call = UpstreamCall(self, index, connection, reader)
        try:
            request = b"POST %b HTTP/1.1\r\nhost: %b\r\n%b%bcontent-length: %d\r\n\r\n%b" % (
                (target.path + path).encode(),
                target.authority.encode(),
                self._head,
                head,
                len(body),
                body,
            )
            connection.ask(request, call.reader, waiting)
            if call.reader.status >= 300:
                self._refuse_status(index, call, waiting)
        except ConnectionLostError as error:
            call.close()
            if was_idle and not call.reader.headers:  # the server had closed it
                raise _NotNowError(str(error), is_free=True) from None
            self._failed(index, str(error))
        except BaseException:
            call.close()
            raise
        self.servers.answered(index)
        return call

    def _failed(self, index: int, why: str) -> NoReturn:
        self.servers.failed(index, why)
        raise _NotNowError(why)

    def _refuse_status(self, index: int, call: UpstreamCall, waiting: Waiting) -> NoReturn:
        status = call.reader.status
        body = call.body(waiting)[:_RECEIVED_BYTES].decode("utf-8", "replace")
        text = f"answered {status}: {self.shown(body)[:_MOST_SAID]}"
        if status in _LATER:
            later = call.reader.headers.get("retry-after", "")
            raise _NotNowError(text, after_s=retry_after_s(later))
        kind: type[PipelineError] = InputError if status in _CALLERS else PredictorError
        raise kind(f"[{self._name}] {self._targets[index]} {text}")


def _pool_of(target: HttpTarget, tls: ssl.SSLContext | None) -> Pool[UpstreamConnection]:
    own = tls if target.is_tls else None
    return Pool(
        (target.host, target.port),
        lambda connected: UpstreamConnection(connected, own, target.host),
    )
