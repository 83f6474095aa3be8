"""Calls of `init_op` and other `async def` methods, in the right context."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from pipeline.op import Op
from pipeline.system.event_loop import ending_alone

_LOGGER = logging.getLogger(__name__)


def run_init_op(op: Op, loop: asyncio.AbstractEventLoop | None) -> None:
    """Call `init_op`; changes to context variables, such as numpy's print options, persist.

    An `async def` init_op runs on `loop`; its context is copied back from there.
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
    """An Op of this library that wants a call when its worker ends."""

    def pipeline_end(self) -> None: ...


def end_op(op: Op) -> None:
    """Call `pipeline_end` of an Op that has one; an exception is logged."""
    if not isinstance(op, EndingOp):
        return
    try:
        op.pipeline_end()
    except Exception:  # user code
        _LOGGER.exception("[%s] failed in pipeline_end", op.name)
