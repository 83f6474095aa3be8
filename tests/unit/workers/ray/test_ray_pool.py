"""Actors that the test plays: what they are sent, what comes of it, how they are replaced."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest
from doubles import settle, virtual
from fake_children import Sample, run_of
from fake_ray import RayPool, big

from pipeline import Op
from pipeline.config.sections import RayOpConfig
from pipeline.engine.run.payload import opened
from pipeline.errors import DataLostError, InitError, UserCodeError
from pipeline.workers.ray.api import UnreachableError


class Doubling(Op):
    def preprocess(self, input_dicts):
        return dict(input_dicts["read"])

    def postprocess(self, input_dicts, fetch_data):
        return {key: value * 2 for key, value in fetch_data.items()}


class Jumping(Doubling):
    def check_jumping(self, input_data):
        return True


class Failing(Op):
    def init_op(self):
        raise ValueError("no such file")


@virtual
async def test_a_batch_is_sent_whole_and_its_answers_return():
    async with RayPool(Doubling("op")) as pool:
        (actor,) = await pool.up()
        run = run_of(1, 2, x=3)
        pool.workers.submit([run])
        actor.runs()
        await settle()
        assert pool.finished == [run]
        assert [opened(outcome) for outcome in run.outcomes] == [{"x": 6}, {"x": 6}]
        assert run.start_ns <= run.end_ns


@virtual
async def test_each_batch_is_a_call_and_the_next_is_sent_ahead():
    async with RayPool(Doubling("op"), count=2) as pool:
        first, second = await pool.up()
        assert pool.workers.ahead == 1
        runs = [run_of(number) for number in range(4)]
        pool.workers.submit(runs)
        assert [len(first.calls), len(second.calls)] == [2, 2]
        first.runs()
        await settle()
        assert pool.finished == [runs[0]]


@virtual
async def test_an_init_op_that_fails_fails_the_start():
    async with RayPool(Failing("op")) as pool:
        with pytest.raises(InitError, match=r"(?s)'op' failed to start: .*no such file.*init_op"):
            await pool.up()


@virtual
async def test_an_op_that_cannot_be_sent_fails_the_start():
    async with RayPool(Doubling("op")) as pool:
        pool.api.refusal = TypeError("cannot pickle a lock")
        with pytest.raises(InitError, match=r"could not be started: .*cannot pickle a lock"):
            await pool.workers.start()


@virtual
async def test_an_actor_without_resources_fails_the_start():
    async with RayPool(Doubling("op")) as pool:
        with pytest.raises(InitError, match=r"0 of 1 actors .* needs num_cpus 1; there are 1 nod"):
            await pool.workers.start()


@virtual
async def test_small_payloads_are_sent_with_the_call_and_large_ones_by_reference():
    async with RayPool(Doubling("op")) as pool:
        (actor,) = await pool.up()
        run = run_of(1, x=big(1), y=np.arange(3))
        pool.workers.submit([run])
        assert len(pool.api.stored) == 1
        actor.runs()
        await settle()
        answer = opened(run.outcomes[0])
        assert answer["x"].sum() == 2 << 18
        assert answer["y"].tolist() == [0, 2, 4]
        assert pool.api.gets == 0, "it was fetched before the run was done"


@virtual
async def test_an_answer_for_another_actor_is_not_fetched():
    async with RayPool(Doubling("op"), passes_on=True) as pool:
        (actor,) = await pool.up()
        first = run_of(1, x=big(1))
        pool.workers.submit([first])
        actor.runs()
        await settle()
        second = run_of(2)
        second.items[0].inputs = {"read": first.outcomes[0]}
        pool.workers.submit([second])
        actor.runs()
        await settle()
        assert len(pool.api.stored) == 1, "only what came from here was put"
        assert pool.api.gets == 0
        assert opened(second.outcomes[0])["x"][0] == 4


@virtual
async def test_an_answer_that_jumps_is_available_to_its_reader():
    async with RayPool(Jumping("op", jump_to_ops=[Op("far")]), passes_on=True) as pool:
        (actor,) = await pool.up()
        run = run_of(1, x=big(1))
        pool.workers.submit([run])
        actor.runs()
        await settle()
        assert run.jumped
        assert opened(run.outcomes[0])["x"][0] == 2
        assert pool.api.gets == 0


@virtual
async def test_an_object_is_released_with_its_payload():
    async with RayPool(Doubling("op")) as pool:
        (actor,) = await pool.up()
        run = run_of(1, x=big(1))
        pool.workers.submit([run])
        assert pool.memory.count == 1
        actor.runs()
        await settle()
        assert pool.memory.count == 1, "the answer"
        pool.owner.finished.clear()
        del run
        gc.collect()
        assert pool.memory.count == 0


@virtual
async def test_a_batch_whose_data_cannot_be_stored_is_lost_without_its_actor():
    async with RayPool(Doubling("op")) as pool:
        (actor,) = await pool.up()
        pool.api.is_full = True
        run = run_of(1, x=big(1))
        pool.workers.submit([run])
        await settle()
        ((lost, error),) = pool.owner.losses
        assert lost is run
        assert isinstance(error, DataLostError)
        assert "got no data: ObjectGoneError: the store is full" in str(error)
        pool.workers.submit([run_of(2)])
        actor.runs()
        await settle()
        assert len(pool.finished) == 1


@virtual
async def test_a_dead_actor_is_replaced_and_waiting_batches_follow():
    async with RayPool(Doubling("op")) as pool:
        (actor,) = await pool.up()
        began, waits = run_of(1), run_of(2)
        pool.workers.submit([began, waits])
        actor.dies("The node died")
        await settle()
        ((lost, error),) = pool.owner.losses
        assert lost is began
        assert "the worker process ended: The node died" in str(error)
        assert pool.workers.count == 0
        following = pool.actors[-1]
        assert following is not actor
        following.runs()
        await settle()
        assert pool.finished == []
        following.runs()
        await settle()
        assert pool.finished == [waits]
        assert pool.workers.state().restarts == 1


@virtual
async def test_packed_actors_start_after_the_node_of_the_first_is_known():
    async with RayPool(Doubling("op"), count=3, ray=RayOpConfig(placement="pack")) as pool:
        starting = asyncio.ensure_future(pool.workers.start())
        await settle()
        (first,) = pool.actors
        first.runs()
        await settle()
        assert [len(pool.actors), starting.done()] == [3, False]
        for actor in pool.actors[1:]:
            actor.runs()
        await starting


@virtual
async def test_the_successor_of_an_unreachable_actor_is_placed_elsewhere():
    async with RayPool(Doubling("op"), timeout_s=1.0) as pool:
        (first,) = await pool.up()
        first.dies(UnreachableError("no connection"))
        await settle()
        pool.actors[-1].runs()
        await settle()
        assert pool.maker.silent == ["", "node"]
        pool.workers.submit([run_of(1)])
        (busy,) = pool.workers.busy()
        busy.on_running(busy.status.job, 0.5, 0.5)
        pool.workers.replace(busy, None)
        await settle()
        assert pool.maker.silent == ["", "node", ""], "it says that it is at its call"


@virtual
async def test_an_actor_that_hangs_is_killed_and_replaced():
    async with RayPool(Doubling("op"), timeout_s=1.0) as pool:
        (actor,) = await pool.up()
        run = run_of(1)
        pool.workers.submit([run])
        (busy,) = pool.workers.busy()
        began = pool.loop.time()
        assert busy.job is run
        assert busy.call_started == began + 1.0, "it may begin late"
        pool.workers.replace(busy, None)
        await settle()
        assert actor.is_dead
        assert len(pool.actors) == 2


@virtual
async def test_a_job_that_waits_at_a_slow_actor_is_revoked_for_an_idle_one():
    async with RayPool(Doubling("op"), count=2) as pool:
        first, second = await pool.up()
        slow, quick, waits = run_of(1), run_of(2), run_of(3)
        pool.workers.submit([slow, quick, waits])
        first.begins(1)
        second.runs()
        await asyncio.sleep(1)
        assert "revoke" in first.told
        second.runs()
        await settle()
        assert pool.finished == [quick, waits]
        first.runs(2)
        await settle()
        assert pool.finished == [quick, waits, slow]


@virtual
async def test_a_result_that_overtakes_a_report_waits_for_it():
    async with RayPool(Doubling("op")) as pool:
        (actor,) = await pool.up()
        arrives = actor.says_late(b"a line")
        run = run_of(1)
        pool.workers.submit([run])
        actor.runs()
        await settle()
        assert pool.finished == [], "what was said before is not here yet"
        arrives()
        await settle()
        assert pool.finished == [run]


@virtual
async def test_an_error_of_the_op_fails_its_own_request():
    class Picky(Op):
        def preprocess(self, input_dicts):
            if input_dicts["read"]["x"] == 1:
                raise KeyError("one")
            return {"x": 0}

    async with RayPool(Picky("op")) as pool:
        (actor,) = await pool.up()
        run = run_of(1, 2, x=1)
        run.items[1] = Sample(2, {"read": {"x": 2}})
        pool.workers.submit([run])
        actor.runs()
        await settle()
        assert isinstance(run.outcomes[0], UserCodeError)
        assert opened(run.outcomes[1]) == {"x": 0}
