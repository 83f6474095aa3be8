"""The model: the endings that a request may have, by a plain evaluation of its graph.

It walks the Ops once, in order, without time, batches and workers. Where the engine is free (which
answer arrives first), or a fault of another request of the same batch may reach this one, it calls
`choose`. `outcomes` walks once for every sequence of choices and collects the results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fuzz.case import ALWAYS, RAISES, REQUEST, Case, OpSpec, RequestSpec, mark

MOST_WORLDS = 4000

UNKNOWN, TIMEOUT, UNAVAILABLE, LOST, PACKAGE = 10000, 6000, 9000, 4000, 8000
PRODUCT, OWN_CODE, INPUT, OVERLOADED = 61, 8123, 5000, 3004
EARLY = ("raise_pre", "product_pre", "stuck")


@dataclass(frozen=True)
class Answer:
    """A good end: the last Op's value."""

    value: str


@dataclass(frozen=True)
class Failure:
    """An error: its code, and a part of its text."""

    code: int
    holds: str = ""


@dataclass(frozen=True)
class Nothing:
    """No result. `waits`: something hangs; otherwise the answer went elsewhere."""

    waits: bool


Result = Answer | Failure | Nothing
NEVER, ABSENT = Nothing(True), Nothing(False)
Choose = Callable[[Sequence[Any]], Any]


class TooManyWorldsError(Exception):
    """There are more than `MOST_WORLDS` sequences of choices."""


def outcomes(case: Case, request: RequestSpec, sheds: bool = False) -> set[Result]:
    """Return the endings that a request may have with enough time.

    sheds: any Op may refuse it, because it cannot be answered in time.
    """
    return every(lambda choose: evaluate(case, request, choose, sheds))


def every(walk: Callable[[Choose], Result]) -> set[Result]:
    """Return the results of `walk` for all sequences of choices."""
    found: set[Result] = set()
    pending: list[tuple[int, ...]] = [()]
    for _ in range(MOST_WORLDS):
        if not pending:
            return found
        path = pending.pop()
        taken: list[int] = []

        def choose(options: Sequence[Any], path: Any = path, taken: Any = taken) -> Any:
            place = len(taken)
            if place >= len(path):
                pending.extend((*taken, other) for other in range(1, len(options)))
            taken.append(path[place] if place < len(path) else 0)
            return options[taken[-1]]

        found.add(walk(choose))
    raise TooManyWorldsError


def evaluate(case: Case, request: RequestSpec, choose: Choose, sheds: bool = False) -> Result:
    """Walk through the graph once."""
    if request.alone_at:
        op = case.op(request.alone_at)
        return at_op(case, op, request, [Part(REQUEST, Answer("in"))], choose, sheds)[0]
    if request.misfit:
        return Failure(PACKAGE, "id: expected int")
    edge = request.faults.get(REQUEST)
    if edge is not None and edge.kind == "raise_pre":
        return Failure(PACKAGE, mark(request.number, REQUEST))
    result = through(case, request, choose, sheds)
    if edge is not None and isinstance(result, Answer):
        return Failure(PACKAGE, mark(request.number, REQUEST))
    return result


class Part(NamedTuple):
    """The input of an Op from a producer, or from the Op that jumped over it. `is_late`: it comes
    after a jump.
    """

    name: str
    result: Result
    is_late: bool = False


def through(case: Case, request: RequestSpec, choose: Choose, sheds: bool) -> Result:
    """Walk from the first Ops to the last; return the result."""
    parts = {REQUEST: Part(REQUEST, Answer("in"))}
    stand_in: Part | None = None
    targets: tuple[str, ...] = ()
    ends: list[Result] = []
    for op, read in in_laps(case, request, parts):
        result, is_late = at_op(case, op, request, read, choose, sheds)
        if isinstance(result, Answer) and request.ways.get(op.name, ()) is None:
            ends.append(result)
            result = NEVER
        part = Part(op.name, gone(case, op, request, result), is_late)
        if stand_in is not None and op.name in targets:
            # It may also answer itself; the first of both answers counts.
            is_alone = isinstance(result, Nothing) or is_late
            part = stand_in if is_alone else choose([part, stand_in])
        elif isinstance(result, Answer) and is_jumping(case, op, request, choose):
            stand_in, targets = Part(op.name, result, True), op.jumps_to
            part = Part(op.name, ABSENT, True)  # for its readers
        parts[op.name] = part
    result = parts[case.last.name].result
    if result == ABSENT:
        result = Failure(LOST, "lost in the graph")
    if ends and result != NEVER:
        ends.append(result)
    return choose(ends) if ends else result


def gone(case: Case, op: OpSpec, request: RequestSpec, result: Result) -> Result:
    """Return an Op's result: ABSENT if it goes to no Op, a Failure if to a wrong one."""
    to = request.ways.get(op.name)
    if not isinstance(result, Answer) or to is None:
        return result
    if not set(to) <= set(case.readers(op.name)):
        return Failure(LOST, "does not read it")
    return result if to else ABSENT


def read_by(op: OpSpec, request: RequestSpec, parts: dict[str, Part]) -> list[Part]:
    """Return the inputs of an Op; some producers may send their answers elsewhere."""
    read = []
    for part in (parts[name] for name in op.inputs):
        to = request.ways.get(part.name)
        is_elsewhere = to and op.name not in to and isinstance(part.result, Answer)
        read.append(part._replace(result=ABSENT) if is_elsewhere else part)
    return read


def in_laps(
    case: Case, request: RequestSpec, parts: dict[str, Part]
) -> Iterator[tuple[OpSpec, list[Part]]]:
    """Yield the Ops in the order of the graph with their inputs; Ops in a loop again, for each lap
    of the request."""
    for place, op in enumerate(case.ops):
        yield op, read_by(op, request, parts)
        if op.loops_to:
            again = below(case.ops[: place + 1], op.loops_to)
            for lap in range(request.laps):
                if not isinstance(parts[op.name].result, Answer):
                    break
                if lap == op.max_loops:
                    parts[op.name] = Part(op.name, Failure(LOST, "which is its max_loops"))
                    break
                for each in below(case.ops, op.loops_to):  # outside the loop, in this lap
                    is_beside = each in case.ops[place + 1 :] and parts.keys() >= {*each.inputs}
                    if is_beside and request.ways.get(each.name, ()) is None:
                        yield each, read_by(each, request, parts)
                yield case.op(op.loops_to), [parts[op.name]]
                for each in again:
                    yield each, read_by(each, request, parts)
        if not case.is_loop(op):
            continue
        (target,) = op.jumps_to
        ring = ring_of(case.ops, op.name, target)
        for _ in range(request.laps):
            if not isinstance(parts[op.name].result, Answer):
                break
            parts[target] = parts[op.name]
            for each in case.ops:
                if each.name in ring:
                    yield each, read_by(each, request, parts)


def below(ops: Sequence[OpSpec], top: str) -> list[OpSpec]:
    """Return the Ops that an Op's answers lead to."""
    names, found = {top}, []
    for op in ops:
        if names & set(op.inputs):
            names.add(op.name)
            found.append(op)
    return found


def ring_of(ops: Sequence[OpSpec], jumper: str, target: str) -> set[str]:
    """Return the Ops that run again after a jump back: all between both, and the jumper."""
    below, above = {target}, {jumper}
    for op in ops:
        if below & set(op.inputs):
            below.add(op.name)
    for op in reversed(ops):
        if op.name in above:
            above |= set(op.inputs)
    return (below & above | {jumper}) - {target}


def at_op(
    case: Case,
    op: OpSpec,
    request: RequestSpec,
    parts: list[Part],
    choose: Choose,
    sheds: bool = False,
) -> tuple[Result, bool]:
    """Return an Op's result, and whether it certainly comes after a jump."""
    joined = joined_parts(op, parts, choose)
    is_late = any(part.is_late for part in joined)
    passed_on = _passed_on(joined)
    if passed_on is not None:
        return passed_on, is_late
    if sheds and choose([False, True]):
        return Failure(OVERLOADED), is_late
    struck = strike(case, op, request, choose)
    return (struck if struck is not None else Answer(value(op, request, joined))), is_late


def joined_parts(op: OpSpec, parts: list[Part], choose: Choose) -> list[Part]:
    """Return the inputs that an Op waits for. A jumper that it also reads counts once."""
    by_name: dict[str, Part] = {}
    for part in parts:
        if part.name not in by_name or isinstance(part.result, Answer):
            by_name[part.name] = part
    good = [part for part in by_name.values() if isinstance(part.result, Answer)]
    if op.first_arrival and good:
        return [choose(good)]
    present = [part for part in by_name.values() if part.result != ABSENT]
    return present or list(by_name.values())


def _passed_on(parts: list[Part]) -> Result | None:
    """Return the result of an Op that does not run: one of its inputs hangs or has failed."""
    results = [part.result for part in parts]
    if NEVER in results:
        return NEVER
    failures = (result for result in results if isinstance(result, Failure))
    return next(failures, ABSENT if ABSENT in results else None)  # then all are absent


def is_jumping(case: Case, op: OpSpec, request: RequestSpec, choose: Choose) -> bool:
    """Whether it jumps ahead. The oldest request of a batch decides for the batch."""
    if not op.jumps_to or case.is_loop(op):
        return False
    own = op.name in request.jumps
    others = [other for other in case.requests if other.number != request.number]
    is_swayed = op.is_batched and any((op.name in other.jumps) != own for other in others)
    return bool(choose([own, not own])) if is_swayed else own


# Faults -------------------------------------------------------------------------------------


def strike(case: Case, op: OpSpec, request: RequestSpec, choose: Choose) -> Result | None:
    """Return the result of a request with faults at an Op; None: it is processed."""
    fault = request.faults.get(op.name)
    around = _neighbours(case, op, request) if op.is_batched else []
    options: list[Result | None]
    kind = fault.kind if fault is not None else ""
    if kind not in EARLY and is_too_large(op, request):
        kind, options = "too large", [Failure(INPUT, "batch-size must be <=")]
    elif kind == "":
        options = [None]
    elif kind == "stuck":
        return NEVER
    elif kind in RAISES:
        options = [_raised(kind, op, request)]
    else:
        options = _retried(case, op, request, around)
    for other in around:
        if kind not in (*EARLY, "too large") or _takes_the_worker(op, other):
            options += _shared(op, other)
    return choose(list(dict.fromkeys(options)))


def is_too_large(op: OpSpec, request: RequestSpec) -> bool:
    """Whether a request has more samples than an execution may get."""
    shape = request.shape(op.name)
    is_fed = op.has_process and shape.kind != "skip"
    return is_fed and 0 < op.max_batch_size < max(shape.rows, default=0)


def _neighbours(case: Case, op: OpSpec, request: RequestSpec) -> list[RequestSpec]:
    """Return the other requests that have a fault at this Op."""
    others = (other for other in case.requests if other.number != request.number)
    return [other for other in others if op.name in other.faults]


def _raised(kind: str, op: OpSpec, request: RequestSpec) -> Failure:
    codes = {"product_pre": PRODUCT, "product_process": PRODUCT, "code": OWN_CODE}
    return Failure(codes.get(kind, UNKNOWN), mark(request.number, op.name))


def _retried(
    case: Case, op: OpSpec, request: RequestSpec, around: list[RequestSpec]
) -> list[Result | None]:
    """Return the results of a fault of the first attempts: it may end in time or not."""
    fault = request.faults[op.name]
    if fault.kind == "hang" and op.timeout_s is None:
        return [NEVER]
    failure = {
        "hang": Failure(TIMEOUT, f"[{op.name}]"),
        "crash": Failure(UNKNOWN, f"[{op.name}]"),
        "unavailable": Failure(UNAVAILABLE, mark(request.number, op.name)),
    }[fault.kind]
    if fault.attempts == ALWAYS:
        return [failure]
    kinds = {other.faults[op.name].kind for other in around}
    if fault.attempts < op.retry:
        # A process is lost with all its requests, also before their own call.
        is_robbed = op.workers == "process" and "hang" in kinds
        return [None, failure] if is_robbed else [None]
    is_alone = sum(len(each.faults) for each in case.requests) == 1
    if is_alone and not op.is_batched and not request.laps:
        rounds = case.dag_retry if fault.kind == "hang" else 1
        return [None] if fault.attempts < op.retry * rounds else [failure]
    return [None, failure]


def _takes_the_worker(op: OpSpec, other: RequestSpec) -> bool:
    """Whether `other` also affects requests that have failed before `process`."""
    is_hang = other.faults[op.name].kind in ("hang", "stuck")
    return is_hang and (op.workers == "process" or not _is_limited(op, other))


def _is_limited(op: OpSpec, other: RequestSpec) -> bool:
    """Whether the Op's timeout ends the fault of `other`."""
    return other.faults[op.name].kind != "stuck" and op.timeout_s is not None


def _shared(op: OpSpec, other: RequestSpec) -> list[Result]:
    """Return the results that `other`'s fault may cause for a request of the same batch."""
    fault = other.faults[op.name]
    if fault.kind in ("stuck", "hang") and not _is_limited(op, other):
        return [NEVER]
    if fault.kind == "hang" and fault.attempts >= op.retry:
        # With attempts left, each request of the batch runs again alone.
        return [] if op.retry > 1 else [Failure(TIMEOUT, f"[{op.name}]")]
    if fault.kind == "unavailable" and fault.attempts >= op.retry:
        return [Failure(UNAVAILABLE, mark(other.number, op.name))]
    return []


# Time -----------------------------------------------------------------------------------------

_STUCK_S = 1.0  # the least time for a worker that no request waits for
_STUCK_FACTOR = 5.0  # ... and this many times the usual time
_RESTART_S = 0.1  # for the restart of a process
_TICK_S = 0.001


def bound_s(case: Case) -> float:
    """Return the longest time of a request: the time of all work of the case, in a row."""
    work_s = sum(map(_work_s, case.requests))
    laps = sum(1 + request.laps for request in case.requests)
    waits_s = sum(op.batching_s or 0.0 for op in case.ops) * laps
    if not any(request.faults for request in case.requests):
        return work_s + waits_s + _TICK_S
    attempts = case.dag_retry * (2 + max(op.retry for op in case.ops))
    hangs_s = sum(
        attempts * (_RESTART_S + _held_s(case, name, fault.kind))
        for request in case.requests
        for name, fault in request.faults.items()
    )
    return attempts * (2 * work_s + waits_s) + hangs_s + _TICK_S


def _work_s(request: RequestSpec) -> float:
    """Return the work of a request; each part of a mini-batch is a call of `process`."""
    return (1 + request.laps) * sum(
        pre + process * max(1, len(request.shape(name).rows)) + post
        for name, (pre, process, post) in request.delays_s.items()
    )


def _held_s(case: Case, name: str, kind: str) -> float:
    """Return how long a fault of this kind may hold a worker of this Op."""
    if kind not in ("hang", "stuck"):
        return 0.0
    timeout_s = next((op.timeout_s or 0.0 for op in case.ops if op.name == name), 0.0)
    limited = [request for request in case.requests if not request.has_time]
    longest_s = max((request.deadline_s or 0.0 for request in limited), default=0.0)
    usual_s = _STUCK_FACTOR * sum(map(_work_s, case.requests))
    return timeout_s + longest_s + max(_STUCK_S, usual_s)


# Values -------------------------------------------------------------------------------------


def value(op: OpSpec, request: RequestSpec, inputs: list[Part]) -> str:
    """Return the Op's answer: its name, its inputs and its rows."""
    read = ",".join(f"{part.name}={part.result.value}" for part in inputs)
    return squeezed(f"{op.name}({read})r{request.number}{model_text(op, request)}")


def model_text(op: OpSpec, request: RequestSpec) -> str:
    """Return the result of `process` for the request's parts; "" without `process`."""
    if not op.has_process:
        return ""
    shape = request.shape(op.name)
    if shape.kind == "skip":
        return "skip"
    salted = salt(op.name)
    parts = [
        part_text(op, processed(fed(request.number, part, rows, shape.width), salted), salted)
        for part, rows in enumerate(shape.rows)
    ]
    return f"{shape.kind}{parts}"


def part_text(op: OpSpec, table: list[list[int]], salted: int) -> str:
    """Return one part's result, with a text for each row and a LoD tensor."""
    text = str(table)
    if op.has_texts:
        text += "|" + ",".join(f"T{row[0]}" for row in table)
    if op.has_lod:
        text += "|" + ",".join(
            str(row[0] + 1) for row in table for _ in range(tokens((row[0] - salted) // 3))
        )
    return text


def fed(number: int, part: int, rows: int, width: int) -> list[list[int]]:
    """Return the input table of a request; no number occurs twice in a case."""
    start = number * 1000 + part * 100
    return [[start + row * width + column for column in range(width)] for row in range(rows)]


def processed(table: list[list[int]], salted: int) -> list[list[int]]:
    return [[3 * cell + salted for cell in row] for row in table]


def tokens(cell: int) -> int:
    """Return the number of tokens in the LoD tensor for a row that begins with `cell`."""
    return cell % 3


def salt(name: str) -> int:
    return sum(map(ord, name)) % 97


def squeezed(text: str) -> str:
    """Return `text`, or its head and a digest if it is long."""
    if len(text) <= 100:
        return text
    return f"{text[:40]}~{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
