"""PredictorLoader: which model an Op gets, and on which card."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pipeline import Op
from pipeline.config import load_config, resolve_op
from pipeline.connecting import PredictorLoader
from pipeline.errors import InitError


class Recorder:
    """Loads nothing; notes the model and the worker that it is for."""

    def __init__(self):
        self.loaded = []

    def __call__(self, model, worker):
        self.loaded.append((model, worker))
        return SimpleNamespace(feed_names=["x"], fetch_names=["y"])


def op_with(**settings):
    op = Op("a")
    config = load_config(yml_dict={"rpc_port": 0, "op": {"a": settings}})
    op.configure(resolve_op("a", op.given, config))
    return op


def test_the_cards_are_given_to_the_workers_in_turn(tmp_path):
    load = Recorder()
    connect = PredictorLoader(tmp_path, load)
    for worker in range(7):
        op = op_with(local_service_conf={"model_config": "m.onnx", "devices": "0,1,2"})
        connect(op, worker)
        assert op.right_feed_names == ["x"]
    cards = [model.device(worker).card for model, worker in load.loaded]
    assert cards == [0, 1, 2, 0, 1, 2, 0]


def test_a_model_is_looked_up_beside_the_configuration_first(tmp_path, monkeypatch):
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "m.onnx").touch()
    (tmp_path / "here.onnx").touch()
    monkeypatch.chdir(tmp_path)
    load = Recorder()
    for name in ("m.onnx", "here.onnx"):
        connect = PredictorLoader(tmp_path / "beside", load)
        connect(op_with(local_service_conf={"model_config": name}), 0)
    first, second = (model.model_path for model, _ in load.loaded)
    assert first == tmp_path / "beside" / "m.onnx"
    assert str(second) == "here.onnx"


def test_an_op_without_a_model_gets_no_predictor(tmp_path):
    load = Recorder()
    op = op_with()
    PredictorLoader(tmp_path, load)(op, 0)
    assert op.client is None
    assert load.loaded == []


def test_what_is_not_supported_is_an_error_that_names_the_key(tmp_path):
    with pytest.raises(InitError, match=r"op\.a\.server_endpoints"):
        PredictorLoader(tmp_path, Recorder())(op_with(server_endpoints=["127.0.0.1:9"]), 0)
