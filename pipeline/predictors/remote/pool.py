"""Pools of connections to one server, which are opened on demand and kept for later calls."""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pipeline.errors import ClosedError

_LOGGER = logging.getLogger(__name__)

MAX_IDLE = 32
"""Maximum number of idle connections to one server."""

CONNECT_TIMEOUT_S = 3.0
"""Time limit to open a connection that a call needs."""

LOOK_S = 0.1
"""Time between two checks whether a caller still waits for an answer."""

_SPARE_CONNECT_S = 1.0  # limit if others are in use, which may be given back first
_PROBE_TIMEOUT_S = 1.0
_ESTABLISHED = b"\1"  # the first byte of tcp_info, its state
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # A host that vanishes silently is detected within a minute.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class CannotConnectError(Exception):
    """No connection could be opened; the text has the reason, but not the server's name."""


class ConnectionLostError(Exception):
    """The connection is closed; the text has the reason, but not the server's name."""


class OutOfTimeError(Exception):
    """The deadline has passed. The connection can be used again if the request was sent."""


class Waiting:
    """Limits of a call: it ends at `ends`, in `time.monotonic`, or once `is_cancelled` is true."""

    def __init__(self, ends: float, is_cancelled: Callable[[], bool] | None = None) -> None:
        self.ends: float = ends
        self.is_cancelled: Callable[[], bool] | None = is_cancelled

    def left_s(self) -> float:
        """Return the time left. Raises OutOfTimeError; ClosedError: no caller waits any more."""
        self.check()
        left = self.ends - time.monotonic()
        if left <= 0:
            raise OutOfTimeError("it does not answer")
        return left

    def check(self) -> None:
        """Raise ClosedError if no caller waits for the answer any more."""
        if self.is_cancelled is not None and self.is_cancelled():
            raise ClosedError("nobody waits for the answer any more")

    def step_s(self) -> float:
        """Return how long to wait before the next check. Raises as `left_s`."""
        left = self.left_s()
        return left if self.is_cancelled is None else min(left, LOOK_S)

    def until(self, connected: socket.socket, event: int) -> None:
        """Wait for an event of a socket."""
        events = select.poll()
        events.register(connected, event)
        while not events.poll(self.step_s() * 1000):
            pass

    def pause(self, time_s: float) -> None:
        """Wait, with checks, for a time."""
        ends = time.monotonic() + time_s
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(left, self.step_s()))


class PooledConnection(Protocol):
    """A connection of a protocol; one caller uses it at a time."""

    is_usable: bool
    """Whether another request may follow, as far as is known without a system call."""

    def has_ended(self) -> bool:
        """Return whether the server has closed an idle connection."""

    def close(self) -> None:
        """Close the socket; in a forked child the parent's connection stays open."""


_Kind = TypeVar("_Kind", bound=PooledConnection)


def prepare(connected: socket.socket) -> None:
    """Set the socket options of all protocols."""
    for option in _OPTIONS:
        connected.setsockopt(*option)


def has_ended(connected: socket.socket) -> bool:
    """Return whether the peer has closed an idle connection; unlike poll this keeps the GIL."""
    return connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != _ESTABLISHED


class Pool(Generic[_Kind]):
    """Connections to one address, which is looked up for each connection.

    `speak` makes a connection from a connected socket; `clock` is the clock of probes.
    """

    def __init__(
        self,
        address: tuple[str, int],
        speak: Callable[[socket.socket], _Kind],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._speak = speak
        self._clock = clock
        self._probe_lock = threading.Lock()
        self._probe: _Attempt | None = None
        self._lock = threading.Lock()  # of all below
        self._given_back = threading.Condition(self._lock)
        self._waiting = 0  # callers that wait for a connection to be given back
        self._connections: set[_Kind] = set()  # also those in use
        self._idle: list[_Kind] = []
        self._is_closed = False

    def take(self, waiting: Waiting) -> _Kind:
        """Return a connection for exclusive use until it is given back.

        It is an idle one if there is one, otherwise a new one. If that cannot be opened but others
        are in use, it is the first of them that is given back.

        Raises:
            CannotConnectError: none can be opened, and none is open.
            OutOfTimeError, ClosedError: see `Waiting.left_s`.
        """
        with self._lock:
            idle = self._pop_idle()
            if idle is not None:
                return idle
            limit_s = _SPARE_CONNECT_S if self._connections else CONNECT_TIMEOUT_S
        try:
            connected = dial(self._address, waiting, limit_s)
        except OSError as error:
            return self._take_next(error, waiting)
        with self._lock:
            return self._add(connected)

    def give_back(self, connection: _Kind) -> None:
        """Take a connection back; keep it if it is usable."""
        with self._lock:
            is_current = connection in self._connections and not self._is_closed
            if is_current and connection.is_usable and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
            else:
                self._drop(connection)
            if self._waiting:
                self._given_back.notify_all()

    def retire_all(self) -> None:
        """Use new connections from now on; calls in progress finish on the old ones."""
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()
            self._connections.clear()

    def abandon(self) -> None:
        """Close in a forked child, where threads of the parent may hold the locks."""
        for connection in self._connections:
            connection.close()
        self._end_probe()

    def probe(self) -> bool | None:
        """Return whether the server accepts connections; None: unknown yet, ask again later.

        It waits only for the lookup of a name. `take` uses the connection that it opened.
        """
        if not self._probe_lock.acquire(blocking=False):
            return None  # another caller probes
        try:
            return self._poll_probe()
        except OSError:
            self._end_probe()
            return False
        finally:
            self._probe_lock.release()

    def close(self) -> None:
        """Open no more connections; open ones close when their calls have ended."""
        with self._lock:
            self._is_closed = True
            self._given_back.notify_all()
        self.retire_all()
        with self._probe_lock:
            self._end_probe()

    # Under the lock

    def _pop_idle(self) -> _Kind | None:
        if self._is_closed:
            raise CannotConnectError("the predictor was closed")
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_ended():
                return connection
            self._drop(connection)
        return None

    def _add(self, connected: socket.socket) -> _Kind:
        if self._is_closed:
            connected.close()
            raise CannotConnectError("the predictor was closed")
        connection = self._speak(connected)
        self._connections.add(connection)
        return connection

    def _drop(self, connection: _Kind) -> None:
        self._connections.discard(connection)
        connection.close()

    # Without the lock

    def _take_next(self, error: OSError, waiting: Waiting) -> _Kind:
        """Wait for a connection in use, after a new one could not be opened because of `error`."""
        with self._lock:
            while self._connections:
                idle = self._pop_idle()
                if idle is not None:
                    return idle
                step_s = min(waiting.step_s(), threading.TIMEOUT_MAX)
                self._waiting += 1
                self._given_back.wait(step_s)
                self._waiting -= 1
        if not isinstance(error, TimeoutError):
            raise CannotConnectError(f"cannot connect: {error.strerror or error}") from error
        waiting.left_s()
        raise CannotConnectError("it does not answer") from error

    def _poll_probe(self) -> bool | None:
        if self._probe is None:
            self._probe = _Attempt(_resolve(self._address)[0], self._clock() + _PROBE_TIMEOUT_S)
        connected = self._probe.poll()
        if connected is None:
            if self._clock() < self._probe.ends:
                return None
            raise TimeoutError
        self._probe = None
        try:
            with self._lock:
                self._idle.append(self._add(connected))
        except CannotConnectError:
            return None
        return True

    def _end_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None


_Info = tuple[int, int, int, str, tuple[object, ...]]


class _Attempt:
    """A connection that is being opened."""

    def __init__(self, info: _Info, ends: float) -> None:
        family, kind, protocol, _, address = info
        self.ends = ends
        self._socket = socket.socket(family, kind, protocol)
        self._socket.setblocking(False)
        started = self._socket.connect_ex(address)
        if started not in (0, errno.EINPROGRESS):
            self.close()
            raise OSError(started, os.strerror(started))

    def poll(self, wait_s: float = 0.0) -> socket.socket | None:
        """Return the connected socket; None: not yet.

        Raises OSError: it cannot be made; the socket is closed.
        """
        events = select.poll()
        events.register(self._socket, select.POLLOUT)
        if not events.poll(wait_s * 1000):
            return None
        failed = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not failed and self._socket.getsockname() == self._socket.getpeername():
            # If no process listens on a port of this host, the system may give a connection that
            # port as its own end. It then talks to itself, and keeps the port from servers.
            failed = errno.ECONNREFUSED
        if failed:
            self.close()
            raise OSError(failed, os.strerror(failed))
        return self._socket

    def wait(self, waiting: Waiting) -> socket.socket | None:
        """Return the connected socket; None if it took too long and was closed.

        Raises as `poll` and `Waiting.check`.
        """
        connected = None
        try:
            while connected is None and (left_s := self.ends - time.monotonic()) > 0:
                waiting.check()
                connected = self.poll(min(left_s, LOOK_S))
        finally:
            if connected is None:
                self.close()
        return connected

    def close(self) -> None:
        self._socket.close()


def dial(
    address: tuple[str, int], waiting: Waiting, limit_s: float = CONNECT_TIMEOUT_S
) -> socket.socket:
    """Return a connected socket, to the first of the host's addresses that answers.

    Raises:
        OSError: no address answers; TimeoutError: none did in time.
        ClosedError: no caller waits for the answer any more.
    """
    ends = min(waiting.ends, time.monotonic() + limit_s)
    error: OSError = TimeoutError()
    for info in _resolve(address):
        attempt = None
        try:
            attempt = _Attempt(info, ends)
            connected = attempt.wait(waiting)
            if connected is not None:
                return connected
            error = TimeoutError()
        except OSError as failed:
            error = failed
    raise error


def _resolve(address: tuple[str, int]) -> list[_Info]:
    return list(socket.getaddrinfo(*address, type=socket.SOCK_STREAM))


# Choice of one of several servers ---------------------------------------------------------------


FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 3.0
MAX_TIMEOUTS = 3
LEAST_SILENCE_S = 1.0
"""A server counts as failed after so many calls in a row without an answer, and so many seconds.

Otherwise callers with deadlines far below the model's time would take the server from the others.
"""


@dataclass(slots=True)
class _Health:
    """The health of one server. It is down while `failures` is not 0."""

    failures: int = 0
    timeouts: int = 0
    silent_s: float = 0.0  # without the times between calls, if they were long
    timed_out_at: float = 0.0
    due_at: float = 0.0


class EndpointPolicy:
    """The policy of choosing a server. It sends nothing and never waits.

    The caller serialises all calls. Servers are known by their index.

    Args:
        count: number of servers; at least 1.
        clock: returns monotonic seconds.
    """

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._servers = [_Health() for _ in range(count)]
        self._clock = clock
        self._next = 0
        self.count_down: int = 0
        self.all_are_well: bool = True
        """Whether no server is down and none has timed out since its last answer."""

    def pick(self, without: Collection[int] = ()) -> int | None:
        """Return the server whose turn it is; one that is down only if no other is left.

        So a request costs nothing extra while a server is down. If all are down, each is still
        tried: an error comes at once, and the next call finds the first server that is up again.

        Args:
            without: servers that this request does not use; the result is None if it is all.
        """
        count = len(self._servers)
        if count == 1:
            return None if 0 in without else 0
        down = None
        for step in range(count):
            index = (self._next + step) % count
            if index in without:
                continue
            if not self._servers[index].failures:
                self._next = index + 1
                return index
            down = index if down is None else down
        if down is not None:
            self._next = down + 1
        return down

    def due(self) -> list[int]:
        """Return the servers that are down and whose back-off has ended: they may be up again."""
        if not 0 < self.count_down < len(self._servers):
            return []  # if all are down, each request tests them
        now = self._clock()
        return [
            index
            for index, server in enumerate(self._servers)
            if server.failures and server.due_at <= now
        ]

    def failed(self, index: int) -> bool:
        """Leave a server out, longer each time; return whether it was well until now.

        Failures during the back-off change nothing: all calls of a connection fail when it breaks.
        """
        server = self._servers[index]
        now = self._clock()
        if server.failures and now < server.due_at:
            return False
        self.all_are_well = False
        server.timeouts = 0
        server.failures += 1
        wait_s = min(FIRST_BACKOFF_S * 2.0 ** min(server.failures - 1, 30), MAX_BACKOFF_S)
        server.due_at = now + wait_s
        if server.failures > 1:
            return False
        self.count_down += 1
        return True

    def timed_out(self, index: int, waited_s: float) -> bool:
        """Note a timeout of a call; after several in a row the server counts as failed.

        Return whether this made a server fail that was well until now.
        """
        server = self._servers[index]
        now = self._clock()
        since_last_s, server.timed_out_at = now - server.timed_out_at, now
        if not server.timeouts:
            server.silent_s = waited_s
        elif since_last_s - waited_s <= LEAST_SILENCE_S:
            server.silent_s += since_last_s
        else:
            server.silent_s += waited_s
        server.timeouts += 1
        self.all_are_well = False
        has_failed = server.timeouts >= MAX_TIMEOUTS and server.silent_s >= LEAST_SILENCE_S
        return has_failed and self.failed(index)

    def answered(self, index: int) -> bool:
        """Note that a server is well; return whether it was down until now."""
        server = self._servers[index]
        was_down = server.failures > 0
        server.timeouts = server.failures = 0
        self.count_down -= was_down
        self.all_are_well = not any(one.failures or one.timeouts for one in self._servers)
        return was_down


class Servers(Generic[_Kind]):
    """Equivalent servers of one model: which one is asked, and which are left out.

    Args:
        name: name of the model, for the log.
        addresses: the servers, as the log shows them.
        pools: of each server.

    Attributes:
        policy: chooses; it is only used here.
    """

    def __init__(
        self, name: str, addresses: Sequence[object], pools: Sequence[Pool[_Kind]]
    ) -> None:
        self.pools: Sequence[Pool[_Kind]] = pools
        self.policy: EndpointPolicy = EndpointPolicy(len(pools))
        self._name = name
        self._addresses = addresses
        self._lock = threading.Lock()  # of the policy

    def pick(self, without: Collection[int] = ()) -> int | None:
        """Try again servers that are down; return the server whose turn it is."""
        with self._lock:
            due = self.policy.due() if self.policy.count_down else ()
        for index in due:
            is_back = self.pools[index].probe()
            if is_back:
                self.answered(index)
            elif is_back is not None:
                self.failed(index)
        with self._lock:
            return self.policy.pick(without)

    def answered(self, index: int) -> None:
        """Note that a server is well."""
        if self.policy.all_are_well:
            return
        with self._lock:
            is_back = self.policy.answered(index)
        if is_back and len(self.pools) > 1:
            _LOGGER.info("[%s] %s is asked again", self._name, self._addresses[index])

    def failed(self, index: int, why: str = "") -> None:
        """Leave a server out for some time; log `why` if it was well."""
        with self._lock:
            was_well = self.policy.failed(index)
        if was_well and why:
            self._log_left_out(index, why)

    def timed_out(self, index: int, time_s: float) -> None:
        """Note that a call got no answer in `time_s`; after several the server is left out."""
        if time_s <= 0:  # a call without time at its start says nothing about the server
            return
        with self._lock:
            hangs = self.policy.timed_out(index, time_s)
        if hangs:  # its host may be down: the open connections are useless
            self.pools[index].retire_all()
            self._log_left_out(index, "several calls in a row got no answer")

    def close(self) -> None:
        """Open no more connections; calls in progress finish."""
        for pool in self.pools:
            pool.close()

    def _log_left_out(self, index: int, why: str) -> None:
        """Log it if other servers take over, so that an operator notices."""
        if len(self.pools) > 1:
            _LOGGER.warning("[%s] %s is left out: %s", self._name, self._addresses[index], why)
