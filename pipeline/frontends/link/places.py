"""The folder in which a server listens for its ingress: its sockets, and their secret."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import NamedTuple

_SECRET = "secret"
_ONLY_OURS = 0o600


class SocketPaths(NamedTuple):
    """The paths at which one process of a server listens for its ingress."""

    link: Path
    http: Path


def socket_paths(folder: Path, replica: int) -> SocketPaths:
    """Return those of the replica of this number, 0 for a server without replicas."""
    return SocketPaths(folder / f"{replica}.link", folder / f"{replica}.http")


def make_secret(folder: Path) -> None:
    """Write a secret for the links of this folder, where gateways look it up beside a socket.

    Who reaches the sockets can read it, too: it keeps links apart of servers that follow each
    other, and what else may listen at such a path.
    """
    path = folder / _SECRET
    path.touch(_ONLY_OURS)
    path.write_text(secrets.token_hex())


def find_secret(folder: Path) -> str:
    """Return the secret of this folder; "" for none."""
    path = folder / _SECRET
    return path.read_text() if path.exists() else ""
