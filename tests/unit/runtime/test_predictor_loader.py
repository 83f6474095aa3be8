"""PredictorLoader: which model an Op gets, and on which card."""

from __future__ import annotations

import pkgutil
from types import SimpleNamespace

import pytest

from pipeline import LocalServiceHandler, Op
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.errors import ConfigError, InitError
from pipeline.op import configure_op
from pipeline.predictors.base import as_own_struct
from pipeline.predictors.paddle import PaddleModel
from pipeline.runtime.predictor_loader import ModelServiceAddress, PredictorLoader


def predictor(**more):
    """What an Op can be connected to."""
    return SimpleNamespace(feed_names=["x"], fetch_names=["y"], predict=dict, close=dict, **more)


class Recorder:
    """Loads nothing; notes the model and the worker that it is for."""

    def __init__(self):
        self.loaded = []

    def __call__(self, model, worker):
        self.loaded.append((model, worker))
        return predictor()


def op_with(**settings):
    op = Op("a")
    config = load_config(yml_dict={"rpc_port": 0, "op": {"a": settings}})
    configure_op(op, resolve_op("a", op.pipeline_given, config))
    return op


def test_gpus_are_assigned_to_the_workers_in_turn(tmp_path):
    load = Recorder()
    connect = PredictorLoader(tmp_path, load=load)
    for worker in range(7):
        op = op_with(local_service_conf={"model_config": "m.onnx", "devices": "0,1,2"})
        connect(op, worker)
        assert op.right_feed_names == ["x"]
    cards = [model.device(worker).card for model, worker in load.loaded]
    assert cards == [0, 1, 2, 0, 1, 2, 0]


def test_a_model_is_first_searched_next_to_the_configuration(tmp_path, monkeypatch):
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "m.onnx").touch()
    (tmp_path / "here.onnx").touch()
    monkeypatch.chdir(tmp_path)
    load = Recorder()
    for name in ("m.onnx", "here.onnx"):
        connect = PredictorLoader(tmp_path / "beside", load=load)
        connect(op_with(local_service_conf={"model_config": name}), 0)
    first, second = (model.model_path for model, _ in load.loaded)
    assert first == tmp_path / "beside" / "m.onnx"
    assert str(second) == "here.onnx"


def test_an_op_without_a_model_gets_no_predictor(tmp_path):
    load = Recorder()
    op = op_with()
    PredictorLoader(tmp_path, load=load)(op, 0)
    assert op.client is None
    assert load.loaded == []


def test_an_engine_that_loads_no_predictor_fails_the_start(tmp_path):
    op = op_with(local_service_conf={"model_config": "m.onnx"})
    half = SimpleNamespace(feed_names=["x"], predict=dict)
    for made, lacks in (
        (None, "NoneType, .*no feed_names and"),
        (half, "no fetch_names and no close"),
    ):
        with pytest.raises(InitError, match=f"expected a Predictor, found .*{lacks}"):
            PredictorLoader(tmp_path, load=lambda model, worker, made=made: made)(op, 0)


def connected(op, base_dir, services=None):
    """The RemoteModel that `op` is connected to."""
    requests = []

    def connect(model):
        requests.append(model)
        return predictor()

    PredictorLoader(base_dir, services or {}, connect=connect)(op, 0)
    (model,) = requests
    return model


def test_an_op_with_endpoints_asks_them(tmp_path):
    (tmp_path / "conf").mkdir()
    op = op_with(
        server_endpoints=["one:9", "two:9"],
        client_type="grpc",
        client_config="conf",
        fetch_list=["price"],
    )
    model = connected(op, tmp_path)
    assert (model.client_type, model.endpoints) == ("grpc", ("one:9", "two:9"))
    assert model.client_config == tmp_path / "conf"
    assert tuple(model.fetch_list) == ("price",)
    assert op.right_fetch_names == ["y"]


def test_endpoints_alone_mean_brpc_as_they_always_did(tmp_path):
    assert connected(op_with(server_endpoints=["one:9"]), tmp_path).client_type == "brpc"


def test_endpoints_override_a_local_model(tmp_path):
    op = op_with(server_endpoints=["one:9"], local_service_conf={"model_config": "m"})
    assert connected(op, tmp_path).endpoints == ("one:9",)


def test_the_model_of_a_started_service_is_called_there(tmp_path):
    op = op_with(local_service_conf={"model_config": "m", "client_type": "grpc"})
    endpoints = ("127.0.0.1:12000", "127.0.0.1:12001")
    model = connected(op, tmp_path, {"a": ModelServiceAddress(endpoints, tmp_path / "0")})
    assert (model.client_type, model.endpoints) == ("grpc", endpoints)
    assert model.client_config == tmp_path / "0"


def test_a_client_config_overrides_that_of_a_service(tmp_path):
    (tmp_path / "conf").mkdir()
    local = {"model_config": "m", "client_type": "brpc"}
    op = op_with(local_service_conf=local, client_config="conf")
    services = {"a": ModelServiceAddress(("one:9",), tmp_path / "0")}
    assert connected(op, tmp_path, services).client_config == tmp_path / "conf"


def test_endpoints_without_a_client_config_have_none(tmp_path):
    assert connected(op_with(server_endpoints=["one:9"]), tmp_path).client_config is None


def test_another_pipeline_receives_tensors_unless_text_is_configured(tmp_path):
    settings = {"server_endpoints": ["one:9"], "client_type": "pipeline_grpc"}
    assert connected(op_with(**settings), tmp_path).sends_tensors
    op = op_with(**settings)
    op.set_pack_tensor_format(False)
    assert not connected(op, tmp_path).sends_tensors
    op.set_pack_tensor_format(True)
    assert connected(op, tmp_path).sends_tensors


@pytest.mark.parametrize("settings", [{"use_encryption_model": True}, {"encryption_key": "./key"}])
def test_an_encrypted_model_is_refused(tmp_path, settings):
    op = op_with(server_endpoints=["one:9"], **settings)
    with pytest.raises(InitError, match=r"op\.a\.use_encryption_model"):
        PredictorLoader(tmp_path)(op, 0)


def test_a_model_that_holds_the_gil_in_a_process_causes_no_warning(tmp_path, caplog):
    def load(model, worker):
        return predictor(holds_gil=True)

    op = op_with(workers="process", local_service_conf={"model_config": "m"})
    PredictorLoader(tmp_path, load=load)(op, 0)
    assert "workers: process" not in caplog.text


def test_every_key_of_the_local_service_reaches_the_engine(tmp_path):
    load = Recorder()
    settings = {
        "engine": "paddle",
        "fetch_list": ["y"],
        "thread_num": 3,
        "device_type": 2,
        "devices": "1",
        "precision": "int8",
        "ir_optim": True,
        "mem_optim": False,
        "use_calib": True,
        "use_mkldnn": True,
        "mkldnn_cache_capacity": 4,
        "mkldnn_op_list": ["conv2d"],
        "mkldnn_bf16_op_list": ["matmul"],
        "min_subgraph_size": 5,
    }
    op = op_with(local_service_conf={"model_config": "m", **settings})
    op.dynamic_shape_info = {"min_input_shape": {"x": [1, 3]}}
    PredictorLoader(tmp_path, load=load)(op, 0)
    ((asked, _),) = load.loaded
    model = as_own_struct(asked, PaddleModel)
    for key, value in settings.items():
        result = getattr(model, key)
        assert (list(result) if isinstance(result, tuple) else result) == value
    assert model.dynamic_shapes == {"min_input_shape": {"x": [1, 3]}}


def test_a_handler_describes_the_model_in_place_of_the_configuration(tmp_path):
    shapes = {"min_input_shape": {"x": [1, 3]}}
    handler = LocalServiceHandler(
        model_config="m.onnx", thread_num=3, fetch_names=["y"], dynamic_shape_info=shapes
    )
    op = Op("a", local_service_handler=handler)
    settings = {"local_service_conf": {"model_config": "other.onnx", "thread_num": 9}}
    config = load_config(yml_dict={"rpc_port": 0, "op": {"a": settings}})
    configure_op(op, resolve_op("a", op.pipeline_given, config))
    load = Recorder()
    PredictorLoader(tmp_path, load=load)(op, 0)
    ((model, _),) = load.loaded
    assert (str(model.model_path), model.thread_num) == ("m.onnx", 3)
    assert tuple(model.fetch_list) == ("y",)
    assert model.dynamic_shapes == shapes


def test_a_handler_is_checked_as_the_configuration_is():
    config = load_config(yml_dict={"rpc_port": 0})
    for handler, text in (
        (LocalServiceHandler("m", thread_num=0), "thread_num: expected int >= 1, found 0"),
        ("m", "local_service_handler: expected a LocalServiceHandler"),
    ):
        op = Op("a", local_service_handler=handler)
        with pytest.raises(ConfigError, match=text):
            resolve_op("a", op.pipeline_given, config)


def test_the_runtimes_of_local_models_are_imported_before_workers_are_forked(tmp_path):
    for name in ("m.pdmodel", "m.pdiparams", "m.onnx"):
        (tmp_path / name).touch()
    loader = PredictorLoader(tmp_path, given={"given": predictor()})
    paddle = {"model_config": "m.pdmodel", "client_type": "local_predictor"}
    cases = [
        op_with(local_service_conf=paddle),
        op_with(local_service_conf=paddle),
        op_with(local_service_conf={**paddle, "model_config": "m.onnx"}),
        op_with(local_service_conf={**paddle, "model_config": "nobody.pdmodel"}),
        op_with(local_service_conf={**paddle, "devices": "0"}),
        op_with(local_service_conf={**paddle, "client_type": "brpc"}),
        op_with(local_service_conf=paddle, server_endpoints=["127.0.0.1:1"]),
        op_with(),
    ]
    imports = "pipeline.predictors.paddle.predictor:import_paddle"
    assert [loader.runtimes([op]) for op in cases] == [[imports]] * 2 + [[]] * 6
    assert loader.runtimes(cases) == [imports]
    cases[0].name = "given"
    assert loader.runtimes(cases[:1]) == []
    assert callable(pkgutil.resolve_name(imports))
