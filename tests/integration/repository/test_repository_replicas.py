"""A repository that several replicas serve: every replica has the same models."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
from doubles import http, wait_until
from repositories import SERVER, add_identity, control, infer

from pipeline.repository.control import ControlSettings
from pipeline.repository.server import RepositorySettings, new_service
from pipeline.system.event_loop import LoopThread

TWO = {
    "edge": "gateway",
    "build_dag_each_worker": True,
    "worker_num": 2,
    "dag": {"start_method": "spawn"},
}
PYTHON = """
backend: "python"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
SUMS = """
instance_group [ { count: 2 } ]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input [ { name: "START"
    control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] } ]
}
"""
MODEL = """
import fcntl, os, numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        with open(%r, "a+") as starts:
            fcntl.flock(starts, fcntl.LOCK_EX)
            starts.write("x")
            if starts.tell() in %r:
                raise RuntimeError("not now")
        self.sum = 0.0

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy().reshape(1)
            start = pb_utils.get_input_tensor_by_name(request, "START")
            if start is not None and start.as_numpy().any():
                self.sum = 0.0
            self.sum += float(x[0])
            y = pb_utils.Tensor("y", numpy.array([self.sum], numpy.float32))
            answers.append(pb_utils.InferenceResponse([y]))
        return answers
"""


def add_python(repository, name, more="", fails=()):
    """A model that adds up; of its starts those of the numbers `fails` fail. Returns a file with a
    byte for each start."""
    starts = repository / f"{name}.starts"
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL % (str(starts), tuple(fails)))
    (version.parent / "config.pbtxt").write_text(PYTHON + more)
    return starts


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_identity(folder, "same", 1)
    add_identity(folder, "other", 1)
    return folder


@pytest.fixture(scope="module")
def server(models, gateway_binary):
    settings = ControlSettings((models,), "explicit", ("same",))
    service = new_service(RepositorySettings(settings, {**SERVER, **TWO}))
    service.fork()
    with contextlib.closing(LoopThread()) as thread:
        try:
            thread.run(service.start())
            yield service
        finally:
            thread.run(service.stop())


def statuses(server, name, times=4):
    """What so many requests are answered, which the gateway gives to the replicas in turns."""
    return [infer(server, name, [1.0])[0] for _ in range(times)]


def pids(server):
    return {replica.child.pid for replica in server._running if replica.status.is_started}


def inference_count(server, name):
    _, _, answer = http(server, "GET", f"/v2/models/{name}/stats")
    return answer["model_stats"][0]["inference_count"]


def test_replicas_need_no_grpc(models, gateway_binary):
    control = ControlSettings((models,), "explicit", ("same",))
    keys = {**SERVER, **TWO, "http_server": "gateway"}
    service = new_service(RepositorySettings(control, keys, closed=("rpc_port",)))
    with contextlib.closing(LoopThread()) as thread:
        service.fork()
        try:
            assert service.rpc_port is None
        finally:
            thread.run(service.stop())


def test_statistics_sum_all_replicas(server):
    before = inference_count(server, "same")  # other tests may have asked it
    assert statuses(server, "same") == [200] * 4
    for _ in range(2):
        assert inference_count(server, "same") == before + 4


def test_all_replicas_load_and_unload(server):
    assert statuses(server, "other") == [404] * 4
    assert control(server, "other", "load") == (200, None)
    assert statuses(server, "other") == [200] * 4
    assert control(server, "other", "unload") == (200, None)
    assert statuses(server, "other") == [404] * 4


def test_a_load_that_fails_in_all_replicas_is_an_error_and_the_old_model_stays(server):
    before = pids(server)
    config = '{"backend": "nothing", "max_batch_size": 1}'
    for name, status in (("same", 200), ("other", 404)):
        code, text = control(server, name, "load", config=config)
        assert (code, "unable to find backend library for backend 'nothing'" in text) == (400, True)
        assert statuses(server, name) == [status] * 4
    assert pids(server) == before


def test_a_replacement_replica_has_the_loaded_models(server):
    assert control(server, "other", "load") == (200, None)
    before = pids(server)
    os.kill(killed := min(before), signal.SIGKILL)
    wait_until(lambda: len(pids(server)) == 2 and killed not in pids(server), 30)
    wait_until(lambda: statuses(server, "other") == [200] * 4, 30)
    assert control(server, "other", "unload") == (200, None)


def test_a_replica_that_cannot_load_a_model_is_replaced(server, models):
    before = pids(server)
    starts = add_python(models, "late", fails=[2])
    assert control(server, "late", "load") == (200, None)
    wait_until(lambda: len(pids(server)) == 2 and pids(server) != before, 30)
    assert len(pids(server) & before) == 1
    assert starts.stat().st_size == 3
    wait_until(lambda: [ask_sum(server, "late")[0] for _ in range(4)] == [200] * 4, 30)


def ask_sum(server, name, **parameters):
    """(status, the sum) of one more number."""
    x = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}
    request = {"inputs": [x], "parameters": parameters}
    status, _, answer = http(server, "POST", f"/v2/models/{name}/infer", request)
    return status, answer["outputs"][0]["data"][0] if status == 200 else answer["error"]


def test_requests_of_a_sequence_reach_its_replica(server, models):
    add_python(models, "sums", SUMS)
    assert control(server, "sums", "load") == (200, None)
    for step in range(4):
        for number in (7, 8):
            fields = {"sequence_id": number, "sequence_start": step == 0}
            assert ask_sum(server, "sums", **fields) == (200, step + 1.0)
