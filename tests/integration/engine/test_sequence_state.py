"""States of sequences in a running server: kept where their Op runs, fed to each next step."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest
from doubles import server_for

from pipeline import Op, RequestOp, ResponseOp
from pipeline.data import RequestInfo
from pipeline.engine.request import RequestTarget
from pipeline.errors import InitError
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.workers.process.wire import Link, Unframer

KINDS = pytest.mark.parametrize("workers", ["thread", "process"])
FAILS = -1
TOTAL = {"input_name": "total", "output_name": "next_total", "data_type": "INT64", "dims": [1]}
LONG = {"input_name": "seen", "output_name": "next_seen", "data_type": "INT64", "dims": [-1]}


class TallyOp(Op):
    """Adds up what each sequence brings, in a state; says how many rows each call had."""

    def preprocess(self, input_dicts):
        (inputs,) = input_dicts.values()
        return {"x": np.array([[inputs["x"]]])}

    def process(self, feed_batch):
        feed = feed_batch[0]
        x = feed["x"]
        total = feed["total"] + x
        if FAILS in x:
            raise ValueError("as asked")
        return {"sum": total, "next_total": total, "calls": np.full_like(x, len(x))}

    def postprocess(self, input_dicts, fetch_data):
        return {name: value.tolist() for name, value in fetch_data.items()}


def target(words, value):
    name, *flags = words.split()
    info = RequestInfo(
        sequence_id=name, sequence_start="start" in flags, sequence_end="end" in flags
    )
    return RequestTarget(payload={"x": value}, wants_response=False, info=info)


async def ask(engine, words, value=1):
    """The answer, or the text of its error."""
    answer = await engine.handle(Request(), 30.0, target(words, value))
    return str(answer.error) if answer.error is not None else answer.payload


def talk(server, *requests):
    """Ask all at once, in this order; return what `ask` does of each."""

    async def course():
        return await asyncio.gather(*(ask(server.executor, *request) for request in requests))

    return server._thread.run(course())


def served(workers, op=None, states=(TOTAL,), batch_size=4, count=1, **sequence):
    op = op or TallyOp("tally", RequestOp())
    keys = {"concurrency": count, "batch_size": batch_size, "workers": workers}
    keys["sequence"] = {"strategy": "direct", "state": list(states), **sequence}
    return server_for(op, op={op.name: keys})


def course_of(name, values):
    """The requests of one sequence."""
    last = len(values) - 1
    flags = [" start" * (at == 0) + " end" * (at == last) for at in range(last + 1)]
    return [(f"{name}{flag}", value) for flag, value in zip(flags, values, strict=True)]


@KINDS
def test_a_state_is_fed_to_the_next_step_and_hidden_from_the_client(workers):
    values = {name: [name * 10 + at for at in range(6)] for name in range(7)}
    requests = [course_of(f"s{name}", each) for name, each in values.items()]
    mixed = [request for step in zip(*requests, strict=True) for request in step]
    with served(workers, count=2) as server:
        answers = talk(server, *mixed)
    sums = [answer["sum"] for answer in answers]
    by_name = {name: sums[name::7] for name in values}
    assert by_name == {
        name: [[[total]] for total in itertools.accumulate(each)] for name, each in values.items()
    }
    assert all(answer.keys() == {"sum", "calls"} for answer in answers)


@KINDS
def test_an_error_of_process_neither_ends_a_sequence_nor_changes_its_state(workers):
    with served(workers) as server:
        answers = talk(server, ("a start", 5), ("a", FAILS), ("a", 2), ("a end", 3))
        again = talk(server, ("a start", 1), ("a end", 1))
    assert [item["sum"] for item in (answers[0], *answers[2:])] == [[[5]], [[7]], [[10]]]
    assert "as asked" in answers[1]
    assert [item["sum"] for item in again] == [[[1]], [[2]]]


class GrowingOp(TallyOp):
    def process(self, feed_batch):
        feed = feed_batch[0]
        seen = np.concatenate([feed["seen"], feed["x"]], axis=1)
        return {"sum": seen.sum(1, keepdims=True), "next_seen": seen}


@KINDS
def test_sequences_with_states_of_different_shapes_run_at_once(workers):
    with served(workers, GrowingOp("tally", RequestOp()), (LONG,)) as server:
        talk(server, ("a start", 1), ("a", 1), ("a", 1), ("b start", 1))
        answers = talk(server, ("a", 1), ("b", 10), ("a end", 1), ("b end", 100))
    assert [answer["sum"] for answer in answers] == [[[4]], [[11]], [[5]], [[111]]]


class WritingOp(TallyOp):
    def process(self, feed_batch):
        feed = feed_batch[0]
        feed["total"] += feed["x"]
        return {"sum": feed["total"].copy()}


@KINDS
def test_a_write_into_the_same_buffer_is_saved(workers):
    state = {**TOTAL, "use_same_buffer_for_input_output": True}
    with served(workers, WritingOp("tally", RequestOp()), (state,)) as server:
        alone = talk(server, ("a start", 1), ("a", 2))
        together = talk(server, ("a", 3), ("b start", 4), ("a", 5), ("b end", 6), ("a end", 7))
        again = talk(server, ("a start end", 9))
    results = [item["sum"][0][0] for item in (*alone, *together, *again)]
    assert results == [1, 3, 6, 4, 11, 10, 18, 9]


@KINDS
def test_without_a_shared_buffer_a_state_is_read_only(workers):
    with served(workers, WritingOp("tally", RequestOp())) as server:
        (answer,) = talk(server, ("a start", 1))
    assert "read-only" in answer


class SilentOp(TallyOp):
    def process(self, feed_batch):
        feed = feed_batch[0]
        result = {"sum": feed["total"] + feed["x"]}
        return result if feed["x"][0, 0] > 100 else {**result, "next_total": result["sum"]}


@KINDS
def test_a_state_that_process_does_not_return_stays(workers):
    with served(workers, SilentOp("tally", RequestOp()), batch_size=1) as server:
        answers = talk(server, ("a start", 1), ("a", 200), ("a end", 3))
    assert [answer["sum"] for answer in answers] == [[[1]], [[201]], [[4]]]


@KINDS
def test_a_state_that_is_listed_as_output_is_returned(workers):
    op = TallyOp("tally", RequestOp(), fetch_list=["sum", "next_total"])
    with served(workers, op) as server:
        answers = talk(server, ("a start", 1), ("a end", 2))
    assert [answer["next_total"] for answer in answers] == [[[1]], [[3]]]


class TextOp(TallyOp):
    def process(self, feed_batch):
        feed = feed_batch[0]
        text = feed["total"] + feed["x"].astype(str).astype(object)
        return {"sum": text, "next_total": text.astype(str)}


@KINDS
def test_a_text_state_starts_empty_or_with_its_file(workers, tmp_path):
    state = {**TOTAL, "data_type": "TYPE_STRING"}
    file = tmp_path / "begin"
    file.write_bytes(b"\x02\x00\x00\x00>>")
    fields = {**state, "initial_state": {"name": "begin", "data_file": str(file)}}
    for declared, first in ((state, "1"), (fields, ">>1")):
        with served(workers, TextOp("tally", RequestOp()), (declared,)) as server:
            answers = talk(server, ("a start", 1), ("a end", 2))
        assert [answer["sum"] for answer in answers] == [[[first]], [[first + "2"]]]


def test_a_state_starts_with_the_contents_of_its_file(tmp_path):
    (tmp_path / "begin.bin").write_bytes(np.array([7, 8], "<i8").tobytes())
    initial = {"name": "x", "data_type": "TYPE_INT64", "dims": [1]}
    state = {**TOTAL, "initial_state": {**initial, "data_file": str(tmp_path / "begin.bin")}}
    with served("thread", states=(state,)) as server:
        (answer,) = talk(server, ("a start end", 1))
    assert answer["sum"] == [[8]]


def test_a_file_that_is_too_short_or_not_there_fails_the_start(tmp_path):
    (tmp_path / "short").write_bytes(b"123")
    text = "initial_state setting expects 8 bytes, but the data provided from"
    for name, expected in (("short", text), ("none", "is not in")):
        state = {**TOTAL, "initial_state": {"data_file": str(tmp_path / name)}}
        with pytest.raises(InitError, match=expected), served("thread", states=(state,)):
            pass


class SkippingOp(TallyOp):
    def preprocess(self, input_dicts):
        data = super().preprocess(input_dicts)
        if data["x"][0, 0] == 0:
            raise ValueError("nothing to add")
        return data


@KINDS
def test_a_sequence_after_an_error_has_no_state_of_the_previous_one(workers):
    with served(workers, SkippingOp("tally", RequestOp()), batch_size=1) as server:
        answers = talk(server, ("a start", 5), ("a start", 0), ("a end", 2))
    assert answers[2]["sum"] == [[2]]


class WrongOp(TallyOp):
    def process(self, feed_batch):
        x = feed_batch[0]["x"]
        wrong = [x[:0], x.astype(float), feed_batch[0]["total"] + x][min(int(x[0, 0]), 2)]
        return {"sum": feed_batch[0]["total"] + x, "next_total": wrong}


def test_a_state_that_is_not_as_declared_fails_its_step_alone():
    with served("thread", WrongOp("tally", RequestOp()), batch_size=1) as server:
        answers = talk(server, ("a start", 2), ("a", 0), ("a", 1), ("a end", 4))
    assert "returned state 'next_total' of shape [0, 1]" in answers[1]
    assert "of dtype float64, declared is int64" in answers[2]
    assert answers[3]["sum"] == [[6]]


class AcrossOp(TallyOp):
    def process(self, feed_batch):
        feed = feed_batch[0]
        kept = feed["total"] + feed["x"].reshape(1, -1)
        return {"sum": kept[0].reshape(-1, 1), "next_total": kept}


def test_the_requests_may_be_along_another_axis():
    state = {**TOTAL, "dims": [2], "batch_axis": 1}
    with served("thread", AcrossOp("tally", RequestOp()), (state,)) as server:
        answers = talk(server, ("a start", 1), ("b start", 10), ("a end", 2), ("b end", 20))
    assert [answer["sum"] for answer in answers] == [[[1]], [[10]], [[3]], [[30]]]


class SingleOp(TallyOp):
    def process(self, feed_batch):
        feed = feed_batch[0]
        kept = feed["total"] + feed["x"][0]
        return {"sum": kept.reshape(-1, 1), "next_total": kept}


def test_without_a_batch_axis_each_request_runs_alone():
    state = {**TOTAL, "batch_axis": -1}
    with served("thread", SingleOp("tally", RequestOp()), (state,)) as server:
        answers = talk(server, ("a start", 1), ("b start", 10), ("a end", 2), ("b end", 20))
    assert [answer["sum"] for answer in answers] == [[[1]], [[10]], [[3]], [[30]]]


class LargeOp(TallyOp):
    def process(self, feed_batch):
        feed = feed_batch[0]
        kept = feed["total"].copy()
        kept[:, -1:] += feed["x"]
        return {"sum": kept[:, -1:], "next_total": kept}


def test_a_state_never_leaves_its_process(monkeypatch):
    """Counted are the bytes on the sockets, both ways; the answers have no state either."""
    passed = []
    feed, send = Unframer.feed, Link.send
    monkeypatch.setattr(Unframer, "feed", lambda at, data: passed.append(data) or feed(at, data))
    monkeypatch.setattr(Link, "send", lambda at, frame: passed.append(frame) or send(at, frame))
    state = {**TOTAL, "dims": [2**20]}
    with served("process", LargeOp("tally", RequestOp()), (state,)) as server:
        passed.clear()
        answers = talk(server, ("a start", 1), ("b start", 2), ("a", 3), ("b end", 4), ("a end", 5))
        assert 0 < sum(map(len, passed)) < 10_000
    assert answers == [{"sum": [[total]]} for total in (1, 2, 4, 6, 9)]


def test_ops_of_a_graph_have_separate_states():
    class SecondOp(TallyOp):
        def preprocess(self, input_dicts):
            return {"x": np.array(input_dicts["tally"]["sum"])}

    first = TallyOp("tally", RequestOp())
    second = SecondOp("second", first)
    ResponseOp(second)
    keys = {"sequence": {"strategy": "oldest", "state": [TOTAL]}, "batch_size": 2}
    with server_for(second, op={"tally": keys, "second": keys}) as server:
        answers = talk(server, ("a start", 1), ("a", 2), ("a end", 3))
    assert [answer["sum"] for answer in answers] == [[[1]], [[4]], [[10]]]
