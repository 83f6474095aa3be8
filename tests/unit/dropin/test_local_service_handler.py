"""LocalServiceHandler: a record of settings."""

from __future__ import annotations

import inspect

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pipeline.config.fields import settings_of
from pipeline.config.schema import LocalServiceConfig
from pipeline.dropin.local_service_handler import LocalServiceHandler
from pipeline.errors import InitError, NotImplementedByOpError


def test_its_settings_are_keys_of_the_configuration_with_the_same_defaults():
    settings = LocalServiceHandler("model").as_settings()
    known = settings_of(LocalServiceConfig)
    defaults = {name: known[name].default for name in settings}
    assert settings == {**defaults, "model_config": "model"}


def test_every_argument_is_in_its_settings():
    given = {
        "client_type": "grpc",
        "workdir": "work",
        "thread_num": 4,
        "device_type": 2,
        "devices": "0,1",
        "mem_optim": False,
        "ir_optim": True,
        "precision": "fp16",
        "use_mkldnn": True,
        "mkldnn_cache_capacity": 3,
        "mkldnn_op_list": ["conv2d"],
        "mkldnn_bf16_op_list": ["matmul"],
        "min_subgraph_size": 5,
        "use_calib": True,
    }
    handler = LocalServiceHandler(
        "model", **given, fetch_names=["y"], dynamic_shape_info={"min_input_shape": {"x": [1]}}
    )
    assert handler.as_settings() == {**given, "model_config": "model", "fetch_list": ["y"]}
    assert handler.get_fetch_list() == ["y"]
    assert handler.dynamic_shape_info == {"min_input_shape": {"x": [1]}}
    left = set(inspect.signature(LocalServiceHandler).parameters) - set(given)
    assert left == {
        "model_config",
        "fetch_names",
        "dynamic_shape_info",
        "available_port_generator",
        "use_profile",
    }


def test_the_settings_are_a_copy():
    handler = LocalServiceHandler("model")
    handler.as_settings()["model_config"] = "other"
    assert handler.get_client_config() == "model/serving_server_conf.prototxt"


def test_it_can_load_its_model_by_itself(tmp_path):
    node = helper.make_node("Add", ["x", "x"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy"]
    graph = helper.make_graph([node], "double", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "double.onnx")
    client = LocalServiceHandler(str(tmp_path), thread_num=1).get_client(0)
    try:
        answer = client.predict({"x": np.ones((1, 2), np.float32)})
        assert answer["y"].tolist() == [[2.0, 2.0]]
    finally:
        client.close()


def test_services_are_the_servers_affair():
    handler = LocalServiceHandler("model", "brpc")
    assert handler.get_port_list() == []
    with pytest.raises(InitError, match=r"self\.client"):
        handler.get_client(0)
    for start in (handler.prepare_server, handler.start_server):
        with pytest.raises(NotImplementedByOpError, match=r"pipeline\.serve"):
            start()
