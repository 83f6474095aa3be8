"""Hits and misses of caches in statistics and metrics."""

from __future__ import annotations

import numpy as np

from pipeline.engine.journal.journal import PIPELINE, REQUEST, SPAN, Outcome
from pipeline.engine.state import EngineState
from pipeline.observe.metrics import render
from pipeline.observe.snapshot import Snapshot
from pipeline.observe.statistics import Statistics, merge, stats_json

MS = 1_000_000


def spans(*rows):
    """Rows (data id, batch, start, end) of the first Op; all were ready at 1 ms."""
    zeros = np.zeros(len(rows), SPAN)
    for row, (data_id, batch, start, end) in zip(zeros, rows, strict=True):
        row["data_id"], row["batch"], row["rows"], row["outcome"] = data_id, batch, 4, Outcome.OK
        row["ready_ns"], row["start_ns"] = MS, start * MS
        row["preprocess_end_ns"] = start * MS
        row["process_end_ns"] = row["end_ns"] = row["result_received_ns"] = end * MS
    return zeros


def counted():
    """A hit of 2 ms behind a miss that ran for 3 ms, at an Op and for the whole pipeline."""
    statistics = Statistics("svc", ["op"], wall_offset_ns=lambda: 0)
    for target in (PIPELINE, 0):
        statistics.notify_caches(target)
    statistics.notify(spans((1, 1, 2, 5)), np.zeros(0, REQUEST))
    statistics.notify_cache_miss(0, 1 * MS)
    statistics.notify_cache_hit(0, 2, 2 * MS)
    statistics.notify(spans((2, -1, 2, 4)), np.zeros(0, REQUEST))
    statistics.notify_cache_hit(PIPELINE, 3, 2 * MS)
    request = np.zeros(1, REQUEST)
    request["data_id"], request["target"], request["rows"] = 3, PIPELINE, 4
    request["start_ns"], request["admitted_ns"], request["end_ns"] = MS, MS, 3 * MS
    statistics.notify(np.zeros(0, SPAN), request)
    return statistics.models


def test_a_hit_is_a_success_and_no_execution():
    whole, op = counted()
    assert (op.success_count, op.inference_count, op.execution_count) == (2, 4, 1)
    assert (op.cache_hit_count, op.cache_hit_ns) == (1, 2 * MS)
    assert (op.cache_miss_count, op.cache_miss_ns) == (1, 1 * MS)
    assert op.success_ns == (4 + 1 + 3) * MS, "the time of a lookup also counts for a miss"
    assert op.infer_ns == 3 * MS
    assert (whole.success_count, whole.inference_count, whole.execution_count) == (1, 0, 0)
    assert (whole.cache_hit_count, whole.cache_miss_count) == (1, 0)


def test_cache_hits_are_reported_in_tritons_form():
    text = stats_json(counted()[1:]).decode()
    assert '"queue":{"count":2' in text
    assert '"compute_infer":{"count":1,"ns":3000000}' in text
    assert '"cache_hit":{"count":1,"ns":2000000},"cache_miss":{"count":1,"ns":1000000}' in text


def test_replicas_are_added_up():
    _, op = merge([counted(), counted()])
    assert (op.caches, op.cache_hit_count, op.cache_miss_ns) == (True, 2, 2 * MS)


def test_only_models_with_a_cache_have_metrics_of_hits():
    whole, op = counted()
    whole.caches = False
    engine = EngineState(True, 0, 0, 0, 0, [])
    text = render([Snapshot(0, engine, [whole])]).decode()
    assert "nv_cache" not in text
    text = render([Snapshot(0, engine, [op])]).decode()
    for name, value in (
        ("num_hits_per_model", 1),
        ("num_misses_per_model", 1),
        ("hit_duration_per_model", 2000),
        ("miss_duration_per_model", 1000),
    ):
        assert f'nv_cache_{name}{{model="op",version="1"}} {value}' in text
