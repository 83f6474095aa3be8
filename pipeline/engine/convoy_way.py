"""ConvoyWay: which convoys an engine takes; see `engine.convoy`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.config.batching import traits_of
from pipeline.engine.convoy import ConvoyRun, beside
from pipeline.engine.op.filter import OpFilter
from pipeline.engine.run.payload import LOCAL
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.schedulers.base import held_start
from pipeline.engine.state import OpState

if TYPE_CHECKING:
    from pipeline.config.schema import ServiceConfig
    from pipeline.engine.admission import AdmissionController
    from pipeline.engine.filters import FilterChain
    from pipeline.engine.op.channel import Item
    from pipeline.engine.op.dispatcher import OpDispatcher
    from pipeline.engine.ports import OpNode, Router
    from pipeline.engine.stored_inputs import StoredInputs


class ConvoyWay:
    """The way of convoys through an engine, if there is one.

    There is none where somebody around the Ops has to see each request.
    """

    def __init__(
        self,
        executor: Router,
        admission: AdmissionController,
        filters: FilterChain,
        config: ServiceConfig,
        stored: StoredInputs | None = None,
    ) -> None:
        self._nodes = executor.nodes
        self._admission = admission
        passes = filters.lets_convoys_pass and not config.dag.channel_size
        self._passes = passes and stored is None

    @property
    def rows(self) -> int:
        """Return how many samples a convoy may have that goes through all Ops; 0: none does."""
        return min(map(convoy_rows, self._nodes.values())) if self._passes else 0

    def has_room(self, count: int) -> bool:
        """Return whether so many requests may come that none of them has to wait to be admitted."""
        return self._admission.has_room(count)

    @property
    def is_idle(self) -> bool:
        """Return whether there is no request."""
        return self._admission.is_empty

    def forget(self, data_id: int) -> None:
        """Have all workers know that nobody waits for a request of a convoy."""
        for node in self._nodes.values():
            node.workers.forget(data_id)


def convoy_rows(node: OpNode) -> int:
    """Return how many samples a convoy may have at an Op; 0: none goes through it."""
    return node.convoy_rows or node.workers.convoy_rows


class ConvoyCount(OpFilter):
    """Counts the members of convoys at an Op whose scheduler batches them, and takes them apart."""

    goes_alone: str = "its scheduler batches requests that come together"

    def __init__(self, node: OpDispatcher) -> None:
        self._node = node
        self._is_local = node.workers.memory_domain is LOCAL
        node.convoy_rows = node.op.pipeline_config.batch_size

    def submit(self, go_on: Callable[[Sequence[Any]], None], runs: Sequence[BatchRun]) -> None:
        go_on([self._counted(run) for run in runs])

    def _counted(self, run: BatchRun) -> BatchRun:
        more = beside(run.items)
        self._node.load.items += more
        if more and self._is_local and type(run) is BatchRun:
            return ConvoyRun(run.items, run.worker, attempts=run.attempts)
        return run

    def release(self, go_on: Callable[[Any], None], run: BatchRun | Item) -> None:
        self._node.load.items -= beside(run.items)
        go_on(run)

    def seen(self, state: OpState) -> OpState:
        queued: Any = self._node.scheduler
        return msgspec.structs.replace(state, queued=state.queued + beside(queued))


def takes_convoys(node: OpDispatcher) -> bool:
    """Return whether requests may come together to an Op, and be batched as one of many samples.

    Not where how many they are, or which of them is first, says when and where they run.
    """
    config = node.op.pipeline_config
    batching = config.dynamic_batching
    is_plain = not (
        {*batching.preferred_batch_size} - {config.batch_size}
        or batching.priority_levels
        or batching.preserve_ordering
        or any(
            each.default_timeout_microseconds or each.allow_timeout_override or each.max_queue_size
            for each in batching.policies
        )
    )
    is_alone = not (config.response_cache or config.rate_limiter or node.op.pipeline_ragged)
    may = traits_of(config.batching).takes_convoys and node.workers.takes_convoys
    return may and is_plain and is_alone and config.retry == 1 and held_start(os.environ) is None
