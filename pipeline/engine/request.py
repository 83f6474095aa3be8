"""InFlight: the record of one admitted request, changed on the event loop only."""

from __future__ import annotations

import asyncio
from typing import Any


class InFlight:
    """One request between the door and its answer.

    `live` counts the Ops that it is queued at or worked on by. `generation` counts its starts:
    it is raised by a retry of the whole request and set to `OVER` by the answer, so that
    whatever still carries an older number is dropped.
    """

    OVER = -1

    __slots__ = (
        "answer",
        "as_tensors",
        "data_id",
        "deadline",
        "deadline_timer",
        "generation",
        "live",
        "log_id",
        "payload",
        "raw",
        "start_ns",
    )

    def __init__(self, raw: Any, answer: asyncio.Future[Any], start_ns: int) -> None:
        self.raw = raw
        self.answer = answer
        self.start_ns = start_ns
        self.data_id = -1
        self.log_id = 0
        self.generation = 0
        self.as_tensors = False
        self.deadline: float | None = None
        self.deadline_timer: asyncio.TimerHandle | None = None
        self.payload: Any = None
        self.live = 0

    @property
    def is_over(self) -> bool:
        return self.generation == self.OVER
