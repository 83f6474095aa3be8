"""EarlierCounters: what versions of models have counted that were loaded anew since."""

from __future__ import annotations

import msgspec

from pipeline.observe.snapshot import ModelCounters, Snapshot
from pipeline.observe.statistics import merge
from pipeline.runtime.observation import ObservabilityStack

_MOST_ENDED = 1024  # versions of models; some servers load models under names that they generate

Version = tuple[str, str]
"""The key of a model in the registry, and its version."""


class EarlierCounters:
    """The counters of loads that are over: metrics go on from there.

    Statistics do not: they are those of the load that serves. Of more versions of models than
    `_MOST_ENDED`, those that ended first are forgotten.
    """

    def __init__(self) -> None:
        self._ended: dict[Version, ModelCounters] = {}
        self._ending: dict[ObservabilityStack, str] = {}

    def ending(self, key: str, observation: ObservabilityStack) -> None:
        """Take note of a load of the model `key` that finishes what it has, and still counts."""
        self._ending[observation] = key

    def ended(self, observation: ObservabilityStack) -> None:
        """Take over what a load has counted that was ending, and is over."""
        for version, model in _models(self._ending.pop(observation), observation.snapshot()):
            self._ended[version] = _added(model, self._ended.pop(version, None))  # now the last
        while len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def add_to(self, snapshot: Snapshot) -> None:
        """Add what earlier loads of its model have counted to the Snapshot of a `model`."""
        earlier = dict(self._ended)
        for observation, key in self._ending.items():
            for version, model in _models(key, observation.snapshot()):
                earlier[version] = _added(model, earlier.get(version))
        snapshot.models = [
            _added(model, earlier.get((snapshot.model, model.version)) if model.version else None)
            for model in snapshot.models
        ]


def _models(key: str, snapshot: Snapshot) -> list[tuple[Version, ModelCounters]]:
    """Return what is a model to those who ask: a graph of a repository has one."""
    return [((key, each.version), each) for each in snapshot.models if each.version]


def _added(model: ModelCounters, earlier: ModelCounters | None) -> ModelCounters:
    """Return a model's counters with those of before; what is no sum is its own."""
    if earlier is None:
        return model
    if earlier.first_part_bounds_ms != model.first_part_bounds_ms:
        earlier = msgspec.structs.replace(earlier, first_part_ms=[])
    (found,) = merge([[model], [earlier]])
    found.memory, found.recent_us, found.caches = model.memory, model.recent_us, model.caches
    return found
