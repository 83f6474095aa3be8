"""Pages of shared memory in which server and worker see how the other stands, at any time."""

from __future__ import annotations

import time

_CELLS = 6


class StatusPage:
    """State of a worker that the server can read at any time: a few numbers in shared memory.

    The worker writes, the server reads: also when the worker hangs, is stopped, or is dead. The
    other way round it is for `revoked`: the server wants back what the worker has not begun.
    """

    def __init__(self, region: memoryview) -> None:
        self._cells = region[: _CELLS * 8].cast("d")

    @property
    def job(self) -> int:
        """Number of the job that it works on; 0 for none."""
        return int(self._cells[0])

    @property
    def job_started(self) -> float | None:
        """`time.monotonic` of when it took the job up."""
        return self._cells[1] or None

    @property
    def call_started(self) -> float | None:
        """`time.monotonic` of the running call of `process`."""
        return self._cells[2] or None

    @property
    def item(self) -> int:
        """Return which item's own call of `process` the job has begun last; -1: none."""
        return int(self._cells[5])

    def revoke(self, job: int) -> int:
        """Call back all jobs up to this one that were not begun.

        Returns the highest number of a job that the worker began, or saw to be revoked.

        Each side writes before it reads: a job that both take for the other's does not exist.
        One that the worker sees revoked and the server sees begun does; the worker reports it.
        """
        self._cells[4] = job
        return int(self._cells[3])

    def begins(self, job: int) -> bool:
        """Take note that a job begins; return False if it was revoked."""
        self._cells[1], self._cells[5] = time.monotonic(), -1.0
        self._cells[0] = self._cells[3] = job
        return job > self._cells[4]

    def goes_on(self, job: int) -> None:
        """Take note that a job begins which no other worker can have: it is never revoked."""
        self._cells[1] = time.monotonic()
        self._cells[0] = job

    def ends(self) -> None:
        self._cells[0] = self._cells[1] = self._cells[2] = 0.0

    def call_begins(self) -> None:
        self._cells[2] = time.monotonic()

    def item_begins(self, item: int) -> None:
        """Take note of the item whose call of its own is next."""
        self._cells[5] = item

    def call_ends(self) -> None:
        self._cells[2] = 0.0


class AbandonedRequests:
    """The requests that nobody waits for any more, of late: a page of shared memory.

    The server writes, its workers read, where a hook asks. Each request has its own cell, which
    it shares with every 512th: in the time that one of them is worked on as few others begin.
    """

    def __init__(self, region: memoryview) -> None:
        self._cells = region[:4096].cast("q")

    def add(self, data_id: int) -> None:
        self._cells[data_id % len(self._cells)] = data_id + 1

    def has(self, data_id: int) -> bool:
        return self._cells[data_id % len(self._cells)] == data_id + 1
