"""Storms of requests at Ops that keep answers and share resources: each ends, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import random

import numpy as np
import pytest
from doubles import Engine, Tag, run_virtual

from pipeline import RequestOp
from pipeline.engine.op.answer_cache import CacheError, ServerCache
from pipeline.engine.op.cache import ModelCache
from pipeline.engine.op.limiter import WorkerLimit, open_limits
from pipeline.engine.op.rate_limiter import RateLimiter
from pipeline.errors import OverloadedError

REQUESTS = 60
DYNAMIC = {"preferred_batch_size": [2], "preserve_ordering": True}
BATCHING = (
    {},
    {"batch_size": 3, "batching": "dynamic", "dynamic_batching": DYNAMIC},
    {"batch_size": 2, "auto_batching_timeout": 100},
)


class MoodyCache:
    """Answers at once or late, finds junk, and fails."""

    is_shared = True

    def __init__(self, rng):
        self.values: dict[bytes, bytes] = {}
        self._rng = rng

    async def open(self):
        pass

    async def close(self):
        pass

    def lookup(self, key):
        mood = self._rng.random()
        if mood < 0.1:
            raise ConnectionError("away")
        return self.values.get(key) if mood < 0.4 else self._late(key)

    async def _late(self, key):
        await asyncio.sleep(self._rng.random() * 2)
        mood = self._rng.random()
        if mood < 0.1:
            raise ConnectionError("away")
        return b"junk" if mood < 0.15 else self.values.get(key)

    def insert(self, key, value):
        mood = self._rng.random()
        if mood < 0.1:
            raise CacheError("never")
        return self._keep(key, value)

    async def _keep(self, key, value):
        await asyncio.sleep(self._rng.random() * 2)
        self.values[key] = value


class Feeds(Tag):
    """A Tag that has `process`, and so may take too long."""

    def preprocess(self, input_dicts, data_id, log_id):
        answer, *rest = super().preprocess(input_dicts, data_id, log_id)
        return {"path": np.array([[answer["path"]]], object)}, *rest

    def process(self, feed_batch, typical_logid=0):
        return feed_batch[0]

    def postprocess(self, input_dicts, fetched, data_id=0, log_id=0):
        return {"path": str(np.asarray(fetched["path"]).ravel()[0])}, None, ""


def settings(rng):
    """Of one Op."""
    result = {"concurrency": rng.choice([1, 2]), **rng.choice(BATCHING)}
    result["response_cache"] = rng.random() < 0.6
    if rng.random() < 0.5:
        need = {"name": "r", "count": rng.choice([1, 2])}
        result["rate_limiter"] = {"resources": [need], "priority": rng.choice([1, 2])}
    if rng.random() < 0.5:
        result |= {"timeout": 1500, "retry": rng.choice([1, 2])}
    return result


async def ask(engine, timeout_s, path):
    with contextlib.suppress(OverloadedError):
        await engine.ask(timeout_s, path=path)


async def storm(rng):
    source = RequestOp()
    left, right = Feeds("a", [source]), Feeds("b", [source])
    last = Feeds("d", [Feeds("c", [left, right])])
    config = {
        "op": {name: settings(rng) for name in "abcd"},
        "response_cache": rng.random() < 0.5,
        "dag": {"retry": rng.choice([1, 2]), "channel_size": rng.choice([0, 3])},
    }
    times = {name: rng.choice([0.0, 0.5, 1.0, 2.0]) for name in "abcd"}
    cache = ModelCache(ServerCache("moody", MoodyCache(rng)), "svc", "1")
    async with Engine(last, config, times, cache=cache) as there:
        open_limits(RateLimiter(), there.nodes.values(), asyncio.get_running_loop())
        asks = []
        for _ in range(REQUESTS):
            timeout_s = rng.choice([None, 1.0, 3.0, 30.0])
            path = str(rng.randrange(5))
            asks.append(asyncio.ensure_future(ask(there, timeout_s, path)))
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random())
            if rng.random() < 0.2:
                rng.choice(asks).cancel()
        done, pending = await asyncio.wait(asks, timeout=2000)
        assert (len(done), len(pending)) == (REQUESTS, 0)
        assert not [task.exception() for task in done if not task.cancelled() and task.exception()]
        await asyncio.sleep(10)
        assert there.executor.inside == 0
        for node in there.nodes.values():
            assert (node.load.running, len(node.scheduler)) == (0, 0)
            for limit in node.filters:
                if isinstance(limit, WorkerLimit):
                    assert (limit.model.running, list(limit.model._waiting)) == ([], [])
        cached = there.executor.executor.cached
        assert cached is None or not cached._lookups


@pytest.mark.parametrize("seed", range(40))
def test_each_request_ends_and_no_entry_remains(seed):
    run_virtual(storm(random.Random(seed)))
