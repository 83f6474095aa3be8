"""Elastic Ops: their number of workers follows the load. Resizing: changes that number."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from pipeline.config.batching import traits_of
from pipeline.config.sections import ElasticConfig, bounds_of
from pipeline.engine.journal.journal import Outcome
from pipeline.engine.op.dispatcher import OpDispatcher
from pipeline.engine.worker_api import Resizable
from pipeline.errors import ConfigError, GraphError, PipelineError, described
from pipeline.op import Op

_LOGGER = logging.getLogger(__name__)

_LOOK_S = 0.1
_MEMORY_S = 2.0  # the period over which the share of busy workers is averaged
_LEAVING_S = 10.0  # for workers to finish their jobs; longer jobs end by themselves
_MOST_PAUSE_S = 60.0  # between attempts to start workers after a failure


class Demand(NamedTuple):
    """An Op's workers and queue at one moment.

    Attributes:
        workers: number of workers.
        busy: how many of them have a job.
        queued: requests that wait for a worker.
        wait_s: estimated time until the last of these begins.
    """

    workers: int
    busy: int
    queued: int
    wait_s: float


class ElasticPolicy:
    """Computes how many workers an Op should have. Plain code of (demand, now).

    The number rises at once, with the share of busy workers and the waiting time of requests, but
    at most doubles at a time. It falls if no moment in the last `idle_s` needed as many workers,
    and reaches 0, if that is allowed, when no request came in that time.
    """

    def __init__(self, lowest: int, highest: int, config: ElasticConfig) -> None:
        self._lowest = lowest
        self._highest = highest
        self._config = config
        self._busy = 0.0  # running mean
        self._looked_at: float | None = None
        self._needs: deque[tuple[float, int]] = (
            deque()
        )  # (time, need), needs falling: the maxima since each time

    def wanted(self, seen: Demand, now: float) -> int:
        """Return how many workers there should be from now on."""
        need = self._need(seen, now)
        if not self._needs:
            self._needs.append((now, seen.workers))  # the workers at the start stay for `idle_s`
        while self._needs and self._needs[-1][1] <= need:
            self._needs.pop()
        self._needs.append((now, need))
        while self._needs[0][0] <= now - self._config.idle_s:
            self._needs.popleft()
        if need >= seen.workers:
            return need
        return min(seen.workers, self._needs[0][1])

    def _need(self, seen: Demand, now: float) -> int:
        """Return how many workers the current demand needs."""
        passed = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        self._busy += (seen.busy - self._busy) * min(1.0, passed / _MEMORY_S)
        if not seen.busy and not seen.queued:
            return max(self._lowest, min(self._by_share(), self._highest))
        by_wait = math.ceil(seen.workers * seen.wait_s * 1000 / self._config.max_wait_ms)
        need = min(max(self._by_share(), by_wait), 2 * seen.workers)
        return max(1, self._lowest, min(need, self._highest))

    def _by_share(self) -> int:
        """Return how many workers would be as busy as they should be."""
        return math.ceil(round(self._busy / self._config.utilization, 1))


class _ElasticOp:
    """One elastic Op, and the running change of its workers."""

    def __init__(self, node: OpDispatcher, policy: ElasticPolicy) -> None:
        self.node = node
        self._policy = policy
        self._change: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._pause_s = 1.0

    def look(self, now: float) -> None:
        """Begin to change the number of workers, if it is wrong."""
        if self._change is not None and not self._change.done():
            return
        node = self.node
        there = len(_resizable(node).numbers)
        wanted = self._policy.wanted(demand_of(node, there), now)
        if wanted == there or (wanted > there and now < self._not_before):
            return
        self._change = asyncio.create_task(self._resize(there, wanted))

    async def _resize(self, count: int, wanted: int) -> None:
        node = self.node
        try:
            await resize(node, wanted, timeout_s=0.0)
        except PipelineError as error:
            self._not_before = asyncio.get_running_loop().time() + self._pause_s
            _LOGGER.warning(
                "[%s] cannot change from %d to %d workers, next attempt in %.0f s: %s",
                *(node.name, count, wanted, self._pause_s, described(error)),
            )
            self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)
            if not count:
                node.fail(node.scheduler.clear(), error, Outcome.OTHER)
                node.places_freed()
            return
        self._pause_s = 1.0
        _LOGGER.info("[%s] %d workers instead of %d", node.name, wanted, count)

    async def close(self) -> None:
        """Stop a running change, and keep the workers that there are."""
        if self._change is not None:
            self._change.cancel()
            await asyncio.gather(self._change, return_exceptions=True)


class Elasticity:
    """All elastic Ops of an engine. On the event loop."""

    def __init__(self, nodes: Iterable[OpDispatcher]) -> None:
        self._ops: list[_ElasticOp] = []
        for node in nodes:
            bounds = bounds_of(node.op.pipeline_config)
            if bounds is not None:
                _check(node, bounds)
                policy = ElasticPolicy(*bounds, node.op.pipeline_config.elastic)
                self._ops.append(_ElasticOp(node, policy))
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check the Ops regularly from now on; their workers have started."""
        if self._ops:
            self._look()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        for op in self._ops:
            op.look(loop.time())
        self._timer = loop.call_later(_LOOK_S, self._look)

    async def close(self) -> None:
        """Stop all changes."""
        if self._timer is not None:
            self._timer.cancel()
        for op in self._ops:
            await op.close()


def demand_of(node: OpDispatcher, workers: int) -> Demand:
    """Return the demand at an Op with so many workers."""
    load, queued = node.load, len(node.scheduler)
    batches = queued / node.op.pipeline_config.batch_size
    wait_s = load.service_s * batches / max(1, workers)
    return Demand(workers, min(load.running, workers), queued, wait_s)


def _resizable(node: OpDispatcher) -> Resizable:
    workers = node.workers
    assert isinstance(workers, Resizable), "it was checked"
    return workers


def _check(node: OpDispatcher, bounds: tuple[int, int]) -> None:
    """Check that an Op's workers and scheduler can keep these bounds. Raises ConfigError."""
    workers, (lowest, highest) = node.workers, bounds
    if not isinstance(workers, Resizable) or not can_be_resized(node.op, highest):
        raise ConfigError(
            f"op.{node.name}: min_workers and max_workers do not go together with its workers, "
            "batching: iterative, rate_limiter or preserve_ordering: leave them out"
        )
    if not lowest and (not workers.may_be_none or node.op.pipeline_config.sequence.strategy):
        raise ConfigError(
            f"op.{node.name}.min_workers: expected at least 1, found 0: the memory of threads and "
            "sequences is not freed without workers. Use workers: process"
        )


# More workers, or fewer, while the Op works ---------------------------------------------------


def can_be_resized(op: Op, count: int) -> bool:
    """Return whether an Op may change to so many workers.

    Some schedulers plan with a fixed number and cannot.
    """
    config = op.pipeline_config
    if traits_of(config.batching).steps or config.rate_limiter:
        return False
    keeps_order = config.dynamic_batching.preserve_ordering
    return not (keeps_order and config.concurrency == 1 and count > 1)


async def resize(node: OpDispatcher, count: int, timeout_s: float = _LEAVING_S) -> None:
    """Change the number of an Op's workers; those with the highest numbers leave.

    New workers have started when this returns. A leaving worker finishes its jobs and its
    sequences. If it has no sequences, this waits for it, but at most `timeout_s`.

    Raises:
        InitError: a worker could not be started; nothing has changed.
        GraphError: the Op's workers, or its scheduler, cannot change the number.
    """
    workers = node.workers
    if not isinstance(workers, Resizable) or not can_be_resized(node.op, count):
        raise GraphError(f"Op {node.name!r} cannot have {count} workers while it runs.")
    new = [number for number in range(count) if number not in workers.numbers]
    if new:
        await workers.add(new)
    leaving = [number for number in workers.numbers if number >= count]
    if not any(op_filter.leave(leaving) for op_filter in node.filters) and leaving:
        workers.dismiss(leaving)
    op = node.op
    op.concurrency = count
    op.pipeline_config = msgspec.structs.replace(op.pipeline_config, concurrency=count)
    node.workers_changed()
    await workers.have_left(timeout_s)
