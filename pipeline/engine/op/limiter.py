"""WorkerLimit: batches of an Op wait until shared resources of its workers are free."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pipeline.config.schema import OpConfig
from pipeline.engine.op.channel import Item
from pipeline.engine.op.dispatcher import OpDispatcher
from pipeline.engine.op.filter import OpFilter, surround
from pipeline.engine.op.rate_limiter import SHARED, LimitedModel, Needs, RateLimiter
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.worker_api import Loop


class WorkerLimit(OpFilter):
    """Makes each batch wait until the rate limiter lets it begin.

    Raises ConfigError: the resources are not enough for one worker.

    Attributes:
        model: the Op at the limiter; None: the Op is closed.
    """

    group_obstacle: str = "its workers share resources with others"

    def __init__(self, node: OpDispatcher, limiter: RateLimiter) -> None:
        self.model: LimitedModel | None = limiter.add(
            needs_of(node.op.pipeline_config), self._begin
        )
        self._load = node.load
        self._call_next: Callable[[Sequence[Any]], None]

    def schedule(self, call_next: Callable[[], None]) -> None:
        if self.model is not None:
            self._load.most_workers = self.model.at_once
        call_next()

    def submit(self, call_next: Callable[[Sequence[Any]], None], runs: Sequence[BatchRun]) -> None:
        if self.model is None:
            call_next(runs)
            return
        self._call_next = call_next
        for run in runs:
            self.model.ask(run)

    def _begin(self, run: Any) -> None:
        self._call_next([run])

    def release(self, call_next: Callable[[Any], None], run: BatchRun | Item) -> None:
        call_next(run)
        if self.model is not None:
            self.model.release(run)

    def close(self) -> None:
        if self.model is not None:
            self.model.close()
            self.model = None


def open_limits(limiter: RateLimiter | None, nodes: Iterable[OpDispatcher], loop: Loop) -> None:
    """Add the Ops whose workers share resources to a limiter. Raises ConfigError, and adds none."""
    opened: list[WorkerLimit] = []
    if limiter is None:
        return

    def soon(work: Callable[[], None]) -> None:
        """Call `work` after the coming round in which dispatchers cut their batches."""
        loop.call_soon(functools.partial(_later, loop, work))

    limiter.soon = soon
    limited = [node for node in nodes if node.op.pipeline_config.rate_limiter and not node.streams]
    try:
        opened.extend(WorkerLimit(node, limiter) for node in limited)
    except BaseException:
        for open_limit in opened:
            open_limit.close()
        raise
    for node, limit in zip(limited, opened, strict=True):
        surround(node, limit, within=True)


def _later(loop: Loop, work: Callable[[], None]) -> None:
    loop.call_soon(work)


def needs_of(config: OpConfig) -> list[Needs]:
    """Return what each worker of an Op needs, from the groups of `rate_limiter`."""
    needs_by_copy: list[Needs] = []
    for group in config.rate_limiter:
        resources = {
            (SHARED if resource.is_global else group.device, resource.name): resource.count
            for resource in group.resources
            if resource.count
        }
        needs = Needs(resources, max(1, group.priority))
        needs_by_copy += [needs] * (group.workers or config.concurrency - len(needs_by_copy))
    needs_by_copy += [Needs()] * (config.concurrency - len(needs_by_copy))
    return needs_by_copy[: config.concurrency]
