"""A server of a model repository: what its models answer, and how they come and go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import urllib.request

import onnx
import pytest
from doubles import http
from repositories import SERVER, add_ensemble, add_identity, add_onnx, control, infer, serving

from pipeline.errors import ConfigError, PortInUseError
from pipeline.repository.backends.onnxruntime import ONNXRUNTIME
from pipeline.repository.control import ControlSettings
from pipeline.repository.server import RepositorySettings, new_service
from pipeline.system.event_loop import LoopThread

ONNX = """
platform: "onnxruntime_onnx"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] },
         { name: "z" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""


def test_models_of_two_backends_and_two_versions(tmp_path):
    add_onnx(tmp_path, "sums", ONNX)
    add_identity(tmp_path, "same", 1, 3, more="version_policy { all {} }")
    with serving(tmp_path, mode="none") as server:
        assert infer(server, "same", [1.0, 2.0]) == (200, {"OUTPUT0": [1.0, 2.0]})
        assert infer(server, "sums", [1.0, 2.0, 3.0], "x")[1]["y"] == [2.0, 4.0, 6.0]
        for version in ("1", "3"):
            assert infer(server, "same", [7.0], version=version)[0] == 200
        assert infer(server, "same", [7.0], version="2") == (
            404,
            "Request for unknown model: 'same' version 2 is not found",
        )
        _, _, metadata = http(server, "GET", "/v2/models/same")
        assert metadata["versions"] == ["1", "3"]
        assert metadata["platform"] == "identity"
        assert metadata["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, -1]}]
        _, _, answer = http(server, "GET", "/v2/models/same/stats")
        results = {item["version"]: item["inference_count"] for item in answer["model_stats"]}
        assert results == {"1": 1, "3": 2}, "the latest is asked where none is named"
        _, _, answer = http(server, "GET", "/v2/models/stats")
        names = [(item["name"], item["version"]) for item in answer["model_stats"]]
        assert names == [("same", "1"), ("same", "3"), ("sums", "1")]


def test_requests_are_checked_by_the_configuration(tmp_path):
    add_onnx(tmp_path, "sums", ONNX)
    with serving(tmp_path, mode="none") as server:
        assert infer(server, "sums", [1.0], "nope")[0] == 400
        status, text = infer(server, "sums", [1.0, 2.0], "x")
        assert (status, "unexpected shape for input 'x'" in text) == (400, True)
        status, text = infer(server, "sums", [0.0] * 15, "x", rows=5)
        assert (status, text) == (
            400,
            "[request id: <id_unknown>] inference request batch-size must be <= 4 for 'sums'",
        )
        status, _, answer = http(server, "GET", "/v2/models/sums/config")
        assert (answer["max_batch_size"], answer["instance_group"][0]["count"]) == (4, 2)


def test_a_model_without_a_configuration_is_completed_from_its_file(tmp_path):
    add_onnx(tmp_path, "sums")
    with serving(tmp_path, mode="none") as server:
        assert infer(server, "sums", [1.0, 2.0, 3.0], "x")[1]["z"] == [0.0, 0.0, 0.0]
        _, _, config = http(server, "GET", "/v2/models/sums/config")
        assert (config["max_batch_size"], config["backend"]) == (4, "onnxruntime")
        assert config["input"][0]["dims"] == [3]
        assert "dynamic_batching" in config


def test_loading_and_unloading(tmp_path):
    add_identity(tmp_path, "same", 1)
    with serving(tmp_path) as server:
        assert http(server, "GET", "/v2/health/ready")[0] == 200, "there is nothing to wait for"
        assert http(server, "POST", "/v2/repository/index")[2] == [{"name": "same"}]
        assert infer(server, "same", [1.0])[0] == 404
        assert control(server, "same", "load") == (200, None)
        assert infer(server, "same", [1.0])[0] == 200
        config = '{"backend": "nothing", "max_batch_size": 1}'
        status, text = control(server, "same", "load", config=config)
        assert status == 400
        assert "unable to find backend library for backend 'nothing'" in text
        assert infer(server, "same", [1.0])[0] == 200, "a failed load leaves the old one"
        assert control(server, "nope", "load") == (
            500,
            "failed to load 'nope', failed to poll from model repository",
        )
        assert control(server, "same", "unload") == (200, None)
        assert infer(server, "same", [1.0])[0] == 404
        assert http(server, "GET", "/v2/models/same/stats")[0] == 400


def test_a_new_version_replaces_the_old_one_under_load_without_losses(tmp_path):
    folder = add_identity(tmp_path, "same", 1)
    with serving(tmp_path, models=("same",)) as server:
        answers, over = [], threading.Event()

        def ask():
            while not over.is_set():
                answers.append(infer(server, "same", [5.0]))

        callers = [threading.Thread(target=ask) for _ in range(4)]
        for caller in callers:
            caller.start()
        for version in range(2, 8):
            (folder / str(version)).mkdir()
            assert control(server, "same", "load") == (200, None)
        over.set()
        for caller in callers:
            caller.join(30)
        assert set(map(json.dumps, answers)) == {json.dumps((200, {"OUTPUT0": [5.0]}))}
        assert http(server, "GET", "/v2/models/same")[2]["versions"] == ["7"]


def test_a_server_without_explicit_control_refuses_to_load(tmp_path):
    add_identity(tmp_path, "same", 1)
    with serving(tmp_path, mode="none") as server:
        assert control(server, "same", "unload") == (
            503,
            "explicit model load / unload is not allowed if polling is enabled",
        )


@pytest.mark.parametrize("path", ["/svc/prediction", "/api/same"])
def test_a_repository_has_no_pipeline(tmp_path, path):
    add_identity(tmp_path, "same", 1)
    with serving(tmp_path, mode="none") as server:
        assert http(server, "POST", path, {"key": [], "value": []})[0] == 404
        assert http(server, "GET", "/health/ready")[0] == 200


def test_metrics_separate_models_and_versions(tmp_path):
    add_identity(tmp_path, "same", 1, 2, more="version_policy { all {} }")
    with serving(tmp_path, mode="none") as server:
        infer(server, "same", [1.0], version="1")
        text = metrics_of(server)
        assert 'nv_inference_request_success{model="same",version="1"} 1.0' in text
        assert 'nv_inference_request_success{model="same",version="2"} 0.0' in text
        lines = [line.rpartition(" ")[0] for line in text.splitlines() if line[:1] not in "#"]
        assert len(lines) == len(set(lines)), "no series is there twice"


def metrics_of(server):
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics") as answer:
        return answer.read().decode()


def test_an_ensemble_asks_its_models_and_the_latest_of_each(tmp_path):
    folder = add_identity(tmp_path, "same", 1)
    add_ensemble(tmp_path, "whole", of="same")
    with serving(tmp_path) as server:
        assert control(server, "whole", "load") == (200, None)
        assert infer(server, "whole", [1.0, 2.0]) == (200, {"OUTPUT0": [1.0, 2.0]})
        (folder / "2").mkdir()
        assert control(server, "same", "load") == (200, None)
        assert infer(server, "whole", [3.0]) == (200, {"OUTPUT0": [3.0]})
        _, _, answer = http(server, "GET", "/v2/models/stats")
        results = {(s["name"], s["version"]): s["inference_count"] for s in answer["model_stats"]}
        assert results == {("same", "2"): 1, ("whole", "1"): 2}
        assert control(server, "same", "unload") == (200, None)
        status, text = infer(server, "whole", [1.0])
        assert status == 404, text


def test_a_server_without_its_repository_is_not_live_or_ends(tmp_path):
    with pytest.raises(ConfigError, match="not a valid directory"), serving(tmp_path / "no"):
        pass
    with serving(tmp_path / "no", mode="none", exits=False) as server:
        assert http(server, "GET", "/v2/health/live")[0] == 400
        assert http(server, "GET", "/v2/health/ready")[0] == 400
        assert http(server, "GET", "/v2")[2]["name"] == "triton"


@pytest.mark.parametrize("edge", ["embedded", "gateway"])
def test_a_failed_model_is_known_but_not_available(edge, tmp_path, gateway_binary):
    add_identity(tmp_path, "good", 1)
    (add_onnx(tmp_path, "bad", ONNX) / "1" / "model.onnx").write_bytes(b"nonsense")
    with serving(tmp_path, mode="none", exits=False, server={"edge": edge}) as server:
        assert http(server, "GET", "/v2/health/ready")[0] == 400
        assert infer(server, "good", [1.0])[0] == 200
        assert infer(server, "bad", [1.0])[1] == (
            "Request for unknown model: 'bad' has no available versions"
        )
        _, _, index = http(server, "POST", "/v2/repository/index")
        assert index[0]["state"] == "UNAVAILABLE"
        assert "nonsense" not in index[0]["reason"]
        assert "\n" not in index[0]["reason"]


def test_a_models_file_is_not_read_on_the_loop(tmp_path, monkeypatch):
    loops, graph = [], ONNXRUNTIME.graph
    monkeypatch.setattr(
        ONNXRUNTIME,
        "graph",
        lambda source: loops.append(asyncio._get_running_loop()) or graph(source),
        raising=False,
    )
    add_onnx(tmp_path, "sums", ONNX)
    with serving(tmp_path, models=("sums",)):
        assert loops == [None]


def test_classes_have_the_labels_of_the_model(tmp_path):
    config = ONNX.replace('{ name: "y"', '{ label_filename: "labels.txt" name: "y"')
    names = b"one\nt\xe2\x80\xa8wo\nthree\x0b\r\n\xff\n"
    (add_onnx(tmp_path, "sums", config) / "labels.txt").write_bytes(names)
    x = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 3, 2, 9, 8, 7]}
    wanted = [{"name": "y", "parameters": {"classification": 2}}]
    with serving(tmp_path, mode="none") as server:
        for _ in range(4):  # also by the way of requests that are known
            status, _, answer = http(
                server, "POST", "/v2/models/sums/infer", {"inputs": [x], "outputs": wanted}
            )
            assert status == 200, answer
            (output,) = answer["outputs"]
            assert (output["datatype"], output["shape"]) == ("BYTES", [2, 2])
            assert output["data"] == [
                *("6.000000:1:t\u2028wo", "4.000000:2:three\x0b\r"),  # lines end with \n alone
                *("18.000000:0:one", "16.000000:1:t\u2028wo"),
            ]


SCALARS = """
backend: "onnxruntime"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }
"""


@pytest.mark.parametrize("config", [SCALARS, ""])
def test_a_model_may_have_other_shapes_than_its_callers_see(tmp_path, config):
    folder = add_onnx(tmp_path, "sums", config)
    info = onnx.helper.make_tensor_value_info
    x, y = (info(name, onnx.TensorProto.FLOAT, ["n"]) for name in "xy")
    node = onnx.helper.make_node("Add", ["x", "x"], ["y"])
    graph = onnx.helper.make_graph([node], "scalars", [x], [y])
    opset = [onnx.helper.make_opsetid("", 21)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opset, ir_version=10),
        folder / "1" / "model.onnx",
    )
    with serving(tmp_path, mode="none") as server:
        _, _, metadata = http(server, "GET", "/v2/models/sums")
        assert metadata["inputs"][0]["shape"] == [-1, 1]
        sent = {"name": "x", "datatype": "FP32", "shape": [3, 1], "data": [1, 2, 3]}
        for _ in range(3):
            status, _, answer = http(server, "POST", "/v2/models/sums/infer", {"inputs": [sent]})
            assert status == 200, answer
            assert answer["outputs"][0]["shape"] == [3, 1]
            assert answer["outputs"][0]["data"] == [2, 4, 6]


def test_ports_have_separate_addresses_and_may_be_closed(tmp_path):
    add_identity(tmp_path, "m", 1)
    hosts = {"http_host": "127.0.0.1", "rpc_host": "127.0.0.2"}
    dag = {"enable_prometheus": True, "prometheus_port": 0, "prometheus_host": "127.0.0.3"}
    for closed, names in (((), ["HTTP", "gRPC", "metrics"]), (("rpc_port",), ["HTTP", "metrics"])):
        settings = RepositorySettings(
            ControlSettings((tmp_path,)), {**SERVER, **hosts, "dag": dag}, closed=closed
        )
        service = new_service(settings)
        with contextlib.closing(LoopThread()) as thread:
            thread.run(service.start())
            try:
                ports = service._ports()
                assert sorted(ports) == names
                for name, host in (("HTTP", 1), ("gRPC", 2), ("metrics", 3)):
                    for number in (1, 2, 3) if name in ports else ():
                        with socket.socket() as caller:
                            refused = caller.connect_ex((f"127.0.0.{number}", ports[name]))
                        assert (refused == 0) == (number == host), (name, number)
            finally:
                thread.run(service.stop())


def test_health_has_a_body_for_kserves_client_and_none_for_scripts_with_curl(tmp_path):
    add_identity(tmp_path, "m", 1)
    states = {
        "/v2/health/live": b'{"live":true}',
        "/v2/health/ready": b'{"ready":true}',
        "/v2/models/m/ready": b'{"name":"m","ready":true}',
    }
    with serving(tmp_path, mode="none") as server:
        for path, state in states.items():
            url = f"http://127.0.0.1:{server.http_port}{path}"
            for agent, body in (("curl/8.5.0", b""), ("python-httpx/0.28.1", state)):
                request = urllib.request.Request(url, headers={"User-Agent": agent})
                with urllib.request.urlopen(request) as answer:
                    assert (answer.status, answer.read()) == (200, body)


def test_instances_share_resources_with_other_models(tmp_path):
    group = 'instance_group { kind: KIND_CPU rate_limiter { resources { name: "r" count: %d } } }'
    add_identity(tmp_path, "one", 1, more=group % 2)
    add_identity(tmp_path, "other", 1, more=group % 1)
    limit = {"mode": "execution_count", "resources": [{"name": "r", "count": 1}]}
    with serving(tmp_path, server={"rate_limit": limit}) as server:
        assert control(server, "other", "load")[0] == 200
        status, text = control(server, "one", "load")
        assert status == 400
        assert 'Resource count for "r" is limited to 1 which will prevent scheduling' in text
        assert infer(server, "other", [1.0]) == (200, {"OUTPUT0": [1.0]})


def test_a_port_in_use_is_an_error_with_its_name(tmp_path):
    add_identity(tmp_path, "m", 1)
    with serving(tmp_path, mode="none") as server:
        settings = {**SERVER, "rpc_port": server.rpc_port}
        other = new_service(RepositorySettings(ControlSettings((tmp_path,)), settings))
        with contextlib.closing(LoopThread()) as thread:
            with pytest.raises(PortInUseError) as caught:
                thread.run(other.start())
            thread.run(other.stop())
    assert (caught.value.key, caught.value.port) == ("rpc_port", settings["rpc_port"])


def test_servers_share_a_port_if_both_are_configured(tmp_path):
    add_identity(tmp_path, "m", 1)
    shared = {"reuse_port": True}
    with serving(tmp_path, mode="none", server=shared) as server:
        ports = {"http_port": server.http_port, "rpc_port": server.rpc_port}
        with serving(tmp_path, mode="none", server={**shared, **ports}) as other:
            assert (other.http_port, other.rpc_port) == (server.http_port, server.rpc_port)
            assert infer(other, "m", [1.0]) == (200, {"OUTPUT0": [1.0]})


def test_a_server_with_a_model_that_has_no_version_is_not_ready(tmp_path):
    add_identity(tmp_path, "m", 1)
    add_identity(tmp_path, "none")
    with serving(tmp_path, mode="none", exits=False) as server:
        assert http(server, "GET", "/v2/health/ready")[0] == 400
        assert infer(server, "m", [1.0])[0] == 200
    with serving(tmp_path) as server:
        assert control(server, "none", "load") == (
            400,
            "load failed for model 'none': at least one version must be available under the "
            "version policy of model 'none'\n",
        )
