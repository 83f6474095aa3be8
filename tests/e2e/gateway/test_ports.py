"""One port for HTTP and gRPC, and one for admins, of a real server with its gateway."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from served import free_port

from pipeline import Op, PipelineClient, PipelineServer, RequestOp, ResponseOp
from pipeline.errors import ConfigError
from pipeline.proto import inference_v2_pb2 as v2

SERVICE = "/inference.GRPCInferenceService"


class Echo(Op):
    def preprocess(self, input_dicts):
        return dict(input_dicts["@DAGExecutor"])


def server_for(**config: object) -> PipelineServer:
    server = PipelineServer("svc")
    server.set_response_op(ResponseOp(Echo("echo", RequestOp())))
    server.prepare_server(yml_dict=config)
    return server


@pytest.fixture(scope="module")
def ports() -> tuple[int, int]:
    return free_port(), free_port()


@pytest.fixture(scope="module")
def server(ports: tuple[int, int]) -> Iterator[PipelineServer]:
    one, admin = ports
    config = {"rpc_port": one, "http_port": one, "admin_port": admin, "edge": "gateway"}
    with server_for(**config) as running:
        yield running


def status_of(port: int, path: str, body: bytes | None = None) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout=30) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_one_port_takes_http_and_grpc(server: PipelineServer, ports: tuple[int, int]) -> None:
    assert (server.rpc_port, server.http_port) == (ports[0], ports[0])
    client = PipelineClient()
    client.connect([f"127.0.0.1:{ports[0]}"])
    assert client.predict(feed_dict={"x": "1"}, fetch=["x"]).value == ["1"]
    body = json.dumps({"key": ["x"], "value": ["1"]}).encode()
    assert status_of(ports[0], "/svc/prediction", body) == 200


@pytest.mark.parametrize("path", ["/", "/metrics", "/status.json", "/v2/models/svc/stats"])
def test_admin_paths_are_served_on_the_admin_port_only(
    server: PipelineServer, ports: tuple[int, int], path: str
) -> None:
    assert (status_of(ports[0], path), status_of(ports[1], path)) == (404, 200)


def test_methods_for_admins_are_on_their_port_alone(
    server: PipelineServer, ports: tuple[int, int]
) -> None:
    collected = []
    for port in ports:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.unary_unary(f"{SERVICE}/ModelStatistics")
            try:
                ask(v2.ModelStatisticsRequest(name="svc").SerializeToString(), timeout=30)
                collected.append(grpc.StatusCode.OK)
            except grpc.RpcError as refused:
                collected.append(refused.code())
    assert collected == [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OK]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"rpc_port": 2000, "http_port": 2000}, "but with edge: gateway"),
        (
            {"rpc_port": 2000, "admin_port": 2000, "edge": "gateway"},
            "other than rpc_port and http_port",
        ),
    ],
)
def test_ports_that_cannot_be(config: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        server_for(**config)


def test_a_port_for_admins_is_the_gateways() -> None:
    with pytest.raises(ConfigError, match="admin_port: it needs the gateway on all ports"):
        server_for(rpc_port=0, http_port=0, admin_port=0).start()
