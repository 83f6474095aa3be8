"""Sockets that listen at a port of this machine, and whose they are, as Linux tells it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"
_SESSION = 3  # field of /proc/<pid>/stat, behind the name


def is_shared_with_strangers(port: int, session: int) -> bool:
    """Return whether processes outside of a session listen at a port, too."""
    return not _listening(port) <= _sockets_of(session)


def _listening(port: int) -> set[str]:
    """Return the inodes of the sockets that listen at a port."""
    found = set()
    for table in _TABLES:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:  # a system without IPv6
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _sockets_of(session: int) -> set[str]:
    """Return the inodes of all sockets that processes of a session have."""
    return {inode for pid in _members(session) for inode in _sockets_in(pid)}


def _members(session: int) -> Iterator[str]:
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if int(fields[_SESSION]) == session:
                yield entry


def _sockets_in(pid: str) -> Iterator[str]:
    folder = Path("/proc", pid, "fd")
    try:
        numbers = os.listdir(folder)
    except OSError:
        return
    for number in numbers:
        try:
            kind, _, inode = os.readlink(folder / number).partition(":")
        except OSError:
            continue
        if kind == "socket":
            yield inode.strip("[]")
