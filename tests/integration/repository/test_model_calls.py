"""Models of Python code that ask others of their server, over their workers' sockets."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from doubles import http, wait_until
from repositories import add_identity, add_python, control, serving

from pipeline.workers.process.wire import Link, Unframer

HEAD = """
import asyncio, json, os, threading, time
import numpy as np
import triton_python_backend_utils as pb

def asked(model, array, **more):
    more = {"requested_output_names": ["OUTPUT0"]} | more
    return pb.InferenceRequest(model_name=model, inputs=[pb.Tensor("INPUT0", array)], **more)

def told(text):
    return pb.InferenceResponse([pb.Tensor("OUTPUT0", np.array([[text]], object))])

class TritonPythonModel:
"""
COUNTS = """
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            number = -1
            while number + 1 < request.inputs()[0].as_numpy().flat[0]:
                number += 1
                if sender.is_cancelled():
                    break
                array = np.full((1, 1), number, np.float32)
                sender.send(pb.InferenceResponse([pb.Tensor("OUTPUT0", array)]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SENDS_LAST = """
sender = request.get_response_sender()
answer = pb.InferenceResponse([pb.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
sender.send(answer)
sender.send(answer, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG = """
backend: "python"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_%s dims: [ -1, -1 ] } ]
"""
SLEEPS = """
while request.inputs()[0].as_numpy()[0, 0] > 0 and not request.is_cancelled():
    time.sleep(0.01)
found.append(told("slept"))
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"


def add(repository, name, body, kind="STRING"):
    """A model whose `execute` has this body for each request."""
    lines = "".join(f"            {line}\n" for line in body.strip().splitlines())
    begin = f"    {'async ' * ('await' in body)}def execute(self, requests):\n        found = []\n"
    loop = "        for request in requests:\n"
    add_code(repository, name, f"{HEAD}{begin}{loop}{lines}        return found\n", kind)


def add_code(repository, name, code, kind="STRING"):
    """A model of a tensor that answers one of this kind."""
    (add_python(repository, name, code) / "config.pbtxt").write_text(CONFIG % kind)


def ask(server, model, value=2.0):
    """The text that a model answers, or its status and error."""
    sent = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [value]}]}
    status, _, answer = http(server, "POST", f"/v2/models/{model}/infer", sent)
    return answer["outputs"][0]["data"][0] if status == 200 else (status, answer["error"])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    add_identity(repository, "same", 1)
    add_python(repository, "counts", COUNTS, DECOUPLED)
    add(
        repository,
        "says",
        """
said = json.loads(request.parameters())
found.append(told(json.dumps([request.request_id(), said, request.correlation_id(),
    request.flags(), request.timeout(), list(request.requested_output_names())])))
""",
    )
    add(
        repository,
        "asks_says",
        """
answer = asked("says", request.inputs()[0].as_numpy(), request_id="r7", correlation_id=5,
    flags=3, timeout=9_000_000, parameters={"a": 1, "b": "two", "c": True}).exec()
found.append(answer)
""",
    )
    add(
        repository,
        "asks_many",
        """
array = request.inputs()[0].as_numpy()
several = [await asked(b"same", array).async_exec()]
several = await asyncio.gather(*(asked("same", array + n).async_exec() for n in range(20)))
sums = [float(each.output_tensors()[0].as_numpy()[0, 0]) for each in several]
parts = [float(each.output_tensors()[0].as_numpy()[0, 0])
    for each in await asked("counts", array).async_exec(decoupled=True)
    if each.output_tensors()]
found.append(told(json.dumps([sums, parts])))
""",
    )
    add(
        repository,
        "asks_wrong",
        """
array = request.inputs()[0].as_numpy()
wrong = [
    asked("no_such", array), asked("same", array, requested_output_names=["NO"]),
    asked("same", array.astype(np.int8)), asked("counts", array),
    asked("same", array, model_version=7), asked("same", array, correlation_id="s" * 129)]
texts = [[each.exec().error().code(), each.exec().error().message()] for each in wrong]
texts += [each.error().message() for each in asked("no_such", array).exec(decoupled=True)]
try:
    asked(7, array)
except TypeError as error:
    texts += [str(error)]
found.append(told(json.dumps(texts)))
""",
    )
    add(
        repository,
        "asks_large",
        """
array = np.arange(1_000_000, dtype=np.float32).reshape(1000, 1000)
kept = []
for turn in range(5):
    kept.append(asked("flat", array + turn).exec().output_tensors()[0].as_numpy())
good = all((each == array + turn).all() for turn, each in enumerate(kept))
found.append(told(str(good)))
""",
    )
    add(
        repository,
        "flat",
        """
array = request.inputs()[0].as_numpy()
found.append(pb.InferenceResponse([pb.Tensor("OUTPUT0", array)]))
""",
        "FP32",
    )
    add(
        repository,
        "drops",
        """
responses = asked("counts", np.full((1, 1), 1e6, np.float32)).exec(decoupled=True)
first = [float(next(responses).output_tensors()[0].as_numpy()[0, 0])
    for _ in range(3 if responses else 0)]  # some models ask whether there are any
responses.cancel()
rest = list(responses)
found.append(told(json.dumps([first, rest[-1].error().code(), rest == list(responses)[3:]])))
""",
    )
    add(
        repository,
        "asks_itself",
        """
answer = asked("asks_itself", request.inputs()[0].as_numpy(), timeout=300_000).exec()
found.append(told(str(answer.has_error())))
""",
    )
    add(
        repository,
        "waits",
        """
if request.inputs()[0].as_numpy()[0, 0] < 0:
    found.append(told(str(os.getpid())))
else:
    found.append(asked("sleeps", request.inputs()[0].as_numpy()).exec())
""",
    )
    add(
        repository,
        "sleeps",
        SLEEPS,
    )
    add(
        repository,
        "forks",
        """
pid = os.fork()
if pid == 0:
    try:
        asked("same", request.inputs()[0].as_numpy()).exec()
    finally:
        os._exit(3)
left = asked("same", request.inputs()[0].as_numpy()).exec().has_error()
found.append(told(str([os.waitpid(pid, 0)[1] >> 8, left])))
""",
    )
    with serving(repository, mode="none") as running:
        yield running


def test_a_call_has_the_attributes_of_its_request(server):
    document = json.loads(ask(server, "asks_says"))
    own = {"a": 1, "b": "two", "c": True}
    assert document == ["r7", own, 5, 3, 9_000_000, ["OUTPUT0"]]


def test_many_calls_run_concurrently_and_answers_may_have_parts(server):
    sums, parts = json.loads(ask(server, "asks_many", 4.0))
    assert sums == [4.0 + number for number in range(20)]
    assert parts == [0.0, 1.0, 2.0, 3.0]


def test_calls_that_cannot_be_are_errors_with_codes(server):
    texts = json.loads(ask(server, "asks_wrong"))
    begin = "Model {} - Error when running inference: "
    assert texts[0] == [
        2,
        begin.format("no_such") + "Request for unknown model: 'no_such' is not found",
    ]
    assert texts[1][0] == 3
    assert "unexpected inference output 'NO' for model 'same'" in texts[1][1]
    assert texts[2][0] == 3
    assert "data-type" in texts[2][1]
    assert texts[3][0] == 5
    assert "'decoupled=True'" in texts[3][1]
    assert texts[4][0] == 2
    limit = "string correlation ID cannot exceed 128 characters: 'sequence_id' has 129"
    assert texts[5] == [3, begin.format("same") + limit]
    assert texts[6] == texts[0][1]
    assert texts[7] == "expected a text, found int"


def test_large_arrays_are_passed_and_belong_to_the_model(server):
    for _ in range(3):
        assert ask(server, "asks_large") == "True"
    memory = server._processes.processes.memory
    loop = server._processes.processes.zygotes._loop

    async def used():
        return memory.used

    wait_until(lambda: asyncio.run_coroutine_threadsafe(used(), loop).result() == 0)


def test_a_model_that_drops_a_stream_has_it_cancelled(server):
    assert json.loads(ask(server, "drops")) == [[0.0, 1.0, 2.0], 7, True]
    assert json.loads(ask(server, "asks_many", 1.0))[1] == [0.0], "it takes others"


def test_a_model_that_waits_for_itself_ends_by_its_timeout(server):
    assert ask(server, "asks_itself") == "True"


def test_a_worker_that_dies_cancels_its_calls(server):
    pid = int(ask(server, "waits", -1.0))
    with ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(ask, server, "waits", 1.0)
        entry = server.models.latest("sleeps")
        wait_until(
            lambda: any(True for _ in entry.served.engine.executor.nodes[entry.op].workers.busy())
        )
        os.kill(pid, signal.SIGKILL)
        assert waiting.result(30)[0] == 500
    assert ask(server, "sleeps", -1.0) == "slept", "its only worker is free again"


def test_a_forked_child_of_a_model_cannot_call_and_does_not_affect_the_model(server):
    assert ask(server, "forks") == "[3, False]"


CHANGES = """
    def execute(self, requests):
        name, said = "late", []
        said.append(pb.is_model_ready(name))
        pb.load_model(model_name=name)
        said.append(pb.is_model_ready(name))
        said.append(pb.is_model_ready(name, "2"))
        said.append(asked(name, requests[0].inputs()[0].as_numpy()).exec().has_error())
        pb.unload_model(name)
        said.append(pb.is_model_ready(name))
        try:
            pb.load_model(name, config="{")
        except pb.TritonModelException as error:
            said.append(str(error))
        return [told(json.dumps(said))]
"""
ASKS_EARLY = """
    def initialize(self, args):
        asked("late", np.zeros((1, 1), np.float32)).exec()

    def execute(self, requests):
        return []
"""


def test_models_load_and_unload_others_but_ask_them_only_when_they_execute(tmp_path):
    add_identity(tmp_path, "late", 1)
    add_code(tmp_path, "changes", HEAD + CHANGES)
    add_code(tmp_path, "early", HEAD + ASKS_EARLY)
    with serving(tmp_path, models=("changes",)) as server:
        *steps, wrong = json.loads(ask(server, "changes"))
        assert steps == [False, True, False, False, False], "it was never loaded at first"
        assert "late" in wrong
        status, text = control(server, "early", "load")
        assert status == 400
        assert "BLS is only supported during the 'execute' function." in text


def test_a_request_that_is_dropped_is_not_that_of_another_model(tmp_path):
    add(tmp_path, "sleeps", SLEEPS)
    add(tmp_path, "looks", "found.append(told(str(request.is_cancelled())))")
    body = 'found.append(asked("sleeps", request.inputs()[0].as_numpy(), timeout=50_000).exec())'
    add(tmp_path, "asks", body)
    with serving(tmp_path, mode="none") as server:
        assert "Request timeout expired" in ask(server, "asks")[1], "it was dropped"
        assert ask(server, "looks") == "False", "of its first request"


def test_the_last_of_several_responses_is_followed_by_an_empty_one_unless_it_is_final(
    tmp_path,
):
    add_python(tmp_path, "counts", COUNTS, DECOUPLED)
    add(tmp_path, "last", SENDS_LAST, "FP32")
    config = tmp_path / "last" / "config.pbtxt"
    config.write_text(config.read_text() + DECOUPLED)
    code = tmp_path / "last" / "1" / "model.py"
    code.write_text(code.read_text().replace("return found", "return None"))
    body = """
of = lambda name: [len(each.output_tensors())
    for each in asked(name, request.inputs()[0].as_numpy()).exec(decoupled=True)]
found.append(told(str([of("counts"), of("last")])))
"""
    add(tmp_path, "asks", body)
    with serving(tmp_path, mode="none") as server:
        assert ask(server, "asks") == "[[1, 1, 0], [1, 1]]"


LOADS_FOUR = """
    def initialize(self, args):
        name = args["model_name"]
        begun = os.path.join(os.path.dirname(args["model_repository"]), "begun")
        os.makedirs(begun, exist_ok=True)
        open(os.path.join(begun, name), "w").close()
        while len(os.listdir(begun)) < 4:
            time.sleep(0.01)
        pb.load_model(model_name="part" + name)

    def execute(self, requests):
        return [told(str(pb.is_model_ready("part" + each.model_name()))) for each in requests]
"""


def test_concurrent_loads_that_load_other_models_do_not_deadlock(tmp_path):
    outer = ("a", "b", "c", "d")  # as many as are loaded at a time
    for name in outer:
        add_identity(tmp_path, f"part{name}", 1)
        add_code(tmp_path, name, HEAD + LOADS_FOUR)
    with serving(tmp_path, models=outer) as server:
        assert [ask(server, name) for name in outer] == ["True"] * 4


LARGE = """
answer = np.full((1, 100_000), "text", object)
found.append(pb.InferenceResponse([pb.Tensor("OUTPUT0", answer)]))
"""
LOADS_LARGE = """
file = open(os.path.join(os.path.dirname(__file__), "other.py"), "rb").read()
config = open(os.path.join(os.path.dirname(__file__), "other.json")).read()
pb.load_model("other", config, {"file:1/model.py": file + b"#" * 1_000_000})
many = [pb.Tensor(f"x{i}", np.ones(4000, np.float32)) for i in range(30)]
for inputs in [pb.Tensor("x" * 1_000_000, np.ones(1))], many:
    request = pb.InferenceRequest(
        model_name="other", inputs=inputs, requested_output_names=["OUTPUT0"]
    )
    assert request.exec().has_error()
answer = asked("other", np.ones((1, 300_000), np.float32)).exec()
found.append(told(str(answer.output_tensors()[0].as_numpy().shape)))
"""


def test_the_sockets_of_workers_carry_nothing_of_a_callers_size(tmp_path, monkeypatch):
    """The event loop reads and writes them: large data is in shared memory."""
    lengths = []
    send, feed = Link.send, Unframer.feed

    def sending(link, frame):
        lengths.append(len(frame))
        send(link, frame)

    def feeding(unframer, data):
        bodies = feed(unframer, data)
        lengths.extend(map(len, bodies))
        return bodies

    monkeypatch.setattr(Link, "send", sending)
    monkeypatch.setattr(Unframer, "feed", feeding)
    add(tmp_path / "apart", "other", LARGE)
    add(tmp_path / "models", "loads", LOADS_LARGE)
    tensor = {"data_type": "TYPE_FP32", "dims": [-1, -1]}
    config = {
        "backend": "python",
        "input": [{"name": "INPUT0", **tensor}],
        "output": [{"name": "OUTPUT0", **tensor, "data_type": "TYPE_STRING"}],
    }
    folder = tmp_path / "models" / "loads" / "1"
    shutil.copy(tmp_path / "apart" / "other" / "1" / "model.py", folder / "other.py")
    (folder / "other.json").write_text(json.dumps(config))
    with serving(tmp_path / "models", models=("loads",)) as server:
        assert ask(server, "loads") == "(1, 100000)"
    assert max(lengths) < 64 * 1024
