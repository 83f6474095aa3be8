"""Resizing: more workers for an Op, or fewer, while it works."""

from __future__ import annotations

import msgspec

from pipeline.config.batching import traits_of
from pipeline.engine.op.dispatcher import OpDispatcher
from pipeline.engine.worker_api import Resizable
from pipeline.errors import GraphError
from pipeline.op import Op

_LEAVING_S = 10.0  # for workers to finish what they have; what takes longer ends by itself


def can_be_resized(op: Op, count: int) -> bool:
    """Return whether an Op may have so many workers from now on.

    Schedulers that have planned with the number that there was cannot.
    """
    config = op.pipeline_config
    if traits_of(config.batching).steps or config.rate_limiter:
        return False
    keeps_order = config.dynamic_batching.preserve_ordering
    return not (keeps_order and config.concurrency == 1 and count > 1)


async def resize(node: OpDispatcher, count: int, timeout_s: float = _LEAVING_S) -> None:
    """Have an Op worked on by so many workers: those with the highest numbers go.

    New ones are there when this returns. Who goes finishes what it has begun, and its sequences;
    what has nothing of a sequence is waited for, so long at most. Nothing else is disturbed.

    Raises:
        InitError: a worker could not be started; all is as before.
        GraphError: the Op's workers, or its scheduler, cannot.
    """
    workers = node.workers
    if not isinstance(workers, Resizable) or not can_be_resized(node.op, count):
        raise GraphError(f"Op {node.name!r} cannot have {count} workers while it runs.")
    new = [number for number in range(count) if number not in workers.numbers]
    if new:
        await workers.add(new)
    gone = [number for number in workers.numbers if number >= count]
    if not any(each.leave(gone) for each in node.filters) and gone:
        workers.dismiss(gone)
    op = node.op
    op.concurrency = count
    op.pipeline_config = msgspec.structs.replace(op.pipeline_config, concurrency=count)
    node.workers_changed()
    await workers.have_left(timeout_s)
