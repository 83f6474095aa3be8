"""`python -m fuzz.streams`: random graphs with streams, compared with a plain evaluation.

Ops make parts (in `process` with and without batches, in steps, in `postprocess`), read, gather and
join them. There are errors in the middle, steps that hang and parts that no Op gets. Callers take
parts at once, slowly or as one answer, and cancel. The engine runs on a virtual clock, so that a
seed gives the same case every time.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence
from typing import Any

from doubles import VirtualLoop

from fuzz.campaign import campaign, parser_of
from fuzz.strands import Strands, StrandWorld
from fuzz.stream_cases import (
    MAKERS,
    MOST_REQUESTS,
    Case,
    FuzzedOp,
    Model,
    configured,
    given_alone,
    made_case,
)
from fuzz.virtual import VirtualThreads, VirtualWorker
from pipeline.engine.engine import Engine
from pipeline.engine.journal.journal import EngineObservers, Journal
from pipeline.engine.request import RequestTarget, StreamSink, UnarySink
from pipeline.errors import ErrorCode, OverloadedError
from pipeline.proto import pipeline_service_pb2

_OVER_S = 1000.0

# The engine ---------------------------------------------------------------------------------------


class StreamThreads(VirtualThreads):
    """Threads that run slices. The loop continues while their Ops wait."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.addressable = self.runs_slices = True

    def _feed(self) -> None:
        numbers = {worker.number for worker in self._workers}
        for worker in self._workers:
            if worker.job is None and not worker.is_lent:
                job = next((job for job in self._queue if _is_for(job, worker, numbers)), None)
                if job is not None:
                    self._queue.remove(job)
                    self._begin(worker, job)


def _is_for(job: Any, worker: VirtualWorker, numbers: set[int]) -> bool:
    return job.worker not in numbers or job.worker == worker.number


class Host:
    """The runner of a case, as virtual workers see it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.strands = _STRANDS
        self.wrong: list[str] = []
        self.outlook = self
        self.complain = self.wrong.append

    def clock_ns(self) -> int:
        return int(self.loop.time() * 1e9)

    def make_workers(self, _: Any) -> Any:
        return lambda op, owner: StreamThreads(self, op, owner, max(1, _workers_of(op)))


def _workers_of(op: Any) -> int:
    return int(op.pipeline_config.concurrency)


_STRANDS = Strands()


class Caller:
    """A request: the behaviour of its caller, and the answer."""

    def __init__(self, rng: random.Random, number: int) -> None:
        self.text = f"r{number}"
        self.kind = rng.choice(["quick", "slow", "one"])
        self.op: FuzzedOp | None = None  # the only Op that it runs
        self.begins_s = rng.choice([0.0, 0.0, rng.random() * 0.2])
        self.leaves_s = rng.choice([None, None, rng.random() * 0.3])
        self.pause_s = rng.choice([0.001, 0.05])
        self.timeout_s = rng.choice([None, None, None, rng.random() * 0.2])
        self.parts: list[str] = []
        self.last: Any = "nothing"
        self.has_left = False
        self.request: Any = None

    @property
    def is_open(self) -> bool:
        return self.last == "nothing" and not self.has_left


class Parts(StreamSink):
    """A sink of parts. `room`: the number of parts that it can still take."""

    def __init__(self, caller: Caller, loop: asyncio.AbstractEventLoop, room: int) -> None:
        self.caller = caller
        self.loop = loop
        self.room = room

    def add(self, answers: Sequence[Any]) -> None:
        caller, count = self.caller, len(answers)
        assert caller.is_open, "a part after the end"
        for answer in answers:
            caller.parts += answer.value
        self.room -= count
        assert self.room >= 0, "more parts than there is room for"
        if caller.kind == "quick":
            self.take(count)
        else:
            self.loop.call_later(caller.pause_s, self.take, count)

    def take(self, count: int) -> None:
        self.room += count
        self.caller.request.took_part(count)

    def end(self, answer: Any) -> None:
        assert self.caller.is_open, "two ends"
        self.caller.last = answer


class One(UnarySink):
    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    def end(self, answer: Any) -> None:
        assert self.caller.is_open, "two ends"
        self.caller.last = answer


def made_callers(case: Case, rng: random.Random) -> list[Caller]:
    """Return the callers of a case; few of their requests run one Op alone."""
    callers = [Caller(rng, number) for number in range(rng.randint(1, MOST_REQUESTS))]
    for caller in callers:
        caller.op = rng.choice([None] * 8 + [rng.choice(case.ops)])
    return callers


def run(seed: int, in_steps: float | None = None) -> list[str]:
    """Run a case; return its findings."""
    rng = random.Random(seed)
    case = made_case(rng, in_steps=in_steps)
    callers = made_callers(case, rng)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        try:
            return runner.run(_run(case, callers, rng))
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]


async def _run(case: Case, callers: list[Caller], rng: random.Random) -> list[str]:
    graph, settings = configured(case)
    for op in case.ops:
        op.world = StrandWorld()
    loop = asyncio.get_running_loop()
    host = Host(loop)
    wrong = host.wrong
    loop.set_exception_handler(lambda _, context: wrong.append(f"on the loop: {context}"))
    engine = Engine(
        graph,
        settings,
        host.make_workers,
        loop,
        EngineObservers(Journal([]), clock_ns=host.clock_ns),
    )
    await engine.start()
    for caller in callers:
        loop.call_later(caller.begins_s, begin, engine, case, caller, loop)
    await asyncio.sleep(_OVER_S)
    for caller in callers:
        wrong += compared(case, caller)
    wrong += left_over(engine)
    if case.open[0]:
        wrong.append(f"{case.open[0]} generators are open")
    await engine.stop(0.0)
    return wrong


def begin(engine: Engine, case: Case, caller: Caller, loop: asyncio.AbstractEventLoop) -> None:
    raw = pipeline_service_pb2.Request(key=["text"], value=[caller.text])
    room = case.dag["stream_window"] + bool(any(op.answers for op in case.ops))
    sink = One(caller) if caller.kind == "one" else Parts(caller, loop, room)
    try:
        caller.request = engine.begin(raw, caller.timeout_s, _target(case, caller), sink)
    except OverloadedError:  # it could not be answered in time
        caller.has_left = True
        return
    if caller.leaves_s is not None:
        loop.call_later(caller.leaves_s, _leave, caller)


def _target(case: Case, caller: Caller) -> RequestTarget | None:
    if caller.op is None:
        return None
    return RequestTarget(op=caller.op, payload=given_alone(case, caller.op, caller.text))


def _leave(caller: Caller) -> None:
    if caller.last == "nothing":
        caller.has_left = True
        caller.request.cancel()


def compared(case: Case, caller: Caller) -> list[str]:
    model = Model(case, caller.text, caller.kind == "one", caller.op)
    problem = problem_with(case, caller, model)
    return [f"{caller.text} ({caller.kind}): {problem}"] if problem else []


def problem_with(case: Case, caller: Caller, model: Model) -> str:
    """Return the defect in the ending of a request; "" if there is none."""
    parts, answer = model.parts, caller.last
    begins = parts[: len(caller.parts)] == caller.parts
    if model.answers and caller.parts:
        count = len(caller.parts) - 1
        begins |= parts[:count] == caller.parts[:-1] and caller.parts[-1] in model.answers
    if caller.has_left:
        return "" if begins else f"{caller.parts} is not the beginning of {parts}"
    if answer == "nothing":
        return f"has no end; {len(caller.parts)} of {len(parts)} parts"
    is_error = answer is not None and answer.err_no != 0
    late = {ErrorCode.TIMEOUT} if case.is_hasty else set()
    if caller.timeout_s is not None:  # an Op refuses it if its turn would come too late
        late = {ErrorCode.TIMEOUT, OverloadedError.code}
    if is_error and answer.err_no in late:
        return "" if begins else f"{caller.parts} is not the beginning of {parts}"
    if is_error:
        may_fail = model.has_failed or case.is_crashing
        is_right = may_fail and (begins or bool(model.answers))
        return "" if is_right else f"ended with {answer!r:.200} after {caller.parts}: {parts}"
    got = [*caller.parts, *(answer.value if answer is not None else ())]
    is_one = caller.kind == "one" or (
        case.last not in case.streams if caller.op is None else not isinstance(caller.op, MAKERS)
    )
    if model.answers:
        if is_one:
            texts = ["".join(parts[:count]) for count in range(len(parts) + 1)]
            is_right = "".join(got) in [text + last for text in texts for last in model.answers]
        else:
            is_right = got[-1:] != [] and got[-1] in model.answers
            is_right &= parts[: len(got) - 1] == got[:-1]
        return "" if is_right else f"{got} is not {parts} cut off by one of {model.answers}"
    if model.has_failed:
        return f"ended well with {got}, expected an error after {parts}"
    if is_one:
        return "" if "".join(got) == "".join(parts) else f"{got} is not {parts} in one"
    return "" if got == parts else f"{got} is not {parts}"


def left_over(engine: Engine) -> list[str]:
    found = []
    for node in engine.executor.nodes.values():
        found += [
            f"{node.name}: {what} is {getattr(node, what)!r:.200}"
            for what in ("_inlets", "_runs", "_slices")
            if getattr(node, what, 0)
        ]
        if node.load.running or node.load.items or len(node.scheduler):
            found.append(f"{node.name}: {node.load.running} batches, {node.load.items} items left")
    if engine.inside or engine.waiting:
        found.append(f"{engine.inside} requests inside")
    return found


def main() -> int:
    parser = parser_of("streams", __doc__)
    parser.add_argument("--in-steps", type=float, help="share of the makers that are iterative")
    given = parser.parse_args()
    steps = "" if given.in_steps is None else f" --in-steps {given.in_steps}"
    return campaign(parser.prog, given, lambda seed: run(seed, given.in_steps), steps)


if __name__ == "__main__":
    sys.exit(main())
