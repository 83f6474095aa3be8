"""Sequences of an Op that counts, at three servers behind one gateway: `--policy sticky`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from conformance_gateway import Gateway, gateway_before
from conformance_grpc import INFERENCE
from doubles import wait_until
from raw_http import Connection, request
from served import PATIENCE_S, Served, free_port, unique

from pipeline.proto.pipeline_service_pb2 import Request, Response

SCRIPT = """
import sys

from pipeline import Op, PipelineServer, RequestOp, ResponseOp


class Count(Op):
    def init_op(self):
        self.counts = {}

    def preprocess(self, input_dicts, *, context):
        step = context.sequence
        self.counts[step.id] = 1 if step.start else self.counts[step.id] + 1
        return {"count": str(self.counts[step.id])}


sequence = {"strategy": "oldest", "max_candidates": 64, "max_idle_ms": 120_000}
server = PipelineServer("svc")
server.set_response_op(ResponseOp([Count("count", [RequestOp()], sequence=sequence)]))
server.prepare_server(f"{sys.argv[1]}/config.yml")
server.run_server()
"""
OF_EACH_WAY = 10

Say = Callable[[dict[str, Any]], str]
"""A request of a sequence -> its count, or the text of the error."""


@contextlib.contextmanager
def fleet(folder: Path, binary: Path) -> Iterator[tuple[list[Served], Gateway, int]]:
    """Three servers, and the gateway before them with its port for gRPC."""
    with contextlib.ExitStack() as stack:
        servers = []
        for _ in range(3):
            own = folder / next(unique)
            own.mkdir()
            servers.append(stack.enter_context(contextlib.closing(Served(own, SCRIPT, {}))))
        for server in servers:
            server.wait_until_ready()
        port = free_port()
        backends = [f"127.0.0.1:{server.rpc_port}/{server.http_port}" for server in servers]
        flags = ("--policy", "sticky", "--grpc-listen", f"127.0.0.1:{port}")
        gateway = stack.enter_context(gateway_before(binary, *backends, flags=flags))
        gateway.wait_until_ready(3)
        yield servers, gateway, port


def forms_of_steps(gateway: Gateway, channel: grpc.Channel) -> dict[str, Say]:
    """The forms in which a step is said."""

    def post(path: str, body: Any) -> Any:
        with Connection(gateway.port) as connection:
            connection.send(request(json.dumps(body).encode(), path=path))
            return json.loads(connection.answer().body)

    def pairs(said: dict[str, Any]) -> str:
        texts = [str(value) for value in said.values()]
        answer = post("/svc/p", {"key": ["x", *said], "value": ["1", *texts]})
        return str(answer["err_msg"] or answer["value"][0])

    def plain(said: dict[str, Any]) -> str:
        answer = post("/api/svc", {"x": "1", **said})
        return str(answer["error"]["message"] if "error" in answer else answer["count"])

    def v2(said: dict[str, Any]) -> str:
        x = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
        answer = post("/v2/models/svc/infer", {"inputs": [x], "parameters": said})
        return str(answer["error"] if "error" in answer else answer["outputs"][0]["data"][0])

    def rpc(said: dict[str, Any]) -> str:
        texts = [str(value) for value in said.values()]
        asked = Request(key=["x", *said], value=["1", *texts])
        call = channel.unary_unary(INFERENCE, Request.SerializeToString, Response.FromString)
        answer = call(asked, timeout=PATIENCE_S)
        return str(answer.err_msg or answer.value[0])

    return {"pairs": pairs, "plain": plain, "v2": v2, "rpc": rpc}


def test_sequences_stay_at_their_servers(tmp_path, gateway_binary):
    with (
        fleet(tmp_path, gateway_binary) as (servers, gateway, port),
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        forms = forms_of_steps(gateway, channel)
        all_of = [(path, f"{path}-{number}") for path in forms for number in range(OF_EACH_WAY)]
        for step in range(1, 5):
            for way, id in all_of:
                start = {"sequence_start": True} if step == 1 else {}
                assert forms[way]({"sequence_id": id, **start}) == str(step), (way, id, step)

        os.kill(servers[0].process.pid, signal.SIGKILL)
        servers[0].ends()
        wait_until(lambda: "gets no requests" in gateway.said)
        went_on, lost = [], []
        for way, id in all_of:
            answer = forms[way]({"sequence_id": id})
            (went_on if answer == "5" else lost).append((way, id, answer))
        assert went_on, lost
        assert lost, went_on  # 20 by three servers
        for way, id, answer in lost:
            assert "START flag" in answer or "must have sequence_start" in answer, (way, id)
            assert forms[way]({"sequence_id": id, "sequence_start": True}) == "1", (way, id)
            assert forms[way]({"sequence_id": id}) == "2", (way, id)
