"""A short run of `fuzz.batches`, always the same cases; and proof that it is not blind."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
from fuzz import batch_cases, batches

from pipeline.engine.op.order import OrderFilter
from pipeline.engine.run import ragged
from pipeline.engine.schedulers import dynamic_batcher
from pipeline.engine.schedulers.dynamic_batcher import Draft, DynamicBatcher, PolicyQueue

_SEED = 1
_CASES = 60
_MOST_CASES = 200  # until a defect that is put back is found


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_cases_on_a_virtual_clock_end_as_they_may():
    runs = {seed: batches.run(batch_cases.made_case(seed)) for seed in range(_SEED, _SEED + _CASES)}
    results = {seed: findings for seed, findings in runs.items() if findings}
    assert not results, "python -m fuzz.batches --seed SEED --cases 1 shows each again"


def test_the_cases_cover_each_kind_of_answer():
    kinds, shapes = set(), 0
    for seed in range(_SEED, _SEED + _CASES):
        case = batch_cases.made_case(seed)
        by_number = {request.number: request for request in case.requests}
        _, record = batches.ran_case(case)
        kinds |= {told.text.rpartition("] ")[2] or told.kind for told in record.told.values()}
        for ran in record.ran:
            shapes = max(shapes, len({by_number[number].ragged for number in ran.numbers}))
    assert kinds >= {"answer", "left", batch_cases.FULL, batch_cases.EXPIRED}
    assert shapes > 2, "requests of different shapes share an execution"


def _levels_backwards(patch):
    def in_order(self):
        for level in reversed(self._levels):
            yield from self._queues[level]

    patch.setattr(DynamicBatcher, "_in_order", in_order)


def _forms_forgotten(patch):
    patch.setattr(dynamic_batcher, "_form_of_feed", lambda name, value, ragged: (name,))


def _no_place_is_missing(patch):
    patch.setattr(PolicyQueue, "overflow", lambda self: None)


def _own_timeouts_ignored(patch):
    patch.setattr(dynamic_batcher, "_shorter", lambda own, default: default)


def _delay_ignored(patch):
    patch.setattr(Draft, "ripe", lambda self, now, delay_s: len(self.items))


def _order_lost(patch):
    def pass_on(self, go_on, item, outcome, jumped=False):
        go_on(item, outcome, jumped)

    patch.setattr(OrderFilter, "pass_on", pass_on)


def _counts_of_rows(patch):
    right = ragged.batch_input

    def batch_input(kind, shapes):
        result = right(kind, shapes)
        return result[:-1] if len(shapes) > 2 else np.asarray(result)

    patch.setattr(ragged, "batch_input", batch_input)


@pytest.mark.parametrize(
    "defect",
    [
        _levels_backwards,
        _forms_forgotten,
        _no_place_is_missing,
        _own_timeouts_ignored,
        _delay_ignored,
        _order_lost,
        _counts_of_rows,
    ],
)
def test_the_fuzzer_reports_restored_defects(monkeypatch, defect):
    defect(monkeypatch)
    seeds = range(_SEED, _SEED + _MOST_CASES)
    assert any(batches.run(batch_cases.made_case(seed)) for seed in seeds)
