"""Calls of `init_op`, and of what else is `async def`, in the context that they belong to."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, runtime_checkable

from pipeline.op import Op

_LOGGER = logging.getLogger(__name__)


async def ending_alone(coroutine: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Return what a coroutine returns, or what it raises that would end the event loop, too."""
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


def run_init_op(op: Op, loop: asyncio.AbstractEventLoop | None) -> None:
    """Call `init_op`; what it sets in its context, such as numpy's print options, stays set.

    An `async def` one runs on `loop`, in a context of its own that is taken over from there.
    """
    init_op: Callable[[], Any] = op.init_op
    if not inspect.iscoroutinefunction(init_op):
        init_op()
        return
    assert loop is not None, "there is a loop for every async method"

    async def run() -> tuple[BaseException | None, contextvars.Context]:
        return (await ending_alone(init_op()))[1], contextvars.copy_context()

    now = contextvars.copy_context()
    left_by, context = asyncio.run_coroutine_threadsafe(run(), loop).result()
    if left_by is not None:
        raise left_by
    for variable, value in context.items():
        if variable not in now or now[variable] is not value:
            variable.set(value)


@runtime_checkable
class EndingOp(Protocol):
    """An Op of ours that is told when its worker ends."""

    def pipeline_end(self) -> None: ...


def end_op(op: Op) -> None:
    """Tell an Op that its worker ends, if it wants to know; what it raises is logged."""
    if not isinstance(op, EndingOp):
        return
    try:
        op.pipeline_end()
    except Exception:  # user code
        _LOGGER.exception("[%s] failed at its end", op.name)
