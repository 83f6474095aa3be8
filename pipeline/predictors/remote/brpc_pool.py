"""The connections to one brpc server: opened when they are needed, shared when there are many."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable

from pipeline.predictors.remote.brpc_connection import BrpcCall, BrpcConnection, OutOfTimeError

MAX_CONNECTIONS = 32
"""To one server. So many callers at a time have one to themselves, which costs half the CPU time of
a shared one: nobody has to wake anybody. More callers share them."""

CONNECT_TIMEOUT_S = 3.0
"""Limit for a connection that a call needs."""

_SPARE_CONNECT_S = 0.25  # limit for one that only makes things quicker, and
_RETRY_PAUSE_S = 1.0  # for so long no other is tried when it failed
_PROBE_TIMEOUT_S = 1.0


class CannotConnectError(Exception):
    """There is no connection to the server; the text says why, but not whose it is."""


class BrpcPool:
    """Opens connections to one address, which is looked up anew for each.

    Args:
        address: host and port.
        max_connections: to open.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        address: tuple[str, int],
        max_connections: int = MAX_CONNECTIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._max_connections = max_connections
        self._clock = clock
        self._probe_lock = threading.Lock()
        self._probe: _Attempt | None = None
        self._lock = threading.Lock()  # of all below
        self._changed = threading.Condition(self._lock)
        self._connections: list[BrpcConnection] = []
        self._dialling = 0
        self._failures = 0
        self._last_failure = ""
        self._no_more_until = 0.0
        self._is_closed = False

    def take(self, deadline: float) -> BrpcCall:
        """Return a place on a connection.

        On an idle one if there is any; else on a new one; else, when there are enough, on the one
        with the fewest callers, those last on which a frame is just going out.

        Raises:
            CannotConnectError: none is open, and none can be opened.
            OutOfTimeError: the deadline passed meanwhile.
        """
        with self._lock:
            found = self._idle() or self._wait_for_room(deadline)
            if found is not None:
                return found
            self._dialling += 1
            is_needed = not self._connections
        return self._open(deadline, is_needed)

    def retire_all(self) -> None:
        """Open new connections from now on; calls under way finish on the old ones."""
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.retire()

    def abandon(self) -> None:
        """Close in a forked child, where threads of the parent may hold the locks."""
        for connection in self._connections:
            connection.abandon()
        self._end_probe()

    def probe(self) -> bool | None:
        """Return whether the server can be connected to; None: not known yet, ask again later.

        It never waits (but for the look-up of a name). What it opened is there for `take`.
        """
        if not self._probe_lock.acquire(blocking=False):
            return None  # another caller is at it
        try:
            return self._look_at_probe()
        except OSError:
            self._end_probe()
            return False
        finally:
            self._probe_lock.release()

    def close(self) -> None:
        """Open nothing any more; connections close when their last call has ended."""
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()
        self.retire_all()
        with self._probe_lock:
            self._end_probe()

    # Under the lock

    def _idle(self) -> BrpcCall | None:
        for connection in self._connections:
            if not connection.load:
                call = connection.reserve()
                if call is not None:
                    return call
        return None

    def _wait_for_room(self, deadline: float) -> BrpcCall | None:
        """Return a place beside others; None: a connection may be opened."""
        failures = self._failures
        while True:
            if self._is_closed:
                raise CannotConnectError("the predictor was closed")
            self._connections = [one for one in self._connections if one.is_usable]
            if self._may_open():
                return None
            shared = self._least_busy()
            if shared is not None:
                return shared
            if not self._changed.wait(max(deadline - time.monotonic(), 0.0)):
                raise OutOfTimeError("it does not answer")
            if self._failures != failures:  # nobody has to wait for a second one
                raise CannotConnectError(self._last_failure)

    def _may_open(self) -> bool:
        if len(self._connections) + self._dialling >= self._max_connections:
            return False
        return not self._connections or self._clock() >= self._no_more_until

    def _least_busy(self) -> BrpcCall | None:
        by_load = sorted(self._connections, key=lambda one: (one.is_sending, one.load))
        return next(filter(None, (one.reserve() for one in by_load)), None)

    def _add(self, connected: socket.socket) -> BrpcConnection:
        if self._is_closed:
            connected.close()
            raise CannotConnectError("the predictor was closed")
        connection = BrpcConnection(connected)
        self._connections.append(connection)
        return connection

    # Without it

    def _open(self, deadline: float, is_needed: bool) -> BrpcCall:
        """Return a place on a new connection, or on one that is open if that fails."""
        limit = min(
            deadline, time.monotonic() + (CONNECT_TIMEOUT_S if is_needed else _SPARE_CONNECT_S)
        )
        connected, failed = None, OSError()
        try:
            connected = dial(self._address, limit)
        except OSError as error:
            failed = error
        finally:
            with self._lock:
                self._dialling -= 1
                self._changed.notify_all()
        if connected is None:
            return self._share_instead(failed, deadline)
        with self._lock:
            call = self._add(connected).reserve()
        if call is None:
            raise CannotConnectError("the connection was closed at once")
        return call

    def _share_instead(self, error: OSError, deadline: float) -> BrpcCall:
        with self._lock:
            self._failures += 1
            self._last_failure = _why(error)
            self._no_more_until = self._clock() + _RETRY_PAUSE_S
            self._changed.notify_all()
            shared = self._least_busy()
        if shared is not None:
            return shared
        if isinstance(error, TimeoutError) and time.monotonic() >= deadline:
            raise OutOfTimeError("it does not answer")
        raise CannotConnectError(self._last_failure) from error

    def _look_at_probe(self) -> bool | None:
        if self._probe is None:
            self._probe = _Attempt(_look_up(self._address)[0], self._clock() + _PROBE_TIMEOUT_S)
        connected = self._probe.look()
        if connected is None:
            if self._clock() < self._probe.ends:
                return None
            raise TimeoutError
        self._probe = None
        try:
            with self._lock:
                self._add(connected)
        except CannotConnectError:
            return None
        return True

    def _end_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None


_Info = tuple[int, int, int, str, tuple[object, ...]]


class _Attempt:
    """A connection in the making."""

    def __init__(self, info: _Info, ends: float) -> None:
        family, kind, protocol, _, address = info
        self.ends = ends
        self._socket = socket.socket(family, kind, protocol)
        self._socket.setblocking(False)
        started = self._socket.connect_ex(address)
        if started not in (0, errno.EINPROGRESS):
            self.close()
            raise OSError(started, os.strerror(started))

    def look(self, wait_s: float = 0.0) -> socket.socket | None:
        """Return the connected socket; None: not yet.

        Raises:
            OSError: it cannot be made; the socket is closed.
        """
        events = select.poll()
        events.register(self._socket, select.POLLOUT)
        if not events.poll(wait_s * 1000):
            return None
        failed = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not failed and self._socket.getsockname() == self._socket.getpeername():
            # Where nobody listens on a port of this host, a connection may be given that port for
            # its own end, and then talks to itself, and no server can have the port again.
            failed = errno.ECONNREFUSED
        if failed:
            self.close()
            raise OSError(failed, os.strerror(failed))
        return self._socket

    def close(self) -> None:
        self._socket.close()


def dial(address: tuple[str, int], deadline: float) -> socket.socket:
    """Return a connected socket, to the first of the host's addresses that answers.

    Raises:
        OSError: there is none; a TimeoutError if the deadline passed.
    """
    error: OSError = TimeoutError()
    for info in _look_up(address):
        attempt = None
        try:
            attempt = _Attempt(info, deadline)
            connected = attempt.look(max(deadline - time.monotonic(), 0.0))
            if connected is not None:
                return connected
            attempt.close()
            error = TimeoutError()
        except OSError as failed:
            error = failed
    raise error


def _look_up(address: tuple[str, int]) -> list[_Info]:
    return list(socket.getaddrinfo(*address, type=socket.SOCK_STREAM))


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return f"cannot connect: {error.strerror or error}"
