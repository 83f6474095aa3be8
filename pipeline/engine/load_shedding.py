"""Load shedding: the requests that can be answered in time, and those that go first.

Rules of (state, now), as Facebook's and Envoy's admission control have them; waiting is elsewhere.
Only requests with a deadline are judged, and only while more wait than can be begun: a server that
keeps up refuses nobody.
"""

from __future__ import annotations

import math

_MIN_SEEN = 8  # requests that have to be answered before anybody is refused
_MIN_SPANS = 3.0  # ... in at least the time of so many spans at the slowest Op
_LONG_S, _LONG_SPANS = 1.0, 4.0  # what is measured fades in this time, and not before so many spans
_SHORT_S, _SHORT_SPANS = 0.1, 1.0
_MAX_GAP_S = 1.0  # of a queue that is there again and again
_BURST_SHARE, _QUEUE_SHARE = 0.9, 0.4  # of a request's time may pass before it is answered
_MIN_PER_S = 1e-9  # what was measured may fade to nothing
_MAX_OVER_S = 60.0  # nobody is told to come back later than that: nothing is known so far ahead
_LATE_SHARE = 0.5  # of its time has passed when a request goes behind the others


class _Rate:
    """A count a second that fades."""

    __slots__ = ("_count", "_seconds")

    def __init__(self) -> None:
        self._count = self._seconds = 0.0

    def passes(self, seconds: float, window_s: float) -> None:
        kept = math.exp(-seconds / window_s)
        self._count *= kept
        # As if the count came evenly: so much of the time before it counts as well.
        self._seconds = self._seconds * kept + window_s * (1 - kept)

    def add(self) -> None:
        self._count += 1.0

    @property
    def per_s(self) -> float:
        return self._count / self._seconds if self._seconds > 0 else math.inf


class Throughput:
    """Count of the requests a second that get through while more wait than can be begun.

    The higher of two counts: over a second, and over a tenth of one, which knows at once of a
    service that became faster. Both last longer where a span at an Op does: of a batch all come at
    the same time.

    Attributes:
        since: when more were waiting first, but for short gaps; None: they are not, or were not
            for long.
        seen: requests answered since then.
        is_backed_up: whether more waited, at the last look, than could be begun.
        span_s: what a span at the slowest Op took, at the last look.
        answered_at: when it was last looked after an answer.
        usual_per_s: how many a second it was then; each answer halves it at most, so that the
            first one behind a single slow span does not say that all are slow.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.seen: int = 0
        self.is_backed_up: bool = False
        self.span_s: float = 0.0
        self.answered_at: float = 0.0
        self.usual_per_s: float = 0.0
        self._is_answered = False
        self._until = 0.0
        self._long, self._short = _Rate(), _Rate()

    def look(self, now: float, is_backed_up: bool, span_s: float) -> None:
        """Take down how it stands when all was begun that can be."""
        self.passes(now)
        if is_backed_up and not self.is_backed_up:
            if self.since is None or now - self._until > _MAX_GAP_S:
                self.since, self.seen = now, 0
                self._long, self._short = _Rate(), _Rate()
                self.usual_per_s = 0.0
            self._until = now
        self.is_backed_up, self.span_s = is_backed_up, span_s

    def passes(self, now: float) -> None:
        """Take down that time passed and nothing changed."""
        if self.is_backed_up:
            seconds = now - self._until
            self._long.passes(seconds, max(_LONG_S, _LONG_SPANS * self.span_s))
            self._short.passes(seconds, max(_SHORT_S, _SHORT_SPANS * self.span_s))
            self._until = now
            if self._is_answered:
                self._is_answered, self.answered_at = False, now
                self.usual_per_s = max(self._long.per_s, self.usual_per_s / 2)

    def served(self) -> None:
        """Take down that a request was answered."""
        if self.is_backed_up:
            self.seen += 1
            self._is_answered = True
            self._long.add()
            self._short.add()

    @property
    def per_s(self) -> float:
        return max(self._long.per_s, self._short.per_s)


def seconds_over(
    throughput: Throughput, now: float, ahead: int, time_left_s: float
) -> float | None:
    """Return by how much a request that comes now would be late; None: it may be in time.

    A queue of which not so many were answered yet as can be in that time may be a burst, and all
    of it may be in time. One that is there still after that many will stay: it is kept short.
    Who has time is not refused because nothing was answered for a while: one slow span ends.

    Args:
        throughput: as it is now.
        ahead: requests that are not answered yet.
        time_left_s: of the one that comes.
    """
    since = throughput.since
    if since is None or not throughput.is_backed_up or throughput.seen < _MIN_SEEN:
        return None
    if now - since < _MIN_SPANS * throughput.span_s:
        return None
    per_s = throughput.per_s
    if now - throughput.answered_at < time_left_s * _QUEUE_SHARE:
        per_s = max(per_s, throughput.usual_per_s)
    is_burst = throughput.seen < per_s * time_left_s
    part = _BURST_SHARE if is_burst else _QUEUE_SHARE
    over_s = (ahead + 1) / max(per_s, _MIN_PER_S) - time_left_s * part
    return min(over_s, _MAX_OVER_S) if over_s > 0 else None


def is_late(now: float, asked_at: float, deadline: float, span_s: float = 0.0) -> bool:
    """Return whether a request has waited so long that all others go first, newer late ones too.

    Who has used up half of the time, or has less left than a span takes, would be too late as a
    rule, and make all behind it late too.
    """
    return now >= min(asked_at + (deadline - asked_at) * _LATE_SHARE, deadline - span_s)
