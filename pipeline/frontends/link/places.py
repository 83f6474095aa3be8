"""The folder in which a server listens for its ingress: its sockets, their secret, and who comes.

All of it is for one user of the machine, who the folder, the sockets and the secret let in; the
system tells who has come through.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

_SECRET = "secret"
_ONLY_OURS = 0o600
_ROOT = 0
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_SO_PEERCRED: int | None = getattr(socket, "SO_PEERCRED", None)  # Linux has it


class SocketPaths(NamedTuple):
    """The paths at which one process of a server listens for its ingress."""

    link: Path
    http: Path


def socket_paths(folder: Path, replica: int) -> SocketPaths:
    """Return those of the replica of this number, 0 for a server without replicas."""
    return SocketPaths(folder / f"{replica}.link", folder / f"{replica}.http")


def make_secret(folder: Path) -> None:
    """Write a secret for the links of this folder, where gateways look it up beside a socket.

    A process that reaches the sockets can also read it: it only tells links of successive servers
    apart, and from other programs that listen at such a path.
    """
    path = folder / _SECRET
    path.touch(_ONLY_OURS)
    path.write_text(secrets.token_hex())


def find_secret(folder: Path) -> str:
    """Return the secret of this folder; "" for none."""
    path = folder / _SECRET
    return path.read_text() if path.exists() else ""


def keep_private(paths: Iterable[Path]) -> None:
    """Let only this user connect to these sockets."""
    for path in paths:
        path.chmod(_ONLY_OURS)


class Connected(Protocol):
    """A connection, as far as the system is asked about it."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """Return what the system knows."""


class At(NamedTuple):
    """Process and user at the other end of a Unix socket.

    It is who it was when it connected, or listened, whatever it has become since.
    """

    process: int
    user: int

    @property
    def is_stranger(self) -> bool:
        """Return whether it is neither this user's nor root's."""
        return self.user not in (_ROOT, os.geteuid())


def server_at(connection: Connected | None) -> At | None:
    """Return who is at the other end of a Unix socket; None: it is not known."""
    if _SO_PEERCRED is None or connection is None:
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(credentials)
    return At(process, user)
