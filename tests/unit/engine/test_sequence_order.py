"""The order of sequences on a virtual clock: no request comes to a stateful Op before its turn."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from doubles import Engine, settle, virtual

from pipeline import Answer, Goto, Op, ProductError, RequestOp
from pipeline.data import RequestInfo
from pipeline.engine.request import RequestTarget
from pipeline.engine.request import ask as asked_at_once
from pipeline.errors import OverloadedError, WorkerDiedError
from pipeline.proto.pipeline_service_pb2 import Request

NO_START = "its first request must have sequence_start"


class Passes(Op):
    """Answers with what it reads; refuses what is below zero."""

    def preprocess(self, input_dicts):
        for inputs in input_dicts.values():
            if inputs["x"] < 0:
                raise ProductError(51, f"{self.name} refuses")
        return next(iter(input_dicts.values()))


class RecordsSequence(Op):
    """Answers with everything that its sequence has sent so far."""

    def init_op(self):
        self.kept = {}

    def process(self, feed_batch, *, context):
        ((inputs,), (each,)) = feed_batch, context
        step = each.sequence
        self.kept[step.id] = [*([] if step.start else self.kept[step.id]), inputs["x"]]
        return {self.name: self.kept[step.id]}

    def preprocess(self, input_dicts):
        return {"x": next(iter(input_dicts.values()))["x"]}

    def postprocess(self, input_dicts, fetch_data):
        seen = {key: value for item in input_dicts.values() for key, value in item.items()}
        return {**seen, **fetch_data}


def keeps(*reads, name="keeps"):
    return RecordsSequence(name, list(reads), sequence="oldest")


def target_of(words, value, op=None):
    name, *flags = words.split()
    info = RequestInfo(
        sequence_id=int(name), sequence_start="start" in flags, sequence_end="end" in flags
    )
    payload = {"x": value} if op is None else {"in": {"x": value}}
    return RequestTarget(op=op, payload=payload, wants_response=False, info=info)


def ask(engine, words, value, timeout_s=None, op=None):
    """A request on its way, begun at once; its result is the ChannelData."""
    return asked_at_once(engine.executor.begin, Request(), timeout_s, target_of(words, value, op))


async def result(asked, name="keeps"):
    """What an Op has kept, or the text of an error."""
    answer = await asked
    return str(answer.error) if answer.error is not None else answer.payload[name]


async def pool(engine, name, *data_ids):
    """Release the requests with these numbers at an Op, in this order."""
    for data_id in data_ids:
        await settle()
        (worker,) = (
            item for item in engine.pools[name].busy() if item.job.items[0].data_id == data_id
        )
        engine.pools[name]._finish(worker)
    await settle()


def wide(count=4, **config):
    """An engine of a stateless Op with some workers, which wait, before one with sequences."""
    op = keeps(Passes("pass", [RequestOp()]))
    return Engine(op, {"op": {"pass": {"concurrency": count}}, **config}, {"pass": None})


@virtual
async def test_a_request_that_overtook_waits_for_its_turn():
    async with wide() as engine:
        tasks = [ask(engine, words, x) for x, words in enumerate(["7 start", "7", "7", "7 end"])]
        await pool(engine, "pass", 2, 3, 1, 0)
        assert [await result(task) for task in tasks] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


@virtual
async def test_another_sequence_does_not_wait_for_it():
    async with wide() as engine:
        slow, quick = ask(engine, "7 start", 1), ask(engine, "8 start", 2)
        await pool(engine, "pass", 1)
        assert await result(quick) == [2]
        await pool(engine, "pass", 0)
        assert await result(slow) == [1]


@virtual
async def test_a_request_that_fails_early_lets_the_others_pass():
    async with wide() as engine:
        tasks = [ask(engine, words, x) for words, x in [("7 start", 0), ("7", -1), ("7 end", 2)]]
        await pool(engine, "pass", 2, 0, 1)
        first, failed, last = [await result(task) for task in tasks]
    assert (first, last) == ([0], [0, 2])
    assert "pass refuses" in failed


# Who never comes -----------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("how", ["was cancelled", "ran out of time"])
async def test_a_request_cancelled_early_ends_the_sequence_in_its_turn(how):
    async with wide() as engine:
        timeout_s = 5.0 if how == "ran out of time" else None
        first = ask(engine, "7 start", 0)
        gone = ask(engine, "7", 1, timeout_s)
        held = ask(engine, "7", 2)
        await pool(engine, "pass", 2)
        if timeout_s is None:
            gone.cancel()
        else:
            await asyncio.sleep(timeout_s)
        await pool(engine, "pass", 0, 1)
        assert await result(first) == [0], "what came before it has run"
        ended = f"[keeps] a request of sequence 7 {how}, which ended the sequence"
        assert await result(held) == ended
        later = ask(engine, "7", 3)
        await pool(engine, "pass", 3)
        assert NO_START in await result(later)


@virtual
async def test_a_step_that_a_worker_before_lost_ends_the_sequence():
    async with wide() as engine:
        tasks = [ask(engine, words, x) for x, words in enumerate(["7 start", "7", "7", "8 start"])]
        await settle()
        lost = list(engine.pools["pass"].busy())[1]
        engine.pools["pass"].replace(lost, None)
        engine.pools["pass"].owner.lost(lost.job, WorkerDiedError("gone"))
        await pool(engine, "pass", 3, 2, 0)
        first, gone, last, other = [await result(task) for task in tasks]
    assert (first, other) == ([0], [3])
    assert "gone" in gone
    assert "was lost on its way, which ended the sequence" in last


@virtual
async def test_a_held_request_that_is_cancelled_ends_the_sequence_once():
    async with wide() as engine:
        first, gone, last = (ask(engine, words, 1) for words in ("7 start", "7", "7 end"))
        await pool(engine, "pass", 1, 2)
        (node,) = (item for item in engine.nodes.values() if item.name == "keeps")
        assert node.state().queued == 2
        gone.cancel()
        await settle()
        assert node.state().queued == 1
        await pool(engine, "pass", 0)
        assert await result(first) == [1]
        assert "was cancelled, which ended the sequence" in await result(last)
        second = ask(engine, "7 start end", 2)
        await pool(engine, "pass", 3)
        assert await result(second) == [2]
        assert node.scheduler.reorder_buffer._lines == {}


@virtual
async def test_a_start_that_fails_early_ends_the_old_sequence_of_its_id():
    async with wide() as engine:
        tasks = [ask(engine, *item) for item in (("7 start", 0), ("7 start", -1), ("7", 2))]
        await pool(engine, "pass", 2, 1, 0)
        assert await result(tasks[0]) == [0]
        assert "pass refuses" in await result(tasks[1])
        assert NO_START in await result(tasks[2]), "it does not continue the old one"


class Parts(Op):
    """Sends what is odd to one reader, what is even to another, what is zero back at once."""

    def postprocess(self, input_dicts, fetch_data):
        (inputs,) = input_dicts.values()
        if not inputs["x"]:
            return Answer({"odd": "none", "even": "none"})
        return Goto(inputs, "odd" if inputs["x"] % 2 else "even")


@virtual
async def test_a_request_with_another_path_is_not_waited_for():
    parts = Parts("parts", [RequestOp()])
    both = keeps(parts, name="odd"), keeps(parts, name="even")
    last = keeps(*both, name="keeps")
    engine = Engine(last, {"op": {"parts": {"concurrency": 8}}}, {"parts": None})
    async with engine:
        begun = [ask(engine, "7 start", 9, op=op) for op in (*both, last)]
        await asyncio.gather(*begun)
        tasks = [ask(engine, "7", x) for x in (1, 2, 0, 3, 4)]
        await pool(engine, "parts", 7, 6, 3, 5, 4)
        odd, even, none, more, most = [(await task).payload for task in tasks]
        second = [ask(engine, *item) for item in (("7 start", 1), ("7", 3), ("7", 2))]
        await pool(engine, "parts", 8, 10, 9)
        assert await result(second[1], "odd") == [1, 3]
        assert "Op 'even' knows no sequence" in await result(second[2]), "it is another sequence"
    assert none["odd"] == "none"
    assert [more["odd"], most["even"]] == [[9, 1, 3], [9, 2, 4]]
    kept = [item["keeps"] for item in (odd, even, more, most)]
    assert kept == [[9, 1], [9, 1, 2], [9, 1, 2, 3], [9, 1, 2, 3, 4]]


@virtual
async def test_a_sequence_with_a_request_under_way_is_not_idle():
    async with wide() as engine:
        tasks = [ask(engine, words, x) for x, words in enumerate(["7 start", "7", "8 start"])]
        await pool(engine, "pass", 0)
        await asyncio.sleep(60.0)
        await pool(engine, "pass", 1, 2)
        assert [await result(task) for task in tasks] == [[0], [0, 1], [2]]
        await asyncio.sleep(60.0)
        (node,) = (item for item in engine.nodes.values() if item.name == "keeps")
        assert node.state().sequences.reaped == 2


# Wherever there is little room -----------------------------------------------------------------


@virtual
async def test_requests_that_wait_for_admission_do_not_overtake_when_late():
    async with wide(worker_num=2) as engine:
        words = ["7 start", "7", "7", "7", "7 end"]
        tasks = [ask(engine, each, x, 10.0) for x, each in enumerate(words)]
        await settle()
        await asyncio.sleep(6.0)
        engine.pools["pass"].service_s = 0.0
        engine.pools["pass"].release(2)
        assert [await result(task) for task in tasks] == [
            list(range(count)) for count in range(1, 6)
        ]


class Fails(Passes):
    """Fails now and then, and is made to try again."""

    def preprocess(self, input_dicts):
        if self.dice.random() < 0.1:
            raise ValueError("bad luck")
        return super().preprocess(input_dicts)


@pytest.mark.parametrize("channel_size", [0, 2])
@pytest.mark.parametrize("most", [1, 5, 1000])
@pytest.mark.parametrize("seed", range(3))
@virtual
async def test_random_requests_of_sequences_are_answered_correctly(seed, most, channel_size):
    dice = random.Random(seed)
    fails = Fails("fails", [RequestOp()])
    fails.dice = dice
    branches = Passes("left", [fails]), Passes("right", [fails])
    last = keeps(keeps(*branches), name="after")
    one = {"concurrency": 4, "retry": 3}
    ops = {"fails": one, "left": {**one, "batch_size": 3}, "right": one}
    ops |= {name: {"concurrency": 2} for name in ("keeps", "after")}
    config = {"op": ops, "worker_num": most, "dag": {"channel_size": channel_size}}
    engine = Engine(last, config)
    request = {}
    async with engine:
        for pool_ in engine.pools.values():
            _at_random(pool_, dice)
        for _ in range(400):
            id = dice.randrange(6)
            words = f"{id + 1}{' start' * (dice.random() < 0.2)}{' end' * (dice.random() < 0.1)}"
            x = -1 if dice.random() < 0.1 else len(request)
            timeout_s = dice.choice([None, 0.05, 5.0])
            with contextlib.suppress(OverloadedError):
                request[len(request)] = words, x, ask(engine, words, x, timeout_s)
            if dice.random() < 0.05:
                request[dice.randrange(len(request))][2].cancel()
            if dice.random() < 0.3:
                await asyncio.sleep(dice.random() * 0.02)
        answers = await asyncio.gather(
            *(item[2] for item in request.values()), return_exceptions=True
        )
        right = _checked(list(request.values()), answers)
        assert right > 20
        for node in engine.nodes.values():
            state = node.state()
            assert (state.queued, state.joining) == (0, 0)
            assert (
                not hasattr(node.scheduler, "reorder_buffer")
                or not node.scheduler.reorder_buffer._lines
            )


def _at_random(workers, dice):
    """Have each batch take its own time."""
    feed = workers._feed

    def with_dice():
        workers.service_s = dice.random() * 0.01
        feed()

    workers._feed = with_dice


def _checked(asked, answers):
    """Count right answers; none may lack a step, or have one of another sequence."""
    courses = {}
    right = 0
    for (words, x, _), answer in zip(asked, answers, strict=True):
        name, *flags = words.split()
        if "start" in flags:
            courses[name] = []
        course = courses.setdefault(name, [])
        if not any(word in str(getattr(answer, "error", "")) for word in ("refuses", "bad luck")):
            course.append(x)
        payload = getattr(answer, "payload", None)
        if payload is None:
            continue
        assert payload["keeps"] == payload["after"] == course
        right += 1
    return right


@pytest.mark.parametrize("config", [{"worker_num": 2}, {"dag": {"channel_size": 1}}, {}])
@virtual
async def test_requests_that_wait_for_a_slot_do_not_block_sequences_with_one(config):
    op = keeps(Passes("pass", [RequestOp()]))
    ops = {"keeps": {"sequence": {"strategy": "oldest", "max_idle_ms": 1000_000}}}
    engine = Engine(op, {"queue_size": 1, "op": ops, **config})
    async with engine:
        assert await result(ask(engine, "1 start", 1)) == [1]
        waiting = []
        for id in range(2, 302):
            waiting += [ask(engine, f"{id} start", id), ask(engine, f"{id} end", 0)]
            await settle()
        assert await result(ask(engine, "1", 2)) == [1, 2]
        assert await result(ask(engine, "1 end", 3)) == [1, 2, 3]
        kept = [await result(item) for item in waiting]
        assert kept == [item for id in range(2, 302) for item in ([id], [id, 0])]


@virtual
async def test_many_requests_of_a_sequence_do_not_block_another_with_a_slot():
    engine = Engine(keeps(RequestOp()), {"worker_num": 2, "op": {"keeps": {"concurrency": 2}}})
    async with engine:
        engine.pools["keeps"].service_s = None
        many = [ask(engine, f"1{' start' * (not x)}", x) for x in range(20)]
        other = ask(engine, "2 start", 5)
        await settle()
        assert len(list(engine.pools["keeps"].busy())) == 2, "each at a worker"
        engine.pools["keeps"].service_s = 0.0
        engine.pools["keeps"].release(2)
        assert await result(other) == [5]
        assert await result(many[-1]) == list(range(20))


@virtual
async def test_without_workers_requests_that_wait_for_a_slot_get_an_error():
    async with wide() as engine:
        engine.pools["pass"].service_s = 0.0
        keeps_pool = engine.pools["keeps"]
        keeps_pool.service_s, keeps_pool.refuses_replacement = None, True
        first, second = ask(engine, "1 start", 1), ask(engine, "2 start", 2)
        await settle()
        (worker,) = keeps_pool.busy()
        keeps_pool.replace(worker, None)
        await settle()
        assert "all workers hang" in await result(second)
        first.cancel()
