"""Several pipelines in one server: each under its name, over every door."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest
from doubles import client_of, http, post

from pipeline import Op, PipelineServer, RequestOp, ResponseOp, Tensor
from pipeline.config import registry
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.proto.pipeline_service_pb2_grpc import PipelineServiceStub

CONFIG = {"rpc_port": 0, "http_port": 0}


class Reading(RequestOp):
    input_tensors = (Tensor("x", "BYTES", (1,)),)


class Says(Op):
    output_tensors = (Tensor("y", "BYTES", (1,)),)

    def __init__(self, name, word):
        super().__init__(name, Reading())
        self.word = word
        self.begun = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def preprocess(self, input_dicts):
        self.begun.set()
        assert self.goes_on.wait(30)
        return {"y": self.word + input_dicts["@DAGExecutor"]["x"]}


class Two:
    """A server with the pipelines "one" and "two"."""

    def __init__(self, **config):
        self.first, self.second = Says("a", "one "), Says("b", "two ")
        self.server = PipelineServer("one")
        self.server.set_response_op(ResponseOp(self.first))
        self.server.add_pipeline("two", ResponseOp(self.second))
        self.server.prepare_server(yml_dict=CONFIG | config)

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *_):
        self.first.goes_on.set()
        self.second.goes_on.set()
        self.server.stop()

    @property
    def http_port(self):
        return self.server.http_port

    @property
    def rpc_port(self):
        return self.server.rpc_port

    def says(self, name):
        """What the graph of this name answers over HTTP."""
        status, answer = post(self, {"key": ["x"], "value": ["!"]}, f"/{name}/prediction")
        assert status == 200
        return answer["err_no"], answer["err_msg"], answer["value"]

    def says_by_v2(self, name):
        x = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["!"]}
        status, _, answer = http(self, "POST", f"/v2/models/{name}/infer", {"inputs": [x]})
        return status, answer["outputs"][0]["data"] if status == 200 else answer["error"]

    def says_by_api(self, name):
        _, _, answer = http(self, "POST", f"/api/{name}", {"x": "!"})
        return answer

    def index(self):
        _, _, answer = http(self, "POST", "/v2/repository/index")
        return {entry["name"]: (entry["state"], entry["reason"]) for entry in answer}


@pytest.fixture
def opened_for(monkeypatch):
    """The names of the graphs for which the sink `told` was opened."""
    names = []

    def open_told(context, options):
        names.append(context.pipeline_name)

    monkeypatch.setitem(registry._registered, ("sinks", "told"), open_told)
    return names


@pytest.fixture
def two(opened_for):
    with Two(sinks={"told": None}, dag={"tracer": {"interval_s": 3600}}) as two:
        yield two


def test_both_are_answered_under_their_names(two):
    assert two.says("one") == (0, "", ["one !"])
    assert two.says("two") == (0, "", ["two !"])
    assert two.says_by_v2("one") == (200, ["one !"])
    assert two.says_by_v2("two") == (200, ["two !"])
    assert two.says_by_api("one") == {"y": "one !"}
    assert two.says_by_api("two") == {"y": "two !"}
    with grpc.insecure_channel(f"127.0.0.1:{two.rpc_port}") as channel:
        stub = PipelineServiceStub(channel)
        for name in ("one", "two"):
            answer = stub.inference(Request(name=name, key=["x"], value=["!"]), timeout=30)
            assert list(answer.value) == [f"{name} !"]
    with client_of(two) as client:
        assert client.predict({"x": "?"})["y"] == "one ?", "who names none gets the first"
    number, text, _ = two.says("three")
    assert number
    assert "This server is 'one', the request names 'three'." in text


def test_the_index_and_the_statistics_have_both(two):
    two.says("two")
    assert two.index() == dict.fromkeys(("one", "a", "two", "b"), ("READY", ""))
    _, _, answer = http(two, "GET", "/v2/models/stats")
    counts = {each["name"]: each["inference_count"] for each in answer["model_stats"]}
    assert counts == {"a": 0, "b": 1, "one": 0, "two": 1}


def test_what_writes_to_one_place_is_opened_once(two, opened_for):
    assert opened_for == ["one", "two"], "a user's sink is told which one it is"
    one, other = (
        {type(sink).__name__ for sink in graph.observation.journal.sinks}
        for graph in two.server._service._graphs
    )
    assert one - other == {"Tracer"}
    assert "Statistics" in other


def test_unloading_one_drains_it_and_leaves_the_other(two):
    models, thread = two.server._service.models, two.server._thread
    two.second.goes_on.clear()
    answers = []
    asking = threading.Thread(target=lambda: answers.append(two.says("two")))
    asking.start()
    assert two.second.begun.wait(30)

    async def begin_to_unload():
        return asyncio.ensure_future(models.unload("two", 30.0))

    async def done(task):
        await task

    unloading = thread.run(begin_to_unload())
    assert two.index()["two"] == ("UNLOADING", "")
    assert two.says("one") == (0, "", ["one !"])
    status, text = two.says_by_v2("two")
    assert (status, text) == (
        503,
        "Request for unknown model: 'two' version 1 is not at ready state",
    )
    status, _, _ = http(two, "GET", "/v2/health/ready")
    assert status == 200
    two.second.goes_on.set()
    thread.run(done(unloading))
    asking.join(30)
    assert answers == [(0, "", ["two !"])], "who was inside is answered"
    assert two.index() == {
        "one": ("READY", ""),
        "a": ("READY", ""),
        "two": ("UNAVAILABLE", "unloaded"),
        "b": ("UNAVAILABLE", "unloaded"),
    }
    assert two.says("one") == (0, "", ["one !"])
    assert "the request names 'two'" in two.says("two")[1]
    status, answer = http(two, "GET", "/health/ready")[::2]
    assert (status, answer) == (200, {"status": "ok"})
