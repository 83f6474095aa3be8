"""Search of the best settings: proposes settings, gets their trials, and so on; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from pipeline.tuning.cost_model import Floats, fitted
from pipeline.tuning.settings import Goal, OpSettings, Settings, Space, Trial

_WORTH_IT = 1.03  # times the best so far, that a trial has to promise
_THRIFT = 0.004  # of the score, for each doubling of an Op's workers, batches or wait
_FAILED = -3.0  # logarithm of what failed settings did, by what was expected of them
_NEAR = 1.0  # doublings, within which trials tell of each other
_BETTER = 1.015  # times the best so far: what is less is chance
_PATIENCE = 3  # trials for each Op, in which nothing became better
_CURIOSITY = 0.3  # share of its score that a change gains of which nothing is known
_ROUNDS = 4  # of a climb


class Search:
    """Finds settings in a space, from few trials.

    Each trial makes the model of the service better; the next ones are the settings that the model
    thinks best. What a model gets wrong near a trial it gets wrong nearby too, and is corrected.
    It is over when nothing promises more than the best trial, or after `most_trials`.

    Args:
        start: the first settings to try, as the service has them.
    """

    def __init__(self, space: Space, goal: Goal, start: Settings, most_trials: int) -> None:
        self.space = space
        self.goal = goal
        self.trials: list[Trial] = []
        self.why: str = "as it is configured"
        self._start = start
        self._most_trials = most_trials
        self._promised: list[tuple[Settings, float]] = []  # logarithm of measured by expected

    def propose(self) -> Settings | None:
        """Return the settings to try next; None: it is over."""
        if not self.trials:
            return self._start
        if len(self.trials) >= self._most_trials or not self._has_good:
            return None
        judge = _Judge(self.space, self.goal, self.trials)
        best = self.goal.score_of(self.best) if self.best is not None else 0.0
        proposed, score = self._best_expected(judge)
        if proposed is not None and score > best * _WORTH_IT:
            self.why = f"{score / best:.2f} times the best is expected" if best else "in limits?"
            return proposed
        if self._stale() >= _PATIENCE * len(self.space.ops) or self.best is None:
            return None
        self.why = "near the best"
        return self._beside(self.best.settings, judge)

    def tell(self, trial: Trial) -> None:
        """Take in what the proposed settings did."""
        self.trials.append(trial)

    @property
    def best(self) -> Trial | None:
        """Return the best trial within the limits; None: there is none.

        Of trials that differ only by chance it is the one with the least workers and batches.
        """
        score_of = self.goal.score_of
        most = max(map(score_of, self.trials), default=0.0)
        good = [trial for trial in self.trials if score_of(trial) * _BETTER >= most > 0]
        return min(good, key=lambda trial: _doublings(trial.settings), default=None)

    @property
    def _has_good(self) -> bool:
        return any(not trial.problem for trial in self.trials)

    def _stale(self) -> int:
        """Return how many trials there were since the best score rose."""
        best, since = 0.0, 0
        for trial in self.trials:
            score = self.goal.score_of(trial)
            since = 0 if score > best * _BETTER else since + 1
            best = max(best, score)
        return since

    def _beside(self, settings: Settings, judge: _Judge) -> Settings | None:
        """Return the most promising change of one Op, of which little is known."""
        tried = {trial.settings for trial in self.trials}
        changes = [
            other
            for place in range(len(self.space.ops))
            for other in self.space.changed(settings, place)
            if other not in tried
        ]
        if not changes:
            return None
        scores, unknown = judge.scores(changes)
        return changes[int((scores * (1 + _CURIOSITY * unknown)).argmax())]

    def _best_expected(self, judge: _Judge) -> tuple[Settings | None, float]:
        """Climb from several places, one Op after the other; what was tried does not count."""
        tried = {trial.settings for trial in self.trials}
        chosen: Settings | None = None
        best = score_of_best = 0.0
        for here in self._places():
            for _ in range(_ROUNDS):
                before = here
                for place in range(len(self.space.ops)):
                    choices = [here, *self.space.changed(here, place)]
                    scores, _ = judge.scores(choices)
                    thrifty = scores * [1 - _THRIFT * _doublings(choice) for choice in choices]
                    here = choices[int(thrifty.argmax())]
                    for number in thrifty.argsort()[::-1].tolist():
                        if thrifty[number] <= best:
                            break
                        if choices[number] not in tried:
                            chosen, best = choices[number], float(thrifty[number])
                            score_of_best = float(scores[number])
                if here == before:
                    break
        return chosen, score_of_best

    def _places(self) -> Iterator[Settings]:
        yield max(self.trials, key=self.goal.score_of).settings
        for workers, size in ((-1, -1), (-1, 0), (0, -1)):
            yield tuple(
                OpSettings(op.concurrency[workers], op.batch_size[size]) for op in self.space.ops
            )


class _Judge:
    """Scores of settings, by the model, and by how wrong it was about those nearby."""

    def __init__(self, space: Space, goal: Goal, trials: Sequence[Trial]) -> None:
        self._clients, self._goal = space.clients, goal
        self._model = fitted(space, trials)
        self._memory = MemoryModel(space, trials)
        expected = self._model.expect([trial.settings for trial in trials])
        self._tried = _logarithms([trial.settings for trial in trials])
        self._wrong = np.array(
            [
                _FAILED if trial.problem else math.log(trial.per_s / per_s)
                for trial, per_s in zip(trials, expected.tolist(), strict=True)
            ]
        )
        good = [trial for trial in trials if not trial.problem]
        self._good = _logarithms([trial.settings for trial in good])
        self._tails = np.log([trial.p99_ms * trial.per_s / 1e3 / self._clients for trial in good])

    def scores(self, choices: Sequence[Settings]) -> tuple[Floats, Floats]:
        """Return how good each should be, 0: beyond a limit; and how far from known, 0 to 1."""
        places = _logarithms(choices)
        near = _nearness(places, self._tried)
        # A problem counts where it was seen, and less with the distance.
        wrong = near @ self._wrong / np.maximum(near.sum(axis=1), 1.0)
        per_s = self._model.expect(choices) * np.exp(wrong)
        unknown = np.minimum(near.sum(axis=1), 1.0)
        near = _nearness(places, self._good) + 1e-3
        p99_ms = 1e3 * self._clients / per_s * np.exp(near @ self._tails / near.sum(axis=1))
        memory_mb = [self._memory.expect_mb(choice) for choice in choices]
        scores = np.array(
            [
                self._goal.score(*figures) if self._goal.allows(figures[1], mb) else 0.0
                for *figures, mb in zip(per_s.tolist(), p99_ms.tolist(), memory_mb, strict=True)
            ]
        )
        return scores, 1 - unknown


def _logarithms(choices: Sequence[Settings]) -> Floats:
    """Return the settings as points whose distance is in doublings."""
    given = np.array(choices, float).reshape(len(choices), -1, 3)
    given[:, :, 2] += 1.0  # a wait of 0 ms
    points: Floats = np.log2(given).reshape(len(choices), -1)
    return points


def _nearness(some: Floats, others: Floats) -> Floats:
    """Return 1 where two are the same, nearly 0 from some doublings on."""
    squares = ((some[:, None, :] - others[None, :, :]) ** 2).sum(axis=2)
    nearness: Floats = np.exp(-squares / (2 * _NEAR**2))
    return nearness


def _doublings(settings: Settings) -> float:
    """Return how far settings are from the smallest ones."""
    return sum(
        math.log2(op.concurrency) + 0.5 * math.log2(op.batch_size) + (op.delay_ms > 0)
        for op in settings
    )


_PRIOR = 0.25  # weight of what is guessed of a worker, in trials


class MemoryModel:
    """Costs of the server and of each worker of each Op, by least squares.

    A process is assumed to cost as much as similar ones, a thread nothing, until trials show
    otherwise.
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
