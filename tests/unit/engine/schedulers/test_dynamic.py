"""`full` and `adaptive`: when a batch is cut, and how large it is."""

from __future__ import annotations

import asyncio

import pytest
from doubles import Engine, Tag, answers, virtual
from scheduling import item, load, request

from pipeline import RequestOp
from pipeline.config.schema import OpConfig
from pipeline.engine.schedulers.base import Batch, Load
from pipeline.engine.schedulers.dynamic import AdaptiveScheduler, FullScheduler, batches_ahead


def filled(ready, kind=FullScheduler, rows=1, **config):
    scheduler = kind(OpConfig(**config))
    for data_id in range(ready):
        scheduler.add(item(request(data_id, rows), 5.0), 5.0)
    return scheduler


def size(batch):
    assert isinstance(batch, Batch)
    assert batch.worker is None
    return len(batch.items)


def test_no_batch_is_cut_from_an_empty_queue():
    assert filled(0, batch_size=8).next(load(), 5.0) is None


def test_without_a_timeout_a_batch_is_cut_at_once():
    assert size(filled(1, batch_size=8).next(load(), 5.0)) == 1


def test_full_waits_for_the_batch_size_or_the_timeout():
    config = {"batch_size": 8, "auto_batching_timeout_s": 0.01}
    assert FullScheduler(OpConfig(**config)).target(load(2)) == 8
    scheduler = filled(7, **config)
    assert scheduler.next(load(), 5.009) == 5.01, "asks to be asked again then"
    assert size(scheduler.next(load(), 5.01)) == 7
    assert size(filled(8, **config).next(load(), 5.0)) == 8
    assert size(filled(1, **config).next(load(), 5.01)) == 1


def test_busy_workers_get_no_batch_that_is_not_full():
    assert filled(7, batch_size=8).next(load(2, running=2), 5.0) is None
    assert size(filled(7, batch_size=8).next(load(2, running=1), 5.0)) == 7


def test_a_full_batch_is_queued_at_a_busy_worker_if_the_worker_is_quick():
    assert filled(8, batch_size=8).next(load(2, running=2), 5.0) is None
    assert size(filled(8, batch_size=8).next(load(2, running=2, service_s=0.0001), 5.0)) == 8
    assert filled(8, batch_size=8).next(load(0, service_s=0.0001), 5.0) is None


def test_a_batch_is_bounded_in_samples_too():
    scheduler = filled(4, rows=3, batch_size=8, auto_batching_timeout_s=0.01)
    assert size(scheduler.next(load(max_rows=8), 5.0)) == 2, "as many as fit, at once"
    assert scheduler.next(load(max_rows=8), 5.0) == 5.01, "6 samples do not fill a batch"


def test_batches_are_bounded_by_the_room_of_the_next_op():
    scheduler = filled(8, batch_size=8)
    assert scheduler.next(load(max_items=0), 5.0) is None
    assert size(scheduler.next(load(max_items=3), 5.0)) == 3


def test_a_batch_is_cut_at_once_when_the_engine_is_full():
    scheduler = filled(2, batch_size=8, auto_batching_timeout_s=0.01)
    assert size(scheduler.next(load(is_full=True), 5.0)) == 2


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
def test_adaptive_aims_at_the_requests_that_arrive_during_a_run(gap_s, workers, target):
    scheduler = AdaptiveScheduler(OpConfig(batch_size=8, auto_batching_timeout_s=0.005))
    scheduler.gap_s = gap_s
    assert scheduler.target(load(workers, service_s=0.005)) == target


def test_adaptive_waits_for_a_full_batch_when_requests_arrive_in_bursts():
    scheduler = filled(3, AdaptiveScheduler, batch_size=8, auto_batching_timeout_s=0.005)
    assert scheduler.target(load(service_s=0.005)) == 8
    assert scheduler.next(load(service_s=0.005), 5.0) == 5.005


def test_adaptive_cuts_a_batch_when_its_target_is_reached():
    scheduler = filled(2, AdaptiveScheduler, batch_size=8, auto_batching_timeout_s=0.005)
    scheduler.gap_s = 0.0025
    assert size(scheduler.next(load(2, service_s=0.005), 5.0)) == 2


def test_gaps_and_service_times_are_running_means():
    scheduler, seen = AdaptiveScheduler(OpConfig()), Load()
    for now in (0.0, 1.0, 2.0):
        scheduler.add(item(request()), now)
    assert scheduler.gap_s == 1.0
    scheduler.add(item(request()), 2.0)
    assert 0.9 < scheduler.gap_s < 1.0
    seen.served(0.01)
    seen.served(0.02)
    assert 0.01 < seen.service_s < 0.011


def test_an_idle_hour_does_not_hide_the_rush_after_it():
    scheduler = AdaptiveScheduler(OpConfig())
    for now in (0.0, 3600.0):
        scheduler.add(item(request()), now)
    assert scheduler.gap_s <= 1.0


@pytest.mark.parametrize(
    ("service_s", "batch_size", "ahead"),
    [(0.0, 1, 0), (0.000002, 1, 32), (0.0001, 1, 10), (0.005, 1, 0), (0.005, 8, 2)],
)
def test_only_quick_ops_and_full_batches_are_queued_ahead(service_s, batch_size, ahead):
    assert batches_ahead(Load(workers=2, service_s=service_s), batch_size) == ahead


@pytest.mark.parametrize(
    ("service_s", "batch_size", "ahead"), [(0.0, 1, 2), (0.02, 1, 2), (0.02, 8, 2), (2e-06, 1, 32)]
)
def test_workers_that_are_far_away_have_their_next_batch_with_them(service_s, batch_size, ahead):
    assert batches_ahead(Load(workers=2, service_s=service_s, ahead=1), batch_size) == ahead


@pytest.mark.parametrize("batching", ["full", "adaptive"])
@virtual
async def test_an_engine_delays_a_single_request_by_the_configured_timeout(batching):
    op = {"batch_size": 4, "auto_batching_timeout": 50, "batching": batching}
    async with Engine(Tag("a", input_ops=[RequestOp()]), {"op": {"a": op}}) as engine:
        began = asyncio.get_running_loop().time()
        assert answers(await engine.ask(path="x")) == {"path": "x>a"}
        assert engine.pools["a"].begun_at == [pytest.approx(began + 0.05)]
