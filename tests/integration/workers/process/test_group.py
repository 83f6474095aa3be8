"""Quick Ops in processes in one go: real processes; what happens where is chosen by the test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from doubles import on_loop, until, wait_until
from fused import TIMED_OUT, ask, groups, quick_server, set_pace, value_of

from pipeline import Op, ProductError, RequestOp, ResponseOp
from pipeline.data import RequestInfo
from pipeline.engine import hosting, pace, walk, walks
from pipeline.engine.journal import SPAN, Journal, OpSpan, Outcome
from pipeline.engine.request import RequestTarget
from pipeline.workers.process import group

DIED = 5000


@pytest.fixture(autouse=True)
def nothing_counts_as_slow(monkeypatch):
    """However busy the machine is: groups form at once, and stay."""
    monkeypatch.setattr(hosting, "_SETTLED_S", 0.0)
    monkeypatch.setattr(pace, "_SLOW_NS", 10**12)
    monkeypatch.setattr(walk, "_LONGEST_NS", 10**12)  # the processes are forked, and inherit it
    monkeypatch.setattr(group, "_WAIT_S", 60.0)


def note(folder, name, line):
    with open(Path(folder) / name, "a") as file:
        file.write(f"{line}\n")


def notes(folder, name):
    path = Path(folder) / name
    return path.read_text().splitlines() if path.exists() else []


class Calls(Op):
    """Says who was there; does what the test has set as `act` for it."""

    folder = ""
    act = staticmethod(lambda op, x: None)

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        parts = [part["x"] for part in input_dicts.values()]
        note(self.folder, "ran", f"{self.name} {parts[0].split('>')[0]} {os.getpid()}")
        self.act(self, parts[0])
        return {"x": "+".join(parts) + f">{self.name}"}


class Processes(Calls):
    def process(self, feed_batch):
        self.act(self, feed_batch[0]["x"])
        return feed_batch[0]

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        return next(iter(input_dicts.values()))


def chain(folder, *kinds, **acts):
    read = RequestOp()
    for name, kind in zip("abcdef", kinds, strict=False):
        read = kind(name=name, input_ops=[read])
        read.folder = str(folder)
        if name in acts:
            read.act = acts[name]
    return read


@contextlib.asynccontextmanager
async def serving(last_op, expected=None, op=None, **config):
    """A server whose Ops count as quick; `expected`: its groups, which are waited for."""
    dag = {"is_thread_op": False, "fuse_processes": "auto", **config.pop("dag", {})}
    keys = {"dag": dag, "op": op or {}, **config}
    async with quick_server(ResponseOp(input_ops=[last_op]), **keys) as server:
        if expected is not None:
            await until(lambda: groups(server) == expected)
        yield server


def node(server, name):
    return next(each for each in server.executor.executor.nodes.values() if each.name == name)


def host_of(server, name="a"):
    (host,) = node(server, name).workers.hosts
    return host


def ran(folder):
    return [tuple(line.split()[:2]) for line in notes(folder, "ran")]


class Counted:
    """Notes whenever it is pickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        note(self.folder, "pickled", "once")
        return Counted, (self.folder,)


@on_loop
async def test_a_chain_of_five_is_one_hop_and_what_is_passed_on_is_not_serialized(tmp_path):
    class Makes(Calls):
        def preprocess(self, input_dicts, data_id=0, log_id=0):
            return {**super().preprocess(input_dicts), "odd": Counted(self.folder)}

    class PassesOn(Calls):
        def preprocess(self, input_dicts, data_id=0, log_id=0):
            return {**super().preprocess(input_dicts), "odd": input_dicts["a"]["odd"]}

    last = chain(tmp_path, Makes, PassesOn, Calls, Calls, Calls)
    async with serving(last, [("a", "b", "c", "d", "e")]) as server:
        answers = [await ask(server) for _ in range(3)]
        assert [value_of(answer) for answer in answers] == ["1>a>b>c>d>e"] * 3
        (process,) = host_of(server)._alive
        assert process.finished == 3, "a request is one job"
        own = [worker for name in "abcde" for worker in node(server, name).workers._alive]
        assert sum(worker.finished for worker in own) == 0
        pids = {line.split()[2] for line in notes(tmp_path, "ran")}
        assert pids == {str(process.child.pid)}
    assert notes(tmp_path, "pickled") == []


@on_loop
async def test_off_each_op_runs_in_its_own_process(tmp_path):
    last = chain(tmp_path, Calls, Calls)
    async with serving(last, [], dag={"fuse_processes": "off"}) as server:
        assert value_of(await ask(server)) == "1>a>b"
    assert len({line.split()[2] for line in notes(tmp_path, "ran")}) == 2


class Changes(Op):
    """Changes in place what it reads."""

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (part,) = input_dicts.values()
        part["array"] += 1
        part["list"].append(self.name)
        return {"array": part["array"], "list": part["list"]}


class MakesArrays(Op):
    def preprocess(self, input_dicts, data_id=0, log_id=0):
        return {"array": np.zeros(3), "list": []}


class Compares(Op):
    def preprocess(self, input_dicts, data_id=0, log_id=0):
        return {"x": str([(d["array"].tolist(), d["list"]) for d in input_dicts.values()])}


@on_loop
async def test_two_readers_of_an_answer_see_nothing_of_each_other():
    first = MakesArrays("a", [RequestOp()])
    last = Compares("d", [Changes("b", [first]), Changes("c", [first])])
    async with serving(last, [("a", "b", "c", "d")]) as server:
        assert value_of(await ask(server)) == str([([1.0] * 3, ["b"]), ([1.0] * 3, ["c"])])


@on_loop
async def test_a_diamond_on_the_request_is_one_hop(tmp_path):
    request = RequestOp()
    ops = [Calls("a", [request]), Calls("b", [request])]
    last = Calls("c", ops)
    for op in (*ops, last):
        op.folder = str(tmp_path)
    async with serving(last, [("a", "b", "c")]) as server:
        assert value_of(await ask(server)) == "1>a+1>b>c"
        (process,) = host_of(server)._alive
        assert process.finished == 1
    assert len({line.split()[2] for line in notes(tmp_path, "ran")}) == 1


@on_loop
async def test_a_group_is_left_at_one_place_only(tmp_path):
    """Else what had been finished would be lost for those outside, with the process."""
    first = Calls("a", [RequestOp()])
    second = Calls("b", [first])
    outside = Calls("c", [first])
    last = Calls("d", [second, outside])
    for op in (first, second, outside, last):
        op.folder = str(tmp_path)
    async with serving(last, op={"c": {"workers": "thread"}}) as server:
        assert server.executor.executor.fusing.hosted._wanted == {}
        assert value_of(await ask(server)) == "1>a>b+1>a>c>d"


@pytest.mark.parametrize(
    "keys", [{"concurrency": 2}, {"retry": 2}, {"fuse": False}, {"batch_size": 4}]
)
@on_loop
async def test_an_op_of_other_settings_goes_by_itself(tmp_path, keys):
    last = chain(tmp_path, Calls, Calls, Calls, Calls)
    async with serving(last, op={"c": keys}) as server:
        expected = [("a", "b"), ("c", "d")] if keys == {"retry": 2} else [("a", "b")]
        await until(lambda: groups(server) == expected)
        assert value_of(await ask(server)) == "1>a>b>c>d"


def dies_of_die(op, x):
    if x.startswith("die"):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("place", [0, 1, 2])
@on_loop
async def test_who_dies_is_blamed_and_nobody_runs_twice(tmp_path, place):
    name = "abc"[place]
    last = chain(tmp_path, Calls, Calls, Calls, **{name: dies_of_die})
    async with serving(last, [("a", "b", "c")]) as server:
        answer = await ask(server, "die")
        assert answer.err_no != 0
        assert f"[{name}] failed to predict" in answer.err_msg
        assert "was killed by SIGKILL" in answer.err_msg
        await until(lambda: ("a", "b", "c") not in groups(server))  # it comes apart
        assert value_of(await ask(server)) == "1>a>b>c"
        for each in "abc":
            assert node(server, each).workers.state().restarts == 0
        set_pace(server)
        await until(lambda: groups(server) == [("a", "b", "c")])
        assert value_of(await ask(server, "2")) == "2>a>b>c"
    times = Counter(ran(tmp_path))
    assert times == Counter(
        [(each, "die") for each in "abc"[: place + 1]] + [(each, x) for x in "12" for each in "abc"]
    )


@on_loop
async def test_the_others_go_on_when_a_process_dies(tmp_path, monkeypatch):
    monkeypatch.setattr(walks, "_STEP_S", 60.0)  # they wait behind it, however long they take
    go = tmp_path / "go"

    def act(op, x):
        if x.startswith("die"):
            wait_until(go.exists)
            os.kill(os.getpid(), signal.SIGKILL)

    last = chain(tmp_path, Calls, Calls, b=act)
    async with serving(last, [("a", "b")]) as server:
        dying = asyncio.create_task(ask(server, "die"))
        await until(lambda: ("b", "die") in ran(tmp_path))
        others = [asyncio.create_task(ask(server, str(x))) for x in range(5)]
        await until(lambda: node(server, "a").load.running + len(node(server, "a").scheduler) > 4)
        go.touch()
        assert "[b] failed" in (await dying).err_msg
        assert [value_of(await other) for other in others] == [f"{x}>a>b" for x in range(5)]
    assert set(Counter(ran(tmp_path)).values()) == {1}


@on_loop
async def test_the_first_is_tried_again_as_often_as_it_may(tmp_path):
    def act(op, x):
        if len(notes(tmp_path, "ran")) == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    last = chain(tmp_path, Calls, Calls, a=act)
    async with serving(last, [("a", "b")], op={"a": {"retry": 2}}) as server:
        assert value_of(await ask(server)) == "1>a>b"
    assert ran(tmp_path) == [("a", "1"), ("a", "1"), ("b", "1")]


@pytest.mark.parametrize("place", [0, 1, 2])
@on_loop
async def test_a_step_that_takes_longer_than_its_timeout_is_ended(tmp_path, place):
    name = "abc"[place]
    never = tmp_path / "never"

    def act(op, x):
        if x.startswith("hang"):
            note(tmp_path, "hangs", op.name)
            wait_until(never.exists, 60)

    kinds = [Calls] * 3
    kinds[place] = Processes
    last = chain(tmp_path, *kinds, **{name: act})
    async with serving(last, [("a", "b", "c")], op={name: {"timeout": 300}}) as server:
        answer = await ask(server, "hang")
        assert answer.err_no == TIMED_OUT
        assert f"[{name}] failed to predict" in answer.err_msg
        assert value_of(await ask(server)).startswith("1>")
        assert ("a", "b", "c") not in groups(server)
    assert notes(tmp_path, "hangs") == [name]
    assert set(Counter(ran(tmp_path)).values()) == {1}


@on_loop
async def test_what_nobody_waits_for_is_given_up(tmp_path):
    def act(op, x):
        if x.startswith("hang"):
            wait_until((tmp_path / "never").exists, 60)

    last = chain(tmp_path, Calls, Calls, Calls, b=act)
    async with serving(last, [("a", "b", "c")]) as server:
        (process,) = host_of(server)._alive
        assert (await ask(server, "hang", 0.2)).err_no != 0
        await until(lambda: process.child.state == "ended")
        assert value_of(await ask(server)) == "1>a>b>c"
    assert ("c", "hang") not in ran(tmp_path)


@on_loop
async def test_a_request_that_is_over_goes_no_further(tmp_path):
    def act(op, x):
        if x.startswith("late"):
            wait_until((tmp_path / "go").exists)

    last = chain(tmp_path, Calls, Calls, a=act)
    async with serving(last, [("a", "b")]) as server:
        late = asyncio.create_task(ask(server, "late"))
        await until(lambda: ("a", "late") in ran(tmp_path))
        late.cancel()
        await asyncio.wait([late])
        (tmp_path / "go").touch()
        assert value_of(await ask(server)) == "1>a>b"
    assert ran(tmp_path) == [("a", "late"), ("a", "1"), ("b", "1")]


@on_loop
async def test_a_copy_that_cannot_be_set_up_changes_nothing(tmp_path):
    class StartsOnce(Calls):
        def init_op(self):
            note(self.folder, "inits", str(os.getpid()))
            if len(notes(self.folder, "inits")) > 1:
                raise RuntimeError("only one of me")

    last = chain(tmp_path, Calls, StartsOnce, Calls)
    async with serving(last) as server:
        await until(lambda: not node(server, "b").pace.is_fusable)
        log = tmp_path / "PipelineServingLogs" / "pipeline.log"
        await until(lambda: "only one of me" in log.read_text())
        assert "Ops a, b, c do not share processes" in log.read_text()
        assert server.executor.is_ready
        assert groups(server) == []
        set_pace(server)
        assert value_of(await ask(server)) == "1>a>b>c"
        await until(lambda: node(server, "a").workers.hosts == [])
    assert len(notes(tmp_path, "inits")) == 2, "it is not tried again"


class Asks(Op):
    def preprocess(self, input_dicts, data_id, log_id, context):
        said = next(iter(input_dicts.values()))["x"]
        self.seen = f"{self.name}:{context.id}:{context.headers['h']}:{self.concurrency_idx}"
        return {"x": said}

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return {"x": f"{fetch_data['x']}>{self.seen}"}


@on_loop
async def test_hooks_have_their_context_and_their_own_attributes():
    last = Asks("b", [Asks("a", [RequestOp()])])
    async with serving(last, [("a", "b")]) as server:
        target = RequestTarget(info=RequestInfo(id="id7", headers={"h": "v"}))
        answer = await ask(server, "1", target=target)
        assert value_of(answer) == "1>a:id7:v:0>b:id7:v:0"


class Prints(Op):
    def init_op(self):
        np.set_printoptions(precision=int(self.name[1:]))

    def preprocess(self, input_dicts, data_id, log_id):
        return {"x": f"{next(iter(input_dicts.values()))['x']} {np.array([1 / 3])}"}


@on_loop
async def test_what_init_op_sets_in_its_context_is_for_its_own_op():
    last = Prints("p5", [Prints("p2", [RequestOp()])])
    async with serving(last, [("p2", "p5")]) as server:
        assert value_of(await ask(server)) == "1 [0.33] [0.33333]"


@pytest.mark.parametrize("name", ["a", "b"])
@on_loop
async def test_a_request_for_one_op_goes_to_its_own_process(tmp_path, name):
    last = chain(tmp_path, Calls, Calls)
    async with serving(last, [("a", "b")]) as server:
        op = node(server, name).op
        target = RequestTarget(op, {"read": {"x": "1"}}, wants_response=False)
        answer = await ask(server, target=target)
        assert answer.payload["x"] == f"1>{name}"
        (worker,) = node(server, name).workers._alive
        assert worker.finished == 1
    assert ran(tmp_path) == [(name, "1")]


@on_loop
async def test_an_error_of_a_step_is_the_answer(tmp_path):
    def act(op, x):
        if x.startswith("bad"):
            raise ProductError(42, "not this one")

    last = chain(tmp_path, Calls, Calls, Calls, b=act)
    async with serving(last, [("a", "b", "c")]) as server:
        answer = await ask(server, "bad")
        assert (answer.err_no, answer.err_msg) == (42, "not this one")
        assert value_of(await ask(server)) == "1>a>b>c"
    assert ("c", "bad") not in ran(tmp_path)


@on_loop
async def test_what_takes_long_is_handed_back(tmp_path, monkeypatch):
    monkeypatch.setattr(walk, "_LONGEST_NS", 1)
    last = chain(tmp_path, Calls, Calls, Calls)
    async with serving(last, [("a", "b", "c")]) as server:
        assert value_of(await ask(server)) == "1>a>b>c"
        (process,) = host_of(server)._alive
        assert process.finished == 1
        (own,) = node(server, "c").workers._alive
        assert own.finished == 1
    assert ran(tmp_path) == [("a", "1"), ("b", "1"), ("c", "1")]


@on_loop
async def test_a_group_that_becomes_slow_comes_apart_and_joins_again(tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "_SLOW_NS", 1_000_000)
    monkeypatch.setattr(pace, "_QUICK_NS", 900_000)

    def act(op, x):
        if x.startswith("slow"):
            time.sleep(0.005)

    last = chain(tmp_path, Calls, Calls, b=act)
    async with serving(last, [("a", "b")]) as server:
        for _ in range(100):
            assert value_of(await ask(server, "slow")) == "slow>a>b"
            if not groups(server):
                break
        assert groups(server) == []
        async with asyncio.timeout(20):
            while groups(server) != [("a", "b")]:
                assert value_of(await ask(server)) == "1>a>b"


@on_loop
async def test_who_waits_behind_a_slow_step_goes_op_by_op(tmp_path, monkeypatch):
    monkeypatch.setattr(group, "_WAIT_S", 0.005)

    def act(op, x):
        if x.startswith("slow"):
            wait_until((tmp_path / "go").exists)

    last = chain(tmp_path, Calls, Calls, Calls, c=act)
    async with serving(last, [("a", "b", "c")], op={"c": {"timeout": 20000}}) as server:
        slow = asyncio.create_task(ask(server, "slow"))
        await until(lambda: ("c", "slow") in ran(tmp_path))
        others = [asyncio.create_task(ask(server, str(x))) for x in range(3)]
        await until(lambda: {("b", str(x)) for x in range(3)} <= set(ran(tmp_path)))
        (tmp_path / "go").touch()
        assert value_of(await slow) == "slow>a>b>c"
        assert [value_of(await each) for each in others] == [f"{x}>a>b>c" for x in range(3)]
        assert node(server, "a").load.running == node(server, "c").load.running == 0
    assert set(Counter(ran(tmp_path)).values()) == {1}


@on_loop
async def test_a_process_that_is_killed_while_idle_is_replaced(tmp_path):
    last = chain(tmp_path, Calls, Calls)
    async with serving(last, [("a", "b")], op={key: {"concurrency": 2} for key in "ab"}) as server:
        host = host_of(server)
        await until(lambda: host.count == 2)
        victim = next(iter(host._alive))
        os.kill(victim.child.pid, signal.SIGKILL)
        await until(lambda: host.count == 1)
        assert value_of(await ask(server)) == "1>a>b"
        await until(lambda: host.count == 2)


@on_loop
async def test_what_a_stopped_process_has_not_begun_goes_op_by_op(tmp_path):
    last = chain(tmp_path, Calls, Calls)
    async with serving(last, [("a", "b")]) as server:
        (process,) = host_of(server)._alive
        os.kill(process.child.pid, signal.SIGSTOP)
        assert value_of(await ask(server)) == "1>a>b"
        await until(lambda: process.child.state == "stopped")
        assert value_of(await ask(server, "2")) == "2>a>b"
        os.kill(process.child.pid, signal.SIGCONT)
        await until(lambda: host_of(server).is_up)
        assert value_of(await ask(server, "3")) == "3>a>b"
    assert set(Counter(ran(tmp_path)).values()) == {1}


@on_loop
async def test_a_server_that_stops_starts_no_process(tmp_path, monkeypatch):
    async with serving(chain(tmp_path, Calls, Calls), [("a", "b")]) as server:
        nodes = list(server.executor.executor.nodes.values())
        fusing = server.executor.executor.fusing
        monkeypatch.setattr(hosting, "_SETTLED_S", 60.0)
        fusing.close()
        nodes[0].pace.is_quick = False
        fusing._regroup()
        assert fusing.hosted._timer is None


@on_loop
async def test_a_server_that_stops_ends_the_processes_of_its_groups(tmp_path):
    def act(op, x):
        if x.startswith("hang"):
            wait_until((tmp_path / "never").exists, 60)

    last = chain(tmp_path, Calls, Calls, b=act)
    async with serving(last, [("a", "b")], stop_grace_period=500) as server:
        (process,) = host_of(server)._alive
        hanging = asyncio.create_task(ask(server, "hang"))
        await until(lambda: ("b", "hang") in ran(tmp_path))
    assert (await hanging).err_no != 0
    assert process.child.state == "ended"


def spans_of(folder, is_fused):
    """What the journal has of ten requests, of which every third is refused by `b`."""
    journal = Journal([])

    def act(op, x):
        if int(x.split(">")[0]) % 3 == 0:
            raise ProductError(42, "not this one")

    async def main():
        last = chain(folder, Calls, Processes, Calls, b=act)
        expected = [("a", "b", "c")] if is_fused else None
        mode = {"fuse_processes": "auto" if is_fused else "off"}
        async with serving(last, expected, dag=mode) as server:
            for each in server.executor.executor.nodes.values():
                each.spans.journal, each.spans.is_wanted = journal, True
            for x in range(10):
                await ask(server, str(x))
        return list(journal.spans)

    rows = np.frombuffer(b"".join(asyncio.run(main())), SPAN)
    return [OpSpan(*map(int, row)) for row in rows]


def test_spans_are_as_those_of_ops_by_themselves(tmp_path):
    fused, apart = spans_of(tmp_path, True), spans_of(tmp_path, False)
    for spans in (fused, apart):
        for span in spans:
            times = span[6:]
            assert list(times) == sorted(times)
    told = [
        sorted((s.data_id, s.op, s.worker, s.rows, s.outcome) for s in spans)
        for spans in (fused, apart)
    ]
    assert told[0] == told[1]
    assert {outcome for *_, outcome in told[0]} == {Outcome.OK, Outcome.PRODUCT}


class Counts(Calls):
    """Answers how many requests there were."""

    count = 0

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        self.count += 1
        return {"x": f"{super().preprocess(input_dicts)['x']}{self.count}"}


@on_loop
async def test_an_op_that_keeps_something_keeps_its_process(tmp_path):
    """Its count is one: no copy begins anew when the others form a group, or come apart."""
    last = chain(tmp_path, Calls, Calls, Counts, Calls, Calls)
    async with serving(last, op={}, is_quick=False) as server:
        assert value_of(await ask(server)) == "1>a>b>c1>d>e"
        await until(lambda: node(server, "c").workers.keeps_state)
        set_pace(server)
        await until(lambda: groups(server) == [("a", "b"), ("d", "e")])
        assert value_of(await ask(server)) == "1>a>b>c2>d>e"
        set_pace(server, False)
        assert value_of(await ask(server)) == "1>a>b>c3>d>e"


@on_loop
async def test_an_op_that_comes_to_keep_something_leaves_its_group(tmp_path):
    class Keeps(Calls):
        def preprocess(self, input_dicts, data_id=0, log_id=0):
            found = super().preprocess(input_dicts)
            if found["x"].startswith("keep"):
                self.kept = found["x"]
            return found

    last = chain(tmp_path, Calls, Calls, Keeps)
    async with serving(last, [("a", "b", "c")]) as server:
        assert value_of(await ask(server)) == "1>a>b>c"
        assert groups(server) == [("a", "b", "c")]
        assert value_of(await ask(server, "keep")) == "keep>a>b>c"
        await until(lambda: groups(server) == [("a", "b")])
        assert value_of(await ask(server)) == "1>a>b>c"
