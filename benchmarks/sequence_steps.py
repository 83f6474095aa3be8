"""Steps of sequences, and of an Op that has none: the Op, and callers in its server's loop."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pipeline import Op, RequestOp
from pipeline.data import RequestInfo
from pipeline.engine.request import RequestTarget
from pipeline.proto import pipeline_service_pb2

KINDS = ("stateless", "direct", "oldest")
LIMIT_S = 60.0  # for what has begun to end
_INPUT = np.ones((1, 1))
_BUCKETS, _BUCKETS_AN_E = 1000, 50.0
_SUMS = 64
_BETWEEN_S = 0.1  # the two steps of a short sequence
_RAW = pipeline_service_pb2.Request()

Begin = Callable[..., Any]
"""`Engine.begin`."""


class Model(Op):
    """Takes `step_s` for a batch, and adds up what comes; the answer has how many were in it.

    Without sequences the sums are of nobody: the same work, and the same context that is asked for.
    """

    def __init__(self, step_s: float) -> None:
        super().__init__("model", RequestOp())
        self.step_s: float = step_s
        self.sums: dict[Any, float] = {}

    def preprocess(self, input_dicts: Any) -> Any:
        ((_, inputs),) = input_dicts.items()
        return inputs

    def process(self, feed_batch: Any, *, context: Any) -> Any:
        rows = feed_batch[0]["x"]
        sums = [self.add(row, each) for row, each in zip(rows.tolist(), context, strict=True)]
        if self.step_s:
            time.sleep(self.step_s)
        return {"y": np.array(sums), "size": np.full((len(rows), 1), len(rows))}

    def add(self, row: list[float], context: Any) -> list[float]:
        """Return the sum of what came under one of some numbers."""
        number = context.data_id % _SUMS
        total = self.sums[number] = row[0] + self.sums.get(number, 0.0)
        return [total]


class Stateful(Model):
    """Adds up what comes of each sequence: the answer is the number of the step."""

    def add(self, row: list[float], context: Any) -> list[float]:
        """Return the sum, which its end forgets."""
        step = context.sequence
        total = row[0] if step.start else self.sums[step.id] + row[0]
        if step.end:
            del self.sums[step.id]
        else:
            self.sums[step.id] = total
        return [total]


def model_of(kind: str, step_s: float) -> Model:
    """Return the Op of one of KINDS."""
    return Model(step_s) if kind == KINDS[0] else Stateful(step_s)


class Steps:
    """Counts of steps: their durations, their batches and their errors."""

    def __init__(self) -> None:
        self.count: int = 0
        self.batches: float = 0.0
        self.errors: Counter[str] = Counter()
        self._took = [0] * _BUCKETS  # as many steps of each length, however many there are

    def took(self, seconds: float) -> None:
        """Take down how long a step took."""
        self.count += 1
        self._took[min(_BUCKETS - 1, int(_BUCKETS_AN_E * math.log(1 + seconds * 1e6)))] += 1

    def percentile_ms(self, share: float) -> float:
        """Return what such a share of the steps stayed below, by 2 %."""
        left = share * self.count
        for bucket, count in enumerate(self._took):
            left -= count
            if left <= 0:
                return math.expm1((bucket + 1) / _BUCKETS_AN_E) / 1e3
        return math.inf

    @property
    def mean_batch(self) -> float:
        """Return the size of a batch."""
        return self.count / self.batches


class Caller:
    """One caller, with a sequence of `length` steps (0: without an end); then another.

    Args:
        ids: the numbers of sequences; None: the Op has none, and the caller says no id.
        on_end: called with the caller after each answer.
    """

    def __init__(
        self,
        begin: Begin,
        steps: Steps,
        ids: Iterator[int] | None,
        length: int,
        on_end: Callable[[Caller], None] = lambda caller: None,
    ) -> None:
        self.steps: Steps = steps
        self.on_end: Callable[[Caller], None] = on_end
        self.number: int = 0  # of steps that were asked in its sequence
        self._begin = begin
        self._ids = ids
        self._id = 0
        self._length = length

    def ask(self, due: float | None = None) -> None:
        """Take the next step; it was `due` then, else it is now, in `time.perf_counter`."""
        info = None
        is_last = self.number + 1 == self._length
        if self._ids is not None:
            if self.number == 0:
                self._id = next(self._ids)
            info = RequestInfo(
                sequence_id=self._id, sequence_start=self.number == 0, sequence_end=is_last
            )
        self.number += 1
        expected = 0 if info is None else self.number
        if is_last:
            self.number = 0
        sink = Request(self, expected, time.perf_counter() if due is None else due)
        target = RequestTarget(payload={"x": _INPUT}, wants_response=False, info=info)
        self._begin(_RAW, None, target, sink)

    def make_next_the_last(self) -> None:
        """Have the next step end the sequence."""
        self._length = self.number + 1


class Request:
    """One step that a caller asked for: its sink. `expected`: its number in its sequence, or 0."""

    __slots__ = ("_began", "_caller", "_expected")

    def __init__(self, caller: Caller, expected: int, began: float) -> None:
        self._caller = caller
        self._expected = expected
        self._began = began

    def add(self, answers: Sequence[Any]) -> None:
        """Never called: the answer is one."""

    def end(self, answer: Any) -> None:
        """Take the answer, which is the number of the step."""
        steps = self._caller.steps
        steps.took(time.perf_counter() - self._began)
        if answer.error is not None:
            steps.errors[str(answer.error)] += 1
        else:
            steps.batches += 1 / int(answer.payload["size"][0, 0])
            if self._expected and answer.payload["y"][0, 0] != self._expected:
                steps.errors["a wrong answer"] += 1
        self._caller.on_end(self._caller)


class Crowd:
    """Callers each of whom asks again when it is answered, until `stop`."""

    def __init__(self, begin: Begin, is_stateful: bool, count: int, length: int) -> None:
        self.steps: Steps = Steps()
        ids = itertools.count(1) if is_stateful else None
        self._left = count
        self._is_stopped = False
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._callers = [Caller(begin, self.steps, ids, length, self._again) for _ in range(count)]
        for caller in self._callers:
            self._loop.call_soon(caller.ask)

    def _again(self, caller: Caller) -> None:
        if self._is_stopped and caller.number == 0:
            self._left -= 1
            if not self._left:
                self._over.set()
            return
        self._loop.call_soon(caller.ask)  # as a door would: not within the answer

    def reset_counts(self) -> Steps:
        """Have the steps from now on counted apart."""
        self.steps = Steps()
        for caller in self._callers:
            caller.steps = self.steps
        return self.steps

    async def stop(self) -> None:
        """Let each caller end its sequence."""
        self._is_stopped = True
        await asyncio.wait_for(self._over.wait(), LIMIT_S)


class Flow:
    """A steady rate of steps, of long sequences and of short ones.

    Args:
        live: number of long sequences, each with a step every `every_s`.
        short_per_s: sequences of two steps that begin each second; the second step follows
            `_BETWEEN_S` after the first, whether that is answered or not.
    """

    def __init__(
        self, begin: Begin, is_stateful: bool, live: int, every_s: float, short_per_s: float
    ) -> None:
        self.steps: Steps = Steps()
        self._asked = self._answered = 0
        self._all = asyncio.Event()
        ids = itertools.count(1) if is_stateful else None
        self._live = [Caller(begin, self.steps, ids, 0, self._took) for _ in range(live)]
        self._live_per_s = live / every_s
        self._short_per_s = short_per_s
        self._short: deque[Caller] = deque()
        self._new = lambda: Caller(begin, self.steps, ids, 2, self._took)

    def _took(self, caller: Caller) -> None:
        self._answered += 1
        if self._answered == self._asked:
            self._all.set()

    async def begin_all(self) -> None:
        """Begin the long sequences, some hundred at a time."""
        for place in range(0, len(self._live), 256):
            for caller in self._live[place : place + 256]:
                self._ask(caller, time.perf_counter())
            await asyncio.wait_for(self._all.wait(), LIMIT_S)

    async def run(self, seconds: float) -> Steps:
        """Run for `seconds`; return the steps of that time."""
        self.steps = Steps()
        for caller in self._live:
            caller.steps = self.steps
        began = time.perf_counter()
        live = begun = ended = 0
        while (now := time.perf_counter() - began) < seconds:
            while live < now * self._live_per_s:
                caller = self._live[live % len(self._live)]
                self._ask(caller, began + live / self._live_per_s)
                live += 1
            while begun < now * self._short_per_s:
                self._short.append(self._new())
                self._ask(self._short[-1], began + begun / self._short_per_s)
                begun += 1
            while ended < (now - _BETWEEN_S) * self._short_per_s:
                due = began + ended / self._short_per_s + _BETWEEN_S
                self._ask(self._short.popleft(), due)
                ended += 1
            await asyncio.sleep(0.001)
        while self._short:
            self._ask(self._short.popleft(), time.perf_counter())
        await asyncio.wait_for(self._all.wait(), LIMIT_S)
        return self.steps

    async def end_all(self) -> None:
        """End the long sequences: a server that stops waits for them."""
        for caller in self._live:
            caller.make_next_the_last()
            self._ask(caller, time.perf_counter())
        await asyncio.wait_for(self._all.wait(), LIMIT_S)

    def _ask(self, caller: Caller, due: float) -> None:
        self._asked += 1
        self._all.clear()
        caller.ask(due)
