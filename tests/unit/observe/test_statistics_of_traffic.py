"""Statistics of a real engine on a virtual clock, whatever its callers and workers do."""

from __future__ import annotations

import asyncio
from typing import Any

from doubles import Engine, run_virtual, settle
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline import Op, ProductError, RequestOp
from pipeline.engine.journal.journal import PIPELINE, Outcome
from pipeline.engine.request import RequestTarget
from pipeline.errors import OverloadedError
from pipeline.observe.snapshot import ModelCounters
from pipeline.observe.statistics import Statistics


class Picky(Op):
    """Passes on what it gets, but refuses requests that name it."""

    def preprocess(self, input_dicts, data_id, log_id):
        (answer,) = input_dicts.values()
        if answer.get("refused_by") == self.name:
            raise ProductError(51, "refused")
        return dict(answer)


NOBODY = {"refused_by": "nobody"}
REFUSERS = st.sampled_from(["nobody", "nobody", "a", "b"])
ACTIONS = st.lists(
    st.tuples(st.just("ask"), REFUSERS)
    | st.tuples(st.just("ask"), REFUSERS)
    | st.tuples(st.just("ask b alone"), REFUSERS)
    | st.tuples(st.just("leave"), st.integers(0, 5))
    | st.tuples(st.just("wait"), st.sampled_from([0.001, 0.02, 0.2])),
    min_size=8,
    max_size=30,
)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    def of_an_op() -> dict[str, Any]:
        settings = {"batch_size": draw(st.integers(1, 3)), "concurrency": draw(st.integers(1, 2))}
        settings["auto_batching_timeout"] = draw(st.sampled_from([0, 10]))
        settings["timeout"] = draw(st.sampled_from([-1, 15]))
        return settings

    return {
        "worker_num": draw(st.integers(1, 8)),
        "queue_size": draw(st.integers(0, 8)),
        "timeout": draw(st.sampled_from([40, 10_000])),
        "dag": {"retry": draw(st.integers(1, 2))},
        "op": {"a": of_an_op(), "b": of_an_op()},
    }


class Traffic:
    """Callers of an engine, and what became of them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.statistics = Statistics("svc", ["a", "b"], lambda: 0)
        engine.journal.sinks.append(self.statistics)
        self.asked: list[asyncio.Task[Any]] = []
        self.alone: list[asyncio.Task[Any]] = []
        self.b = next(op for op in engine.nodes if op.name == "b")

    async def act(self, action: str, how: Any) -> None:
        if action == "ask":
            self.asked.append(self.engine.ask(refused_by=how))
        elif action == "ask b alone":
            route = RequestTarget(
                op=self.b, payload={"a": {"refused_by": how}}, wants_response=False, rows=3
            )
            asking = self.engine.executor.handle(None, None, route)
            self.alone.append(asyncio.ensure_future(asking))
        elif action == "leave":
            tasks = [task for task in (*self.asked, *self.alone) if not task.done()]
            for task in tasks[how : how + 1]:
                task.cancel()
        else:
            await asyncio.sleep(how)
        await settle()

    def models(self) -> list[ModelCounters]:
        self.engine.journal.flush()
        return self.statistics.models


def check_at_any_time(traffic: Traffic) -> None:
    pipeline, *_ = models = traffic.models()
    state = traffic.engine.executor.state()
    told_alone = sum(request["target"] != PIPELINE for request in traffic.engine.requests)
    ended = pipeline.success_count + sum(pipeline.fail_counts) + told_alone
    assert state.accepted == ended + state.inside + state.waiting
    for model in models:
        assert sum(batch.count for batch in model.batches.values()) == model.execution_count
        sizes = model.batches.items()
        assert model.inference_count <= sum(size * batch.count for size, batch in sizes)
        assert sum(model.latency) == sum(model.queue_latency) == model.success_count
        spent_ns = model.queue_ns + model.input_ns + model.infer_ns + model.output_ns
        assert spent_ns <= model.success_ns, "the Ops stand in a row"
        for batch in model.batches.values():
            assert batch.infer_ns <= model.infer_ns
    assert pipeline.execution_count == pipeline.success_count


def check_at_the_end(traffic: Traffic, asked: list[Any], alone: list[Any]) -> None:
    pipeline, a, b = traffic.models()
    accepted = [answer for answer in asked if not isinstance(answer, OverloadedError)]
    good = [answer for answer in accepted if getattr(answer, "err_no", -1) == 0]
    left = [answer for answer in accepted if isinstance(answer, asyncio.CancelledError)]
    assert pipeline.success_count == pipeline.inference_count == len(good)
    assert sum(pipeline.fail_counts) == len(accepted) - len(good)
    assert pipeline.fail_counts[Outcome.CANCELED] == len(left)
    answered = [answer for answer in alone if getattr(answer, "error", answer) is None]
    assert pipeline.success_count + len(answered) <= b.success_count
    assert pipeline.success_count <= a.success_count
    pools = traffic.engine.pools
    for model, pool in ((a, pools["a"]), (b, pools["b"])):
        assert model.execution_count <= len(pool.batches)
        turns = sum(turn["op"] == "ab".index(model.name) for turn in traffic.engine.spans)
        assert model.success_count + sum(model.fail_counts) == turns
    state = traffic.engine.executor.state()
    assert state.inside == state.waiting == 0
    assert all(op.joining == op.queued == op.running == 0 for op in state.ops)


async def run(config: dict[str, Any], times: dict[str, float], actions: list[Any]) -> None:
    last = Picky("b", [Picky("a", [RequestOp()])])
    async with Engine(last, config, times) as engine:
        traffic = Traffic(engine)
        for action, how in actions:
            await traffic.act(action, how)
            check_at_any_time(traffic)
        asked = await asyncio.gather(*traffic.asked, return_exceptions=True)
        alone = await asyncio.gather(*traffic.alone, return_exceptions=True)
        await asyncio.sleep(1)  # the runs of callers that left end
        check_at_any_time(traffic)
        check_at_the_end(traffic, asked, alone)


TIMES = st.fixed_dictionaries({name: st.sampled_from([0.0, 0.01, 0.03]) for name in "ab"})


@given(configs(), TIMES, ACTIONS)
@settings(max_examples=150)
@example(
    {"worker_num": 4, "op": {"a": {"batch_size": 3, "auto_batching_timeout": 10}}},
    {"a": 0.01, "b": 0.01},
    [("ask", "nobody"), ("ask", "a"), ("ask", "b"), ("wait", 0.02), ("leave", 0)],
)
def test_counters_agree_with_callers_workers_and_the_engine(config, times, actions):
    run_virtual(run(config, times, actions))
