"""Pace: the share of slow requests at an Op, from which follows whether it is in a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pipeline.engine.ports import OpNode

# A request is slow above one of them: to an Op that is not quick, and to one that is.
_QUICK_NS, SLOW_NS = 100_000, 1_000_000
# ... and so is a batch as a whole, however many share it: others could run beside it meanwhile.
_QUICK_BATCH_NS, _SLOW_BATCH_NS = 2_000_000, 5_000_000
# Below the one share of slow requests an Op becomes quick, above the other one it is not any more.
# Shares, not means: a thread that has to wait for a processor makes any Op take 20 ms now and then.
_JOINS, _PARTS = 0.125, 0.5
_WEIGHT = 1 / 32  # of a request in the share: 22 slow ones in a row part an Op
_UNKNOWN = 0.2  # the share before the first run: 15 quick ones are enough
_MOST = 4  # requests that a batch counts for: one that had to wait is one case, not many
_HUNG = 1.0  # ... and after a run without end: as many as 66
NO_SHARE = 1e-3  # so few slow ones are none; nothing has to be worked out any more
_WEIGHTS = tuple(1 - (1 - _WEIGHT) ** requests for requests in range(_MOST + 1))


class Pace(msgspec.Struct, eq=False):
    """The share of requests that are slow at one Op, and what follows from it.

    Attributes:
        is_fusable: whether the Op may be in a group at all.
        was_fusable: ... or might be once: what waits for it may stand for others.
        is_quick: whether it is quick enough.
        slow_share: running share of the requests that were slow.
        entered: the Ops that are entered with it.
        looked_at_ns: when it was last looked at for what belongs to a thread, because it failed.
    """

    is_fusable: bool = False
    was_fusable: bool = False
    is_quick: bool = False
    slow_share: float = _UNKNOWN
    entered: tuple[OpNode, ...] = ()
    looked_at_ns: int = 0

    def took(self, ns: int, requests: int = 1) -> bool:
        """Take down what a run of so many requests took; return whether `is_quick` has changed."""
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
        """Take down that it took far too long; return whether `is_quick` has changed."""
        was_quick, self.is_quick = self.is_quick, False
        self.slow_share = _HUNG
        return was_quick


def _weight(requests: int) -> float:
    """Return the weight of so many requests that were alike, one after the other."""
    return _WEIGHT if requests == 1 else _WEIGHTS[min(requests, _MOST)]
