"""`python -m fuzz.sequences`: random graphs with sequences; checks the ending of each request.

Ops have sequences of both strategies, in threads and processes, after and parallel to Ops with
several workers. Many ids come at once, with odd starts and ends; there are errors, lost workers,
cancels and deadlines. The engine runs on a virtual clock, so that a seed gives the same case every
time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from doubles import VirtualLoop

from fuzz import pacing
from fuzz.campaign import campaign, parser_of
from fuzz.sequence_cases import Case, Ending, Judge, Script, Step, built, made_case
from fuzz.strands import Strands, StrandWorld
from fuzz.virtual import VirtualThreads, VirtualWorker, VirtualWorkers
from pipeline.caches.local import LocalCache, LocalOptions
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.engine.engine import Engine
from pipeline.engine.graph import build_graph
from pipeline.engine.journal.journal import EngineObservers, Journal
from pipeline.engine.op.answer_cache import ServerCache
from pipeline.engine.op.cache import ModelCache
from pipeline.engine.request import UnarySink
from pipeline.engine.run.stages import BatchRun
from pipeline.errors import OverloadedError, WorkerDiedError
from pipeline.op import configure_op

_OVER_S = 2000.0
_MOST_HANGS = 10
_STRANDS = Strands()


class Addressed(VirtualWorkers):
    """Workers that run a batch with places only on the worker that it is for, or lose it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.addressable = True
        self._lives: dict[int, int] = {}

    def lives(self) -> Mapping[int, int]:
        return {each.number: self._lives.get(each.number, 0) for each in self._workers}

    def replace(self, worker: VirtualWorker, job: Any) -> bool:
        self._is_another(worker.number)
        return super().replace(worker, job)

    def _crash(self, worker: VirtualWorker, job: Any) -> None:
        self._is_another(worker.number)
        super()._crash(worker, job)

    def kill(self) -> None:
        """Kill one of them, whether it is idle or busy."""
        worker = self._workers[-1] if self._workers else None
        if worker is None or worker.is_lent or self._is_stopped:
            return
        if worker.job is not None:
            self._crash(worker, worker.job)
            return
        self._is_another(worker.number)
        self._workers.remove(worker)
        self._replaced += 1
        self._restart(worker)
        self.owner.workers_changed()

    def _is_another(self, number: int) -> None:
        """Count a lost worker; report the batches that only it could run as lost."""
        self._lives[number] = self._lives.get(number, 0) + 1
        lost = [job for job in self._queue if _is_bound(job) and job.worker == number]
        self._queue = [job for job in self._queue if job not in lost]
        for job in lost:
            self.owner.lost(job, WorkerDiedError(f"[{self.op.name}] its worker was lost"))

    def _feed(self) -> None:
        for worker in list(self._workers):
            if worker.job is None and not worker.is_lent:
                job = next((job for job in self._queue if _is_for(job, worker)), None)
                if job is not None:
                    self._queue.remove(job)
                    self._begin(worker, job)


def _is_bound(job: Any) -> bool:
    return isinstance(job, BatchRun) and job.places is not None


def _is_for(job: Any, worker: VirtualWorker) -> bool:
    return not _is_bound(job) or job.worker == worker.number


class AddressedThreads(Addressed, VirtualThreads):
    """The same workers, which can also be lent."""


class One(UnarySink):
    """Records the ending of a request, and calls `then`."""

    def __init__(self, ending: Ending, complain: Callable[[str], None]) -> None:
        self.ending = ending
        self.complain = complain
        self.then: Callable[[], None] | None = None

    def end(self, answer: Any) -> None:
        ending = self.ending
        if ending.kind not in ("open", "left"):
            self.complain(f"a second end: {answer}")
        if ending.kind == "open":
            take_down(ending, answer)
        if self.then is not None:
            self.then()


def take_down(ending: Ending, answer: Any) -> None:
    if answer.error is not None:
        ending.kind, ending.code = "error", int(answer.error.code)
        ending.text = str(answer.error)
        return
    told = json.loads(answer.payload.get("told", "{}"))  # none if it only ends a sequence
    ending.kind = "answer"
    ending.told = {op: [int(each) for each in text.split(",")] for op, text in told.items()}


class Callers:
    """Sends the requests of a case to an engine, in order, and records their endings."""

    def __init__(self, engine: Any, case: Case, loop: Any, complain: Callable[[str], None]) -> None:
        self.engine = engine
        self.loop = loop
        self.complain = complain
        self.order: list[int] = []
        self.endings = {step.number: Ending() for step in case.steps}
        self.left = len(case.steps)
        lines: dict[Any, list[Step]] = {}
        times: dict[float, list[Step]] = {}
        for step in case.steps:
            if step.follows and any(step.id in map(_id_of, each) for each in times.values()):
                lines.setdefault(step.id, []).append(step)
            else:
                times.setdefault(step.at_s, []).append(step)
        self._lines = lines
        for at_s, together in times.items():
            loop.call_later(at_s, self._begin_all, together)

    @property
    def is_over(self) -> bool:
        return self.left == 0

    def _begin_all(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._begin(step)

    def _begin(self, step: Step) -> None:
        ending = self.endings[step.number]
        sink = One(ending, self.complain)
        self.order.append(step.number)
        try:
            request = self.engine.begin(None, step.deadline_s, step.target(), sink)
        except OverloadedError as error:
            ending.kind, ending.text = "refused", str(error)
            self._over(step)
            return
        if ending.kind != "open":
            self._over(step)
            return
        sink.then = lambda: self._over(step)
        if step.leaves_s is not None:
            self.loop.call_later(step.leaves_s, self._leave, step, request, sink)

    def _leave(self, step: Step, request: Any, sink: One) -> None:
        if self.endings[step.number].kind == "open":
            self.endings[step.number].kind = "left"
            sink.then = None
            request.cancel()
            self._over(step)

    def _over(self, step: Step) -> None:
        self.left -= 1
        line = self._lines.get(step.id)
        if line:
            following = line.pop(0)
            self.loop.call_later(following.at_s, self._begin, following)


def _id_of(step: Step) -> Any:
    return step.id


class Host:
    """The runner of a case, as virtual workers see it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.strands = _STRANDS
        self.wrong: list[str] = []
        self.outlook = self
        self.complain = self.wrong.append
        self.pools: list[VirtualWorkers] = []

    def clock_ns(self) -> int:
        return int(self.loop.time() * 1e9)

    def kill(self, name: str) -> None:
        """Kill a worker of an Op."""
        next(pool for pool in self.pools if pool.op.name == name).kill()  # type: ignore[attr-defined]

    def make_workers(self, _: Any) -> Any:
        def make(op: Any, owner: Any) -> VirtualWorkers:
            kind = Addressed if op.pipeline_config.workers == "process" else AddressedThreads
            pool = kind(self, op, owner, max(1, op.pipeline_config.concurrency))
            self.pools.append(pool)
            return pool

        return make


def run(case: Case) -> list[str]:
    """Return the defects of the engine that this case shows."""
    loop = VirtualLoop()
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(_run(case, loop))
    except Exception as error:  # of the engine, or of the fuzzer itself
        where = traceback.extract_tb(error.__traceback__)[-1]
        return [f"the engine raised {error!r} ({where.filename}:{where.lineno})"]


async def _run(case: Case, loop: asyncio.AbstractEventLoop) -> list[str]:
    host = Host(loop)
    loop.set_exception_handler(lambda _, context: host.complain(f"the loop: {context}"))
    script = Script(case, StrandWorld(), host.complain)
    _, response_op = built(case, script)
    graph = build_graph(response_op)
    settings = load_config(yml_dict={"rpc_port": 0, **case.config()})
    for op in (graph.request_op, *graph.ops, graph.response_op):
        configure_op(op, resolve_op(op.name, op.pipeline_given, settings))
    observers = EngineObservers(Journal([]), clock_ns=host.clock_ns)
    cache = ModelCache(ServerCache("local", LocalCache(LocalOptions(size=1 << 20))), "svc", "1")
    engine = Engine(graph, settings, host.make_workers, loop, observers, cache=cache)
    await engine.start()
    pacing.pace(engine, case)  # type: ignore[arg-type]
    callers = Callers(engine, case, loop, host.complain)
    for at_s, name in case.kills:
        loop.call_later(at_s, host.kill, name)
    ends = loop.time() + _OVER_S
    while not callers.is_over and loop.time() < ends:  # noqa: ASYNC110  # there is no event for it
        await asyncio.sleep(0.5)
    wrong = host.wrong + Judge(case, callers.order, callers.endings).findings()
    await asyncio.sleep(1.0)
    for _ in range(_MOST_HANGS):
        for pool in host.pools:
            pool.release()
        await asyncio.sleep(0.1)
    await asyncio.sleep(max(node.max_idle_ms for node in case.stateful) / 1000 + 1.0)
    wrong += left_over(engine)
    await engine.stop(0.0)
    return wrong


def left_over(engine: Any) -> list[str]:
    """Return the requests and sequences that the engine still has after the end of all."""
    state, wrong = engine.state(), []
    if state.inside or state.waiting:
        wrong.append(f"inside {state.inside}, waiting {state.waiting} after the last answer")
    for op in state.ops:
        its = op.sequences
        if op.joining or op.queued or op.running or op.workers.busy:
            wrong.append(f"not at rest after the last answer: {op}")
        if its is not None and (its.live or its.used or its.backlog):
            wrong.append(f"sequences are live after the last one was idle: {op.name} {its}")
    for node in engine.executor.nodes.values():
        buffer = getattr(node.scheduler, "reorder_buffer", None)
        if buffer is None:
            continue
        book = node.scheduler.book
        chains = book._chains
        kept = [buffer.held, buffer._lines, book.queued, chains._chains, chains._at]
        kept += [book._running, book._held, book._idle, book._backlog.size, *book.ready.values()]
        if any(kept):
            wrong.append(f"{node.name} keeps {kept} when nothing is left")
        if engine.state().is_ready:
            expected = node.op.pipeline_config.concurrency * book.slots._count
            if book.slots.free != expected:
                wrong.append(f"{node.name} has {book.slots.free} of {expected} slots at the end")
    return wrong


def shrunk(case: Case, fails: Callable[[Case], list[str]]) -> tuple[Case, list[str]]:
    """Return a case with as few requests as still show a finding, leaving out one at a time."""
    findings = fails(case)
    for step in list(case.steps):
        fewer = case.only([each.number for each in case.steps if each.number != step.number])
        again = fails(fewer) if fewer.steps else []
        if again:
            case, findings = fewer, again
    return case, findings


def main() -> int:
    parser = parser_of("sequences", __doc__)
    parser.add_argument(
        "--without", default="", help="processes,faults,leaves,idle,ways,state,priorities,caches"
    )
    parser.add_argument("--only", default="", help="of the cases: these requests, with commas")
    given = parser.parse_args()

    def run_and_shrink(seed: int) -> list[str]:
        case = case_of(seed, given)
        if not run(case):
            return []
        case, findings = shrunk(case, run)
        return [f"--only {','.join(str(step.number) for step in case.steps)}: {case}", *findings]

    without = f" --without {given.without}" if given.without else ""
    return campaign(parser.prog, given, run_and_shrink, without)


def case_of(seed: int, given: argparse.Namespace, **more: Any) -> Case:
    """Return the case of a seed, reduced by --without and --only."""
    case = made_case(seed, **more, without=tuple(filter(None, given.without.split(","))))
    return case.only([int(each) for each in given.only.split(",")]) if given.only else case


if __name__ == "__main__":
    sys.exit(main())
