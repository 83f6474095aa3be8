"""How doors get the address that they listen on."""

from __future__ import annotations

import os
import socket

from pipeline.errors import InitError

BACKLOG = 2048


def bind(host: str, port: int, key: str, is_shared: bool = False) -> socket.socket:
    """A listening socket at `host:port`; "::" listens on IPv4 too where the machine can.

    Args:
        host: an address of this machine.
        port: 0 for any free one.
        key: the configuration key to name in an error.
        is_shared: with other processes of this server, between which the system shares out the
            connections (SO_REUSEPORT).

    Raises:
        InitError: the address is in use, or not ours.
    """
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
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InitError(
            f"{key}: cannot listen on {where}: {reason}. If another server uses "
            f"the port, stop it or choose another {key}."
        ) from error


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
