"""`access` of a real server: which callers of HTTP and gRPC it admits, and under which names."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.cli.callers import callers
from pipeline.errors import ConfigError
from pipeline.proto import inference_v2_pb2 as v2

SERVICE = "/inference.GRPCInferenceService"
BODY = json.dumps({"key": ["x"], "value": ["1"]}).encode()


class CallerName(Op):
    def preprocess(self, input_dicts, *, context):
        return {"who": context.headers.get("x-pipeline-caller", "nobody")}


def server_for(config: dict[str, object]) -> PipelineServer:
    server = PipelineServer("svc")
    server.set_response_op(ResponseOp(CallerName("who", RequestOp())))
    server.prepare_server(yml_dict={"http_port": 0, "rpc_port": 0, **config})
    return server


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    file = tmp_path_factory.mktemp("access") / "callers.json"
    with pytest.MonkeyPatch.context() as patch:
        reported: list[str] = []
        patch.setattr("sys.stdout.write", reported.append)
        assert callers(["--file", str(file), "add", "alice"]) == 0
    return file, reported[0].strip()


@pytest.fixture(scope="module")
def server(token: tuple[Path, str]) -> Iterator[PipelineServer]:
    config = {
        "edge": "gateway",
        "dag": {"forward_headers": "x-pipeline-caller"},
        "access": {"callers_file": str(token[0]), "anonymous": []},
    }
    with server_for(config) as running:
        yield running


def status_of(server: PipelineServer, path: str, **headers: str) -> tuple[int, bytes]:
    url = f"http://127.0.0.1:{server.http_port}{path}"
    Request = urllib.request.Request(url, BODY, headers)
    try:
        with urllib.request.urlopen(Request, timeout=30) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


def test_an_authenticated_caller_over_http_is_known_to_the_op(server, token) -> None:
    assert status_of(server, "/svc/prediction")[0] == 401
    fields = {"authorization": f"Bearer {token[1]}", "x-pipeline-caller": "root"}
    status, body = status_of(server, "/svc/prediction", **fields)
    assert (status, json.loads(body)["value"]) == (200, ["alice"])
    assert status_of(server, "/v2/repository/models/svc/unload", **fields)[0] == 403


def test_an_authenticated_caller_over_grpc_is_admitted(server, token) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:

        def code(method: str, *metadata: tuple[str, str]) -> grpc.StatusCode:
            ask = channel.unary_unary(f"{SERVICE}/{method}")
            try:
                ask(v2.ServerReadyRequest().SerializeToString(), metadata=metadata, timeout=30)
            except grpc.RpcError as refused:
                return refused.code()
            return grpc.StatusCode.OK

        known = ("x-api-key", token[1])
        assert code("ServerReady") is grpc.StatusCode.OK
        assert code("ServerMetadata") is grpc.StatusCode.UNAUTHENTICATED
        assert code("ServerMetadata", known) is grpc.StatusCode.OK
        assert code("RepositoryIndex", known) is grpc.StatusCode.PERMISSION_DENIED


def test_without_the_gateway_it_does_not_start(token) -> None:
    with pytest.raises(ConfigError, match="set edge: gateway"):
        server_for({"access": {"callers_file": str(token[0]), "anonymous": []}}).start()
