"""The search of settings, against services that are only simulated."""

from __future__ import annotations

import pytest
from simulated_service import SimulatedOp, SimulatedService, random_service

from pipeline.tuning.search import Search
from pipeline.tuning.settings import Goal, OpSettings, OpSpace, Space, Trial

_WORKERS = (1, 2, 4, 8, 16)
_SIZES = (1, 2, 4, 8, 16, 32)
_SMALLEST = OpSettings(1, 1)


def _searched(service: SimulatedService, goal: Goal, most_trials: int) -> Search:
    space = service.space
    search = Search(space, goal, tuple(_SMALLEST for _ in space.ops), most_trials)
    while (settings := search.propose()) is not None:
        assert settings not in {trial.settings for trial in search.trials}
        search.tell(service.trial(settings, seed=len(search.trials)))
    return search


def _service_of(
    cost: SimulatedOp, *, processes: bool = False, parallel: float = 4
) -> SimulatedService:
    op = OpSpace("only", _WORKERS, _SIZES, in_processes=processes)
    return SimulatedService(Space((op,), clients=32, cores=4), (cost,), parallel)


@pytest.mark.parametrize("seed", range(8))
def test_a_tenth_of_the_trials_comes_close_to_a_full_sweep(seed):
    service = random_service(seed, ops=1)
    search = _searched(service, Goal(), service.space.size // 10)
    best = max(service.trial(item, requests=300).per_s for item in service.space.all())
    assert search.best is not None
    assert service.trial(search.best.settings, requests=300).per_s >= 0.9 * best


def test_workers_of_a_waiting_op_grow_until_all_clients_are_served():
    search = _searched(_service_of(SimulatedOp(0.0, 20.0, 0.0)), Goal(), 8)
    assert search.best is not None
    assert search.best.settings[0].concurrency == 16
    assert search.best.settings[0].batch_size == 1  # larger ones bring nothing


def test_batches_grow_for_an_op_that_holds_the_gil():
    search = _searched(_service_of(SimulatedOp(20.0, 0.1, 1.0), parallel=1), Goal(), 8)
    assert search.best is not None
    assert search.best.settings[0].batch_size * search.best.settings[0].concurrency >= 32
    assert search.best.settings[0].concurrency <= 2


def test_three_ops_are_balanced_in_two_dozen_trials():
    ops = tuple(OpSpace(name, _WORKERS, _SIZES) for name in ("read", "rank", "model"))
    service = SimulatedService(
        Space(ops, clients=64, cores=8),
        (SimulatedOp(0.05, 0.1, 1.0), SimulatedOp(0.0, 6.0, 0.0), SimulatedOp(10.0, 0.2, 0.0)),
        parallel=8,
    )
    search = _searched(service, Goal(), 24)
    by_hand = (OpSettings(1, 1), OpSettings(16, 1), OpSettings(2, 32))
    assert search.best is not None
    assert search.best.per_s >= 0.9 * service.trial(by_hand).per_s
    assert len(search.trials) <= 24  # of 27,000


def test_a_limit_of_memory_is_met():
    service = _service_of(SimulatedOp(0.0, 20.0, 0.0), processes=True)
    search = _searched(service, Goal(memory_mb=200), 10)
    assert search.best is not None
    assert search.best.settings[0].concurrency == 4  # of 20 MiB beside 100: 8 are beyond
    assert all(trial.memory_mb <= 200 for trial in search.trials)


def test_a_limit_of_latency_is_met():
    service = _service_of(SimulatedOp(0.0, 20.0, 0.0))
    search = _searched(service, Goal(p99_ms=100), 10)
    assert search.best is not None
    assert search.best.p99_ms <= 100


def test_without_settings_within_the_limits_there_is_no_best():
    search = _searched(_service_of(SimulatedOp(0.0, 20.0, 0.0)), Goal(p99_ms=1), 6)
    assert search.best is None
    assert search.trials


def test_latency_alone_may_be_the_goal():
    service = _service_of(SimulatedOp(0.0, 20.0, 0.0))
    search = _searched(service, Goal(for_latency=True), 8)
    assert search.best is not None
    assert search.best.p99_ms < 0.1 * search.trials[0].p99_ms


def test_settings_similar_to_failed_ones_are_not_tried():
    service = _service_of(SimulatedOp(5.0, 5.0, 0.0))
    search = Search(service.space, Goal(), (_SMALLEST,), 12)
    failed = 0
    while (settings := search.propose()) is not None:
        if settings[0].batch_size > 1:
            failed += 1
            search.tell(Trial(settings, problem="3 of 3 requests failed"))
        else:
            search.tell(service.trial(settings))
    assert search.best is not None
    assert search.best.settings == (OpSettings(16, 1),)
    assert failed


def test_a_service_that_always_fails_is_tried_once():
    search = Search(_service_of(SimulatedOp(1.0, 1.0, 0.0)).space, Goal(), (_SMALLEST,), 12)
    settings = search.propose()
    assert settings is not None
    search.tell(Trial(settings, problem="it does not start"))
    assert search.propose() is None
    assert search.best is None


def test_a_space_of_one_choice_is_tried_once():
    op = OpSpace("only", (1,))
    service = SimulatedService(Space((op,), 4, 1), (SimulatedOp(1.0, 0.0, 1.0),), 1)
    assert len(_searched(service, Goal(), 5).trials) == 1


def test_a_space_has_each_choice_once():
    op = OpSpace("only", (1, 2), (1, 4), (0.0, 5.0))
    space = Space((op, op), 4, 1)
    assert space.size == len(set(space.all())) == len(list(space.all())) == 36
