"""Models of which only `instance_group` has changed: they continue with other instances."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

from doubles import http, wait_until
from repositories import add_ensemble, add_identity, add_onnx, add_python, control, infer, serving

COUNTS = """
import os, pathlib
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.here = pathlib.Path(args["model_repository"]).parent
        if (self.here / "broken").exists() and args["model_instance_name"].endswith("_2"):
            raise ValueError("no third one")
        self.sums = {}
        (self.here / f"up_{os.getpid()}").touch()

    def execute(self, requests):
        found = []
        for request in requests:
            key = request.correlation_id()
            x = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            self.sums[key] = self.sums.get(key, 0) + float(x.flat[0])
            said = np.array([[self.sums[key], os.getpid()]], np.float32)
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", said)]))
        return found

    def finalize(self):
        (self.here / f"up_{os.getpid()}").unlink()
"""
GROUP = "instance_group { count: %d kind: KIND_CPU }"
SEQUENCES = "sequence_batching { direct {} }\n" + GROUP


def counted(server, model):
    """(requests that have run, executions), as the statistics say."""
    _, _, said = http(server, "GET", f"/v2/models/{model}/stats")
    (stats,) = said["model_stats"]
    return stats["inference_count"], stats["execution_count"]


def instances(server, model):
    _, _, said = http(server, "GET", f"/v2/models/{model}/config")
    return said["instance_group"][0]["count"]


def step(server, key, start=False, end=False):
    """(sum of its sequence, pid) of a step with 1."""
    fields = {"sequence_id": key, "sequence_start": start, "sequence_end": end}
    x = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}
    sent = {"inputs": [x], "parameters": fields}
    status, _, answer = http(server, "POST", "/v2/models/m/infer", sent)
    assert status == 200, answer
    return tuple(answer["outputs"][0]["data"])


def pids(folder):
    return {int(path.name.removeprefix("up_")) for path in folder.glob("up_*")}


def test_processes_start_and_stop_and_the_others_and_the_statistics_stay(tmp_path):
    folder = add_python(tmp_path, "m", COUNTS, GROUP % 2)
    with serving(tmp_path, models=("m",)) as server:
        infer(server, "m", [1.0])
        first = pids(tmp_path)
        add_python(tmp_path, "m", COUNTS, GROUP % 3)
        (folder / "1" / "model.py").touch()
        assert control(server, "m", "load") == (200, None)
        assert (counted(server, "m"), instances(server, "m")) == ((0, 0), 3), "the file was newer"
        wait_until(lambda: len(pids(tmp_path)) == 3 and not pids(tmp_path) & first)
        second = pids(tmp_path)
        infer(server, "m", [1.0])
        (folder / "config.pbtxt").write_text(
            (folder / "config.pbtxt").read_text().replace("count: 3", "count: 1")
        )
        assert control(server, "m", "load") == (200, None)
        assert len(pids(tmp_path)) == 1, "they have ended in order"
        assert pids(tmp_path) < second
        infer(server, "m", [1.0])
        assert (counted(server, "m"), instances(server, "m")) == ((2, 2), 1)


def test_a_new_instance_that_cannot_start_does_not_affect_others(tmp_path):
    folder = add_python(tmp_path, "m", COUNTS, GROUP % 1)
    (tmp_path / "broken").touch()
    with serving(tmp_path, models=("m",)) as server:
        first = pids(tmp_path)
        text = (folder / "config.pbtxt").read_text()
        (folder / "config.pbtxt").write_text(text.replace("count: 1", "count: 3"))
        status, error = control(server, "m", "load")
        assert status == 400
        assert "no third one" in error or "failed" in error
        assert infer(server, "m", [1.0])[0] == 200
        wait_until(lambda: pids(tmp_path) == first)
        assert instances(server, "m") == 1


def test_sequences_end_at_the_instance_of_their_start(tmp_path):
    folder = add_python(tmp_path, "m", COUNTS, SEQUENCES % 3)
    with serving(tmp_path, models=("m",)) as server:
        at = {key: step(server, key, start=True)[1] for key in (1, 2, 3)}
        assert len(set(at.values())) == 3
        for count in (1, 2, 1):
            text = SEQUENCES % count
            text = (folder / "config.pbtxt").read_text().partition("sequence_batching")[0] + text
            (folder / "config.pbtxt").write_text(text)
            assert control(server, "m", "load") == (200, None)
        assert [step(server, key) for key in at] == [(2.0, pid) for pid in at.values()]
        for key, pid in list(at.items()):
            assert step(server, key, end=True) == (3.0, pid)
        wait_until(lambda: len(pids(tmp_path)) == 1)
        assert [step(server, 4, start=True)[1]] == list(pids(tmp_path))


def test_threads_start_and_stop_under_load(tmp_path):
    """Of 3, 1 and 3 threads each request is answered."""
    folder = add_identity(tmp_path, "m", 1, more=GROUP % 1)

    def threads():
        names = [item.name for item in threading.enumerate()]
        return sum(name.startswith("pipeline-m-") for name in names)

    with serving(tmp_path, models=("m",)) as server, ThreadPoolExecutor(4) as pool:
        before = threads()
        is_over = threading.Event()

        def ask():
            count = 0
            while not is_over.is_set():
                assert infer(server, "m", [1.0])[0] == 200
                count += 1
            return count

        asking = [pool.submit(ask) for _ in range(4)]
        for count in (3, 1, 2, 1, 3):
            text = (folder / "config.pbtxt").read_text().partition("instance_group")[0]
            (folder / "config.pbtxt").write_text(text + GROUP % count)
            assert control(server, "m", "load") == (200, None)
            assert threads() == before + count - 1
        is_over.set()
        asked = sum(item.result() for item in asking)
        assert counted(server, "m")[0] == asked


def test_a_completed_configuration_is_not_a_change(tmp_path):
    add_onnx(tmp_path, "m", 'backend: "onnxruntime"\n' + GROUP % 1)
    with serving(tmp_path, models=("m",)) as server:
        _, _, config = http(server, "GET", "/v2/models/m/config")
        infer(server, "m", [1.0, 2.0, 3.0], name="x")
        before = counted(server, "m")
        config["instance_group"][0]["count"] = 2
        sent = json.dumps(config)
        assert control(server, "m", "load", config=sent) == (200, None)
        assert (counted(server, "m"), instances(server, "m")) == (before, 2)


def test_an_ensemble_of_one_step_is_reloaded_with_its_model(tmp_path):
    folder = add_identity(tmp_path, "part", 1)
    add_ensemble(tmp_path, "whole", of="part")
    with serving(tmp_path, models=("whole",)) as server:
        assert infer(server, "whole", [1.0])[0] == 200
        text = (folder / "config.pbtxt").read_text()
        (folder / "config.pbtxt").write_text(text.replace("max_batch_size: 8", "max_batch_size: 9"))
        assert control(server, "part", "load") == (200, None)
        assert counted(server, "whole") == (0, 0)
        assert infer(server, "whole", [1.0])[0] == 200
