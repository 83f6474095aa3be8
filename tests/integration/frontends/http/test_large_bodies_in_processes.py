"""Large bodies to Ops in processes: what these may do with them, and what is left of them."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from doubles import server_for, wait_until

from pipeline import Filter, Op, RequestOp
from pipeline.config import registry
from pipeline.data import Tensor
from pipeline.frontends.api import routes

SIZE = 150_528
DIES, FAILS, WAITS = 66, 67, 68


class StoresInputs(Op):
    """Adds up the first bytes of its inputs, writes into them and keeps them."""

    gate: Path  # requests that ask for it wait as long as it is there
    input_tensors = (Tensor("x", "UINT8", (-1,)),)
    output_tensors = (Tensor("sum", "INT64", (1,)), Tensor("x", "UINT8", (-1,)))

    def init_op(self):
        self.kept = []

    def preprocess(self, input_dicts, data_id, log_id):
        (answer,) = input_dicts.values()
        if "image" in answer:
            assert type(answer["image"]) is bytes
            return {"n": len(answer["image"]), "first": answer["image"][:1]}, False, None, ""
        x = answer["x"]
        if x[0] == WAITS:
            wait_until(lambda: not self.gate.exists())
        if x[0] == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        if x[0] == FAILS:
            raise ValueError("as asked")
        x[1:] = 7
        self.kept.append(x)
        total = sum(int(item[0]) for item in self.kept)
        assert all((item[1:] == 7).all() for item in self.kept)
        return {"sum": np.array([total]), "x": x}, False, None, ""

    def postprocess(self, input_dicts, fetched, data_id, log_id):
        if "n" in fetched:
            return {"n": str(fetched["n"]), "first": fetched["first"].decode()}, None, ""
        return fetched, None, ""


class Answers(Op):
    """Answers with the bytes that it was given, in the kind that the last of them asks for."""

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, answer),) = input_dicts.items()
        return answer, False, None, ""

    def postprocess(self, input_dicts, fetched, data_id, log_id):
        image = fetched["image"]
        if image.endswith(b"array"):
            return {"image": bytearray(image), "content_type": "image/png"}, None, ""
        if image.endswith(b"json"):
            return {"image": image}, None, ""
        return {"image": image, "content_type": "image/png"}, None, ""


class Looks(Filter):
    """Takes note of the kinds of bytes in the answers."""

    kinds: ClassVar[list[type]] = []

    def on_answer(self, request, answer):
        self.kinds.append(type(answer.payload["image"]))
        return answer


@pytest.fixture
def server():
    op = StoresInputs("keeps", [RequestOp()], concurrency=1, retry=1)
    with server_for(op, dag={"is_thread_op": False}) as running:
        yield running
        wait_until(lambda: used(running) == 0)


def used(server):
    """Return how many blocks are in use. `ServerMemory.used` is for its loop alone."""
    memory = server._service._memory
    return sum([*memory._used.values()]) - len(memory._released)


class Caller:
    def __init__(self, server):
        self._connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)

    def close(self):
        self._connection.close()

    def ask(self, first, size=SIZE, outputs=("sum",)):
        body = bytes([first]) + bytes(size - 1)
        asked = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
        parameters = {"binary_data_size": size}
        tensor = {"name": "x", "datatype": "UINT8", "shape": [size], "parameters": parameters}
        text = json.dumps({"inputs": [tensor], "outputs": asked}).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))}
        return self.post("/v2/models/svc/infer", text + body, headers)

    def get(self, path):
        return self.post(path, None, {}, "GET")

    def post(self, path, body, headers, method="POST"):
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        self.headers = response.headers
        length = int(response.headers.get("Inference-Header-Content-Length", 0))
        return response.status, response.read()[length:]


@pytest.fixture
def caller(server):
    caller = Caller(server)
    yield caller
    caller.close()


def test_a_model_writes_into_its_inputs_and_keeps_them(caller):
    total = 0
    for first in range(1, 9):
        total += first
        outputs = ("sum", "x") if first % 2 else ("sum",)
        status, data = caller.ask(first, outputs=outputs)
        assert status == 200, data
        assert np.frombuffer(data, np.int64, 1)[0] == total
        if first % 2:
            assert data[8:] == bytes([first]) + bytes([7]) * (SIZE - 1)


def test_a_request_whose_worker_dies_or_fails_leaves_no_memory(server, caller):
    for _ in range(4):
        assert caller.ask(1)[0] == 200
    for first in (FAILS, DIES, FAILS):
        status, reported = caller.ask(first)
        assert status >= 500, reported
        wait_until(lambda: used(server) == 0)
        assert caller.ask(1)[0] == 200


def test_a_client_that_stops_within_a_body_leaves_no_memory(server, caller):
    for _ in range(4):
        assert caller.ask(1)[0] == 200
    text = b"POST /api/svc HTTP/1.1\r\nHost: h\r\nContent-Type: image/png\r\n"
    text += b"Content-Length: 90000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.http_port)) as sock:
        sock.sendall(text + bytes(50_000))
        wait_until(lambda: used(server) == 1)
    wait_until(lambda: used(server) == 0)
    assert caller.ask(1)[0] == 200


def test_files_of_a_form_are_bytes_and_not_copied(server, caller):
    """Each is read where its form was received; nothing of it is left behind."""
    head = b'Content-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    body = b"--b\r\n" + head + b"p" * 200_000 + b"\r\n--b--\r\n"
    for _ in range(3):
        kind = {"Content-Type": "multipart/form-data; boundary=b"}
        status, reported = caller.post("/api/svc", body, kind)
        assert (status, json.loads(reported)) == (200, {"n": "200000", "first": "p"})
    wait_until(lambda: used(server) == 0)


@pytest.mark.parametrize("size", [1000, 100_000])
def test_a_picture_of_api_is_bytes(caller, size):
    for _ in range(3):
        status, reported = caller.post("/api/svc", b"p" * size, {"Content-Type": "image/jpeg"})
        assert (status, json.loads(reported)) == (200, {"n": str(size), "first": "p"})


@pytest.mark.parametrize("is_thread_op", [False, True])
def test_a_picture_is_answered_without_a_copy(monkeypatch, is_thread_op):
    """A picture is not copied and no thread writes it; any other answer is written as before."""
    copied = []

    def written_large(answer, limits, write=routes.written_large):
        copied.append(answer.payload["image"][-5:])
        return write(answer, limits)

    monkeypatch.setattr(routes, "written_large", written_large)
    op = Answers("answers", [RequestOp()], concurrency=1)
    with server_for(op, dag={"is_thread_op": is_thread_op}) as running:
        caller = Caller(running)
        for end in (b"plain", b"array", b"json", b"plain"):
            body = bytes(range(256)) * 400 + end
            for _ in range(3):
                status, reported = caller.post("/api/svc", body, {"Content-Type": "image/png"})
                document = (
                    base64.b64decode(json.loads(reported)["image"]) if end == b"json" else reported
                )
                assert (status, document) == (200, body)
        caller.close()
        assert {bytes(end) for end in copied} == {b"array", b"\xffjson"}
        if not is_thread_op:
            wait_until(lambda: used(running) == 0)


def test_a_filter_sees_bytes(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    registry.register("filters", "looks", Looks)
    op = Answers("answers", [RequestOp()], concurrency=1)
    with server_for(op, dag={"is_thread_op": False}, filters={"looks": {}}) as running:
        caller = Caller(running)
        body = bytes(100_000)
        assert caller.post("/api/svc", body, {"Content-Type": "image/png"}) == (200, body)
        caller.close()
    assert Looks.kinds == [bytes]


EDGES = pytest.mark.parametrize("edge", ["embedded", "gateway"])


@EDGES
@pytest.mark.usefixtures("gateway_binary")
def test_a_body_without_room_in_shared_memory_is_refused(edge):
    """A region has 1 MiB here."""
    op = StoresInputs("keeps", [RequestOp()], concurrency=1)
    dag = {"is_thread_op": False, "shared_memory_mib": 1}
    with server_for(op, dag=dag, edge=edge) as running:
        caller = Caller(running)
        for _ in range(2):
            status, data = caller.ask(1, 3 * 2**20, ("sum", "x"))
            assert status == 413
            assert b"the request's data: " in data
            assert b"raise dag.shared_memory_mib" in data
            status, data = caller.ask(1, 2**17, ("sum", "x"))
            assert status == 200, data
        caller.close()
        wait_until(lambda: used(running) == 0)


def test_a_body_has_room_again_when_another_is_answered(tmp_path):
    op = StoresInputs("keeps", [RequestOp()], concurrency=2)
    op.gate = tmp_path / "gate"
    op.gate.touch()
    dag = {"is_thread_op": False, "shared_memory_mib": 1}
    with server_for(op, dag=dag) as running, ThreadPoolExecutor() as pool:
        first, second = Caller(running), Caller(running)
        waits = pool.submit(first.ask, WAITS, 700_000)
        wait_until(lambda: used(running) == 1)
        status, data = second.ask(1, 500_000)
        assert (status, second.headers["retry-after"]) == (503, "1")
        assert b"the request's data: 500000 bytes have no room now" in data
        op.gate.unlink()
        assert waits.result()[0] == 200
        wait_until(lambda: used(running) == 0)
        assert second.ask(1, 500_000)[0] == 200
        _, metrics = second.get("/metrics")
        assert b'nv_inference_request_failure{model="svc",reason="OTHER",version="1"} 1' in metrics
        first.close()
        second.close()


class Grows(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        return {"x": np.zeros(2**21, np.uint8)}, False, None, ""


def test_an_answer_without_room_does_not_invite_a_repeat():
    dag = {"is_thread_op": False, "shared_memory_mib": 1}
    with server_for(Grows("grows", [RequestOp()]), dag=dag) as running:
        caller = Caller(running)
        status, data = caller.ask(1, 10, ())
        assert (status, caller.headers["retry-after"]) == (500, None)
        assert b"[grows] 2097152 bytes do not fit" in data
        caller.close()


def gateways():
    """Return the pids of the gateways that this process has started."""
    collected = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(os.getpid()) and "gateway" in os.readlink(path / "exe"):
                collected.append(int(path.name))
    return collected


@pytest.mark.usefixtures("gateway_binary")
def test_a_killed_gateway_leaves_no_memory(tmp_path):
    op = StoresInputs("keeps", [RequestOp()], concurrency=1)
    op.gate = tmp_path / "gate"
    with (
        server_for(op, dag={"is_thread_op": False}, edge="gateway") as running,
        ThreadPoolExecutor(4) as pool,
    ):
        before = set(Path("/dev/shm").iterdir())
        for _ in range(2):
            op.gate.touch()
            callers = [Caller(running) for _ in range(4)]
            asked = [pool.submit(caller.ask, WAITS, 2**20) for caller in callers]
            wait_until(lambda: used(running) >= 4)
            (pid,) = gateways()
            os.kill(pid, signal.SIGKILL)
            for call in asked:
                with pytest.raises((OSError, http.client.HTTPException)):
                    call.result(20)
            for caller in callers:
                caller.close()
            op.gate.unlink()
            wait_until(lambda: used(running) == 0)
            wait_until(lambda: answers(running))
        wait_until(lambda: used(running) == 0)
        assert not {path for path in Path("/dev/shm").iterdir() if "pipeline" in path.name} - before


def answers(server):
    """Return whether a large request is answered."""
    with (
        contextlib.closing(Caller(server)) as caller,
        contextlib.suppress(OSError, http.client.HTTPException),
    ):
        return caller.ask(1, 2**20)[0] == 200
    return False
