"""InFlight: the record of one admitted request, changed on the event loop only."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import msgspec


class InFlight(msgspec.Struct, eq=False):
    """One request between the door and its answer.

    `live` counts the Ops that it is queued at or worked on by. `generation` counts its starts:
    it is raised by a retry of the whole request and set to `OVER` by the answer, so that
    whatever still carries an older number is dropped. `deadline` is in `time.monotonic`.
    """

    OVER: ClassVar[int] = -1

    raw: Any
    answer: asyncio.Future[Any]
    data_id: int
    start_ns: int
    log_id: int = 0
    generation: int = 0
    live: int = 0
    as_tensors: bool = False
    deadline: float | None = None
    deadline_timer: asyncio.TimerHandle | None = None
    payload: Any = None

    @property
    def is_over(self) -> bool:
        return self.generation == self.OVER
