"""Quantiles of what requests took in the last minute."""

from __future__ import annotations

import numpy as np

from pipeline.observe import statistics
from pipeline.observe.statistics import RecentTimes


def times_of(clock, quantiles=(0.5, 1.0)):
    return RecentTimes(quantiles, lambda: clock[0])


def test_quantiles_are_of_one_model_and_one_row_each():
    recent = times_of([0.0], (0.0, 0.5, 1.0))
    times = np.array([[1, 2, 9, 3], [10, 20, 90, 30]], np.int64) * 1000
    recent.add(np.array([0, 0, 1, 0]), times)
    assert recent.quantiles_us(0) == [[1, 2, 3], [10, 20, 30]]
    assert recent.quantiles_us(1) == [[9, 9, 9], [90, 90, 90]]
    assert recent.quantiles_us(2) == []


def test_times_older_than_a_minute_are_removed():
    clock = [0.0]
    recent = times_of(clock, (0.0, 1.0))
    for at, took in ((0.0, 5), (30.0, 7)):
        clock[0] = at
        recent.add(np.array([0]), np.array([[took * 1000]]))
    assert recent.quantiles_us(0) == [[5, 7]]
    clock[0] = 61.0
    assert recent.quantiles_us(0) == [[7, 7]]
    clock[0] = 200.0
    assert recent.quantiles_us(0) == []


def test_so_many_are_remembered(monkeypatch):
    monkeypatch.setattr(statistics, "_MOST", 10)
    recent = times_of([0.0], (0.0,))
    for took in range(5):
        recent.add(np.zeros(4, np.int64), np.full((1, 4), took * 1000))
    assert recent.quantiles_us(0) == [[3]]
