"""The services that a server starts for its models: used, killed, and ended with it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doubles import on_loop, wait_until
from model_files import CONF, save_model
from served import PATIENCE_S, ServedWithClient, no_leftovers

from pipeline import Op, RequestOp
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.errors import InitError
from pipeline.op import configure_op
from pipeline.runtime.model_services import ModelServices
from pipeline.runtime.sidecar import _StderrLogger

SCRIPT = """
import sys

import numpy as np

from pipeline import Op, PipelineServer, RequestOp, ResponseOp


class Doubles(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        ((_, pairs),) = input_dicts.items()
        return {"the_x": np.full((1, 3), float(pairs["v"]), np.float32)}, False, None, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return {"y": str(fetch_data["the_y"][0, 0])}, None, ""


server = PipelineServer("svc")
server.set_response_op(ResponseOp([Doubles("model", [RequestOp()])]))
server.prepare_server(f"{sys.argv[1]}/config.yml")
server.run_server()
"""


def config_of(client_type: str = "brpc", devices: str = "", **more: Any) -> dict[str, Any]:
    local = {
        "client_type": client_type,
        "model_config": "toy",
        "device_type": 0,
        "devices": devices,
    }
    return {"op": {"model": {"local_service_conf": local, "timeout": 20_000}}, **more}


@contextlib.contextmanager
def served(folder: Path, config: dict[str, Any]) -> Iterator[ServedWithClient]:
    """A server whose Op doubles a number, by a model in a service."""
    save_model(folder / "toy")
    with running(folder, config) as server:
        yield server


@contextlib.contextmanager
def running(
    folder: Path, config: dict[str, Any], script: str = SCRIPT
) -> Iterator[ServedWithClient]:
    """A server with its temporary files in `folder`."""
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    with no_leftovers(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        server = ServedWithClient(folder, script, config)
        try:
            yield server
        finally:
            server.close()


def temporary_files(folder: Path) -> list[str]:
    return os.listdir(folder / "temporary")


def services_of(server: ServedWithClient) -> dict[int, str]:
    """{pid: its devices} of the services that run."""
    collected = {}
    for pid in server.family:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"pipeline.serve" in words:
                conf = words[words.index(b"--local_service_conf") + 1]
                collected[pid] = json.loads(conf)["devices"]
    return collected


def answers(server: ServedWithClient) -> bool:
    """Whether a request succeeds; one that does not has an error that says why."""
    response = server.ask({"v": "3"})
    if response.err_no == 0:
        return list(response.value) == ["6.0"]
    assert response.err_no in (6000, 9000), response.err_msg
    return False


@pytest.mark.parametrize(
    "config",
    [
        config_of("brpc"),
        config_of("grpc"),
        config_of("brpc", dag={"is_thread_op": False}),
        config_of("grpc", dag={"is_thread_op": False}),
        config_of("brpc", dag={"is_thread_op": False, "start_method": "spawn"}),
        config_of("brpc", build_dag_each_worker=True, worker_num=2),
    ],
    ids=["brpc", "grpc", "brpc processes", "grpc processes", "spawn", "copies"],
)
def test_a_model_is_served_and_all_processes_end_with_the_server(tmp_path, config):
    with served(tmp_path, config) as server:
        server.wait_until_ready()
        assert list(services_of(server).values()) == [""]
        assert server.get({"v": "3"}) == {"y": "6.0"}
        server.process.send_signal(signal.SIGTERM)
        assert server.outcome() == (0, "", "")
        assert server.family == set()
        assert "its service is ready at 127.0.0.1:" in server.log
        assert temporary_files(tmp_path) == []


def test_a_model_without_aliases_is_called_with_its_own_names(tmp_path):
    save_model(tmp_path / "toy", with_conf=False)
    with running(tmp_path, config_of(), SCRIPT.replace("the_", "")) as server:
        assert server.wait_until_ready().get({"v": "3"}) == {"y": "6.0"}


def test_a_client_config_of_the_op_s_own_is_used(tmp_path):
    """It calls the model's x `my_x`; the service knows the tensor by the name x that goes along."""
    conf = CONF.replace('"the_x"', '"my_x"')
    (tmp_path / "serving_client_conf.prototxt").write_text(conf)
    config = config_of()
    config["op"]["model"]["client_config"] = "serving_client_conf.prototxt"
    save_model(tmp_path / "toy")
    with running(tmp_path, config, SCRIPT.replace("the_x", "my_x")) as server:
        assert server.wait_until_ready().get({"v": "3"}) == {"y": "6.0"}
        assert temporary_files(tmp_path) == []


def test_each_device_has_a_service(tmp_path):
    with served(tmp_path, config_of(devices="0,1")) as server:
        server.wait_until_ready()
        assert sorted(services_of(server).values()) == ["0", "1"]
        assert all(answers(server) for _ in range(10))
        (folder,) = (tmp_path / "temporary").iterdir()
        assert [str(file.relative_to(folder)) for file in folder.rglob("*.*")] == [
            "0/serving_client_conf.prototxt"
        ]


def kill_the_service_of(server: ServedWithClient) -> None:
    (pid,) = services_of(server)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pid not in services_of(server))


@pytest.mark.parametrize("client_type", ["brpc", "grpc"])
def test_a_killed_service_restarts(tmp_path, client_type):
    with served(tmp_path, config_of(client_type)) as server:
        server.wait_until_ready()
        for _ in range(2):
            kill_the_service_of(server)
            wait_until(lambda: answers(server), PATIENCE_S)
        assert "[model] its service was killed by SIGKILL: it is restarted" in server.log


def test_services_end_when_their_server_is_killed(tmp_path):
    with served(tmp_path, config_of()) as server:
        server.wait_until_ready()
        server.process.kill()
        wait_until(lambda: server.family == set(), PATIENCE_S)


def test_a_model_that_cannot_be_loaded_is_an_error_at_the_start(tmp_path):
    model = save_model(tmp_path / "toy")
    (model / "model.onnx").write_bytes(b"garbage")
    with running(tmp_path, config_of()) as server:
        status, _, stderr = server.outcome()
    assert status == 1
    assert temporary_files(tmp_path) == []
    assert "op.model.local_service_conf: the model's service does not start: " in stderr
    assert "it is not an ONNX file" in stderr


# In this process ------------------------------------------------------------------------------


def op_of(tmp_path: Path, client_config: str | None = None, **local: Any) -> Op:
    op = Op("model", [RequestOp()], client_config=client_config)
    conf = {"client_type": "brpc", "model_config": "toy", **local}
    config = load_config(yml_dict={"rpc_port": 0, "op": {"model": {"local_service_conf": conf}}})
    configure_op(op, resolve_op("model", op.pipeline_given, config))
    return op


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_ports_are_known_early_and_refuse_until_the_services_run(tmp_path, open_files):
    services = ModelServices(dict.fromkeys([op_of(tmp_path, devices="0,1")], tmp_path))
    services.open()
    endpoints = services.addresses["model"].endpoints
    assert len(set(endpoints)) == 2
    for endpoint in endpoints:
        host, _, port = endpoint.partition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
    asyncio.run(services.stop())
    asyncio.run(services.stop())


@pytest.mark.parametrize("local", [{"client_type": "local_predictor"}, {"model_config": None}])
def test_an_op_without_a_service_starts_none(tmp_path, local):
    services = ModelServices(dict.fromkeys([op_of(tmp_path, **local)], tmp_path))
    services.open()
    assert services.addresses == {}


def test_the_folder_for_clients_is_locked_and_removed_with_the_services(
    tmp_path, temporary, open_files
):
    services = ModelServices(dict.fromkeys([op_of(tmp_path)], tmp_path))
    services.open()
    conf = services.addresses["model"].client_config
    assert conf.parent.parent == temporary
    folder = os.open(conf.parent, os.O_RDONLY)
    with pytest.raises(BlockingIOError):  # what clears old files away keeps off
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(folder)
    services.close()
    services.close()
    assert list(temporary.iterdir()) == []


def test_no_folder_is_made_where_the_op_has_a_client_config(tmp_path, temporary):
    services = ModelServices(dict.fromkeys([op_of(tmp_path, client_config="conf")], tmp_path))
    services.open()
    assert services.addresses["model"].client_config is None
    assert list(temporary.iterdir()) == []
    services.close()


def test_without_a_temporary_folder_no_port_is_opened(tmp_path, temporary, open_files):
    temporary.rmdir()
    ops = op_of(tmp_path, client_config="c"), op_of(tmp_path)
    services = ModelServices(dict.fromkeys(ops, tmp_path))
    with pytest.raises(InitError, match="model services need a temporary folder"):
        services.open()
    assert services.addresses == {}


@on_loop
async def test_a_service_without_its_model_gives_the_reason(tmp_path, open_files):
    services = ModelServices(dict.fromkeys([op_of(tmp_path)], tmp_path))
    services.open()
    try:
        with pytest.raises(InitError, match=r"--model: .*toy does not exist"):
            await services.start()
    finally:
        await services.stop()


@on_loop
async def test_a_cancelled_start_leaves_nothing(tmp_path, temporary, open_files):
    save_model(tmp_path / "toy")
    services = ModelServices(dict.fromkeys([op_of(tmp_path)], tmp_path))
    services.open()
    starting = asyncio.ensure_future(services.start())
    await asyncio.sleep(0)
    starting.cancel()
    await services.stop()
    assert starting.cancelled()
    assert list(temporary.iterdir()) == []


def test_the_output_of_a_service_is_logged_at_its_level(caplog):
    caplog.set_level("INFO", "pipeline")
    log = _StderrLogger("model")
    log.write(b"WARNING a: b\nplain")
    log.write(b" text \xff\n\nERROR c\n" + b"x" * 20_000)
    log.write(b"the end")
    log.close()
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [
        ("WARNING", "[model] a: b"),
        ("INFO", "[model] plain text \\xff"),
        ("ERROR", "[model] c"),
        ("INFO", "[model] " + "x" * 20_000),
        ("INFO", "[model] the end"),
    ]
    assert log.last_line == "the end"
