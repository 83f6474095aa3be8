"""ServiceManager: the process that started the server and waits for messages (sd_notify)."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import MutableMapping
from typing import Self

VARIABLE = "NOTIFY_SOCKET"
"""The environment variable that names the manager's datagram socket."""


class ServiceManager:
    """A service manager, such as systemd with `Type=notify`, which only receives messages."""

    def __init__(self, address: str | None) -> None:
        self._address = address

    @classmethod
    def taken_from(cls, environ: MutableMapping[str, str]) -> Self:
        """Return the environment's manager, and remove it from the environment.

        So child processes cannot send messages in this process's name.
        """
        return cls(environ.pop(VARIABLE, None))

    def tell(self, **lines: object) -> None:
        """Send `NAME=value` lines to the manager, if there is one that listens."""
        if not self._address:
            return
        text = "\n".join(f"{name}={value}" for name, value in lines.items())
        address = "\0" + self._address[1:] if self._address[:1] == "@" else self._address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as there,
        ):
            there.setblocking(False)
            there.sendto(text.encode(), address)
