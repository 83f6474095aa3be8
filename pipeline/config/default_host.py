"""Address that servers listen on whose configuration says none: this machine's own."""

from __future__ import annotations

LOOPBACK = "127.0.0.1"
ANY = "::"
"""All addresses, IPv6 and IPv4."""

_hosts = [LOOPBACK]


def default_host() -> str:
    return _hosts[-1]


def listen_as_the_predecessor() -> None:
    """Listen on all addresses from now on: its scripts say none, and are asked by others."""
    _hosts[:] = [ANY]
