"""`python -m fuzz.batches`: random dynamic batching with ragged inputs, checked by plain rules.

The graph is one Op, like a ragged model of a repository. Requests of several shapes, sizes,
priorities and timeouts come alone and in bursts, and some callers cancel. Plain Python computes the
inputs of each execution again; the order of the queue decides which requests may run, which are
refused, and when. The engine runs on a virtual clock, so that a seed gives the same case every
time.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from doubles import VirtualLoop

from fuzz.batch_cases import NAME, Case, Ran, Record, Request, Rules, Told, made_case
from fuzz.campaign import campaign, parser_of
from fuzz.sequences import Host
from fuzz.strands import StrandWorld
from pipeline import Op, RequestOp
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.data import RequestInfo
from pipeline.engine.engine import Engine
from pipeline.engine.graph import build_graph
from pipeline.engine.journal.journal import EngineObservers, Journal
from pipeline.engine.request import RequestTarget, ask
from pipeline.op import ResponseOp, configure_op

_OVER_S = 1000.0
_BATCH_INPUTS = {
    "N": "BATCH_ELEMENT_COUNT",
    "ENDS": "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "FROM": "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "MOST": "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "SHAPES": "BATCH_ITEM_SHAPE",
    "FLAT": "BATCH_ITEM_SHAPE_FLATTEN",
}
_OF_R = {"source_input": ["R"]}
_RAGGED = {
    "allow_ragged_batch": ["R"],
    "batch_input": [
        {"kind": kind, "target_name": [name], "data_type": "TYPE_INT32", **_OF_R}
        for name, kind in _BATCH_INPUTS.items()
    ],
    "batch_output": [{"target_name": ["TWICE"], **_OF_R}],
}


class BatchedOp(Op):
    """Takes the time of its slowest request, and records its inputs."""

    def __init__(self, case: Case, record: Record, world: StrandWorld, loop: Any) -> None:
        super().__init__(NAME, RequestOp())
        self.requests = {request.number: request for request in case.requests}
        self.record, self.world, self.loop = record, world, loop

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        (fed,) = feed_batch
        numbers = list(dict.fromkeys(map(int, fed["P"][:, 0])))
        asked = [self.requests[number] for number in numbers]
        ran = Ran(self.loop.time(), numbers)
        for number in numbers:
            self.record.told[number].batch = len(self.record.ran)
        self.record.ran.append(ran)
        self.record.wrong += _wrong_fed(fed, asked)
        self.world.sleep(max(request.runs_s for request in asked))
        ran.ended_s = self.loop.time()
        return {"TWICE": fed["R"] * 2, "FIRST": fed["P"][:, :1]}


def _wrong_fed(fed: dict[str, Any], asked: Sequence[Request]) -> Iterator[str]:
    """Compare the inputs of a model with the expected ones."""
    counts = [len(request.elements) for request in asked]
    shapes = [list(request.ragged) for request in asked for _ in range(request.rows)]
    expected: dict[str, Any] = {
        "R": [each for request in asked for each in request.elements],
        "P": [[float(each.number)] * each.width for each in asked for _ in range(each.rows)],
        "N": counts,
        "ENDS": list(itertools.accumulate(counts)),
        "FROM": [0, *itertools.accumulate(counts)],
        "MOST": [0.0] * max(counts),
        "SHAPES": shapes,
        "FLAT": [size for shape in shapes for size in shape],
    }
    if asked[0].has_optional:
        expected["O"] = [[-float(each.number)] for each in asked for _ in range(each.rows)]
    if fed.keys() != expected.keys():
        yield f"it was fed {sorted(fed)} by {[each.number for each in asked]}"
    for name in fed.keys() & expected.keys():
        if fed[name].tolist() != expected[name]:
            yield f"{name} is {fed[name].tolist()}, not {expected[name]}"


def run(case: Case) -> list[str]:
    """Return the defects of the engine that this case shows."""
    return ran_case(case)[0]


def ran_case(case: Case) -> tuple[list[str], Record]:
    """Return the defects, and the record of the case."""
    loop, record = VirtualLoop(), Record()
    record.told = {request.number: Told() for request in case.requests}
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(_run(case, record, loop)), record
    except Exception as error:  # of the engine, or of the fuzzer itself
        where = traceback.extract_tb(error.__traceback__)[-1]
        return [f"the engine raised {error!r} ({where.filename}:{where.lineno})"], record


async def _run(case: Case, record: Record, loop: VirtualLoop) -> list[str]:
    host = Host(loop)
    loop.set_exception_handler(lambda _, context: host.complain(f"the loop: {context}"))
    op = BatchedOp(case, record, StrandWorld(), loop)
    graph = build_graph(ResponseOp(op))
    settings = load_config(yml_dict=case.config(_RAGGED))
    for each in (graph.request_op, *graph.ops, graph.response_op):
        configure_op(each, resolve_op(each.name, each.pipeline_given, settings))
    observers = EngineObservers(Journal([]), clock_ns=host.clock_ns)
    engine = Engine(graph, settings, host.make_workers, loop, observers)
    await engine.start()
    began_s = loop.time()
    tasks = [
        asyncio.ensure_future(_ask(engine, op, request, record, began_s, loop))
        for request in case.requests
    ]
    await asyncio.wait(tasks, timeout=_OVER_S)
    await asyncio.sleep(1.0)
    (state,) = [each for each in engine.state().ops if each.name == NAME]
    if state.joining or state.queued or state.running or state.workers.busy:
        host.complain(f"not at rest after the last answer: {state}")
    await engine.stop(0.0)
    return host.wrong + Rules(case, record).findings()


async def _ask(
    engine: Any, op: Op, request: Request, record: Record, began_s: float, loop: VirtualLoop
) -> None:
    if request.at_s:
        await asyncio.sleep(began_s + request.at_s - loop.time())
    info = RequestInfo(
        id=str(request.number),
        priority=request.priority,
        parameters={"timeout": request.timeout_us} if request.timeout_us else {},
    )
    target = RequestTarget(
        op, request.feed(), raw_inputs=True, wants_response=False, rows=request.rows, info=info
    )
    told = record.told[request.number]
    told.came_s, told.place = loop.time(), record.came
    record.came += 1
    future = ask(engine.begin, None, target=target)
    if request.leaves_s is not None:
        loop.call_later(request.leaves_s, future.cancel)
    try:
        data = await future
    except asyncio.CancelledError:
        told.kind = "left"
    else:
        told.kind = "answer" if data.error is None else "error"
        told.text, told.answer = str(data.error or ""), data.payload
        if data.error is None:
            record.order.append(told.place)
    told.over_s = loop.time()


def shrunk(case: Case) -> tuple[Case, list[str]]:
    """Return a case with as few requests as still show a finding, leaving out one at a time."""
    findings = run(case)
    for request in case.requests:
        fewer = replace(case, requests=tuple(each for each in case.requests if each != request))
        again = run(fewer) if fewer.requests else []
        if again:
            case, findings = fewer, again
    return case, findings


def main() -> int:
    parser = parser_of("batches", __doc__)
    return campaign(parser.prog, parser.parse_args(), _run_and_shrink)


def _run_and_shrink(seed: int) -> list[str]:
    case = made_case(seed)
    if not run(case):
        return []
    case, findings = shrunk(case)
    return [str(case), *findings]


if __name__ == "__main__":
    sys.exit(main())
