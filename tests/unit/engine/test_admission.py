"""Which requests can be answered in time, and which go first: by measured rates and time."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.engine.admission import AdmissionController, SharedQueue, SharingController
from pipeline.engine.request import is_late
from pipeline.engine.shedding import Throughput, seconds_over
from pipeline.errors import OverloadedError


class Played:
    """A server that is backed up from time 0 on, seen while it answers."""

    def __init__(self, turn_s=0.04):
        self.seen = Throughput()
        self.now = 0.0
        self.turn_s = turn_s
        self.look()

    def look(self, is_backed_up=True):
        self.seen.look(self.now, is_backed_up, self.turn_s)

    def serve(self, seconds, per_s, at_once=1):
        """Answer `at_once` every so often, `per_s` in all."""
        for _ in range(round(seconds * per_s / at_once)):
            self.now += at_once / per_s
            for _ in range(at_once):
                self.seen.served()
            self.look()
        return self

    def over(self, ahead, time_left_s=2.0, **more):
        self.seen.passes(self.now)
        return seconds_over(self.seen, self.now, ahead, time_left_s, **more)


def test_without_measurements_no_request_is_refused():
    assert seconds_over(Throughput(), 5.0, 10_000, 0.001) is None


def test_a_request_behind_too_many_is_refused_with_the_seconds_that_are_missing():
    played = Played().serve(1.0, 100)
    assert played.over(ahead=150) is None
    assert played.over(ahead=299) == pytest.approx(3.0 - 0.9 * 2.0, abs=0.1)


def test_a_persistent_queue_is_limited():
    played = Played().serve(1.9, 100)
    assert played.over(ahead=100) is None, "a burst, of which all can be in time"
    assert played.serve(0.3, 100).over(ahead=100) is not None
    assert played.over(ahead=70) is None


def test_workers_do_not_wait_because_requests_have_waited_elsewhere():
    played = Played().serve(5.0, 100)
    assert played.over(ahead=10, time_left_s=1.2, passed_s=0.8) is None
    assert played.over(ahead=30, time_left_s=1.2, passed_s=0.8) is not None


def test_a_request_that_leaves_in_the_instant_of_the_first_look_sets_no_rate():
    """A loop's time stands still within a turn."""
    played = Played()
    played.seen.served()
    played.look()
    assert played.serve(5.0, 100).over(ahead=500) is not None


def test_the_rate_is_measured_while_requests_wait():
    played = Played().serve(1.0, 100)
    played.look(is_backed_up=False)
    played.now += 0.5
    played.look()
    assert played.seen.per_s == pytest.approx(100, rel=0.05), "the idle time does not count"
    assert played.over(ahead=500) is not None


def test_no_request_is_refused_while_all_can_start():
    played = Played().serve(1.0, 100)
    played.look(is_backed_up=False)
    assert played.over(ahead=500) is None


def test_an_old_measurement_refuses_no_request():
    played = Played().serve(1.0, 100)
    played.look(is_backed_up=False)
    played.now += 60
    played.look()
    assert played.over(ahead=10_000) is None
    assert played.serve(0.15, 100).over(ahead=10_000) is not None, "but what is seen now does"


def test_a_slow_first_answer_does_not_refuse_the_requests_behind_it():
    played = Played(turn_s=5.0)
    played.now = 5.0
    played.seen.served()
    played.look()
    assert played.over(ahead=50) is None
    assert played.serve(0.05, 1000).over(ahead=50) is None, "nor when a few more have come"


def test_a_faster_service_is_measured_at_once():
    played = Played().serve(5.0, 100)
    assert played.over(ahead=300) is not None
    assert played.serve(0.1, 2000).over(ahead=300) is None


def test_a_slower_service_is_measured_soon():
    played = Played().serve(5.0, 1000)
    assert played.over(ahead=300) is None
    assert played.serve(3.0, 10).over(ahead=300) is not None


def test_a_stalled_service_refuses_more_requests_with_time():
    played = Played().serve(5.0, 1000)
    assert played.over(ahead=300) is None
    played.now += 5.0
    assert played.over(ahead=300) is not None


def test_a_slow_run_does_not_refuse_requests_with_enough_time():
    played = Played().serve(5.0, 20)
    played.now += 20.0
    assert played.over(ahead=30, time_left_s=60.0) is None
    assert played.over(ahead=30, time_left_s=10.0) is not None
    played.seen.served()
    played.look()
    assert played.over(ahead=30, time_left_s=60.0) is None, "nor when it has ended"


@pytest.mark.parametrize("silent_s", [100.0, 600.0, 1e6])
def test_the_advised_delay_has_a_maximum(silent_s):
    played = Played().serve(5.0, 20)
    played.now += silent_s
    assert played.over(ahead=30, time_left_s=10.0) == 60.0


@pytest.mark.parametrize(("turn_s", "at_once"), [(2.0, 64), (0.5, 16)])
def test_answers_in_batches_do_not_distort_the_rate(turn_s, at_once):
    played = Played(turn_s)
    for _ in range(20):
        played.serve(turn_s, at_once / turn_s, at_once)
        assert played.seen.per_s <= 2 * at_once / turn_s
    played.now += turn_s * 0.99
    played.seen.passes(played.now)
    assert played.seen.per_s >= 0.5 * at_once / turn_s, "just before the next one"


def test_a_request_is_late_at_half_of_its_time_or_within_a_run_of_its_deadline():
    assert [is_late(now, 10.0, 12.0) for now in (10.99, 11.0)] == [False, True]
    assert [is_late(now, 10.0, 12.0, span_s=1.5) for now in (10.4, 10.5)] == [False, True]


def test_a_refusal_is_released_as_soon_as_it_is_raised():
    door: Any = SimpleNamespace(rejected=0)
    gc.disable()  # what its traceback has, such as a body, would wait for it
    try:
        error = OverloadedError("as asked")
        reference = weakref.ref(error)
        with pytest.raises(OverloadedError) as raised:
            AdmissionController.refuse(door, error)
        del error, raised
        assert reference() is None
        assert door.rejected == 1
    finally:
        gc.enable()


def waiting(controller: AdmissionController) -> int:
    """Fill its queue until it refuses; returns how many wait."""
    while True:
        try:
            if controller.queued >= controller.queue_size:
                controller.check()
        except OverloadedError:
            return controller.queued
        controller.queued += 1


def test_controllers_that_share_a_queue_have_a_share_each():
    queue = SharedQueue(80, 2)
    one, two = (SharingController(1, queue, lambda request: None, lambda: 0.0) for _ in range(2))
    assert waiting(one) == 60, "a quarter of it is the other's"
    assert waiting(two) == 20
    one.queued = 0
    assert waiting(two) == 60
    assert waiting(one) == 20


def test_a_short_queue_is_bounded_too():
    queue = SharedQueue(3, 2)
    one, two = (SharingController(1, queue, lambda request: None, lambda: 0.0) for _ in range(2))
    assert (waiting(one), waiting(two)) == (3, 0)
    none = SharingController(1, SharedQueue(0, 2), lambda request: None, lambda: 0.0)
    assert waiting(none) == 0
