"""Sequences in a running server: each stays at one worker, in order, or ends with an error."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from doubles import server_for, wait_until

from pipeline import Op, RequestOp, ResponseOp
from pipeline.data import RequestInfo
from pipeline.engine.request import RequestTarget
from pipeline.engine.sequences.filter import reorder_buffers_of
from pipeline.errors import ConfigError, ErrorCode, GraphError
from pipeline.proto.pipeline_service_pb2 import Request

KINDS = pytest.mark.parametrize("workers", ["thread", "process"])
STRATEGIES = pytest.mark.parametrize("strategy", ["direct", "oldest"])
FAILS, DIES = -1, -2


class SumOp(Op):
    """Adds up what each sequence brings; says of each request what it is and where it ran."""

    gate: threading.Event | None = None
    begun: threading.Event = threading.Event()

    def init_op(self):
        self.sums = {}

    def preprocess(self, input_dicts):
        (inputs,) = input_dicts.values()
        return {"x": np.array([inputs["x"]])}

    def process(self, feed_batch, *, context):
        if self.gate is not None:
            self.begun.set()
            self.gate.wait(30)
        rows = feed_batch[0]["x"]
        reported = [
            self.add(int(row), each.sequence) for row, each in zip(rows, context, strict=True)
        ]
        if DIES in rows:
            os.kill(os.getpid(), signal.SIGKILL)
        if FAILS in rows:
            raise ValueError("as asked")
        return {
            "sum": np.array(reported),
            "place": np.array([[os.getpid(), item.sequence.slot] for item in context]),
        }

    def add(self, value, step):
        if step.start:
            self.sums[step.id] = []
        self.sums[step.id] = [*self.sums[step.id], value]
        total = sum(self.sums[step.id]), len(self.sums[step.id])
        if step.end:
            del self.sums[step.id]
        return total

    def postprocess(self, input_dicts, fetch_data):
        return {"sum": fetch_data["sum"].tolist(), "place": fetch_data["place"].tolist()}


def target(words, value):
    """What a v2 door makes of a request: "7 start"."""
    name, *flags = words.split()
    info = RequestInfo(
        sequence_id=int(name) if name.isdigit() else name,
        sequence_start="start" in flags,
        sequence_end="end" in flags,
    )
    return RequestTarget(payload={"x": value}, wants_response=False, info=info)


async def ask(engine, words, value=1, timeout_s=30.0):
    """The answer's `sum` and `place`, or the text of its error."""
    answer = await engine.handle(Request(), timeout_s, target(words, value))
    return str(answer.error) if answer.error is not None else answer.payload


def course(server, coroutine):
    """Run a coroutine of (engine) on a server's loop."""
    return server._thread.run(coroutine(server.executor))


def served(strategy, workers, op=None, *, count=2, batch_size=4, timeout=-1, grace=50, **sequence):
    op = op or SumOp("sum", RequestOp())
    keys = {"concurrency": count, "batch_size": batch_size, "workers": workers, "timeout": timeout}
    keys["sequence"] = {"strategy": strategy, "max_idle_ms": 60_000, **sequence}
    return server_for(op, op={"sum": keys}, stop_grace_period=grace)


def state_of(server):
    return server.executor.state().ops[0].sequences


def sums(answers):
    return [answer["sum"][0] if isinstance(answer, dict) else answer for answer in answers]


@KINDS
@STRATEGIES
def test_pipelined_requests_of_many_sequences_are_all_right(strategy, workers):
    async def talk(engine):
        words = [
            (f"s{name}{' start' * (step == 0)}{' end' * (step == 4)}", name + step)
            for step in range(5)
            for name in range(12)
        ]
        return await asyncio.gather(*(ask(engine, each, value) for each, value in words))

    with served(strategy, workers) as server:
        answers = course(server, talk)
        assert state_of(server).live == 0
        assert state_of(server).slots == 8
    expected = [
        (sum(name + index for index in range(step + 1)), step + 1)
        for step in range(5)
        for name in range(12)
    ]
    assert [tuple(item) for item in sums(answers)] == expected
    for name in range(12):
        assert len({str(answer["place"]) for answer in answers[name::12]}) == 1, "it stayed"


@KINDS
def test_a_call_that_fails_is_not_made_again_for_each_request(workers):
    async def talk(engine):
        first = await asyncio.gather(ask(engine, "1 start"), ask(engine, "2 start"))
        failed = await asyncio.gather(ask(engine, "1", FAILS), ask(engine, "2"))
        after = await asyncio.gather(ask(engine, "1"), ask(engine, "2"))
        return first, failed, after

    with served("direct", workers, count=1) as server:
        first, failed, after = course(server, talk)
    assert sums(first) == [[1, 1], [1, 1]]
    assert all("as asked" in item for item in failed)
    assert sums(after) == [[1, 3], [3, 3]], "each was in one call of three"


def test_a_process_that_is_killed_ends_its_sequences_and_no_other():
    async def talk(engine):
        await ask(engine, "1 start")
        await ask(engine, "2 start")
        lost = await asyncio.gather(ask(engine, "1", DIES), ask(engine, "1"), ask(engine, "1"))
        after = [await ask(engine, "1"), await ask(engine, "2"), await ask(engine, "1 start")]
        return lost, after

    with served("oldest", "process", batch_size=1) as server:
        lost, after = course(server, talk)
    assert "killed by SIGKILL" in lost[0]
    assert all("sequence 1 has ended: its worker was lost" in item for item in lost[1:])
    assert "its first request must have sequence_start" in after[0]
    assert sums(after[1:]) == [[2, 2], [1, 1]]


def test_a_thread_that_hangs_ends_its_sequences():
    class HangingOp(SumOp):
        def process(self, feed_batch, *, context):
            if (feed_batch[0]["x"] == FAILS).any():
                is_over.wait(30)
            return super().process(feed_batch, context=context)

    async def talk(engine):
        await ask(engine, "1 start")
        lost = await asyncio.gather(ask(engine, "1", FAILS), ask(engine, "1"))
        return lost, [await ask(engine, "1"), await ask(engine, "1 start")]

    is_over = threading.Event()
    op = HangingOp("sum", RequestOp())
    with served("direct", "thread", op, count=1, timeout=50) as server:
        try:
            lost, after = course(server, talk)
        finally:
            is_over.set()
    assert "exceeded retry count" in lost[0]
    assert "sequence 1 has ended" in lost[1]
    assert "its first request must have sequence_start" in after[0]
    assert sums(after[1:]) == [[1, 1]]


@KINDS
def test_a_batch_that_was_sent_ahead_is_lost_with_its_worker(workers):
    """Sequences 3 and 4 wait at the worker behind 1 and 2: no other has what they need."""

    async def talk(engine):
        for _ in range(2):  # from then on it is known how long a batch takes
            await asyncio.gather(*(ask(engine, f"{name} start") for name in names))
        values = FAILS, 1, 1, 1
        tasks = (ask(engine, name, value) for name, value in zip(names, values, strict=True))
        lost = await asyncio.gather(*tasks)
        return lost, [await ask(engine, "3"), await ask(engine, "3 start")]

    names = "1", "2", "3", "4"
    is_over = threading.Event()

    class HangingOp(SumOp):
        def process(self, feed_batch, *, context):
            if (feed_batch[0]["x"] == FAILS).any():
                is_over.wait(30)
            return super().process(feed_batch, context=context)

    op = HangingOp("sum", RequestOp())
    keys = {"count": 1, "batch_size": 2, "max_candidates": 4, "timeout": 50}
    with served("oldest", workers, op, **keys) as server:
        try:
            lost, after = course(server, talk)
        finally:
            is_over.set()
    assert ["exceeded retry count" in item for item in lost] == [True, True, False, False]
    assert all("hangs" in item or "hung" in item for item in lost[2:])
    assert "its first request must have sequence_start" in after[0]
    assert sums(after[1:]) == [[1, 1]]


def test_a_cancellation_ends_the_sequence():
    async def talk(engine):
        first = asyncio.ensure_future(ask(engine, "1 start"))
        await asyncio.to_thread(op.begun.wait, 30)
        second = asyncio.ensure_future(ask(engine, "1"))
        third = asyncio.ensure_future(ask(engine, "1 end"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        told = await third
        refused = await ask(engine, "1 end")
        op.gate.set()
        return await first, told, refused, await ask(engine, "1 start end")

    op = SumOp("sum", RequestOp())
    op.gate, op.begun = threading.Event(), threading.Event()
    with served("oldest", "thread", op, count=1) as server:
        first, reported, refused, second = course(server, talk)
    assert reported == "[sum] a request of sequence 1 was cancelled, which ended the sequence"
    assert "its first request must have sequence_start" in refused
    assert sums([first, second]) == [[1, 1], [1, 1]]


def test_requests_of_a_long_ended_sequence_are_answered_in_slices():
    async def talk(engine):
        told = []
        first = asyncio.ensure_future(ask(engine, "1 start"))
        await asyncio.to_thread(op.begun.wait, 30)
        others = [asyncio.ensure_future(ask(engine, "1")) for _ in range(2000)]
        await asyncio.sleep(0)
        first.cancel()
        while not told or told[-1] < len(others):
            await asyncio.sleep(0)
            told.append(sum(item.done() for item in others))
        op.gate.set()
        return told, {item.result() for item in others}

    op = SumOp("sum", RequestOp())
    op.gate, op.begun = threading.Event(), threading.Event()
    with served("oldest", "thread", op, count=1) as server:
        reported, texts = course(server, talk)
    assert texts == {"[sum] a request of sequence 1 was cancelled, which ended the sequence"}
    assert max(after - before for before, after in pairwise([0, *reported])) < 600


def test_a_deadline_in_the_backlog_ends_the_whole_sequence_there():
    async def talk(engine):
        held = asyncio.ensure_future(ask(engine, "1 start end"))
        await asyncio.sleep(0)
        waiting = ask(engine, "2 start"), ask(engine, "2", timeout_s=0.05), ask(engine, "2 end")
        reported = await asyncio.gather(*waiting)
        op.gate.set()
        await held
        return reported

    op = SumOp("sum", RequestOp())
    op.gate = threading.Event()
    with served("direct", "thread", op, count=1, batch_size=1) as server:
        first, late, last = course(server, talk)
    assert first == last == "timeout of the corresponding sequence has been expired"
    assert late not in (first, "")


@KINDS
def test_all_slots_are_known_before_the_first_request(workers):
    with served("direct", workers, count=2, batch_size=3) as server:
        wait_until(lambda: state_of(server).slots == 6)


def test_steps_of_traced_requests_are_reported_with_their_slots():
    reported = []

    def trace(request):
        request.trace = request.target.traceparent

    async def talk(engine):
        (node,) = engine.executor.nodes.values()
        node.spans.on_step = lambda data_id, *step: reported.append(step)
        engine._filters.on_admission += (trace,)
        for words, caller in (("7 start", "t"), ("mic start", "t"), ("7", ""), ("mic", "t")):
            asked = msgspec.structs.replace(target(words, 1), traceparent=caller)
            await engine.handle(Request(), 30.0, asked)

    with served("oldest", "thread", count=1, batch_size=2) as server:
        course(server, talk)
    assert reported == [(0, 7, 0), (0, "mic", 1), (0, "mic", 1)]


def test_an_idle_sequence_is_reaped_without_any_request():
    with served("direct", "thread", max_idle_ms=10) as server:
        course(server, lambda engine: ask(engine, "1 start"))
        wait_until(lambda: state_of(server).reaped == 1)
        assert state_of(server).used == 0
        reported = course(server, lambda engine: ask(engine, "1"))
    assert "its first request must have sequence_start" in reported


def test_an_idle_sequence_is_reaped_after_a_repeated_check():
    async def talk(engine):
        begun = sums([await ask(engine, "1 start")])
        (node,) = engine.executor.nodes.values()
        node.scheduler.book._max_idle_s = -1.0  # it has been idle for too long all the while
        node.filters[0]._watch_idle()
        node.filters[0]._watch_idle()  # behind a timer that uvloop has no time of
        return begun

    with served("oldest", "thread") as server:
        assert course(server, talk) == [[1, 1]]
        wait_until(lambda: state_of(server).reaped == 1)


def test_a_request_without_an_id_is_refused_and_others_continue():
    async def talk(engine):
        answer = await engine.handle(
            Request(), 30.0, RequestTarget(payload={"x": 1}, wants_response=False)
        )
        return answer.error, await ask(engine, "1 start end")

    with served("direct", "thread") as server:
        error, good = course(server, talk)
    assert error.code == ErrorCode.INPUT_PARAMS_ERROR
    assert str(error).startswith("Op 'sum' has sequences: a request needs a sequence_id")
    assert sums([good]) == [[1, 1]]


@pytest.mark.parametrize(
    ("strategy", "key"), [("oldest", "sequence.max_candidates"), ("direct", "batch_size")]
)
def test_sequences_that_wait_for_slots_are_logged_once_with_the_keys(strategy, key, capsys):
    async def talk(engine):
        for id in (1, 2):
            await ask(engine, f"{id} start")
        waiting = [asyncio.ensure_future(ask(engine, f"{id} start end")) for id in (3, 4)]
        refused = await ask(engine, "9")
        await ask(engine, "1 end")
        return refused, sums(await asyncio.gather(*waiting))

    with served(strategy, "thread", batch_size=1) as server:
        refused, reported = course(server, talk)
    assert "knows no sequence 9" in refused
    assert reported == [[1, 1], [1, 1]]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("WARNING"), "a caller's mistake is not an error of the server"
    for word in ("Op 'sum'", "have all 2", f"op.sum.{key}", "op.sum.concurrency (2)", "(60000)"):
        assert word in line


def test_stateless_ops_around_it_are_not_touched():
    class NextOp(Op):
        def preprocess(self, input_dicts, *, context):
            (answer,) = input_dicts.values()
            return {**answer, "told": context.sequence}

    async def talk(engine):
        return [await ask(engine, item) for item in ("1 start", "1 end")]

    first = SumOp("sum", RequestOp(), sequence="oldest")
    with server_for(NextOp("next", first)) as server:
        answers = course(server, talk)
        assert server.executor.state().ops[1].sequences is None
    assert [answer["sum"][0][0] for answer in answers] == [1, 2]
    assert [answer["told"] for answer in answers] == [None, None]


def test_a_stopping_server_continues_sequences_and_starts_none():
    async def asked(*words):
        return [await ask(engine, word) for word in words]

    server = served("direct", "thread", grace=30_000).start()
    engine, loop = server.executor, server._thread.loop
    with ThreadPoolExecutor() as pool:
        course(server, lambda _: asked("1 start"))
        stopping = pool.submit(server.stop)
        run = asyncio.run_coroutine_threadsafe
        (buffer,) = reorder_buffers_of(engine.executor.nodes).values()
        wait_until(lambda: buffer.is_stopping)
        reported = run(asked("1", "2 start", "1 start", "1 end"), loop).result(30)
        stopping.result(30)
    assert sums([reported[0], reported[3]]) == [[2, 2], [3, 3]]
    assert (
        reported[1]
        == reported[2]
        == ("Server is stopping, scheduler for model has stopped accepting new inference requests")
    )


def test_a_stopping_server_does_not_wait_forever_for_a_sequence():
    server = served("direct", "thread").start()
    first = course(server, lambda engine: ask(engine, "1 start"))
    server.stop()
    assert sums([first]) == [[1, 1]]


# Refusals at the start -----------------------------------------------------------------------


class StreamOp(SumOp):
    def process(self, feed_batch, *, context):
        yield {}


def test_an_op_with_sequence_does_not_stream():
    with pytest.raises(GraphError, match="'sum' has sequence, and makes or reads a stream"):
        served("direct", "thread", StreamOp("sum", RequestOp())).start()


def test_an_op_with_sequence_does_not_run_again():
    op = SumOp("sum", RequestOp(), loop_to="sum")
    with pytest.raises(GraphError, match="'sum' has sequence, and runs again in a loop"):
        served("direct", "thread", op).start()


@pytest.mark.parametrize(
    ("sequence", "text"),
    [
        ("newest", "strategy: expected direct or oldest, found 'newest'"),
        ({"max_idle_ms": 5}, "strategy: expected direct or oldest, found nothing"),
        ({"strategy": "direct", "max_idle": 5}, "unknown key"),
        (7, "expected a mapping"),
    ],
)
def test_the_argument_is_checked_as_the_configuration_is(sequence, text):
    with pytest.raises(ConfigError, match=text):
        server_for(SumOp("sum", RequestOp(), sequence=sequence))


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"op": {"sum": {"batching": "adaptive"}}}, "with batching: adaptive"),
        ({"dag": {"retry": 2}}, "with dag.retry"),
        ({"build_dag_each_worker": True, "worker_num": 2}, "with build_dag_each_worker"),
    ],
)
def test_keys_that_sequences_exclude_are_refused(keys, text):
    op = SumOp("sum", RequestOp(), sequence="direct")
    with pytest.raises(ConfigError, match=f"op.sum.sequence: {text}"):
        server_for(op, response_op=ResponseOp(op), **keys)


@pytest.mark.parametrize(
    ("strategy", "key", "value"),
    [
        ("direct", "max_candidates", 2),
        ("direct", "preferred_batch_sizes", [2]),
        ("oldest", "min_slot_utilization", 0.5),
    ],
)
def test_a_key_of_the_other_strategy_is_refused(strategy, key, value):
    with pytest.raises(ConfigError, match=f"{key}.* for strategy"):
        served(strategy, "thread", **{key: value})
