"""Metrics: that the text says what the snapshots say, in a form that Prometheus reads."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from pipeline.config.schema import MetricsConfig
from pipeline.engine.journal.journal import Outcome
from pipeline.engine.state import EdgeState, EngineState, OpState, SequencesState, WorkersState
from pipeline.observe.metrics import (
    as_openmetrics,
    as_text,
    metrics_of,
    predecessor_metrics,
    render,
)
from pipeline.observe.snapshot import (
    LATENCY_STEPS,
    NO_REPLICA,
    BatchCounters,
    Exemplar,
    ModelCounters,
    Snapshot,
)
from pipeline.predictors.base import MemoryUse

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: bytes) -> Series:
    """{(name, labels): value} as Prometheus would have them, each told once."""
    series: Series = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.type != "unknown", family
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in series
            series[key] = sample.value
    return series


def value(text: bytes, name: str, **labels: str) -> float:
    """Of the line with this name and these labels."""
    as_text = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
    start = f"{name}{{{as_text}}} " if labels else f"{name} "
    (line,) = [line for line in text.decode().splitlines() if line.startswith(start)]
    return float(line.rpartition(" ")[2])


def engine(*ops: OpState) -> EngineState:
    return EngineState(True, inside=3, waiting=2, accepted=50, rejected=4, ops=list(ops))


def op_state(name: str, workers: WorkersState | None = None) -> OpState:
    return OpState(name, 5, 6, 7, workers or WorkersState("thread", 4, 3, 2, 1, 9))


def counters(name: str, **more: int) -> ModelCounters:
    return ModelCounters(name, **more)


def snapshot(copy: int = 0, **more: int) -> Snapshot:
    models = [counters("svc", **more), counters("a", **more)]
    return Snapshot(copy, engine(op_state("a")), models)


# Triton's ---------------------------------------------------------------------------------


def test_the_counters_of_triton_have_its_names_types_and_labels():
    text = render(
        [
            snapshot(
                success_count=7,
                inference_count=20,
                execution_count=3,
                success_ns=9_999,
                queue_ns=1_000,
                input_ns=2_000,
                infer_ns=3_999,
                output_ns=4_000,
            )
        ]
    )
    expected = {
        "nv_inference_request_success": 7,
        "nv_inference_count": 20,
        "nv_inference_exec_count": 3,
        "nv_inference_request_duration_us": 9,
        "nv_inference_queue_duration_us": 1,
        "nv_inference_compute_input_duration_us": 2,
        "nv_inference_compute_infer_duration_us": 3,
        "nv_inference_compute_output_duration_us": 4,
    }
    for name, number in expected.items():
        assert f"# TYPE {name} counter\n".encode() in text
        for model in ("svc", "a"):
            assert value(text, name, model=model, version="1") == number
    assert b"nv_inference_count_total" not in text
    read(text)


def test_metric_families_follow_the_configuration():
    of_each = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]
    model = counters("svc", success_count=4, success_ns=9_000, queue_ns=8_000)
    kept = counters("a", success_count=4)
    model.recent_us, kept.recent_us, kept.caches = of_each, of_each, True
    both = [Snapshot(0, engine(op_state("a")), [model, kept])]
    wanted = MetricsConfig(
        counter_latencies=False, summary_latencies=True, summary_quantiles=(0.5, 0.999)
    )
    text = render(both, wanted=wanted)
    read(text)
    assert b"nv_inference_queue_duration_us" not in text
    assert b"nv_cache_" not in text
    assert value(text, "nv_inference_count", model="svc", version="1") == 0
    name = "nv_inference_queue_summary_us"
    assert value(text, f"{name}_count", model="svc", version="1") == 4
    assert value(text, f"{name}_sum", model="svc", version="1") == 8
    assert value(text, name, model="svc", version="1", quantile="0.5") == 3
    assert value(text, name, model="a", version="1", quantile="0.999") == 4
    assert b'nv_inference_request_summary_us{model="svc",quantile="0.999",version="1"} 2' in text
    assert b'nv_inference_request_summary_us{model="a"' not in text
    assert b"summary" not in render(both)


def test_quantiles_without_requests_are_nan():
    wanted = MetricsConfig(summary_latencies=True, summary_quantiles=(0.5,))
    text = render([snapshot()], wanted=wanted)
    result = value(
        text, "nv_inference_compute_infer_summary_us", model="a", version="1", quantile="0.5"
    )
    assert math.isnan(result)


def test_each_failure_reason_is_present_from_the_start():
    model = counters("svc")
    model.fail_counts[Outcome.BACKEND] = 3
    model.fail_counts[Outcome.PRODUCT] = 2
    text = render([Snapshot(0, engine(), [model])])
    failures = {
        reason: value(text, "nv_inference_request_failure", model="svc", reason=reason, version="1")
        for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER", "PRODUCT")
    }
    assert failures == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 3, "OTHER": 0, "PRODUCT": 2}
    assert b'reason="OK"' not in text


def test_requests_are_pending_before_the_pipeline_or_in_an_ops_channel():
    text = render([snapshot()])
    name = "nv_inference_pending_request_count"
    assert value(text, name, model="svc", version="1") == 2
    assert value(text, name, model="a", version="1") == 6


# Ours -------------------------------------------------------------------------------------


def test_the_state_of_the_engine_is_reported():
    text = render([snapshot()])
    assert value(text, "pipeline_ready") == 1
    assert value(text, "pipeline_requests", state="inside") == 3
    assert value(text, "pipeline_requests", state="waiting") == 2
    assert value(text, "pipeline_requests_accepted_total") == 50
    assert value(text, "pipeline_requests_rejected_total") == 4
    states = ("joining", "queued", "running")
    requests = [value(text, "pipeline_op_requests", model="a", state=state) for state in states]
    assert requests == [5, 6, 7]
    assert value(text, "pipeline_op_worker_restarts_total", model="a") == 9


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (WorkersState("thread", 4, 3, 2, 1), {"idle": 1, "busy": 2, "missing": 1, "stuck": 1}),
        (WorkersState("process", 2, 2, 0), {"idle": 2, "busy": 0, "missing": 0, "stuck": 0}),
        # While one is being replaced there may be more than configured, or busy ones that left.
        (WorkersState("process", 1, 2, 0), {"idle": 2, "busy": 0, "missing": 0, "stuck": 0}),
        (WorkersState("process", 1, 0, 1), {"idle": 0, "busy": 1, "missing": 1, "stuck": 0}),
    ],
)
def test_each_worker_is_counted_in_one_state(workers, expected):
    text = render([Snapshot(0, engine(op_state("a", workers)), [counters("svc"), counters("a")])])
    results = {
        state: value(text, "pipeline_op_workers", kind=workers.kind, model="a", state=state)
        for state in expected
    }
    assert results == expected


def test_it_is_counted_where_answers_went():
    op = op_state("a")
    op = msgspec.structs.replace(op, edges=[EdgeState("big", 10, 90), EdgeState("out", 90, 10)])
    text = render([Snapshot(0, engine(op), [counters("svc"), counters("a")])])
    assert value(text, "pipeline_edge_answers_total", model="a", to="big", state="sent") == 10
    assert value(text, "pipeline_edge_answers_total", model="a", to="out", state="absent") == 10


def test_sequences_are_reported_for_ops_with_sequences():
    its = SequencesState(live=5, backlog=2, slots=3, used=3, reaped=7, ended=11, lost=13, cut=17)
    ops = msgspec.structs.replace(op_state("a"), sequences=its), op_state("b")
    text = render([Snapshot(0, engine(*ops), [counters(name) for name in ("svc", "a", "b")])])
    reported = {key: result for key, result in read(text).items() if "sequence" in key[0]}
    assert {
        (name, *sorted(dict(labels).values())): result
        for (name, labels), result in reported.items()
    } == {
        ("pipeline_op_sequences", "a", "used"): 3,
        ("pipeline_op_sequences", "a", "backlog"): 2,
        ("pipeline_op_sequence_slots", "a"): 3,
        ("pipeline_op_sequences_begun_total", "a"): 53,
        ("pipeline_op_sequences_over_total", "a", "ended"): 11,
        ("pipeline_op_sequences_over_total", "a", "cut"): 17,
        ("pipeline_op_sequences_over_total", "a", "reaped"): 7,
        ("pipeline_op_sequences_over_total", "a", "lost"): 13,
    }


def test_memory_is_reported_where_it_is_known():
    model = counters("a")
    model.memory = [MemoryUse("GPU", 1, 2**30)]
    text = render([Snapshot(0, engine(op_state("a")), [counters("svc"), model])])
    assert value(text, "pipeline_model_memory_bytes", device="1", kind="GPU", model="a") == 2**30
    assert b"pipeline_model_memory_bytes" not in render([snapshot()])


def test_an_op_is_named_by_its_model():
    models = [counters("a"), counters("a.op")]
    text = render([Snapshot(0, engine(op_state("a")), models)])
    assert value(text, "pipeline_op_worker_restarts_total", model="a.op") == 9


def test_without_statistics_there_is_the_state_of_the_engine():
    text = render([Snapshot(0, engine(op_state("a")), [])])
    assert value(text, "pipeline_op_requests", model="a", state="queued") == 6
    assert b"nv_inference_count" not in text
    assert b"duration" not in text
    assert as_text(predecessor_metrics([Snapshot(0, engine(op_state("a")), [])])) == b""
    read(text)


# Histograms -------------------------------------------------------------------------------


def bucket_of(ns: int) -> int:
    """Where the latency is counted, by the definition of LATENCY_STEPS."""
    return next(
        (i for i in range(LATENCY_STEPS - 1) if ns <= 1000 * 2 ** (i / 4)), LATENCY_STEPS - 1
    )


@given(st.lists(st.integers(0, 4 * 10**12), max_size=50))
def test_a_latency_histogram_counts_each_request_once_and_below_its_bound(latencies):
    model = counters("svc", success_count=len(latencies), success_ns=sum(latencies))
    for latency in latencies:
        model.latency[bucket_of(latency)] += 1
    text = render([Snapshot(0, engine(), [model])])
    name = "pipeline_request_duration_seconds"
    buckets = {
        float(dict(labels)["le"]): count
        for (result, labels), count in read(text).items()
        if result == f"{name}_bucket"
    }
    assert buckets == {
        bound: sum(latency <= bound * 1e9 + 0.5 for latency in latencies) for bound in buckets
    }
    assert len(buckets) == 21
    assert value(text, f"{name}_count", model="svc") == len(latencies)
    assert math.isclose(value(text, f"{name}_sum", model="svc"), sum(latencies) / 1e9)


def test_a_bucket_has_its_newest_traced_request_as_an_exemplar():
    took = [Exemplar("a" * 32, 40_000, 5_000), Exemplar("b" * 32, 60_000, 4_000)]
    late = Exemplar("c" * 32, 60 * 10**9, 6_500)
    model = counters("svc", exemplars=[*took, late])
    text = as_openmetrics(metrics_of([Snapshot(0, engine(), [model])])).decode()
    found = {
        sample.labels["le"]: (
            sample.name,
            shown.labels["trace_id"],
            shown.value,
            float(shown.timestamp),
        )
        for family in openmetrics_families(text)
        for sample in family.samples
        if (shown := sample.exemplar) is not None
    }
    name = "pipeline_request_duration_seconds_bucket"
    assert found == {
        "6.4e-05": (name, "a" * 32, 40e-6, 5.0),
        "+Inf": (name, "c" * 32, 60.0, 6.5),
    }


def test_the_queue_time_has_its_own_histogram():
    model = counters("svc", queue_ns=2_000_000)
    model.queue_latency[bucket_of(2_000_000)] = 1
    text = render([Snapshot(0, engine(), [model])])
    name = "pipeline_queue_duration_seconds"
    assert value(text, f"{name}_bucket", le="0.001024", model="svc") == 0
    assert value(text, f"{name}_bucket", le="0.002048", model="svc") == 1
    assert value(text, f"{name}_sum", model="svc") == 0.002


def test_batches_are_counted_by_their_size():
    model = counters("svc")
    model.batches = {1: BatchCounters(5), 3: BatchCounters(2), 5000: BatchCounters(1)}
    text = render([Snapshot(0, engine(), [model])])
    bounds = ("1.0", "2.0", "4.0", "1024.0", "+Inf")
    results = [value(text, "pipeline_batch_size_bucket", le=le, model="svc") for le in bounds]
    assert results == [5, 5, 7, 7, 8]
    assert value(text, "pipeline_batch_size_sum", model="svc") == 5 + 6 + 5000


# Several processes ------------------------------------------------------------------------


def test_each_of_several_processes_has_its_own_series():
    text = render([snapshot(0, success_count=1), snapshot(1, success_count=2)], by_replica=True)
    name = "nv_inference_request_success"
    results = [value(text, name, copy=copy, model="svc", version="1") for copy in ("0", "1")]
    assert results == [1, 2]
    read(text)
    both = as_text(
        predecessor_metrics([snapshot(0), snapshot(1, success_count=2)], by_replica=True)
    )
    assert value(both, "pd_query_request_success_total", copy="1") == 2


def test_a_process_that_is_missing_takes_only_its_own_series_away():
    series = read(render([snapshot(0), snapshot(1)], by_replica=True))
    without = read(render([snapshot(1)], by_replica=True))
    gone = {key for key in series if key not in without}
    assert all(("copy", "0") in labels for _, labels in gone)
    assert set(without) == set(series) - gone


# Paddle Serving's -------------------------------------------------------------------------


def test_counts_of_ended_processes_are_in_no_series():
    """Their own series had it; Prometheus continues them when another process starts from 0."""
    past = Snapshot(NO_REPLICA, engine(), snapshot(success_count=9).models)
    for of in (metrics_of, predecessor_metrics):
        assert [*of([snapshot(0), past], by_replica=True)] == [*of([snapshot(0)], by_replica=True)]


def test_the_five_counters_of_the_predecessor():
    pipeline = counters("svc", success_count=6, success_ns=9_000_999, inference_count=99)
    pipeline.fail_counts[Outcome.BACKEND] = 2
    pipeline.fail_counts[Outcome.REJECTED] = 1
    ops = [
        counters("a", inference_count=6, infer_ns=1_500),
        counters("b", inference_count=5, infer_ns=2_600),
    ]
    text = as_text(predecessor_metrics([Snapshot(0, engine(), [pipeline, *ops])]))
    assert read(text) == {
        ("pd_query_request_success_total", frozenset()): 6,
        ("pd_query_request_failure_total", frozenset()): 3,
        ("pd_inference_count_total", frozenset()): 11,
        ("pd_query_request_duration_us_total", frozenset()): 9_000,
        ("pd_inference_duration_us_total", frozenset()): 4,
    }
    assert b"# TYPE pd_inference_count_total counter" in text


# The form ---------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_name_of_an_op_survives(name):
    snapshots = [Snapshot(0, engine(op_state(name)), [counters("svc"), counters(name)])]
    text = render(snapshots)
    names = {
        line.count("\n") for line in text.decode().split("\n") if line.startswith("# TYPE nv_")
    }
    assert names == {0}
    # The parser of the tests splits lines where Python does; Prometheus' does at \n only.
    if not any(len(f"a{char}b".splitlines()) > 1 for char in name) and name == name.strip():
        assert {dict(labels).get("model") for _, labels in read(text)} >= {"svc", name}
