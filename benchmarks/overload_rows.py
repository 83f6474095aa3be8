"""Endings of the requests of a load, and the rows of a table about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

ANSWERED, LATE, REFUSED, EXPIRED, BROKEN = "answered", "late", "refused", "expired", "broken"

_START_S = 1.0  # before what is answered counts: a server has to see what comes
LEAST = 0.9


@dataclass(frozen=True, slots=True)
class Ending:
    """The ending of a request. The times are in s, from the load's beginning."""

    came_s: float
    took_s: float
    how: str


@dataclass(frozen=True, slots=True)
class Result:
    """`capacity` requests a second; `factor` times as many came for `seconds`."""

    kind: str
    capacity: float
    factor: float
    seconds: float
    endings: Sequence[Ending]

    @property
    def goodput(self) -> float:
        """Answers a second that came in time."""
        ends = [ending.came_s + ending.took_s for ending in self._that_were(ANSWERED)]
        return sum(_START_S <= end < self.seconds for end in ends) / (self.seconds - _START_S)

    @property
    def is_met(self) -> bool:
        """Return whether enough was answered in time."""
        return self.goodput >= LEAST * min(1.0, self.factor) * self.capacity

    def row(self) -> list[str]:
        """Return what the table says of it."""
        counts = Counter(ending.how for ending in self.endings)
        return [
            self.kind,
            f"{self.capacity:.0f}",
            f"{self.factor:g}",
            f"{self.goodput:.0f}",
            f"{self.goodput / self.capacity:.2f}",
            *(f"{counts[how]:,}" for how in (REFUSED, EXPIRED, LATE, BROKEN)),
            _p99_ms(self._that_were(ANSWERED)),
            _p99_ms(self._that_were(REFUSED)),
        ]

    def _that_were(self, how: str) -> list[Ending]:
        return [ending for ending in self.endings if ending.how == how]


COLUMNS = (
    "service", "capacity/s", "times it came", "in time/s", "of the capacity", "refused", "expired",
    "late", "broken", "p99 ms", "p99 ms of a refusal",
)  # fmt: skip


def _p99_ms(endings: Sequence[Ending]) -> str:
    times = sorted(ending.took_s for ending in endings)
    return f"{times[int(0.99 * (len(times) - 1))] * 1e3:.0f}" if times else "-"
