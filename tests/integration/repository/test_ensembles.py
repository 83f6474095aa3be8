"""Ensembles in a server of a repository: over HTTP, with statistics, while their models change."""

from __future__ import annotations

import gc
import json

import pytest
from doubles import http, wait_until, without_gc
from repositories import add_identity, add_pipeline, add_python, control, infer, serving

from pipeline.workers.model_runs import ModelRun
from pipeline.workers.shm.server_memory import ServerMemory

CHAIN = (
    ("a", {"INPUT0": "x"}, {"OUTPUT0": "p"}),
    ("b", {"INPUT0": "p"}, {"OUTPUT0": "y"}),
)


SAME = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy() + 1)])
            for request in requests
            for tensor in request.inputs()
        ]
"""


def add_chain(repository, name="e", most=8, steps=CHAIN, ends=("x", "y")):
    add_pipeline(repository, name, most, steps, *ends)


@pytest.fixture
def models(tmp_path):
    add_identity(tmp_path, "a", 1)
    add_identity(tmp_path, "b", 1)
    add_chain(tmp_path)
    return tmp_path


def identity_of(size, most):
    """The configuration of a model whose tensors have so many elements."""
    tensor = {"data_type": "TYPE_FP32", "dims": [size]}
    return json.dumps(
        {
            "backend": "identity",
            "max_batch_size": most,
            "input": [{"name": "INPUT0", **tensor}],
            "output": [{"name": "OUTPUT0", **tensor}],
        }
    )


def stats(server):
    _, _, answer = http(server, "GET", "/v2/models/stats")
    return {item["name"]: item for item in answer["model_stats"]}


def test_an_ensemble_and_one_within_another(models):
    add_chain(models, "outer", steps=[("e", {"x": "in"}, {"y": "out"})], ends=("in", "out"))
    with serving(models, mode="none") as server:
        assert infer(server, "e", [1.0, 2.0], "x", rows=2) == (200, {"y": [1.0, 2.0]})
        assert infer(server, "outer", [1.0, 2.0], "in", rows=2) == (200, {"out": [1.0, 2.0]})
        _, _, config = http(server, "GET", "/v2/models/e/config")
        assert (config["platform"], config["backend"]) == ("ensemble", "")
        result = stats(server)
        assert {name: each["inference_count"] for name, each in result.items()} == {
            "a": 4,
            "b": 4,
            "e": 4,
            "outer": 2,
        }
        for name, parts in (("e", ("a", "b")), ("outer", ("a",))):
            own = result[name]["inference_stats"]
            assert own["success"]["count"] == result[name]["execution_count"]
            assert own["fail"]["count"] == 0
            for stage in ("compute_input", "compute_infer", "compute_output"):
                sums = [result[part]["inference_stats"][stage]["ns"] for part in parts]
                if name == "e":
                    assert own[stage]["ns"] == sum(sums)
            assert own["queue"]["ns"] < own["success"]["ns"] / 2


def steps_that_are_left():
    return sum(type(item) is ModelRun for item in gc.get_objects())


def test_no_step_of_a_request_is_left_to_the_garbage_collector(models):
    with serving(models, mode="none") as server, without_gc():
        for _ in range(6):
            assert infer(server, "e", [1.0, 2.0], "x", rows=2)[0] == 200
        wait_until(lambda: steps_that_are_left() == 0)


def test_the_error_of_a_step_names_the_ensemble_once(models):
    with serving(models) as server:
        assert control(server, "e", "load") == (200, None)
        with_four = identity_of(4, most=2)
        assert control(server, "b", "load", config=with_four)[0] == 200
        status, text = infer(server, "e", [1.0] * 4, "x")
        assert (status, text) == (
            404,
            "Request for unknown model: 'e' has no available versions",
        ), "b allows batches of 2 only"
        with_four = identity_of(4, most=8)
        assert control(server, "b", "load", config=with_four)[0] == 200
        assert infer(server, "e", [1.0] * 4, "x") == (200, {"y": [1.0] * 4})
        status, text = infer(server, "e", [1.0] * 3, "x")
        assert status == 400
        assert text.startswith(
            "in ensemble 'e', [request id: <id_unknown>] unexpected shape for input 'INPUT0' for "
            "model 'b'. Expected [-1,4], got [1,3]"
        )
        assert stats(server)["e"]["inference_stats"]["fail"]["count"] == 1


def test_a_model_that_is_unloaded_takes_the_ensemble_along(models):
    with serving(models) as server:
        assert control(server, "e", "load") == (200, None)
        assert control(server, "a", "unload") == (200, None)
        assert infer(server, "e", [1.0], "x") == (
            404,
            "Request for unknown model: 'e' has no available versions",
        )
        assert control(server, "a", "load") == (200, None)
        assert infer(server, "e", [1.0], "x")[0] == 200


def test_an_ensemble_that_does_not_fit_its_models_is_refused(models):
    add_chain(models, "wrong", steps=[("a", {"INPUT9": "x"}, {"OUTPUT0": "y"})])
    add_chain(models, "large", most=16)
    with serving(models) as server:
        for name, text in {
            "wrong": "in ensemble wrong, ensemble tensor x is mapping to non-existing input INPUT9 "
            "in model a",
            "large": "ensemble large allows maximum batch size 16, but it contains model a which "
            "only allows maximum batch size to be 8",
        }.items():
            status, result = control(server, name, "load")
            assert (status, text in result) == (400, True), result


def test_only_requested_outputs_are_computed_and_returned(models):
    steps = [
        ("a", {"INPUT0": "x"}, {"OUTPUT0": "y"}),
        ("b", {"INPUT0": "x"}, {"OUTPUT0": "z"}),
    ]
    add_pipeline(models, "both", 8, steps, "x", "y", "z")
    with serving(models, mode="none") as server:
        sent = {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [3.0]}],
            "outputs": [{"name": "z"}],
        }
        for _ in range(3):
            status, _, answer = http(server, "POST", "/v2/models/both/infer", sent)
            assert (status, [item["name"] for item in answer["outputs"]]) == (200, ["z"])
        result = stats(server)
        assert (result["a"]["inference_count"], result["b"]["inference_count"]) == (0, 3)
        assert json.dumps(infer(server, "both", [3.0], "x")) == json.dumps(
            [200, {"y": [3.0], "z": [3.0]}]
        )


def test_an_ensemble_that_is_made_of_itself_is_refused(models):
    add_chain(models, "one", steps=[("two", {"x": "x"}, {"y": "y"})])
    add_chain(models, "two", steps=[("one", {"x": "x"}, {"y": "y"})])
    add_chain(models, "self", steps=[("self", {"x": "x"}, {"y": "y"})])
    circle = "circular dependency between ensembles: "
    with serving(models) as server:
        status, result = control(server, "one", "load")
        assert (status, f"{circle}one -> ... -> two -> one" in result) == (400, True), result
        status, result = control(server, "self", "load")
        assert (status, f"{circle}self -> ... -> self -> self" in result) == (400, True), result
        assert control(server, "e", "load") == (200, None)


def test_an_answer_names_its_sequence(models):
    with serving(models, mode="none") as server:
        sent = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [3.0]}]}
        reported = {"sequence_id": 7, "sequence_start": True, "sequence_end": False}
        of_none = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
        for model, expected in (("e", reported), ("a", None)):
            sent["inputs"][0]["name"] = "x" if model == "e" else "INPUT0"
            for asked in ({}, {**reported, "mood": "good"}):
                path = f"/v2/models/{model}/infer"
                status, _, answer = http(server, "POST", path, {**sent, "parameters": asked})
                expects = expected if asked or expected is None else of_none
                assert (status, answer.get("parameters")) == (200, expects)


ONE_OF_TWO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())]
            )
            for request in requests
        ]
"""


def test_outputs_that_no_model_made_are_left_out(models):
    steps = [("optional", {"INPUT0": "x"}, {"OUTPUT0": "y", "OUTPUT1": "z"})]
    add_python(models, "optional", ONE_OF_TWO)
    (models / "optional" / "config.pbtxt").write_text(
        """backend: "python" max_batch_size: 8
        input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
        output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] },
                 { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ -1 ] } ]"""
    )
    add_pipeline(models, "whole", 8, steps, "x", "y", "z")
    with serving(models, models=("whole",)) as server:
        assert infer(server, "whole", [1.0], "x") == (200, {"y": [1.0]})


@pytest.mark.parametrize(("most", "models_count"), [(0, 2), (4, 1)])
def test_an_ensemble_reshapes_its_tensors_for_its_models(tmp_path, most, models_count):
    ends = [str(number) for number in range(models_count)]
    steps = [("a", {"INPUT0": "x"}, {"OUTPUT0": f"y{end}"}) for end in ends]
    model = add_identity(tmp_path, "a", 1, most=most) / "config.pbtxt"
    model.write_text(model.read_text().replace("-1", "2, 2"))
    folder = add_pipeline(tmp_path, "e", most, steps, "x", *(f"y{end}" for end in ends))
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: -1", "dims: 4 reshape { shape: [2, 2] }"))
    values, shape = [1.0, 2.0, 3.0, 4.0], [1, 4] if most else [4]
    sent = {"name": "x", "datatype": "FP32", "shape": shape, "data": values}
    with serving(tmp_path, mode="none") as server:
        _, _, answer = http(server, "POST", "/v2/models/e/infer", {"inputs": [sent]})
        assert [(each["shape"], each["data"]) for each in answer["outputs"]] == [
            (shape, values)
        ] * models_count


def test_an_ensemble_has_the_labels_of_the_models_that_make_its_outputs(models):
    config = models / "b" / "config.pbtxt"
    slot = 'name: "OUTPUT0"'
    config.write_text(config.read_text().replace(slot, f'{slot} label_filename: "labels.txt"'))
    (models / "b" / "labels.txt").write_text("cat\ndog\n")
    add_chain(models, "outer", steps=[("e", {"x": "in"}, {"y": "out"})], ends=("in", "out"))
    x = {"name": "in", "datatype": "FP32", "shape": [1, 2], "data": [1, 3]}
    asked = {"inputs": [x], "outputs": [{"name": "out", "parameters": {"classification": 1}}]}
    with serving(models, models=("outer",)) as server:
        for label in ("dog", "hound"):
            (models / "b" / "labels.txt").write_text(f"cat\n{label}\n")
            assert control(server, "b", "load") == (200, None)
            _, _, answer = http(server, "POST", "/v2/models/outer/infer", asked)
            assert answer["outputs"][0]["data"] == [f"3.000000:1:{label}"]


def test_large_data_passes_between_processes_without_a_copy_in_the_server(tmp_path, monkeypatch):
    count, allocated, alloc = 50_000, [], ServerMemory.alloc
    for name in ("a", "b"):
        add_python(tmp_path, name, SAME)
    add_chain(tmp_path)
    monkeypatch.setattr(
        ServerMemory, "alloc", lambda self, size: allocated.append(size) or alloc(self, size)
    )
    with serving(tmp_path, mode="none") as server:
        status, outputs = infer(server, "e", [1.0] * count, "x")
        assert (status, len(outputs["y"])) == (200, count)
    # The JSON of the request, and its array. `b` reads the answer of `a` in the memory of `a`.
    assert len(allocated) == 2
    assert allocated[1] == 4 * count
