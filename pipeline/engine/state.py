"""EngineState: current numbers of an engine, for metrics, the dashboard and tests."""

from __future__ import annotations

import msgspec


class WorkersState(msgspec.Struct, frozen=True, array_like=True):
    """The workers of one Op.

    Attributes:
        wanted: workers that are configured.
        up: workers that take jobs.
        busy: workers that have a job.
        stuck: threads that were given up and have not returned.
        restarts: workers that were replaced since the start.
    """

    kind: str
    wanted: int
    up: int
    busy: int
    stuck: int = 0
    restarts: int = 0


class EdgeState(msgspec.Struct, frozen=True, array_like=True):
    """Answers of one Op that the Op `to` got (`sent`), and that went elsewhere (`absent`): totals.

    `to` reads the Op, or is a target of its loops or jumps.
    """

    to: str
    sent: int
    absent: int


class SequencesState(msgspec.Struct, frozen=True, array_like=True):
    """The sequences of one Op.

    Attributes:
        live: sequences that have not ended.
        backlog: live sequences that wait for a slot.
        slots: all slots.
        used: slots that have a sequence.
        reaped: sequences that lost their slots because they were idle.
        ended: sequences whose last request has run.
        lost: sequences that were lost with their worker.
        cut: sequences that ended early: a request was cancelled or failed, the time in the backlog
            was over, or the sequence began again.
    """

    live: int = 0
    backlog: int = 0
    slots: int = 0
    used: int = 0
    reaped: int = 0
    ended: int = 0
    lost: int = 0
    cut: int = 0

    @property
    def begun(self) -> int:
        """Return the number of sequences since the start."""
        return self.live + self.ended + self.reaped + self.lost + self.cut


class OpState(msgspec.Struct, frozen=True, array_like=True):
    """One Op.

    Attributes:
        joining: requests that wait for parts.
        queued: requests that are ready.
        running: requests that workers process; requests of a group count at its first Op.
        group: the names of the Ops that one thread now runs in a row, this Op included; empty: the
            Op runs alone.
        skipped: requests that skipped the Op since the start, as no answer came for it.
        sequences: None: it has none.
    """

    name: str
    joining: int
    queued: int
    running: int
    workers: WorkersState
    group: tuple[str, ...] = ()
    skipped: int = 0
    edges: list[EdgeState] = []
    sequences: SequencesState | None = None


class EngineState(msgspec.Struct, frozen=True, array_like=True):
    """The whole engine.

    Attributes:
        inside: requests in the graph.
        waiting: requests that wait for admission.
        accepted: requests that were admitted or queued since the start; `rejected`: refused.
    """

    is_ready: bool
    inside: int
    waiting: int
    accepted: int
    rejected: int
    ops: list[OpState] = []
