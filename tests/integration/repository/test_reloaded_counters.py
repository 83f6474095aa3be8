"""The counts of a reloaded model: metrics continue, statistics begin at 0."""

from __future__ import annotations

from doubles import http, wait_until
from repositories import add_identity, control, infer, serving
from server_counts import metrics, total

ASKED = "nv_inference_request_success"
LATENCY = "pipeline_request_duration_seconds_count"


def counted(server, model):
    """(of metrics: successes, samples of the histogram; of statistics: successes)."""
    samples = metrics(server.http_port)
    _, _, answer = http(server, "GET", f"/v2/models/{model}/stats")
    stats = answer["model_stats"][0]["inference_stats"]["success"]["count"]
    return total(samples, ASKED, model=model), total(samples, LATENCY, model=model), stats


def test_metrics_continue_over_a_reload_and_statistics_restart(tmp_path):
    folder = add_identity(tmp_path, "same", 1)
    add_identity(tmp_path, "other", 1)
    with serving(tmp_path, models=("same", "other")) as server:
        infer(server, "other", [1.0])
        for load in range(3):
            for _ in range(2):
                assert infer(server, "same", [1.0])[0] == 200
            wanted = 2 * (load + 1), 2 * (load + 1), 2
            wait_until(lambda wanted=wanted: counted(server, "same") == wanted)
            if load == 1:
                assert control(server, "same", "unload") == (200, None)
                wait_until(lambda: not server.models.versions("same"))
                assert total(metrics(server.http_port), ASKED, model="same") == 0
            with (folder / "config.pbtxt").open("a") as config:
                config.write(f'parameters {{ key: "{load}" value {{ string_value: "new" }} }}')
            assert control(server, "same", "load") == (200, None)
            wanted = *wanted[:2], 0
            wait_until(lambda wanted=wanted: counted(server, "same") == wanted)
        assert counted(server, "other") == (1, 1, 1)
