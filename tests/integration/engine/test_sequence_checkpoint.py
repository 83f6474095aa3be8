"""`checkpoint`: sequences continue at other workers, whole, when they lose their own."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading

import numpy as np
import pytest
from doubles import server_for

from pipeline import Op, RequestOp
from pipeline.data import RequestInfo
from pipeline.engine.request import RequestTarget
from pipeline.proto.pipeline_service_pb2 import Request

TOTAL = {"input_name": "total", "output_name": "total", "data_type": "INT64", "dims": [1]}
WAITS, DIES = -1, -2


class TallyOp(Op):
    """Adds up what each sequence brings; says in which process, or thread."""

    hangs = threading.Event()

    def preprocess(self, input_dicts):
        (inputs,) = input_dicts.values()
        return {"x": np.array([[inputs["x"]]])}

    def process(self, feed_batch):
        x = feed_batch[0]["x"]
        if DIES in x:
            os.kill(os.getpid(), signal.SIGKILL)
        if WAITS in x:
            self.hangs.wait(30)
        total = feed_batch[0]["total"] + x
        where = np.full_like(x, os.getpid())
        return {"sum": total.copy(), "total": total, "where": where}

    def postprocess(self, input_dicts, fetch_data):
        return {name: value.tolist()[0][0] for name, value in fetch_data.items()}


def sums(answers):
    return [answer if isinstance(answer, str) else answer["sum"] for answer in answers]


async def ask(engine, id, step, last, value, timeout_s=30.0):
    info = RequestInfo(sequence_id=id, sequence_start=step == 0, sequence_end=step == last)
    target = RequestTarget(payload={"x": value}, wants_response=False, info=info)
    answer = await engine.handle(Request(), timeout_s, target)
    return str(answer.error) if answer.error is not None else answer.payload


def served(workers, count=2, batch_size=4, timeout=-1, state=TOTAL, strategy="oldest", **keys):
    sequence = {"strategy": strategy, "state": [state], "checkpoint": True, "max_idle_ms": 60000}
    op = TallyOp("tally", RequestOp())
    keys |= {"concurrency": count, "batch_size": batch_size, "workers": workers}
    return server_for(op, op={"tally": {**keys, "timeout": timeout, "sequence": sequence}})


def course(server, coroutine):
    return server._thread.run(coroutine(server.executor))


@pytest.mark.parametrize("strategy", ["oldest", "direct"])
def test_killed_processes_under_load_lose_no_states(strategy):
    steps, sequences, kills = 40, 12, 4

    async def talk(engine):
        answered = 0
        pids = set()

        async def one(name):
            nonlocal answered
            collected = []
            for step in range(steps):
                answer = await ask(engine, f"s{name}", step, steps - 1, name + step)
                collected.append(answer if isinstance(answer, str) else answer["sum"])
                if not isinstance(answer, str):
                    pids.add(answer["where"])
                    answered += 1
                    if answered % (steps * sequences // (kills + 1)) == 0:
                        os.kill(answer["where"], signal.SIGKILL)
            return collected

        return await asyncio.gather(*map(one, range(sequences))), len(pids)

    with served("process", strategy=strategy) as server:
        result, processes = course(server, talk)
        state = server.executor.state().ops[0].sequences
    expected = [list(itertools.accumulate(range(n, n + steps))) for n in range(sequences)]
    assert result == expected
    assert processes > 2
    assert (state.live, state.used, state.lost) == (0, 0, 0)


@pytest.mark.parametrize(
    ("workers", "is_one_buffer"), [("thread", False), ("thread", True), ("process", True)]
)
def test_sequences_of_a_hanging_worker_continue_without_it(workers, is_one_buffer):
    async def talk(engine):
        first = await asyncio.gather(*(ask(engine, id, 0, 9, id) for id in (1, 2, 3)))
        second = await asyncio.gather(
            *(ask(engine, id, 1, 9, WAITS if id == 2 else id) for id in (1, 2, 3))
        )
        third = await asyncio.gather(*(ask(engine, id, 9, 9, id) for id in (1, 2, 3)))
        return [
            answer if isinstance(answer, str) else answer["sum"]
            for answer in first + second + third
        ]

    TallyOp.hangs.clear()
    state = {**TOTAL, "use_same_buffer_for_input_output": is_one_buffer}
    with served(workers, count=1, timeout=100, state=state) as server:
        try:
            answers = course(server, talk)
        finally:
            TallyOp.hangs.set()
    assert "exceeded retry count" in answers.pop(4)
    assert answers == [1, 2, 3, 2, 6, 3, 4, 9]


def test_a_request_that_kills_its_worker_fails_and_its_sequence_continues():
    async def talk(engine):
        first = await asyncio.gather(*(ask(engine, id, 0, 9, id) for id in (1, 2, 3)))
        second = await asyncio.gather(
            *(ask(engine, id, 1, 9, DIES if id == 2 else id) for id in (1, 2, 3))
        )
        third = await asyncio.gather(*(ask(engine, id, 9, 9, id) for id in (1, 2, 3)))
        return [
            answer if isinstance(answer, str) else answer["sum"]
            for answer in first + second + third
        ]

    with served("process", count=2) as server:
        answers = course(server, talk)
    assert "failed to predict" in answers.pop(4)
    assert answers == [1, 2, 3, 2, 6, 3, 4, 9]


def test_an_idle_sequence_of_a_lost_worker_continues():
    async def talk(engine):
        answer = await ask(engine, "a", 0, 9, 5)
        os.kill(answer["where"], signal.SIGKILL)
        again = await ask(engine, "a", 9, 9, 6)
        return again["sum"], again["where"] != answer["where"]

    with served("process", count=1) as server:
        assert course(server, talk) == (11, True)
