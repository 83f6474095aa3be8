"""What looks into a server, by configuration; and what is kept of copies that are no more."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest
from doubles import chain

from pipeline import ResponseOp
from pipeline.config.schema import load_config, resolve_op
from pipeline.engine.graph import build_graph
from pipeline.engine.state import EngineState
from pipeline.errors import InitError
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
    return ObservabilityStack("svc", graph, settings)


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
def test_the_configuration_says_who_looks_on(config, sinks, tmp_path):
    async def main():
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

    asyncio.run(main())


def test_nothing_can_be_recorded_without_statistics(tmp_path):
    async def main():
        observation = observation_of(statistics=False)
        observation.start(tmp_path)
        whole = ServerView(lambda question, limit_s: one_answer(observation, question))
        with pytest.raises(InitError, match="nothing to record"):
            await whole.record(1.0)

    asyncio.run(main())


async def one_answer(observation: ObservabilityStack, question: str) -> list[bytes]:
    return [await observation.answer(question)]


def test_opentelemetry_says_what_it_lacks(monkeypatch, tmp_path):
    async def main():
        observation = observation_of(opentelemetry=True)
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "no-such-exporter")
        with pytest.raises(InitError, match="no-such-exporter"):
            observation.start(tmp_path)
        await observation.close()

    asyncio.run(main())


def test_the_figures_of_ended_copies_add_up_without_their_memory():
    past = RetiredCounters()
    assert past.snapshots() == []
    past.add(b"")
    for count in (2, 3):
        model = ModelCounters("svc", success_count=count, inference_count=10 * count)
        past.add(msgspec.msgpack.encode(Snapshot(1, IDLE, [model])))
    (figures,) = past.snapshots()
    found = msgspec.msgpack.decode(figures, type=Snapshot)
    assert found.replica == NO_REPLICA
    assert [(m.success_count, m.inference_count, m.memory) for m in found.models] == [(5, 50, [])]


def test_the_whole_is_what_all_copies_answer():
    async def main():
        asked = []

        async def ask(question: str, limit_s: float) -> list[bytes]:
            asked.append((question, limit_s))
            return [msgspec.msgpack.encode(Snapshot(copy, IDLE, [])) for copy in (0, 1)]

        whole = ServerView(ask)
        assert [snapshot.replica for snapshot in await whole.snapshots()] == [0, 1]
        await whole.record(2.5)
        assert [question for question, _ in asked] == [SNAPSHOT, "record 2.5"]
        assert asked[1][1] > 2.5, "the answer comes after the recording"

    asyncio.run(main())
