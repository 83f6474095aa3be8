"""A storm of signals at the processes of a service: their schedule, and their sender."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.family import members
from benchmarks.services.chaos import OPS, Board

_STOP_EVERY, _ZYGOTE_EVERY = 5, 15  # kills to one SIGSTOP, and to one zygote that is killed
_PAUSE_S = 0.4  # a worker that is stopped for less than a second continues its work
_PATIENCE_S = 1.0  # for an empty place to be filled again
_LOOK_S = 0.02


class Blow(enum.Enum):
    """A signal to a process."""

    KILL = "worker killed (SIGKILL)"
    STOP = "worker stopped (SIGSTOP)"
    PAUSE = "worker stopped and continued"
    ZYGOTE = "zygote killed"


@dataclass(frozen=True, slots=True)
class Event:
    """A blow `at_s` after the storm's beginning. `place`: a worker's (Op, number), or None."""

    at_s: float
    blow: Blow
    place: tuple[str, int] | None = None
    rank: int = 0


def schedule(seed: int, seconds: float, interval_s: float) -> Iterator[Event]:
    """Yield a kill every `interval_s`, and sometimes another event in between.

    The n-th kill of a seed is the same in all storms; longer storms only have more kills.
    """
    places = [(op, number) for op, count in OPS.items() for number in range(count)]
    for index in range(1, int(seconds / interval_s)):
        rng = random.Random(f"{seed} {index}")
        yield Event(index * interval_s, Blow.KILL, rng.choice(places))
        if index % _STOP_EVERY == 2:
            blow = rng.choice((Blow.STOP, Blow.PAUSE))
            yield Event((index + 0.4) * interval_s, blow, rng.choice(places))
        if index % _ZYGOTE_EVERY == 4:
            yield Event((index + 0.7) * interval_s, Blow.ZYGOTE, rank=rng.randrange(2))


class Storm:
    """Strikes the family of process `root`, whose workers are entered on `board`.

    `blows` counts what happened; what found nobody in its place within a second is `missed`.
    """

    def __init__(self, root: int, board: Board) -> None:
        self.blows: Counter[Blow] = Counter()
        self.missed = 0
        self._root = root
        self._board = board

    async def rage(self, events: Iterator[Event]) -> None:
        """Do what is scheduled, when it is."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        async with asyncio.TaskGroup() as group:
            for event in events:
                await asyncio.sleep(start + event.at_s - loop.time())
                group.create_task(self._strike(event))

    async def _strike(self, event: Event) -> None:
        give_up = asyncio.get_running_loop().time() + _PATIENCE_S
        while (pid := self._victim(event)) is None or not self._hit(pid, event.blow):
            if asyncio.get_running_loop().time() > give_up:
                self.missed += 1
                return
            await asyncio.sleep(_LOOK_S)
        self.blows[event.blow] += 1
        if event.blow is Blow.PAUSE:
            await asyncio.sleep(_PAUSE_S)
            _send(pid, signal.SIGCONT, lambda: self._is_ours(pid))

    def _victim(self, event: Event) -> int | None:
        if event.place is not None:
            return self._board.pid(*event.place) or None
        zygotes = members(self._root, "zygote")
        return zygotes[event.rank % len(zygotes)] if zygotes else None

    def _hit(self, pid: int, blow: Blow) -> bool:
        stops = blow in (Blow.STOP, Blow.PAUSE)
        number = signal.SIGSTOP if stops else signal.SIGKILL
        return _send(pid, number, lambda: self._is_ours(pid))

    def _is_ours(self, pid: int) -> bool:
        return pid in members(self._root) and pid != self._root


def _send(pid: int, number: signal.Signals, is_right: Callable[[], bool]) -> bool:
    """Send a signal, to no process but the one that has this pid while `is_right` is asked."""
    with contextlib.suppress(ProcessLookupError):
        life = os.pidfd_open(pid)
        try:
            if is_right():
                signal.pidfd_send_signal(life, number)
                return True
        finally:
            os.close(life)
    return False
