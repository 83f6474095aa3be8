"""Startup log: two lines for each slow part of a server's start."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Mapping
from typing import TypeVar

STARTUP = "pipeline.startup"
"""The logger of the lines for the user who starts the server."""

_LOGGER = logging.getLogger(STARTUP)
PATIENCE_S = 1.0
_MOST_TOLD = 8  # that have lines of their own
_LOADING = re.compile(r"(.*): loading since ")
_ENDED = re.compile(r"(.*): (?:ready|not ready) after ")

T = TypeVar("T")


async def log_if_slow(who: str, work: Awaitable[T], loop: asyncio.AbstractEventLoop) -> T:
    """Await `work`; if it takes over a second, log that `who` is loading, and the end."""
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


async def log_slow_starts(
    works: Mapping[str, Awaitable[object]], loop: asyncio.AbstractEventLoop
) -> None:
    """Await all `works`, by name; log each that takes over a second.

    Many slow ones share one line, because the machine is usually the cause. Raises ExceptionGroup:
    one has failed, and the others were cancelled.
    """
    waiting = dict.fromkeys(works)
    began, since, reported = loop.time(), time.strftime("%H:%M:%S"), list[str]()

    async def run(who: str, work: Awaitable[object]) -> None:
        how = "not ready"
        try:
            await work
            how = "ready"
        finally:
            del waiting[who]
            if who in reported or (reported and not waiting):
                name = who if who in reported else reported[0]
                _LOGGER.info("%s: %s after %.1f s", name, how, loop.time() - began)

    def say() -> None:
        few = list(waiting)
        many = f"{', '.join(few[:2])} and {len(few) - 2} more"
        reported.extend(few if len(few) <= _MOST_TOLD else [many])
        for who in reported:
            _LOGGER.info("%s: loading since %s", who, since)

    timer = loop.call_later(PATIENCE_S, say)
    try:
        async with asyncio.TaskGroup() as group:
            for who, work in works.items():
                group.create_task(run(who, work))
    finally:
        timer.cancel()


def who_loads(message: str) -> str:
    """Return who is loading, from a message of STARTUP; "" for other messages."""
    match = _LOADING.match(message)
    return match[1] if match else ""


def who_ended(message: str) -> str:
    """Return who has ended loading; "" for other messages."""
    match = _ENDED.match(message)
    return match[1] if match else ""
