"""`python -m pipeline analyse --serve`, with servers of its own."""

from __future__ import annotations

import json

import pytest
import yaml
from repositories import add_identity, add_python

from pipeline.cli.advise import advise

_SCRIPT = """
import time
import numpy as np
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

class Model(Op):
    def preprocess(self, input_dicts):
        return {"x": np.array([3])}

    def process(self, feed):
        time.sleep(0.02)
        return feed[0]

server = PipelineServer("toys")
server.set_response_op(ResponseOp(Model("model", RequestOp(), concurrency=1)))
server.prepare_server("config.yml")
server.run_server()
"""
_LOAD = {"path": "/toys/prediction", "body": {"key": ["x"], "value": ["3"]}, "at_once": 8}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the current folder, with a service and a load."""
    (tmp_path / "web_server.py").write_text(_SCRIPT)
    (tmp_path / "config.yml").write_text("rpc_port: 9998  # ours\nhttp_port: 9999\n")
    (tmp_path / "load.jsonl").write_text(json.dumps(_LOAD))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _advise(*arguments: str, script: str = "web_server.py") -> int:
    return advise(["--load", "load.jsonl", "--seconds", "0.3", *arguments, script])


def test_the_best_of_some_trials_is_written(folder, capsys):
    assert _advise("--most-trials", "2") == 0
    message = capsys.readouterr().out
    assert "8 clients" in message
    assert "the constructor of model sets concurrency" in message
    text = (folder / "config.advised.yml").read_text()
    assert "# ours" in text
    (values,) = yaml.safe_load(text)["op"].values()
    assert values.get("concurrency", 1) * values.get("batch_size", 1) > 1
    assert (folder / "config.yml").read_text() == "rpc_port: 9998  # ours\nhttp_port: 9999\n"


def test_a_service_that_answers_with_errors_is_tried_once(folder, capsys):
    (folder / "load.jsonl").write_text('{"path": "/others/prediction", "body": {}}')
    assert _advise() == 1
    seen = capsys.readouterr()
    assert seen.out.count("Service name error") == 1
    assert "every trial failed" in seen.err
    assert not (folder / "config.advised.yml").exists()


@pytest.mark.parametrize("given", [["--clients", "0"], ["--seconds", "nan"], ["--memory-mb", "-1"]])
def test_numbers_that_make_no_sense_are_refused(folder, given):
    with pytest.raises(SystemExit):
        _advise(*given)


def test_a_script_that_runs_no_server_is_an_error(folder, capsys):
    (folder / "other.py").write_text("raise RuntimeError('nothing here')")
    assert _advise(script="other.py") == 1
    assert "nothing here" in capsys.readouterr().err


_SLOW = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02)
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())]) for request in requests]
"""
_TENSOR = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}


def _advise_models(*arguments: str) -> int:
    reported = ["--load", "load.jsonl", "--seconds", "0.3", "--model-repository", "models"]
    return advise([*reported, *arguments])


def test_the_best_configuration_of_a_model_is_written(folder, capsys):
    add_python(folder / "models", "slow", _SLOW, "# a comment\nversion_policy { all {} }")
    add_identity(folder / "models", "another", 1)
    load = {"path": "/v2/models/slow/infer", "body": {"inputs": [_TENSOR]}, "at_once": 8}
    (folder / "load.jsonl").write_text(json.dumps(load))
    assert _advise_models("--most-trials", "2", "--most-workers", "2", "--most-batch", "8") == 0
    assert "written: advised/slow/config.pbtxt" in capsys.readouterr().out
    text = (folder / "advised" / "slow" / "config.pbtxt").read_text()
    assert text.startswith("# pipeline analyse --serve: ")
    assert "version_policy" in text
    assert "count: 2" in text or "dynamic_batching" in text
    assert not (folder / "advised" / "another").exists()


def test_a_load_without_requests_for_models_is_an_error(folder, capsys):
    (folder / "models").mkdir()
    assert _advise_models() == 1
    assert "no request of the load asks a model" in capsys.readouterr().err
