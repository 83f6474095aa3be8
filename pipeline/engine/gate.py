"""Gate: how many requests an engine lets in at once, and how many may wait before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipeline.engine.request import InFlight
from pipeline.errors import OverloadedError


class Gate:
    """Requests that are inside, and those that wait to be let in, in order of arrival.

    Args:
        cap: most that are inside.
        queue_size: most that wait.
        is_open: whether the engine takes any now, however few there are.
        enter: takes a request that is let in.

    Attributes:
        accepted: requests that were let in, or were let wait.
        rejected: requests that were sent away.
    """

    def __init__(
        self,
        cap: int,
        queue_size: int,
        is_open: Callable[[], bool],
        enter: Callable[[InFlight], None],
    ) -> None:
        self.inside: set[InFlight] = set()
        self.waiting: dict[InFlight, None] = {}
        self.accepted: int = 0
        self.rejected: int = 0
        self._cap = cap
        self._queue_size = queue_size
        self._is_open = is_open
        self._enter = enter

    @property
    def is_empty(self) -> bool:
        return not self.inside and not self.waiting

    def everybody(self) -> Iterable[InFlight]:
        """All requests that are not answered, in a list of its own."""
        return [*self.inside, *self.waiting]

    def check(self) -> None:
        """OverloadedError if there is no room for another, not even to wait."""
        if len(self.waiting) < self._queue_size or (not self.waiting and self._has_room()):
            return
        self.rejected += 1
        raise OverloadedError(
            f"server is overloaded: {len(self.inside)} requests inside and "
            f"{len(self.waiting)} waiting (queue_size); try again later."
        )

    def take(self, request: InFlight) -> None:
        """Let a request in, or let it wait."""
        self.accepted += 1
        if not self.waiting and self._has_room():
            self._let_in(request)
        else:
            self.waiting[request] = None

    def leave(self, request: InFlight) -> None:
        """Give the place of a request that is over to the next one that waits."""
        self.inside.discard(request)
        if self.waiting:
            self.waiting.pop(request, None)
            self.let_in()

    def let_in(self) -> None:
        """Let in who waits, as far as there is room."""
        while self.waiting and self._has_room():
            request = next(iter(self.waiting))
            del self.waiting[request]
            self._let_in(request)

    def _has_room(self) -> bool:
        return len(self.inside) < self._cap and self._is_open()

    def _let_in(self, request: InFlight) -> None:
        self.inside.add(request)
        self._enter(request)
