"""ConvoyPath: decides which convoys an engine takes; see `engine.convoy`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.config.batching import has_sequences, traits_of
from pipeline.engine.convoy import ConvoyRun, MemberLostError, extra_members
from pipeline.engine.op.filter import Again, OpFilter
from pipeline.engine.run.payload import LOCAL
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.schedulers.base import held_start
from pipeline.engine.state import OpState
from pipeline.errors import PipelineError, note_op

if TYPE_CHECKING:
    from pipeline.config.schema import OpConfig, ServiceConfig
    from pipeline.engine.admission import AdmissionController
    from pipeline.engine.filters import FilterChain
    from pipeline.engine.op.channel import Item
    from pipeline.engine.op.dispatcher import OpDispatcher
    from pipeline.engine.ports import OpNode, Router
    from pipeline.engine.stored_inputs import StoredInputs

_SHARED_NS = 1_000_000  # total run time of requests that share a message; see `batches_ahead`
_MOST_SHARED = 32
_WEIGHT, _MOST_WEIGHT = 1 / 16, 1 / 2  # of a request in the running mean, and of a message


class ConvoyPath:
    """Decides how many requests may pass an engine as a convoy.

    None pass if anything around the Ops needs to see each request.
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

    def size(self, rows: int) -> int:
        """Return how many requests of so many samples may go together now; 0: none.

        All of them can be admitted at once, and every Op accepts so many.
        """
        if not self._passes:
            return 0
        return self._admission.room(min(_size_at(node, rows) for node in self._nodes.values()))

    @property
    def is_idle(self) -> bool:
        """Return whether the engine has no requests."""
        return self._admission.is_empty

    def forget(self, data_id: int) -> None:
        """Tell all workers that nobody waits for a request of a convoy."""
        for node in self._nodes.values():
            node.workers.forget(data_id)


def _size_at(node: OpNode, rows: int) -> int:
    """Return how many requests of so many samples may come to an Op as a convoy; 0: none."""
    sizes = [around.convoy_size(rows) for around in node.filters]
    return max(sizes, default=0) or node.workers.convoy_size(rows)


class ConvoyCount(OpFilter):
    """Counts the members of convoys at an Op that batches them, and takes convoys apart."""

    group_obstacle: str = "its scheduler batches requests that come together"

    def __init__(self, node: OpDispatcher) -> None:
        self._node: Any = node  # its scheduler can be iterated over
        self._is_local = node.workers.memory_domain is LOCAL

    def convoy_size(self, rows: int) -> int:
        """Return how many requests of so many samples make a batch."""
        return int(self._node.op.pipeline_config.batch_size // rows)

    def submit(self, call_next: Callable[[Sequence[Any]], None], runs: Sequence[BatchRun]) -> None:
        call_next([self._counted(run) for run in runs])

    def _counted(self, run: BatchRun) -> BatchRun:
        more = extra_members(run.items)
        self._node.load.items += more
        if more and self._is_local and type(run) is BatchRun:
            return ConvoyRun(run.items, run.worker, attempts=run.attempts)
        return run

    def release(self, call_next: Callable[[Any], None], run: BatchRun | Item) -> None:
        self._node.load.items -= extra_members(run.items)
        call_next(run)

    def complete_state(self, state: OpState) -> OpState:
        queued = self._node.scheduler
        return msgspec.structs.replace(state, queued=state.queued + extra_members(queued))


class SharedMessages(ConvoyCount):
    """Members of convoys at an Op that runs each request by itself: they share a message to a
    worker.

    The first member has its answer only when the last has run, so only quick requests go together:
    as many as may be sent ahead to a busy worker.
    """

    def __init__(self, node: OpDispatcher) -> None:
        super().__init__(node)
        self._mean_ns: float = _SHARED_NS  # of a request; assumed slow before the first is measured

    def convoy_size(self, rows: int) -> int:
        """Return how many requests may share a message."""
        return max(1, min(_MOST_SHARED, int(_SHARED_NS / max(1.0, self._mean_ns))))

    def release(self, call_next: Callable[[Any], None], run: BatchRun | Item) -> None:
        """Update the mean run time of a request."""
        took_ns, count = max(0, run.end_ns - run.start_ns), 1 + extra_members(run.items)
        if took_ns > _SHARED_NS and isinstance(run, BatchRun):
            # If one had to wait for a processor, for example, only that one is slow: cap each.
            ends_ns = [run.preprocess_end_ns, *(run.execution_ends_ns or [run.end_ns])]
            took_ns = sum(min(_SHARED_NS, end - start) for start, end in pairwise(ends_ns))
        self._mean_ns += (took_ns / count - self._mean_ns) * min(_MOST_WEIGHT, _WEIGHT * count)
        super().release(call_next, run)

    def again(self, call_next: Callable[..., Again], job: BatchRun, error: PipelineError) -> Again:
        """Let only the member fail that ran when its worker was lost."""
        convoy = job.items[0].convoy
        if convoy is not None and job.lost_at >= 0:
            note_op(error, self._node.name)
            error = MemberLostError(job.lost_at, error)
        return call_next(job, error)


def convoy_filter(node: OpDispatcher) -> ConvoyCount | None:
    """Return the filter that lets convoys pass an Op as a batch or a message; None: they cannot.

    They cannot if the number or the order of requests decides when and where they run.
    """
    config = node.op.pipeline_config
    traits, is_local = traits_of(config.batching), node.workers.memory_domain is LOCAL
    if not (node.workers.takes_convoys and config.retry == 1 and held_start(os.environ) is None):
        return None
    if config.response_cache or config.rate_limiter or node.op.pipeline_ragged:
        return None
    if traits.takes_convoys and _is_plain(config):
        return ConvoyCount(node)
    is_each = traits.shares_messages and config.batch_size == 1 and not has_sequences(config)
    if is_each and node.op.pipeline_spec and not (node.op.pipeline_merges or is_local):
        return SharedMessages(node)
    return None


def _is_plain(config: OpConfig) -> bool:
    batching = config.dynamic_batching
    return not (
        {*batching.preferred_batch_size} - {config.batch_size}
        or batching.priority_levels
        or batching.preserve_ordering
        or any(
            policy.default_timeout_microseconds
            or policy.allow_timeout_override
            or policy.max_queue_size
            for policy in batching.policies
        )
    )
