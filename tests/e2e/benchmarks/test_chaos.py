"""A short storm over a real server."""

from __future__ import annotations

from benchmarks.chaos import Plan, judge, markdown, survive
from benchmarks.storm import Blow

# So many attempts, and so long a deadline, that nothing depends on how busy the machine is.
SHORT = Plan(
    seconds=3.0,
    calm_s=0.5,
    seed=44,  # a request that always crashes, one that always hangs, every kind of blow
    per_s=80.0,
    kill_every_s=0.25,
    every=60,
    doomed_every=120,
    retry=5,
    deadline_s=60.0,
)


def test_every_request_of_a_storm_ends_as_it_should() -> None:
    run = survive(SHORT)

    missed = [finding for finding in judge(run) if not finding.is_met and not finding.is_timing]
    assert not missed, markdown(run)
    assert all(run.events[blow.value] for blow in (Blow.KILL, Blow.ZYGOTE)), run.events
    assert run.events["calls that crashed (SIGSEGV)"] > 0
    assert run.events["calls that hung"] > 0
