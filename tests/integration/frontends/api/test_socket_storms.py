"""A short run of the fuzzer of WebSockets, and proof that it is not blind."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from unittest import mock

import pytest
from fuzz import sockets, streams_real

from pipeline.frontends.api.sockets import SocketRequests

_MOST_CASES = 60  # until a defect is found


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@contextlib.contextmanager
def credit_is_not_counted():
    with mock.patch.object(SocketRequests, "_spend", mock.AsyncMock()):
        yield


@contextlib.contextmanager
def a_cancel_is_not_heeded():
    heed = SocketRequests._is_order

    def deaf(self, message):
        return "cancel" in message or heed(self, message)

    with mock.patch.object(SocketRequests, "_is_order", deaf):
        yield


@contextlib.contextmanager
def parts_have_the_number_of_another_request():
    answer = SocketRequests._answer

    def other(self, socket, number, *asked):
        return answer(self, socket, number ^ 1, *asked)

    with mock.patch.object(SocketRequests, "_answer", other):
        yield


MUTANTS = {
    credit_is_not_counted: 140,
    a_cancel_is_not_heeded: 120,
    parts_have_the_number_of_another_request: 140,
}
"""The first seed for each defect; which case shows it depends on the machine."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_fuzzer_reports_a_mutant(mutant, monkeypatch):
    seeds = range(MUTANTS[mutant], MUTANTS[mutant] + _MOST_CASES)
    with mutant(), monkeypatch.context() as patch:
        patch.setattr(streams_real, "_PATIENCE_S", 3.0)
        result = next((seed for seed in seeds if sockets.run(seed)), None)
    assert result is not None
    assert sockets.run(result) == []
