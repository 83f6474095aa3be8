"""Ingress: a process before the frontends of a server, which takes its HTTP requests."""

from __future__ import annotations

import asyncio


class Ingress:
    """No ingress, and the base of one: a process that takes HTTP requests and asks the frontends.

    Attributes:
        takes_http: False: there is nothing before the frontends.
        port: where it listens, after `start`.
    """

    takes_http = False
    port: int | None = None

    def start(self) -> asyncio.Future[None]:
        """Take requests; done when they are answered. InitError says why they are not."""
        started = asyncio.get_running_loop().create_future()
        started.set_result(None)
        return started

    def drain(self) -> None:
        """Say not ready, serve on for the `drain_delay`, then take no more."""

    async def stop(self, grace_s: float) -> None:
        """Take no more, and end when the active ones are answered, or `grace_s` is over.

        The frontends are still open. May be called without `start`.
        """

    def cancel_grace(self) -> None:
        """Cut the grace period short."""

    def close(self) -> None:
        """Remove what it had in common with the frontends, which are closed."""


no_ingress: Ingress = Ingress()
"""Callers reach the frontends."""
