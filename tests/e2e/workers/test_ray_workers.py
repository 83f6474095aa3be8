"""A server whose Ops run on a Ray of its own, on this machine: as a user starts it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles import wait_until
from served import ServedWithClient, family_of

pytest.importorskip("ray")

BESIDE = "FACTOR = 3\n"
SCRIPT = '''
import logging
import os
import time
from pathlib import Path

from typing import Annotated

import msgspec
import numpy as np

import beside
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

LOG = logging.getLogger("pipeline.mine")


class Asked(msgspec.Struct):
    """Of the script: pickled by value, also its annotations."""

    size: Annotated[int, msgspec.Meta(ge=0)] = 4


class Note:
    """Of the script: its payloads are pickled by name."""

    def __init__(self, text):
        self.text = text


class First(Op):
    def init_op(self):
        self.asked = 0

    def preprocess(self, input_dicts):
        (asked,) = input_dicts.values()
        self.asked += 1
        if "say" in asked:
            LOG.warning("the actor says %s", asked["say"])
        if "die" in asked and not Path(asked["die"]).exists():
            Path(asked["die"]).touch()
            os._exit(3)
        size = int(asked.get("size", "4"))
        return {"x": np.full((1, size), beside.FACTOR, np.uint8)}

    def process(self, feed_batch, typical_logid):
        return feed_batch[0]

    def postprocess(self, input_dicts, fetched):
        (asked,) = input_dicts.values()
        pid = str(os.getpid())
        return {**asked, "x": fetched["x"], "first": pid, "note": Note("noted")}


class Second(Op):
    def process(self, feed_batch, typical_logid):
        (asked,) = feed_batch
        if "hang" in asked:
            time.sleep(60)
        for part in range(int(asked.get("parts", "1"))):
            yield {**asked, "part": str(part)}

    def postprocess(self, input_dicts, fetched):
        sent = {key: fetched[key] for key in ("first", "part")}
        total = str(int(fetched["x"].sum()))
        return {**sent, "sum": total, "second": str(os.getpid()), "note": fetched["note"].text}


first = First("first", RequestOp())
server = PipelineServer("on_ray")
server.set_response_op(ResponseOp(Second("second", first)))
server.prepare_server("config.yml")
server.run_server()
'''
OPS = {
    "first": {"workers": "ray", "concurrency": 2, "retry": 3},
    "second": {"workers": "ray", "timeout": 1500, "ray": {"num_cpus": 0.5, "near": "first"}},
}
RAY_START_S = 120.0
CLUSTER = {"address": "local", "num_cpus": 4, "object_store_mib": 100}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedWithClient]:
    folder = tmp_path_factory.mktemp("ray")
    (folder / "beside.py").write_text(BESIDE)
    served = started(folder)
    try:
        yield served
        served.process.send_signal(signal.SIGTERM)
        assert served.ends() == 0, served.text("stderr")
        wait_until(lambda: not family_of(folder))
    finally:
        served.close()


def started(folder: Path) -> ServedWithClient:
    """Start the server; again if Ray gave up, as it gives its node a fixed 30 s."""
    served = ServedWithClient(folder, SCRIPT, {"op": OPS, "dag": {"ray": CLUSTER}})
    try:
        served.wait_for(lambda: "is ready" in served.text("stderr"), RAY_START_S)
    except AssertionError as error:
        served.close()
        if "timed out during startup" in str(error):
            return started(folder)
        raise
    return served.wait_until_ready()


def test_requests_are_answered_from_other_processes(served):
    answer = served.get({"size": "4"})
    assert answer["sum"] == "12"
    assert answer["note"] == "noted"
    assert len({answer["first"], answer["second"], str(served.process.pid)}) == 3


def test_a_large_answer_reaches_the_next_op_complete(served):
    answers = [served.send({"size": str(size)}) for size in (1 << 20, 1 << 17, 10)]
    sums = [served_answer(call)["sum"] for call in answers]
    assert sums == [str(3 << 20), str(3 << 17), "30"]


def served_answer(call) -> dict[str, str]:
    response = call.result(60)
    assert not response.err_no, response.err_msg
    return dict(zip(response.key, response.value, strict=True))


def test_a_request_whose_actor_dies_is_repeated(served, tmp_path):
    answer = served.get({"die": str(tmp_path / "died")})
    assert answer["sum"] == "12"
    assert "worker" in served.log
    assert "is restarted" in served.log


def test_an_actor_that_is_killed_is_replaced(served):
    before = served.get({})
    os.kill(int(before["second"]), signal.SIGKILL)
    wait_until(lambda: served.is_ready() and served.ask({}).err_no == 0)
    assert served.get({})["second"] != before["second"]


def test_an_actor_that_hangs_is_replaced_and_its_request_ends(served):
    response = served.ask({"hang": "yes"})
    assert response.err_no == 6000, response.err_msg
    assert served.get({})["sum"] == "12"


def test_parts_of_a_stream_are_in_order(served):
    parts = [dict(part) for part in served.client.predict_stream({"parts": "5"})]
    assert [part["part"] for part in parts] == [0, 1, 2, 3, 4]


def test_a_line_of_an_actor_is_in_the_servers_log(served):
    served.get({"say": "hello"})
    wait_until(lambda: "the actor says hello" in served.log)
    assert Path(served.folder / "PipelineServingLogs").is_dir()
