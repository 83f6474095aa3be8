"""Counters of loads that are over: whose they are, and how many are kept."""

from __future__ import annotations

import pytest

from pipeline.observe.snapshot import ModelCounters, of_no_replica
from pipeline.predictors.base import MemoryUse
from pipeline.runtime import share
from pipeline.runtime.share import EarlierCounters


class Load:
    """A load's ObservabilityStack: it has counted so many successes of the model `same`."""

    def __init__(self, count):
        self._count = count

    def snapshot(self):
        return of_no_replica([ModelCounters("same", success_count=self._count)])


def counted(earlier, key):
    """Return the successes of a model that has just been loaded."""
    snapshot = Load(0).snapshot()
    snapshot.model = key
    earlier.add_to(snapshot)
    return snapshot.models[0].success_count


def test_models_of_one_name_in_two_repositories_have_separate_counters():
    earlier = EarlierCounters()
    for key, count in (("a/same", 1), ("b/same", 2), ("a/same", 4)):
        load = Load(count)
        earlier.ending(key, load)
        earlier.ended(load)
    earlier.ending("b/same", Load(8))
    assert [counted(earlier, f"{key}/same") for key in "abc"] == [5, 10, 0]


def test_the_oldest_counters_are_removed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(share, "_MOST_ENDED", 2)
    earlier = EarlierCounters()
    for key in ("a", "b", "a", "c"):
        load = Load(1)
        earlier.ending(key, load)
        earlier.ended(load)
    assert [counted(earlier, key) for key in "abc"] == [2, 0, 1]


def test_fields_that_are_no_sums_are_those_of_the_new_load():
    earlier = EarlierCounters()
    load = Load(1)
    earlier.ending("a/same", load)
    earlier.ended(load)
    new = ModelCounters("same", success_count=1, recent_us=[[1]], caches=True)
    new.memory, new.exemplars = [memory := MemoryUse("GPU", 0, 1)], ["exemplar"]
    snapshot = of_no_replica([new])
    snapshot.model = "a/same"
    earlier.add_to(snapshot)
    (total,) = snapshot.models
    assert total.success_count == 2
    kept = "recent_us", "caches", "memory", "exemplars"
    assert [getattr(total, name) for name in kept] == [[[1]], True, [memory], ["exemplar"]]
