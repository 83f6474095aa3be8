"""WorkerWatch: gives up workers of an Op that hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.engine.op.channel import Item
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.schedulers.base import Load
from pipeline.engine.worker_api import Loop, Worker, Workers

# a worker whose result nobody needs may take this many times the usual time of a batch
_STUCK_FACTOR = 5.0
_MIN_WATCH_S = 0.001  # a loop's clock may be that coarse; a shorter timer would spin


class WorkerWatch:
    """Gives up workers whose call exceeds its timeout, or whose result nobody needs.

    Args:
        is_awaited: whether anything runs, or may come; called on the loop.
        timeout_s: of a call of `process`; None: none.
        patience_s: a worker whose result nobody needs gets at least this long to finish.
        give_up: called on the loop with a worker that hangs, and its batch.
    """

    def __init__(
        self,
        workers: Workers,
        load: Load,
        is_awaited: Callable[[], bool],
        timeout_s: float | None,
        patience_s: float,
        loop: Loop,
        give_up: Callable[[Worker, BatchRun | Item], None],
    ) -> None:
        self.timeout_s: float | None = timeout_s
        self._patience_s = patience_s
        self._workers = workers
        self._load = load
        self._is_awaited = is_awaited
        self._loop = loop
        self._give_up = give_up
        self._timer: Any = None

    def submitted(self) -> None:
        """Note that batches went to the workers."""
        if self.timeout_s is not None and self._timer is None:
            self._look_in(self.timeout_s)

    def abandoned(self) -> None:
        """Note that nobody needs some of the running work any more."""
        if self._timer is None and self._is_awaited():
            self._look_in(self._patience_s)

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_in(self, seconds: float) -> None:
        self.close()
        self._timer = self._loop.call_at(self._loop.time() + seconds, self._look)

    def _look(self) -> None:
        """Check every busy worker.

        A call that starts after this check cannot exceed its timeout before the next check, so a
        check at the earliest possible time keeps timeouts exactly.
        """
        self._timer = None
        now = self._loop.time()
        next_due = [now + self.timeout_s] if self.timeout_s is not None else []
        for worker in self._workers.busy():
            run = worker.job
            if not isinstance(run, BatchRun | Item):
                continue
            due = self._due(worker, run)
            if due is None:
                continue
            if due <= now:
                self._give_up(worker, run)
            else:
                next_due.append(due)
        if next_due and self._is_awaited():
            self._look_in(max(_MIN_WATCH_S, min(next_due) - now))

    def _due(self, worker: Worker, run: BatchRun | Item) -> float | None:
        """Return when `worker` has to be given up, if its batch continues; None: never."""
        began, called = worker.job_started, worker.call_started
        if began is not None and all(item.is_over for item in run.items):
            return began + max(self._patience_s, self._load.service_s * _STUCK_FACTOR)
        if called is None or self.timeout_s is None:
            return None
        return called + self.timeout_s
