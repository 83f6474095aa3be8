"""A queueing model: the requests/s of a service with other settings, told from trials.

An Op takes `fixed + n * each` ms for a batch of n; of that a share is computing, which slows down
as soon as more is computed at a time than there are cores, or than the GIL lets through. Clients
ask one request at a time each, so the requests inside are as many as clients: the throughput is
the largest at which they are (Little's law), no Op has more batches than workers, and no more is
computed than can be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.tuning.settings import Settings, Space, Trial

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_STEPS = 22  # of a bisection
_SLOWER_STEPS = 14
_LEAST_PER_MS = 1e-9
_TOO_LARGE = 1e9  # batches of an Op that does not keep up
_MOST_SLOWER = 512.0  # times, that computing takes longer
_LEAST_MS = 1e-4
_OWN_MS = 0.05  # of a request, which the server itself computes; until it is known
_CALM = 0.7  # cores: with less than that nobody waits for another's computing
_PRIOR = 0.02  # weight of what is the same for all Ops
_SWEEPS = 20


@dataclass(frozen=True, slots=True)
class OpCost:
    """A batch of n takes `fixed_ms + n * each_ms` alone, the share `computed` of it on a core."""

    fixed_ms: float
    each_ms: float
    computed: float
    visits: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """The costs of a service. `threads` cores are computed on in the server's own process."""

    space: Space
    ops: tuple[OpCost, ...]
    own_ms: float
    threads: float

    def expect(self, choices: Sequence[Settings]) -> Floats:
        """Return the requests/s that the service should do with each of these settings."""
        load = _Load(self, choices)
        slower = np.ones(len(choices))
        is_too_much = ~load.is_computed(slower)
        if is_too_much.any():
            load = _Load(self, list(itertools.compress(choices, is_too_much.tolist())))
            low, high = slower[is_too_much], np.full(is_too_much.sum(), _MOST_SLOWER)
            for _ in range(_SLOWER_STEPS):
                middle = np.sqrt(low * high)
                fits = load.is_computed(middle)
                low, high = np.where(fits, low, middle), np.where(fits, middle, high)
            slower[is_too_much] = high
        per_s: Floats = _Load(self, choices).most_per_ms(slower) * 1e3
        return per_s


class _Load:
    """Settings under the load of all clients: arrays of (settings, Op), or of settings alone.

    `slower` is how many times longer computing takes than alone.
    """

    def __init__(self, model: CostModel, choices: Sequence[Settings]) -> None:
        given = np.array(choices, float).reshape(len(choices), -1, 3)
        self._workers, self._batch_size, self._delay_ms = np.moveaxis(given, 2, 0)
        self._model = model
        self._clients = model.space.clients
        self._fixed_ms, self._each_ms, self._computed, self._visits = (
            np.array([getattr(op, name) for op in model.ops])
            for name in ("fixed_ms", "each_ms", "computed", "visits")
        )
        self._in_server = np.array([not op.in_processes for op in model.space.ops])

    def is_computed(self, slower: Floats) -> Flags:
        """Return whether there are cores for what is done then."""
        per_ms = self.most_per_ms(slower)
        size = np.minimum(self._size(per_ms, slower), self._batch_size)
        each_ms = self._visits * self._computed * (self._fixed_ms / size + self._each_ms)
        in_server = per_ms * (self._model.own_ms + each_ms @ self._in_server)
        everywhere = per_ms * (self._model.own_ms + each_ms.sum(axis=1))
        fits: Flags = (in_server <= self._model.threads) & (everywhere <= self._model.space.cores)
        return fits

    def most_per_ms(self, slower: Floats) -> Floats:
        """Return the throughput at which as many requests are inside as there are clients."""
        low = np.zeros(len(slower))
        high = self._clients / (self._model.own_ms * slower + _LEAST_MS)
        for _ in range(_STEPS):
            middle = (low + high) / 2
            fits = self._inside(middle, slower) <= self._clients
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        most: Floats = np.maximum(low, _LEAST_PER_MS)
        return most

    def _inside(self, per_ms: Floats, slower: Floats) -> Floats:
        """Return the mean number of requests inside; infinite: an Op does not keep up."""
        size = self._size(per_ms, slower)
        arrive = np.maximum(per_ms[:, None] * self._visits, 1e-12)
        took_ms = (self._fixed_ms + size * self._each_ms) * self._stretch(slower)
        busy = np.minimum(1.0, arrive / size * took_ms / self._workers)
        wait_ms = busy * took_ms / (2 * self._workers)  # until a worker is free
        until_full_ms = (self._batch_size - 1) / arrive
        wait_ms += np.minimum(self._delay_ms, until_full_ms)
        inside = per_ms * self._model.own_ms * slower + (arrive * (took_ms + wait_ms)).sum(axis=1)
        return np.where((size > self._batch_size * (1 + 1e-4)).any(axis=1), np.inf, inside)

    def _size(self, per_ms: Floats, slower: Floats) -> Floats:
        """Return the batches with which the Ops keep up, though they may not have such."""
        stretch = self._stretch(slower)
        arrive = per_ms[:, None] * self._visits
        left = self._workers - arrive * self._each_ms * stretch
        needed = arrive * self._fixed_ms * stretch / np.maximum(left, 1e-12)
        size = np.clip(np.where(left > 0, needed, _TOO_LARGE), 1.0, _TOO_LARGE)
        grown = np.minimum(1 + arrive * self._delay_ms, self._batch_size)
        waited: Floats = np.maximum(size, np.where(self._delay_ms > 0, grown, 1.0))
        return waited

    def _stretch(self, slower: Floats) -> Floats:
        stretch: Floats = 1 + self._computed * (slower[:, None] - 1)
        return stretch


def fitted(space: Space, trials: Sequence[Trial]) -> CostModel:
    """Return the model under which the trials are likeliest; at least one of them went well."""
    good = [trial for trial in trials if not trial.problem and trial.per_s > 0]
    books = _Books(space, good)
    costs = books.costs()
    own_ms = books.own_ms
    # Whether threads wait for each other or for what is elsewhere shows in how they scale.
    least = min(space.cores, max(1.0, *(trial.cpu for trial in good)))
    guesses = [least + (space.cores - least) * step / 4 for step in range(4, -1, -1)]
    models = [CostModel(space, costs, own_ms, threads) for threads in dict.fromkeys(guesses)]
    return min(models, key=lambda model: round(_error(model, good), 3))


def _error(model: CostModel, trials: Sequence[Trial]) -> float:
    expected = model.expect([trial.settings for trial in trials])
    measured = np.array([trial.per_s for trial in trials])
    return float((np.log(expected / measured) ** 2).sum())


class _Books:
    """The costs of each Op as trials tell them, some of which were slowed down by others' work.

    The CPU time of a trial is that of all its Ops together. Where few computed at a time it says
    which share of their time is computing; where many did, how much slower that made them.
    """

    def __init__(self, space: Space, trials: Sequence[Trial]) -> None:
        self._space = space
        self._trials = trials
        self.own_ms = min(
            [_OWN_MS, *(0.5e3 * trial.cpu / trial.per_s for trial in trials)]
        )  # until there is more to tell it by
        self._busy = [
            [trial.ops[op.name].busy if op.name in trial.ops else 0.0 for op in space.ops]
            for trial in trials
        ]
        self._used = [max(0.0, trial.cpu - trial.per_s / 1e3 * self.own_ms) for trial in trials]
        self._shares = self._computed_shares()
        self._slower = [self._slower_in(number) for number in range(len(trials))]

    def costs(self) -> tuple[OpCost, ...]:
        """Return what each Op takes alone."""
        costs = []
        for place, op in enumerate(self._space.ops):
            points, visits = [], []
            for trial, slower in zip(self._trials, self._slower, strict=True):
                if op.name not in trial.ops:
                    continue
                stretch = 1 + self._shares[place] * (slower - 1)
                visits.append(trial.ops[op.name].visits)
                points += [
                    (size, took_ms / stretch, count / stretch**2)
                    for size, took_ms, count in trial.ops[op.name].batches
                ]
            if points:
                fixed_ms, each_ms = _line(points)
                mean = sum(visits) / len(visits)
                costs.append(OpCost(fixed_ms, each_ms, self._shares[place], mean))
            else:
                costs.append(OpCost(_LEAST_MS, 0.0, 1.0, 0.0))
        return tuple(costs)

    def _computed_shares(self) -> list[float]:
        """Return the share of each Op's time that it computes, by the trials that were calm."""
        count = len(self._space.ops)
        ratios = [
            used / max(sum(busy), 1e-6) for used, busy in zip(self._used, self._busy, strict=True)
        ]
        calmest = ratios.index(max(ratios))
        rows = [
            (busy, used)
            for number, (busy, used) in enumerate(zip(self._busy, self._used, strict=True))
            if number == calmest or used < _CALM
        ]
        common = min(1.0, ratios[calmest])
        shares = [common] * count
        for _ in range(_SWEEPS):  # least squares, an Op at a time, from the same for all
            for place in range(count):
                above, below = _PRIOR * common, _PRIOR
                for busy, used in rows:
                    others = (
                        sum(share * its for share, its in zip(shares, busy, strict=True))
                        - shares[place] * busy[place]
                    )
                    scale = max(used, 0.05)
                    above += busy[place] * (used - others) / scale**2
                    below += busy[place] ** 2 / scale**2
                shares[place] = min(1.0, max(0.0, above / below))
        return shares

    def _slower_in(self, number: int) -> float:
        """Return how many times longer computing took in a trial than alone."""
        used = self._used[number]
        if used < _CALM:
            return 1.0
        low, high = 1.0, _MOST_SLOWER
        for _ in range(_STEPS):
            slower = math.sqrt(low * high)
            if self._used_if(number, slower) > used:
                low = slower
            else:
                high = slower
        return low

    def _used_if(self, number: int, slower: float) -> float:
        """Return the cores that were used if computing took so many times longer."""
        return sum(
            share * busy / (1 + share * (slower - 1))
            for share, busy in zip(self._shares, self._busy[number], strict=True)
        )


def _line(points: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Fit `fixed + n * each` through (n, ms, weight), neither less than zero."""
    sizes = {round(size) for size, _, _ in points}
    if len(sizes) == 1:  # what a larger batch brings is not known: hope for half of it
        (size,) = sizes
        took_ms = sum(ms * weight for _, ms, weight in points) / sum(w for _, _, w in points)
        return took_ms / 2, took_ms / 2 / size
    weights = [math.sqrt(weight) / max(ms, _LEAST_MS) for _, ms, weight in points]
    total = sum(weights)
    pairs = list(zip(points, weights, strict=True))
    mean_size = sum(weight * size for (size, _, _), weight in pairs) / total
    mean_ms = sum(weight * ms for (_, ms, _), weight in pairs) / total
    spread = sum(weight * (size - mean_size) ** 2 for (size, _, _), weight in pairs)
    slope = sum(weight * (size - mean_size) * (ms - mean_ms) for (size, ms, _), weight in pairs)
    each_ms = min(max(slope / spread, 0.0), mean_ms / mean_size)
    return max(mean_ms - each_ms * mean_size, 0.0), each_ms
