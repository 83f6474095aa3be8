"""Models of a repository whose answers are kept: found ones come to no worker."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import http
from repositories import add_ensemble, add_identity, add_python, control, infer, serving

KEEPS = "response_cache { enable: true }"
CACHE = {"cache": {"local": {"size": 2**20}}}
COUNTS = ("success", "queue", "compute_infer", "cache_hit", "cache_miss")
COUNTER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.calls = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            self.calls += 1
            value = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            if value.flat[0] < 0:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("below")))
                continue
            told = np.full_like(value, self.calls)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", told)]))
        return responses
"""


def stats(server, model):
    """The one model's statistics: (inference count, execution count, counts by name)."""
    _, _, answer = http(server, "GET", f"/v2/models/{model}/stats")
    (result,) = answer["model_stats"]
    counts = {name: result["inference_stats"][name]["count"] for name in COUNTS}
    return result["inference_count"], result["execution_count"], counts


def test_a_repeated_request_is_answered_without_a_worker(tmp_path):
    add_python(tmp_path, "counts", COUNTER, KEEPS)
    with serving(tmp_path, "none", CACHE) as server:
        reported = [
            infer(server, "counts", values)[1]["OUTPUT0"] for values in ([5.0], [6.0], [5.0])
        ]
        assert reported == [[1.0], [2.0], [1.0]]
        large = [1.0] * 50_000
        assert infer(server, "counts", large)[1] == infer(server, "counts", large)[1]
        assert stats(server, "counts") == (
            3,
            3,
            {"success": 5, "queue": 5, "compute_infer": 3, "cache_hit": 2, "cache_miss": 3},
        )


def infer_with(server, model, **parameters):
    x = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [5.0]}
    sent = {"inputs": [x], "parameters": parameters}
    status, _, answer = http(server, "POST", f"/v2/models/{model}/infer", sent)
    assert status == 200, answer
    return answer["outputs"][0]["data"]


def test_requests_with_different_parameters_have_separate_cache_entries(tmp_path):
    add_python(tmp_path, "counts", COUNTER, KEEPS)
    add_identity(tmp_path, "same", 1, more=KEEPS)
    with serving(tmp_path, "none", CACHE) as server:
        modes = ({"mode": 1}, {"mode": 2}, {}, {"mode": 1}, {"mode": 1, "priority": 2})
        assert [infer_with(server, "counts", **mode) for mode in modes] == [[1], [2], [3], [1], [1]]
        for mode in modes:
            infer_with(server, "same", **mode)
        assert stats(server, "same")[2]["cache_miss"] == 1, "it gets no parameters"


def test_errors_are_not_cached(tmp_path):
    add_python(tmp_path, "counts", COUNTER, KEEPS)
    with serving(tmp_path, "none", CACHE) as server:
        for _ in range(2):
            assert infer(server, "counts", [-1.0])[0] == 500
        assert stats(server, "counts")[2]["cache_hit"] == 0


def test_an_ensemble_keeps_its_answers_and_asks_no_model(tmp_path):
    folder = add_ensemble(tmp_path, "both", "same")
    with (folder / "config.pbtxt").open("a") as config:
        config.write(KEEPS)
    add_identity(tmp_path, "same", 1, most=8, more=KEEPS)
    with serving(tmp_path, "none", CACHE) as server:
        for _ in range(3):
            assert infer(server, "both", [1.0, 2.0]) == (200, {"OUTPUT0": [1.0, 2.0]})
        counts = {"success": 3, "queue": 3, "compute_infer": 1, "cache_hit": 2, "cache_miss": 1}
        assert stats(server, "both") == (1, 1, counts)
        assert stats(server, "same")[2]["success"] == 1
        assert infer(server, "same", [1.0, 2.0])[0] == 200
        assert stats(server, "same")[2]["cache_hit"] == 1


def test_the_time_of_an_answer_from_a_cache_contains_its_lookup(tmp_path):
    folder = add_ensemble(tmp_path, "both", "same")
    with (folder / "config.pbtxt").open("a") as config:
        config.write(KEEPS)
    add_identity(tmp_path, "same", 1)
    with serving(tmp_path, "none", CACHE) as server:
        times = []
        for _ in range(2):
            assert infer(server, "both", [1.0])[0] == 200
            _, _, answer = http(server, "GET", "/v2/models/both/stats")
            (model,) = answer["model_stats"]
            times.append({name: each["ns"] for name, each in model["inference_stats"].items()})
        missed, hit = times
        assert 0 < hit["cache_hit"] <= hit["success"] - missed["success"]


def test_a_model_of_an_ensemble_keeps_its_answers(tmp_path):
    add_ensemble(tmp_path, "both", "same")
    add_identity(tmp_path, "same", 1, most=8, more=KEEPS)
    with serving(tmp_path, "none", CACHE) as server:
        for _ in range(2):
            assert infer(server, "both", [1.0]) == (200, {"OUTPUT0": [1.0]})
        assert stats(server, "both")[2]["cache_hit"] == 0
        assert stats(server, "same")[2]["cache_hit"] == 1


def test_a_reloaded_model_runs_again(tmp_path):
    folder = add_python(tmp_path, "counts", COUNTER, KEEPS)
    with serving(tmp_path, "explicit", CACHE) as server:
        assert control(server, "counts", "load")[0] == 200
        assert infer(server, "counts", [5.0])[1]["OUTPUT0"] == [1.0]
        changed = COUNTER.replace("self.calls = 0", "self.calls = 10")
        (folder / "1" / "model.py").write_text(changed)
        assert control(server, "counts", "load")[0] == 200
        assert infer(server, "counts", [5.0])[1]["OUTPUT0"] == [11.0]


def test_answers_that_are_too_large_are_misses_and_no_errors(tmp_path, capsys):
    add_identity(tmp_path, "same", 1, more=KEEPS)
    with serving(tmp_path, "none", {"cache": {"local": {"size": 200}}}) as server:
        for _ in range(2):
            assert infer(server, "same", [1.0])[0] == 200
        assert stats(server, "same")[2]["cache_miss"] == 2
    assert capsys.readouterr().out.count("Failed to insert key [") == 1


def test_without_a_cache_no_answer_is_stored(tmp_path):
    add_identity(tmp_path, "same", 1, more=KEEPS)
    with serving(tmp_path, "none") as server:
        for _ in range(2):
            assert infer(server, "same", [1.0])[0] == 200
        assert stats(server, "same")[2]["cache_hit"] == 0


@pytest.mark.parametrize("more", ["dynamic_batching {}", ""])
def test_many_equal_requests_at_once_are_all_answered(tmp_path, more):
    add_identity(tmp_path, "same", 1, more=f"{KEEPS} {more}")
    with serving(tmp_path, "none", CACHE) as server:
        values = np.arange(20.0).tolist()
        for _ in range(3):
            assert infer(server, "same", values, rows=4) == (200, {"OUTPUT0": values})
        count, executions, counts = stats(server, "same")
        assert (count, executions, counts["cache_hit"]) == (4, 1, 2)
