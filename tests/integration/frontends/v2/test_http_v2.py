"""The v2 protocol over HTTP: paths, methods, statuses, bodies, headers."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection

import numpy as np
import orjson
import pytest
from doubles import server_for, settle, virtual
from hypothesis import given
from hypothesis import strategies as st
from v2_doubles import Double, Server, double, running, shown

from pipeline import Op, PipelineServer, RequestOp
from pipeline.data import Tensor
from pipeline.errors import PackageError
from pipeline.frontends.http.routes import JSON, TEXT, HttpError, WebRequest
from pipeline.frontends.v2.http import InferenceRoutes

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LENGTH = "inference-header-content-length"
X = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}


def web_request(method, path, body=b"", headers=None, read=None):
    async def whole():
        return body if isinstance(body, bytes) else orjson.dumps(body)

    lower = {name.lower().encode(): str(v).encode() for name, v in (headers or {}).items()}
    raw_path, _, query = path.partition("?")
    return WebRequest(method, raw_path, raw_path, query, lower, read or whole)


class Site:
    """The site over a double's engine; answers are (status, parsed body)."""

    def __init__(self, server):
        self.server = server
        self.site = InferenceRoutes(server.models)

    async def reply(self, *args, **more):
        request = web_request(*args, **more)
        endpoint = self.site.endpoint(request)
        assert endpoint is not None
        return await endpoint(request)

    async def ask(self, *args, **more):
        reply = await self.reply(*args, **more)
        return reply.status, orjson.loads(reply.body) if reply.body else None

    async def infer(self, body, model="svc", **headers):
        return await self.ask("POST", f"/v2/models/{model}/infer", body, headers)


visited = partial(shown, Site, "site")


# Paths and methods --------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/v3", "/v20", "/metrics", "/x/v2", "/svc/prediction"])
@visited()
async def test_other_paths_are_for_others(site, path):
    assert site.site.endpoint(web_request("GET", path)) is None


@pytest.mark.parametrize(
    "path",
    [
        "/v2/",
        "/v2/models/svc/",
        "/v2/models/svc/stats/",
        "/v2/models//stats",
        "/v2/models/svc/nope",
        "/v2/models/svc/versions/x/stats",
        "/v2/models/svc/versions/-1",
        "/v2/health/nope",
        "/v2/models/a/b/stats",
    ],
)
@visited()
async def test_an_invalid_path_is_not_found(site, path):
    reply = await site.reply("GET", path)
    assert (reply.status, reply.body) == (404, b'{"error":"Not Found"}')
    assert reply.content_type.startswith(b"text/plain")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v2", b"GET"),
        ("POST", "/v2/models/svc/stats", b"GET"),
        ("DELETE", "/v2/models/stats", b"GET"),
        ("GET", "/v2/models/svc/infer", b"POST"),
        ("GET", "/v2/repository/index", b"POST"),
        ("PUT", "/v2/models/svc", b"GET"),
    ],
)
@visited()
async def test_other_methods_are_not_allowed(site, method, path, allowed):
    assert await site.ask(method, path) == (405, {"error": "Method Not Allowed"})
    assert (await site.reply(method, path)).headers == ((b"allow", allowed),)


@pytest.mark.parametrize(
    ("method", "path", "is_plain"),
    [
        ("GET", "/v2/models/svc/infer", True),
        ("POST", "/v2/models/svc/versions/1/ready", True),
        ("POST", "/v2/health/live", True),
        ("POST", "/v2/models/svc/stats", False),
        ("POST", "/v2/models/infer", False),
        ("GET", "/v2/repository/index", False),
    ],
)
@visited()
async def test_a_refused_method_is_plain_text_where_it_is_in_triton(site, method, path, is_plain):
    reply = await site.reply(method, path)
    assert (reply.content_type == TEXT) is is_plain
    assert reply.status == 405


@visited()
async def test_the_repository_may_be_named(site):
    status, index = await site.ask("POST", "/v2/repository/mine/index")
    assert (status, [entry["name"] for entry in index]) == (200, ["double", "svc"])
    for verb in ("load", "unload"):
        question = f"/v2/repository/mine/models/double/{verb}"
        refused = (501, {"error": "'repository_name' specification is not supported"})
        assert await site.ask("POST", question) == refused
        assert (await site.ask("POST", f"/v2/repository/models/double/{verb}"))[0] == 503


@visited(lambda: Double("a/b é", RequestOp()))
async def test_quoted_names_may_have_any_character(site):
    status, metadata = await site.ask("GET", "/v2/models/a%2Fb%20%C3%A9/versions/1")
    assert (status, metadata["name"]) == (200, "a/b é")
    assert metadata["versions"] == ["1"]


@visited(lambda: Double("stats", RequestOp()))
async def test_a_model_named_stats_is_found_with_its_version(site):
    status, metadata = await site.ask("GET", "/v2/models/stats/versions/1")
    assert (status, metadata["name"]) == (200, "stats")
    assert "model_stats" in (await site.ask("GET", "/v2/models/stats"))[1]


# Descriptions and states --------------------------------------------------------------------


@visited()
async def test_server_model_and_configuration_are_described(site):
    status, server = await site.ask("GET", "/v2")
    assert status == 200
    assert set(server["extensions"]) == {
        "classification",
        "logging",
        "trace",
        "statistics",
        "binary_tensor_data",
        "model_configuration",
        "model_repository",
        "parameters",
        "schedule_policy",
        "sequence",
    }
    assert set(server) == {"name", "version", "extensions"}
    status, metadata = await site.ask("GET", "/v2/models/double")
    assert metadata == {
        "name": "double",
        "versions": ["1"],
        "platform": "python",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
    }
    status, config = await site.ask("GET", "/v2/models/svc/versions/1/config")
    assert (status, config["platform"]) == (200, "ensemble")
    assert config["ensemble_scheduling"]["step"][0]["model_version"] == -1


@visited()
async def test_health_and_readiness_have_a_status_and_a_body(site):
    ready = {"name": "svc", "ready": True}
    for path, body in (
        ("health/live", {"live": True}),
        ("health/ready", {"ready": True}),
        ("models/svc/ready", ready),
        ("models/svc/versions/1/ready", ready),
    ):
        assert await site.ask("GET", f"/v2/{path}") == (200, body)
    not_ready = (400, {"error": "Model version not ready"})
    assert await site.ask("GET", "/v2/models/nope/ready") == not_ready
    assert await site.ask("GET", "/v2/models/svc/versions/2/ready") == not_ready
    site.server.snapshots = []
    assert await site.ask("GET", "/v2/health/ready") == (400, {"ready": False})
    assert await site.ask("GET", "/v2/health/live") == (200, {"live": True})


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "trace/setting"), ("POST", "models/svc/trace/setting")]
)
@visited()
async def test_traces_are_off_by_default(site, method, path):
    status, answer = await site.ask(method, f"/v2/{path}")
    assert (status, answer["trace_level"], answer["trace_file"]) == (200, ["OFF"], "")


@visited()
async def test_statistics_of_all_or_one_model_and_errors_have_tritons_form(site):
    _, everything = await site.ask("GET", "/v2/models/stats")
    assert [stats["name"] for stats in everything["model_stats"]] == ["double", "svc"]
    _, one = await site.ask("GET", "/v2/models/svc/versions/1/stats")
    (stats,) = one["model_stats"]
    assert (stats["name"], stats["version"]) == ("svc", "1")
    assert stats["inference_stats"]["success"]["count"] == 2
    for path, text in [
        ("nope/stats", "requested model 'nope' is not available"),
        ("svc/versions/9/stats", "requested model version is not available for model 'svc'"),
        (
            f"svc/versions/{'9' * 30}/stats",
            f"failed to get model version from specified version string '{'9' * 30}' "
            "(details: stol), version should be an integral value > 0",
        ),
    ]:
        assert await site.ask("GET", f"/v2/models/{path}") == (400, {"error": text})


@visited()
async def test_the_repository_lists_its_models_and_loads_none(site):
    ready = {"version": "1", "state": "READY", "reason": ""}
    everything = [{"name": "double", **ready}, {"name": "svc", **ready}]
    for body in (b"", b"{}", {"ready": True}):
        assert await site.ask("POST", "/v2/repository/index", body) == (200, everything)
    for body in (b"{", b"[]", {"ready": 1}):
        status, answer = await site.ask("POST", "/v2/repository/index", body)
        assert status == 400, answer
    for what in ("load", "unload"):
        reply = await site.reply("POST", f"/v2/repository/models/svc/{what}")
        assert reply.status == 503
        assert b"explicit model load / unload is not allowed" in reply.body
        assert all(name != b"retry-after" for name, _ in reply.headers)


# Inference ----------------------------------------------------------------------------------


@visited()
async def test_tensors_are_read_and_written_as_json(site):
    status, answer = await site.infer({"id": "7", "inputs": [X]})
    assert status == 200
    assert list(answer) == ["id", "model_name", "model_version", "outputs"]
    assert answer == {
        "id": "7",
        "model_name": "svc",
        "model_version": "1",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [2.0, 4.0]}],
    }
    status, answer = await site.infer({"inputs": [X]}, model="double/versions/1")
    assert (status, answer["model_name"]) == (200, "double")


@visited()
async def test_tensors_are_read_and_written_as_bytes(site):
    raw = np.array([1, 2], "<f4").tobytes()
    entry = {k: v for k, v in X.items() if k != "data"}
    entry["parameters"] = {"binary_data_size": len(raw)}
    wanted = [{"name": "y", "parameters": {"binary_data": True}}]
    head = orjson.dumps({"inputs": [entry], "outputs": wanted})
    headers = {LENGTH: len(head)}
    reply = await site.reply("POST", "/v2/models/svc/infer", head + raw, headers)
    assert (reply.status, reply.content_type) == (200, b"application/octet-stream")
    length = int(dict(reply.headers)[LENGTH.encode()])
    (output,) = orjson.loads(reply.body[:length])["outputs"]
    assert output["parameters"] == {"binary_data_size": 8}
    assert np.frombuffer(reply.body[length:], "<f4").tolist() == [2.0, 4.0]


@visited()
async def test_data_alone_are_enough_for_a_model_with_one_input(site):
    raw = np.arange(3, dtype="<f4").tobytes()
    reply = await site.reply("POST", "/v2/models/double/infer", raw, {LENGTH: 0})
    assert reply.status == 200, reply.body
    length = int(dict(reply.headers)[LENGTH.encode()])
    assert np.frombuffer(reply.body[length:], "<f4").tolist() == [0.0, 2.0, 4.0]
    status, answer = await site.ask("POST", "/v2/models/svc/infer", raw, {LENGTH: 0})
    assert status == 400, answer


@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (b"{", {}, 400, "JSON"),
        (b"[" * 100_000, {}, 400, "JSON"),
        ({"inputs": [X]}, {LENGTH: 10_000}, 400, "should be in range (0, 72), got: 10000"),
        ({"inputs": [X]}, {LENGTH: -1}, 400, "should be in range (0, 72), got: -1"),
        ({"inputs": [X]}, {LENGTH: "9" * 30}, 400, "is not a number of bytes"),
        ({"inputs": [{**X, "datatype": "INT32", "data": [1, 2]}]}, {}, 400, "data-type is 'INT32'"),
        ({"inputs": [{**X, "name": "z"}]}, {}, 400, "unexpected inference input 'z'"),
        ({"inputs": [X], "outputs": [{"name": "z"}]}, {}, 400, "unexpected inference output 'z'"),
        ({"inputs": [X], "parameters": {"triton_a": 1}}, {}, 400, "reserved for Triton usage"),
    ],
)
@visited()
async def test_requests_that_break_the_protocol_are_refused(site, body, headers, status, text):
    reply = await site.reply("POST", "/v2/models/double/infer", body, headers)
    assert reply.status == status
    assert text in orjson.loads(reply.body)["error"]
    assert reply.content_type == (TEXT if LENGTH in headers else JSON)


@visited()
async def test_errors_about_unknown_tensors_do_not_name_the_request(site):
    path = "/v2/models/double/infer"
    wrong = {"input": {"inputs": [{**X, "name": "z"}]}, "output": {"outputs": [{"name": "z"}]}}
    for kind, tensors in wrong.items():
        reply = await site.reply("POST", path, {"id": "r7", "inputs": [X], **tensors})
        text = f"unexpected inference {kind} 'z' for model 'double'"
        assert orjson.loads(reply.body) == {"error": text}


@visited()
async def test_an_output_requested_twice_is_refused(site):
    body = {"inputs": [X], "outputs": [{"name": "y"}, {"name": "y"}]}
    status, answer = await site.infer(body)
    text = "[request id: <id_unknown>] output 'y' already exists in request"
    assert (status, answer) == (400, {"error": text})


@visited()
async def test_a_parameter_called_headers_is_one_of_the_callers_own(site):
    status, _ = await site.infer({"inputs": [X], "parameters": {"headers": "a"}})
    assert status == 200


@visited()
async def test_an_unknown_model_is_not_found_before_the_body_is_read(site):
    async def never():
        raise AssertionError("the body was read")

    reply = await site.reply("POST", "/v2/models/nope/infer", read=never)
    assert reply.status == 404
    assert orjson.loads(reply.body) == {"error": "Request for unknown model: 'nope' is not found"}


@visited()
async def test_a_body_that_cannot_be_read_is_refused_in_the_protocols_form(site):
    async def broken():
        raise HttpError(413, PackageError("too large"), (b"x", b"y"))

    reply = await site.reply("POST", "/v2/models/svc/infer", read=broken)
    assert (reply.status, reply.headers) == (413, ((b"x", b"y"),))
    assert orjson.loads(reply.body) == {"error": "too large"}


@virtual
async def test_an_overloaded_server_sends_retry_after():
    async with running(double(), worker_num=1, queue_size=0) as server:
        server.engine.pools["double"].service_s = None
        first = server.engine.ask(x="1")
        await settle()
        reply = await Site(server).reply("POST", "/v2/models/svc/infer", {"inputs": [X]})
        assert reply.status == 503
        assert (b"retry-after", b"1") in reply.headers
        server.engine.pools["double"].release()
        await first


@given(body=st.binary(max_size=60), length=st.integers(-1, 70) | st.none())
@visited()
async def test_no_body_breaks_the_server(site, body, length):
    headers = {} if length is None else {LENGTH: length}
    reply = await site.reply("POST", "/v2/models/double/infer", body, headers)
    assert reply.status in (200, 400)
    if reply.status == 400:
        assert orjson.loads(reply.body)["error"]


@virtual
async def test_the_callers_trace_is_passed_on():
    server, seen = Server(double()), []
    server.engine.watch(begin_trace=lambda data_id, caller: seen.append(caller) or "")
    async with server.engine:
        site = Site(server)
        await site.infer({"inputs": [X]}, traceparent=TRACE)
        await site.infer({"inputs": [X]})
    assert seen == [TRACE, ""]


# Compression --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accepts", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("GZIP, deflate", "gzip"),
        ("gzip;q=0.5, deflate", "deflate"),
        ("gzip;q=0, *", "deflate"),
        ("*", "gzip"),
        ("gzip;q=0", None),
        ("identity", None),
        ("br", None),
        ("", None),
        (";;,q=,gzip;q=x", "gzip"),
    ],
)
@visited()
async def test_answers_are_packed_as_the_caller_takes_them(site, accepts, encoding):
    headers = {"accept-encoding": accepts}
    reply = await site.reply("POST", "/v2/models/svc/infer", {"inputs": [X]}, headers)
    reported = dict(reply.headers).get(b"content-encoding")
    assert reported == (None if encoding is None else encoding.encode())
    unpack = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[encoding]
    assert orjson.loads(unpack(reply.body))["outputs"][0]["data"] == [2.0, 4.0]


@visited()
async def test_descriptions_are_not_packed(site):
    reply = await site.reply("GET", "/v2/models/svc", headers={"accept-encoding": "gzip"})
    assert orjson.loads(reply.body)["name"] == "svc"


# On the port --------------------------------------------------------------------------------


class Words(RequestOp):
    input_tensors = (Tensor("words", "BYTES", (-1,)),)


@pytest.fixture(scope="module")
def server(module_logs: None) -> Iterator[PipelineServer]:
    """Answers with the words that it is sent."""
    with server_for(Op("echo", [Words()]), max_message_bytes=2**20) as server:
        yield server


def post(server, body, **headers):
    connection = HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", "/v2/models/svc/infer", body, named)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def words_body(*words):
    entry = {"name": "words", "datatype": "BYTES", "shape": [len(words)], "data": words}
    return json.dumps({"inputs": [entry]}).encode()


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_requests_and_answers_travel_packed(server, encoding, pack):
    words = [f"word {number}" for number in range(20_000)]
    body = pack(words_body(*words))
    status, headers, answer = post(
        server, body, Content_Encoding=encoding, Accept_Encoding=encoding
    )
    assert (status, headers["content-encoding"]) == (200, encoding)
    unpacked = {"gzip": gzip.decompress, "deflate": zlib.decompress}[encoding](answer)
    assert json.loads(unpacked)["outputs"][0]["data"] == words


def test_a_body_too_large_after_decompression_is_refused_in_the_protocols_form(server):
    status, _, answer = post(server, gzip.compress(bytes(2**21)), Content_Encoding="gzip")
    assert status == 400
    assert json.loads(answer) == {
        "error": f"Decompressed data size exceeds the maximum allowed value of {2**20} bytes. Use "
        "--http-max-input-size to increase the limit. In config.yml it is max_message_bytes."
    }


def test_requests_are_counted(server):
    def success():
        connection = HTTPConnection("127.0.0.1", server.http_port, timeout=30)
        try:
            connection.request("GET", "/v2/models/svc/stats")
            (stats,) = json.loads(connection.getresponse().read())["model_stats"]
            return stats["inference_stats"]["success"]["count"]
        finally:
            connection.close()

    before = success()
    for _ in range(3):
        assert post(server, words_body("a"))[0] == 200
    assert post(server, b"{}")[0] == 400
    assert success() == before + 3
