from __future__ import annotations

import pytest

from pipeline.engine.schedulers.dynamic import BatchPolicy, Load, batches_ahead


def load(gap_s=0.0, service_s=0.0):
    made = Load()
    made.gap_s, made.service_s = gap_s, service_s
    return made


def test_without_a_timeout_nobody_waits():
    assert BatchPolicy(8).ready_to_cut(ready=1, target=8, first_ready_at=5.0, now=5.0)


def test_full_waits_for_the_batch_size_or_the_timeout():
    policy = BatchPolicy(8, timeout_s=0.01)
    assert policy.target(load(gap_s=1.0, service_s=0.001), workers=2) == 8
    assert not policy.ready_to_cut(ready=7, target=8, first_ready_at=5.0, now=5.009)
    assert policy.ready_to_cut(ready=8, target=8, first_ready_at=5.0, now=5.0)
    assert policy.ready_to_cut(ready=1, target=8, first_ready_at=5.0, now=policy.due(5.0))


@pytest.mark.parametrize(
    ("gap_s", "workers", "target"),
    [
        (0.0052, 2, 1),  # a lone client: 5 ms / (5.2 ms x 2) -> nobody else will come
        (0.0025, 2, 2),  # one arrival a batch and worker, and a quarter
        (0.00125, 2, 3),
        (0.0003125, 2, 8),  # 3200/s: what two workers can do in full batches
        (0.00001, 2, 8),
        (0.00125, 1, 5),
    ],
)
def test_adaptive_aims_at_what_arrives_while_a_batch_runs(gap_s, workers, target):
    policy = BatchPolicy(8, timeout_s=0.005, adaptive=True)
    assert policy.target(load(gap_s, service_s=0.005), workers) == target


def test_adaptive_wants_a_full_batch_when_everything_arrives_at_once():
    assert BatchPolicy(8, 0.005, adaptive=True).target(load(0.0, 0.005), workers=1) == 8


def test_gaps_and_service_times_are_running_means():
    seen = Load()
    for now in (0.0, 1.0, 2.0):
        seen.arrived(now)
    assert seen.gap_s == 1.0
    seen.arrived(2.0)
    assert 0.9 < seen.gap_s < 1.0
    seen.served(0.01)
    seen.served(0.02)
    assert 0.01 < seen.service_s < 0.011


def test_an_idle_hour_does_not_hide_the_rush_after_it():
    seen = Load()
    for now in (0.0, 3600.0):
        seen.arrived(now)
    assert seen.gap_s <= 1.0


@pytest.mark.parametrize(
    ("service_s", "batch_size", "ahead"),
    [(0.0, 1, 0), (0.000002, 1, 32), (0.0001, 1, 10), (0.005, 1, 0), (0.005, 8, 2)],
)
def test_only_quick_ops_and_full_batches_are_queued_ahead(service_s, batch_size, ahead):
    assert batches_ahead(service_s, batch_size, workers=2) == ahead
