"""PolicyQueue: the requests of one priority level, with the limits of its queue."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from pipeline.config.batching import QueuePolicyConfig
from pipeline.engine.op.channel import Item

_PER_S = 1e6  # microseconds
_SPARE = 64  # limits of those who have left


class PolicyQueue:
    """First come, first served; with `delay` those who are late go behind all who are not.

    Args:
        policy: its limits.
    """

    def __init__(self, policy: QueuePolicyConfig) -> None:
        self._policy = policy
        self._fresh: dict[Item, None] = {}
        self._late: dict[Item, None] = {}
        self._limits: list[tuple[float, int, Item]] = []  # some may have left
        self._added = 0

    def __len__(self) -> int:
        return len(self._fresh) + len(self._late)

    def __iter__(self) -> Iterator[Item]:
        yield from self._fresh
        yield from self._late

    def overflow(self) -> Item | None:
        """Let go of the newest one if there are too many; return it."""
        if 0 < self._policy.max_queue_size < len(self) and self._fresh:
            return self._fresh.popitem()[0]
        return None

    @property
    def has_late(self) -> bool:
        """Return whether there is anybody before whom the next one goes."""
        return bool(self._late)

    def add(self, item: Item, now: float) -> None:
        """Take a request, and note how long it may wait."""
        self._fresh[item] = None
        timeout_us = self._policy.default_timeout_microseconds
        if not timeout_us:  # Triton's rule: then a request's own says nothing
            return
        if self._policy.allow_timeout_override:
            timeout_us = _shorter(item.info.parameters.get("timeout", 0), timeout_us)
        self._added += 1
        heapq.heappush(self._limits, (now + timeout_us / _PER_S, self._added, item))
        if len(self._limits) > 2 * len(self._fresh) + _SPARE:
            self._limits = [entry for entry in self._limits if entry[2] in self._fresh]
            heapq.heapify(self._limits)

    def remove(self, item: Item) -> None:
        """Let one go that is here."""
        if item in self._fresh:
            del self._fresh[item]
        else:
            del self._late[item]

    @property
    def limited_until(self) -> float | None:
        """Return when the first one is late; None: nobody will be."""
        limits = self._limits
        while limits and limits[0][2] not in self._fresh:
            heapq.heappop(limits)
        return limits[0][0] if limits else None

    def expire(self, now: float) -> tuple[list[Item], bool]:
        """Apply the policy; return who is to be refused, and whether anything has changed."""
        refused: list[Item] = []
        has_changed = False
        while (until := self.limited_until) is not None and until <= now:
            item = heapq.heappop(self._limits)[2]
            del self._fresh[item]
            has_changed = True
            if self._policy.timeout_action == "delay":
                self._late[item] = None
            else:
                refused.append(item)
        return refused, has_changed


def _shorter(own: object, default: int) -> int:
    """Return the timeout of a request, if it has one that is below the default."""
    return own if isinstance(own, int) and 0 < own < default else default
