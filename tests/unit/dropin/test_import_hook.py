"""Imports of the predecessor's packages: what they lead to."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys

import numpy as np
import pytest

import pipeline
import pipeline.channel
import pipeline.client
import pipeline.dropin.local_service_handler
import pipeline.proto.pipeline_service_pb2
from pipeline.dropin import import_hook as finder
from pipeline.dropin.import_hook import home_of
from pipeline.errors import InitError, NotImplementedByOpError

IMPORTS = {
    "paddle_serving_server": "pipeline Server ArgsParser OpMaker OpSeqMaker __version__ serve",
    "paddle_serving_server.web_service": "WebService Op port_is_available PipelineWebService",
    "paddle_serving_server_gpu.web_service": "WebService Op",
    "paddle_serving_server_gpu.pipeline": "PipelineClient",
    "paddle_serving_server.pipeline": (
        "Op RequestOp ResponseOp PipelineServer PipelineClient LocalServiceHandler Analyst logger "
        "channel operator dag util proto pipeline_client"
    ),
    "paddle_serving_server.pipeline.proto": "pipeline_service_pb2 pipeline_service_pb2_grpc",
    "paddle_serving_server.pipeline.channel": (
        "ChannelData ChannelDataType ChannelDataErrcode ChannelDataEcode ProductErrCode "
        "ChannelTimeoutError ChannelStopError"
    ),
    "paddle_serving_server.pipeline.error_catch": (
        "CustomException CustomExceptionCode ProductErrCode ErrorCatch ParamChecker ParamVerify"
    ),
    "paddle_serving_server.pipeline.operator": "Op RequestOp ResponseOp VirtualOp",
    "paddle_serving_server.pipeline.dag": "DAG DAGExecutor",
    "paddle_serving_server.pipeline.analyse": "Analyst OpAnalyst",
    "paddle_serving_server.pipeline.profiler": "PerformanceTracer TimeProfiler",
    "paddle_serving_server.pipeline.util": (
        "NameGenerator AvailablePortGenerator GetAvailablePortGenerator ThreadIdGenerator "
        "PipelineProcSyncManager"
    ),
    "paddle_serving_server.pipeline.pipeline_server": "PipelineServer ServerYamlConfChecker",
    "paddle_serving_server.pipeline.pipeline_client": "PipelineClient PipelinePredictFuture",
    "paddle_serving_server.pipeline.local_service_handler": "LocalServiceHandler",
    "paddle_serving_server.util": "ArgsParser dump_pid_file kill_stop_process_by_pid",
    "paddle_serving_server.proto": "general_model_config_pb2",
    "paddle_serving_server.serve": "main",
    "paddle_serving_client": "Client MultiLangClient HttpClient utils io",
    "paddle_serving_client.pipeline": "PipelineClient",
    "paddle_serving_client.pipeline.channel": "ChannelData",
    "paddle_serving_client.utils": "MultiThreadRunner benchmark_args show_latency",
    "paddle_serving_client.io": "inference_model_to_serving save_model",
    "paddle_serving_client.convert": "inference_model_to_serving",
}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("module", IMPORTS)
def test_the_names_that_scripts_import_are_there(module):
    namespace: dict[str, object] = {}
    names = IMPORTS[module].split()
    exec(f"from {module} import {', '.join(names)}", namespace)
    assert set(names) <= set(namespace)


@pytest.mark.usefixtures("installed")
def test_a_module_is_the_same_object_under_both_names():
    pairs = {
        "paddle_serving_server.pipeline.channel": pipeline.channel,
        "paddle_serving_server.pipeline.pipeline_client": pipeline.client,
        "paddle_serving_server.pipeline.local_service_handler": (
            pipeline.dropin.local_service_handler
        ),
        "paddle_serving_server.pipeline.proto.pipeline_service_pb2": (
            pipeline.proto.pipeline_service_pb2
        ),
        "paddle_serving_client.pipeline.channel": pipeline.channel,
    }
    for name, ours in pairs.items():
        assert importlib.import_module(name) is ours
        assert ours.__spec__ is not None
        assert ours.__spec__.name == ours.__name__, "its own spec is left alone"


@pytest.mark.usefixtures("installed")
def test_one_class_under_all_names_so_that_isinstance_holds():
    web_service = importlib.import_module("paddle_serving_server.web_service")
    gpu = importlib.import_module("paddle_serving_server_gpu.web_service")
    operator = importlib.import_module("paddle_serving_server.pipeline.operator")
    assert web_service is gpu
    assert web_service.Op is operator.Op is pipeline.Op
    assert issubclass(web_service.WebService, pipeline.WebService)


@pytest.mark.usefixtures("installed")
def test_classes_pickle_by_our_own_names():
    client = importlib.import_module("paddle_serving_client")
    web_service = importlib.import_module("paddle_serving_server.web_service")
    for kind in (client.Client, web_service.WebService, web_service.Op):
        data = pickle.dumps(kind)
        assert b"paddle_serving" not in data
        assert pickle.loads(data) is kind


@pytest.mark.usefixtures("installed")
def test_a_submodule_is_an_attribute_of_its_package():
    import paddle_serving_server.pipeline.operator
    import paddle_serving_server.web_service

    assert paddle_serving_server.pipeline.operator.Op is pipeline.Op
    assert paddle_serving_server.web_service.Op is pipeline.Op


@pytest.mark.usefixtures("installed")
def test_the_spec_of_a_module_can_be_found():
    spec = importlib.util.find_spec("paddle_serving_server.pipeline")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    assert spec.origin is not None


@pytest.fixture
def originals(tmp_path, monkeypatch):
    """A folder on the path with packages of the predecessor's that must not be run."""
    package = tmp_path / "paddle_serving_server"
    package.mkdir()
    for name in ("__init__", "web_service", "monitor"):
        (package / f"{name}.py").write_text("raise AssertionError('the original was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    return package


@pytest.mark.usefixtures("originals", "installed")
def test_originals_that_are_installed_are_not_imported():
    module = importlib.import_module("paddle_serving_server.web_service")
    assert module.__name__ == "pipeline.dropin.server.web_service"


@pytest.mark.usefixtures("originals", "installed")
@pytest.mark.parametrize(
    "name",
    [
        "paddle_serving_server.monitor",
        "paddle_serving_server.pipeline.gateway.proxy",
        "paddle_serving_client.metric.acc",
    ],
)
def test_a_module_without_counterpart_is_not_found(name):
    with pytest.raises(ModuleNotFoundError, match=r"no counterpart .*docs/migration\.md") as caught:
        importlib.import_module(name)
    assert caught.value.name in name


@pytest.mark.usefixtures("clean_imports")
def test_originals_that_were_imported_before_are_refused(tmp_path, monkeypatch):
    (tmp_path / "paddle_serving_client").mkdir()
    (tmp_path / "paddle_serving_client" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("paddle_serving_client")
    with pytest.raises(InitError, match=r"paddle_serving_client .* was imported before"):
        finder.install()
    assert not any(isinstance(entry, finder.ImportHook) for entry in sys.meta_path)


@pytest.mark.usefixtures("installed")
def test_installing_twice_is_installing_once():
    finder.install()
    assert sum(isinstance(entry, finder.ImportHook) for entry in sys.meta_path) == 1


@pytest.mark.usefixtures("installed")
def test_an_unsupported_name_can_be_imported_but_not_used():
    from paddle_serving_server.pipeline.profiler import PerformanceTracer as Tracer

    with pytest.raises(NotImplementedByOpError, match=r"^PerformanceTracer of Paddle Serving is"):
        Tracer(True, 10)
    with pytest.raises(NotImplementedByOpError, match="tracer"):
        Tracer.data_buffer  # noqa: B018 - looking it up is the use
    assert pickle.loads(pickle.dumps(Tracer)) is Tracer


@pytest.mark.usefixtures("installed")
def test_scripts_for_older_versions_get_an_error_with_advice():
    from paddle_serving_server_gpu.web_service import PipelineWebService

    with pytest.raises(NotImplementedByOpError, match="single-model WebService"):
        PipelineWebService("uci").load_model_config("uci_housing_model")


@pytest.mark.parametrize(
    "name",
    [
        "paddle_serving_app",
        "paddle_serving_server_xpu",
        "paddle",
        "pipeline.channel",
        "pipeline.dropin.server.util",
    ],
)
def test_other_names_are_left_to_python(name):
    assert home_of(name) is None
    assert finder.ImportHook().find_spec(name) is None


@pytest.mark.usefixtures("installed")
def test_numpy_has_the_names_that_older_scripts_call():
    array = np.fromstring(b"\x01\x02", np.uint8)
    array[0] = 7  # a copy: bytes could not be written to
    assert array.tolist() == [7, 2]
    assert np.fromstring("\x01", np.uint8).tolist() == [1]
    assert np.fromstring("1, 2", sep=",").tolist() == [1.0, 2.0]
    assert np.float(1) == 1.0
    assert np.array([1], np.int).dtype == np.int64
