"""How doors get the address that they listen on."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from pipeline.errors import InitError

BACKLOG = 2048
UNIX = "unix:"
"""What the `host` of a door on a Unix socket begins with; behind it comes the file's path."""

_MOST_PATH_BYTES = 107  # of a Unix socket: the system has room for 108, with a zero at the end
_FRESH = "~"


def bind(host: str, port: int, key: str, is_shared: bool = False) -> socket.socket:
    """A listening socket at `host:port`; "::" listens on IPv4 too where the machine can.

    Args:
        host: an address of this machine, or "unix:<path>" for a Unix socket, which has no port
            and takes the place of what is at the path.
        port: 0 for any free one.
        key: the configuration key to name in an error.
        is_shared: with other processes of this server, between which the system shares out the
            connections (SO_REUSEPORT).

    Raises:
        InitError: the address is in use, or not ours.
    """
    if host.startswith(UNIX):
        return _bind_unix(host.removeprefix(UNIX), key)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dual_stack = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    if host == "::" and not dual_stack:
        host, family = "0.0.0.0", socket.AF_INET
    try:
        return socket.create_server(
            (host, port),
            family=family,
            backlog=BACKLOG,
            dualstack_ipv6=dual_stack,
            reuse_port=is_shared,
        )
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InitError(
            f"{key}: cannot listen on {address_of(host, port)}: {reason}. If another server uses "
            f"the port, stop it or choose another {key}."
        ) from error


def address_of(host: str, port: int) -> str:
    """`host:port`, as it is written for IPv6 too."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_of(listener: socket.socket) -> int:
    """The port of a listening socket; 0 for a Unix socket."""
    name = listener.getsockname()
    return int(name[1]) if isinstance(name, tuple) else 0


@contextlib.contextmanager
def placed(path: str, key: str) -> Iterator[str]:
    """A path to bind a Unix socket to, which then takes the place of whatever is at `path`.

    Those who connect find the one socket or the other, and never none. And who removes the file
    that it has bound when it closes, as event loops do from Python 3.13 on, does not remove that
    of its successor.

    Raises:
        InitError: the path is longer than the system allows.
    """
    check_unix_path(path, key)
    fresh = path + _FRESH
    with contextlib.suppress(FileNotFoundError):  # of one that was killed in here
        os.unlink(fresh)
    yield fresh
    os.replace(fresh, path)


def check_unix_path(path: str, key: str) -> None:
    """Raise InitError if a door cannot listen there since its path is too long."""
    size = len(os.fsencode(path + _FRESH))
    if size > _MOST_PATH_BYTES:
        raise InitError(
            f"{key}: the path of the socket {path} has {size} bytes, {_MOST_PATH_BYTES} are "
            "allowed. Set TMPDIR to a folder with a shorter name."
        )


def _bind_unix(path: str, key: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with placed(path, key) as fresh:
            listener.bind(fresh)
            listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InitError(f"{key}: cannot listen on {UNIX}{path}: {error.strerror}.") from error
    except InitError:
        listener.close()
        raise
    return listener


def reserve(host: str, port: int, key: str) -> socket.socket:
    """A socket that keeps `host:port` for processes that `bind` it with `is_shared`.

    It does not listen, so it gets no connections. Raises InitError as `bind` does.
    """
    # Alone at first: somebody else's port is not ours to share. It listens until the other socket
    # has the port, so that there is no moment at which another server could get it.
    with bind(host, port, key) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held = socket.socket(alone.family, socket.SOCK_STREAM)
        try:
            _share(held, alone)
        except OSError as error:
            held.close()
            raise InitError(
                f"{key}: cannot share port {alone.getsockname()[1]}: {error}."
            ) from error
    return held


def _share(held: socket.socket, alone: socket.socket) -> None:
    """Bind `held` to what `alone` is bound to."""
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier server
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if held.family == socket.AF_INET6:
        only_v6 = alone.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
        held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_v6)
    held.bind(alone.getsockname())
    # With it, who asks for the port alone would get it as long as nobody listens.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
