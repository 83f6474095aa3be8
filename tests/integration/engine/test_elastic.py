"""Ops whose workers come and go, with threads and processes: nothing is lost meanwhile."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from doubles import wait_until

from pipeline import Op, PipelineClient, PipelineServer, RequestOp, ResponseOp
from pipeline.engine.op import elastic
from pipeline.errors import PipelineError

OPEN = threading.Event()
ORDERED = {"dynamic_batching": {"preserve_ordering": True}}
QUICK = {"max_wait_ms": 20, "idle_s": 0.3}


class Wait(Op):
    def preprocess(self, input_dicts):
        return {"x": input_dicts["@DAGExecutor"]["x"]}

    def process(self, feed_batch, typical_logid):
        assert OPEN.wait(30)
        return feed_batch[0]


class Pid(Op):
    def init_op(self):
        if Path(os.environ.get("PID_FAILS", "/nonexistent")).exists():
            raise ValueError("the model is gone")

    def preprocess(self, input_dicts):
        return {"pid": str(os.getpid())}


def serve(op: Op, **keys) -> PipelineServer:
    server = PipelineServer("elastic")
    server.set_response_op(ResponseOp(op))
    server.prepare_server(yml_dict={"rpc_port": 0, "op": {op.name: keys}})
    return server


def up(server: PipelineServer, name: str) -> int:
    (state,) = [op for op in server.executor.state().ops if op.name == name]
    return state.workers.up


def test_threads_become_more_while_requests_wait_and_fewer_afterwards(monkeypatch):
    monkeypatch.setattr(elastic, "_MEMORY_S", 0.2)
    OPEN.clear()
    server = serve(Wait("wait", RequestOp()), min_workers=1, max_workers=4, elastic=QUICK)
    with server, PipelineClient() as client, ThreadPoolExecutor(8) as pool:
        client.connect([f"127.0.0.1:{server.rpc_port}"])
        asked = [pool.submit(client.predict, {"x": i}) for i in range(8)]
        wait_until(lambda: up(server, "wait") == 4)
        OPEN.set()
        assert [item.result()["x"] for item in asked] == list(range(8))
        wait_until(lambda: up(server, "wait") == 1)
        assert client.predict({"x": "on"})["x"] == "on"


def test_the_last_process_stops_and_the_next_request_starts_another():
    server = serve(Pid("pid", RequestOp()), min_workers=0, workers="process", elastic=QUICK)
    with server, PipelineClient() as client:
        client.connect([f"127.0.0.1:{server.rpc_port}"])
        first = client.predict({"x": ""})["pid"]
        wait_until(lambda: up(server, "pid") == 0)
        assert server.executor.is_ready
        assert client.predict({"x": ""})["pid"] != first


def test_a_request_whose_worker_cannot_start_ends_with_the_reason(monkeypatch, tmp_path):
    fails = tmp_path / "fails"
    monkeypatch.setenv("PID_FAILS", str(fails))
    server = serve(Pid("pid", RequestOp()), min_workers=0, workers="process", elastic=QUICK)
    with server, PipelineClient() as client:
        client.connect([f"127.0.0.1:{server.rpc_port}"])
        wait_until(lambda: up(server, "pid") == 0)
        fails.touch()
        answer = client.predict({"x": ""})
        assert "the model is gone" in answer.err_msg
        fails.unlink()
        wait_until(lambda: client.predict({"x": ""}).err_no == 0)  # not before the next attempt


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"min_workers": 3}, "min_workers: expected 1 at most, as max_workers says, found 3"),
        ({"min_workers": 2, "max_workers": 4}, "concurrency: expected 2 to 4"),
        ({"min_workers": 0}, "expected at least 1, found 0: the memory of"),
        ({"max_workers": 2, "batching": "dynamic", **ORDERED}, "do not go together"),
    ],
)
def test_invalid_bounds_are_refused_at_the_start(keys, text):
    with pytest.raises(PipelineError, match=text), serve(Pid("pid", RequestOp()), **keys):
        pass
