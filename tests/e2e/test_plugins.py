"""A server with plug-ins of a package that is installed beside it: config.yml names them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import plugins
import pytest
from hatchling.builders.wheel import WheelBuilder
from served import PATIENCE_S, ServedWithClient, free_port

SCRIPT = """
import sys

import numpy as np

from pipeline import Op, PipelineServer, RequestOp, ResponseOp


class Calculated(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        ((_, answer),) = input_dicts.items()
        return {"x": np.array([float(answer["x"])])}, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"x": str(fetch_dict["y"][0]), "of": repr(fetch_dict.get("of"))}, None, ""


request = RequestOp()
doubled = Calculated("doubled", input_ops=[request])
added = Calculated("added", input_ops=[doubled])
server = PipelineServer("toys")
server.set_response_op(ResponseOp(input_ops=[added]))
server.prepare_server(sys.argv[1] + "/config.yml")
server.run_server()
"""

OPS = {
    "doubled": {"local_service_conf": {"model_config": "m.toy", "engine": "doubler", "times": 2}},
    "added": {"client_type": "adder", "server_endpoints": ["one:1", "two:2"], "amount": 0.5},
}

Serve = Callable[..., ServedWithClient]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [*plugins.install(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    (tmp_path / "m.toy").touch()
    servers: list[ServedWithClient] = []

    def serve(**config: Any) -> ServedWithClient:
        servers.append(ServedWithClient(tmp_path, SCRIPT, config))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


@pytest.mark.parametrize("is_thread_op", [True, False], ids=["threads", "processes"])
def test_an_engine_and_a_client_type_are_named_with_their_options(installed, serve, is_thread_op):
    server = serve(op=OPS, dag={"is_thread_op": is_thread_op}).wait_until_ready()
    assert server.get({"x": "3"}) == {"x": "12.5", "of": "('one:1', 'two:2')"}
    assert "unknown key" not in server.log


def test_an_engine_is_found_by_the_suffix_of_its_files(installed, serve):
    by_suffix = {"local_service_conf": {"model_config": "m.toy"}}
    server = serve(op={**OPS, "doubled": by_suffix}).wait_until_ready()
    assert server.get({"x": "3"})["x"] == "6.5"


def test_all_kinds_of_plug_ins_work_in_one_server(installed, serve, tmp_path):
    port, lines = free_port(), tmp_path / "lines.jsonl"
    server = serve(
        op={
            "doubled": {**OPS["doubled"], "concurrency": 2, "batching": "pinned", "pinned_to": 1},
            "added": {**OPS["added"], "workers": "inline", "at_once": 4},
        },
        filters={"counting": {"header": "x-tenant"}},
        sinks={"json_lines": {"path": str(lines)}},
        frontends={"lines": {"port": port, "end": "!"}},
        dag={"forward_headers": "x-tenant"},
    ).wait_until_ready()
    assert server.get({"x": "3"}) == {"x": "12.5", "of": "('one:1', 'two:2')", "calls": "1"}
    assert server.get({"x": "1"})["calls"] == "2"
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as caller:
        caller.sendall(b"3\n")  # as `line`, and these Ops want x
        assert b"KeyError" in caller.makefile("rb").readline()
    server.wait_for(lambda: lines.exists() and lines.read_text().count('"request"') == 3)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["op"] for row in rows if row["kind"] == "op"].count("added") == 2
    assert [row["err_no"] for row in rows if row["kind"] == "request"].count(0) == 2
    assert "unknown key" not in server.log


def test_the_package_of_plug_ins_can_be_built(tmp_path):
    (built,) = WheelBuilder(str(plugins.PACKAGE)).build(directory=str(tmp_path))
    with ZipFile(built) as wheel:
        held = {name for name in wheel.namelist() if name.endswith(".py")}
    assert held == {module.name for module in plugins.PACKAGE.glob("*.py")}


def test_without_the_package_the_names_are_unknown(serve):
    server = serve(op=OPS)
    status, _, stderr = server.outcome()
    assert status == 1
    assert "expected onnx or paddle or openvino, found 'doubler' (str)" in stderr


def test_check_reports_an_invalid_option(installed, tmp_path):
    config = tmp_path / "config.yml"
    config.write_text(
        "rpc_port: 0\n"
        "op:\n"
        "  doubled:\n"
        "    local_service_conf: {engine: doubler, times: 0}\n"
        "  added:\n"
        "    client_type: adder\n"
    )
    checked = subprocess.run(
        [sys.executable, "-m", "pipeline", "check", str(config)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert checked.returncode == 1
    assert f"{config}:4: op.doubled.local_service_conf.times: expected int >= 1" in checked.stdout
    assert f"{config}:5: op.added.amount: expected number, found nothing" in checked.stdout
