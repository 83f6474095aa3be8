"""A scheduler that a script registers has the same filters around it as built-in ones."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from doubles import Engine, answers, chain, settle, virtual

from pipeline.config import registry
from pipeline.config.batching import SchedulerTraits, traits_of
from pipeline.engine.op.answer_cache import ServerCache
from pipeline.engine.op.cache import ModelCache
from pipeline.engine.op.limiter import open_limits
from pipeline.engine.op.rate_limiter import RateLimiter
from pipeline.engine.schedulers.base import Batch, ReadyQueue
from pipeline.errors import ConfigError


class NewestFirst(ReadyQueue):
    """Each request is a batch; who came last goes first."""

    traits: ClassVar = SchedulerTraits(reads_section=True)

    def __init__(self, config, options):
        super().__init__()

    def next(self, load, now):
        ready = load.running < min(load.workers, load.most_workers) and self._ready
        return Batch([self._ready.pop()[2]]) if ready else None

    def done(self, batch, now):
        pass


class Passed(NewestFirst):
    """The same, for which a lone request need not wait."""

    traits: ClassVar = SchedulerTraits(lets_pass=True)


class Derived(Passed):
    """One that has said nothing."""


class DictCache:
    """A cache."""

    is_shared = True

    def __init__(self):
        self.values = {}

    async def open(self):
        pass

    async def close(self):
        pass

    def lookup(self, key):
        return self.values.get(key)

    def insert(self, key, value):
        self.values[key] = value


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    for kind in (NewestFirst, Passed, Derived):
        registry.register("schedulers", kind.__name__.lower(), kind)


def finish(pool, data_id):
    pool._finish(next(w for w in pool.busy() if w.job.items[0].data_id == data_id))


@virtual
async def test_an_external_scheduler_has_ordering_cache_and_rate_limits():
    config = {
        "batching": "newestfirst",
        "concurrency": 3,
        "dynamic_batching": {"preserve_ordering": True},
        "response_cache": True,
        "rate_limiter": {"resources": [{"name": "r", "count": 1}]},
    }
    cache = ModelCache(ServerCache("kept", DictCache()), "svc", "1")
    async with Engine(chain("a"), {"op": {"a": config}}, {"a": None}, cache=cache) as engine:
        limiter = RateLimiter({(-1, "r"): 2})
        open_limits(limiter, engine.nodes.values(), asyncio.get_running_loop())
        tasks = [engine.ask(path=str(number)) for number in range(4)]
        await settle()
        pool = engine.pools["a"]
        begun = [batch[0] for batch in pool.batches]
        assert len(begun) == 2, "there is enough for two of three workers"
        newest, next_to_it = tasks[3], tasks[2]
        assert begun[0] > begun[1], "who came last goes first"
        finish(pool, begun[1])
        await settle()
        assert not next_to_it.done(), "the answer before it is not there"
        finish(pool, begun[0])
        assert answers(await newest) == {"path": "3>a"}
        assert answers(await next_to_it) == {"path": "2>a"}
        again = await engine.ask(path="3")
        assert answers(again) == {"path": "3>a"}, "it was kept"
        while not all(task.done() for task in tasks):
            await settle()
            pool.release()
        assert len(pool.batches) == 4


def test_a_derived_scheduler_does_not_inherit_traits():
    assert traits_of("passed").lets_pass
    assert traits_of("derived") == SchedulerTraits()


def test_dynamic_batching_is_refused_for_a_scheduler_that_does_not_read_it():
    keys = {"batching": "passed", "dynamic_batching": {"preserve_ordering": True}}
    with pytest.raises(ConfigError, match="is for batching: dynamic, found passed"):
        Engine(chain("a"), {"op": {"a": keys}})
