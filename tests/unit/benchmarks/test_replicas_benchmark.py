"""The benchmark of replicas: what is computed of measured times."""

from __future__ import annotations

import pytest

from benchmarks.replicas import Costs, gains, row_of

COSTS = Costs(loop=0.001, worker=0.0005, workers=0.0005, gateway=0.0005)


def test_the_capacity_is_bounded_by_the_busiest_process_and_the_cores():
    assert COSTS.capacity(1, cores=8) == pytest.approx(1000)
    assert COSTS.capacity(2, cores=8) == pytest.approx(2000)
    assert COSTS.capacity(4, cores=4) == pytest.approx(2000), "each request takes 2 ms of a core"
    assert Costs(0.001, 0.004, 0.004, 0.0).capacity(1, cores=16) == pytest.approx(250)


def test_the_gain_is_by_cores_and_the_ratio_that_of_rounds():
    assert gains("m", COSTS, replicas=2) == ["m", "1.00", "2.00", "2.00", "2.00"]
    rounds = [
        [(100, COSTS), (150, COSTS)],
        [(200, COSTS), (200, COSTS)],
        [(50, COSTS), (60, COSTS)],
    ]
    assert row_of("m", rounds) == ["m", "100", "150", "1.20"]
