"""Convoys in ensembles: they go from step to step; where one is different, each by itself."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import AsyncIterator

import numpy as np
import pytest
from doubles import settle, virtual
from ensembling import Shelf, config_of, ensemble_of

from pipeline.data import NO_INFO, RequestInfo
from pipeline.engine.convoy import Convoy, member_outcomes
from pipeline.engine.journal.journal import Outcome
from pipeline.errors import InputError, WorkerDiedError
from pipeline.workers.model_convoys import ConvoyCalls

BATCHED = {"batching": "dynamic", "batch_size": 8}


def plus(amount):
    def model(x):
        if x.min() < 0:
            raise InputError("below zero")
        return {"y": x + amount}

    return model


@contextlib.asynccontextmanager
async def shelf() -> AsyncIterator[Shelf]:
    result = Shelf()
    try:
        yield result
    finally:
        await result.close()


async def chain(there, *steps, b=BATCHED, b_s=0.0):
    """`e` is x + 1 + 10 + 100; `b` takes `b_s` seconds, None: until it is released."""
    for name, amount in (("a", 1), ("b", 10), ("c", 100)):
        settings = b if name == "b" else BATCHED
        config = config_of(name, {"x": [1]}, {"y": [1]}, batch=8)
        await there.add(config, plus(amount), b_s if name == "b" else 0.0, **settings)
    steps = steps or (
        ("a", {"x": "in"}, {"y": "p"}),
        ("b", {"x": "p"}, {"y": "q"}),
        ("c", {"x": "q"}, {"y": "out"}),
    )
    await there.add_ensemble(ensemble_of("e", {"in": [1]}, {"out": [1]}, *steps, batch=8))


def begin(there, *values, infos=(), info=NO_INFO):
    """Requests of one sample each; returns (the convoy, a future of the ChannelData)."""
    convoy = Convoy([1] * len(values), list(infos))
    feeds = {"in": np.array(values, np.float32).reshape(-1, 1)}
    answer = there.ask("e", info=info, sink=None, convoy=convoy, **feeds)
    return convoy, answer


def shown(error):
    """Its text without what a model's Op says around it: data ids."""
    text = str(error)
    return "in ensemble 'e', below zero" if text.endswith(".") and "below zero" in text else text


async def ask(there, *values, **more):
    """Return the answer to each."""
    convoy, answer = begin(there, *values, **more)
    data = await answer
    assert data.error is None
    return [
        shown(outcome) if isinstance(outcome, Exception) else outcome and outcome["out"].tolist()
        for outcome in member_outcomes(data.payload, convoy.rows)
    ]


def counted(there, name):
    """How the requests to a model ended."""
    there.journals[name].flush()
    return [item["outcome"] for item in there.requests[name]]


@virtual
async def test_a_convoy_passes_the_steps_unsplit():
    async with shelf() as there:
        await chain(there)
        assert await ask(there, 1, 2, 3) == [[[112]], [[113]], [[114]]]
        assert [[feed["x"].tolist() for feed in there.ops[entry].seen] for entry in "abc"] == [
            [[[1], [2], [3]]],
            [[[2], [3], [4]]],
            [[[12], [13], [14]]],
        ]
        for item in "abce":
            assert counted(there, item) == [0, 0, 0]


@virtual
async def test_each_step_receives_the_request_info():
    async with shelf() as there:
        await chain(there)
        infos = [RequestInfo(id="one"), RequestInfo(id="two")]
        await ask(there, 1, 2, infos=infos)
        for item in "abc":  # these merge their batches: the model gets both
            assert [told.id for told in there.ops[item].told] == ["one", "two"]


@virtual
async def test_after_a_failed_member_the_others_continue_separately():
    async with shelf() as there:
        await chain(there)
        assert await ask(there, 1, -5, 3) == [[[112]], "in ensemble 'e', below zero", [[114]]]
        ok, failed = int(Outcome.OK), int(Outcome.BACKEND)
        assert counted(there, "a") == [ok, failed, ok]
        assert counted(there, "b") == [ok, ok]
        assert counted(there, "c") == [ok, ok]
        assert counted(there, "e") == [ok, failed, ok]


@virtual
async def test_a_model_without_convoys_gets_single_requests():
    async with shelf() as there:
        await chain(there, b={"batching": "full"})
        assert there.engines["e"].executor.convoys.size(1) == 0
        assert await ask(there, 1, 2) == [[[112]], [[113]]]
        assert [feed["x"].tolist() for feed in there.ops["b"].seen] == [[[2]], [[3]]]
        assert [feed["x"].tolist() for feed in there.ops["c"].seen] == [[[12], [13]]]


@virtual
async def test_separate_calls_are_released_with_the_answer():
    async with shelf() as there:
        await chain(there, b={"batching": "full"})
        await ask(there, 1, 2)
        asked = [item for item in gc.get_objects() if isinstance(item, ConvoyCalls)]
        assert asked
        assert not any(item._handles for item in asked), "whose sinks have it: a cycle"


@virtual
async def test_a_join_has_them_together_again():
    async with shelf() as there:
        await there.add(
            config_of("d", {"left": [1], "right": [1]}, {"y": [1]}, batch=8),
            lambda left, right: {"y": left * right},
            **BATCHED,
        )
        steps = (
            ("a", {"x": "in"}, {"y": "p"}),
            ("b", {"x": "in"}, {"y": "q"}),
            ("d", {"left": "p", "right": "q"}, {"y": "out"}),
        )
        await chain(there, *steps)
        assert await ask(there, 1, 2) == [[[2 * 11]], [[3 * 12]]]
        assert len(there.ops["d"].seen) == 1
        assert await ask(there, 1, -2) == [[[2 * 11]], "in ensemble 'e', below zero"]


@virtual
async def test_outputs_of_several_steps_belong_to_their_members():
    async with shelf() as there:
        await there.add(config_of("s", {"x": [1]}, {"y": [1]}, batch=8), plus(5), **BATCHED)
        await there.add(config_of("t", {"x": [1]}, {"y": [1]}, batch=8), plus(7), **BATCHED)
        steps = (("s", {"x": "in"}, {"y": "out"}), ("t", {"x": "in"}, {"y": "other"}))
        config = ensemble_of("e", {"in": [1]}, {"out": [1], "other": [1]}, *steps, batch=8)
        await there.add_ensemble(config)
        assert there.engines["e"].executor.convoys.size(1) == 8
        assert await ask(there, 1, 2) == [[[6]], [[7]]]
        assert await ask(there, 1, -2) == [[[6]], "in ensemble 'e', below zero"]


@virtual
async def test_a_cancelled_member_is_reported_to_the_running_model():
    async with shelf() as there:
        await chain(there, b_s=None)
        convoy, answer = begin(there, 1, 2)
        await settle()
        convoy.leave(1)
        there.pools["b"].release()
        data = await answer
        result = member_outcomes(data.payload, convoy.rows)
        assert result[0]["out"].tolist() == [[112]]
        ok, left = int(Outcome.OK), int(Outcome.CANCELED)
        for item in "be":
            assert counted(there, item) == [ok, left]


@virtual
async def test_a_convoy_of_cancelled_members_is_dropped_at_the_model():
    async with shelf() as there:
        await chain(there, b_s=None)
        convoy, answer = begin(there, 1, 2)
        await settle()
        for place in (0, 1):
            convoy.leave(place)
        answer.request.cancel()
        await settle()
        assert there.engines["b"].inside == there.engines["e"].inside == 0
        assert counted(there, "e") == [int(Outcome.CANCELED)] * 2


@virtual
async def test_members_of_a_dead_worker_run_one_by_one():
    async with shelf() as there:
        await chain(there, b_s=None)
        _, answer = begin(there, 1, 2)
        await settle()
        pool = there.pools["b"]
        (run,) = [worker.job for worker in pool.busy()]
        node = there.engines["b"].executor.nodes[there.ops["b"]]
        (worker,) = pool.busy()
        pool.replace(worker, None)
        node.lost(run, WorkerDiedError("it died"))
        for _ in range(4):
            await settle()
            pool.release()
        data = await answer
        assert [outcome["out"].tolist() for outcome in member_outcomes(data.payload, [1, 1])] == [
            [[112]],
            [[113]],
        ]
        assert counted(there, "b") == [0, 0]


@virtual
async def test_a_missing_model_fails_all_members():
    async with shelf() as there:
        await chain(there)
        del there.configs["b"], there.engines["b"]
        result = await ask(there, 1, 2)
        assert result == ["in ensemble 'e', Request for unknown model: 'b' is not found"] * 2


@pytest.mark.parametrize("seed", range(12))
def test_members_together_and_alone_get_equal_answers(seed):
    @virtual
    async def compare():
        chance = np.random.default_rng(seed)
        async with shelf() as there:
            await chain(there, b=BATCHED if seed % 3 else {"batching": "full"})
            values = [int(integer) for integer in chance.integers(-20, 30, chance.integers(2, 8))]
            together = await ask(there, *values)
            alone = []
            for value in values:
                data = await there.ask("e", **{"in": [[value]]})
                error = data.error
                alone.append(data.payload["out"].tolist() if error is None else shown(error))
            assert together == alone
            assert there.engines["e"].inside == 0

    compare()
