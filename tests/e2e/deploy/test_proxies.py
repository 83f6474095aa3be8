"""deploy/proxies: nginx, HAProxy and Envoy, where installed, in front of two servers."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from doubles import wait_until
from paths import ROOT
from rolling import Load
from served import PATIENCE_S, Served, free_port, is_open
from websockets.sync.client import connect

from pipeline.proto import pipeline_service_pb2 as pb
from pipeline.proto import pipeline_service_pb2_grpc as stubs

COMMANDS = {
    "nginx.conf": ("nginx", "-g", "daemon off; error_log stderr;", "-p", "{folder}", "-c"),
    "haproxy.cfg": ("haproxy", "-db", "-f"),
    "envoy.yaml": ("envoy", "--disable-hot-restart", "--log-level", "warn", "-c"),
}
GRPC_PORT = {"nginx.conf": 8081}
SCRIPT = """
import asyncio
from pathlib import Path
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

HERE = Path(__file__).parent

class Say(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        return {"release": HERE.name}

class Ticks(Op):
    async def process(self, feed_batch, log_id):
        yield {"tick": "1"}
        while not (HERE.parent / "heard").exists():
            await asyncio.sleep(0.01)
        yield {"tick": "2"}

server = PipelineServer("rolling")
server.set_response_op(ResponseOp(Say("say", RequestOp())))
server.add_pipeline("ticks", ResponseOp(Ticks("ticks", RequestOp())))
server.prepare_server(str(HERE / "config.yml"))
server.run_server()
"""


@dataclass
class Edge:
    """A proxy that runs, and the servers behind it."""

    folder: Path
    http: int
    grpc: int
    servers: dict[str, Served]

    def start(self, name: str) -> Served:
        """Start a server, on the ports that it had before."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        old = self.servers.get(name)
        ports = dict(zip(("rpc_port", "http_port"), old.ports, strict=True)) if old else {}
        server = Served(
            folder, SCRIPT, {"drain_delay": 1500, "op": {"ticks": {"concurrency": 4}}, **ports}
        )
        self.servers[name] = server
        return server.wait_until_ready()

    def heard(self) -> None:
        """Let streams continue."""
        (self.folder / "heard").touch()


@pytest.fixture(params=COMMANDS)
def edge(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Edge]:
    command = COMMANDS[request.param]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    edge = Edge(tmp_path, free_port(), free_port(), {})
    try:
        one, two = edge.start("one"), edge.start("two")
        ports = {8080: edge.http, 8081: edge.grpc, 18070: one.rpc_port, 18071: one.http_port}
        ports |= {28070: two.rpc_port, 28071: two.http_port}
        if request.param not in GRPC_PORT:
            edge.grpc = edge.http
        with proxy(request.param, tmp_path, ports):
            wait_until(lambda: is_open(edge.http) and is_open(edge.grpc), 3 * PATIENCE_S)
            yield edge
    finally:
        for server in edge.servers.values():
            server.close()


@contextmanager
def proxy(name: str, folder: Path, ports: dict[int, int]) -> Iterator[None]:
    """The proxy, with its configuration for these ports."""
    text = (ROOT / "deploy" / "proxies" / name).read_text()
    for usual, port in ports.items():
        for before in ("127.0.0.1:", "port_value: ", "port "):
            text = text.replace(f"{before}{usual}", f"{before}{port}")
    (folder / name).write_text(text)
    command = [word.format(folder=folder) for word in COMMANDS[name]]
    with (folder / "proxy.log").open("w") as log:
        process = subprocess.Popen([*command, str(folder / name)], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def test_streams_sockets_and_large_bodies_pass(edge: Edge):
    with closing(http.client.HTTPConnection("127.0.0.1", edge.http, timeout=PATIENCE_S)) as caller:
        _pass(edge, caller)


def _pass(edge: Edge, connection: http.client.HTTPConnection) -> None:
    body = json.dumps({"key": ["x"], "value": ["y" * 2_000_000]})
    connection.request("POST", "/rolling/prediction", body)
    assert json.loads(connection.getresponse().read())["err_no"] == 0
    connection.request(
        "POST",
        "/ticks/prediction",
        '{"key": ["x"], "value": ["y"]}',
        {"Accept": "text/event-stream"},
    )
    events = connection.getresponse()
    assert b'"value":["1"]' in events.readline()
    with (
        connect(f"ws://127.0.0.1:{edge.http}/api/ticks/ws", proxy=None) as socket,
        grpc.insecure_channel(f"127.0.0.1:{edge.grpc}") as channel,
    ):
        socket.send('{"data": {"x": "y"}}')
        assert json.loads(socket.recv(PATIENCE_S))["data"] == {"tick": "1"}
        request = pb.Request(key=["x"], value=["y"], name="ticks", method="prediction")
        parts = stubs.PipelineServiceStub(channel).inference_stream(request, timeout=PATIENCE_S)
        assert next(parts).value == ["1"]
        edge.heard()
        assert [part.value for part in parts] == [["2"]]
        assert json.loads(socket.recv(PATIENCE_S))["data"] == {"tick": "2"}
    assert b'"value":["2"]' in events.read()


def test_servers_restart_in_turn_without_a_failed_request(edge: Edge):
    with Load(edge.grpc, edge.http) as load:
        load.wait_for("one")
        load.wait_for("two")
        for name, other in (("one", "two"), ("two", "one")):
            server = edge.servers[name]
            server.process.send_signal(signal.SIGTERM)
            assert server.ends() == 0
            load.wait_for_only(other)
            edge.start(name)
            for counts in load.answers.values():
                counts.clear()  # the proxy has to find the new one
            load.wait_for(name)
    assert load.failures == []
