"""The queueing model of a service, and what it makes of trials."""

from __future__ import annotations

import pytest
from simulated_service import SimulatedOp, SimulatedService

from pipeline.tuning.cost_model import CostModel, OpCost, fitted
from pipeline.tuning.search import MemoryModel
from pipeline.tuning.settings import OpSettings, OpSpace, Space, Trial

_OP = OpSpace("only", (1, 2, 4, 8), (1, 4, 16))


def _model(cost: OpCost, clients: int = 16, threads: float = 4) -> CostModel:
    return CostModel(Space((_OP,), clients, 4), (cost,), own_ms=0.05, threads=threads)


def _per_s(model: CostModel, *settings: OpSettings) -> float:
    return float(model.expect([settings])[0])


def test_an_op_that_waits_does_as_much_as_its_workers():
    model = _model(OpCost(0.0, 10.0, computed=0.0, visits=1.0))
    assert _per_s(model, OpSettings(1, 1)) == pytest.approx(100, rel=0.02)
    assert _per_s(model, OpSettings(4, 1)) == pytest.approx(400, rel=0.02)


def test_more_is_not_computed_than_there_are_cores_for():
    model = _model(OpCost(0.0, 10.0, computed=1.0, visits=1.0), threads=2)
    assert _per_s(model, OpSettings(8, 1)) == pytest.approx(200, rel=0.05)


def test_a_batch_is_as_large_as_there_are_clients_for_it():
    model = _model(OpCost(10.0, 0.0, computed=0.0, visits=1.0), clients=8)
    assert _per_s(model, OpSettings(1, 16)) == pytest.approx(
        _per_s(model, OpSettings(1, 1)) * 8, rel=0.6
    )
    assert _per_s(model, OpSettings(1, 16)) <= 8 / 10 * 1e3


def test_an_op_that_requests_visit_seldom_holds_them_up_seldom():
    model = _model(OpCost(0.0, 10.0, computed=0.0, visits=0.25))
    assert _per_s(model, OpSettings(1, 1)) == pytest.approx(400, rel=0.02)


def test_the_costs_of_a_simulated_service_are_estimated():
    space = Space((_OP,), 32, 4)
    service = SimulatedService(space, (SimulatedOp(8.0, 0.5, 1.0),), parallel=1.0, own_ms=0.0)
    trials = [
        service.trial((OpSettings(*given),), requests=1000) for given in ((1, 1), (4, 4), (8, 4))
    ]
    model = fitted(space, trials)
    (cost,) = model.ops
    assert cost.fixed_ms == pytest.approx(8.0, rel=0.2)
    assert cost.each_ms == pytest.approx(0.5, abs=0.4)
    assert cost.computed > 0.8
    assert model.threads < 2


def test_memory_is_estimated_per_worker():
    op = OpSpace("only", (1, 2, 4, 8), in_processes=True)
    space = Space((op, op), 4, 4)

    def trial(first: int, second: int, memory_mb: float) -> Trial:
        settings = (OpSettings(first, 1), OpSettings(second, 1))
        return Trial(settings, per_s=1.0, memory_mb=memory_mb, worker_mb=30.0)

    guessed = MemoryModel(space, [trial(1, 1, 160.0)])
    assert guessed.expect_mb((OpSettings(3, 1), OpSettings(1, 1))) == pytest.approx(220.0)
    seen = MemoryModel(space, [trial(1, 1, 160.0), trial(4, 1, 460.0), trial(1, 4, 190.0)])
    assert seen.expect_mb((OpSettings(8, 1), OpSettings(1, 1))) == pytest.approx(860.0, rel=0.05)
    assert seen.expect_mb((OpSettings(1, 1), OpSettings(8, 1))) == pytest.approx(230.0, rel=0.1)
