"""Pace: the share of slow requests at an Op, which decides whether it may be in a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pipeline.engine.ports import OpNode

# A request is slow above one of these: the first for an Op that is not quick, the second for a
# quick Op.
_QUICK_NS, SLOW_NS = 100_000, 1_000_000
# A batch is also slow as a whole, however many requests share it: meanwhile others could run in
# parallel.
_QUICK_BATCH_NS, _SLOW_BATCH_NS = 2_000_000, 5_000_000
# Below the first share of slow requests an Op becomes quick, above the second it is not quick any
# more. Shares, not means: a thread that has to wait for a processor makes any Op take 20 ms now and
# then.
_JOINS, _PARTS = 0.125, 0.5
_WEIGHT = 1 / 32  # of a request in the share: 22 slow ones in a row make an Op slow
_UNKNOWN = 0.2  # the share before the first run: 15 quick ones are enough
# a batch counts at most as this many requests: one that had to wait is one case, not many
_MOST = 4
_HUNG = 1.0  # the share after a run that hung: as after 66 slow ones
NO_SHARE = 1e-3  # a share this small counts as none; then nothing has to be computed any more
_WEIGHTS = tuple(1 - (1 - _WEIGHT) ** requests for requests in range(_MOST + 1))


class Pace(msgspec.Struct, eq=False):
    """The share of slow requests at one Op, and its consequences.

    Attributes:
        is_fusable: whether the Op may be in a group at all.
        was_fusable: whether it was fusable at the start: its waiting items may stand for other Ops.
        is_quick: whether it is quick enough.
        slow_share: running share of the requests that were slow.
        entered: the Ops that are entered with it.
        looked_at_ns: when it was last checked for objects that belong to a thread, after a failure.
    """

    is_fusable: bool = False
    was_fusable: bool = False
    is_quick: bool = False
    slow_share: float = _UNKNOWN
    entered: tuple[OpNode, ...] = ()
    looked_at_ns: int = 0

    def took(self, ns: int, requests: int = 1) -> bool:
        """Record the time of a run of so many requests; return whether `is_quick` has changed."""
        if self.is_quick:
            if ns > SLOW_NS and ns > min(SLOW_NS * requests, _SLOW_BATCH_NS):
                self.slow_share += (1 - self.slow_share) * _weight(requests)
                self.is_quick = self.slow_share <= _PARTS
                return not self.is_quick
            if self.slow_share > NO_SHARE:
                self.slow_share -= self.slow_share * _weight(requests)
            return False
        is_slow = ns > _QUICK_NS and ns > min(_QUICK_NS * requests, _QUICK_BATCH_NS)
        self.slow_share += (is_slow - self.slow_share) * _weight(requests)
        self.is_quick = self.slow_share < _JOINS
        return self.is_quick

    def hung(self) -> bool:
        """Record a run that hung; return whether `is_quick` has changed."""
        was_quick, self.is_quick = self.is_quick, False
        self.slow_share = _HUNG
        return was_quick


def _weight(requests: int) -> float:
    """Return the weight of so many equal requests in a row."""
    return _WEIGHT if requests == 1 else _WEIGHTS[min(requests, _MOST)]
