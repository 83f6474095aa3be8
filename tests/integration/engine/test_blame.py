"""Whose mistake it is that a model cannot take its feed: status, counter and log level say it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
from model_files import save_model

from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.testing import TestClient


class Makes(Op):
    """Feeds its model a name that this does not have."""

    def preprocess(self, input_dicts):
        return {"wrong": np.ones((1, 3), np.float32)}


class CallsModel(Op):
    """The same, by a call of its own."""

    def process(self, feed_batch):
        return self.client.predict({"wrong": np.ones((1, 3), np.float32)})


class Names(RequestOp):
    """Calls the fields by other names."""

    def unpack_request_package(self, request):
        return {"wrong": [[1, 2, 3]]}, 7, None, ""


class Before(Op):
    """Has the next Op's model be fed what it does not take."""

    def preprocess(self, input_dicts):
        return {"wrong": [[1, 2, 3]]}


GRAPHS = {
    "as it came": lambda: Op("m", RequestOp()),
    "by preprocess": lambda: Makes("m", RequestOp()),
    "by process": lambda: CallsModel("m", RequestOp()),
    "by the RequestOp": lambda: Op("m", Names()),
    "by an Op before": lambda: Op("m", Before("before", RequestOp())),
}
CALLERS, OPS = (400, "PRODUCT", {"INFO"}), (500, "BACKEND", {"ERROR"})


@pytest.fixture(params=["thread", "process"])
def client(request, how, tmp_path) -> Iterator[TestClient]:
    path = str(save_model(tmp_path / "model", with_conf=False) / "model.onnx")
    local = {"client_type": "local_predictor", "model_config": path}
    server = PipelineServer("svc")
    server.set_response_op(ResponseOp(GRAPHS[how]()))
    config = {"http_port": 0, "op": {"m": {"workers": request.param, "local_service_conf": local}}}
    with TestClient(server, config) as running:
        yield running


@pytest.mark.parametrize("how", GRAPHS)
def test_the_author_of_an_invalid_feed_is_blamed(client, how, caplog):
    caplog.set_level(logging.INFO, "pipeline")
    status, reason, levels = CALLERS if how == "as it came" else OPS
    if how == "by the RequestOp":  # plain JSON takes the place of what that makes
        answer = client.post("/svc/prediction", json={"key": ["x"], "value": ["1"]})
        assert answer.json()["err_no"] == 5000
    else:
        for body in ({"y": [[1, 2, 3]]}, {"x": [[1, 2]]}, {"x": {"a": 1}}):
            assert client.post("/api/svc", json=body).status == status
    lines = [line for line in caplog.records if "Failed to predict" in line.message]
    results = {
        line.partition('reason="')[2].partition('"')[0]: int(float(line.rpartition(" ")[2]))
        for line in client.get("/metrics").text.splitlines()
        if line.startswith('nv_inference_request_failure{model="m"') and line[-3:] != " 0"
    }
    assert {key for key, count in results.items() if count} == {reason}
    assert {line.levelname for line in lines} == levels
