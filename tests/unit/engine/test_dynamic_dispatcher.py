"""An Op with `batching: dynamic` in an engine: who is refused, how it is counted, who waits."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from doubles import Engine, Tag, answers, chain, settle, virtual

from pipeline import Op, RequestOp
from pipeline.engine.journal.journal import Outcome
from pipeline.engine.request import RequestTarget, ask
from pipeline.errors import ConfigError, ErrorCode, WorkerDiedError

DIED = WorkerDiedError("the worker process was killed")


def dynamic(op, batch_size=1, concurrency=1, name="a", service_s=None, **batching):
    """An engine with an Op whose batches run until they are released."""
    keys = {"batching": "dynamic", "batch_size": batch_size, "concurrency": concurrency, "retry": 2}
    config = {"op": {name: {**keys, "dynamic_batching": batching}}}
    return Engine(op, config, {name: service_s})


@virtual
async def test_a_request_that_waits_too_long_is_refused_in_time_and_counts_as_rejected():
    policy = {"default_timeout_microseconds": 100_000}
    async with dynamic(chain("a", "b"), default_queue_policy=policy) as engine:
        first = engine.ask(path="x")
        await settle()
        began = asyncio.get_running_loop().time()
        late = await engine.ask(path="y")
        assert asyncio.get_running_loop().time() == pytest.approx(began + 0.1)
        assert (late.err_no, late.err_msg) == (ErrorCode.OVERLOADED, "Request timeout expired")
        engine.pools["a"].release()
        assert answers(await first) == {"path": "x>a>b"}
        engine.journal.flush()
    reported = [(span["op"], span["outcome"]) for span in engine.spans]
    assert reported == [(0, Outcome.REJECTED), (0, Outcome.OK), (1, Outcome.OK)]
    assert [request["outcome"] for request in engine.requests] == [Outcome.OTHER, Outcome.OK]


@virtual
async def test_a_request_at_a_full_queue_is_refused_and_not_counted_at_the_op():
    async with dynamic(chain("a"), default_queue_policy={"max_queue_size": 2}) as engine:
        tasks = [engine.ask(path=str(number)) for number in range(4)]
        refused = await tasks[3]
        assert refused.err_no == ErrorCode.OVERLOADED
        assert refused.err_msg == "[request id: <id_unknown>] Exceeds maximum queue size"
        for number in range(3):
            engine.pools["a"].release()
            assert answers(await tasks[number]) == {"path": f"{number}>a"}
        engine.journal.flush()
    assert [span["outcome"] for span in engine.spans] == [Outcome.OK] * 3


@virtual
async def test_refused_requests_occupy_no_places():
    """They leave the queue together, and requests that waited for admission continue."""
    config = {
        "worker_num": 3,
        "dag": {"channel_size": 2},
        "op": {
            "a": {
                "batching": "dynamic",
                "dynamic_batching": {
                    "default_queue_policy": {"default_timeout_microseconds": 100_000}
                },
            }
        },
    }
    async with Engine(chain("a"), config, {"a": None}) as engine:
        tasks = [engine.ask(path=str(number)) for number in range(5)]
        await settle()
        done = await asyncio.gather(*tasks[1:])
        assert [item.err_msg for item in done] == ["Request timeout expired"] * 4
        engine.pools["a"].release()
        assert answers(await tasks[0]) == {"path": "0>a"}


def finish(pool, data_id):
    """Let the worker finish that has this request."""
    pool._finish(next(w for w in pool.busy() if data_id in [i.data_id for i in w.job.items]))


@pytest.mark.parametrize("keeps", [True, False])
@virtual
async def test_answers_are_in_order_with_preserve_ordering(keeps):
    async with dynamic(chain("a", "b"), concurrency=3, preserve_ordering=keeps) as engine:
        tasks = [engine.ask(path=str(number)) for number in range(3)]
        await settle()
        pool = engine.pools["a"]
        ids = [batch[0] for batch in pool.batches]
        finish(pool, ids[1])
        await settle()
        assert tasks[1].done() is not keeps
        again = engine.ask(path="3")
        await settle()
        assert len(pool.batches) == 4, "a worker that is done has the next one"
        finish(pool, ids[2])
        await settle()
        assert tasks[2].done() is not keeps
        finish(pool, ids[0])
        await settle()
        assert all(task.done() for task in tasks)
        assert not again.done()
        pool.release()
        assert answers(await again) == {"path": "3>a>b"}
        assert (
            engine.pools["b"].batches == [[ids[0]], [ids[1]], [ids[2]], [ids[2] + 1]] or not keeps
        )


@virtual
async def test_a_repeated_batch_keeps_its_position_and_a_failed_one_releases_it():
    async with dynamic(chain("a"), concurrency=2, preserve_ordering=True) as engine:
        tasks = [engine.ask(path=str(number)) for number in range(2)]
        await settle()
        pool = engine.pools["a"]
        (node,) = engine.nodes.values()
        first, second = (batch[0] for batch in pool.batches)
        (worker,) = [w for w in pool.busy() if w.job.items[0].data_id == first]
        lost = worker.job
        pool.replace(worker, None)
        finish(pool, second)
        node.lost(lost, DIED)
        await settle()
        assert not tasks[1].done(), "the first one runs again"
        (worker,) = pool.busy()
        pool.replace(worker, None)
        node.lost(worker.job, DIED)
        await settle()
        assert (await tasks[0]).err_no
        assert answers(await tasks[1]) == {"path": "1>a"}


@virtual
async def test_a_cancelled_request_delays_no_other():
    async with dynamic(chain("a"), concurrency=2, preserve_ordering=True) as engine:
        tasks = [engine.ask(path=str(number)) for number in range(2)]
        await settle()
        pool = engine.pools["a"]
        first, second = (batch[0] for batch in pool.batches)
        tasks[0].cancel()
        await settle()
        finish(pool, second)
        finish(pool, first)
        assert answers(await tasks[1]) == {"path": "1>a"}


class Feeds(Op):
    """Says how large the batches of process are."""

    def process(self, feed_batch):
        return {"rows": np.full(len(feed_batch[0]["x"]), len(feed_batch[0]["x"]))}


@virtual
async def test_requests_that_cannot_be_merged_do_not_share_a_batch():
    op = Feeds("a", [RequestOp()], batch_size=8, dynamic_batching={"preferred_batch_size": [3]})
    async with Engine(op, service_s={"a": None}) as engine:
        pool, begin = engine.pools["a"], engine.executor.begin
        shapes = [(1, 4), (1, 4), (2, 4), (1, 5), (1, 5)]
        tasks = [
            ask(
                begin,
                None,
                target=RequestTarget(
                    op,
                    {"@DAGExecutor": {"x": np.zeros(shape), "y": np.zeros((shape[0], 1))}},
                    wants_response=False,
                    rows=shape[0],
                ),
            )
            for shape in [(1, 4), *shapes]
        ]
        await settle()
        pool.release()
        await tasks[0]
        for _ in range(3):
            await settle()
            pool.release()
        await asyncio.gather(*tasks[1:])
        assert [len(batch) for batch in pool.batches] == [3, 1, 2]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"dynamic_batching": {"priority_levels": 1}}, "is for batching: dynamic, found full"),
        (
            {"batching": "dynamic", "auto_batching_timeout": 5},
            "with auto_batching_timeout: max_queue_delay_microseconds says it, leave that out",
        ),
        (
            {"batching": "dynamic", "dynamic_batching": {"preferred_batch_size": [5]}},
            "dynamic batching preferred size must be <= max batch size for a",
        ),
        (
            {"batching": "dynamic", "dynamic_batching": {"priority_levels": 3}},
            "default priority level must be in range [1, 3] for a",
        ),
        (
            {
                "batching": "dynamic",
                "dynamic_batching": {
                    "priority_levels": 1,
                    "default_priority_level": 1,
                    "priority_queue_policy": {"level": 2},
                },
            },
            "priority queue policy must have priority level in range [1, 1] for a",
        ),
        (
            {
                "batching": "dynamic",
                "dynamic_batching": {
                    "preserve_ordering": True,
                    "priority_levels": 2,
                    "default_priority_level": 1,
                },
            },
            "Only one priority level is allowed when 'preserve_ordering' is true for a",
        ),
        (
            {
                "batching": "dynamic",
                "dynamic_batching": {
                    "preserve_ordering": True,
                    "default_queue_policy": {
                        "timeout_action": "DELAY",
                        "default_timeout_microseconds": 1,
                    },
                },
            },
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true "
            "for a",
        ),
        ({"batching": "dynamic", "sequence": {"strategy": "direct"}}, "the strategy says how"),
    ],
)
def test_keys_that_exclude_each_other_are_refused(keys, text):
    with pytest.raises(ConfigError) as refused:
        Engine(Tag("a", [RequestOp()]), {"op": {"a": keys}})
    assert text in str(refused.value)


def test_the_argument_is_checked_as_the_configuration_is():
    op = Tag("a", [RequestOp()], dynamic_batching={"preferred_batch_sizes": [1]})
    with pytest.raises(ConfigError, match="did you mean preferred_batch_size"):
        Engine(op)
