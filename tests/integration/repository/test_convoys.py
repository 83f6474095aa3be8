"""Requests that come in one round of the server's loop continue together, unseen by callers."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import pytest
from doubles import http, wait_until
from repositories import SERVER, add_pipeline, add_python, control

from pipeline.engine.convoy_way import SharedMessages
from pipeline.repository.control import ControlSettings
from pipeline.repository.server import RepositorySettings, new_service
from pipeline.system.event_loop import LoopThread

ADDS = """
import json, os, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        found = []
        with open(os.path.join(os.path.dirname(__file__), "batches"), "a") as file:
            file.write(json.dumps([request.request_id() for request in requests]) + "\\n")
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            if array.flat[0] == -1:
                found.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("negative")))
            elif array.flat[0] == -2:
                raise ValueError("the whole batch")
            elif array.flat[0] == -3:
                os.kill(os.getpid(), 9)
            elif array.flat[0] == -5:
                while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
                    time.sleep(0.01)
                found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
            elif array.flat[0] == -4:
                found.append(pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUTPUT0", array.astype(np.float32))], parameters={"mine": 7}
                ))
            else:
                array += 1  # it is the request's own
                found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
        return found
"""
BATCHES = "dynamic_batching { }"
ALONE = ""
IN_A_THREAD = BATCHES + ' parameters { key: "workers" value { string_value: "thread" } }'
CHAIN = [
    ("a", {"INPUT0": "INPUT0"}, {"OUTPUT0": "p"}),
    ("b", {"INPUT0": "p"}, {"OUTPUT0": "q"}),
    ("c", {"INPUT0": "q"}, {"OUTPUT0": "OUTPUT0"}),
]


@contextlib.contextmanager
def serving(repository):
    """A running server whose loop can be held while requests come; see `at_once`."""
    settings = ControlSettings((repository,), "explicit")
    service = new_service(RepositorySettings(settings, SERVER))
    with contextlib.closing(LoopThread()) as thread:
        try:
            thread.run(service.start())
            yield service, thread.loop
        finally:
            thread.run(service.stop())


def bytes_of(model, values, request_id="", has_rows=True):
    shape = [1, len(values)] if has_rows else [len(values)]
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": shape, "data": values}
    said = {"id": request_id} if request_id else {}
    body = json.dumps({**said, "inputs": [tensor]}).encode()
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def reply_on(connection):
    """(status, the outputs' data, or the text of the error, and the whole answer)."""
    with connection.makefile("rb") as file:
        status = int(file.readline().split()[1])
        length = 0
        while (line := file.readline().strip().lower()) != b"":
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        answer = json.loads(file.read(length))
    return status, answer["error"] if status != 200 else answer["outputs"][0]["data"], answer


class Callers:
    """Connections to a server, on which requests are sent while its loop is held."""

    def __init__(self, served, count, has_rows=True):
        service, self._loop = served
        self.has_rows = has_rows
        self.sockets = []
        for _ in range(count):
            self.sockets.append(socket.create_connection(("127.0.0.1", service.http_port)))

    def send(self, model, requests, ids=()):
        ids = list(ids) or [f"id{number}" for number in range(len(requests))]
        held, go_on = threading.Event(), threading.Event()

        def hold():
            held.set()
            go_on.wait(30)

        self._loop.call_soon_threadsafe(hold)
        assert held.wait(30)
        for connection, values, request_id in zip(self.sockets, requests, ids, strict=False):
            connection.sendall(bytes_of(model, values, request_id, self.has_rows))
        go_on.set()

    def replies(self, count):
        return [reply_on(connection) for connection in self.sockets[:count]]

    def ask(self, model, requests, ids=()):
        self.send(model, requests, ids)
        return self.replies(len(requests))

    def hang_up(self, place):
        self.sockets[place].close()

    def close(self):
        for connection in self.sockets:
            connection.close()


@contextlib.contextmanager
def calling(served, count=8, has_rows=True):
    with contextlib.closing(Callers(served, count, has_rows)) as callers:
        yield callers


def learn(callers, model):
    """Have the server know the connections, and the form of such requests: one after the other."""
    for connection in callers.sockets:
        connection.sendall(bytes_of(model, [0.0, 0.0], "learn", callers.has_rows))
        assert reply_on(connection)[0] == 200


def are_quick(served, *names):
    """Have the server take it that models are quick, whatever this machine is at."""
    for name in names:
        (node,) = served[0].models.latest(name).served.engine.executor.nodes.values()
        for item in node.filters:
            if isinstance(item, SharedMessages):
                item._mean_ns = 1000.0


def batches(repository, name):
    file = repository / name / "1" / "batches"
    document = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    file.unlink(missing_ok=True)
    return document


def statistics(served, model):
    _, _, answer = http(served[0], "GET", f"/v2/models/{model}/stats")
    (result,) = answer["model_stats"]
    counts = {name: each["count"] for name, each in result["inference_stats"].items()}
    return result["inference_count"], result["execution_count"], counts["success"], counts["fail"]


def added(repository, config=BATCHES, most=8):
    for name in "abc":
        add_python(repository, name, ADDS, config, most)
    add_pipeline(repository, "e", most, CHAIN, "INPUT0", "OUTPUT0")


def load(served, *names):
    for name in names:
        assert control(served[0], name, "load") == (200, None)


def test_without_batches_requests_run_separately_and_share_a_message(tmp_path):
    added(tmp_path, ALONE)
    with serving(tmp_path) as served, calling(served) as callers:
        load(served, "a")
        learn(callers, "a")
        are_quick(served, "a")
        before = statistics(served, "a")
        batches(tmp_path, "a")
        with held_up(served, tmp_path):
            callers.send("a", [[float(n), 0.5] for n in range(8)])
            wait_until(lambda: [len(convoy) for convoy in convoys_of(served, "a")] == [8])
        replies = callers.replies(8)
        assert [reply[:2] for reply in replies] == [(200, [n + 1.0, 1.5]) for n in range(8)]
        assert [reply[2]["id"] for reply in replies] == [f"id{n}" for n in range(8)]
        assert batches(tmp_path, "a")[1:] == [[f"id{n}"] for n in range(8)]
        after = statistics(served, "a")
        assert [now - then for now, then in zip(after, before, strict=True)] == [9, 9, 9, 0]


@pytest.mark.parametrize(("model", "adds"), [("a", 1.0), ("e", 3.0)])
def test_requests_without_a_sample_axis_stay_apart(tmp_path, model, adds):
    added(tmp_path, ALONE, most=0)
    with serving(tmp_path) as served, calling(served, has_rows=False) as callers:
        load(served, "a", "b", "c", "e")
        learn(callers, model)
        are_quick(served, "a", "b", "c")
        with held_up(served, tmp_path, has_rows=False):
            callers.send(model, [[float(n), 0.5] for n in range(8)])
            wait_until(lambda: served[0].models.latest(model).served.engine.inside >= 8)
        replies = callers.replies(8)
        expected = [(200, [n + adds, 0.5 + adds]) for n in range(8)]
        assert [reply[:2] for reply in replies] == expected
        assert [reply[2]["outputs"][0]["shape"] for reply in replies] == [[2]] * 8


def test_together_they_may_have_more_samples_than_a_model_takes_of_one(tmp_path):
    added(tmp_path, ALONE, most=1)
    with serving(tmp_path) as served, calling(served) as callers:
        load(served, "a", "b", "c", "e")
        learn(callers, "e")
        are_quick(served, "a", "b", "c")
        replies = callers.ask("e", [[float(n), 0.5] for n in range(8)])
        assert [reply[:2] for reply in replies] == [(200, [n + 3.0, 3.5]) for n in range(8)]


def test_a_refusal_at_a_later_step_names_the_request_of_each(tmp_path):
    added(tmp_path, ALONE)
    config = tmp_path / "b" / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: [ -1 ]", "dims: [ 2 ]", 1))
    with serving(tmp_path) as served, calling(served) as callers:
        load(served, "a", "b", "c", "e")
        for connection in callers.sockets:
            connection.sendall(bytes_of("e", [0.0, 0.0, 0.0], "learn"))
            assert reply_on(connection)[0] == 400
        are_quick(served, "a", "b", "c")
        replies = callers.ask("e", [[float(n), 1.0, 2.0] for n in range(8)])
        assert [reply[0] for reply in replies] == [400] * 8
        assert [f"[request id: id{n}]" in replies[n][1] for n in range(8)] == [True] * 8


@pytest.mark.parametrize("config", [BATCHES, IN_A_THREAD], ids=["process", "thread"])
def test_requests_for_one_model_share_a_batch_and_count_separately(tmp_path, config):
    added(tmp_path, config)
    with serving(tmp_path) as served, calling(served) as callers:
        load(served, "a")
        learn(callers, "a")
        before = statistics(served, "a")
        batches(tmp_path, "a")
        # The first runs at once, as the model is idle; the others arrive while it runs.
        requests = [[float(number), 0.5] for number in range(8)]
        replies = callers.ask("a", requests)
        assert [reply[:2] for reply in replies] == [(200, [n + 1.0, 1.5]) for n in range(8)]
        assert [reply[2]["id"] for reply in replies] == [f"id{n}" for n in range(8)]
        seen = batches(tmp_path, "a")
        assert sorted(id for batch in seen for id in batch) == [f"id{n}" for n in range(8)]
        assert max(map(len, seen)) >= 4
        after = statistics(served, "a")
        assert [now - then for now, then in zip(after, before, strict=True)] == [8, len(seen), 8, 0]


@pytest.mark.parametrize(
    "config", [BATCHES, IN_A_THREAD, ALONE], ids=["process", "thread", "alone"]
)
def test_a_failing_request_and_a_special_one_are_answered_as_alone(tmp_path, config):
    added(tmp_path, config)
    with serving(tmp_path) as served, calling(served) as callers:
        load(served, "a", "b", "c", "e")
        learn(callers, "a")
        learn(callers, "e")
        are_quick(served, "a", "b", "c")
        values = [1.0, 2.0, -1.0, -4.0, 5.0, -1.0, 7.0, 8.0]
        replies = callers.ask("a", [[value, 0.0] for value in values])
        assert [reply[0] for reply in replies] == [500 if v == -1 else 200 for v in values]
        assert replies[2][1] == "negative"
        assert replies[3][1:] == ([-4.0, 0.0], {**replies[3][2], "parameters": {"mine": 7}})
        assert replies[4][1] == [6.0, 1.0]
        replies = callers.ask("e", [[value, 0.0] for value in values])
        wanted = [[value + 3, 3.0] for value in values]
        wanted[2] = wanted[5] = "in ensemble 'e', negative"
        wanted[3] = [-4.0, 0.0]
        assert [reply[1] for reply in replies] == wanted
        assert statistics(served, "e")[2:] == (8 + 6, 2)
        assert statistics(served, "b")[2:] == (8 + 6, 0)


@contextlib.contextmanager
def held_up(served, repository, has_rows=True):
    """The worker of the model `a` is at a request until the block ends."""
    with calling(served, 1, has_rows) as first:
        first.send("a", [[-5.0, 0.0]], ["first"])
        wait_until(lambda: (repository / "a" / "1" / "batches").exists())
        try:
            yield
        finally:
            (repository / "a" / "1" / "go").touch()
        assert first.replies(1)[0][0] == 200


def convoys_of(served, model):
    """Those that are in the engine of a model now."""
    requests = served[0].models.latest(model).served.engine._admission.all_requests()
    return [request.convoy for request in requests if request.convoy is not None]


def test_an_ensemble_has_them_together_at_each_step(tmp_path):
    added(tmp_path)
    with serving(tmp_path) as served, calling(served) as callers:
        load(served, "a", "b", "c", "e")
        learn(callers, "e")
        for name in "abc":
            batches(tmp_path, name)
        with held_up(served, tmp_path):
            callers.send("e", [[float(n), 0.0] for n in range(8)])
            wait_until(lambda: [len(convoy) for convoy in convoys_of(served, "e")] == [7])
            assert [len(convoy) for convoy in convoys_of(served, "a")] == [7]
        replies = callers.replies(8)
        assert [reply[:2] for reply in replies] == [(200, [n + 3.0, 3.0]) for n in range(8)]
        assert [reply[2]["id"] for reply in replies] == [f"id{n}" for n in range(8)]
        for name in "abc":
            seen = [batch for batch in batches(tmp_path, name) if batch != ["first"]]
            assert sorted(id for batch in seen for id in batch) == [f"id{n}" for n in range(8)]
            assert max(map(len, seen)) >= 7
            assert statistics(served, name)[0] == 16 + (name == "a")


def test_a_batch_that_fails_as_a_whole_fails_each_of_them_once(tmp_path):
    added(tmp_path)
    with serving(tmp_path) as served, calling(served) as callers:
        load(served, "a")
        learn(callers, "a")
        replies = callers.ask("a", [[1.0, 0.0], *[[-2.0, 0.0]] * 7])
        assert [reply[0] for reply in replies[1:]] == [500] * 7
        assert all("ValueError: the whole batch" in reply[1] for reply in replies[1:])
        inferences, _, well, failed = statistics(served, "a")
        assert well + failed == 8 + 8
        assert failed >= 7
        assert inferences == well


@pytest.mark.parametrize("config", [BATCHES, ALONE], ids=["batch", "alone"])
def test_only_the_request_that_kills_its_worker_fails(tmp_path, config):
    added(tmp_path, config)
    with serving(tmp_path) as served, calling(served) as callers:
        load(served, "a", "b", "c", "e")
        for model, more in (("a", 1.0), ("e", 3.0)):
            learn(callers, model)
            are_quick(served, "a", "b", "c")
            values = [1.0, 2.0, 3.0, -3.0, 5.0, 6.0, 7.0, 8.0]
            batches(tmp_path, "a")
            replies = callers.ask(model, [[value, 0.0] for value in values])
            assert [reply[0] for reply in replies] == [500 if v == -3 else 200 for v in values]
            assert "the worker process" in replies[3][1]
            for value, reply in zip(values, replies, strict=True):
                assert value == -3 or reply[1] == [value + more, more]
            seen = [item for batch in batches(tmp_path, "a") for item in batch]
            assert config == BATCHES or seen.count("id3") == 1  # a batch's is to be found
        assert statistics(served, "e")[2:] == (8 + 7, 1)
        assert statistics(served, "a")[2:] == (8 + 7 + 8 + 7, 2)


def test_a_disconnected_request_is_not_processed_and_others_are_answered(tmp_path):
    added(tmp_path)
    with serving(tmp_path) as served, calling(served, 6) as callers:
        load(served, "a")
        learn(callers, "a")
        batches(tmp_path, "a")
        with held_up(served, tmp_path):
            callers.send("a", [[float(n), 0.0] for n in range(6)])

            wait_until(
                lambda: [len(convoy) for convoy in convoys_of(served, "a")] == [6]
            )  # too few for a batch ahead
            callers.hang_up(3)
            wait_until(lambda: convoys_of(served, "a")[0].left == {3})
        results = [reply_on(item) for item in callers.sockets if item.fileno() >= 0]
        assert [reply[1] for reply in results] == [[n + 1.0, 1.0] for n in range(6) if n != 3]
        seen = batches(tmp_path, "a")
        assert max(map(len, seen)) == 5
        assert "id3" not in [id for batch in seen for id in batch]
        assert statistics(served, "a")[2:] == (6 + 1 + 5, 1)
