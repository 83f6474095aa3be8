"""The sinks of a server by configuration; and the counts of copies that have ended."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import msgspec
import pytest
from doubles import chain, on_loop

from pipeline import ResponseOp
from pipeline.config import registry
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.engine.graph import build_graph
from pipeline.engine.journal.journal import PIPELINE, Outcome
from pipeline.engine.request import RequestState
from pipeline.engine.state import EngineState
from pipeline.errors import InitError, ProductError
from pipeline.observe import SinkContext
from pipeline.observe.logs.setup import RequestLog
from pipeline.observe.snapshot import NO_REPLICA, ModelCounters, Snapshot
from pipeline.op import configure_op
from pipeline.runtime.observation import ObservabilityStack
from pipeline.runtime.replica_query import SNAPSHOT, RetiredCounters, ServerView

IDLE = EngineState(True, 0, 0, 0, 0)


def observation_of(**config) -> ObservabilityStack:
    graph = build_graph(ResponseOp([chain("a", "b")]))
    settings = load_config(yml_dict={"rpc_port": 0, **config})
    for op in graph.ops:
        configure_op(op, resolve_op(op.name, op.pipeline_given, settings))
    return ObservabilityStack(("svc", [op.name for op in graph.ops]), graph, settings)


def sinks_of(observation: ObservabilityStack) -> list[str]:
    return [type(sink).__name__ for sink in observation.journal.sinks]


@pytest.mark.parametrize(
    ("config", "sinks"),
    [
        ({}, ["Statistics", "SlowRequestLog", "Recording", "LastMinute"]),
        ({"statistics": False}, []),
        ({"statistics": False, "dag": {"tracer": {"interval_s": 1}}}, ["Tracer"]),
        ({"statistics": False, "dag": {"use_profile": True}}, ["ProfileWriter"]),
    ],
)
@on_loop
async def test_the_configuration_selects_the_observers(config, sinks, tmp_path):
    observation = observation_of(**config)
    observation.start(tmp_path)
    try:
        assert sinks_of(observation) == sinks
        observers = observation.observers(RequestLog(logging.getLogger("pipeline.test")))
        assert (observers.journal is None) == (not sinks)
        assert observers.profile is not None, "a caller may ask for one at any time"
        assert observers.on_success is None, "no success is logged"
    finally:
        await observation.close()
        await observation.close()


@on_loop
async def test_without_statistics_nothing_can_be_recorded(tmp_path):
    observation = observation_of(statistics=False)
    observation.start(tmp_path)
    whole = ServerView(lambda question, limit_s: one_answer(observation, question))
    with pytest.raises(InitError, match="nothing to record"):
        await whole.record(1.0)


async def one_answer(observation: ObservabilityStack, question: str) -> list[bytes]:
    return [await observation.answer(question)]


@on_loop
async def test_opentelemetry_names_a_missing_package(monkeypatch, tmp_path):
    observation = observation_of(opentelemetry=True)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "no-such-exporter")
    with pytest.raises(InitError, match="no-such-exporter"):
        observation.start(tmp_path)
    await observation.close()


def test_the_figures_of_ended_copies_add_up_without_their_memory():
    past = RetiredCounters()
    assert past.snapshots() == []
    for count in (2, 3):
        model = ModelCounters("svc", success_count=count, inference_count=10 * count)
        past.add(msgspec.msgpack.encode(Snapshot(1, IDLE, [model])))
    (figures,) = past.snapshots()
    result = msgspec.msgpack.decode(figures, type=Snapshot)
    assert result.replica == NO_REPLICA
    assert [(m.success_count, m.inference_count, m.memory) for m in result.models] == [(5, 50, [])]


@on_loop
async def test_the_server_view_has_the_answers_of_all_replicas():
    requests = []

    async def ask(question: str, limit_s: float) -> list[bytes]:
        requests.append((question, limit_s))
        return [msgspec.msgpack.encode(Snapshot(copy, IDLE, [])) for copy in (0, 1)]

    whole = ServerView(ask)
    assert [snapshot.replica for snapshot in await whole.snapshots()] == [0, 1]
    await whole.record(2.5)
    assert [question for question, _ in requests] == [SNAPSHOT, "record 2.5"]
    assert requests[1][1] > 2.5, "the answer comes after the recording"


class Noting:
    """A sink that asks for every hook."""

    def __init__(self, context: SinkContext, options: None) -> None:
        self.heard: list[object] = []
        self.op_names = context.op_names
        context.on_close(lambda: self.heard.append("closed"))
        context.on_stop(lambda: self.heard.append("stops"))
        context.every("noting", 0.0, self.tick)
        context.on_failure(lambda *failure: self.heard.append(failure))
        context.on_snapshot(lambda snapshot: self.heard.append(snapshot))
        context.on_question("mine", self.answer)
        self.ticked = asyncio.Event()

    def tick(self) -> None:
        self.ticked.set()
        raise ValueError("broken")

    async def answer(self, rest: str) -> bytes:
        return rest.encode()

    def notify(self, spans, requests) -> None:
        self.heard.append((len(spans), len(requests)))


@on_loop
async def test_a_sink_receives_the_calls_of_its_hooks(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(registry, "_registered", {("sinks", "noting"): Noting})
    observation = observation_of(statistics=False, sinks={"noting": None})
    observation.start(tmp_path)
    (sink,) = observation.journal.sinks
    assert isinstance(sink, Noting)
    assert sink.op_names == ["a", "b"]
    observers = observation.observers(RequestLog(logging.getLogger("pipeline.test")))
    error = ProductError(51, "no face")
    request = RequestState(None, None, None, data_id=7, start_ns=0)
    request.log_id, request.error, request.outcome = 3, error, Outcome.PRODUCT
    observers.report_end(request, PIPELINE)
    assert sink.heard == [(7, 3, error)]
    await sink.ticked.wait()
    assert sink.heard.pop() == (0, 1), "the journal is flushed before the timer"
    assert await observation.answer("mine and more") == b"and more"
    observation.attach(SimpleNamespace(state=lambda: IDLE, metadata=lambda op: None))
    snapshot = observation.snapshot()
    assert sink.heard.pop() is snapshot
    observation.stop_soon()
    await observation.close()
    assert sink.heard == [(7, 3, error), "stops", "closed"]
    assert "noting failed" in caplog.text
