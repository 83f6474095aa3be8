"""Several pipelines in one server: each under its name, over every door."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from doubles import client_of, http, post, wait_until

from pipeline import Op, PipelineServer, RequestOp, ResponseOp, Tensor
from pipeline.config import registry
from pipeline.errors import GraphError, InitError
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.proto.pipeline_service_pb2_grpc import PipelineServiceStub

CONFIG = {"rpc_port": 0, "http_port": 0}


class Reading(RequestOp):
    input_tensors = (Tensor("x", "BYTES", (1,)),)


class AppendsWord(Op):
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
        self.first, self.second = AppendsWord("a", "one "), AppendsWord("b", "two ")
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

    def text(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=30) as body:
            return body.read().decode()

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
        client.connect([f"127.0.0.1:{two.rpc_port}/two"])
        assert client.predict({"x": "?"})["y"] == "two ?"
        assert client.predict({"x": "?"}, asyn=True).result(30)["y"] == "two ?"
        with client.predict_stream({"x": "?"}) as parts:
            assert [part["y"] for part in parts] == ["two ?"]
    number, text, _ = two.says("three")
    assert number
    assert "This server is 'one', the request names 'three'." in text


def test_the_index_and_the_statistics_have_both(two):
    two.says("two")
    assert two.index() == dict.fromkeys(("one", "a", "two", "b"), ("READY", ""))
    _, _, answer = http(two, "GET", "/v2/models/stats")
    counts = {item["name"]: item["inference_count"] for item in answer["model_stats"]}
    assert counts == {"a": 0, "b": 1, "one": 0, "two": 1}


def test_each_pipeline_has_its_own_sinks_and_tracer_files(opened_for, tmp_path, monkeypatch):
    monkeypatch.setenv("SERVING_LOG_PATH", str(tmp_path))
    with Two(sinks={"told": None}, dag={"tracer": {"interval_s": 3600}}) as two:
        for name in ("one", "two", "two"):
            two.says(name)
        assert opened_for == ["one", "two"], "a user's sink knows its pipeline"
    first, second = (
        next(tmp_path.rglob(f"pipeline{name}.tracer")).read_text() for name in ("", "-two")
    )
    assert ("Op(a)" in first, "Op(b)" in first, "Query count[1]" in first) == (True, False, True)
    assert ("Op(a)" in second, "Query count[2]" in second) == (False, True)


def test_each_writes_its_profile(capfd):
    with Two(dag={"use_profile": True}) as two:
        two.says("one")
        two.says("two")
    lines = [line for line in capfd.readouterr().err.splitlines() if "PROFILE" in line]
    assert any('"a"' in line for line in lines)
    assert any('"b"' in line for line in lines)


def test_a_pipeline_that_joins_keeps_its_own_dag(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVING_LOG_PATH", str(tmp_path))
    one, two = PipelineServer("one"), PipelineServer("two")
    one.set_response_op(ResponseOp(AppendsWord("a", "one ")))
    two.set_response_op(ResponseOp(AppendsWord("b", "two ")))
    one.prepare_server(yml_dict=CONFIG)
    own = {"tracer": {"interval_s": 3600}, "retry": 2, "forward_headers": "x-user"}
    two.prepare_server(yml_dict=CONFIG | {"dag": own})
    one._join(two)
    assert [line.partition(": ")[2] for line in one._config.warnings] == [
        "yml_dict: dag.forward_headers: not heeded, one configuration says it for all"
    ]
    with one:
        assert [graph.config.dag.retry for graph in one._service._graphs] == [1, 2]
        assert post(one, {"key": ["x"], "value": ["!"]}, "/two/prediction")[0] == 200
    assert [path.name for path in tmp_path.rglob("*.tracer")] == ["pipeline-two.tracer"]


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


# Names ------------------------------------------------------------------------------------------


def test_two_models_of_one_name_are_an_error_that_names_both():
    server = PipelineServer("one")
    server.set_response_op(ResponseOp(AppendsWord("a", "")))
    with pytest.raises(GraphError, match="Op 'a' of the pipeline 'one' and Op 'a' of the pipeline"):
        server.add_pipeline("two", ResponseOp(AppendsWord("a", "")))
    with pytest.raises(GraphError, match="the pipeline 'one' and Op 'one' of the pipeline 'two'"):
        server.add_pipeline("two", ResponseOp(AppendsWord("one", "")))
    for name in ("one", "", "a/b", 5, None):
        with pytest.raises(GraphError, match=f"without slashes, found {name!r} beside 'one'"):
            server.add_pipeline(name, ResponseOp(AppendsWord("b", "")))
    server.add_pipeline("two", ResponseOp(AppendsWord("two", "")))
    server.set_response_op(ResponseOp(AppendsWord("c", "")))
    server.prepare_server(yml_dict=CONFIG)
    assert [*server._graphs] == ["one", "two"], "nothing is left of what was refused"


def test_the_name_of_the_server_belongs_to_its_own_graph():
    server = PipelineServer("one")
    with pytest.raises(GraphError, match="found 'one' beside 'one'"):
        server.add_pipeline("one", ResponseOp(AppendsWord("a", "")))


def test_a_server_may_have_added_pipelines_only_with_a_shared_request_op():
    reading, server = RequestOp(), PipelineServer()
    for name in ("one", "two"):
        op = AppendsWord(name, f"{name} ")
        op.set_input_ops([reading])
        server.add_pipeline(name, ResponseOp(op))
    server.prepare_server(yml_dict={**CONFIG, "op": {"two": {"concurrency": 3}}})
    with server:
        for name in ("one", "two"):
            assert http(server, "POST", f"/api/{name}", {"x": "!"})[2] == {"y": f"{name} !"}
        states = [graph.engine.state() for graph in server._service.models.graphs()]
        assert [state.ops[0].workers.wanted for state in states] == [1, 3]


# Statistics and logs ----------------------------------------------------------------------------


def test_metrics_separate_the_pipelines(two):
    for _ in range(3):
        two.says("two")
    lines = two.text("/metrics").splitlines()
    assert 'pipeline_requests_accepted_total{pipeline="one"} 0.0' in lines
    assert 'pipeline_requests_accepted_total{pipeline="two"} 3.0' in lines
    assert 'nv_inference_count{model="b",pipeline="two",version="1"} 3.0' in lines


def test_the_page_shows_one_of_them_and_leads_to_the_others(two):
    two.says("two")
    first = http(two, "GET", "/status.json")[2]
    assert (first["name"], first["pipelines"]) == ("one", ["one", "two"])
    other = http(two, "GET", "/status.json?pipeline=two")[2]
    assert (other["name"], other["pipeline"]["succeeded"]) == ("two", 1)
    assert [op["name"] for op in other["ops"]] == ["b"]
    status, _, answer = http(two, "GET", "/status.json?pipeline=three")
    assert (status, answer["err_msg"]) == (404, "there is no pipeline 'three' here: one, two")
    assert two.text("/?pipeline=two") == two.text("/")
    trace = http(two, "GET", "/trace.json?seconds=0.1&pipeline=two")[0]
    assert trace == 200


def test_the_document_and_openai_s_models_have_both():
    with Two(frontends={"openai": {}}) as two:
        paths = http(two, "GET", "/openapi.json")[2]["paths"]
        assert {"/api/one", "/api/two"} <= paths.keys()
        models = http(two, "GET", "/v1/models")[2]["data"]
        assert [model["id"] for model in models] == ["one", "two"]


class Number(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        return {"id": data_id}, False, None, ""


def test_a_data_id_is_unique_in_the_server():
    server = PipelineServer("one")
    server.set_response_op(ResponseOp(Number("a", [RequestOp()])))
    server.add_pipeline("two", ResponseOp(Number("b", [RequestOp()])))
    server.prepare_server(yml_dict=CONFIG)
    with server:
        ids = [http(server, "POST", f"/api/{n}", {})[2]["id"] for n in ("one", "two") * 3]
    assert sorted(ids) == list(range(6))


# One in trouble ---------------------------------------------------------------------------------


def test_one_is_overloaded_and_the_other_has_its_part_of_the_queue():
    with Two(worker_num=1, queue_size=8) as two:
        two.first.goes_on.clear()
        two.second.goes_on.clear()
        engines = [served.engine for served in two.server._service.models.graphs()]
        with ThreadPoolExecutor(12) as pool:
            held = [pool.submit(two.says, "one") for _ in range(7)]
            wait_until(lambda: engines[0].waiting == 6)
            status, answer = post(two, {"key": ["x"], "value": ["!"]}, "/one/prediction")
            assert (status, answer["err_no"]) == (503, 3004), "a quarter is kept for the other"
            held += [pool.submit(two.says, "two") for _ in range(3)]
            wait_until(lambda: engines[1].waiting == 2)
            two.second.goes_on.set()
            assert [item.result(30) for item in held[7:]] == [(0, "", ["two !"])] * 3
            two.first.goes_on.set()
            assert [item.result(30) for item in held[:7]] == [(0, "", ["one !"])] * 7


class Mortal(Op):
    def preprocess(self, input_dicts):
        return {"pid": os.getpid()}


def test_a_worker_dies_and_the_other_pipeline_answers():
    server = PipelineServer("mortal")
    server.set_response_op(ResponseOp(Mortal("a", [RequestOp()])))
    server.add_pipeline("two", ResponseOp(AppendsWord("b", "two ")))
    server.prepare_server(yml_dict={**CONFIG, "op": {"a": {"workers": "process"}}})
    with server:
        before = http(server, "POST", "/api/mortal", {})[2]["pid"]
        os.kill(before, signal.SIGKILL)
        assert http(server, "POST", "/api/two", {"x": "!"})[2] == {"y": "two !"}

        def is_replaced():
            status, _, answer = http(server, "POST", "/api/mortal", {})
            return status == 200 and answer["pid"] != before

        wait_until(is_replaced)


class Broken(Op):
    def init_op(self):
        raise FileNotFoundError("embed.vocab")


def test_a_pipeline_that_cannot_start_is_named_and_none_is_left_running(open_files):
    server = PipelineServer("one")
    server.set_response_op(ResponseOp(Mortal("a", [RequestOp()])))
    server.add_pipeline("two", ResponseOp(Broken("b", [RequestOp()])))
    server.prepare_server(yml_dict={**CONFIG, "op": {"a": {"workers": "process"}}})
    with pytest.raises(InitError, match=r"pipeline 'two': .*'b'.*embed\.vocab"):
        server.start()
    server.stop()


def test_both_pipelines_finish_their_requests_when_the_server_stops():
    with Two() as two:
        two.first.goes_on.clear()
        two.second.goes_on.clear()
        with ThreadPoolExecutor(3) as pool:
            held = [pool.submit(two.says, name) for name in ("one", "two")]
            assert two.first.begun.wait(30)
            assert two.second.begun.wait(30)
            stopped = pool.submit(two.server.stop)
            wait_until(lambda: two.server._service is None)
            two.first.goes_on.set()
            two.second.goes_on.set()
            assert [item.result(30)[2] for item in held] == [["one !"], ["two !"]]
            stopped.result(30)
