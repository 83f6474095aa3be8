"""The memory of a service with other numbers of workers, told from trials."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.tuning.settings import Settings, Space, Trial

_PRIOR = 0.25  # weight of what is guessed of a worker, in trials


class MemoryModel:
    """So much for the server, and so much for each worker of each Op: least squares.

    A process takes what its like were seen to take, a thread nothing, until trials say otherwise.
    """

    def __init__(self, space: Space, trials: Sequence[Trial]) -> None:
        good = [trial for trial in trials if not trial.problem]
        guess_mb = max((trial.worker_mb for trial in good), default=0.0)
        guesses = np.array([guess_mb if op.in_processes else 0.0 for op in space.ops])
        counts = np.array([_workers(trial.settings) for trial in good], float)
        taken = np.array([trial.memory_mb for trial in good])
        # Around the guesses: what trials do not tell stays as it was guessed.
        rest = taken - counts @ guesses
        self._mean_mb = float(rest.mean())
        self._mean_workers = counts.mean(axis=0)
        apart = counts - self._mean_workers
        normal = apart.T @ apart + _PRIOR * np.eye(len(space.ops))
        self._each_mb = guesses
        self._more_mb = np.linalg.solve(normal, apart.T @ (rest - self._mean_mb))

    def expect_mb(self, settings: Settings) -> float:
        """Return what the service should take, in MiB."""
        workers = _workers(settings)
        apart = workers - self._mean_workers
        return self._mean_mb + float(workers @ self._each_mb + apart @ self._more_mb)


def _workers(settings: Settings) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([op.concurrency for op in settings], np.float64)
