"""The choice between servers, on a clock that the test moves."""

from __future__ import annotations

import pytest
from doubles import Clock
from hypothesis import given
from hypothesis import strategies as st

from pipeline.predictors.remote.pool import (
    FIRST_BACKOFF_S,
    LEAST_SILENCE_S,
    MAX_BACKOFF_S,
    MAX_TIMEOUTS,
    EndpointPolicy,
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def picks(policy: EndpointPolicy, count: int) -> list[int | None]:
    return [policy.pick() for _ in range(count)]


def test_servers_take_turns(clock: Clock) -> None:
    assert picks(EndpointPolicy(3, clock), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_a_failed_server_is_left_out(clock: Clock) -> None:
    policy = EndpointPolicy(3, clock)
    assert policy.failed(1)
    assert picks(policy, 4) == [0, 2, 0, 2]
    assert policy.count_down == 1


def test_time_alone_does_not_bring_a_failed_server_back(clock: Clock) -> None:
    policy = EndpointPolicy(2, clock)
    policy.failed(0)
    clock.now += 1000
    assert picks(policy, 2) == [1, 1]


def test_a_server_that_answers_is_used_again(clock: Clock) -> None:
    policy = EndpointPolicy(2, clock)
    policy.failed(0)
    assert policy.answered(0)
    assert policy.count_down == 0
    assert sorted(picks(policy, 2)) == [0, 1]
    assert not policy.answered(0)


def test_all_are_tried_in_turn_when_all_are_down(clock: Clock) -> None:
    policy = EndpointPolicy(2, clock)
    policy.failed(0)
    policy.failed(1)
    assert sorted(picks(policy, 2)) == [0, 1]


def test_a_request_gets_no_server_that_it_has_no_use_for(clock: Clock) -> None:
    policy = EndpointPolicy(2, clock)
    assert policy.pick({0}) == 1
    policy.failed(1)
    assert policy.pick({0}) == 1
    assert policy.pick({0, 1}) is None


def test_the_back_off_doubles_up_to_its_limit(clock: Clock) -> None:
    policy = EndpointPolicy(2, clock)
    waits = []
    for _ in range(8):
        policy.failed(0)
        began = clock.now
        while not policy.due():
            clock.now += 0.01
        waits.append(clock.now - began)
    wanted = [min(FIRST_BACKOFF_S * 2**n, MAX_BACKOFF_S) for n in range(8)]
    assert waits == pytest.approx(wanted, abs=0.011)


def test_many_failures_at_once_count_as_one(clock: Clock) -> None:
    policy = EndpointPolicy(2, clock)
    assert [policy.failed(0) for _ in range(64)].count(True) == 1
    clock.now += FIRST_BACKOFF_S
    assert policy.due() == [0]


def test_a_failed_server_is_not_probed_before_its_time(clock: Clock) -> None:
    policy = EndpointPolicy(2, clock)
    assert policy.due() == []
    policy.failed(0)
    assert policy.due() == []


def test_without_an_available_server_none_is_probed_because_requests_try_them(clock: Clock) -> None:
    policy = EndpointPolicy(1, clock)
    policy.failed(0)
    clock.now += 10
    assert policy.due() == []


def test_a_server_with_several_timeouts_in_a_row_has_failed(
    clock: Clock,
) -> None:
    policy = EndpointPolicy(2, clock)
    timeouts = [policy.timed_out(0, LEAST_SILENCE_S) for _ in range(MAX_TIMEOUTS)]
    assert timeouts == [False] * (MAX_TIMEOUTS - 1) + [True]
    assert policy.pick() == policy.pick() == 1


def test_callers_with_short_deadlines_do_not_take_the_server_from_others(clock: Clock) -> None:
    policy = EndpointPolicy(2, clock)
    short_s = LEAST_SILENCE_S / 64  # exact in binary
    for _ in range(2):
        assert not any(policy.timed_out(0, short_s) for _ in range(10 * MAX_TIMEOUTS))
        clock.now += LEAST_SILENCE_S / 2
        policy.answered(0)
    assert not any(policy.timed_out(0, short_s) for _ in range(MAX_TIMEOUTS))
    clock.now += LEAST_SILENCE_S - short_s
    assert policy.timed_out(0, short_s)


def test_rare_short_timeouts_are_not_a_long_silence(clock: Clock) -> None:
    policy = EndpointPolicy(2, clock)
    for pause_s in (0.0, 3600.0, 3600.0):
        clock.now += pause_s + 0.05
        assert not policy.timed_out(0, 0.05)


def test_a_server_that_rare_calls_find_silent_has_failed(clock: Clock) -> None:
    policy = EndpointPolicy(2, clock)
    timeouts = []
    for _ in range(MAX_TIMEOUTS):
        clock.now += 60.0
        timeouts.append(policy.timed_out(0, LEAST_SILENCE_S / 2))
    assert timeouts == [False] * (MAX_TIMEOUTS - 1) + [True]


def test_one_answer_makes_up_for_calls_that_ran_out_of_time(clock: Clock) -> None:
    policy = EndpointPolicy(2, clock)
    for _ in range(MAX_TIMEOUTS - 1):
        policy.timed_out(0, LEAST_SILENCE_S)
        policy.timed_out(0, LEAST_SILENCE_S)
        assert not policy.all_are_well
        policy.answered(0)
        assert policy.all_are_well
    assert policy.count_down == 0


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("fta+"), st.integers(0, 3)), max_size=60),
)
def test_a_well_server_is_always_preferred_and_the_counts_agree(
    count: int, events: list[tuple[str, int]]
) -> None:
    clock = Clock()
    policy = EndpointPolicy(count, clock)
    down: set[int] = set()
    for kind, server in events:
        index = server % count
        if kind == "f":
            policy.failed(index)
            down.add(index)
        elif kind == "t":
            if policy.timed_out(index, LEAST_SILENCE_S):
                down.add(index)
        elif kind == "a":
            assert policy.answered(index) == (index in down)
            down.discard(index)
        else:
            clock.now += 1.0
        assert policy.count_down == len(down)
        well = set(range(count)) - down
        assert policy.pick() in (well or down)
        assert set(policy.due()) <= down
