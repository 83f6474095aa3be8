"""TestClient: the server of a script or of a program, asked in every way, without its models."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest

from pipeline import Op, PipelineServer, ProductError, RequestOp, ResponseOp, Tensor, WebService
from pipeline.errors import (
    ConfigError,
    InitError,
    InputError,
    NoServiceError,
    NotImplementedByOpError,
    PackageError,
)
from pipeline.testing import FakePredictor, TestClient

MODEL = {"local_service_conf": {"model_config": "there/is/none"}}


class Score(Op):
    max_batch_size = 4
    input_tensors = (Tensor("x", "FP32", (2,), source="@DAGExecutor"),)
    output_tensors = (Tensor("y", "FP32", (1,)),)

    def preprocess(self, input_dicts):
        x = np.atleast_2d(input_dicts["@DAGExecutor"]["x"]).astype(np.float32)
        if (x < 0).any():
            raise ProductError(51, "negative")
        return {"x": x}


def scoring(name: str = "scores") -> PipelineServer:
    server = PipelineServer(name)
    server.set_response_op(ResponseOp(Score("score", RequestOp())))
    return server


@pytest.fixture
def client():
    model = FakePredictor(lambda feed: {"y": feed["x"].sum(axis=1, keepdims=True)})
    config = {"http_port": 18080, "dag": {"is_thread_op": False}, "op": {"score": MODEL}}
    with TestClient(scoring(), config, {"score": model}) as client:
        client.model = model
        yield client


def test_each_kind_of_request_reaches_the_fake(client):
    assert client.predict({"x": [[1, 2]]}, pack_tensor_format=True)["y"].tolist() == [[3]]
    assert client.api({"x": [[1, 2]]}) == {"y": [[3.0]]}
    assert client.infer({"x": np.array([[1, 2]], np.float32)})["y"].item() == 3
    tensor = {"name": "x", "elem_type": 1, "shape": [1, 2], "float_data": [1, 2]}
    reply = client.post("/scores/prediction", json={"tensors": [tensor]})
    reply.raise_for_error()
    assert (reply.status, reply.json()["value"]) == (200, ["array([[3.]], dtype=float32)"])
    assert len(client.model.calls) == 4


def test_an_error_is_an_exception_with_its_code_on_each(client):
    bad = {"x": np.array([[-1, 2]], np.float32)}
    asks = (
        lambda feed: client.predict(feed, pack_tensor_format=True),
        client.infer,
        lambda feed: client.api({"x": [[-1, 2]]}),
    )
    for ask in asks:
        with pytest.raises(ProductError, match=r"^negative$") as raised:
            ask(bad)
        assert raised.value.code == 51
    assert raised.value.op == "score"


def test_http_replies_have_their_errors(client):
    with pytest.raises(NoServiceError):
        client.post("/other/prediction", json={}).raise_for_error()
    missing = client.get("/v2/nothing/there")
    assert missing.status == 404
    with pytest.raises(PackageError):
        missing.raise_for_error()
    with pytest.raises(NotImplementedByOpError, match="use POST"):
        client.get("/scores/prediction").raise_for_error()
    with pytest.raises(PackageError, match="HTTP 200, and no JSON"):
        client.get("/metrics").json()
    with pytest.raises(NoServiceError):
        client.infer({}, model="other")
    with pytest.raises(InputError):
        client.infer({"x": np.zeros((1, 2), np.float32)}, outputs=["z"])
    assert client.post("/api/scores", data=b"{", headers={"x": "y"}).status == 400


class Words(Op):
    def preprocess(self, input_dicts):
        return input_dicts["@DAGExecutor"]

    def process(self, feed_batch):
        for word in feed_batch[0]["text"].split():
            yield {"word": word}
            if word == "bad":
                raise ProductError(52, "bad word")


def test_streams_are_returned_part_by_part_and_end_with_their_error():
    server = PipelineServer("words")
    server.set_response_op(ResponseOp(Words("words", RequestOp())))
    with TestClient(server, {"rpc_port": 0}) as client:
        assert [part["word"] for part in client.predict_stream({"text": "a b"})] == ["a", "b"]
        assert list(client.api_stream({"text": "a b"})) == [{"word": "a"}, {"word": "b"}]
        for stream in (client.api_stream, client.predict_stream):
            parts = stream({"text": "bad"})
            assert next(parts)["word"] == "bad"
            with pytest.raises(ProductError, match="bad word"):
                next(parts)
        with pytest.raises(NoServiceError):
            list(client.api_stream({"text": "a"}, name="other"))


def test_the_server_is_restored_and_can_start_again(caplog):
    server = scoring()
    server.prepare_server(
        yml_dict={"rpc_port": 0, "build_dag_each_worker": True, "op": {"score": MODEL}}
    )
    ((op,),) = (graph.ops for graph in server._graphs.values())
    before = op.pipeline_config
    for answer in (1, 2):
        with (
            caplog.at_level(logging.INFO),
            TestClient(server, predictors={"score": {"y": [[answer]]}}) as client,
        ):
            assert client.predict({"x": [[1, 2]]}, pack_tensor_format=True)["y"].tolist() == [
                [answer]
            ]
    assert op.pipeline_config == before
    assert "is ready" in caplog.text


def test_a_web_service_and_one_without_http():
    class Service(WebService):
        def get_pipeline_response(self, read_op):
            return Score("score", read_op)

    with TestClient(Service("api"), {"rpc_port": 0}, {"score": {"y": [[1]]}}) as client:
        assert client.predict({"x": [[1, 2]]}, pack_tensor_format=True)["y"].tolist() == [[1]]
        with pytest.raises(InitError, match="'api' has no HTTP"):
            client.get("/")


SCRIPT = """
from pipeline import Op, PipelineServer, RequestOp, ResponseOp
import beside

class Twice(Op):
    def preprocess(self, input_dicts):
        return {{"y": 2 * input_dicts["@DAGExecutor"]["x"]}}

server = PipelineServer("twice")
server.set_response_op(ResponseOp(Twice("twice", RequestOp())))
server.prepare_server("config.yml")
{end}
"""


@pytest.mark.parametrize("end", ["server.run_server()", "if __name__ == '__main__': 1 / 0"])
def test_a_script_is_accepted_if_it_runs_or_only_makes_its_server(tmp_path, end, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "beside.py").touch()
    (tmp_path / "config.yml").write_text("rpc_port: 18071\n")
    script = tmp_path / "twice_server.py"
    script.write_text(SCRIPT.format(end=end))
    with TestClient(script) as client:
        assert client.api({"x": 21}) == {"y": 42}
        assert client.rpc_port != 18071


REGISTERS = """
from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.config.registry import register

class Client:
    def load(self, batch): return {}

register("clients", "scripts_own", Client)
"""


def test_a_script_that_registers_a_plug_in_can_run_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "config.yml").write_text("rpc_port: 18071\n")
    (tmp_path / "beside.py").touch()
    script = tmp_path / "registering_server.py"
    script.write_text(REGISTERS + SCRIPT.format(end=""))
    for _ in range(2):
        with TestClient(script) as client:
            assert client.api({"x": 21}) == {"y": 42}


def test_a_script_that_fails_leaves_no_half_of_its_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    script = tmp_path / "failing_server.py"
    script.write_text("HALF = 1\nraise ValueError('in the middle')\n")
    with pytest.raises(ValueError, match="in the middle"):
        TestClient(script)
    assert "failing_server" not in sys.modules


def test_a_script_without_a_server_is_refused(tmp_path):
    with pytest.raises(InitError, match="there is no such script"):
        TestClient(tmp_path / "none.py")
    empty = tmp_path / "makes_none.py"
    empty.touch()
    with pytest.raises(InitError, match="runs no server, and makes 0"):
        TestClient(empty)
    with pytest.raises(ConfigError, match="not prepared: give TestClient its config"):
        TestClient(scoring())
    with pytest.raises(ConfigError, match="'scor' is no Op of the graph, which has score"):
        TestClient(scoring(), {"rpc_port": 0}, {"scor": {}})


def test_without_its_model_the_start_fails_and_leaves_nothing():
    with (
        pytest.raises(InitError, match="there/is/none"),
        TestClient(scoring(), {"rpc_port": 0, "op": {"score": MODEL}}),
    ):
        pass
