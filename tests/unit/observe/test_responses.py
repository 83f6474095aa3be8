"""Parts of streams, counted by Triton's schema."""

from __future__ import annotations

import numpy as np

from pipeline.engine.journal.journal import PART, PIPELINE, PartKind
from pipeline.engine.state import EngineState
from pipeline.observe.metrics import render
from pipeline.observe.snapshot import LATENCY_STEPS, ModelCounters, ResponseCounters, Snapshot
from pipeline.observe.statistics import Statistics, _form, merge

GIVEN, EMPTY, FAILED, CANCELED = PartKind


def row(number, kind=GIVEN, start=0, made=0, end=0, target=PIPELINE, data_id=1):
    return data_id, target, number, kind, start, made or start, end or made or start


def counted(*rows):
    statistics = Statistics("svc", ["op"])
    statistics.notify_parts(np.array(list(rows), PART))
    return statistics.models


def test_each_number_counts_by_itself_over_all_requests():
    pipeline, op = counted(
        row(0, start=0, made=5, end=7),
        row(0, start=0, made=15, end=16, data_id=2),
        row(1, start=7, made=9, end=10),
        row(2, EMPTY, 10, 14, 14),
    )
    assert pipeline.responses == {
        0: ResponseCounters(2, 20, 3),
        1: ResponseCounters(1, 2, 1),
        2: ResponseCounters(empty_count=1, empty_ns=4),
    }
    assert op == ModelCounters("op")
    form = _form(pipeline)["response_stats"]
    assert list(form) == ["0", "1", "2"]
    assert form["0"] == {
        "compute_infer": {"count": 2, "ns": 20},
        "compute_output": {"count": 2, "ns": 3},
        "success": {"count": 2, "ns": 23},
        "fail": {"count": 0, "ns": 0},
        "empty_response": {"count": 0, "ns": 0},
        "cancel": {"count": 0, "ns": 0},
    }
    assert form["2"]["compute_infer"] == form["2"]["empty_response"] == {"count": 1, "ns": 4}
    assert form["2"]["success"]["count"] == 0


def test_errors_and_cancellations_are_not_successes():
    _, op = counted(row(3, FAILED, 1, 4, 4, target=0), row(3, CANCELED, 1, 9, 9, target=0))
    form = _form(op)["response_stats"]["3"]
    assert form["fail"] == form["compute_infer"] == {"count": 1, "ns": 3}
    assert form["cancel"] == {"count": 1, "ns": 0}
    assert form["success"]["count"] == form["compute_output"]["count"] == 0


def test_parts_beyond_a_thousand_count_as_one_number():
    pipeline, _ = counted(row(999), row(5000), row(10**6))
    assert {number: each.count for number, each in pipeline.responses.items()} == {999: 3}


def test_the_time_to_the_first_part_and_between_parts_has_histograms():
    pipeline, _ = counted(row(0, end=1_000_000), row(1, start=5, end=10), row(2, start=5, end=15))
    assert (sum(pipeline.first_part), pipeline.first_part_ns) == (1, 1_000_000)
    assert (sum(pipeline.part_gap), pipeline.part_gap_ns) == (2, 15)
    assert len(pipeline.first_part) == LATENCY_STEPS


def test_replicas_are_summed_including_idle_ones():
    streamed, idle = counted(row(0, end=8)), Statistics("svc", ["op"]).models
    both = merge([idle, streamed, streamed])
    assert both[0].responses == {0: ResponseCounters(2, 0, 16)}
    assert (sum(both[0].first_part), both[0].first_part_ns) == (2, 16)
    assert both[1] == idle[1]


def test_metrics_have_them_for_models_that_stream():
    text = render([Snapshot(0, EngineState(True, 0, 0, 0, 0), counted(row(0, end=8))[:1])]).decode()
    assert 'pipeline_first_part_seconds_count{model="svc"} 1.0' in text
    assert 'pipeline_part_gap_seconds_count{model="svc"} 0.0' in text
    assert 'pipeline_first_part_seconds_count{model="op"}' not in text


def test_tritons_histogram_of_first_responses_has_its_buckets_and_labels():
    ms = 1_000_000
    firsts = [row(0, end=end) for end in (99 * ms, 100 * ms, 100 * ms + 1, 1999 * ms, 6000 * ms)]
    models = counted(*firsts, row(1, end=4000 * ms))
    text = render([Snapshot(0, EngineState(True, 0, 0, 0, 0), models[:1])]).decode()
    name, labels = "nv_inference_first_response_histogram_ms", 'model="svc",version="1"'
    assert f"# TYPE {name} histogram" in text
    for bound, count in (("100", 2), ("500", 3), ("2000", 4), ("5000", 4), ("+Inf", 5)):
        assert f'{name}_bucket{{le="{bound}",{labels}}} {count}.0' in text
    assert f"{name}_count{{{labels}}} 5.0" in text
    assert f"{name}_sum{{{labels}}} 8298.0" in text
    assert 'model="op"' not in text
