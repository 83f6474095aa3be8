"""The services that a server starts for its models: used, killed, and ended with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doubles import wait_until
from served import PATIENCE_S, ServedWithClient, nothing_more
from test_serve import CONF, save_model

from pipeline import Op, RequestOp
from pipeline.config import load_config, resolve_op
from pipeline.errors import InitError
from pipeline.model_services import ModelServices, _Relogger
from pipeline.op import configure_op

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

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
    op = {"local_service_conf": local, "client_config": "toy", "timeout": 20_000}
    return {"op": {"model": op}, **more}


@contextlib.contextmanager
def served(folder: Path, config: dict[str, Any]) -> Iterator[ServedWithClient]:
    """A server whose Op doubles a number, by a model in a service."""
    (save_model(folder / "toy") / "serving_client_conf.prototxt").write_text(CONF)
    with nothing_more():
        server = ServedWithClient(folder, SCRIPT, config)
        try:
            yield server
        finally:
            server.close()


def services_of(server: ServedWithClient) -> dict[int, str]:
    """{pid: its devices} of the services that run."""
    found = {}
    for pid in server.family:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"pipeline.serve" in words:
                conf = words[words.index(b"--local_service_conf") + 1]
                found[pid] = json.loads(conf)["devices"]
    return found


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
def test_a_model_is_served_and_everything_ends_with_the_server(tmp_path, config):
    with served(tmp_path, config) as server:
        server.wait_until_ready()
        assert list(services_of(server).values()) == [""]
        assert server.get({"v": "3"}) == {"y": "6.0"}
        server.process.send_signal(signal.SIGTERM)
        assert server.outcome() == (0, "", "")
        assert server.family == set()
        assert "its service is ready at 127.0.0.1:" in server.log


def test_each_device_has_a_service(tmp_path):
    with served(tmp_path, config_of(devices="0,1")) as server:
        server.wait_until_ready()
        assert sorted(services_of(server).values()) == ["0", "1"]
        assert all(answers(server) for _ in range(10))


def kill_the_service_of(server: ServedWithClient) -> None:
    (pid,) = services_of(server)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pid not in services_of(server))


@pytest.mark.parametrize("client_type", ["brpc", "grpc"])
def test_a_service_that_is_killed_comes_back(tmp_path, client_type):
    with served(tmp_path, config_of(client_type)) as server:
        server.wait_until_ready()
        for _ in range(2):
            kill_the_service_of(server)
            wait_until(lambda: answers(server), PATIENCE_S)
        assert "[model] its service was killed by SIGKILL: it is started anew" in server.log


def test_services_end_when_their_server_is_killed(tmp_path):
    with served(tmp_path, config_of()) as server:
        server.wait_until_ready()
        server.process.kill()
        wait_until(lambda: server.family == set(), PATIENCE_S)


def test_a_model_that_cannot_be_loaded_is_an_error_at_the_start(tmp_path):
    with served(tmp_path, config_of()) as server:
        server.process.kill()
        server.process.wait()
    (tmp_path / "toy" / "model.onnx").write_bytes(b"garbage")
    with nothing_more():
        server = ServedWithClient(tmp_path, SCRIPT, config_of())
        try:
            status, _, stderr = server.outcome()
        finally:
            server.close()
    assert status == 1
    assert "op.model.local_service_conf: the model's service does not start: " in stderr
    assert "it is no ONNX file" in stderr


# In this process ------------------------------------------------------------------------------


def op_of(tmp_path: Path, **local: Any) -> Op:
    op = Op("model", [RequestOp()])
    conf = {"client_type": "brpc", "model_config": "toy", **local}
    config = load_config(yml_dict={"rpc_port": 0, "op": {"model": {"local_service_conf": conf}}})
    configure_op(op, resolve_op("model", op.pipeline_given, config))
    return op


def test_ports_are_known_before_and_refuse_until_the_services_run(tmp_path, open_files):
    services = ModelServices([op_of(tmp_path, devices="0,1")], tmp_path)
    services.open()
    endpoints = services.endpoints["model"]
    assert len(set(endpoints)) == 2
    for endpoint in endpoints:
        host, _, port = endpoint.partition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
    asyncio.run(services.stop())
    asyncio.run(services.stop())


@pytest.mark.parametrize("local", [{"client_type": "local_predictor"}, {"model_config": None}])
def test_an_op_that_wants_no_service_gets_none(tmp_path, local):
    services = ModelServices([op_of(tmp_path, **local)], tmp_path)
    services.open()
    assert services.endpoints == {}


def test_a_service_that_is_refused_its_model_says_so(tmp_path, open_files):
    async def test():
        services = ModelServices([op_of(tmp_path)], tmp_path)
        services.open()
        try:
            with pytest.raises(InitError, match=r"--model: .*toy does not exist"):
                await services.start()
        finally:
            await services.stop()

    asyncio.run(test())


def test_a_start_that_is_given_up_leaves_nothing(tmp_path, open_files):
    async def test():
        save_model(tmp_path / "toy")
        services = ModelServices([op_of(tmp_path)], tmp_path)
        services.open()
        starting = asyncio.ensure_future(services.start())
        await asyncio.sleep(0)
        starting.cancel()
        await services.stop()
        assert starting.cancelled()

    asyncio.run(test())


def test_what_a_service_says_is_logged_at_its_level(caplog):
    caplog.set_level("INFO", "pipeline")
    log = _Relogger("model")
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
