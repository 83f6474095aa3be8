"""Draft: the batch that would be cut of a queue now, and how much of it is worth sending."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pipeline.engine.op.channel import Item

Form = Callable[[Item], object]
"""What is equal for items that may share an execution."""


class Draft:
    """Items in the order of the queue, as many as one execution takes. Sizes are in samples.

    Args:
        preferred: sizes of which a batch does not wait to grow.
        max_rows: of one execution; a request that alone has more goes alone.
        max_items: of one batch.
        form: says what may share an execution; None: all of them.

    Attributes:
        items: so far.
        rows: theirs.
        is_closed: whether there is one in the queue that does not fit in.
    """

    def __init__(
        self,
        preferred: Collection[int],
        max_rows: int,
        max_items: int,
        form: Form | None = None,
    ) -> None:
        self.items: list[Item] = []
        self.rows: int = 0
        self.is_closed: bool = False
        self._preferred = preferred
        self._most_preferred = max(preferred)
        self._limits = max_rows, max_items
        self._form = form
        self._first_form: object = None
        self._best = 0  # items of the largest preferred size
        self._oldest = 0.0

    def has_limits(self, max_rows: int, max_items: int) -> bool:
        """Return whether it was begun with these limits."""
        return self._limits == (max_rows, max_items)

    def take(self, item: Item) -> bool:
        """Take the next one of the queue; return False, and be closed, if it does not fit in."""
        if self.is_closed:
            return False
        rows = item.request.rows
        if self.items and not self._may_join(item, self.rows + rows):
            self.is_closed = True
            return False
        oldest = self._oldest if self.items else item.ready_at
        self._oldest = min(oldest, item.ready_at)
        self.items.append(item)
        self.rows += rows
        if self.rows in self._preferred:
            self._best = len(self.items)
        return True

    def due(self, delay_s: float) -> float:
        """Return when its oldest has waited for so long."""
        return self._oldest + delay_s

    def ripe(self, now: float, delay_s: float) -> int:
        """Return how many of its items, from the first, go now; 0: it may still grow.

        A preferred size goes at once, and the largest of several. What has none waits for the
        delay of its oldest, unless it cannot grow to one, and then all goes, up to the most that
        an execution takes.
        """
        is_due = delay_s > 0 and now >= self.due(delay_s)
        if self._best and not is_due:
            return self._best
        max_rows, max_items = self._limits
        is_full = self.rows >= min(max_rows, self._most_preferred) or len(self.items) >= max_items
        is_whole = is_full or self.is_closed
        return len(self.items) if is_due or is_whole or not delay_s else 0

    def _may_join(self, item: Item, rows: int) -> bool:
        if rows > self._most_preferred and not self._best:
            self._best = len(self.items)  # it is past all preferred sizes: what is there may go
        max_rows, max_items = self._limits
        if rows > max_rows or len(self.items) >= max_items:
            return False
        if self._form is None:
            return True
        if len(self.items) == 1:
            self._first_form = self._form(self.items[0])
        return self._form(item) == self._first_form
