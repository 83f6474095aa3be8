"""An ONNX model with states by v2: callers send its other inputs, and get its other outputs."""

from __future__ import annotations

import pytest
from doubles import http, server_for
from onnx import helper
from onnx_doubles import FLOAT, save, value_info

from pipeline import Op, RequestOp

STATE = {"input_name": "total", "output_name": "next", "data_type": "TYPE_FP32", "dims": [1]}


@pytest.fixture(scope="module", params=[("thread", None), ("process", ["y", "next"])])
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tally")
    row = ("n", 1)
    save(
        folder / "model.onnx",
        [
            helper.make_node("Add", ["x", "total"], ["y"]),
            helper.make_node("Identity", ["y"], ["next"]),
        ],
        [value_info("x", FLOAT, row), value_info("total", FLOAT, row)],
        [value_info("y", FLOAT, row), value_info("next", FLOAT, row)],
    )
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "half").write_bytes(b"\x00\x00\x00\x3f")
    initial = {"name": "half", "data_type": "TYPE_FP32", "dims": [1], "data_file": "half"}
    workers, fetched = request.param
    keys = {
        "batch_size": 2,
        "workers": workers,
        "fetch_list": fetched,
        "local_service_conf": {"model_config": str(folder)},
        "sequence": {"strategy": "direct", "state": [{**STATE, "initial_state": initial}]},
    }
    with server_for(Op("tally", RequestOp()), op={"tally": keys}) as running:
        running.fetched = fetched
        yield running


def infer(server, words, value, **more):
    name, *flags = words.split()
    parameters = {
        "sequence_id": name,
        "sequence_start": "start" in flags,
        "sequence_end": "end" in flags,
    }
    x = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    body = {"parameters": parameters, "inputs": [x, *more.pop("inputs", ())], **more}
    return http(server, "POST", "/v2/models/tally/infer", body)[2]


def test_its_steps_follow_each_other(server):
    collected = []
    for words, value in (("a start", 1.0), ("b start", 10.0), ("a", 2.0), ("b end", 20.0)):
        outputs = {item["name"]: item["data"] for item in infer(server, words, value)["outputs"]}
        collected.append(outputs["y"])
        assert outputs.keys() == set(server.fetched or ["y"])
    assert collected == [[1.5], [10.5], [3.5], [30.5]]


def test_states_are_hidden_from_clients_unless_they_are_listed(server):
    _, _, reported = http(server, "GET", "/v2/models/tally")
    assert [item["name"] for item in reported["inputs"]] == ["x"]
    assert [item["name"] for item in reported["outputs"]] == (server.fetched or ["y"])
    own = {"name": "total", "datatype": "FP32", "shape": [1, 1], "data": [5.0]}
    assert "total" in infer(server, "c start", 1.0, inputs=[own])["error"]
    if not server.fetched:
        text = infer(server, "c start", 1.0, outputs=[{"name": "next"}])["error"]
        assert "unexpected inference output 'next' for model 'tally'" in text
