"""A short run of the fuzzer of `client_type: openai`, and proof that it is not blind."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from unittest import mock

import pytest
from fuzz import upstream

from pipeline.predictors.remote.http_calls import HttpCalls, UpstreamConnection
from pipeline.predictors.remote.pool import Waiting

_MOST_CASES = 60  # until a defect is found


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@contextlib.contextmanager
def an_attempt_too_many():
    make = HttpCalls.__init__

    def once_more(self, *given):
        make(self, *given)
        self._retries += 1

    with mock.patch.object(HttpCalls, "__init__", once_more):
        yield


@contextlib.contextmanager
def connections_are_reused_after_half_an_answer():
    usable = property(lambda self: True, lambda self, value: None)
    with mock.patch.object(UpstreamConnection, "is_usable", usable, create=True):
        yield


@contextlib.contextmanager
def callers_that_left_are_not_noticed():
    with mock.patch.object(Waiting, "check"):
        yield


MUTANTS = {
    an_attempt_too_many: 1,
    connections_are_reused_after_half_an_answer: 9,
    callers_that_left_are_not_noticed: 20,
}
"""The first seed for each defect; which case shows it depends on the machine."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_fuzzer_reports_a_mutant(mutant, monkeypatch):
    seeds = range(MUTANTS[mutant], MUTANTS[mutant] + _MOST_CASES)
    with mutant(), monkeypatch.context() as patch:
        patch.setattr(upstream, "_PATIENCE_S", 3.0)
        result = next((seed for seed in seeds if upstream.run(seed)), None)
    assert result is not None
    assert upstream.run(result) == []
