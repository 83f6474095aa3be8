"""Makes a random case from a seed: graph, configuration, requests and faults.

`Features` has a switch for each capability of the engine, so that a new one, or one with a known
defect, can be left out. The same seed and features give the same case.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace

from fuzz.case import ALWAYS, RAISES, REQUEST, Case, Fault, OpSpec, RequestSpec, Shape
from fuzz.model import below, bound_s, ring_of

_DOORS = ("engine", "http", "grpc", "api")
_ALPHABETS = ("abcdefghijkl", "mnopqrstuvwx", "ABCDEFGHIJKL")  # names of Ops, by pipeline
FUSED = ("off", "on", "on", "switching", "switching")
_BULKS = (20_000, 200_001, 1_000_000)  # bytes; above 16 KiB they go through shared memory
_OF_THE_SERVER = ("dag_retry", "channel_size", "worker_num", "queue_size", "stops_s", "fuse")
_MOST_FIRST_ARRIVALS = 3  # each multiplies the walks of the model


@dataclass(frozen=True)
class Features:
    """The capabilities that cases may use.

    processes: worker processes besides threads, and their crashes.
    faults, cancels, deadlines: of requests. stuck: hangs that no timeout ends.
    """

    processes: bool = True
    faults: bool = True
    stuck: bool = True
    cancels: bool = True
    deadlines: bool = True
    first_arrival: bool = True
    batches: bool = True
    jumps: bool = True
    conditions: bool = True
    channel_size: bool = True
    max_batch_size: bool = True
    scalars: bool = True
    schemas: bool = True
    alone: bool = True
    own_edges: bool = True
    retries: bool = True
    fusing: bool = True
    stops: bool = True
    pipelines: bool = True
    bulk: bool = True
    scale: str = "virtual"  # or "real": smaller cases, and times that a busy machine can keep

    def without(self, *names: str) -> Features:
        known = {field.name for field in fields(self)}
        assert known >= set(names), f"no such features: {set(names) - known}"
        return replace(self, **dict.fromkeys(names, False))


@dataclass(frozen=True)
class _Scale:
    """The largest numbers and times, in seconds. `delays`: the share of Ops that take time."""

    ops: int
    requests: int
    delays: float
    delay_s: float
    timeouts_s: tuple[float, ...]
    deadline_s: tuple[float, float]
    over_s: float
    slack_s: float
    workers: tuple[int, ...]


_SCALES = {
    "virtual": _Scale(
        8, 24, 0.5, 0.1, (0.5, 1.0, 3.0), (0.02, 1.0), 0.3, 0.002, (1, 1, 1, 2, 2, 3, 5, 8)
    ),
    "real": _Scale(5, 80, 0.2, 0.004, (0.6, 1.0), (0.02, 0.5), 0.1, 3.0, (1, 1, 2, 3)),
}


def generate(seed: int, features: Features = Features()) -> Case:
    """Return the case of this seed."""
    case = _Generator(random.Random(seed), features).case(f"seed {seed}")
    if features.pipelines:
        case = _with_siblings(case, seed, features)
    return _with_doors(case, features) if features.scale == "real" else case


def _with_doors(case: Case, features: Features) -> Case:
    """Choose the frontend of each request. Some that come as a form bring a file."""
    dice = random.Random(f"{case.origin} doors")
    has_bulk = features.bulk and not (case.own_edges or case.has_schema)
    requests = []
    for request in case.requests:
        door = "engine" if request.alone_at else _DOORS[request.number % len(_DOORS)]
        if door == "api":  # it cannot carry the caller's number
            bulk = dice.choice((0, 0, *_BULKS)) if has_bulk else 0
            request = replace(request, log_id=0, bulk=bulk)
        requests.append(replace(request, door=door))
    siblings = tuple(_with_doors(sibling, features) for sibling in case.siblings)
    return replace(case, requests=tuple(requests), siblings=siblings)


def _with_siblings(case: Case, seed: int, features: Features) -> Case:
    """Add pipelines to some cases; many of these have a short queue for all pipelines."""
    dice = random.Random(f"seed {seed} pipelines")
    if dice.random() < 0.7:
        return case
    case = replace(case, queue_size=dice.choice((case.queue_size, 4, 8, 16)))
    siblings: list[Case] = []
    for place in range(1, dice.choice((2, 2, 3))):
        origin = f"seed {seed} pipeline {place}"
        sibling = _Generator(random.Random(origin), features, place).case(origin, case)
        first = max(request.number for each in (case, *siblings) for request in each.requests)
        requests = (replace(each, number=each.number + first) for each in sibling.requests)
        siblings.append(replace(sibling, requests=tuple(requests)))
    return replace(case, siblings=tuple(siblings))


def _with_schema(dice: random.Random, case: Case, has_misfits: bool) -> Case:
    """Give some cases a schema for requests, and requests that do not fit it."""
    if dice.random() < 0.7:
        return case
    requests = (
        replace(each, misfit=dice.choice(("x", ".5", " 1")))
        if has_misfits and not each.alone_at and dice.random() < 0.2
        else each
        for each in case.requests
    )
    return replace(case, has_schema=True, requests=tuple(requests))


class _Generator:
    def __init__(self, rng: random.Random, features: Features, place: int = 0) -> None:
        self.rng = rng
        self.names = _ALPHABETS[place]
        self.has = features
        self.scale = _SCALES[features.scale]

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def case(self, origin: str, server: Case | None = None) -> Case:
        """Return a case; with `server` it is a further pipeline of that server."""
        ops = self.graph()
        if self.has.jumps and self.chance(0.3):
            ops = self.with_loop(ops) if self.chance(0.3) else self.with_jumps(ops)
        has = self.has
        fuse = random.Random(origin).choice(FUSED) if has.fusing else "off"
        steers = random.Random(f"{origin} conditions")
        is_steered = has.conditions and not any(op.jumps_to for op in ops)
        if is_steered and steers.random() < 0.3:
            ops = _with_goto_loop(steers, ops)
        if has.scalars:
            dice = random.Random(f"{origin} scalars")
            ops = [replace(op, has_scalars=op.has_process and dice.random() < 0.2) for op in ops]
        case = Case(
            ops=tuple(ops),
            requests=(),
            dag_retry=self.rng.choice((1, 1, 1, 2, 3)) if has.retries else 1,
            channel_size=self.rng.choice((0, 0, 1, 1, 2, 3)) if has.channel_size else 0,
            worker_num=self.rng.choice((None, None, None, 1, 2, 4)),
            queue_size=self.rng.choice((4096, 4096, 4096, 4096, 1, 3)),
            own_edges=has.own_edges and self.chance(0.2),
            stops_s=self._stops_s(),
            fuse=fuse,
            origin=origin,
        )
        if server is not None:
            case = replace(case, **{name: getattr(server, name) for name in _OF_THE_SERVER})
        count = self.rng.randint(1, self.scale.requests)
        requests = [self.request(case, number) for number in range(1, count + 1)]
        if is_steered:
            requests = _steered(steers, case, requests)
        if has.faults and self.chance(0.8):
            for _ in range(self.rng.choice((1, 2, 3, 5, 8))):
                self.strike(case, requests)
        case = replace(case, requests=tuple(requests))
        if has.schemas and not case.own_edges:
            case = _with_schema(
                random.Random(f"{origin} schema"), case, self.has.scale == "virtual"
            )
        if not has.deadlines or may_starve(case):
            return case
        fair_s = round(bound_s(case) * 1.01 + self.scale.slack_s, 3)
        return replace(case, requests=tuple(self._fair(each, fair_s) for each in requests))

    def _stops_s(self) -> float | None:
        if self.has.scale != "real" or not self.has.stops or not self.chance(0.1):
            return None
        return round(self.rng.uniform(0.0, 2 * self.scale.over_s), 3)

    def _fair(self, request: RequestSpec, deadline_s: float) -> RequestSpec:
        """Give some requests a deadline that the server has to meet."""
        hangs = any(fault.kind in ("hang", "stuck") for fault in request.faults.values())
        if request.deadline_s is not None or hangs or self.chance(0.7):
            return request
        return replace(request, deadline_s=deadline_s, has_time=True)

    # The graph ----------------------------------------------------------------------------

    def graph(self) -> list[OpSpec]:
        count = self.rng.randint(1, self.scale.ops)
        names = self.rng.sample(self.names, count)
        kind = self.rng.choice(("thread", "process", "mixed")) if self.has.processes else "thread"
        known = [REQUEST]
        inputs: list[list[str]] = []
        for name in names:
            wanted = self.rng.choice((1, 1, 1, 2, 2, 3))
            recent = known[-3:] if self.chance(0.7) else known
            inputs.append(self.rng.sample(recent, min(wanted, len(recent))))
            known.append(name)
        read = {name for each in inputs for name in each}
        inputs[-1] += [name for name in names[:-1] if name not in read]
        for each in inputs:
            self.rng.shuffle(each)
        free = _MOST_FIRST_ARRIVALS
        ops = []
        for name, producers in zip(names, inputs, strict=True):
            is_first = self.has.first_arrival and len(producers) > 1 and free and self.chance(0.35)
            free -= bool(is_first)
            ops.append(self.op(name, tuple(producers), bool(is_first), kind))
        return ops

    def op(self, name: str, inputs: tuple[str, ...], is_first: bool, kind: str) -> OpSpec:
        rng, has = self.rng, self.has
        batch_size = rng.choice((1, 1, 2, 3, 8)) if has.batches else 1
        return OpSpec(
            name=name,
            inputs=inputs,
            has_process=self.chance(0.8),
            first_arrival=is_first,
            workers=rng.choice(("thread", "process")) if kind == "mixed" else kind,
            concurrency=rng.choice(self.scale.workers),
            batch_size=batch_size,
            batching_s=rng.choice((None, 0.005, 0.05)) if batch_size > 1 else None,
            adaptive=self.chance(0.3),
            timeout_s=rng.choice((None, *self.scale.timeouts_s)),
            retry=rng.choice((1, 1, 2, 3)) if has.retries else 1,
            max_batch_size=self._most_samples(batch_size),
            has_lod=self.chance(0.15),
            has_texts=self.chance(0.15),
            has_bulk=self.chance(0.15),
            is_async=has.scale == "real" and self.chance(0.15),
        )

    def _most_samples(self, batch_size: int) -> int:
        if not self.has.max_batch_size or batch_size == 1 or self.chance(0.7):
            return 0
        return self.rng.choice((3, 4, 8))

    def with_jumps(self, ops: list[OpSpec]) -> list[OpSpec]:
        """Let one Op jump over a part of the graph that no other Op feeds or reads; or rarely to
        any later Op, so that Ops run although they were jumped over, or wait for nothing."""
        pairs = [
            (op.name, target.name)
            for index, op in enumerate(ops)
            for target in ops[index + 1 :]
            if self.chance(0.1) or is_jump_clear(ops, op.name, target.name)
        ]
        if not pairs:
            return ops
        jumper, target = self.rng.choice(pairs)
        targets = {target}
        if self.chance(0.2):
            targets.add(self.rng.choice([other for name, other in pairs if name == jumper]))
        given = tuple(name for name in (op.name for op in ops) if name in targets)
        return [replace(op, jumps_to=given) if op.name == jumper else op for op in ops]

    def with_loop(self, ops: list[OpSpec]) -> list[OpSpec]:
        """Let one Op jump back, where no other Op feeds or reads the Ops that run again."""
        pairs = [
            (op.name, target.name)
            for index, op in enumerate(ops)
            for target in ops[:index]
            if is_loop_clear(ops, op.name, target.name)
        ]
        if not pairs:
            return ops
        jumper, target = self.rng.choice(pairs)
        loop = {"jumps_to": (target,), "batch_size": 1, "batching_s": None, "max_batch_size": 0}
        return [replace(op, **loop) if op.name == jumper else op for op in ops]

    # Requests -----------------------------------------------------------------------------

    def request(self, case: Case, number: int) -> RequestSpec:
        rng, has = self.rng, self.has
        low, high = self.scale.deadline_s
        tight = round(rng.uniform(low, high), 3)
        return RequestSpec(
            number=number,
            at_s=self.arrival_s(),
            deadline_s=tight if has.deadlines and self.chance(0.15) else None,
            leaves_s=round(rng.uniform(0.0, high), 3) if has.cancels and self.chance(0.1) else None,
            alone_at=rng.choice(case.ops).name if has.alone and self.chance(0.06) else "",
            log_id=rng.randint(1, 2**40),
            shapes={op.name: self.shape(op) for op in case.ops if op.has_process},
            delays_s=self.delays(case),
            laps=rng.choice((0, 1, 1, 2)) if any(map(case.is_loop, case.ops)) else 0,
            jumps=frozenset(op.name for op in case.ops if op.jumps_to and self.chance(0.5)),
        )

    def arrival_s(self) -> float:
        """Return a time: many requests come at one of two times, the others at any."""
        if self.chance(0.6):
            return self.rng.choice((0.0, self.scale.over_s))
        return round(self.rng.uniform(0.0, self.scale.over_s), 3)

    def shape(self, op: OpSpec) -> Shape:
        rng = self.rng
        kind = rng.choice(("rows", "rows", "rows", "rows", "rows", "rows", "mini", "skip"))
        most = 5 if self.chance(0.05) else min(5, op.max_batch_size or 5)
        count = rng.randint(0, 3) if kind == "mini" else 1
        least = 0 if self.chance(0.05) else 1
        return Shape(
            kind=kind,
            rows=tuple(rng.randint(least, most) for _ in range(count)),
            width=rng.choice((1, 1, 1, 2)),
            dtype=rng.choice(("int64", "int64", "int64", "float32")),
        )

    def delays(self, case: Case) -> dict[str, tuple[float, float, float]]:
        most = self.scale.delay_s
        delays = {}
        for name in (*(op.name for op in case.ops), REQUEST):
            if self.chance(self.scale.delays):
                pre, process, post = (
                    round(self.rng.uniform(0.0, most), 4) if self.chance(0.5) else 0.0
                    for _ in range(3)
                )
                delays[name] = (pre, process, post)
        return delays

    # Faults -------------------------------------------------------------------------------

    def strike(self, case: Case, requests: list[RequestSpec]) -> None:
        """Add a fault, if there is a place for it."""
        rng = self.rng
        struck = [place for place, request in enumerate(requests) if request.faults]
        index = rng.choice(struck) if struck and self.chance(0.4) else rng.randrange(len(requests))
        request = requests[index]
        if case.own_edges and self.chance(0.2) and not request.alone_at:
            fault = Fault(rng.choice(("raise_pre", "raise_post")))
            requests[index] = _struck(request, REQUEST, fault)
            return
        op = rng.choice(_racers(case.ops) or case.ops) if self.chance(0.4) else rng.choice(case.ops)
        kinds = ["raise_pre", "product_pre", "raise_post"]
        if op.has_process:
            kinds += [*RAISES, "unavailable", "unavailable"]
            if op.workers == "process":
                kinds += ["crash"] * (8 if self.has.scale == "real" else 3)
            if op.timeout_s is not None or self.has.stuck:
                kinds += ["hang"] * 3
        if self.has.stuck:
            kinds += ["stuck"] * 2
        kind = rng.choice(kinds)
        back_s = None if self.chance(0.5) else round(rng.uniform(3.5, 6.0), 3)
        fault = Fault(kind, rng.choice((1, 1, 2, ALWAYS)), back_s)
        request = _called(request, op.name) if kind not in ("stuck", "raise_post") else request
        if kind == "stuck" or (kind == "hang" and op.timeout_s is None):
            # Only its own deadline can end it; the same goes for the requests of its batch.
            requests[index] = self._limited(request)
            if op.is_batched:
                requests[:] = map(self._limited, requests)
            request = requests[index]
            fault = replace(fault, back_s=None, attempts=ALWAYS)
        requests[index] = _struck(request, op.name, fault)

    def _limited(self, request: RequestSpec) -> RequestSpec:
        if request.deadline_s is not None:
            return request
        return replace(request, deadline_s=round(self.rng.uniform(*self.scale.deadline_s), 3))


def _with_goto_loop(rng: random.Random, ops: list[OpSpec]) -> list[OpSpec]:
    """Let one Op loop to itself, or to an Op that leads to it."""
    pairs = [
        (op.name, target.name)
        for index, op in enumerate(ops)
        for target in ops[: index + 1]
        if is_goto_loop_clear(ops, op.name, target.name)
    ]
    if not pairs:
        return ops
    looper, target = rng.choice(pairs)
    most = rng.choice((1, 100, 100))
    return [replace(op, loops_to=target, max_loops=most) if op.name == looper else op for op in ops]


def _steered(rng: random.Random, case: Case, requests: list[RequestSpec]) -> list[RequestSpec]:
    """Let requests of some cases take only some paths, end early, or loop."""
    share = rng.choice((0.0, 0.0, 0.1, 0.3))
    looped = _looped(case)
    found = []
    for request in requests:
        ways: dict[str, tuple[str, ...] | None] = {}
        for op in case.ops:
            if op.name in looped or rng.random() >= share:
                continue
            readers = case.readers(op.name)
            some = tuple(rng.sample(readers, rng.randint(0, len(readers))))
            odd: tuple[tuple[str, ...] | None, ...] = (None, ("nowhere",))
            ways[op.name] = rng.choice(odd) if rng.random() < 0.2 else some
        laps = rng.choice((0, 1, 1, 2)) if looped else request.laps
        found.append(replace(request, ways=ways, laps=laps))
    return found


def _looped(case: Case) -> set[str]:
    """Return the Ops between one that loops and its target: there a request counts its laps."""
    loops = [op for op in case.ops if op.loops_to]
    return {
        name for op in loops for name in (op.name, *ring_of(case.ops, op.name, op.loops_to))
    } | {op.loops_to for op in loops}


def _racers(ops: tuple[OpSpec, ...]) -> list[OpSpec]:
    """Return the Ops whose answer is ignored if the answer of another Op comes first."""
    raced = {name for op in ops if op.first_arrival for name in op.inputs}
    return [op for op in ops if op.name in raced]


def _struck(request: RequestSpec, place: str, fault: Fault) -> RequestSpec:
    return replace(request, faults={**request.faults, place: fault})


def _called(request: RequestSpec, op: str) -> RequestSpec:
    """Give a request a shape for which `process` is called, with rows that identify it."""
    shape = request.shape(op)
    rows = tuple(max(1, count) for count in shape.rows) or (1,)
    kind = "rows" if shape.kind == "skip" else shape.kind
    return replace(request, shapes={**request.shapes, op: replace(shape, kind=kind, rows=rows)})


def may_starve(case: Case) -> bool:
    """Whether a request may wait, without a limit, for one that hangs in its batch."""
    faults = [item for request in case.requests for item in request.faults.items()]
    limits = {op.name: op.timeout_s for op in case.ops}
    return any(
        kind == "stuck" or (kind == "hang" and limits.get(name) is None)
        for name, kind in ((name, fault.kind) for name, fault in faults)
    )


def is_jump_clear(ops: list[OpSpec], jumper: str, target: str) -> bool:
    """Whether no Op waits after a jump: the jumper alone feeds the Ops that it passes over, and
    only they read each other, apart from the target's answer."""
    inputs = {op.name: set(op.inputs) for op in ops}
    readers = {name: {op.name for op in ops if name in op.inputs} for name in inputs}
    over = {jumper}
    for op in ops:  # in the graph's order: the Ops that only the jumper leads to
        if op.name != jumper and inputs[op.name] <= over:
            over.add(op.name)
    # Of these only the Ops that lead to the target.
    leads = {target}
    for op in reversed(ops):
        if readers[op.name] & leads:
            leads.add(op.name)
    over &= leads | {jumper}
    if target not in over:
        return False
    return all(readers[name] <= over for name in over if name != target)


def is_goto_loop_clear(ops: list[OpSpec], looper: str, target: str) -> bool:
    """Whether an Op may loop to another one: all producers of a race within the loop run again,
    and no race outside takes an answer of an earlier lap."""
    again = {target, *(op.name for op in below(ops, target))}
    ring = ring_of(ops, looper, target) | {target}
    races = [op for op in ops if op.first_arrival and op.name in again - {target}]
    return looper in again and all({op.name, *op.inputs} <= ring for op in races)


def is_loop_clear(ops: list[OpSpec], jumper: str, target: str) -> bool:
    """Whether only Ops run again that wait for no other Op and that no other Op reads."""
    ring = ring_of(ops, jumper, target)
    inputs = {op.name: set(op.inputs) for op in ops}
    read = {name: {op.name for op in ops if name in op.inputs} for name in inputs}
    if not read[target] & ring:
        return False
    is_fed = all(inputs[name] <= ring | {target} for name in ring)
    return is_fed and all(read[name] <= ring for name in (ring | {target}) - {jumper})
