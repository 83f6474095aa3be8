"""Pages of shared memory in which server and worker can read each other's state at any time."""

from __future__ import annotations

import time

_CELLS = 6


class StatusPage:
    """State of a worker that the server can read at any time: a few numbers in shared memory.

    The worker writes, the server reads, even if the worker hangs, is stopped, or is dead. Only
    `revoke` is in the other direction: the server takes back jobs that the worker has not begun.
    """

    def __init__(self, region: memoryview) -> None:
        self._cells = region[: _CELLS * 8].cast("d")

    @property
    def job(self) -> int:
        """Return the number of the running job; 0 for none."""
        return int(self._cells[0])

    @property
    def job_started(self) -> float | None:
        """Return `time.monotonic` when the job began."""
        return self._cells[1] or None

    @property
    def call_started(self) -> float | None:
        """Return `time.monotonic` when the running call of `process` began."""
        return self._cells[2] or None

    @property
    def item(self) -> int:
        """Return the index of the item whose own call of `process` began last; -1: none."""
        return int(self._cells[5])

    def revoke(self, job: int) -> int:
        """Take back all jobs up to this one that have not begun.

        Returns the highest number of a job that the worker began, or saw to be revoked.

        Each side writes before it reads, so no job is lost to both. A job that the worker sees as
        revoked and the server as begun is possible; the worker reports it.
        """
        self._cells[4] = job
        return int(self._cells[3])

    def begins(self, job: int) -> bool:
        """Note that a job begins; return False if it was revoked."""
        self._cells[1], self._cells[5] = time.monotonic(), -1.0
        self._cells[0] = self._cells[3] = job
        return job > self._cells[4]

    def begins_slice(self, job: int) -> None:
        """Note that a job begins that no other worker can run: it is never revoked."""
        self._cells[1] = time.monotonic()
        self._cells[0] = job

    def ends(self) -> None:
        self._cells[0] = self._cells[1] = self._cells[2] = 0.0

    def call_begins(self) -> None:
        self._cells[2] = time.monotonic()

    def item_begins(self, item: int) -> None:
        """Note the item whose own call is next."""
        self._cells[5] = item

    def call_ends(self) -> None:
        self._cells[2] = 0.0


class AbandonedRequests:
    """The requests that were recently abandoned: a page of shared memory.

    The server writes, its workers read, if a hook asks. Each request shares its cell with every
    512th request: while one runs, so many others do not begin.
    """

    def __init__(self, region: memoryview) -> None:
        self._cells = region[:4096].cast("q")

    def add(self, data_id: int) -> None:
        self._cells[data_id % len(self._cells)] = data_id + 1

    def has(self, data_id: int) -> bool:
        return self._cells[data_id % len(self._cells)] == data_id + 1
