"""ServiceManager: what started the server and waits for its word, as systemd's sd_notify has it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import MutableMapping
from typing import Self

VARIABLE = "NOTIFY_SOCKET"
"""The environment variable that names the manager's datagram socket."""


class ServiceManager:
    """A service manager, such as systemd with `Type=notify`; it gets messages and sends none."""

    def __init__(self, address: str | None) -> None:
        self._address = address

    @classmethod
    def taken_from(cls, environ: MutableMapping[str, str]) -> Self:
        """Return the manager that the environment names, which names it no more.

        So child processes cannot speak for this one.
        """
        return cls(environ.pop(VARIABLE, None))

    def tell(self, **lines: object) -> None:
        """Send `NAME=value` lines, if there is a manager; ignore one that does not listen."""
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
