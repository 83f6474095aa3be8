"""Models of Python code in a server: in processes, completed, decoupled, asking each other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from doubles import http, wait_until
from repositories import add_python, control, infer, serving

from pipeline.errors import InitError
from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.v2.codec import add_tensor
from pipeline.repository.backends.base import ModelSource
from pipeline.repository.backends.python.backend import PYTHON
from pipeline.system.event_loop import loop_factory

DOUBLES = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        found = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            if array.flat[0] < 0:
                found.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("negative")))
                continue
            if array.flat[0] == 1000:
                array = array * 0 + os.getpid()
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array * 2)]))
        return found

    def finalize(self):
        open(os.path.join(os.path.dirname(__file__), "finalized"), "w").close()
"""
ASKS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        print("printed, not answered")
        config.set_max_batch_size(4)
        config.add_input({"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]})
        return config

    def execute(self, requests):
        found = []
        for request in requests:
            asked = pb_utils.InferenceRequest(
                model_name="twice", requested_output_names=["OUTPUT0"], inputs=request.inputs()
            )
            answer = asked.exec()
            if answer.has_error():
                found.append(pb_utils.InferenceResponse(error=answer.error()))
            else:
                found.append(pb_utils.InferenceResponse(answer.output_tensors()))
        return found
"""
COUNTS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(request.inputs()[0].as_numpy().flat[0])):
                array = np.full((1, 1), number, np.float32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_models_run_in_processes_and_ask_each_other(tmp_path):
    folder = add_python(tmp_path, "twice", DOUBLES, "dynamic_batching {}")
    add_python(tmp_path, "asks", ASKS, config=None)
    with serving(tmp_path, mode="none") as server:
        assert infer(server, "twice", [1.0, 2.0]) == (200, {"OUTPUT0": [2.0, 4.0]})
        assert infer(server, "twice", [-1.0]) == (500, "negative")
        assert http(server, "GET", "/v2/models/asks/config")[2]["max_batch_size"] == 4
        assert infer(server, "asks", [3.0]) == (200, {"OUTPUT0": [6.0]})
        status, text = infer(server, "asks", [-3.0])
        assert (status, text) == (500, "negative")
        _, result = infer(server, "twice", [1000.0])
        pid = int(result["OUTPUT0"][0]) // 2
        assert pid != os.getpid()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: infer(server, "twice", [1.0])[0] == 200)
        _, _, answer = http(server, "GET", "/v2/models/twice/stats")
        assert answer["model_stats"][0]["inference_stats"]["fail"]["count"] >= 2
    assert (folder / "1" / "finalized").exists()


IN_THREADS = 'parameters: { key: "workers" value: { string_value: "%s" } }'


def test_instances_may_be_threads_of_the_server(tmp_path):
    folder = add_python(tmp_path, "twice", DOUBLES, "dynamic_batching {}" + IN_THREADS % "thread")
    add_python(tmp_path, "asks", ASKS, config=None)
    with serving(tmp_path, mode="none") as server:
        assert infer(server, "twice", [1000.0]) == (200, {"OUTPUT0": [2.0 * os.getpid()]})
        assert infer(server, "twice", [-1.0]) == (500, "negative")
        assert infer(server, "asks", [3.0]) == (200, {"OUTPUT0": [6.0]})
    assert (folder / "1" / "finalized").exists()


def test_a_model_that_cannot_run_in_threads_is_refused(tmp_path):
    add_python(tmp_path, "lost", DOUBLES, IN_THREADS % "fiber")
    add_python(tmp_path, "two", DOUBLES, "instance_group { count: 2 }" + IN_THREADS % "thread")
    with serving(tmp_path) as server:
        status, said = control(server, "lost", "load")
        assert status == 400
        assert "parameters: workers: expected process or thread, found 'fiber'" in said
        status, said = control(server, "two", "load")
        assert status == 400
        assert "a model in threads of the server has one instance, not 2" in said


def test_a_decoupled_model_answers_in_parts(tmp_path):
    policy = "model_transaction_policy { decoupled: true }"
    add_python(tmp_path, "counts", COUNTS, policy)
    with serving(tmp_path, mode="none") as server:
        url = f"http://127.0.0.1:{server.http_port}/v2/models/counts/generate_stream"
        with urllib.request.urlopen(url, json.dumps({"INPUT0": 3.0}).encode()) as answer:
            events = answer.read().decode().split("\n\n")[:-1]
        parts = [json.loads(event.removeprefix("data: ")) for event in events]
        assert [part["OUTPUT0"] for part in parts] == [0, 1, 2]
        assert infer(server, "counts", [1.0])[0] == 501


LATER = """
import os, threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.waiting = []

    def execute(self, requests):
        self.waiting += requests
        if len(self.waiting) == 3:
            threading.Thread(target=self.answer).start()

    def answer(self):
        senders = [request.get_response_sender() for request in reversed(self.waiting)]
        for number in range(100):
            array = np.full((1, 1), number, np.float32)
            for sender in senders:
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
        for request, sender in zip(reversed(self.waiting), senders):
            if request.inputs()[0].as_numpy().flat[0] < 0:
                os.kill(os.getpid(), 9)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self.waiting.clear()
"""


def test_a_decoupled_model_has_several_requests_at_once(tmp_path):
    policy = "model_transaction_policy { decoupled: true }"
    add_python(tmp_path, "later", LATER, policy)
    with serving(tmp_path, mode="none") as server, ThreadPoolExecutor(3) as callers:
        url = f"http://127.0.0.1:{server.http_port}/v2/models/later/generate_stream"

        def ask(value):
            with urllib.request.urlopen(url, json.dumps({"INPUT0": value}).encode()) as answer:
                events = answer.read().decode().split("\n\n")[:-1]
            parts = [json.loads(event.removeprefix("data: ")) for event in events]
            return [part.get("OUTPUT0", part.get("error")) for part in parts]

        for _ in range(2):
            assert list(callers.map(ask, [1.0, 2.0, 3.0])) == [list(range(100))] * 3
        for parts in callers.map(ask, [-1.0, -2.0, -3.0]):
            assert "was killed by SIGKILL" in parts[-1]
        wait_until(lambda: list(callers.map(ask, [1.0, 2.0, 3.0])) == [list(range(100))] * 3)


TOGETHER = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    left = 0

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request, len(requests))).start()
        if any(request.inputs()[0].as_numpy().flat[0] < 0 for request in requests):
            raise ValueError("one of these is wrong")

    def answer(self, request, together):
        sender, number = request.get_response_sender(), request.inputs()[0].as_numpy().flat[0]
        for _ in range(int(number)):
            if sender.is_cancelled():
                self.left += 1
                break
            array = np.full((1, 1), together + 10 * self.left, np.float32)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
        if number >= 0:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
GATHERED = """
model_transaction_policy { decoupled: true }
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 60000000 }
"""


def test_a_decoupled_model_gets_a_batch_with_a_sender_for_each_request(tmp_path):
    add_python(tmp_path, "together", TOGETHER, GATHERED)
    with serving(tmp_path, mode="none") as server, ThreadPoolExecutor(4) as callers:
        url = f"http://127.0.0.1:{server.http_port}/v2/models/together/generate_stream"

        def ask(value):
            sent = json.dumps({"INPUT0": value}).encode()
            try:
                with urllib.request.urlopen(url, sent) as answer:
                    events = answer.read().decode().split("\n\n")[:-1]
            except urllib.error.HTTPError as error:
                return error.read().decode()
            return [json.loads(event.removeprefix("data: "))["OUTPUT0"] for event in events]

        for _ in range(2):
            assert list(callers.map(ask, [0.0, 1.0, 100.0, 3.0])) == [
                [4] * n for n in (0, 1, 100, 3)
            ]
        of_model = http(server, "GET", "/v2/models/together/stats")[2]["model_stats"][0]
        assert of_model["inference_count"] == 8
        others = [callers.submit(ask, value) for value in (1.0, 100.0, 100.0)]
        with urllib.request.urlopen(url, json.dumps({"INPUT0": 1e9}).encode()) as answer:
            answer.readline()
            assert [len(other.result()) for other in others] == [1, 100, 100]
        wait_until(lambda: list(callers.map(ask, [1.0] * 4)) == [[14]] * 4)
        for said in callers.map(ask, [-1.0, -2.0, -3.0, -4.0]):
            assert "one of these is wrong" in said, "nobody has got a part"


ERRS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, array = request.get_response_sender(), request.inputs()[0].as_numpy()
            good = pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", array)], parameters={"of": "a part"})
            bad = pb_utils.InferenceResponse(error=pb_utils.TritonError("this one failed"))
            several = [good, bad, good] if array.flat[0] > 0 else [bad, good]
            for response in several:
                sender.send(response)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_an_error_of_several_responses_does_not_end_them(tmp_path):
    policy = "model_transaction_policy { decoupled: true }"
    add_python(tmp_path, "errs", ERRS, policy)
    with serving(tmp_path, mode="none") as server:
        url = f"http://127.0.0.1:{server.http_port}/v2/models/errs/generate_stream"
        with urllib.request.urlopen(url, json.dumps({"INPUT0": 2.0}).encode()) as answer:
            events = answer.read().decode().split("\n\n")[:-1]
        parts = [json.loads(event.removeprefix("data: ")) for event in events]
        good, bad, last = parts
        assert good == last
        assert (good["OUTPUT0"], good["of"]) == (2.0, "a part")
        assert bad == {"error": "this one failed"}
        status, _, answer = http(server, "POST", "/v2/models/errs/generate", {"INPUT0": -2.0})
        assert (status, answer["error"]) == (500, "this one failed"), "there is a status yet"


SAYS_MORE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        found = []
        for request in requests:
            tensor = pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())
            wrong = tensor.as_numpy().flat[0] < 0
            try:
                said = {"a": 1.5} if wrong else {"a": 1, "b": "two", "c": True}
                found.append(pb_utils.InferenceResponse([tensor], parameters=said))
            except pb_utils.TritonModelException as error:
                found.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), 3)))
        return found
"""


def test_a_response_may_have_parameters(tmp_path):
    add_python(tmp_path, "says", SAYS_MORE, "dynamic_batching {}")
    sent = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [3.0]}]}
    wanted = {**sent, "outputs": [{"name": "OUTPUT0"}]}
    with serving(tmp_path, mode="none") as server:
        for request in (sent, sent, wanted, wanted):  # the second of each is known to the lane
            _, _, answer = http(server, "POST", "/v2/models/says/infer", request)
            assert answer["parameters"] == {"a": 1, "b": "two", "c": True}
            assert [item["name"] for item in answer["outputs"]] == ["OUTPUT0"]
        status, text = infer(server, "says", [-1.0])
        assert status == 400
        assert "values to have type bool/int/str, found type <class 'float'>" in text


def test_a_model_that_does_not_start_gives_the_reason(tmp_path):
    code = (
        "class TritonPythonModel:\n    def initialize(self, args):\n        raise OSError('no')\n"
    )
    add_python(tmp_path, "broken", code)
    add_python(tmp_path, "wrong", ASKS.replace("(4)", "('four')"), config=None)
    (tmp_path / "empty" / "1").mkdir(parents=True)
    (tmp_path / "empty" / "config.pbtxt").write_text('backend: "python"')
    with serving(tmp_path) as server:
        status, text = control(server, "broken", "load")
        assert status == 400
        assert "Internal: OSError: no" in text
        status, text = control(server, "wrong", "load")
        assert status == 400, text
        status, text = control(server, "empty", "load")
        assert "Python model file not found" in json.dumps(text)


SUMS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        found = []
        for request in requests:
            of = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            key = of["CORRID"].item()
            assert of["START"].shape == (1, 1)
            if of["START"].item():
                self.sums[key] = 0
            self.sums[key] += of["INPUT0"].item()
            array = np.full((1, 1), self.sums[key], np.float32)
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
        return found
"""
SEQUENCES = """
sequence_batching { oldest {} control_input [
  { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } },
  { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } ] }
instance_group { count: 2 kind: KIND_CPU }
"""


INHERITS = """
import pathlib, sys
sys.path.append(str(pathlib.Path(__file__).parent))
from elsewhere_%s import *
"""


def test_an_inherited_hook_is_called(tmp_path):
    for name, code in (("asks", ASKS), ("doubles", DOUBLES)):
        folder = add_python(tmp_path, name, INHERITS % name, config=None)
        (folder / "config.pbtxt").write_text('backend: "python"')
        (folder / "1" / f"elsewhere_{name}.py").write_text(code)
    with serving(tmp_path, models=("asks",)) as server:
        assert http(server, "GET", "/v2/models/asks")[2]["inputs"][0]["name"] == "INPUT0"
        assert control(server, "doubles", "load") == (200, None), "no outputs, as in Triton"
        assert http(server, "GET", "/v2/models/doubles")[2]["outputs"] == []


BARE = """
import sys
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        said = np.array([len(sys.argv)], np.float32)
        return [pb.InferenceResponse([pb.Tensor("OUTPUT0", said)]) for _ in requests]
"""


OTHER_TYPES = """
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        arrays = [each.inputs()[0].as_numpy() for each in requests]
        return [pb.InferenceResponse([pb.Tensor("OUTPUT0", array)]) for array in arrays]
"""


def test_an_output_of_a_type_that_the_configured_one_cannot_hold_is_sent_as_it_is(tmp_path):
    folder = add_python(tmp_path, "other", OTHER_TYPES)
    config = folder / "config.pbtxt"
    head, _, output = config.read_text().partition("output")
    config.write_text(f"{head}output{output.replace('TYPE_FP32', 'TYPE_BOOL')}")
    with serving(tmp_path, "none") as server:
        for _ in range(3):  # a known form takes another way
            sent = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 2.0]}
            _, _, answer = http(server, "POST", "/v2/models/other/infer", {"inputs": [sent]})
            (tensor,) = answer["outputs"]
            assert (tensor["datatype"], tensor["data"]) == ("FP32", [0.5, 2.0])


def test_a_model_may_have_no_inputs_and_sees_no_arguments_of_the_server(tmp_path, monkeypatch):
    config = 'backend: "python" output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]'
    (add_python(tmp_path, "bare", BARE) / "config.pbtxt").write_text(config)
    monkeypatch.setattr(sys, "argv", ["server", "--flag"])
    with serving(tmp_path, mode="none") as server:
        assert http(server, "GET", "/v2/models/bare")[2]["inputs"] == []
        for _ in range(3):
            status, _, answer = http(server, "POST", "/v2/models/bare/infer", {"inputs": []})
            assert (status, answer["outputs"][0]["data"]) == (200, [1.0])


AGAIN = """
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        self.rounds = {}

    def execute(self, requests):
        found = []
        for request in requests:
            left = request.inputs()[0].as_numpy()
            rounds = self.rounds[id(request)] = self.rounds.get(id(request), 0) + 1
            answer = pb.InferenceResponse([pb.Tensor("OUTPUT0", np.full_like(left, rounds))])
            is_over = rounds > left.flat[0]
            if is_over:
                del self.rounds[id(request)]  # another request may have that id next
            else:
                request.set_release_flags(pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            if left.flat[0] == 77 and not is_over:
                found.append(answer)
            else:
                found.append(answer if is_over else None)
        return found
"""
PARTS = """
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        for request in requests:
            first = int(request.inputs()[0].as_numpy().flat[0])
            left = self.left[id(request)] = self.left.get(id(request), first) - 1
            array = np.full((1, 1), left, np.float32)
            sender = request.get_response_sender()
            sender.send(pb.InferenceResponse([pb.Tensor("OUTPUT0", array)]))
            if left > 0:
                request.set_release_flags(pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                del self.left[id(request)]
                sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                request.set_release_flags(pb.TRITONSERVER_REQUEST_RELEASE_ALL)
"""
ITERATIVE = "sequence_batching { iterative_sequence: true }"


NO_RESCHEDULE = "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model"


@pytest.mark.parametrize("config", ["", "dynamic_batching { }", "sequence_batching { }"])
def test_only_an_iterative_model_may_reschedule(config, tmp_path):
    decoupled = f"model_transaction_policy {{ decoupled: true }} {config}"
    add_python(tmp_path, "again", AGAIN, config)
    add_python(tmp_path, "parts", PARTS, decoupled)
    step = {"sequence_id": 5, "sequence_start": True} if "sequence" in config else {}
    with serving(tmp_path, mode="none") as server:
        sent = {"INPUT0": [3.0], **step}
        status, _, answer = http(server, "POST", "/v2/models/again/generate", sent)
        assert (status, NO_RESCHEDULE in answer["error"]) == (500, True)
        part, error = streamed(server, "parts", 3, **step)
        assert (part, NO_RESCHEDULE in error) == (2.0, True)


def test_a_rescheduled_request_runs_again(tmp_path):
    add_python(tmp_path, "again", AGAIN, ITERATIVE)
    with serving(tmp_path, mode="none") as server:
        for rounds in (0.0, 1.0, 3.0, 2000.0):
            assert infer(server, "again", [rounds]) == (200, {"OUTPUT0": [rounds + 1]})
        status, text = infer(server, "again", [77.0])
        assert (status, "Expected a None object in the execute function" in text) == (500, True)


def streamed(server, model, value, sequence_id=0, sequence_start=False):
    """What a model sends for a request, over gRPC: values and errors."""
    request = pb.ModelInferRequest(model_name=model)
    request.parameters["sequence_id"].int64_param = sequence_id
    request.parameters["sequence_start"].bool_param = sequence_start
    array = np.full((1, 1), value, np.float32)
    add_tensor(request.inputs, request.raw_input_contents, "INPUT0", array)
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = call(iter([request.SerializeToString()]))
        results = [pb.ModelStreamInferResponse.FromString(answer) for answer in answers]
        return [
            result.error_message
            or np.frombuffer(result.infer_response.raw_output_contents[0], "f4")[0]
            for result in results
        ]


def test_a_rescheduled_decoupled_request_runs_again(tmp_path):
    config = "model_transaction_policy { decoupled: true } " + ITERATIVE
    add_python(tmp_path, "parts", PARTS, config)
    with serving(tmp_path, mode="none") as server:
        assert streamed(server, "parts", 3) == [2.0, 1.0, 0.0]


def test_sequences_stay_with_an_instance_and_have_controls(tmp_path):
    add_python(tmp_path, "sums", SUMS, SEQUENCES)
    with serving(tmp_path, mode="none") as server:
        sums = {}
        for step in range(3):
            for key in range(1, 5):
                fields = {
                    "sequence_id": key,
                    "sequence_start": step == 0,
                    "sequence_end": step == 2,
                }
                x = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [key]}
                status, _, answer = http(
                    server, "POST", "/v2/models/sums/infer", {"inputs": [x], "parameters": fields}
                )
                assert status == 200, answer
                sums[key] = answer["outputs"][0]["data"]
        assert sums == {key: [3.0 * key] for key in range(1, 5)}


def test_workers_of_all_models_are_forked_by_two_replaceable_zygotes(tmp_path):
    for name in ("a", "b", "c"):
        add_python(tmp_path, name, DOUBLES)

    def parent(model):
        pid = int(infer(server, model, [1000.0])[1]["OUTPUT0"][0]) // 2
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("PPid:")[2].split()[0])

    def has_a_new_parent(model):
        with contextlib.suppress(
            TypeError, LookupError, OSError
        ):  # it has no worker, or one that is ending
            return parent(model) != zygote

    with serving(tmp_path, models=("a", "b")) as server:
        zygote = parent("a")
        assert parent("b") == zygote
        assert control(server, "c", "load") == (200, None)
        assert parent("c") == zygote
        arena = server._processes.processes.memory.arena
        regions = arena._count
        for _ in range(6):
            control(server, "c", "unload")
            wait_until(lambda: not server.models.versions("c"))
            assert control(server, "c", "load") == (200, None)
        assert arena._count <= regions + 3, "they are used again; a worker may still be ending"
        os.kill(zygote, signal.SIGKILL)  # its workers go with it, a moment later
        wait_until(lambda: all(map(has_a_new_parent, ("a", "b", "c"))))


def children(pid):
    with contextlib.suppress(OSError):  # it is gone
        return [int(part) for part in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def test_every_request_ends_while_workers_and_zygotes_are_killed(tmp_path):
    for name in ("a", "b"):
        add_python(tmp_path, name, DOUBLES, "dynamic_batching {}")
    with serving(tmp_path, mode="none") as server, ThreadPoolExecutor(8) as callers:

        def ask(number):
            return infer(server, "ab"[number % 2], [float(number)], rows=1)[0]

        asked = [callers.submit(ask, number) for number in range(200)]
        for _ in range(4):
            result = server._processes.processes.zygotes._zygotes
            zygotes = [item.pid for item in list(result) if item.pid is not None]  # known by now
            for pid in [*zygotes[:1], *(pid for zygote in zygotes[1:] for pid in children(zygote))]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        statuses = {item.result(60) for item in asked}
        assert statuses <= {200, 500, 503}, statuses
        wait_until(lambda: infer(server, "a", [1.0])[0] == infer(server, "b", [1.0])[0] == 200)


def test_a_sequence_id_of_the_wrong_type_is_refused(tmp_path):
    add_python(tmp_path, "sums", SUMS, SEQUENCES)
    with serving(tmp_path, mode="none") as server:
        sent = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}
        fields = {"sequence_id": "text", "sequence_start": True}
        status, _, answer = http(
            server, "POST", "/v2/models/sums/infer", {**sent, "parameters": fields}
        )
        assert status == 400
        assert "'CORRID' data-type is 'BYTES', but model 'sums' expects" in answer["error"]


def test_a_version_that_failed_is_not_ready(tmp_path):
    code = "class TritonPythonModel:\n    def initialize(self, args):\n        1 / 0\n"
    add_python(tmp_path, "broken", code)
    with serving(tmp_path) as server:
        control(server, "broken", "load")
        for path, status, text in (
            ("", 404, "has no available versions"),
            ("/versions/1", 503, "version 1 is not at ready state"),
            ("/versions/2", 404, "version 2 is not found"),
            ("/versions/18446744073709551616", 400, "failed to get model version"),
        ):
            result, _, answer = http(server, "GET", f"/v2/models/broken{path}")
            assert (result, text in answer["error"]) == (status, True), answer


SLEEPS = """
import asyncio
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.there, self.all_there = 0, asyncio.Event()

    async def execute(self, requests):
        sender = requests[0].get_response_sender()
        self.there += 1
        if self.there == 3:
            self.all_there.set()
        await self.all_there.wait()
        tensor = pb_utils.Tensor("OUTPUT0", requests[0].inputs()[0].as_numpy())
        self.task = asyncio.ensure_future(self.later(sender, pb_utils.InferenceResponse([tensor])))

    async def later(self, sender, response):
        await asyncio.sleep(0)
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_coroutines_of_a_decoupled_model_run_side_by_side(tmp_path):
    add_python(tmp_path, "sleeps", SLEEPS, "model_transaction_policy { decoupled: true }")
    with serving(tmp_path, mode="none") as server, ThreadPoolExecutor(3) as callers:

        def ask(value):
            return http(server, "POST", "/v2/models/sleeps/generate", {"INPUT0": value})[2]

        result = list(callers.map(ask, [1.0, 2.0, 3.0]))
        assert [item["OUTPUT0"] for item in result] == [1.0, 2.0, 3.0]


def test_a_completion_that_fails_without_reading_gives_its_reason(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no packages >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    config = pb.ModelConfig(default_model_filename="model.py")
    source = ModelSource("asks", 1, add_python(tmp_path, "asks", ASKS, config=None), config)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        for _ in range(20):  # the program may end before or after the first byte is written
            with pytest.raises(InitError, match="no packages"):
                runner.run(PYTHON.complete(source))


ADDER = """
import json
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1, -1]})
        config.add_output({"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1, -1]})
        return config

    def initialize(self, args):
        with open(os.path.join(pb_utils.get_model_dir(), "model.json")) as file:
            self.summand = json.load(file)

    def execute(self, requests):
        arrays = [request.inputs()[0].as_numpy() + self.summand for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", a)]) for a in arrays]
"""


def test_a_backend_can_be_a_python_file_of_the_backend_directory(tmp_path):
    backend = tmp_path / "backends" / "adder"
    backend.mkdir(parents=True)
    (backend / "model.py").write_text(ADDER)
    for name, summand in (("one", 1), ("ten", 10)):
        version = tmp_path / "models" / name / "1"
        version.mkdir(parents=True)
        (version / "model.json").write_text(str(summand))
        (version.parent / "config.pbtxt").write_text('backend: "adder"')
    with serving(tmp_path / "models", "none", backend_directory=backend.parent) as server:
        assert infer(server, "one", [1.0, 2.0]) == (200, {"OUTPUT0": [2.0, 3.0]})
        assert infer(server, "ten", [1.0, 2.0]) == (200, {"OUTPUT0": [11.0, 12.0]})


def test_a_missing_backend_is_named_with_the_expected_file(tmp_path):
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text('backend: "adder"')
    with serving(tmp_path / "models", backend_directory=tmp_path) as server:
        status, text = control(server, "m", "load")
    assert status == 400
    assert "backend 'adder'" in text
    assert str(tmp_path / "adder" / "model.py") in text


@pytest.mark.parametrize("name", ["../outside", "{folder}/outside", ".."])
def test_a_backend_outside_of_the_backend_directory_is_not_run(tmp_path, name):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "model.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    backend = name.format(folder=tmp_path)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text(f'backend: "{backend}"')
    with serving(tmp_path / "models", backend_directory=tmp_path / "backends") as server:
        status, text = control(server, "m", "load")
    assert status == 400
    assert "unable to find backend library" in text


SUMS_IN_PARTS = """
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        for request in requests:
            id, array = request.correlation_id(), request.inputs()[0].as_numpy()
            first = request.flags() & pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
            self.sums[id] = array.sum() + (0 if first else self.sums[id])
            sender = request.get_response_sender()
            for part in (-1, self.sums[id]):
                sum = np.full((1, 1), part, np.float32)
                sender.send(pb.InferenceResponse([pb.Tensor("OUTPUT0", sum)]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_a_decoupled_model_may_have_sequences(strategy, tmp_path):
    idle = "max_sequence_idle_microseconds: 60000000"
    sequences = f"sequence_batching {{ {strategy} {{ }} {idle} }}"
    add_python(
        tmp_path,
        "sums",
        SUMS_IN_PARTS,
        f"model_transaction_policy {{ decoupled: true }} {sequences}",
    )
    with serving(tmp_path, mode="none") as server:
        for value, sums in ((1, (1, 1)), (2, (3, 3)), (5, (8, 8))):
            found = [streamed(server, "sums", value, id, value == 1) for id in (7, 8)]
            assert found == [[-1.0, sum] for sum in sums]
        (error,) = streamed(server, "sums", 1, 9)
        assert "must specify the START flag on the first request of the sequence" in error


DIES = """
import os
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        for request in requests:
            id, array = request.correlation_id(), request.inputs()[0].as_numpy()
            self.sums[id] = array.sum() + self.sums.get(id, 0)
        if len(requests) == 2 and self.sums[id] > 10:
            os._exit(1)
        for request in requests:
            sender = request.get_response_sender()
            sum = np.full((1, 1), self.sums[request.correlation_id()], np.float32)
            final = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            sender.send(pb.InferenceResponse([pb.Tensor("OUTPUT0", sum)]), flags=final)
"""


def test_steps_of_a_decoupled_model_do_not_run_again_after_the_worker_has_died(tmp_path):
    full = "minimum_slot_utilization: 1 max_queue_delay_microseconds: 60000000"
    idle = "max_sequence_idle_microseconds: 60000000"
    sequences = f"sequence_batching {{ direct {{ {full} }} {idle} }}"
    decoupled = "model_transaction_policy { decoupled: true }"
    folder = add_python(tmp_path, "sums", DIES, f"{decoupled} {sequences}")
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: 2"))
    with serving(tmp_path, mode="none") as server, ThreadPoolExecutor() as pool:

        def both(value, is_first):
            steps = [pool.submit(streamed, server, "sums", value, id, is_first) for id in (7, 8)]
            return [step.result() for step in steps]

        assert both(2, True) == [[2.0], [2.0]]
        for (error,) in both(20, False):
            assert "the worker process" in error
