"""Random graphs with Ops that have sequences, for `fuzz.sequences`, and a judge of the endings.

An Op with sequences keeps, in each slot of each worker's copy, the numbers of the requests of the
sequence so far, and puts them into every answer. So an answer shows whether its sequence was
complete, in order and not mixed with others.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from pipeline import Goto, Op, RequestOp, ResponseOp
from pipeline.data import RequestInfo
from pipeline.engine.request import RequestTarget

READ = "@DAGExecutor"
MOST_OPS, MOST_IDS, MOST_STEPS = 6, 8, 7
CUT, KEPT = "cut", "kept"
"""An Op that makes requests alike, and an Op after it that has a cache of its answers."""

KILLERS = ("hang", "crash")
"""Faults that cost a worker."""


_SEEN = {"input_name": "seen", "output_name": "next", "data_type": "INT64", "dims": [-1]}
_CONTROLS = (
    {"name": "START", "kind": "start", "int32_false_true": [0, 1]},
    {"name": "END", "kind": "end", "fp32_false_true": [0, 1]},
    {"name": "READY", "kind": "ready", "bool_false_true": [False, True]},
)


@dataclass(frozen=True)
class Node:
    """One Op; with `strategy` it has sequences. `settings`: the rest of its configuration.

    `has_state`: it declares its memory as `state`; `is_kept`: the server has a checkpoint of it.
    """

    name: str
    inputs: tuple[str, ...]
    strategy: str = ""
    workers: str = "thread"
    concurrency: int = 1
    batch_size: int = 1
    timeout_s: float | None = None
    max_idle_ms: int = 60_000
    slots: int = 0
    has_state: bool = False
    is_kept: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "concurrency": self.concurrency,
            "batch_size": self.batch_size,
            "workers": self.workers,
            **self.settings,
        }
        if self.timeout_s is not None:
            found["timeout"] = round(self.timeout_s * 1000)
        if self.strategy:
            found["sequence"] = {"strategy": self.strategy, "max_idle_ms": self.max_idle_ms}
            found["sequence"] |= self.settings.get("sequence", {})
        if self.has_state:
            found["sequence"] |= {"state": [_SEEN], "checkpoint": self.is_kept}
        return found


@dataclass(frozen=True)
class Step:
    """One request, which comes `at_s`; with `follows` this time counts from the end of the
    request before it with the same id.

    `is_word`: it only ends its sequence. `faults`, `delays_s` and `ways` are by Op; `ways` has the
    readers that get the answer of an Op, where not all do.
    """

    number: int
    id: int | str = 0
    start: bool = False
    end: bool = False
    at_s: float = 0.0
    follows: bool = False
    deadline_s: float | None = None
    leaves_s: float | None = None
    timeout_us: int = 0
    priority: int = 0
    is_word: bool = False
    faults: dict[str, str] = field(default_factory=dict)
    delays_s: dict[str, float] = field(default_factory=dict)
    ways: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def target(self) -> RequestTarget:
        if self.is_word:
            words = {"sequence_id": self.id, "sequence_end": True}
            return RequestTarget(payload=words, wants_response=False)
        info = RequestInfo(
            sequence_id=self.id,
            sequence_start=self.start,
            sequence_end=self.end,
            parameters={"timeout": self.timeout_us} if self.timeout_us else {},
            priority=self.priority,
        )
        return RequestTarget(payload={"number": self.number}, wants_response=False, info=info)


@dataclass(frozen=True)
class Case:
    """A whole case; `fuse` and `origin` are for `fuzz.pacing`.

    `lasting_ms`: `max_idle_ms` of an Op whose sequences are not reaped while requests come.
    `kills`: (time, Op) of the kills of workers, whether idle or busy.
    """

    nodes: tuple[Node, ...]
    steps: tuple[Step, ...]
    worker_num: int | None = None
    channel_size: int = 0
    queue_size: int = 4096
    lasting_ms: int = 60_000
    kills: tuple[tuple[float, str], ...] = ()
    fuse: str = "off"
    origin: str = ""

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def readers(self, name: str) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes if name in node.inputs)

    @property
    def stateful(self) -> list[Node]:
        return [node for node in self.nodes if node.strategy]

    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "queue_size": self.queue_size,
            "dag": {
                "channel_size": self.channel_size,
                "fuse": "off" if self.fuse == "off" else "auto",
            },
            "op": {node.name: node.config() for node in self.nodes},
        }
        if self.worker_num is not None:
            found["worker_num"] = self.worker_num
        if any(node.name == KEPT for node in self.nodes):
            found["cache"] = {"local": {"size": 1 << 20}}
        return found

    def only(self, numbers: Iterable[int]) -> Case:
        return replace(self, steps=tuple(step for step in self.steps if step.number in numbers))


# Generator -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """The times of a case, in seconds; `lasting_ms` as in Case."""

    delay_s: float
    over_s: float
    timeout_s: float
    deadline_s: tuple[float, float]
    idle_ms: int
    lasting_ms: int


VIRTUAL = Scale(0.05, 0.3, 0.5, (0.02, 0.6), 30, 60_000)
REAL = Scale(0.005, 0.2, 0.4, (0.02, 0.4), 60, 3000)


def made_case(seed: int, scale: Scale = VIRTUAL, without: Sequence[str] = ()) -> Case:
    """Return the case of a seed. `without`: "processes", "faults", "leaves", "idle", "ways",
    "state", "priorities", "caches".
    """
    return _Maker(random.Random(f"sequences {seed}"), scale, without).case(f"seed {seed}")


class _Maker:
    def __init__(self, rng: random.Random, scale: Scale, without: Sequence[str]) -> None:
        self.rng = rng
        self.scale = scale
        self.without = without
        self.is_calm = rng.random() < 0.35  # then every ending is known in advance

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def may(self, what: str, share: float) -> bool:
        return what not in self.without and not self.is_calm and self.chance(share)

    def case(self, origin: str) -> Case:
        rng = self.rng
        case = Case(
            nodes=tuple(self.graph()),
            steps=(),
            worker_num=rng.choice((None, None, 1, 2, 5)),
            channel_size=rng.choice((0, 0, 0, 1, 3)),
            queue_size=3 if self.may("faults", 0.05) else 4096,
            lasting_ms=self.scale.lasting_ms,
            fuse=rng.choice(("off", "on", "switching")),
            origin=origin,
        )
        steps = self.steps(case)
        if self.may("faults", 0.6):
            for _ in range(rng.choice((1, 2, 4))):
                place = rng.randrange(len(steps))
                steps[place] = self.struck(case, steps[place])
        kills = tuple(self.kills(case)) if "faults" not in self.without else ()
        dice = random.Random(f"company of {origin}")
        case = replace(case, steps=tuple(steps), kills=kills)
        case = case if "priorities" in self.without else _with_priorities(dice, case)
        return case if "caches" in self.without else _with_kept_answers(dice, case)

    def kills(self, case: Case) -> list[tuple[float, str]]:
        """Return the kills of workers; in calm cases only harmless ones.

        At most two: at the third kill the engine gives up a request that was alone each time.
        """
        rng = self.rng
        mortal = [node for node in case.nodes if node.workers == "process"]
        kept = [node for node in mortal if node.is_kept]
        names = [node.name for node in (kept if self.is_calm else kept or mortal)]
        if not names or not self.chance(0.5):
            return []
        times = [rng.uniform(0, self.scale.over_s) for _ in range(rng.choice((1, 2, 2)))]
        return [(round(at_s, 3), rng.choice(names)) for at_s in times]

    # Ops ----------------------------------------------------------------------------------------

    def graph(self) -> list[Node]:
        rng = self.rng
        names = list("abcdefgh"[: rng.randint(1, MOST_OPS)])
        kept = set(rng.sample(names, min(len(names), rng.choice((1, 1, 1, 2, 2, 3)))))
        kind = rng.choice(("thread", "thread", "process", "mixed"))
        kind = "thread" if "processes" in self.without else kind
        before = [READ]
        nodes: list[Node] = []
        for name in names:
            recent = before[-2:] if self.chance(0.7) else before
            inputs = rng.sample(recent, min(len(recent), rng.choice((1, 1, 2))))
            nodes.append(self.node(name, tuple(inputs), name in kept, kind))
            before.append(name)
        read = {name for node in nodes for name in node.inputs}
        loose = [name for name in names[:-1] if name not in read]
        last = nodes[-1]
        nodes[-1] = replace(last, inputs=tuple(dict.fromkeys((*last.inputs, *loose))))
        return nodes

    def node(self, name: str, inputs: tuple[str, ...], keeps: bool, kind: str) -> Node:
        rng = self.rng
        batch_size = rng.choice((1, 1, 2, 4))
        settings: dict[str, Any] = {}
        node = Node(
            name,
            inputs,
            workers=rng.choice(("thread", "process")) if kind == "mixed" else kind,
            concurrency=rng.choice((1, 2, 3)),
            batch_size=batch_size,
            timeout_s=self.scale.timeout_s if self.may("faults", 0.4) else None,
            slots=batch_size,
            settings=settings,
        )
        if not keeps:
            if batch_size > 1:
                settings["auto_batching_timeout"] = rng.choice((1, 10))
            settings["retry"] = rng.choice((1, 1, 2))
            return node
        strategy, own = rng.choice(("direct", "oldest")), {}
        if self.chance(0.4):
            own["max_queue_delay_ms"] = rng.choice((1, 20))
        if strategy == "direct":
            own["min_slot_utilization"] = rng.choice((0.0, 0.0, 0.5, 1.0))
        else:
            own["max_candidates"] = rng.choice((0, 1, 3, 8))
            sizes = rng.choice(([], [2], [1, 4]))
            own["preferred_batch_sizes"] = [size for size in sizes if size <= batch_size]
        has_state = "state" not in self.without and self.chance(0.5)
        if has_state and self.chance(0.5):
            own["controls"] = rng.sample(_CONTROLS, rng.randint(1, 3))
        settings["sequence"] = own
        slots = own.get("max_candidates") or batch_size
        idle_ms = self.scale.idle_ms if self.may("idle", 0.3) else self.scale.lasting_ms
        node = replace(node, strategy=strategy, slots=slots, max_idle_ms=idle_ms)
        return replace(node, has_state=has_state, is_kept=has_state and self.chance(0.5))

    # Requests -----------------------------------------------------------------------------------

    def steps(self, case: Case) -> list[Step]:
        rng = self.rng
        found: list[Step] = []
        for place in range(rng.randint(1, MOST_IDS)):
            id = rng.choice((place + 1, f"s{place + 1}"))
            found += self.sequence(case, id)
        if self.may("faults", 0.1):
            found.append(Step(0, 0, start=True))
        found.sort(key=lambda step: step.at_s)
        return [replace(step, number=number) for number, step in enumerate(found, 1)]

    def sequence(self, case: Case, id: int | str) -> list[Step]:
        """Return the requests of one id; odd ones start again, or lack a start or an end."""
        rng, over_s = self.rng, self.scale.over_s
        count = rng.choice((1, 2, 3, 5, MOST_STEPS))
        begins_s = rng.choice((0.0, 0.0, round(rng.uniform(0, over_s), 3)))
        pace = rng.choice(("burst", "burst", "paced", "follows"))
        pause_s = rng.choice((0.001, 0.02, 0.05))
        is_odd = self.chance(0.3)
        steps = []
        for place in range(count):
            start, end = place == 0, place == count - 1
            if is_odd and self.chance(0.2):
                start = not start
            if is_odd and self.chance(0.2):
                end = not end
            at_s = begins_s + (place * pause_s if pace == "paced" else 0.0)
            at_s = pause_s if pace == "follows" and place else at_s
            step = Step(0, id, start, end, round(at_s, 4), pace == "follows" and place > 0)
            steps.append(self.with_whims(case, step))
        if self.chance(0.15):
            last = steps[-1]
            steps[-1] = replace(last, end=False)
            word = Step(0, id, end=True, at_s=last.at_s, follows=last.follows, is_word=True)
            steps.append(word)
        return steps

    def with_whims(self, case: Case, step: Step) -> Step:
        rng, scale = self.rng, self.scale
        delays_s = {
            node.name: round(rng.uniform(0, scale.delay_s), 4)
            for node in case.nodes
            if self.chance(0.5)
        }
        ways = {}
        for node in case.nodes[:-1]:
            readers = case.readers(node.name)
            if len(readers) > 1 and "ways" not in self.without and self.chance(0.1):
                ways[node.name] = tuple(rng.sample(readers, rng.randint(1, len(readers) - 1)))
        low, high = scale.deadline_s
        return replace(
            step,
            delays_s=delays_s,
            ways=ways,
            deadline_s=round(rng.uniform(low, high), 3) if self.may("leaves", 0.05) else None,
            leaves_s=round(rng.uniform(0, high), 3) if self.may("leaves", 0.05) else None,
            timeout_us=rng.choice((1000, 50_000)) if self.may("leaves", 0.05) else 0,
        )

    def struck(self, case: Case, step: Step) -> Step:
        node = self.rng.choice(case.nodes)
        kinds = ["raise", "raise"]
        if step.is_word:
            return step
        # Without declared state a slot whose start is lost keeps the state of another sequence.
        if not (node.strategy and step.start) or node.has_state:
            kinds.append("raise_pre")
        if node.timeout_s is not None:
            kinds += ["hang"] * 2
        if node.workers == "process":
            kinds += ["crash"] * 3
        return replace(step, faults={**step.faults, node.name: self.rng.choice(kinds)})


def _with_priorities(dice: random.Random, case: Case) -> Case:
    """Let requests overtake each other by priority before Ops with sequences."""
    levels = {"priority_levels": 3, "default_priority_level": 2}
    nodes = []
    for node in case.nodes:
        if not node.strategy and dice.random() < 0.3:
            settings = {**node.settings, "batching": "dynamic", "dynamic_batching": levels}
            settings.pop("auto_batching_timeout", None)
            node = replace(node, settings=settings)
        nodes.append(node)
    steps = [replace(step, priority=dice.choice((0, 1, 2, 3))) for step in case.steps]
    return replace(case, nodes=tuple(nodes), steps=tuple(steps))


def _with_kept_answers(dice: random.Random, case: Case) -> Case:
    """Let one of the Ops also read answers of a cache: some come at once, others do not."""
    if dice.random() < 0.6:
        return case
    # This Op reads the request itself, wherever else the request goes.
    reader = dice.choice([node for node in case.nodes if READ in node.inputs]).name
    kept = Node(KEPT, (CUT,), concurrency=2, settings={"response_cache": True})
    others = (
        replace(node, inputs=(*node.inputs, KEPT)) if node.name == reader else node
        for node in case.nodes
    )
    return replace(case, nodes=(Node(CUT, (READ,)), kept, *others))


# Ops ----------------------------------------------------------------------------------------------


class World(Protocol):
    """Time as it passes for an Op; see `strands.StrandWorld`."""

    def sleep(self, seconds: float) -> None: ...
    def hang(self, seconds: float | None) -> None: ...
    def crash(self) -> None: ...


@dataclass
class Script:
    """The part of a case that its Ops need. `complain` receives defects of the engine."""

    case: Case
    world: World
    complain: Any

    def __post_init__(self) -> None:
        self.steps = {step.number: step for step in self.case.steps}


class StepOp(Op):
    """Passes a number on, with the reports of the Ops with sequences before it."""

    script: Script
    spec: Node

    def __init__(self, spec: Node, script: Script, inputs: list[Op]) -> None:
        super().__init__(spec.name, inputs)
        self.spec = spec
        self.script = script

    def preprocess(self, input_dicts):
        number = int(next(part for part in input_dicts.values() if "number" in part)["number"])
        if self.script.steps[number].faults.get(self.name) == "raise_pre":
            raise ValueError(mark(number, self.name))
        return {"number": np.array([number])}

    def process(self, feed_batch):
        numbers = feed_batch[0]["number"].tolist()
        self.act(numbers)
        return {"number": feed_batch[0]["number"], "told": [""] * len(numbers)}

    def act(self, numbers: Sequence[int]) -> None:
        """Take the time of these requests, and act out their faults."""
        world, steps = self.script.world, [self.script.steps[number] for number in numbers]
        if len(numbers) > self.spec.batch_size:
            self.script.complain(f"{self.name}: {len(numbers)} requests in a batch")
        world.sleep(max(step.delays_s.get(self.name, 0.0) for step in steps))
        for step in steps:
            fault = step.faults.get(self.name)
            if fault == "crash":
                world.crash()
            if fault == "hang":
                world.hang(None)
            if fault == "raise":
                raise ValueError(mark(step.number, self.name))

    def postprocess(self, input_dicts, fetch_data):
        number = int(fetch_data["number"][0])
        told: dict[str, str] = {}
        for part in input_dicts.values():
            if "same" in part:
                if part["same"] != _same(number) * 3:
                    self.script.complain(f"{self.name}: {number} gets {part}, kept for another")
                continue
            if int(part["number"]) != number:
                self.script.complain(f"{self.name}: {number} gets what is of {part['number']}")
            told |= json.loads(part.get("told", "{}"))
        if fetch_data["told"][0]:
            told[self.name] = fetch_data["told"][0]
        answer = {"number": number, "told": json.dumps(told)}
        to = self.script.steps[number].ways.get(self.name)
        return answer if to is None else Goto(answer, *to)


class CutOp(StepOp):
    """Reduces a request to a number that other requests also have."""

    def preprocess(self, input_dicts):
        ((_, asked),) = input_dicts.items()
        return {"same": _same(int(asked["number"]))}

    def postprocess(self, input_dicts, fetch_data):
        return fetch_data

    process = Op.process


class KeptOp(StepOp):
    """Takes time; its answers are in a cache."""

    def preprocess(self, input_dicts):
        ((_, asked),) = input_dicts.items()
        return asked

    def process(self, feed_batch):
        same = feed_batch[0]["same"]
        self.script.world.sleep(0.02 * (1 + same))
        return {"same": same * 3}

    def postprocess(self, input_dicts, fetch_data):
        return fetch_data


def _same(number: int) -> int:
    return number % 3


class KeepingOp(StepOp):
    """An Op with sequences, which reports the requests of each. Each copy has its own seats.

    `seats`: by slot, (the id, the numbers of its requests).
    """

    seats: dict[int, tuple[Any, list[int]]]

    def init_op(self):
        self.seats = {}

    def __copy__(self) -> KeepingOp:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.seats = {}
        return made

    def process(self, feed_batch, *, context):
        numbers, steps = feed_batch[0]["number"].tolist(), [each.sequence for each in context]
        self.check(numbers, steps)
        seats = self.seats
        for number, step in zip(numbers, steps, strict=True):
            if step.start:
                seats[step.slot] = (step.id, [number])
        self.act(numbers)
        told = []
        for number, step in zip(numbers, steps, strict=True):
            id, seen = seats.get(step.slot, (None, []))
            if id != step.id:
                text = f"{number} of {step.id!r} is in slot {step.slot}, where {id!r} is"
                self.script.complain(f"{self.name}: {text}")
            if not step.start:
                seen.append(number)
            told.append(",".join(map(str, seen)))
        return {"number": feed_batch[0]["number"], "told": told}

    def check(self, numbers: Sequence[int], steps: Sequence[Any]) -> None:
        complain, slots = self.script.complain, [step.slot for step in steps]
        for number, step in zip(numbers, steps, strict=True):
            said = self.script.steps[number]
            if (said.id, said.start, said.end) != (step.id, step.start, step.end):
                complain(f"{self.name}: {number} has the context {step}")
        if len(set(slots)) < len(slots) or not set(slots) <= set(range(self.spec.slots)):
            complain(f"{self.name}: a batch has the slots {slots} of {self.spec.slots}")
        if self.spec.strategy == "direct" and slots != sorted(slots):
            complain(f"{self.name}: direct, and a batch has the slots {slots}")


class StatedOp(KeepingOp):
    """An Op with sequences in a declared state: it keeps nothing itself."""

    def process(self, feed_batch, *, context):
        feed, steps = feed_batch[0], [each.sequence for each in context]
        numbers, rows = feed["number"], list(range(len(steps)))
        if len(numbers) > len(steps):  # some are fillers
            rows = [step.slot for step in steps]
            self.check_fillers(feed, rows)
        self.check_controls(feed, rows, steps)
        own = numbers[rows].tolist()
        self.check(own, steps)
        self.act(own)
        told = [""] * len(numbers)
        for row in rows:
            seen = [*feed["seen"][row, 1:].tolist(), int(numbers[row])]
            told[row] = ",".join(map(str, seen))
        following = np.concatenate([feed["seen"], numbers[:, None]], 1)
        return {"number": numbers, "told": told, "next": following}

    def check_fillers(self, feed: Any, rows: Sequence[int]) -> None:
        fillers = [row for row in range(len(feed["number"])) if row not in rows]
        for name in ("number", "seen", "READY"):
            if np.any(feed[name][fillers]):
                self.script.complain(f"{self.name}: fillers {fillers} have {name} {feed[name]}")

    def check_controls(self, feed: Any, rows: Sequence[int], steps: Sequence[Any]) -> None:
        for row, step in zip(rows, steps, strict=True):
            for name, expected in (("START", step.start), ("END", step.end), ("READY", True)):
                if name in feed and bool(feed[name][row, 0]) != expected:
                    self.script.complain(f"{self.name}: {name} of {step} is {feed[name][row]}")
            if step.start and np.any(feed["seen"][row]):
                self.script.complain(f"{self.name}: {step} begins with {feed['seen'][row]}")


def built(case: Case, script: Script) -> tuple[dict[str, StepOp], ResponseOp]:
    """Return the case's Ops by name, and its ResponseOp."""
    made: dict[str, Op] = {READ: RequestOp()}
    for spec in case.nodes:
        kind = StatedOp if spec.has_state else KeepingOp if spec.strategy else StepOp
        kind = {CUT: CutOp, KEPT: KeptOp}.get(spec.name, kind)
        made[spec.name] = kind(spec, script, [made[name] for name in spec.inputs])
    ops = {name: op for name, op in made.items() if isinstance(op, StepOp)}
    return ops, ResponseOp([made[case.nodes[-1].name]])


def mark(number: int, op: str) -> str:
    """Return the mark in the text of an error that a request causes at an Op."""
    return f"<r{number}@{op}>"


# Judge ----------------------------------------------------------------------------


@dataclass
class Ending:
    """How a request ended. kind: "answer", "error", "left", "refused" at once, or "open"."""

    kind: str = "open"
    code: int = 0
    text: str = ""
    told: dict[str, list[int]] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return self.kind == "answer"


class Judge:
    """Checks the endings of a case. `order`: the numbers of the requests as they began.

    The endings of an id without any disturbance are known exactly, by the walk over its requests
    that the scheduler makes. For other ids, each error needs a reason, and each answer's sequence
    has to be complete: it begins with a start, has only its own requests, in order, and a request
    is missing only if its caller got an error.
    """

    def __init__(self, case: Case, order: Sequence[int], endings: dict[int, Ending]) -> None:
        self.case = case
        self.endings = endings
        steps = {step.number: step for step in case.steps}
        self.order = [steps[number] for number in order]
        self.place = {number: place for place, number in enumerate(order)}
        self.by_id: dict[Any, list[Step]] = {}
        for step in self.order:
            self.by_id.setdefault(step.id, []).append(step)
        self.visits = {step.number: self._visited(step) for step in case.steps}
        self.wrong: list[str] = []

    def findings(self) -> list[str]:
        for step in self.case.steps:
            ending = self.endings[step.number]
            if ending.kind == "open":
                self._say(step, "has no end")
        for id, steps in self.by_id.items():
            if id and not self._is_disturbed(steps):
                self._exactly(steps)
            else:
                for step in steps:
                    self._loosely(step, steps)
        return self.wrong

    def _say(self, step: Step, text: str) -> None:
        self.wrong.append(f"request {step.number} of {step.id!r} {text}; {self._ended(step)}")

    def _ended(self, step: Step) -> str:
        ending = self.endings[step.number]
        others = [each.number for each in self.by_id.get(step.id, ())]
        said = ending.told if ending.is_good else f"{ending.code} {ending.text[:200]}"
        return f"{ending.kind} {said}; its id's: {others}"

    # Which Ops ----------------------------------------------------------------------------------

    def _visited(self, step: Step) -> list[str]:
        """Return the Ops that a request reaches without a fault."""
        comes = {READ}
        for node in self.case.nodes:
            if any(
                source in comes and node.name in step.ways.get(source, (node.name,))
                for source in node.inputs
            ):
                comes.add(node.name)
        return [node.name for node in self.case.nodes if node.name in comes]

    def _is_lost_on_the_way(self, step: Step) -> bool:
        return self.case.nodes[-1].name not in self.visits[step.number]

    def _above(self, name: str) -> set[str]:
        """Return the names of all Ops that lead to an Op."""
        node = self.case.node(name)
        found = set(node.inputs) - {READ}
        return found.union(*(self._above(each) for each in found)) if found else found

    def _is_disturbed(self, steps: Sequence[Step]) -> bool:
        case = self.case
        visited = {name for step in steps for name in self.visits[step.number]}
        if case.queue_size < len(case.steps):
            return True
        if any(step.deadline_s or step.leaves_s is not None or step.timeout_us for step in steps):
            return True
        if any(case.node(name).max_idle_ms < case.lasting_ms for name in visited):
            return True
        if any(step.faults or self._is_lost_on_the_way(step) for step in steps):
            return True
        if any(self._is_shared(visited, other) for other in case.steps):
            return True
        if any(name in visited and not case.node(name).is_kept for _, name in case.kills):
            return True
        if len(case.stateful) > 1 and any(step.follows for step in steps) and self._is_any_open():
            return True  # it may be reaped while it waits until another sequence is reaped
        if any(step.ways for step in steps) or len(case.stateful) > 1:
            return not self._is_in_a_row(steps)
        return False

    def _is_shared(self, visited: set[str], other: Step) -> bool:
        """Whether a fault of a request may also affect others at these Ops."""
        faults = {name: fault for name, fault in other.faults.items() if name in visited}
        return any(
            fault not in ("raise_pre", "crash") or not self.case.node(name).is_kept
            for name, fault in faults.items()
        )

    def _is_any_open(self) -> bool:
        """Whether any id has a sequence without an end."""
        return any(not steps[-1].end for id, steps in self.by_id.items() if id)

    def _is_in_a_row(self, steps: Sequence[Step]) -> bool:
        """Whether all Ops with sequences are in a row: none runs after another one has failed."""
        names = [node.name for node in self.case.stateful]
        return all(one in self._above(other) for one, other in itertools.pairwise(names))

    # Exactly ------------------------------------------------------------------------------------

    def _exactly(self, steps: Sequence[Step]) -> None:
        failed: set[int] = set()
        for node in self.case.stateful:
            seen: list[int] = []
            for step in steps:
                if step.is_word:
                    seen = []
                    continue
                is_here = node.name in self.visits[step.number]
                if not is_here or step.number in failed:
                    seen = [] if step.start or step.end else seen
                    continue
                if step.start:
                    seen = []
                elif not seen:
                    failed.add(step.number)
                    continue
                seen = [*seen, step.number]
                told = self.endings[step.number].told.get(node.name)
                if self.endings[step.number].is_good and told != seen:
                    self._say(step, f"should say {seen} of {node.name}")
                if step.end:
                    seen = []
        for step in steps:
            if step.number in failed:
                if (
                    "its first request must have sequence_start"
                    not in self.endings[step.number].text
                ):
                    self._say(step, "should be refused without a start")
            elif not self.endings[step.number].is_good:
                self._say(step, "should be answered")

    # Loosely ------------------------------------------------------------------------------------

    def _loosely(self, step: Step, steps: Sequence[Step]) -> None:
        ending = self.endings[step.number]
        if ending.is_good:
            for name, told in ending.told.items():
                self._is_whole(step, name, told)
            for node in () if step.is_word else self.case.stateful:
                if node.name in self.visits[step.number] and node.name not in ending.told:
                    self._say(step, f"says nothing of {node.name}")
        elif ending.kind == "left":
            if step.leaves_s is None:
                self._say(step, "was cancelled by nobody")
        elif ending.kind in ("error", "refused") and not self._has_reason(step, steps):
            self._say(step, "has no reason for its error")

    def _is_whole(self, step: Step, name: str, told: list[int]) -> None:
        node = self.case.node(name)
        by_number = {each.number: each for each in self.order}
        its = [by_number[number] for number in told]
        if not its or its[-1].number != step.number:
            self._say(step, f"is not the last of what {name} was stepped with")
            return
        if any(each.id != step.id for each in its):
            self._say(step, f"has others' steps at {name}")
        has_lost_start = node.has_state and any(
            each.start
            and self.place[each.number] < self.place[its[0].number]
            and not self.endings[each.number].is_good
            for each in self.by_id[step.id]
        )
        if not (its[0].start or has_lost_start) or any(each.start for each in its[1:]):
            self._say(step, f"does not begin with its only start at {name}")
        if any(each.end for each in its[:-1]):
            self._say(step, f"continues after an end at {name}")
        places = [self.place[each.number] for each in its]
        if places != sorted(places):
            self._say(step, f"is out of order at {name}")
        for each in self.by_id[step.id]:
            between = places[0] < self.place[each.number] < places[-1]
            if between and each not in its and not self._may_be_missing(each, node):
                self._say(step, f"misses {each.number} at {name}, {self._ended(each)}")

    def _may_be_missing(self, step: Step, node: Node) -> bool:
        """Whether a sequence continues at an Op without one of its requests."""
        ending = self.endings[step.number]
        if ending.kind == "refused":
            return True
        if step.start or step.end:  # also if it takes another path
            return False
        if node.name not in self.visits[step.number]:
            return True
        if ending.is_good:
            return False
        killed = {op for op, fault in step.faults.items() if fault in KILLERS}
        above = self._above(node.name)
        if ending.kind == "left" or "deadline passed" in ending.text:
            raised = step.faults.keys() - killed  # maybe before its caller left
            return bool(raised & {node.name, *above})
        is_killed = bool(killed & above) and ending.code in (10000, 6000)
        return not is_killed or any(f"<r{each.number}@" in ending.text for each in self.order)

    def _has_reason(self, step: Step, steps: Sequence[Step]) -> bool:
        """Whether there is a reason for its error."""
        case, ending = self.case, self.endings[step.number]
        text, visits = ending.text, self.visits[step.number]
        if ending.kind == "refused":
            return case.queue_size < len(case.steps) or step.deadline_s is not None
        if "a request needs a sequence_id" in text:
            return not step.id
        if "its first request must have sequence_start" in text:
            return not step.start
        if "lost in the graph" in text:
            return self._is_lost_on_the_way(step)
        for other in case.steps:
            for op, fault in other.faults.items():
                if mark(other.number, op) in text:
                    is_own = other is step
                    is_batch = op in visits and case.node(op).batch_size > 1 and fault == "raise"
                    return is_own or (is_batch and bool(case.node(op).strategy))
        if "timeout of the corresponding sequence" in text:
            return any(each.timeout_us or each.deadline_s for each in steps)
        if "ended the sequence" in text:
            return any(self._is_a_loss(each) for each in steps if each is not step)
        if "deadline passed" in text or "server is overloaded" in text:  # at an Op
            return step.deadline_s is not None
        killed = {op for each in case.steps for op, f in each.faults.items() if f in KILLERS}
        killed |= {op for _, op in case.kills}
        return bool(killed & set(visits)) and ending.code in (10000, 6000)

    def _is_a_loss(self, step: Step) -> bool:
        return not self.endings[step.number].is_good
