"""Startup log: two lines for each thing that takes its time while a server starts."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable
from typing import TypeVar

STARTUP = "pipeline.startup"
"""The logger of these lines, which whoever started the server is shown."""

_LOGGER = logging.getLogger(STARTUP)
PATIENCE_S = 1.0
_LOADING = re.compile(r"(.*): loading since ")
_ENDED = re.compile(r"(.*): (?:ready|not ready) after ")

T = TypeVar("T")


async def told_if_slow(who: str, work: Awaitable[T], loop: asyncio.AbstractEventLoop) -> T:
    """Await `work`; say that `who` is loading, and when that is done, if it takes over a second."""
    began, since = loop.time(), time.strftime("%H:%M:%S")

    def say() -> None:
        _LOGGER.info("%s: loading since %s", who, since)

    timer = loop.call_later(PATIENCE_S, say)
    how = "not ready"
    try:
        result = await work
        how = "ready"
    finally:
        timer.cancel()
        took_s = loop.time() - began
        if took_s >= PATIENCE_S:
            _LOGGER.info("%s: %s after %.1f s", who, how, took_s)
    return result


def who_loads(message: str) -> str:
    """Return who is loading, as a message of STARTUP says; "": it says something else."""
    found = _LOADING.match(message)
    return found[1] if found else ""


def who_ended(message: str) -> str:
    """Return who is no longer loading; "": the message says something else."""
    found = _ENDED.match(message)
    return found[1] if found else ""
