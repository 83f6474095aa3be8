"""`python -m paddle_serving_server.serve` and `paddle_serving_client.Client`, both ours."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from served import environment

from pipeline.dropin.client import Client, HttpClient
from pipeline.errors import ClosedError, InputError, PredictorUnavailableError

CONF = """
feed_var { name: "x" alias_name: "x" feed_type: 1 shape: 2 }
fetch_var { name: "y" alias_name: "y" fetch_type: 1 shape: 2 }
"""
PATIENCE_S = 60.0


@pytest.fixture
def model(tmp_path):
    """A folder with a model that doubles, and its client configuration beside it."""
    folder = tmp_path / "double_model"
    folder.mkdir()
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", ends[:1], ends[1:])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), folder / "double.onnx")
    (tmp_path / "serving_client_conf.prototxt").write_text(CONF)
    return folder


@pytest.fixture
def service(model):
    """(the process, its port)"""
    log = model.parent / "stderr"
    command = "-m pipeline run -m paddle_serving_server.serve --model double_model --port 0"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, *command.split()],
            cwd=model.parent,
            env=environment(),
            stderr=stderr,
        )
    try:
        yield process, port_of(process, log)
    finally:
        process.kill()
        process.wait()


def port_of(process: subprocess.Popen[bytes], log: Path) -> int:
    ends = time.monotonic() + PATIENCE_S
    while (result := re.search(r"brpc, gRPC and HTTP on port (\d+)", log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < ends, log.read_text()
        time.sleep(0.05)
    return int(result[1])


def test_a_service_started_by_its_former_name_answers_the_former_client(model, service):
    process, port = service
    for use_grpc in (False, True):
        client = Client()
        client.load_client_config(str(model.parent))
        client.set_use_grpc_client(use_grpc)
        client.connect([f"127.0.0.1:{port}"])
        with client:
            batch = client.predict({"x": np.ones((3, 2), np.float32)}, ["y"], batch=True)
            one = client.predict({"x": np.ones(2, np.float32)}, fetch="y", logid=7)
            with pytest.raises(InputError):
                client.predict({"z": np.ones(2, np.float32)})
        assert batch["y"].tolist() == [[2.0, 2.0]] * 3
        assert one["y"].tolist() == [[2.0, 2.0]]
        with pytest.raises(ClosedError):
            client.predict({"x": np.ones(2, np.float32)})
    assert_http_client_is_answered(model, port)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0


def assert_http_client_is_answered(model, port):
    """In each of its modes; a large batch is packed both ways if it is asked to."""
    client = HttpClient()
    client.load_client_config(str(model.parent))
    client.connect([f"127.0.0.1:{port}"])
    ones = np.ones((300, 2), np.float32)
    for is_packed in (False, True):
        client.set_request_compress(is_packed)
        client.set_response_compress(is_packed)
        client.set_http_proto(True)
        response = client.predict({"x": ones}, ["y"], batch=True, log_id=7)
        (tensor,) = response.outputs[0].tensor
        assert (list(tensor.shape), set(tensor.float_data)) == ([300, 2], {2.0})
        assert (tensor.alias_name, response.log_id, response.err_no) == ("y", 7, 0)
        client.set_http_proto(False)
        answer = client.predict([{"x": ones}], batch=True)
        assert answer["outputs"][0]["tensor"][0]["float_data"] == [2.0] * 600
        refused = client.predict({"x": np.ones((1, 3), np.float32)}, batch=True)
        assert refused["err_no"] == 5000
    client.set_use_grpc_client(True)
    assert list(client.predict({"x": [1, 2]}).outputs[0].tensor[0].float_data) == [2.0, 4.0]
    client.release()


def test_an_unavailable_server_is_an_error(model):
    client = Client()
    client.load_client_config(str(model.parent))
    client.set_rpc_timeout_ms(2000)
    client.connect(["127.0.0.1:1"])
    with client, pytest.raises(PredictorUnavailableError):
        client.predict({"x": np.ones(2, np.float32)})
