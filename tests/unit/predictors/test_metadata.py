"""The memory and time that loading a model takes, where they are known."""

from __future__ import annotations

import pytest

from pipeline.predictors import base
from pipeline.predictors.base import LoadMeter, MemoryUse


class Process:
    """Stands for this one, in which other tests let go of memory while one is measured."""

    def __init__(self) -> None:
        self.resident = 1000


@pytest.fixture
def process(monkeypatch):
    process = Process()
    monkeypatch.setattr(base, "_resident_bytes", lambda: process.resident)
    return process


def test_a_load_is_charged_with_the_growth_of_the_process(process):
    with LoadMeter() as meter:
        process.resident += 64
        assert meter.uses() == [MemoryUse("CPU", 0, 64)]


def test_a_process_that_shrank_reports_no_memory(process):
    with LoadMeter() as meter:
        process.resident -= 1
        assert meter.uses() == []


def test_concurrent_loads_report_no_memory(process):
    with LoadMeter() as first:
        with LoadMeter() as second:
            process.resident += 64
            assert second.uses() == []
        assert first.uses() == []
    with LoadMeter() as later:
        process.resident += 64
        assert len(later.uses()) == 1


def test_the_memory_of_this_process_is_measured():
    assert base._resident_bytes() > 2**20
