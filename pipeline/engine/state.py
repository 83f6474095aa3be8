"""EngineState: numbers of an engine right now, for metrics, the dashboard and tests."""

from __future__ import annotations

import msgspec


class WorkersState(msgspec.Struct, frozen=True, array_like=True):
    """The workers of one Op.

    `wanted` are configured, `up` take jobs, `busy` of them have one. `stuck` threads were given up
    and have not come back. `restarts` counts those that were replaced since the start.
    """

    kind: str
    wanted: int
    up: int
    busy: int
    stuck: int = 0
    restarts: int = 0


class EdgeState(msgspec.Struct, frozen=True, array_like=True):
    """Answers of one Op that the Op `to` got, and those that it did not: they went elsewhere.

    Beside those that read it `to` may be one that it loops to, or jumps to.
    """

    to: str
    sent: int
    absent: int


class SequencesState(msgspec.Struct, frozen=True, array_like=True):
    """The sequences of one Op: `live`, those of them in the `backlog`; `slots`, those in use.

    The others count those that are over, since the start: `ended`: their last request has run;
    `reaped`: they have lost their slots for idleness; `lost`: with their worker; `cut`: a request
    of them was cancelled or came to nothing, their time in the backlog was over, or they began
    anew.
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
        """Sequences since the start."""
        return self.live + self.ended + self.reaped + self.lost + self.cut


class OpState(msgspec.Struct, frozen=True, array_like=True):
    """One Op: requests that wait for parts (`joining`), are ready (`queued`), are worked on.

    `group` names the Ops that run in one go now, this one among them; empty: it goes by itself.
    What they work on counts as running at the first of them. `skipped`: requests of which nothing
    came for it, since the start; so are the `edges`. `sequences`: None: it has none.
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
    """The whole engine. `inside` the graph, `waiting` for admission; the others are totals."""

    is_ready: bool
    inside: int
    waiting: int
    accepted: int
    rejected: int
    ops: list[OpState] = []
