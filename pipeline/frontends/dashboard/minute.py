"""LastMinute: the last minute second by second, for the small lines of a dashboard just opened."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.ma  # else numpy does at its first call, when no file may be left

from pipeline.engine.journal.journal import PIPELINE, Outcome, Rows
from pipeline.observe.sink import SinkContext
from pipeline.observe.snapshot import LATENCY_STEPS, MinuteSeries, Snapshot
from pipeline.observe.tables import Counters, Integers, buckets, percentile, tally

SECONDS = 60
_NS = 1_000_000_000
_SAMPLE_S = 1.0


class _Second:
    """The requests of one second; their percentile is looked for once, when somebody asks."""

    __slots__ = ("_latency", "_p99_ns", "inside", "succeeded")

    def __init__(self) -> None:
        self._latency: Counters = np.zeros(LATENCY_STEPS, np.uint64)
        self._p99_ns: int | None = 0
        self.succeeded = 0
        self.inside = 0

    def add(self, took_ns: Integers) -> None:
        tally(self._latency, buckets(took_ns))
        self.succeeded += len(took_ns)
        self._p99_ns = None

    @property
    def p99_ns(self) -> int:
        if self._p99_ns is None:
            self._p99_ns = int(percentile(self._latency.tolist(), 0.99))
        return self._p99_ns


_NOTHING = _Second()


class LastMinute:
    """A sink that counts requests of the whole pipeline by the second in which they ended."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._seconds: dict[int, _Second] = {}

    def notify(self, spans: Rows, requests: Rows) -> None:
        """Take in what happened since the last call."""
        is_well = (requests["target"] == PIPELINE) & (requests["outcome"] == Outcome.OK)
        good = requests[is_well]
        if not len(good):
            return
        ended, took = good["end_ns"] // _NS, np.maximum(good["end_ns"] - good["start_ns"], 0)
        for second in np.unique(ended).tolist():
            self._at(second).add(took[ended == second])

    def sample(self, inside: int) -> None:
        """Note how many requests are active or queued now."""
        now = self._at(self._clock_ns() // _NS)
        now.inside = max(now.inside, inside)

    def series(self) -> MinuteSeries:
        """Return the last 60 seconds that are over."""
        end = self._clock_ns() // _NS
        known = [self._seconds.get(second, _NOTHING) for second in range(end - SECONDS, end)]
        return MinuteSeries(
            end_s=end,
            succeeded=[each.succeeded for each in known],
            p99_ns=[each.p99_ns for each in known],
            inside=[each.inside for each in known],
        )

    def _at(self, second: int) -> _Second:
        found = self._seconds.get(second)
        if found is None:
            found = self._seconds[second] = _Second()
            for old in [key for key in self._seconds if key < second - SECONDS]:
                del self._seconds[old]
        return found


def open_last_minute(context: SinkContext, options: None) -> LastMinute:
    """Open the sink `last_minute`, which fills the minute of the Snapshot."""
    minute = LastMinute()

    def sample() -> None:
        state = context.state()
        minute.sample(state.inside + state.waiting)

    def fill(snapshot: Snapshot) -> None:
        snapshot.minute = minute.series()

    context.every("last minute", _SAMPLE_S, sample)
    context.on_snapshot(fill)
    return minute


def merged(replicas: Sequence[MinuteSeries]) -> MinuteSeries:
    """Merge the minutes of all replicas: sums, but of the 99th percentiles the highest."""
    known = [each for each in replicas if each.end_s]
    end_s = max((each.end_s for each in known), default=0)

    def column(name: str, merge: Callable[[tuple[int, ...]], int]) -> list[int]:
        aligned = []  # to end at `end_s`: 0 where nothing is known
        for each in known:
            missing = min(SECONDS, end_s - each.end_s)
            aligned.append([*getattr(each, name)[missing:], *[0] * missing])
        return [merge(of) for of in zip(*aligned, strict=True)]

    return MinuteSeries(
        end_s, column("succeeded", sum), column("p99_ns", max), column("inside", sum)
    )
