"""ConvoyWay: which convoys an engine takes; see `engine.convoy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.config.schema import ServiceConfig
    from pipeline.engine.admission import AdmissionController
    from pipeline.engine.filters import FilterChain
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
