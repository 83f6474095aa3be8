"""EarlierCounters: what versions of models have counted that were loaded anew since."""

from __future__ import annotations

import msgspec

from pipeline.observe.snapshot import ModelCounters, Snapshot
from pipeline.observe.statistics import merge
from pipeline.runtime.observation import ObservabilityStack


class EarlierCounters:
    """The counters of loads that are over, by name and version: metrics go on from there.

    Statistics do not: they are those of the load that serves.
    """

    def __init__(self) -> None:
        self._ended: dict[tuple[str, str], ModelCounters] = {}
        self._ending: list[ObservabilityStack] = []

    def ending(self, observation: ObservabilityStack) -> None:
        """Take note of a load that finishes what it has, and still counts."""
        self._ending.append(observation)

    def ended(self, observation: ObservabilityStack) -> None:
        """Take over what a load has counted that was ending, and is over."""
        self._ending.remove(observation)
        for key, model in _models(observation.snapshot()):
            self._ended[key] = _added(model, self._ended.get(key))

    def add_to(self, snapshot: Snapshot) -> None:
        """Add what earlier loads of its models have counted to a Snapshot."""
        earlier = dict(self._ended)
        for each in self._ending:
            for key, model in _models(each.snapshot()):
                earlier[key] = _added(model, earlier.get(key))
        snapshot.models = [
            _added(model, earlier.get((model.name, model.version))) for model in snapshot.models
        ]


def _models(snapshot: Snapshot) -> list[tuple[tuple[str, str], ModelCounters]]:
    """Return what is a model to those who ask, by name and version."""
    return [((each.name, each.version), each) for each in snapshot.models if each.version]


def _added(model: ModelCounters, earlier: ModelCounters | None) -> ModelCounters:
    """Return a model's counters with those of before; what is no sum is its own."""
    if earlier is None:
        return model
    if earlier.first_part_bounds_ms != model.first_part_bounds_ms:
        earlier = msgspec.structs.replace(earlier, first_part_ms=[])
    (found,) = merge([[model], [earlier]])
    found.memory, found.recent_us, found.caches = model.memory, model.recent_us, model.caches
    return found
