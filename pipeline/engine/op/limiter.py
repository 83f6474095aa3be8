"""Dispatchers of Ops whose workers share resources with others: batches wait for their turn."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.config.schema import OpConfig
from pipeline.engine.op.dispatcher import OpDispatcher
from pipeline.engine.op.lone_run import LoneRun
from pipeline.engine.op.rate_limiter import SHARED, LimitedModel, Needs, RateLimiter
from pipeline.engine.op.shortcut import Shortcut
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.worker_api import Loop

if TYPE_CHECKING:
    from pipeline.engine.trips.trip import Trip


class LimitedDispatcher(OpDispatcher):
    """Has each batch wait until the rate limiter lets it begin, once there is one."""

    _limits: LimitedModel | None = None

    def open_limits(self, limiter: RateLimiter) -> None:
        """Ask the limiter from now on. Raises ConfigError: there is not enough for a worker."""
        self._limits = limiter.add(needs_of(self.op.pipeline_config), self._begin)
        self.goes_alone: str = "its workers share resources with others"
        self.shortcut: Shortcut | None = None  # which leads past the limiter

    def schedule(self) -> None:
        if self._limits is not None:
            self.load.most_workers = self._limits.at_once
        super().schedule()

    def submit(self, runs: Sequence[BatchRun | Trip]) -> None:
        if self._limits is None:
            super().submit(runs)
            return
        for run in runs:
            self._limits.ask(run)

    def _begin(self, run: Any) -> None:
        super().submit([run])

    def release(self, run: BatchRun | LoneRun) -> None:
        super().release(run)
        if self._limits is not None:
            self._limits.release(run)

    def close(self) -> None:
        super().close()
        if self._limits is not None:
            self._limits.close()
            self._limits = None


def limited(kind: type[OpDispatcher]) -> type[OpDispatcher]:
    """Return the same kind of dispatcher for Ops whose workers share resources."""
    return type(f"Limited{kind.__name__}", (LimitedDispatcher, kind), {})


def open_limits(limiter: RateLimiter | None, nodes: Iterable[OpDispatcher], loop: Loop) -> None:
    """Have those ask a limiter whose workers share resources. Raises ConfigError; none does."""
    opened: list[LimitedDispatcher] = []
    if limiter is None:
        return

    def soon(work: Callable[[], None]) -> None:
        """Work behind the round in which dispatchers cut their batches, which is to come."""
        loop.call_soon(functools.partial(_later, loop, work))

    limiter.soon = soon
    for node in nodes:
        if isinstance(node, LimitedDispatcher):
            try:
                node.open_limits(limiter)
            except BaseException:
                for each in opened:
                    each.close()
                raise
            opened.append(node)


def _later(loop: Loop, work: Callable[[], None]) -> None:
    loop.call_soon(work)


def needs_of(config: OpConfig) -> list[Needs]:
    """Return what each worker of an Op needs, as `rate_limiter` says of groups of them."""
    found: list[Needs] = []
    for group in config.rate_limiter:
        resources = {
            (SHARED if each.is_global else group.device, each.name): each.count
            for each in group.resources
            if each.count
        }
        needs = Needs(resources, max(1, group.priority))
        found += [needs] * (group.workers or config.concurrency - len(found))
    found += [Needs()] * (config.concurrency - len(found))
    return found[: config.concurrency]
