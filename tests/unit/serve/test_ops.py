"""A model behind the general model service: names, LoD, batches, limits; the model is a double."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles import settle

from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.engine.graph import build_graph
from pipeline.errors import (
    ClosedError,
    DeadlineError,
    InitError,
    InputError,
    OverloadedError,
    PackageError,
    PredictorError,
)
from pipeline.frontends.base import FrontendContext
from pipeline.op import configure_op
from pipeline.predictors.model_conf import ModelConf, Var
from pipeline.proto.brpc import frames as baidu_std
from pipeline.proto.brpc import general_model
from pipeline.proto.general_model_pb2 import Request, Response
from pipeline.runtime.base import Exposure, Pipeline
from pipeline.runtime.predictor_loader import PredictorLoader
from pipeline.runtime.service import Service
from pipeline.serve.ops import ENGINE_NAME, Answer, AnswerOp, ModelCall, ModelOp, answers_of
from pipeline.system.event_loop import loop_factory

CONF = ModelConf(
    feeds=(Var("x.in", "x", False, 1, (2,)),), fetches=(Var("y.out", "y", False, 1, (2,)),)
)
LIMIT = 10_000


class Negates:
    """A predictor: y = -x, with x's LoD; it waits at `gate`, and fails where x is 13."""

    def __init__(self, feed: str = "x.in", fetch: str = "y.out") -> None:
        self.feed_names, self.fetch_names = (feed,), (fetch,)
        self.rows: list[int] = []
        self.entered, self.gate = threading.Semaphore(0), threading.Event()
        self.gate.set()

    def predict(self, feed: Any, fetch: Any = None, **_: Any) -> dict[str, Any]:
        (name,), (output,) = self.feed_names, self.fetch_names
        self.rows.append(len(feed[name]))
        self.entered.release()
        self.gate.wait(30)
        if (feed[name] == 13).any():
            raise PredictorError("13 brings bad luck")
        answer = {output: -feed[name]}
        if f"{name}.lod" in feed:
            answer[f"{output}.lod"] = feed[f"{name}.lod"]
        return answer

    def close(self) -> None:
        self.gate.set()


def with_model(
    test: Callable[[Answer, Service], Awaitable[None]],
    model: Negates,
    conf: ModelConf | None = CONF,
    op: dict[str, Any] | None = None,
    **more: Any,
) -> None:
    """Run `test` against a service of one model, without doors."""
    settings = {"local_service_conf": {"model_config": "m"}, **(op or {})}
    config = load_config(yml_dict={"rpc_port": 0, "op": {"model": settings}, **more})
    graph = build_graph(AnswerOp(ModelOp("model", conf, LIMIT)))
    for item in (graph.request_op, *graph.ops, graph.response_op):
        configure_op(item, resolve_op(item.name, item.pipeline_given, config))
    answers: list[Answer] = []

    def no_doors(behind: FrontendContext) -> dict[str, Any]:
        answers.append(answers_of(behind.engine.begin))
        return {}

    async def run() -> None:
        loader = PredictorLoader(Path(), load=lambda local, worker: model)
        pipeline = Pipeline(None, graph, loader)
        service = Service([pipeline], config, exposure=Exposure(no_doors))
        try:
            await service.start()
            async with asyncio.timeout(30):
                await test(answers[0], service)
        finally:
            model.gate.set()
            await service.stop()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run())


def request_of(values: Any, name: str = "x.in", lod: Any = None, **more: Any) -> bytes:
    array = np.asarray(values, np.float32)
    tensor = general_model.value_to_tensor(name, "x", array, lod)
    return Request(tensor=[tensor], **more).SerializeToString()


def output_of(message: bytes) -> Any:
    (output,) = Response.FromString(message).outputs
    assert output.engine_name == ENGINE_NAME
    (tensor,) = output.tensor
    return tensor


async def entered(model: Negates) -> None:
    assert await asyncio.to_thread(model.entered.acquire, timeout=30)


@pytest.mark.parametrize(("feed", "fetch"), [("x.in", "y.out"), ("x", "y")])
def test_a_predictor_accepts_the_models_names_or_the_clients(feed, fetch):
    async def test(answer: Answer, _: Service) -> None:
        tensor = output_of(await answer(ModelCall(request_of([[1, 2]])), None))
        assert (tensor.name, tensor.alias_name) == ("y.out", "y")
        assert general_model.tensor_to_array(tensor).tolist() == [[-1, -2]]

    with_model(test, Negates(feed, fetch))


def test_without_a_configuration_the_models_names_are_the_clients():
    async def test(answer: Answer, _: Service) -> None:
        tensor = output_of(await answer(ModelCall(request_of([[1, 2]])), None))
        assert (tensor.name, tensor.alias_name) == ("y.out", "y.out")

    with_model(test, Negates(), conf=None)


def test_a_configuration_of_another_model_is_an_error_at_the_start():
    async def test(answer: Answer, _: Service) -> None:
        raise AssertionError("it has started")

    with pytest.raises(InitError, match=r"has x\.in \(x\), and the model other"):
        with_model(test, Negates(feed="other"))


def test_outputs_that_a_fetch_list_leaves_out_may_be_configured():
    more = ModelConf(CONF.feeds, (*CONF.fetches, Var("z.out", "z", False, 1, ())))

    async def test(answer: Answer, _: Service) -> None:
        assert output_of(await answer(ModelCall(request_of([[1]])), None)).alias_name == "y"
        with pytest.raises(InputError, match=r"no .z. among its fetches: y, y\.out"):
            await answer(ModelCall(request_of([[1]], fetch_var_names=["z"])), None)

    with_model(test, Negates(), conf=more)


def test_a_log_id_and_lod_are_returned():
    async def test(answer: Answer, _: Service) -> None:
        request = request_of([[1], [2], [3]], lod=[0, 1, 3], log_id=2**64 - 1)
        message = await answer(ModelCall(request), None)
        assert Response.FromString(message).log_id == 2**64 - 1
        assert list(output_of(message).lod) == [0, 1, 3]

    with_model(test, Negates())


def test_calls_that_wait_are_run_at_once_and_answered_apart():
    model = Negates()

    async def test(answer: Answer, _: Service) -> None:
        model.gate.clear()
        first = asyncio.ensure_future(answer(ModelCall(request_of([[0]])), None))
        await entered(model)
        calls = [
            asyncio.ensure_future(answer(ModelCall(request_of([[n]] * n, log_id=n)), None))
            for n in (1, 2, 3)
        ]
        await asyncio.sleep(0)
        model.gate.set()
        await first
        for number, message in enumerate(await asyncio.gather(*calls), 1):
            assert Response.FromString(message).log_id == number
            values = general_model.tensor_to_array(output_of(message)).tolist()
            assert values == [[-number]] * number
        assert model.rows == [1, 6]

    with_model(test, model, op={"batch_size": 4, "batching": "adaptive"})


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_a_compressed_call_has_a_compressed_answer(kind):
    async def test(answer: Answer, _: Service) -> None:
        packed = baidu_std.compress(kind, request_of([[1]]))
        message = await answer(ModelCall(packed, kind), None)
        output_of(baidu_std.decompress(kind, message, LIMIT))

    with_model(test, Negates())


def test_an_unreadable_request_is_refused_and_the_worker_continues():
    bomb = baidu_std.compress(2, bytes(10 * LIMIT))
    wrong_shape = Request.FromString(request_of([[1, 2]]))
    wrong_shape.tensor[0].shape[1] = 3

    async def test(answer: Answer, _: Service) -> None:
        for call, kind, text in (
            (ModelCall(b"\xff"), PackageError, "not a Request"),
            (ModelCall(b"no gzip", 2), PackageError, "neither gzip nor zlib"),
            (ModelCall(bomb, 2), PackageError, f"larger than {LIMIT} bytes"),
            (ModelCall(b"", 4), PackageError, "not supported"),
            (ModelCall(wrong_shape.SerializeToString()), InputError, "x"),
            (ModelCall(request_of([[13]])), PredictorError, "13 brings bad luck"),
        ):
            with pytest.raises(kind, match=text):
                await answer(call, None)
        output_of(await answer(ModelCall(request_of([[1]])), None))

    with_model(test, Negates())


def test_a_call_that_takes_too_long_is_answered_in_time():
    model = Negates()

    async def test(answer: Answer, _: Service) -> None:
        model.gate.clear()
        with pytest.raises(DeadlineError):
            await answer(ModelCall(request_of([[1]])), 0.01)
        model.gate.set()
        output_of(await answer(ModelCall(request_of([[1]])), 30))

    with_model(test, model)


def test_calls_beyond_the_queue_size_are_refused():
    model = Negates()

    async def test(answer: Answer, _: Service) -> None:
        model.gate.clear()
        first = asyncio.ensure_future(answer(ModelCall(request_of([[1]])), None))
        await entered(model)
        with pytest.raises(OverloadedError):
            await answer(ModelCall(request_of([[1]])), None)
        model.gate.set()
        output_of(await first)

    with_model(test, model, worker_num=1, queue_size=0)


def test_a_stopping_service_answers_running_calls_and_refuses_others():
    model = Negates()

    async def test(answer: Answer, service: Service) -> None:
        model.gate.clear()
        inside = asyncio.ensure_future(answer(ModelCall(request_of([[1]])), None))
        await entered(model)
        stopping = asyncio.ensure_future(service.stop())
        await settle()
        with pytest.raises(ClosedError):
            await answer(ModelCall(request_of([[1]])), None)
        model.gate.set()
        output_of(await inside)
        await stopping

    with_model(test, model)
