"""Large inputs by a store: one of the test's own, and a real Redis server where there is one."""

from __future__ import annotations

import io
import shutil
import subprocess
import traceback
from typing import ClassVar

import numpy as np
import pytest
from doubles import wait_until
from served import free_port, is_open

from pipeline import Op, PipelineClient, PipelineServer, RequestOp, ResponseOp
from pipeline.config import registry
from pipeline.errors import (
    ConfigError,
    ErrorCode,
    PipelineError,
    PredictorUnavailableError,
    TooLargeError,
)
from pipeline.stores.base import open_store, stored

ARRAY = np.arange(300_000, dtype=np.float32).reshape(3, -1)


class MemoryStore:
    """Values in this process, for all servers of a test."""

    values: ClassVar[dict[str, bytes]] = {}
    puts: ClassVar[list[int]] = []
    is_away = False

    def __init__(self, url: str) -> None:
        self.url = url

    def put(self, key: str, data: bytes, ttl_s: int) -> None:
        self._check()
        self.values[key] = data
        self.puts.append(len(data))

    def get(self, key: str, max_bytes: int) -> bytes | None:
        self._check()
        result = self.values.get(key)
        if result is not None and len(result) > max_bytes:
            raise TooLargeError(f"{len(result)} bytes; the limit is {max_bytes}")
        return result

    def delete(self, key: str) -> None:
        self.values.pop(key, None)

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.is_away:
            raise PredictorUnavailableError("payload_store: away")


@pytest.fixture
def memory_url(monkeypatch) -> str:
    monkeypatch.setattr(registry, "_registered", {("stores", "memory"): MemoryStore})
    monkeypatch.setattr(MemoryStore, "values", {})
    monkeypatch.setattr(MemoryStore, "puts", [])
    return "memory://"


@pytest.fixture
def redis_url(tmp_path):
    pytest.importorskip("redis", reason="the client is not installed: the extra redis")
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server")
    port = free_port()
    words = ["redis-server", "--port", str(port), "--save", ""]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: is_open(port))
        yield f"redis://127.0.0.1:{port}/0"
        process.kill()


@pytest.fixture(params=["memory_url", "redis_url"])
def url(request) -> str:
    return request.getfixturevalue(request.param)


class Total(Op):
    def preprocess(self, input_dicts):
        value = input_dicts["@DAGExecutor"]["x"]
        return {"total": np.asarray(value).sum(axis=1)}


class Ask(Op):
    def preprocess(self, input_dicts):
        return {"x": input_dicts["@DAGExecutor"]["x"]}

    def postprocess(self, input_dicts, fetch_dict):
        return fetch_dict


def server_of(op: Op, url: str | None = None, **keys) -> PipelineServer:
    server = PipelineServer("sums")
    server.set_response_op(ResponseOp(op))
    config = {"rpc_port": 0, "op": {op.name: keys}}
    server.prepare_server(yml_dict=config if url is None else {**config, "payload_store": url})
    return server


def asking(server: PipelineServer) -> PipelineClient:
    client = PipelineClient()
    client.connect([f"127.0.0.1:{server.rpc_port}"])
    return client


def test_arrays_between_two_servers_arrive_unchanged(url):
    with server_of(Total("total", RequestOp()), url) as behind:
        remote = {
            "server_endpoints": [f"127.0.0.1:{behind.rpc_port}"],
            "client_type": "pipeline_grpc",
            "input_store": {"url": url, "from_bytes": 1000},
        }
        with server_of(Ask("ask", RequestOp()), **remote) as front, asking(front) as client:
            answer = client.predict({"x": ARRAY}, pack_tensor_format=True)
            assert answer.err_no == 0, answer.err_msg
            np.testing.assert_allclose(answer["total"], ARRAY.sum(axis=1))
            assert client.predict({"x": np.ones((1, 3), np.float32)}, pack_tensor_format=True)[
                "total"
            ] == [3]


def test_large_inputs_use_the_store_and_their_sender_removes_them(memory_url):
    with server_of(Total("total", RequestOp()), memory_url) as behind:
        remote = {
            "server_endpoints": [f"127.0.0.1:{behind.rpc_port}"],
            "client_type": "pipeline_grpc",
            "input_store": {"url": memory_url, "from_bytes": 1000},
        }
        with server_of(Ask("ask", RequestOp()), **remote) as front, asking(front) as client:
            assert client.predict({"x": ARRAY}, pack_tensor_format=True).err_no == 0
            assert client.predict({"x": ARRAY[:, :2]}, pack_tensor_format=True).err_no == 0
            (size,) = MemoryStore.puts
            assert size > ARRAY.nbytes
            assert MemoryStore.values == {}


@pytest.mark.usefixtures("memory_url")
@pytest.mark.parametrize(
    "url", ["memory://:1/2@h", "memory://:1?2@h", "memory://:1#2@h", "memory://:p/x@h", "memory"]
)
def test_a_url_whose_password_needs_escapes_is_refused(url):
    with pytest.raises(ConfigError, match="a password needs %-escapes"):
        open_store(url)


@pytest.mark.usefixtures("memory_url")
@pytest.mark.parametrize("url", ["memory://u:p@h:1/0?name=a@b", "memory:///a@b"])
def test_a_url_may_have_an_at_sign_behind_its_host(url):
    open_store(url).close()


def test_a_caller_may_send_a_reference_itself(url):
    with server_of(Total("total", RequestOp()), url) as server, asking(server) as client:
        store = open_store(url)
        answer = client.predict({"x": stored(store, ARRAY, 60)}, pack_tensor_format=True)
        np.testing.assert_allclose(answer["total"], ARRAY.sum(axis=1))
        store.close()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("pipeline-stored:" + "0" * 32, "x: its data is not in the store, or not any more"),
        ("pipeline-stored:../other", "is not a reference to a store"),
    ],
)
def test_an_invalid_reference_is_a_client_error(url, text, reason):
    with server_of(Total("total", RequestOp()), url) as server, asking(server) as client:
        answer = client.predict({"x": text})
        assert reason in answer.err_msg
        assert answer.err_no == ErrorCode.RPC_PACKAGE_ERROR


def archive() -> bytes:
    target = io.BytesIO()
    np.savez(target, x=np.ones(3))
    return target.getvalue()


def npy(descr: str, shape: str) -> bytes:
    """Return a .npy whose header claims what is not there."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"cos\nsystem\n(S'true'\ntR.", id="pickle"),
        pytest.param(archive(), id="archive of arrays"),
        pytest.param(npy("'<f8'", "(1000000000000,)"), id="elements that are not there"),
        pytest.param(npy("'|V0'", "(1000000000000,)"), id="elements without bytes"),
        pytest.param(npy("'<f8'", "(1000000000000, 0)"), id="rows without elements"),
        pytest.param(npy("[('a', '<i4')]", "(0,)"), id="records"),
        pytest.param(npy("(" * 5000, "(1,)"), id="a header that no parser bears"),
        pytest.param(b"\x93NUMPY", id="cut off"),
        pytest.param(b"", id="empty"),
    ],
)
def test_a_stored_value_that_is_not_an_array_is_an_error(memory_url, data):
    MemoryStore.values["pipeline:stored:" + "1" * 32] = data
    with server_of(Total("total", RequestOp()), memory_url) as server, asking(server) as client:
        answer = client.predict({"x": "pipeline-stored:" + "1" * 32})
        assert "the value in the store is not an array" in answer.err_msg
        assert answer.err_no == ErrorCode.RPC_PACKAGE_ERROR


def test_an_unavailable_store_is_an_error(memory_url, monkeypatch):
    with server_of(Total("total", RequestOp()), memory_url) as server, asking(server) as client:
        monkeypatch.setattr(MemoryStore, "is_away", True)
        answer = client.predict({"x": "pipeline-stored:" + "1" * 32})
        assert "payload_store: away" in answer.err_msg


def test_an_input_that_is_too_large_is_not_fetched(redis_url):
    store = open_store(redis_url)
    reference = stored(store, ARRAY, 60)
    server = PipelineServer("sums")
    server.set_response_op(ResponseOp(Total("total", RequestOp())))
    config = {"rpc_port": 0, "max_message_bytes": 100_000, "payload_store": redis_url}
    server.prepare_server(yml_dict=config)
    with server, asking(server) as client:
        assert "the limit is 100000" in client.predict({"x": reference}).err_msg
    store.close()


def test_the_limit_applies_to_the_sum_of_all_inputs(url):
    store = open_store(url)
    reference = stored(store, ARRAY, 60)
    server = PipelineServer("sums")
    server.set_response_op(ResponseOp(Total("total", RequestOp())))
    config = {"rpc_port": 0, "max_message_bytes": 3 * ARRAY.nbytes, "payload_store": url}
    server.prepare_server(yml_dict=config)
    with server, asking(server) as client:
        assert client.predict({"x": reference, "y": reference}).err_no == 0
        many = dict.fromkeys("abcdx", reference)
        assert "bytes; the limit is" in client.predict(many).err_msg
    store.close()


def test_without_a_store_a_reference_is_a_text(memory_url):
    with server_of(Ask("ask", RequestOp())) as server, asking(server) as client:
        text = "pipeline-stored:" + "0" * 32
        assert client.predict({"x": text})["x"] == text


def test_an_unknown_store_is_an_error_at_the_start():
    with (
        pytest.raises(PipelineError, match="expected redis or rediss"),
        server_of(Ask("ask", RequestOp()), "s3://bucket"),
    ):
        pass
    with (
        pytest.raises(PipelineError, match="expected a URL such as redis://host:6379/0"),
        server_of(Ask("ask", RequestOp()), "somewhere"),
    ):
        pass
    with (
        pytest.raises(PipelineError, match="expected a URL such as") as caught,
        server_of(Ask("ask", RequestOp()), "redis://user:hunter2/x@host:6379/0"),
    ):
        pass
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
