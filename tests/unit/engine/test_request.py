"""The states of a request: every legal step, and every illegal one."""

from __future__ import annotations

import logging

import pytest

from pipeline.engine import request as requests
from pipeline.engine.request import LEGAL_STEPS, Phase, RequestState, UnarySink

ARRIVED, QUEUED, ACTIVE, PACKING, ENDED = Phase
LEGAL = {
    (ARRIVED, QUEUED),
    (ARRIVED, ACTIVE),  # there is room in the graph
    (ARRIVED, ENDED),  # refused
    (QUEUED, ACTIVE),
    (QUEUED, ENDED),  # its time is over, or its caller leaves, while it waits
    (ACTIVE, PACKING),
    (ACTIVE, ENDED),
    (PACKING, ENDED),
}
ALL = [(before, after) for before in Phase for after in Phase]


class RecordingSink(UnarySink):
    """A sink that keeps the one answer."""

    def __init__(self) -> None:
        self.answers: list[object] = []

    def end(self, answer: object) -> None:
        self.answers.append(answer)


class Owner:
    """An engine that takes down who is cancelled."""

    def __init__(self) -> None:
        self.cancelled: list[RequestState] = []

    def cancel(self, request: RequestState) -> None:
        self.cancelled.append(request)


def request_in(phase: Phase) -> RequestState:
    return RequestState(None, RecordingSink(), Owner(), 7, 0, phase=phase)


def test_the_table_names_every_phase():
    assert len(LEGAL_STEPS) == len(Phase)
    assert {after for follow in LEGAL_STEPS for after in follow} == set(Phase) - {ARRIVED}


@pytest.mark.parametrize(("before", "after"), sorted(LEGAL))
def test_a_legal_step_changes_the_phase(before, after):
    request = request_in(before)
    request.advance(after)
    assert request.phase is after


@pytest.mark.parametrize(("before", "after"), sorted(set(ALL) - LEGAL))
def test_an_illegal_step_fails_a_test(before, after):
    request = request_in(before)
    with pytest.raises(AssertionError, match=f"from .*{before.name}.* to .*{after.name}"):
        request.advance(after)
    assert request.phase is before


def test_a_server_logs_an_illegal_step_and_continues(monkeypatch, caplog):
    monkeypatch.undo()
    assert requests.report_illegal_step.__module__ == requests.__name__
    request = request_in(ENDED)
    with caplog.at_level(logging.ERROR):
        request.advance(ACTIVE)
    assert "(data_id=7) illegal step from ENDED to ACTIVE" in caplog.text


def test_a_request_is_cancelled_at_its_engine():
    request = request_in(ACTIVE)
    request.cancel()
    assert request.engine.cancelled == [request]


def test_a_unary_sink_takes_no_part():
    with pytest.raises(TypeError, match="one answer"):
        RecordingSink().add(["the first of several"])
