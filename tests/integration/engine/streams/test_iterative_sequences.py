"""`batching: iterative` with `sequence`: each request is a sequence of its own, with states."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import accumulate

import numpy as np
import pytest
from doubles import on_loop
from streaming import Event, PartsSink, serving

from pipeline import Op, RequestOp

KINDS = pytest.mark.parametrize("workers", ["thread", "process"])
STATE = {"input_name": "before", "output_name": "after", "data_type": "TYPE_INT64", "dims": [1]}


class Sums(Op):
    """Adds "x" to what it keeps, "n" times; says id, START and slot, and the sum.

    While `gate` is cleared, a step in which "waits" is said hangs.
    """

    def __init__(self, name="Sums", **options):
        super().__init__(name, input_ops=[RequestOp()], **options)
        self.gate, self.entered = Event(), Event()
        self.gate.set()

    def preprocess(self, input_dicts, *, context):
        (inputs,) = input_dicts.values()
        assert context.sequence.start
        names = ("n", "x", "dies", "waits")
        return {name: np.array([[int(inputs.get(name, 0))]]) for name in names}

    def process(self, feed_batch, *, context):
        (feed,) = feed_batch
        if feed["waits"].any():
            self.entered.set()
            self.gate.wait(60)
        for each, dies in zip(context, feed["dies"], strict=True):
            assert each.state.get("begun", False) is not each.sequence.start
            each.state["begun"] = True
            each.state["at"] = each.state.get("at", 0) + 1
            if dies and each.state["at"] == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        reported = [[item.sequence.id, item.sequence.start, item.sequence.slot] for item in context]
        sums = feed["before"] + feed["x"]
        at = np.array([item.state["at"] for item in context])
        return {
            "after": sums,
            "told": np.array(reported),
            "sum": sums,
            "done": at >= feed["n"][:, 0],
        }

    def postprocess(self, input_dicts, fetch_dict):
        assert "after" not in fetch_dict
        id, start, slot = fetch_dict["told"][0].tolist()
        return {"text": f"{id}.{start}.{slot}={fetch_dict['sum'][0, 0]}"}


def config(**more):
    keys = {"batching": "iterative", "batch_size": 4, "sequence": {"state": [STATE]}, **more}
    return {"op": {"Sums": keys}}


def steps(texts):
    """Return (ids and slots, STARTs, sums) of one request's parts."""
    words = [text.replace("=", ".").split(".") for text in texts]
    seats = {(int(id), int(slot)) for id, _, slot, _ in words}
    return seats, [int(start) for _, start, _, _ in words], [int(total) for *_, total in words]


@KINDS
@on_loop
async def test_each_request_is_a_sequence_with_an_id_a_slot_and_a_state(workers):
    async with serving(Sums(), workers=workers, **config()) as streams:
        counts = (30, 1, 17, 40, 5, 9, 2)
        sinks = [streams.begin(n=n, x=number) for number, n in enumerate(counts, 1)]
        ids = set()
        for number, (sink, n) in enumerate(zip(sinks, counts, strict=True), 1):
            assert await sink.ended() is None
            ((id, slot),), starts, sums = steps(sink.texts)
            assert starts == [1, *[0] * (n - 1)]
            assert sums == list(accumulate([number] * n)), "of nobody else, and from the start"
            assert 0 <= slot < 4
            ids.add(id)
        assert ids == {*range(1, 8)}


@KINDS
@on_loop
async def test_a_unary_request_gets_all_parts_of_its_sequence(workers):
    async with serving(Sums(), workers=workers, **config()) as streams:
        answers = await asyncio.gather(*(streams.combined(n=6, x=x) for x in (1, 2, 3)))
    for x, answer in zip((1, 2, 3), answers, strict=True):
        (text,) = answer.value
        assert text.endswith(f"={6 * x}"), "the last part's is there, whatever the others' are"


@on_loop
async def test_a_process_that_dies_ends_its_sequences_and_slots_start_again():
    async with serving(Sums(), workers="process", **config()) as streams:
        sink = streams.begin(n=9, x=1, dies=1)
        assert "the worker process was killed" in (await sink.ended()).err_msg
        after = streams.begin(n=3, x=5)
        assert await after.ended() is None
        ((id, slot),), starts, sums = steps(after.texts)
        assert (id, slot, starts, sums) == (2, 0, [1, 0, 0], [5, 10, 15])


@on_loop
async def test_states_of_others_continue_when_a_thread_hangs_in_a_step():
    op = Sums()
    async with serving(op, dag={"stream_window": 1}, **config(timeout=300)) as streams:
        slow = streams.begin(PartsSink(takes_at_once=False), n=5, x=1)
        await slow.until(1)  # it has no room: it sits out
        op.gate.clear()
        hangs = streams.begin(n=1, x=1, waits=1)
        assert (await hangs.ended()).err_no
        slow.takes_at_once = True
        slow.take()
        assert await slow.ended() is None
        op.gate.set()
        _, starts, sums = steps(slow.texts)
    assert (starts, sums) == ([1, 0, 0, 0, 0], [1, 2, 3, 4, 5])


class Caller(Op):
    """Says what its context has of a sequence."""

    def process(self, feed_batch, *, context):
        said = [f"{item.sequence_id}/{item.sequence}" for item in context]
        return {"said": np.array(said), "done": np.array([True] * len(said))}

    def postprocess(self, input_dicts, fetch_dict):
        return {"text": str(fetch_dict["said"][0])}


@on_loop
async def test_without_sequence_there_is_no_sequence():
    keys = {"op": {"c": {"batching": "iterative"}}}
    async with serving(Caller("c", input_ops=[RequestOp()]), **keys) as streams:
        sink = streams.begin(n=1)
        assert await sink.ended() is None
    assert sink.texts == ["0/None"]
