"""`benchmarks.model_times`: what statistics grew by, and how far two of them are apart."""

from __future__ import annotations

import pytest

from benchmarks import NotMeasuredError
from benchmarks.model_times import FIELDS, Times, grown, rows_of, write_models


def stats(count, ns, executions, failed=0):
    durations = {name: {"count": str(count), "ns": str(ns)} for name in FIELDS}
    return {
        "execution_count": executions,
        "inference_stats": {**durations, "fail": failures(failed)},
    }


def failures(count):
    return {"count": count, "ns": 0}


def test_growth_of_statistics_is_per_request():
    us, batch = grown(stats(2, 1_000, 1), stats(10, 41_000, 5, failed=4), 4)
    assert us == dict.fromkeys(FIELDS, 5.0)
    assert batch == 2.0


@pytest.mark.parametrize("after", [stats(2, 1_000, 1), stats(3, 1_000, 2, failed=5)])
def test_statistics_without_successes_are_not_measured(after):
    with pytest.raises(NotMeasuredError):
        grown(stats(2, 1_000, 1), after, 4)


def times(queue_us, input_us=10.0):
    us = dict.fromkeys(FIELDS, 1_000.0) | {"queue": queue_us, "compute_input": input_us}
    return Times(us, 1.0, 5.0)


def test_medians_are_compared_and_the_largest_difference_is_returned():
    rounds = [[times(1_000.0), times(1_300.0)], [times(500.0), times(1_200.0, 90.0)]]
    rows, apart = rows_of("plain, 4", [*rounds, [times(2_000.0), times(900.0)]])
    assert rows[1] == ["plain, 4", "queue", "1,000", "1,200", "1.20"]
    assert apart == pytest.approx(0.2)


def test_short_times_are_shown_and_not_judged():
    rows, apart = rows_of("plain, 1", [[times(10.0), times(60.0)]])
    assert rows[1][-1] == "6.00"
    assert apart == 0.0


def test_the_models_that_are_written_wait_and_differ_in_batching(tmp_path):
    write_models(tmp_path, ".", 0.005)
    configs = {path.name: (path / "config.pbtxt").read_text() for path in tmp_path.iterdir()}
    assert configs.keys() == {"plain", "batched"}
    assert "dynamic_batching" in configs["batched"]
    assert "dynamic_batching" not in configs["plain"]
    compile((tmp_path / "plain" / "1" / "model.py").read_text(), "model.py", "exec")
