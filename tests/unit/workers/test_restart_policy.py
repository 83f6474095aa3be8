from __future__ import annotations

import asyncio

import pytest
from doubles import virtual
from hypothesis import given
from hypothesis import strategies as st

from pipeline.workers.restart_policy import RestartSlot, restart_pause_s


def test_the_first_end_is_made_good_at_once():
    assert restart_pause_s(0) == restart_pause_s(1) == 0


def test_the_pause_doubles_from_a_tenth_of_a_second_to_ten_seconds():
    pauses = [restart_pause_s(failures) for failures in range(2, 12)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]


@given(st.integers(0, 10**6))
def test_the_pause_never_shrinks_and_has_a_limit(failures):
    assert restart_pause_s(failures) <= restart_pause_s(failures + 1) <= 10.0


def test_three_ends_without_progress_are_a_crash_loop():
    place = RestartSlot(0)
    looping = []
    for _ in range(4):
        place.ended("died", got_somewhere=False)
        looping.append(place.is_looping)
    assert looping == [False, False, True, True]


def test_an_end_after_some_progress_counts_as_the_first():
    place = RestartSlot(0, failures=7)
    place.ended("died", got_somewhere=True)
    assert (place.failures, place.is_looping, place.pause_s) == (1, False, 0)


def test_the_last_cause_is_reported():
    place = RestartSlot(0)
    for cause in ("one", "other"):
        place.ended(cause, got_somewhere=False)
    assert place.last_cause == "other"


@pytest.mark.parametrize(
    ("failures", "text"),
    [
        (1, "it is restarted"),
        (2, "it is restarted in 0.1 s (2 times in a row)"),
        (20, "it is restarted in 10.0 s (20 times in a row)"),
    ],
)
def test_the_restart_is_described(failures, text):
    assert RestartSlot(0, failures, unprovoked=failures).describe_restart() == text


def test_deaths_caused_by_jobs_delay_no_restart():
    place = RestartSlot(0)
    for _ in range(5):
        place.ended("was killed by SIGSEGV", got_somewhere=False, is_blamed=True)
    assert place.pause_s == 0.0
    assert place.is_looping, "but the server is not what it should be"
    assert not place.is_hopeless, "and others may well be answered"
    place.ended("ended with exit code 1", got_somewhere=False)
    assert place.pause_s == 0.0
    place.is_steady()
    assert not place.is_looping


def test_the_attempts_of_one_request_count_as_one_end():
    place = RestartSlot(0)
    for attempt in range(5):
        place.ended("hung", got_somewhere=False, is_blamed=True, is_again=attempt > 0)
    assert not place.is_looping


@virtual
async def test_a_place_has_one_timer():
    place, rung = RestartSlot(0), []
    loop = asyncio.get_running_loop()
    place.set_timer(loop.call_later(1, rung.append, "first"))
    place.set_timer(loop.call_later(2, rung.append, "second"))
    await asyncio.sleep(3)
    assert rung == ["second"]
    place.set_timer(loop.call_later(1, rung.append, "third"))
    place.set_timer(None)
    await asyncio.sleep(3)
    assert rung == ["second"]
