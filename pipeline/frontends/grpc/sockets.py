"""GrpcSockets: the sockets of one gRPC server, found in /proc, because gRPC does not expose them.

gRPC can only stop in one way, which ends every call that arrives at that moment with CANCELLED.
Clients take that for their own cancellation and do not try another server. Here listening ends
first, then each client is sent away when nothing runs on its connection; a later call finds a
closed connection, which is UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

from pipeline.frontends.listen import take_last

Peer = tuple[str, int] | None
"""(address, port) of the other end; None if it has none, as on Unix sockets."""

_POLL_INTERVAL_S = 0.01
_FOLDER = "/proc/self/fd"
# HTTP/2: 8 bytes, type 7 (GOAWAY), no flags, stream 0; earlier requests are processed; no error.
_GOAWAY = bytes((0, 0, 8, 7, 0, 0, 0, 0, 0)) + b"\x7f\xff\xff\xff" + bytes(4)
# Python does not change the flags of a socket that is declared non-blocking: a duplicate shares
# them.
_AS_IT_IS = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
_INET = (socket.AF_INET, socket.AF_INET6)
_open_at: Counter[object] = Counter()  # servers of this process, by port or Unix socket


class ProcessSocket(NamedTuple):
    """A socket of this process; its inode distinguishes it from a later one with its descriptor."""

    descriptor: int
    inode: int


class GrpcSockets:
    """Finds and closes the sockets of a gRPC server."""

    def __init__(self) -> None:
        self._listeners: list[ProcessSocket] = []
        self._place: object = None

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Note the sockets that begin to listen in the block."""
        before = {entry for entry, _ in _listening()}
        yield
        for entry, place in _listening():
            if entry not in before:
                self._listeners.append(entry)
                self._place = place
        if self._listeners:
            _open_at[self._place] += 1

    async def stop_listening(self) -> None:
        """Refuse connections from now on.

        The listening socket is replaced by one that no client can reach. Closing it, or ending its
        listening, would be an error for gRPC, which may be about to accept a connection; and its
        descriptor would soon belong to another file.
        """
        for listener in self._listeners:
            with _taken(listener) as sock:
                if sock is not None:
                    await take_last(sock)
                    _make_unreachable(listener)

    def connections(self) -> list[tuple[Peer, ProcessSocket]]:
        """Return the open connections; an empty list if another server's would be among them."""
        if not self._listeners or _open_at[self._place] > 1:
            return []
        return [(_peer_of(sock), entry) for entry, sock in _sockets() if _is_at(sock, self._place)]

    async def wait_closed(self, timeout_s: float) -> None:
        """Wait until there is no connection, at most until `ends`."""
        for _ in range(round(timeout_s / _POLL_INTERVAL_S)):
            if not self.connections():
                break
            await asyncio.sleep(_POLL_INTERVAL_S)

    def forget(self) -> None:
        """Forget the server, whose sockets are all closed."""
        if self._listeners:
            self._listeners.clear()
            _open_at[self._place] -= 1


def _make_unreachable(listener: ProcessSocket) -> None:
    with _taken(listener) as sock, socket.socket(socket.AF_UNIX, _AS_IT_IS) as unreachable:
        if (
            sock is not None
        ):  # otherwise gRPC has closed it, and the descriptor may be another file's
            unreachable.bind("")  # the system chooses a name
            unreachable.listen(0)
            os.dup2(unreachable.fileno(), listener.descriptor, inheritable=False)


def send_away(connection: ProcessSocket) -> None:
    """Send GOAWAY: the peer makes its next calls elsewhere, and closes after its last call.

    Nothing may run on the connection: then each write of gRPC itself is whole frames.
    """
    with _taken(connection) as sock:
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.send(_GOAWAY, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def end(connection: ProcessSocket) -> None:
    """Shut down the sending side: the peer closes the connection, and gRPC sees that."""
    with _taken(connection) as sock:
        if sock is not None:
            with contextlib.suppress(OSError):  # the peer closed first
                sock.shutdown(socket.SHUT_WR)


def peer_named(name: str) -> Peer:
    """Return the peer with gRPC's name, for example "ipv6:[::1]:5000"."""
    scheme, _, rest = unquote(name).partition(":")
    host, _, port = rest.rpartition(":")
    if scheme not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _address(host.strip("[]")), int(port)


def _address(host: str) -> str:
    """Return the normal form of an address: without scope, and IPv4 as such."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        return str(getattr(address, "ipv4_mapped", None) or address)
    return host


def _peer_of(sock: socket.socket) -> Peer:
    with contextlib.suppress(OSError):  # the peer has left
        if sock.family in _INET:
            host, port = sock.getpeername()[:2]
            return _address(host), port
    return None


def _sockets() -> Iterator[tuple[ProcessSocket, socket.socket]]:
    """Yield all stream sockets of this process with a name, each open until the next."""
    with contextlib.suppress(FileNotFoundError):  # without /proc gRPC stops in its own way
        for name in os.listdir(_FOLDER):
            with _opened(int(name)) as sock:
                if sock is None:
                    continue
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM:
                    yield ProcessSocket(int(name), os.fstat(sock.fileno()).st_ino), sock


def _listening() -> list[tuple[ProcessSocket, object]]:
    return [
        (entry, _place_of(sock))
        for entry, sock in _sockets()
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    ]


def _place_of(sock: socket.socket) -> object:
    """Return the port, or the name of a Unix socket."""
    name = sock.getsockname()
    return name[1] if isinstance(name, tuple) else name


def _is_at(sock: socket.socket, place: object) -> bool:
    with contextlib.suppress(OSError):
        return _place_of(sock) == place
    return False


@contextlib.contextmanager
def _taken(entry: ProcessSocket) -> Iterator[socket.socket | None]:
    """Yield the socket, if the descriptor still belongs to it."""
    with _opened(entry.descriptor) as sock:
        is_it = sock is not None and os.fstat(sock.fileno()).st_ino == entry.inode
        yield sock if is_it else None


@contextlib.contextmanager
def _opened(descriptor: int) -> Iterator[socket.socket | None]:
    """Yield the socket by a second descriptor: gRPC may close the first one at any time."""
    sock: socket.socket | None = None
    with contextlib.suppress(OSError):
        if os.readlink(f"{_FOLDER}/{descriptor}").startswith("socket:"):
            second = os.dup(descriptor)
            try:
                sock = socket.socket(type=_AS_IT_IS, fileno=second)
            except OSError:
                os.close(second)
    with sock or contextlib.nullcontext():
        yield sock
