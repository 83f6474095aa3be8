"""What the engine takes down of every turn and request, over scripted workers."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from doubles import Engine, ScriptedWorker, Tag, answers, chain, settle, virtual

from pipeline import Op, ProductError, RequestOp, ResponseOp
from pipeline.data import ChannelData
from pipeline.engine.journal.journal import (
    NO_WORKER,
    PIPELINE,
    REQUEST,
    SPAN,
    EngineObservers,
    Journal,
    OpSpan,
    Outcome,
    RequestRecord,
    op_spans,
    pack_request,
    pack_span,
    request_records,
)
from pipeline.engine.journal.spans import SpanRecorder
from pipeline.engine.request import RequestTarget
from pipeline.engine.run.stages import BatchRun
from pipeline.errors import ErrorCode, WorkerDiedError
from pipeline.op import PROFILE_KEY
from pipeline.proto import pipeline_service_pb2


class Fails(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        raise ProductError(51, f"{self.name} refuses")


class OwnRequestOp(RequestOp):
    def unpack_request_package(self, request):
        raise KeyError("x")


class Model:
    """A predictor that says how many rows it was fed."""

    def predict(self, feed, fetch=None, log_id=0):
        return {"y": feed["x"] * 2}


class Feeds(Op):
    client = Model()

    def preprocess(self, input_dicts, data_id, log_id):
        (answer,) = input_dicts.values()
        return {"x": np.ones((int(answer["rows"]), 2))}

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return {"path": str(len(fetch_data["y"]))}


def flushed_rows(engine):
    """Fold, and return what was taken down: (turns, requests)."""
    engine.journal.flush()
    return engine.spans, engine.requests


@virtual
async def test_a_request_has_a_row_and_a_span_for_each_of_its_ops():
    async with Engine(chain("a", "b"), None, {"a": 0.5, "b": 0.25}) as engine:
        await engine.ask()
        turns, (request,) = flushed_rows(engine)
    assert [(turn["op"], turn["outcome"], turn["rows"]) for turn in turns] == [
        (0, Outcome.OK, 1),
        (1, Outcome.OK, 1),
    ]
    assert turns[0]["end_ns"] - turns[0]["ready_ns"] == pytest.approx(5e8)
    assert turns[0]["ready_ns"] <= turns[0]["start_ns"] <= turns[0]["preprocess_end_ns"]
    assert turns[0]["process_end_ns"] <= turns[0]["end_ns"] <= turns[0]["result_received_ns"]
    assert (request["target"], request["outcome"], request["code"]) == (PIPELINE, 0, 0)
    assert request["end_ns"] - request["start_ns"] == pytest.approx(7.5e8)
    spent = sum(request[name] for name in ("input_ns", "infer_ns", "output_ns"))
    assert spent == sum(turn["end_ns"] - turn["start_ns"] for turn in turns)


@virtual
async def test_a_failed_request_has_its_code_and_no_spans_of_later_ops():
    async with Engine(Tag("after", [Fails("bad", [chain("a")])])) as engine:
        assert (await engine.ask()).err_no == 51
        turns, (request,) = flushed_rows(engine)
    assert [(turn["op"], turn["outcome"]) for turn in turns] == [
        (0, Outcome.OK),
        (1, Outcome.PRODUCT),
    ]
    assert (request["outcome"], request["code"]) == (Outcome.PRODUCT, 51)


@virtual
async def test_the_turns_of_a_batch_share_its_number_and_times():
    config = {"op": {"a": {"batch_size": 3, "auto_batching_timeout": 10}}}
    async with Engine(chain("a"), config, {"a": 0.5}) as engine:
        await asyncio.gather(*(engine.ask() for _ in range(5)))
        turns, _ = flushed_rows(engine)
    batches = {}
    for turn in turns:
        batches.setdefault(turn["batch"], []).append(turn)
    assert sorted(map(len, batches.values())) == [2, 3]
    for batch in batches.values():
        assert len({(turn["worker"], turn["start_ns"], turn["end_ns"]) for turn in batch}) == 1


@virtual
async def test_a_model_is_charged_for_the_rows_that_it_was_fed():
    config = {"op": {"m": {"batch_size": 2}}}
    engine = Engine(Feeds("m", [RequestOp()]), config, {"m": None})
    async with engine:
        first = asyncio.ensure_future(engine.ask(rows="5"))
        await settle()
        others = [asyncio.ensure_future(engine.ask(rows=rows)) for rows in ("2", "3")]
        await settle()
        engine.pools["m"].release()
        await settle()
        engine.pools["m"].release()
        results = [answers(response)["path"] for response in await asyncio.gather(first, *others)]
        turns, _ = flushed_rows(engine)
    assert results == ["5", "2", "3"]
    assert [turn["rows"] for turn in turns] == [5, 2, 3]


@virtual
async def test_a_request_that_waits_for_a_worker_at_its_deadline_is_rejected():
    async with Engine(chain("a"), {"timeout": 100}, {"a": None}) as engine:
        running = asyncio.ensure_future(engine.ask())
        await settle()
        waiting = asyncio.ensure_future(engine.ask())
        codes = [(await asked).err_no for asked in (running, waiting)]
        engine.pools["a"].release()
        await settle()
        turns, requests = flushed_rows(engine)
    assert codes == [ErrorCode.TIMEOUT] * 2
    assert [turn["outcome"] for turn in turns] == [Outcome.REJECTED, Outcome.OK]
    assert (turns[0]["worker"], turns[0]["batch"]) == (NO_WORKER, -1)
    assert [request["outcome"] for request in requests] == [Outcome.REJECTED] * 2


@virtual
async def test_a_disconnect_cancels_waiting_requests_and_is_reported_once():
    async with Engine(chain("a"), None, {"a": None}) as engine:
        running = asyncio.ensure_future(engine.ask())
        await settle()
        leaving = asyncio.ensure_future(engine.ask())
        await settle()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        engine.pools["a"].release()
        await running
        turns, requests = flushed_rows(engine)
    assert [turn["outcome"] for turn in turns] == [Outcome.CANCELED, Outcome.OK]
    outcomes = {request["data_id"]: request["outcome"] for request in requests}
    assert outcomes == {0: Outcome.OK, 1: Outcome.CANCELED}


@virtual
async def test_a_lost_job_is_the_others_fault_and_its_attempts_count_once():
    config = {"op": {"a": {"retry": 2}}}
    async with Engine(chain("a"), config, {"a": None}) as engine:
        task = asyncio.ensure_future(engine.ask())
        await settle()
        node = next(iter(engine.nodes.values()))
        for _ in range(2):
            (worker,) = engine.pools["a"].busy()
            job, worker.job = worker.job, None
            node.lost(job, WorkerDiedError("died"))
            await settle()
            engine.pools["a"]._feed()
        await task
        turns, requests = flushed_rows(engine)
    assert [turn["outcome"] for turn in turns] == [Outcome.OTHER]
    assert [request["outcome"] for request in requests] == [Outcome.BACKEND]


@virtual
async def test_a_restarted_request_counts_once_with_the_cost_of_its_last_start():
    config = {"dag": {"retry": 2}, "op": {"a": {"timeout": 100}}}
    async with Engine(Feeds("a", [RequestOp()]), config, {"a": None}) as engine:
        task = asyncio.ensure_future(engine.ask(rows="1"))
        await asyncio.sleep(0.15)
        engine.pools["a"].release()
        await task
        _, requests = flushed_rows(engine)
    assert len(requests) == 1


class PacksElsewhere(ResponseOp):
    """An overridden method is not called on the event loop."""

    def pack_response_package(self, channeldata):
        return super().pack_response_package(channeldata)


@pytest.mark.parametrize(
    ("config", "outcome"), [({"timeout": 100}, Outcome.REJECTED), ({}, Outcome.OTHER)]
)
@virtual
async def test_a_request_that_expires_while_it_is_packed_has_its_outcome(config, outcome):
    last = chain("a")
    packs = PacksElsewhere(input_ops=[last])
    async with Engine(last, config, {packs.name: None}, packs) as engine:
        answer = engine.ask()
        await asyncio.sleep(1)
        if not answer.done():
            engine.executor.answer_all_closed()
        assert (await answer).err_no
        _, (request,) = flushed_rows(engine)
    assert request["outcome"] == outcome


@virtual
async def test_requests_refused_at_admission_have_no_rows():
    engine = Engine(chain("a"), {"worker_num": 1, "queue_size": 0}, {"a": None})
    async with engine:
        first = asyncio.ensure_future(engine.ask())
        await settle()
        with pytest.raises(Exception, match="overloaded"):
            await engine.ask()
        assert engine.executor.state().rejected == 1
        engine.pools["a"].release()
        await first
        turns, requests = flushed_rows(engine)
    assert len(turns) == len(requests) == 1


# Routes -----------------------------------------------------------------------------------


@virtual
async def test_one_op_alone_works_on_a_request_that_is_for_it():
    last = chain("a", "b", "c")
    async with Engine(last) as engine:
        op = last.get_input_ops()[0]
        route = RequestTarget(op=op, payload={"a": {"path": "x"}}, wants_response=False, rows=4)
        answer = await engine.executor.handle(None, None, route)
        turns, (request,) = flushed_rows(engine)
    assert isinstance(answer, ChannelData)
    assert answer.payload == {"path": "x>b"}
    assert [(turn["op"], turn["rows"]) for turn in turns] == [(1, 4)]
    assert (request["target"], request["rows"]) == (1, 4)


@pytest.mark.parametrize("feeds", [False, True])
@virtual
async def test_a_repeated_call_gets_the_original_feed(feeds):
    class Pops(Feeds):
        def preprocess(self, input_dicts, data_id, log_id):
            return {"x": input_dicts["@DAGExecutor"].pop("x")}, False, None, ""

        def process(self, feed_batch, typical_logid):
            return {"y": feed_batch[0].pop("x")}, 0, ""

    op = Pops("m", [RequestOp()])
    config = {"dag": {"retry": 2}, "op": {"m": {"timeout": 200}}}
    async with Engine(op, config, {"m": None}) as engine:
        payload = {"x": [1]} if feeds else {"@DAGExecutor": {"x": [1]}}
        route = RequestTarget(op=op, payload=payload, raw_inputs=feeds, wants_response=False)
        task = asyncio.ensure_future(engine.executor.handle(None, None, route))
        await asyncio.sleep(0.3)  # the first attempt has taken too long
        engine.pools["m"].release()
        assert (await task).error is None


@virtual
async def test_a_feed_is_passed_to_process_and_shares_batches_with_whole_requests():
    op = Feeds("m", [RequestOp()])
    config = {"op": {"m": {"batch_size": 2, "auto_batching_timeout": 10}}}
    async with Engine(op, config, {"m": 0.1}) as engine:
        route = RequestTarget(
            op=op, payload={"x": np.full((2, 2), 7.0)}, raw_inputs=True, wants_response=False
        )
        fed, whole = await asyncio.gather(
            engine.executor.handle(None, None, route), engine.ask(rows="2")
        )
        turns, _ = flushed_rows(engine)
    np.testing.assert_array_equal(fed.payload["y"], np.full((2, 2), 14.0))
    assert answers(whole)["path"] == "2"
    assert len({turn["batch"] for turn in turns}) == 1
    assert [turn["rows"] for turn in turns] == [2, 2]


@virtual
async def test_a_route_without_packing_ends_in_the_error_itself():
    async with Engine(Fails("bad", [RequestOp()])) as engine:
        route = RequestTarget(payload={"path": "x"}, wants_response=False)
        answer = await engine.executor.handle(None, None, route)
    assert answer.error.code == 51


# Profiles, traces ---------------------------------------------------------------------------


@virtual
async def test_a_request_for_a_profile_gets_the_profile_of_its_spans():
    async with Engine(chain("a", "b")) as engine:
        written = []
        engine.watch(profile=lambda request: written.append(request.spans) or "the profile")
        plain = await engine.ask()
        response = await engine.ask(**{PROFILE_KEY: "1"})
    assert PROFILE_KEY not in plain.key
    assert dict(zip(response.key, response.value, strict=True))[PROFILE_KEY] == "the profile"
    assert [[turn[0] for turn in turns] for turns in written] == [[0, 1]]


@virtual
async def test_a_request_has_the_trace_that_the_watcher_started():
    async with Engine(chain("a"), None, {"a": None}) as engine:
        engine.watch(begin_trace=lambda data_id, caller: f"{data_id} of {caller}")
        task = asyncio.ensure_future(
            engine.executor.handle(
                None, None, RequestTarget(payload={"path": "x"}, traceparent="t")
            )
        )
        await settle()
        (worker,) = engine.pools["a"].busy()
        assert worker.job.items[0].trace == "0 of t"
        engine.pools["a"].release()
        await task


# The journal --------------------------------------------------------------------------------


class Sink:
    def __init__(self):
        self.folds = []

    def notify(self, spans, requests):
        self.folds.append((len(spans), len(requests)))


def test_a_long_journal_is_flushed_between_batches():
    sink = Sink()
    journal = Journal([sink])
    for _ in range(5000):  # one batch: it must not be torn
        journal.spans.append(pack_span(*range(len(SPAN))))
    assert sink.folds == []
    journal.flush_if_long()
    assert sink.folds == [(5000, 0)]
    journal.flush()
    assert len(sink.folds) == 1, "nothing happened since"


def test_a_sink_reads_the_rows_by_name():
    (span,) = op_spans(np.frombuffer(pack_span(*range(len(SPAN))), SPAN))
    assert span == OpSpan(*range(12))
    assert (span.op, span.worker, span.data_id, span.result_received_ns) == (0, 1, 3, 11)
    (record,) = request_records(np.frombuffer(pack_request(*range(len(REQUEST))), REQUEST))
    assert record == RequestRecord(*range(13))
    assert (record.data_id, record.code, record.admitted_ns, record.output_ns) == (0, 4, 6, 12)
    assert [*op_spans(np.empty(0, SPAN))] == []


def test_a_sink_that_raises_does_not_affect_other_sinks(caplog):
    class Breaks:
        def notify(self, spans, requests):
            raise ValueError("broken")

    sink = Sink()
    journal = Journal([Breaks(), sink])
    journal.spans.append(pack_span(*range(len(SPAN))))
    journal.flush()
    assert sink.folds == [(1, 0)]
    assert "Breaks failed" in caplog.text


@pytest.mark.parametrize(
    ("request_op", "outcome"), [(RequestOp(), Outcome.PRODUCT), (OwnRequestOp(), Outcome.BACKEND)]
)
@virtual
async def test_an_unreadable_request_is_its_callers_fault_unless_a_user_parses_it(
    request_op, outcome
):
    async with Engine(Tag("a", [request_op])) as engine:
        broken = pipeline_service_pb2.Request(key=["a", "b"], value=["1"])
        assert (await engine.executor.handle(broken)).err_no == 8000
        assert (
            await engine.executor.handle(broken, target=RequestTarget(is_large=True))
        ).err_no == 8000
        _, requests = flushed_rows(engine)
    assert [request["outcome"] for request in requests] == [outcome, outcome]


@virtual
async def test_a_product_code_of_a_response_op_is_not_a_failure_of_the_service():
    class Refuses(ResponseOp):
        def pack_response_package(self, channeldata):
            return pipeline_service_pb2.Response(err_no=51, err_msg="no face")

    last = Tag("a", [RequestOp()])
    async with Engine(last, response_op=Refuses(input_ops=[last])) as engine:
        assert (await engine.ask()).err_no == 51
        _, (request,) = flushed_rows(engine)
    assert request["outcome"] == Outcome.PRODUCT


def test_a_batch_that_all_requests_have_left_has_no_span():
    journal = Journal([])
    SpanRecorder(0, EngineObservers(journal)).batch(
        ScriptedWorker(Tag("a", [RequestOp()]), 0, None), BatchRun([])
    )
    assert journal.spans == []
