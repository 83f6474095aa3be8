"""Parts of v2 that need a header's value: over HTTP, in the lane, and gRPC."""

from __future__ import annotations

import http.client
import json

import grpc
import numpy as np
import pytest
from repositories import add_identity, serving

from pipeline.cli.repository import repository_parser, settings_of
from pipeline.errors import ConfigError
from pipeline.frontends.v2.restrictions import api_of
from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.v2.codec import add_tensor

SERVICE = "/inference.GRPCInferenceService"
KEY = {"apis": ["inference", "model-repository"], "header": "Admin-Key", "value": "opens"}
RESTRICTED = {"restricted_apis": {"http": [KEY], "grpc": [{**KEY, "header": "admin-key"}]}}
BODY = json.dumps(
    {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}
)


@pytest.fixture
def server(tmp_path):
    add_identity(tmp_path, "same", 1)
    with serving(tmp_path, mode="none", server=RESTRICTED) as server:
        yield server


def statuses_of(server, method, path, headers=(), body=BODY, times=1):
    """The statuses of requests that are sent one after the other, and the last answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    statuses = []
    for _ in range(times):
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        statuses.append(answer.status)
        said = answer.read()
    connection.close()
    return statuses, said


def test_restricted_apis_need_the_header_over_http(server):
    infer, knows = "/v2/models/same/infer", {"admin-key": "opens"}
    refused = {"error": "This API is restricted, expecting header 'admin-key'"}
    for headers in ({}, {"Admin-Key": "open"}, {"Admin-Key": ""}, {"Admin-Key": "opens x"}):
        statuses, said = statuses_of(server, "POST", infer, headers, times=3)
        assert (statuses, json.loads(said)) == ([403] * 3, refused)
    for spaces in ("", " ", "\t "):  # a header has its value without them
        headers = {"admin-key": f"opens{spaces}"}
        assert statuses_of(server, "POST", infer, headers, times=3)[0] == [200] * 3
    assert statuses_of(server, "POST", "/v2/repository/index", body="")[0] == [403]
    assert statuses_of(server, "POST", "/v2/repository/index", knows, body="")[0] == [200]
    for path in ("/v2", "/v2/health/live", "/v2/models/same", "/v2/models/same/config"):
        assert statuses_of(server, "GET", path, body=None)[0] == [200]


def test_equivalent_paths_are_also_restricted(tmp_path):
    add_identity(tmp_path, "same", 1)
    keys = [
        {"apis": ["statistics"], "header": "figures", "value": "a"},
        {"apis": ["model-repository"], "header": "models", "value": "b"},
    ]
    of_server = {"restricted_apis": {"http": keys}, "status_page": True}
    figures, models = {"figures": "a"}, {"models": "b"}
    with serving(tmp_path, mode="none", server=of_server) as server:

        def status(path, headers):
            return statuses_of(server, "GET", path, headers, body=None)[0]

        for path in ("/metrics", "/metrics/", "/metric%73", "/models.json", "/models%2Ejson"):
            assert status(path, {}) == [403], path
        assert (status("/metrics", models), status("/metrics", figures)) == ([403], [200])
        assert (status("/models.json", models), status("/models.json", figures)) == ([403], [403])
        assert status("/models.json", {**figures, **models}) == [200]
        assert status("/", {}) == [200]  # the page itself, which asks for the figures


@pytest.mark.parametrize("edge", ["embedded", "gateway"])
def test_restricted_apis_need_the_header_over_grpc(edge, tmp_path, gateway_binary):
    add_identity(tmp_path, "same", 1)
    with serving(tmp_path, mode="none", server={**RESTRICTED, "edge": edge}) as server:
        check_grpc_needs_the_value(server)


def check_grpc_needs_the_value(server):
    message = pb.ModelInferRequest(model_name="same")
    value = np.ones((1, 1), np.float32)
    add_tensor(message.inputs, message.raw_input_contents, "INPUT0", value)
    knows, sent = [("admin-key", "opens")], message.SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        infer = channel.unary_unary(f"{SERVICE}/ModelInfer")
        stream = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")
        for metadata in (None, [("admin-key", "no")]):
            for call in (
                infer.future(sent, metadata=metadata),
                stream(iter([sent]), metadata=metadata),
            ):
                assert call.code() is grpc.StatusCode.UNAVAILABLE
                text = "This protocol is restricted, expecting header 'admin-key'"
                assert call.details() == text
        for _ in range(3):
            assert infer(sent, metadata=knows)
        (answer,) = stream(iter([sent]), metadata=knows)
        assert pb.ModelStreamInferResponse.FromString(answer).error_message == ""
        assert channel.unary_unary(f"{SERVICE}/ServerReady")(b"")


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v2", "metadata"),
        ("/v2/models/m", "metadata"),
        ("/v2/models/m/versions/1", "metadata"),
        ("/v2/models/m/versions/1/ready", "health"),
        ("/v2/health/live", "health"),
        ("/v2/models/stats", "statistics"),
        ("/v2/models/m/config", "model-config"),
        ("/v2/models/m/versions/3/generate_stream", "inference"),
        ("/v2/models/m/trace/setting", "trace"),
        ("/v2/logging", "logging"),
        ("/v2/cudasharedmemory/region/r/register", "shared-memory"),
        ("/v2/repository/models/m/unload", "model-repository"),
        ("/svc/prediction", ""),
    ],
)
def test_each_path_is_of_one_part(path, api):
    assert api_of(path) == api


def test_flags_are_tritons(tmp_path):
    flags = ["--model-repository", str(tmp_path), "--http-restricted-api=health,trace:k=v=w"]
    flags.append("--grpc-restricted-protocol=logging:k=v")
    said = settings_of(repository_parser().parse_args(flags)).server["restricted_apis"]
    assert said["http"] == [{"apis": ["health", "trace"], "header": "k", "value": "v=w"}]
    assert said["grpc"][0]["header"] == "triton-grpc-protocol-k"
    for wrong, text in (
        ("nothing:k=v", "unknown restricted api 'nothing'"),
        ("health", "expected APIS:KEY=VALUE, found 'health'"),
        ("health:k", "expected APIS:KEY=VALUE"),
    ):
        given = repository_parser().parse_args([*flags[:2], f"--http-restricted-api={wrong}"])
        with pytest.raises(ConfigError, match=text):
            settings_of(given)


@pytest.mark.parametrize("value", [" opens", "opens ", "opens\t"])
@pytest.mark.parametrize("port", ["http", "grpc"])
def test_a_secret_with_spaces_around_it_is_refused(tmp_path, port, value):
    closed = {"restricted_apis": {port: [{**KEY, "value": value}]}}
    text = "remove the spaces around the value of header 'admin-key'"
    with pytest.raises(ConfigError, match=text), serving(tmp_path, server=closed):
        """It does not start."""


def test_a_part_has_one_secret(tmp_path):
    twice = {"restricted_apis": {"http": [KEY, KEY]}}
    with (
        pytest.raises(ConfigError, match="can not be specified in multiple config groups"),
        serving(tmp_path, server=twice),
    ):
        """It does not start."""
