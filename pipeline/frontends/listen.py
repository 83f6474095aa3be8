"""Listening sockets of frontends: how they get an address, and how they release it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

from pipeline.errors import InitError, PortInUseError

BACKLOG = 4096
UNIX = "unix:"
"""Begins the `host` of a frontend on a Unix socket; behind it comes the file's path."""

ABSTRACT = "unix-abstract:"  # gRPC's prefix

_MAX_PATH_BYTES = 107  # of a Unix socket: the system's limit is 108, with a zero at the end
_FRESH = "~"
_POLL_INTERVAL_S, _MAX_POLLS = 0.001, 200  # for connections that are not accepted yet
_UNACCEPTED = struct.Struct(
    "24xI"
)  # of struct tcp_info: tcpi_unacked, for listeners the length of the accept queue
_SO_ATTACH_FILTER = 26
_NO_SYN = struct.Struct("HBBI")  # struct sock_filter
_DROP_SYN = (  # flags = segment[13]; SYN without ACK: drop it, anything else: let it through
    (0x30, 0, 0, 13),
    (0x54, 0, 0, 0x12),
    (0x15, 0, 1, 0x02),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, or a Unix socket
        return host == "localhost" or host.startswith((UNIX, ABSTRACT))


def bind(host: str, port: int, key: str, is_shared: bool = False) -> socket.socket:
    """Return a socket that listens at `host:port`; "::" also means IPv4 if the machine allows it.

    Args:
        host: an address of this machine; "unix:<path>" for a Unix socket, which has no port and
            replaces a file at the path; or "unix-abstract:<name>" for a socket without a file.
        port: 0: any free port.
        key: the configuration key to name in an error.
        is_shared: share the port with other processes; the system distributes the connections
            (SO_REUSEPORT).

    Raises:
        InitError: the address is in use, or does not belong to this machine.
    """
    if host.startswith((UNIX, ABSTRACT)):
        return _bind_unix(host, key)
    family, host = _family_of(host)
    try:
        return socket.create_server(
            (host, port),
            family=family,
            backlog=BACKLOG,
            dualstack_ipv6=family == socket.AF_INET6 and socket.has_dualstack_ipv6(),
            reuse_port=is_shared,
        )
    except OSError as error:
        raise _cannot_listen(host, port, key, error) from error


def _family_of(host: str) -> tuple[socket.AddressFamily, str]:
    """Return (family, host) to bind; "::" becomes IPv4's where no socket can do both."""
    if host == "::" and not socket.has_dualstack_ipv6():
        return socket.AF_INET, "0.0.0.0"
    return socket.AF_INET6 if ":" in host else socket.AF_INET, host


def _cannot_listen(host: str, port: int, key: str, error: OSError) -> InitError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    kind = PortInUseError if error.errno == errno.EADDRINUSE else InitError
    refusal = kind(
        f"{key}: cannot listen on {address_of(host, port)}: {reason}. If another server uses "
        f"the port, stop it or choose another {key}."
    )
    if isinstance(refusal, PortInUseError):
        refusal.key, refusal.port = key, port
    return refusal


def check_free(host: str, port: int, key: str, is_shared: bool = False) -> None:
    """Raise InitError, as `bind` does, if the server could not listen there.

    It does not listen itself: clients would connect to a socket that is closed at once.
    """
    _bound(host, port, key, is_shared).close()


async def take_last(listener: socket.socket) -> None:
    """Wait until all connections of the system are accepted, and prevent new ones.

    Closing a socket resets the connections that were not accepted. Requests for a connection are
    dropped from now on: a client repeats them when the socket is closed.
    """
    if listener.family == socket.AF_UNIX:
        return
    with contextlib.suppress(OSError):  # a system without socket filters: some may be reset
        program = ctypes.create_string_buffer(b"".join(_NO_SYN.pack(*step) for step in _DROP_SYN))
        filter_ = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(program))
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)
        for _ in range(_MAX_POLLS):
            info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACCEPTED.size)
            if not _UNACCEPTED.unpack(info)[0]:
                break
            await asyncio.sleep(_POLL_INTERVAL_S)


def address_of(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_of(listener: socket.socket) -> int:
    """Return the port of a listening socket; 0 for a Unix socket."""
    name = listener.getsockname()
    return int(name[1]) if isinstance(name, tuple) else 0


@contextlib.contextmanager
def placed(path: str, key: str) -> Iterator[str]:
    """Yield a path to bind a Unix socket to, which then replaces the file at `path`.

    Clients find the old socket or the new one at any time. An event loop that removes its bound
    file when it closes, as from Python 3.13 on, does not remove its successor's file.

    Raises:
        InitError: the path is longer than the system allows.
    """
    check_unix_path(path, key)
    fresh = path + _FRESH
    with contextlib.suppress(FileNotFoundError):  # left by a killed process
        os.unlink(fresh)
    yield fresh
    os.replace(fresh, path)


def check_unix_path(path: str, key: str) -> None:
    """Raise InitError if the path is too long for a Unix socket."""
    size = len(os.fsencode(path + _FRESH))
    if size > _MAX_PATH_BYTES:
        raise InitError(
            f"{key}: the path of the socket {path} has {size} bytes, {_MAX_PATH_BYTES} are "
            "allowed. Set TMPDIR to a folder with a shorter name."
        )


def _bind_unix(host: str, key: str) -> socket.socket:
    kind, _, name = host.partition(":")
    is_abstract = f"{kind}:" == ABSTRACT
    with contextlib.ExitStack() as failing:
        listener = failing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            with contextlib.nullcontext(f"\0{name}") if is_abstract else placed(name, key) as path:
                listener.bind(path)
                listener.listen(BACKLOG)
        except OSError as error:
            whose = "" if is_abstract else f"{key}: "
            raise InitError(f"{whose}cannot listen on {host}: {error.strerror}.") from error
        failing.pop_all()
    return listener


def reserve(host: str, port: int, key: str, is_shared: bool = False) -> socket.socket:
    """Return a socket that reserves `host:port` for processes that `bind` it with `is_shared`.

    It does not listen, so it gets no connections. With `is_shared` another server may have the port
    already. Raises InitError as `bind` does.
    """
    if is_shared and port:
        return _bound(host, port, key, is_shared=True)
    # Alone at first: another server's port must not be shared. It listens until the other socket
    # has the port, so that no other server can get it in between.
    with bind(host, port, key) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        address, is_v6 = alone.getsockname(), alone.family == socket.AF_INET6
        only_v6 = is_v6 and alone.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
        try:
            return _named(alone.family, address, only_v6, is_shared=True)
        except OSError as error:
            raise InitError(f"{key}: cannot share port {address[1]}: {error}.") from error


def _bound(host: str, port: int, key: str, is_shared: bool) -> socket.socket:
    """Return a socket that is bound to `host:port` and does not listen. Raises InitError."""
    family, host = _family_of(host)
    try:
        return _named(family, (host, port), host != "::", is_shared)
    except OSError as error:
        raise _cannot_listen(host, port, key, error) from error


def _named(
    family: socket.AddressFamily, address: Any, only_v6: int, is_shared: bool
) -> socket.socket:
    """Return a socket that is bound to an address; if shared, others may also bind it."""
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # left by an earlier server
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(is_shared))
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_v6)
        held.bind(address)
        # With SO_REUSEADDR a process could get the port for itself while nothing listens.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        held.close()
        raise
    return held
