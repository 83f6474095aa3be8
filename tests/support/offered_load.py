"""Requests at even distances, whatever becomes of them; on a virtual clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from doubles import Engine

from pipeline.data import RequestInfo
from pipeline.engine.request import RequestTarget
from pipeline.errors import DeadlineError, OverloadedError
from pipeline.proto import pipeline_service_pb2 as pb

ANSWERED, REFUSED, TOO_LATE = "answered", "refused", "too late"
_HOW = {0: ANSWERED, OverloadedError.code: REFUSED, DeadlineError.code: TOO_LATE}


class Load:
    """Requests of one kind: of one level of priority, each with these pairs.

    Attributes:
        endings: (when it came, how it ended, what it took), in the order of the ends.
        retry_after_s: of the requests that were refused before admission.
    """

    def __init__(self, engine: Engine, priority: int = 0, **pairs: str) -> None:
        self.engine = engine
        self.endings: list[tuple[float, str, float]] = []
        self.retry_after_s: list[int] = []
        info = RequestInfo(priority=priority)
        self._target = RequestTarget(info=info) if priority else None
        self._pairs = pairs or {"path": "x"}
        self._asked: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()

    async def offer(self, seconds: float, per_s: float, deadline_s: float | None) -> None:
        """Ask; returns when all have come."""
        start = self._loop.time()
        for number in range(1, 1 + round(seconds * per_s)):
            self._asked.append(asyncio.ensure_future(self._ask(deadline_s)))
            # The next ones may be due already, if the loop's time is in steps.
            await asyncio.sleep(start + number / per_s - self._loop.time())

    async def _ask(self, deadline_s: float | None) -> None:
        came = self._loop.time()
        number = str(len(self._asked))
        pairs = {key: value.replace("%", number) for key, value in self._pairs.items()}
        request: Any = pb.Request(key=list(pairs), value=list(pairs.values()))
        try:
            response = await self.engine.executor.handle(request, deadline_s, self._target)
            how = _HOW.get(response.err_no) or response.err_msg
        except OverloadedError as error:
            self.retry_after_s.append(error.retry_after_s)
            how = REFUSED
        self.endings.append((came, how, self._loop.time() - came))

    async def ended(self) -> Counter[str]:
        """Wait for all; return how many ended how."""
        await asyncio.gather(*self._asked)
        return Counter(how for _, how, _ in self.endings)

    def answered_between(self, begin: float, end: float) -> int:
        """Return how many were answered in that time."""
        times = [came + took for came, how, took in self.endings if how == ANSWERED]
        return sum(begin <= when < end for when in times)
