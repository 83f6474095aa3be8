"""`python -m fuzz.streams`: random graphs with streams, held to a plain evaluation of them.

Ops that make parts (of `process` with and without batches, of `postprocess`), read them, gather
them and join them; errors in the middle, parts that go nowhere; callers who take parts at once,
slowly or as one answer, and who leave. The engine runs on a virtual clock, so a seed is the same
case every time.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from typing import Any

from doubles import ScriptedWorkers, VirtualLoop

from fuzz.stream_cases import MAKERS, MOST_REQUESTS, Case, FuzzedOp, Model, given_alone, made_case
from pipeline import ResponseOp
from pipeline.config.schema import load_config, resolve_op
from pipeline.engine.engine import Engine
from pipeline.engine.graph import build_graph
from pipeline.engine.journal import EngineObservers, Journal
from pipeline.engine.request import RequestTarget, StreamSink, UnarySink
from pipeline.errors import ErrorCode, OverloadedError
from pipeline.op import configure_op
from pipeline.proto import pipeline_service_pb2

_OVER_S = 1000.0

# The engine ---------------------------------------------------------------------------------------


class StreamWorkers(ScriptedWorkers):
    """Workers that run slices, each at the end of its time."""

    def __init__(self, *args: Any, rng: random.Random) -> None:
        super().__init__(*args)
        self._rng = rng

    async def start(self) -> None:
        await super().start()
        for worker in self._workers:
            worker.yielded = self._yielded

    def _yielded(self, run: Any, entries: Any) -> None:
        self._loop.call_soon(self.owner.parts, run, list(entries))

    def _begin(self, worker: Any, job: Any) -> None:
        self.service_s = self._rng.choice([0.0, 0.001, 0.01])
        super()._begin(worker, job)

    def _finish(self, worker: Any) -> None:
        job = worker.job
        job.run(worker.op, worker, self._clock_ns)

        def done() -> None:
            worker.job = worker.job_started = worker.call_started = None
            self.owner.done(worker, job)
            self._feed()

        self._loop.call_soon(done)


class Caller:
    """One request: how its caller is, and what came."""

    def __init__(self, rng: random.Random, number: int) -> None:
        self.text = f"r{number}"
        self.kind = rng.choice(["quick", "slow", "one"])
        self.op: FuzzedOp | None = None  # it is for this one alone
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
    def __init__(self, caller: Caller, loop: asyncio.AbstractEventLoop) -> None:
        self.caller = caller
        self.loop = loop

    def part(self, answer: Any) -> None:
        caller = self.caller
        assert caller.is_open, "a part behind the end"
        caller.parts += answer.value
        if caller.kind == "quick":
            caller.request.took_part()
        else:
            self.loop.call_later(caller.pause_s, caller.request.took_part)

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
    """The callers of a case; few of them are for one Op alone."""
    callers = [Caller(rng, number) for number in range(rng.randint(1, MOST_REQUESTS))]
    for caller in callers:
        caller.op = rng.choice([None] * 8 + [rng.choice(case.ops)])
    return callers


def run(seed: int) -> list[str]:
    """Run a case; return what is wrong."""
    rng = random.Random(seed)
    case = made_case(rng)
    callers = made_callers(case, rng)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        try:
            return runner.run(_run(case, callers, rng))
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]


async def _run(case: Case, callers: list[Caller], rng: random.Random) -> list[str]:
    graph = build_graph(ResponseOp([case.last]), on_loose=lambda loose: None)
    settings = load_config(yml_dict={"rpc_port": 0, **case.config})
    for op in graph.all_ops:
        configure_op(op, resolve_op(op.name, op.pipeline_given, settings))
    loop = asyncio.get_running_loop()
    wrong: list[str] = []
    loop.set_exception_handler(lambda _, context: wrong.append(f"on the loop: {context}"))

    def make_workers(_: Any) -> Any:
        return lambda op, owner: StreamWorkers(op, owner, rng=rng)

    engine = Engine(
        graph,
        settings,
        make_workers,
        loop,
        EngineObservers(Journal([]), clock_ns=lambda: int(loop.time() * 1e9)),
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
    sink = One(caller) if caller.kind == "one" else Parts(caller, loop)
    try:
        caller.request = engine.begin(raw, caller.timeout_s, _target(case, caller), sink)
    except OverloadedError:  # it could not be answered in its time
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
    """What is wrong with how a request ended; "" if nothing is."""
    parts, answer = model.parts, caller.last
    begins = parts[: len(caller.parts)] == caller.parts
    if model.answers and caller.parts:
        count = len(caller.parts) - 1
        begins |= parts[:count] == caller.parts[:-1] and caller.parts[-1] in model.answers
    if caller.has_left:
        return "" if begins else f"{caller.parts} begins not as {parts}"
    if answer == "nothing":
        return f"has no end; {len(caller.parts)} of {len(parts)} parts"
    is_error = answer is not None and answer.err_no != 0
    is_limited = caller.timeout_s is not None or case.is_hasty
    if is_error and (answer.err_no == ErrorCode.TIMEOUT and is_limited):
        return "" if begins else f"{caller.parts} begins not as {parts}"
    if is_error:
        may_fail = model.has_failed or case.is_crashing
        is_right = may_fail and (begins or bool(model.answers))
        return "" if is_right else f"ended with {answer!r:.200} behind {caller.parts}: {parts}"
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
        return f"ended well with {got}, expected an error behind {parts}"
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
    parser = argparse.ArgumentParser(prog="python -m fuzz.streams", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="of the first case")
    parser.add_argument("--cases", type=int)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    seed = given.seed if given.seed is not None else time.time_ns() % 10**9
    ends, count, bad = time.monotonic() + given.seconds, 0, 0
    while count < given.cases if given.cases is not None else time.monotonic() < ends:
        findings = run(seed + count)
        count += 1
        if findings:
            bad += 1
            print(f"python -m fuzz.streams --cases 1 --seed {seed + count - 1}")
            for finding in findings[:4]:
                print(f"    {finding[:600]}")
            if bad >= 10:
                break
    print(f"{'FOUND' if bad else 'nothing found'}: {count} cases from seed {seed}, {bad} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
