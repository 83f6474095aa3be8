"""Trips through quick Ops, on real threads; events and barriers force every interleaving."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sqlite3
import threading
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
from doubles import on_loop, until
from trip_servers import (
    PATIENCE_S,
    TIMED_OUT,
    Hangs,
    a_trip_may_last,
    ask,
    counted,
    groups,
    quick_server,
    set_pace,
    steps_may_last,
    value_of,
)

from pipeline import Filter, Op, RequestOp, ResponseOp
from pipeline.config import registry
from pipeline.config.batching import SchedulerTraits
from pipeline.engine import request as request_file
from pipeline.engine.journal.journal import SPAN
from pipeline.engine.request import RequestTarget
from pipeline.engine.schedulers.dynamic import FullScheduler
from pipeline.engine.trips import trip as trip_file
from pipeline.observe.tables import walks
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.workers import thread as threads

__all__ = ["a_trip_may_last", "steps_may_last"]
pytestmark = pytest.mark.usefixtures("a_trip_may_last")


class Calls(Op):
    """Passes `x` on; what happens on the way is up to `act`, which the test sets."""

    act = staticmethod(lambda op, x: None)

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        x = next(iter(input_dicts.values()))["x"]
        self.act(self, x)
        return {"x": x}


class Processes(Calls):
    def process(self, feed_batch):
        self.act(self, feed_batch[0]["x"])
        return feed_batch[0]

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        return {"x": next(iter(input_dicts.values()))["x"]}


def chain(*kinds, **acts):
    read = RequestOp()
    for name, kind in zip("abcdef", kinds, strict=False):
        op = kind(name=name, input_ops=[read])
        if name in acts:
            op.act = acts[name]
        read = op
    return read


@contextlib.asynccontextmanager
async def serving(last_op, is_fused=True, expected=None, **config):
    """A server whose Ops count as quick; `expected`: its groups."""
    async with quick_server(ResponseOp(input_ops=[last_op]), is_fused, **config) as server:
        if expected is not None:
            assert groups(server) == expected
        yield server


def state_of(server, name):
    return next(op for op in server.executor.state().ops if op.name == name)


@pytest.mark.usefixtures("steps_may_last")
@on_loop
async def test_a_chain_runs_on_one_thread():
    seen = []

    def act(op, x):
        seen.append((op.name, threading.current_thread().name))

    last = chain(Calls, Processes, Calls, a=act, b=act, c=act)
    async with serving(last, expected=[("a", "b", "c")]) as server:
        assert value_of(await ask(server)) == "1"
    assert seen == [(name, "pipeline-a-0") for name in "abc"]


@on_loop
async def test_the_state_of_an_op_names_its_group():
    async with serving(chain(Calls, Calls)) as server:
        assert [op.group for op in server.executor.state().ops] == [("a", "b")] * 2
    async with serving(chain(Calls, Calls), is_fused=False) as server:
        assert [op.group for op in server.executor.state().ops] == [()] * 2


class Convoys(FullScheduler):
    """A scheduler of a user, for which requests may come together, and a lone one need not wait."""

    traits: ClassVar = SchedulerTraits(lets_pass=True, takes_convoys=True)


@on_loop
async def test_an_op_whose_scheduler_accepts_convoys_runs_alone(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    registry.register("schedulers", "convoys", Convoys)
    config = {"op": {name: {"batching": "convoys"} for name in "ab"}}
    async with serving(chain(Calls, Calls), **config) as server:
        assert value_of(await ask(server, timeout_s=PATIENCE_S)) == "1"


@on_loop
async def test_apart_each_op_runs_on_its_own():
    seen = []

    def act(op, x):
        seen.append(threading.current_thread().name)

    last = chain(Calls, Calls, a=act, b=act)
    async with serving(last, is_fused=False, expected=[]) as server:
        await ask(server)
    assert seen == ["pipeline-a-0", "pipeline-b-0"]


@on_loop
async def test_an_op_without_fuse_runs_in_its_own_thread():
    seen = []

    def act(op, x):
        seen.append(threading.current_thread().name)

    class Stays(Calls):
        def __init__(self, **given):
            super().__init__(fuse=False, **given)

    last = chain(Calls, Stays, Calls, Calls, a=act, b=act, c=act, d=act)
    config = {"op": {"d": {"fuse": False}}}
    async with serving(last, **config) as server:
        await ask(server)
    assert seen == [f"pipeline-{name}-0" for name in "abcd"]


@on_loop
async def test_an_op_with_a_thread_bound_connection_works():
    class Reads(Calls):
        def init_op(self):
            self.db = sqlite3.connect(":memory:")

        def preprocess(self, input_dicts, data_id=0, log_id=0):
            x = next(iter(input_dicts.values()))["x"]
            return {"x": str(self.db.execute("select ?", [x]).fetchone()[0])}

    last = chain(Calls, Reads, Calls, Calls)
    async with serving(last, expected=[("c", "d")]) as server:
        for _ in range(3):
            assert value_of(await ask(server)) == "1"


class Holder:
    def __init__(self):
        self.all = [{"db": sqlite3.connect(":memory:")}]


@on_loop
async def test_a_connection_held_by_another_object_is_detected():
    class Reads(Calls):
        def init_op(self):
            self.store = Holder()

        def preprocess(self, input_dicts, data_id=0, log_id=0):
            self.store.all[0]["db"].execute("select 1").fetchone()
            return next(iter(input_dicts.values()))

    last = chain(Calls, Reads, Calls, Calls)
    async with serving(last, expected=[("c", "d")]) as server:
        assert value_of(await ask(server)) == "1"


@on_loop
async def test_an_op_whose_module_has_thread_locals_is_in_no_group(monkeypatch):
    monkeypatch.setitem(globals(), "OF_A_THREAD", threading.local())

    class Elsewhere(Op):
        __module__ = "pipeline.op"

        def preprocess(self, input_dicts, data_id=0, log_id=0):
            return next(iter(input_dicts.values()))

    async with serving(chain(Calls, Elsewhere, Elsewhere), expected=[("b", "c")]):
        pass


@on_loop
async def test_an_op_that_fails_with_a_later_connection_leaves_the_group():
    class Reads(Calls):
        def preprocess(self, input_dicts, data_id=0, log_id=0):
            x = next(iter(input_dicts.values()))["x"]
            if x == "open":
                self.db = made[0]
            if hasattr(self, "db"):
                self.db.execute("select 1").fetchone()
            return {"x": x}

    made = []
    thread = threading.Thread(target=lambda: made.append(sqlite3.connect(":memory:")))
    thread.start()
    thread.join()
    async with serving(chain(Calls, Reads, Calls)) as server:
        groups_of = server.executor.executor.trips.groups
        assert set(groups_of.names()) == {"a", "b", "c"}
        assert (await ask(server, "open")).err_no
        await asyncio.sleep(0)
        assert "b" not in groups_of.names()


@on_loop
async def test_a_context_variable_of_an_op_is_not_visible_to_others():
    variable = contextvars.ContextVar("variable", default="none")
    seen = []

    def sets(op, x):
        seen.append((op.name, variable.get(), repr(np.array([1 / 3]))))
        variable.set(op.name)
        np.set_printoptions(precision={"a": 2, "b": 3}[op.name])

    async with serving(chain(Calls, Calls, a=sets, b=sets)) as server:
        await ask(server)
        await ask(server)
    usual = repr(np.array([1 / 3]))
    assert seen == [
        ("a", "none", usual),
        ("b", "none", usual),
        ("a", "a", "array([0.33])"),
        ("b", "b", "array([0.333])"),
    ]


@on_loop
async def test_attributes_of_preprocess_are_present_in_postprocess_of_the_request():
    class StoresAttribute(Op):
        def preprocess(self, input_dicts, data_id=0, log_id=0):
            self.x = next(iter(input_dicts.values()))["x"]
            return {"x": "unused"}

        def postprocess(self, input_dicts, fetch_data, data_id=0, log_id=0):
            return {"x": self.x}

    config = {"op": {name: {"concurrency": 2, "batch_size": 4} for name in "abc"}}
    async with serving(
        chain(StoresAttribute, StoresAttribute, StoresAttribute), **config
    ) as server:
        answers = await asyncio.gather(*(ask(server, str(number)) for number in range(200)))
        assert [value_of(answer) for answer in answers] == [str(n) for n in range(200)]


@on_loop
async def test_slow_ops_side_by_side_run_at_the_same_time():
    both = threading.Barrier(2, timeout=PATIENCE_S)

    def act(op, x):
        both.wait()

    read = RequestOp()
    a, b = (Calls(name=name, input_ops=[read]) for name in "ab")
    a.act = b.act = act
    join = Join(name="c", input_ops=[a, b])
    async with serving(join, expected=[("a", "b", "c")]) as server:
        assert value_of(await ask(server)) == "1|1"


class Join(Calls):
    def preprocess(self, input_dicts, data_id=0, log_id=0):
        self.act(self, "")
        return {"x": "|".join(part["x"] for part in input_dicts.values())}


@on_loop
async def test_waiting_requests_of_a_busy_op_reach_the_join():
    hangs = Hangs()
    read = RequestOp()
    sides = [Calls(name=name, input_ops=[read]) for name in "ab"]
    sides[0].act = lambda op, x: hangs(x)
    joined = Join(name="c", input_ops=sides)
    async with serving(joined, expected=[("a", "b", "c")]) as server:
        first = asyncio.create_task(ask(server, "hang"))
        await until(hangs.began.is_set)
        others = [asyncio.create_task(ask(server, str(x), 5.0)) for x in range(3)]
        node = server.executor.executor.nodes[sides[0]]
        await until(lambda: len(node.scheduler) == 3)
        sides[0].held = threading.local()
        server.executor.executor.trips.groups.form()
        hangs.release.set()
        assert [value_of(await other) for other in others] == ["0|0", "1|1", "2|2"]
        assert value_of(await first) == "hang|hang"


@pytest.mark.parametrize("kind", [Calls, Processes])
@on_loop
async def test_others_continue_while_one_request_hangs_in_the_middle(kind):
    hangs = Hangs()
    config = {"op": {"b": {"concurrency": 2}}}
    async with serving(chain(Calls, kind, Calls, b=hangs, c=hangs), **config) as server:
        lost = asyncio.create_task(ask(server, "hang"))
        await until(hangs.began.is_set)
        for number in range(20):
            assert value_of(await ask(server, str(number))) == str(number)
        assert not lost.done()
        assert state_of(server, "a").workers.busy == 0  # its worker is free
        assert state_of(server, "b").running == 1
        hangs.release.set()
        assert value_of(await lost) == "hang"
        assert state_of(server, "b").workers.stuck == 0
        assert [op.running for op in server.executor.state().ops] == [0, 0, 0]
    assert hangs.calls["hang"] == 2


@pytest.mark.parametrize("attempts", [1, 2])
@on_loop
async def test_a_call_that_hangs_ends_by_its_timeout_and_is_tried_again(attempts):
    release, calls = threading.Event(), []

    def act(op, x):
        calls.append(x)
        if len(calls) == 1:
            assert release.wait(PATIENCE_S)

    config = {"op": {"b": {"timeout": 500, "retry": attempts}}}
    async with serving(chain(Calls, Processes, Calls, b=act), **config) as server:
        answer = await ask(server)
        if attempts == 2:
            assert value_of(answer) == "1"
        else:
            assert answer.err_no == TIMED_OUT
            assert "exceeded retry count" in answer.err_msg
        assert state_of(server, "b").workers.stuck == 1
        assert state_of(server, "a").workers.stuck == 0
        assert value_of(await ask(server, "2")) == "2"
        release.set()
        await until(lambda: state_of(server, "b").workers.stuck == 0)


@on_loop
async def test_the_leader_itself_may_hang():
    release, calls = threading.Event(), []

    def act(op, x):
        calls.append(x)
        if len(calls) == 1:
            assert release.wait(PATIENCE_S)

    config = {"op": {"a": {"timeout": 500, "retry": 2}}}
    async with serving(chain(Processes, Calls, a=act), **config) as server:
        assert value_of(await ask(server)) == "1"
        assert state_of(server, "a").workers.stuck == 1
        release.set()


@on_loop
async def test_requests_for_workers_that_all_hang_end_with_an_error(monkeypatch):
    monkeypatch.setattr(threads, "_MAX_STUCK", 0)
    hangs = Hangs()
    async with serving(chain(Calls, a=lambda op, x: hangs(x)), is_fused=False) as server:
        node = next(iter(server.executor.executor.nodes.values()))
        for _ in range(2):
            assert value_of(await ask(server)) == "1"
        node.load.service_s = 1e-6  # so quick that requests wait at its workers
        hanging = asyncio.create_task(ask(server, "hang"))
        await until(hangs.began.is_set)
        hanging.cancel()
        others = [asyncio.create_task(ask(server, str(x))) for x in range(2)]
        await asyncio.sleep(0)
        assert len(node.shortcut._waiting) == 2  # until this round of the loop ends
        ((worker, run),) = [(item, item.job) for item in node.workers.busy()]
        node._give_up(worker, run)
        for other in others:
            assert "all workers hang" in (await asyncio.wait_for(other, PATIENCE_S)).err_msg
        hangs.release.set()


@on_loop
async def test_an_op_whose_workers_all_hang_reports_it_and_the_previous_op_works(monkeypatch):
    monkeypatch.setattr(threads, "_MAX_STUCK", 2)
    hangs = Hangs()
    config = {"op": {"b": {"timeout": 50}}}
    async with serving(chain(Calls, Processes, Calls, b=hangs), **config) as server:
        for number in range(3):
            set_pace(server)
            assert (await ask(server, f"hang{number}")).err_no == TIMED_OUT
        answer = await ask(server)
        assert answer.err_no == TIMED_OUT
        assert "all workers hang" in answer.err_msg
        a = next(op for op in server.executor.executor.nodes if op.name == "a")
        target = RequestTarget(op=a, payload={"r": {"x": "1"}}, wants_response=False)
        assert (await ask(server, target=target)).payload == {"x": "1"}
        assert state_of(server, "a").workers.stuck == 0
        hangs.release.set()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
@pytest.mark.parametrize("kind", [Calls, Processes])
@on_loop
async def test_user_code_that_raises_fails_its_request_only(kind, error):
    def act(op, x):
        if x == "bad":
            raise error

    async with serving(chain(Calls, kind, Calls, b=act)) as server:
        answers = await asyncio.gather(*(ask(server, x) for x in ["bad", *"123456"]))
        assert answers[0].err_no
        assert type(error).__name__ in answers[0].err_msg
        assert [value_of(answer) for answer in answers[1:]] == list("123456")


@pytest.mark.parametrize("kind", [Calls, Processes])
@on_loop
async def test_the_log_names_the_request_that_user_code_failed_on(kind, capfd):
    def act(op, x):
        raise ValueError(x)

    async with serving(chain(Calls, kind, b=act), expected=[("a", "b")]) as server:
        await ask(server, "bad", log_id=9)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if " raised " in line]
    assert "(data_id=0" in line


@pytest.mark.parametrize("when", ["begins", "ends"])
@pytest.mark.parametrize("kind", [Calls, Processes])
@pytest.mark.parametrize("name", ["a", "b", "c"])
@on_loop
async def test_a_step_may_be_removed_at_its_start_and_end(monkeypatch, name, kind, when):
    was_taken, collected = threading.Event(), []
    perform, part = threads.ThreadWorker.perform, threads.ThreadPool.part

    def performed(worker, run, clock_ns):
        is_ours = worker.pool.name == name and not was_taken.is_set()
        if is_ours and when == "begins":
            assert was_taken.wait(PATIENCE_S)
        perform(worker, run, clock_ns)
        if is_ours and when == "ends":
            assert was_taken.wait(PATIENCE_S)

    def visiting(worker):
        """Return what a trip calls for a step without `process`."""
        visit = worker.visit

        def call(*arguments):
            is_ours = worker.pool.name == name and not was_taken.is_set()
            if is_ours and when == "begins":
                assert was_taken.wait(PATIENCE_S)
            answer = visit(*arguments)
            if is_ours and when == "ends":
                assert was_taken.wait(PATIENCE_S)
            return answer

        return call

    def parted(pool, one):
        taken = part(pool, one)
        if taken is not None:
            collected.append(taken)
            was_taken.set()
        return taken

    async with serving(chain(Calls, kind, kind), expected=[("a", "b", "c")]) as server:
        monkeypatch.setattr(trip_file, "_LONGEST_NS", 10**12)
        monkeypatch.setattr(threads.ThreadWorker, "perform", performed)
        monkeypatch.setattr(threads.ThreadPool, "part", parted)
        for node in server.executor.executor.nodes.values():
            for worker in node.workers.pool.workers:
                worker.visit = visiting(worker)
        assert value_of(await asyncio.wait_for(ask(server), PATIENCE_S)) == "1"
        assert collected
        assert value_of(await asyncio.wait_for(ask(server, "2"), PATIENCE_S)) == "2"
        busy = [(op.running, op.workers.busy) for op in server.executor.state().ops]
        assert busy == [(0, 0)] * 3


@on_loop
async def test_a_request_cancelled_within_a_trip_stops():
    hangs, later = Hangs(), []
    last = chain(Calls, Calls, Calls, b=hangs, c=lambda op, x: later.append(x))
    async with serving(last) as server:
        task = asyncio.create_task(ask(server, "hang"))
        await until(hangs.began.is_set)
        task.cancel()
        await asyncio.wait([task])
        hangs.release.set()
        assert value_of(await ask(server)) == "1"
    assert later == ["1"]


@on_loop
async def test_a_deadline_within_a_trip_is_met():
    hangs, later = Hangs(), []
    last = chain(Calls, Calls, Calls, b=hangs, c=lambda op, x: later.append(x))
    async with serving(last) as server:
        assert (await ask(server, "hang", 0.05)).err_no == TIMED_OUT
        # No caller waits for it: its worker is given up, and another one continues.
        assert value_of(await ask(server, "1", PATIENCE_S)) == "1"
        hangs.release.set()
    assert later == ["1"]


@on_loop
async def test_a_stopping_server_does_not_wait_for_hanging_ops():
    hangs = Hangs()
    async with serving(chain(Calls, Calls, b=hangs), stop_grace_period=50) as server:
        tasks = [asyncio.create_task(ask(server, "hang")) for _ in range(5)]
        await until(hangs.began.is_set)
        asyncio.get_running_loop().call_later(0.2, hangs.release.set)
        await server.__aexit__()
        answers = await asyncio.gather(*tasks)
        assert all("dag closed" in answer.err_msg for answer in answers)


@on_loop
async def test_a_request_for_an_op_with_a_borrowed_worker_runs():
    hangs = Hangs()
    async with serving(chain(Calls, Calls, Calls, b=hangs)) as server:
        under_way = asyncio.create_task(ask(server, "hang"))
        await until(hangs.began.is_set)
        op = next(op for op in server.executor.executor.nodes if op.name == "b")
        target = RequestTarget(op=op, payload={"r": {"x": "2"}}, wants_response=False)
        alone = asyncio.create_task(ask(server, target=target))
        await asyncio.sleep(0)
        hangs.release.set()
        assert (await alone).payload == {"x": "2"}
        assert value_of(await under_way) == "hang"


@on_loop
async def test_a_request_of_the_first_op_only_stops_after_it():
    later = []
    last = chain(Calls, Calls, b=lambda op, x: later.append(x))
    async with serving(last) as server:
        op = next(op for op in server.executor.executor.nodes if op.name == "a")
        target = RequestTarget(op=op, payload={"r": {"x": "2"}}, wants_response=False)
        assert (await ask(server, target=target)).payload == {"x": "2"}
    assert later == []


@pytest.mark.parametrize("concurrency", [(4, 1, 2), (1, 4, 1), (3, 3, 3)])
@on_loop
async def test_a_copy_of_an_op_is_never_in_two_threads(concurrency):
    inside, clashes = Counter(), []

    def act(op, x):
        inside[id(op)] += 1
        if inside[id(op)] != 1:
            clashes.append(op.name)
        threading.Event().wait(0.0005)  # others run meanwhile
        inside[id(op)] -= 1

    config = {"op": {name: {"concurrency": n} for name, n in zip("abc", concurrency, strict=True)}}
    async with serving(chain(Calls, Calls, Calls, a=act, b=act, c=act), **config) as server:
        answers = await asyncio.gather(*(ask(server, str(number)) for number in range(300)))
        assert [value_of(answer) for answer in answers] == [str(n) for n in range(300)]
        assert [op.running for op in server.executor.state().ops] == [0, 0, 0]
    assert clashes == []


@on_loop
async def test_the_dicts_of_two_readers_are_two():
    class Changes(Calls):
        def preprocess(self, input_dicts, data_id=0, log_id=0):
            ((_, result),) = input_dicts.items()
            result["x"] += self.name
            return result

    read = RequestOp()
    top = Calls(name="top", input_ops=[read])
    a, b, c = (Changes(name=name, input_ops=[top]) for name in "abc")
    join = Join(name="join", input_ops=[a, b, c, top])
    async with serving(join, expected=[("top", "a", "b", "c", "join")]) as server:
        assert value_of(await ask(server)) == "1a|1b|1c|1"
    async with serving(join, is_fused=False) as server:
        assert value_of(await ask(server)) == "1a|1b|1c|1"


def test_statistics_equal_those_of_separate_ops():
    def act(op, x):
        if x == "7":
            raise ValueError(x)

    async def main(is_fused):
        last = chain(Calls, Processes, Calls, b=act)
        async with serving(last, is_fused=is_fused) as server:
            for number in range(20):
                await ask(server, str(number))
            return counted(server)

    fused, apart = asyncio.run(main(True)), asyncio.run(main(False))
    assert fused == apart
    assert fused


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("kinds", [(Calls,), (Calls, Calls), (Calls, Processes)])
@on_loop
async def test_a_caller_of_another_model_gets_the_times_of_its_stages(kinds, is_fused):
    async with serving(chain(*kinds), is_fused=is_fused) as server:
        begun = []

        def begin(*arguments):
            begun.append(server.executor.begin(*arguments))
            return begun[0]

        answer = request_file.ask(begin, Request(key=["x"], value=["1"]))
        assert value_of(await answer) == "1"
        stages_ns = begun[0].stages_ns()
        assert sum(stages_ns) > 0
        assert begun[0].stages_ns() == stages_ns


@pytest.mark.parametrize("is_fused", [True, False])
@on_loop
async def test_the_journal_marks_ops_of_one_trip(is_fused):
    spans = []

    class StoresAttribute:
        def notify(self, rows, requests):
            spans.append(rows)

    async with serving(chain(Calls, Processes, Calls), is_fused=is_fused) as server:
        journal = server.executor._observers.journal
        journal.sinks.append(StoresAttribute())
        for number in range(5):
            await ask(server, str(number))
        journal.flush()
    rows = np.concatenate(spans)
    assert len(rows) == 15
    assert list(walks(rows).values()) == [[0, 1, 2]] * 5 * is_fused


@pytest.mark.usefixtures("steps_may_last")
@on_loop
async def test_a_step_without_an_idle_worker_waits_and_the_others_run_separately():
    seen, taken, nodes = [], [], {}

    def act(op, x):
        seen.append((op.name, threading.current_thread().name))
        if op.name == "a":  # nobody can borrow the worker of b until c runs
            taken.append(nodes["b"].workers.lender.idle.pop())
        elif op.name == "c":
            nodes["b"].workers.lender.make_idle(taken.pop())

    read = RequestOp()
    beside = [Calls(name=name, input_ops=[read]) for name in "abc"]
    last = Join(name="d", input_ops=beside)
    for op in [*beside, last]:
        op.act = act
    async with serving(last, expected=[("a", "b", "c", "d")]) as server:
        nodes |= {node.name: node for node in server.executor.executor.nodes.values()}
        assert value_of(await ask(server)) == "1|1|1"
    assert seen == [(name, f"pipeline-{name}-0") for name in "acbd"]


@pytest.mark.usefixtures("steps_may_last")
@on_loop
async def test_a_busy_server_takes_each_op_with_process_by_itself():
    seen, both = Counter(), threading.Barrier(4, timeout=PATIENCE_S)

    def act(op, x):
        seen[op.name, threading.current_thread().name[:-2]] += 1
        if op.name == "b" and x != "alone":
            both.wait()  # all four are inside

    config = {"op": {name: {"concurrency": 4} for name in "ab"}}
    async with serving(chain(Calls, Processes, a=act, b=act), **config) as server:
        await ask(server, "alone")
        assert seen == {("a", "pipeline-a"): 1, ("b", "pipeline-a"): 1}
        task = [asyncio.create_task(ask(server, str(number))) for number in range(4)]
        assert [value_of(await item) for item in task] == list("0123")
    assert seen["b", "pipeline-b"] >= 2


@on_loop
async def test_trips_have_the_journal_read_before_it_is_long():
    async with serving(chain(Calls, Calls), expected=[("a", "b")]) as server:
        journal = server.executor._observers.journal
        await ask(server)
        flushes = journal.flushes
        journal.spans += [bytes(SPAN.itemsize)] * 4096
        await ask(server)
        assert journal.flushes == flushes + 1


# A user's unpack and pack ------------------------------------------------------------------------


class Unpacks(RequestOp):
    act = staticmethod(lambda op, x: None)

    def unpack_request_package(self, request):
        self.act(self, request.value[0])
        return dict(zip(request.key, request.value, strict=True)), 7, None, ""


class Packs(ResponseOp):
    act = staticmethod(lambda op, x: None)

    def pack_response_package(self, channeldata):
        if channeldata.payload is not None:
            self.act(self, channeldata.payload["x"])
        return super().pack_response_package(channeldata)


def between(*kinds, unpacks=None, packs=None, **acts):
    """The ResponseOp of a chain of Ops between a RequestOp and a ResponseOp of a user's."""
    first = Unpacks()
    if unpacks is not None:
        first.act = unpacks
    read = first
    for name, kind in zip("abcdef", kinds, strict=False):
        op = kind(name=name, input_ops=[read])
        if name in acts:
            op.act = acts[name]
        read = op
    response = Packs(input_ops=[read])
    if packs is not None:
        response.act = packs
    return response


@pytest.mark.usefixtures("steps_may_last")
@pytest.mark.parametrize("kinds", [[Calls], [Calls, Processes]])
@on_loop
async def test_a_users_unpack_and_pack_run_in_the_thread_of_the_ops(kinds):
    threads, log_ids = [], []

    def act(op, x):
        threads.append(threading.current_thread().name)

    class Logged(Calls):
        def preprocess(self, input_dicts, data_id, log_id):
            log_ids.append(log_id)
            return super().preprocess(input_dicts)

    acts = {"unpacks": act, "packs": act, "a": act, "b": act, "c": act}
    async with quick_server(between(Logged, *kinds, **acts)) as server:
        assert value_of(await ask(server, log_id=5)) == "1"
    assert len(threads) == 3 + len(kinds)
    assert len(set(threads)) == 1
    assert threads[0].startswith("pipeline-@DAGExecutor-")
    assert log_ids == [7]


@pytest.mark.usefixtures("steps_may_last")
@pytest.mark.parametrize("kinds", [[Calls], [Calls, Calls]])
@on_loop
async def test_the_journal_of_a_trip_with_unpack_and_pack_equals_a_separate_run(kinds):
    reported = []
    for is_quick in (True, False):
        async with quick_server(between(*kinds), is_quick) as server:
            for _ in range(3):
                await ask(server)
            reported.append(counted(server))
    assert reported[0] == reported[1]


@pytest.mark.usefixtures("steps_may_last")
@on_loop
async def test_a_filter_of_unpacked_data_runs_on_the_loop(monkeypatch):
    looked = []

    class Looks(Filter):
        def on_input(self, request, payload):
            looked.append((payload, threading.current_thread()))

    monkeypatch.setattr(registry, "_registered", {})
    registry.register("filters", "looks", Looks)
    async with quick_server(between(Calls, Calls), filters={"looks": {}}) as server:
        assert value_of(await ask(server)) == "1"
    assert looked == [({"x": "1"}, threading.current_thread())]
