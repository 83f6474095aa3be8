"""Random graphs with streams for `fuzz.streams`, and a plain evaluation of them.

The text and the name of an Op decide what it does, so that the model knows it.
"""

from __future__ import annotations

import os
import random
import time
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

from pipeline import Answer, Goto, Op, ProductError, RequestOp, ResponseOp
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.engine.graph import Graph, build_graph
from pipeline.engine.streams.plan import plan_streams
from pipeline.errors import GraphError
from pipeline.op import configure_op

MOST_REQUESTS = 12
_MOST_OPS = 6
_MOST_LOOPS = 3
_PAUSES_S = (0.001, 0.005, 0.025)  # the last one is more than a slice
HANG_S = 0.6
TIMEOUT_MS = 200
"""The timeout of Ops that sometimes hang."""
_COUNT = {"input_name": "count", "output_name": "next", "data_type": "INT64", "dims": [1]}
ERROR = object()
"""Ends a list of parts that ends with an error."""
ABSENT = object()
"""Stands for a part that no Op gets."""


def chance(text: str, share: float) -> bool:
    """Whether something happens to a text; equal in the model and in the Op."""
    return zlib.crc32(text.encode()) % 1000 < share * 1000


class World(Protocol):
    """Time as it passes for an Op; see `strands.StrandWorld`."""

    def sleep(self, seconds: float) -> None: ...
    def hang(self, seconds: float) -> None: ...


class RealWorld:
    """Real time."""

    sleep = hang = staticmethod(time.sleep)


class Unsendable:
    """A value that cannot be sent to another process."""

    def __reduce__(self) -> Any:
        raise TypeError("it cannot be sent")


class Unreadable:
    """A value that can be sent, and cannot be opened there."""

    def __reduce__(self) -> Any:
        return _raise, ()


def _raise() -> None:
    raise ValueError("it cannot be opened")


class FuzzedOp(Op):
    """The base of all Ops: joins texts; fails or sends parts elsewhere, as the text decides.

    The numbers are shares: `steers`: of parts that go to some of the `readers` only, or to none;
    `answers`: that are the answer of the request; `loops`: that go back to `loop`; `pauses`: that
    take some time; `hangs`: longer than the Op's timeout; `holds`: that cannot be sent, or opened;
    `skips`: of requests without `process`.
    """

    fails = steers = answers = loops = crashes = pauses = hangs = holds = skips = 0.0
    world: World = RealWorld()
    loop = ""
    readers: Sequence[str] = ()
    most, breaks = 5, True
    open: Any  # [the number of open generators of the case]

    def joined(self, input_dicts: dict[str, Any]) -> str:
        inputs = []
        for value in input_dicts.values():
            texts = [part["text"] for part in (value if isinstance(value, list) else [value])]
            inputs.append("+".join(texts))
        text = f"{self.name}({'|'.join(inputs)})"
        return text if len(text) < 200 else f"{self.name}#{zlib.crc32(text.encode())}"

    def checked(self, text: str) -> str:
        if chance("fail" + text, self.fails):
            raise ProductError(77, text)
        self.crash(text)
        return text

    def crash(self, text: str) -> None:
        """End the process (`crashes` is above 0 in real ones only), hang or pause."""
        if chance("crash" + text, self.crashes):
            os._exit(3)
        if chance("hang" + text, self.hangs):
            self.world.hang(HANG_S)
        if chance("pause" + text, self.pauses):
            self.world.sleep(_PAUSES_S[zlib.crc32(text.encode()) % len(_PAUSES_S)])

    def way(self, text: str) -> tuple[str, ...] | None:
        """Return the readers that get an answer; None: all of them."""
        if self.loop and chance("loop" + text, self.loops):
            return (self.loop,)
        if not chance("steer" + text, self.steers):
            return None
        bits = zlib.crc32(("way" + text).encode())
        return tuple(name for place, name in enumerate(self.readers) if bits >> place & 1)

    def leaving(self, text: str) -> Any:
        if chance("answer" + text, self.answers):
            return Answer({"text": text + "!"})
        if chance("hold" + text, self.holds):
            kind = Unsendable if zlib.crc32(text.encode()) & 1 else Unreadable
            return {"text": text, "held": kind()}
        to = self.way(text)
        return {"text": text} if to is None else Goto({"text": text}, *to)

    def preprocess(self, input_dicts, data_id, log_id):
        return {"text": self.checked(self.joined(input_dicts))}

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        text = fetch_data["text"]
        return self.leaving(text if isinstance(text, str) else text[0])


def parts_of(op: FuzzedOp, text: str) -> list[Any]:
    """Return the texts that an Op's generator makes from a text, possibly with ERROR at the end."""
    if op.skips and chance("skip" + text, op.skips):
        return [text]
    count = zlib.crc32(f"{op.name}{text}".encode()) % op.most
    found: list[Any] = []
    for number in range(count):
        part = f"{text}.{number}"
        if op.breaks and chance("break" + part, op.fails):
            return [*found, ERROR]
        found.append(part)
    return found


class MakesInProcess(FuzzedOp):
    def process(self, feed_batch, log_id):
        self.open[0] += 1
        try:
            for part in parts_of(self, feed_batch[0]["text"]):
                if part is ERROR:
                    raise ProductError(77, "in the middle")
                self.crash(part)
                yield {"text": part}
        finally:
            self.open[0] -= 1


class MakesAsync(FuzzedOp):
    async def process(self, feed_batch, log_id):
        self.open[0] += 1
        try:
            for part in parts_of(self, feed_batch[0]["text"]):
                if part is ERROR:
                    raise ProductError(77, "in the middle")
                self.crash(part)
                yield {"text": part}
        finally:
            self.open[0] -= 1


class MakesInPostprocess(FuzzedOp):
    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        self.open[0] += 1
        try:
            for part in parts_of(self, fetch_data["text"]):
                if part is ERROR:
                    raise ProductError(77, "in the middle")
                yield self.leaving(part)
        finally:
            self.open[0] -= 1


class MakesInBatches(FuzzedOp):
    breaks = False
    how = "done"

    def preprocess(self, input_dicts, data_id, log_id):
        return {"text": [self.checked(self.joined(input_dicts))]}

    def process(self, feed_batch, log_id):
        self.open[0] += 1
        try:
            left = [parts_of(self, text) for text in feed_batch[0]["text"]]
            number = 0
            while left:
                if self.how == "done":
                    # A request without any part cannot end here.
                    rows = [parts[number] if parts else None for parts in left]
                    ends = [number + 1 >= len(parts) for parts in left]
                else:
                    rows = [parts[number] if number < len(parts) else None for parts in left]
                    ends = [row is None for row in rows]
                yield {"text": rows, **({"done": ends} if self.how == "done" else {})}
                left = [parts for parts, end in zip(left, ends, strict=True) if not end]
                number += 1
        finally:
            self.open[0] -= 1


class Held:
    """Counts as open while it is in the state of a request."""

    def __init__(self, count: Any) -> None:
        self._count = count
        count[0] += 1

    def __del__(self) -> None:
        self._count[0] -= 1


class MakesInSteps(FuzzedOp):
    """An Op with `batching: iterative`, which checks its steps."""

    how = "done"
    is_sequence = False
    raises_in = "process"
    tells_state = True

    def preprocess(self, input_dicts, *, context):
        assert not context.state, "the state of another request"
        text = self.checked(self.joined(input_dicts))
        # The state is set here: a step that changes it and fails would fail the others.
        context.state.update(at=0, text=text)
        if self.is_sequence:
            context.state["id"] = context.sequence.id
        if self.tells_state:
            context.state["held"] = Held(self.open)
        if self.skips and chance("skip" + text, self.skips):
            return {"text": text}, True, None, ""
        return {"text": [text]}

    def process(self, feed_batch, *, context):
        return self.counted(feed_batch[0], context)

    def counted(self, feed: Any, context: Any) -> dict[str, Any]:
        """Run a step; with sequences, check that the declared state has its number."""
        if not self.is_sequence:
            return self.step(feed["text"], context)
        steps = [each.sequence for each in context]
        for each, step, count in zip(context, steps, feed["count"], strict=True):
            at = each.state["at"]
            assert step.start == (at == 0), f"step {at} has the context {step}"
            assert count[0] == at, f"step {at} is fed the state of {count[0]}"
            assert each.state["id"] == step.id, "the id of another sequence"
        assert len({step.slot for step in steps}) == len(steps), "two are in one slot"
        return {**self.step(feed["text"], context), "next": feed["count"] + 1}

    def step(self, texts: Sequence[str], context: Any) -> dict[str, Any]:
        states = [each.state for each in context]
        assert [state["text"] for state in states] == list(texts), "rows of others"
        assert len({id(state) for state in states}) == len(states), "a request is there twice"
        assert len(states) <= self.pipeline_config.batch_size, "more than there are seats"
        parts = [parts_of(self, text) for text in texts]
        for text, state, made in zip(texts, states, parts, strict=True):
            if state["at"] < len(made):
                self.crash(f"{text}.{state['at']}")
                if made[state["at"]] is ERROR and self.raises_in == "process":
                    raise ProductError(77, "in the middle")
        rows: list[Any] = []
        ends = []
        for text, state, made in zip(texts, states, parts, strict=True):
            at = state["at"]
            rows.append(f"{text}.{at}" if at < len(made) else None)
            ends.append(at + 1 >= len(made))
            state["at"] = at + 1
        return {"text": rows, "done": ends} if self.how == "done" else {"text": rows}

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        text = fetch_data["text"]
        part = text if isinstance(text, str) else text[0]
        may_raise = self.raises_in == "postprocess" and part is not text
        if may_raise and chance("break" + part, self.fails):
            raise ProductError(77, "after a step")
        return self.leaving(part)


class MakesInStepsAsync(MakesInSteps):
    tells_state = False  # an error of a coroutine keeps its frames until garbage is collected

    async def process(self, feed_batch, *, context):
        return self.counted(feed_batch[0], context)


MAKERS = (MakesInProcess, MakesAsync, MakesInPostprocess, MakesInBatches, MakesInSteps)
_KINDS = (*MAKERS, MakesInStepsAsync, MakesInSteps)
_WITHOUT_LOOP = tuple(kind for kind in _KINDS if "Async" not in kind.__name__)


class Case:
    """A random graph and configuration. `streams`: by Op, the Op that makes its parts.

    Args:
        is_real: for real workers, both threads and processes.
        in_steps: the share of iterative Ops among the makers of parts; None: as of other kinds.
    """

    def __init__(
        self, rng: random.Random, is_real: bool = False, in_steps: float | None = None
    ) -> None:
        self.rng = rng
        self.in_steps = in_steps
        self.is_real = is_real
        self.hangs = rng.random() < 0.1
        self.is_crashing = self.hangs
        self.read = RequestOp()
        self.ops: list[FuzzedOp] = []
        self.open: Any = [0]
        self.streams: dict[Op, Op] = {}
        self.answers = rng.choice([0.0, 0.0, 0.0, 0.1])
        self.loops = rng.random() < 0.3
        for number in range(rng.randint(1, _MOST_OPS)):
            self._add(f"{'abcdefgh'[number]}")
        loose = [op for op in self.ops if not self.readers_of(op)]
        if len(loose) > 1:
            self._add("z", loose)
        self.last = self.ops[-1]
        for op in self.ops:
            op.readers = [reader.name for reader in self.readers_of(op)]
            if any(each.loop for each in self.ops):
                op.answers = 0.0  # an Answer outside the loop might come in any lap
        limit_ms = rng.choice([None, None, None, 5, 100])
        self.dag: dict[str, Any] = {
            "stream_window": rng.choice([1, 2, 16]),
            "channel_size": rng.choice([0, 0, 1, 3]),
            "retry": rng.choice([1, 2]),
            "max_parts": rng.choice([1000, 1000, 4]),
        }
        self.is_hasty = limit_ms is not None
        if limit_ms is not None:
            self.dag[rng.choice(["first_part_timeout", "part_timeout"])] = limit_ms
        self.config: dict[str, Any] = {
            "dag": self.dag,
            "worker_num": rng.choice([0, 2]) or MOST_REQUESTS,
            "op": {op.name: self._settings(op) for op in self.ops},
        }

    def _settings(self, op: FuzzedOp) -> dict[str, Any]:
        found: dict[str, Any] = {"timeout": TIMEOUT_MS} if op.hangs else {}
        if isinstance(op, MakesInSteps):
            found["batching"] = "iterative"
            if op.is_sequence:
                found["sequence"] = {"state": [_COUNT]}
        return found

    def readers_of(self, op: Op) -> list[FuzzedOp]:
        return [each for each in self.ops if op in each.get_input_ops()]

    def _add(self, name: str, inputs: Sequence[Op] | None = None) -> None:
        rng = self.rng
        before: list[Op] = [self.read, *self.ops]
        inputs = inputs or rng.sample(before, min(len(before), rng.choice([1, 1, 2, 3])))
        sources = {self.streams[op] for op in inputs if op in self.streams}
        gathers = len(sources) > 1 or (bool(sources) and rng.random() < 0.3)
        makes = rng.random() < 0.4
        kind = self._kind() if makes else FuzzedOp
        batch_size = rng.choice([2, 4]) if kind is MakesInBatches else 1
        if issubclass(kind, MakesInSteps):
            batch_size = rng.choice([1, 2, 4, 8])
        if kind is FuzzedOp and rng.random() < 0.3:
            batch_size = 3
        loop = self._loop(inputs) if not makes and self.loops and rng.random() < 0.5 else ""
        self.loops = self.loops and not loop  # at most one loop
        op = kind(
            name,
            list(inputs),
            gather=gathers,
            batch_size=batch_size,
            auto_batching_timeout=rng.choice([None, 5]),
            concurrency=rng.choice([1, 2, 3]),
            loop_to=[loop] if loop else [],
            max_loops=_MOST_LOOPS,
        )
        op.fails, op.steers = rng.choice([0.0, 0.0, 0.1]), rng.choice([0.0, 0.0, 0.3])
        op.loop, op.loops, op.answers = loop, rng.choice([0.3, 0.6]), self.answers
        op.open = self.open
        op.pauses = rng.choice([0.0, 0.1, 0.5])
        op.hangs = rng.choice([0.02, 0.1]) if self.hangs and makes else 0.0
        if isinstance(op, MakesInBatches | MakesInSteps):
            op.how = rng.choice(["done", "none"])
        if isinstance(op, MakesInSteps):
            op.raises_in = rng.choice(["process", "postprocess"])
            op.is_sequence = random.Random(f"{name} {rng.getstate()[1][:3]}").random() < 0.5
            op.skips = rng.choice([0.0, 0.0, 0.2])
        self.ops.append(op)
        if makes:
            self.streams[op] = op
        elif sources and not gathers:
            self.streams[op] = next(iter(sources))

    def _kind(self) -> type[FuzzedOp]:
        rng = self.rng
        if self.in_steps is not None and rng.random() < self.in_steps:
            return MakesInSteps
        return rng.choice(_KINDS if self.is_real else _WITHOUT_LOOP)

    def _loop(self, inputs: Sequence[Op]) -> str:
        """Return the name of an Op that leads to these inputs; "" if there is none."""
        above = [op for op in self.ops if op in inputs or self.leads(op, inputs)]
        return self.rng.choice(above).name if above else ""

    def leads(self, op: Op, to: Sequence[Op]) -> bool:
        """Whether the answers of an Op lead to one of some other Ops."""
        found = {op}
        for each in self.ops:
            if found.intersection(each.get_input_ops()):
                found.add(each)
        return bool(found.intersection(to) - {op})


def made_case(rng: random.Random, is_real: bool = False, in_steps: float | None = None) -> Case:
    """Return a random case whose graph is valid."""
    while True:
        try:
            case = Case(rng, is_real, in_steps)
            plan_streams(configured(case)[0])
        except GraphError:
            continue
        return case


def configured(case: Case) -> tuple[Graph, Any]:
    """Return the graph with configured Ops, and the settings."""
    graph = build_graph(ResponseOp([case.last]), on_loose=lambda loose: None)
    settings = load_config(yml_dict={"rpc_port": 0, **case.config})
    for op in graph.all_ops:
        configure_op(op, resolve_op(op.name, op.pipeline_given, settings))
    return graph, settings


# The model ----------------------------------------------------------------------------------------


class Failed(Exception):
    """The request fails before there is a part."""


class Model:
    """The expected ending of a request.

    Attributes:
        parts: the parts of its answer, or its only answer.
        has_failed: whether it ends with an error.
        answers: texts of Answers; one of them ends it before the end of its parts.
    """

    def __init__(self, case: Case, text: str, is_one: bool, alone: FuzzedOp | None = None) -> None:
        self.case = case
        self.parts: list[str] = []
        self.has_failed = False
        self.answers: list[str] = []
        if alone is not None:
            found = self._answers(alone, given_alone(case, alone, text))
            kept = [{**part, "to": None} if isinstance(part, dict) else part for part in found]
            is_maker = isinstance(alone, MAKERS)
            whole = kept if is_maker else Failed if kept[0] is ERROR else kept[0]
            self._end(whole, is_one)
            return
        values: dict[Op, Any] = {case.read: {"text": text}}
        place = 0
        while place < len(case.ops):
            op = case.ops[place]
            values[op] = self._value(op, values)
            to = values[op]["to"] if isinstance(values[op], dict) else None
            place += 1
            if op.loop and to == (op.loop,):
                place = self._back(op, values)
        self._end(values[case.last], is_one)

    def _back(self, op: FuzzedOp, values: dict[Op, Any]) -> int:
        """Begin the next lap of a loop; return the place of the Op to continue with."""
        case = self.case
        target = next(each for each in case.ops if each.name == op.loop)
        count = values.setdefault(op.name, 0) + 1
        values[op.name] = count
        if count > _MOST_LOOPS:
            values[op] = Failed
            return case.ops.index(op) + 1
        values[target] = self._of(target, {op.name: {**values[op], "to": None}})
        return case.ops.index(target) + 1

    def _end(self, found: Any, is_one: bool) -> None:
        if found is Failed or found is ABSENT:
            self.has_failed = True
            return
        if not isinstance(found, list):
            self.has_failed = found["to"] is not None
            self.parts = [] if self.has_failed else [found["text"]]
            return
        kept = [part for part in found if part not in (ERROR, ABSENT) and part["to"] is None]
        self.parts = [part["text"] for part in kept]
        is_nowhere = bool(found) and not kept and ERROR not in found
        is_too_much = is_one and len(kept) + bool(self.answers) > self.case.dag["max_parts"]
        self.has_failed = ERROR in found or is_nowhere or is_too_much

    def _value(self, op: FuzzedOp, values: dict[Op, Any]) -> Any:
        inputs = {one.name: _seen_by(op, values[one]) for one in op.get_input_ops()}
        return self._of(op, inputs)

    def _of(self, op: FuzzedOp, inputs: dict[str, Any]) -> Any:
        """Return a dict; a list of them, possibly with ERROR at its end; ABSENT; or Failed."""
        try:
            return self._tried(op, inputs)
        except Failed:
            return Failed

    def _tried(self, op: FuzzedOp, inputs: dict[str, Any]) -> Any:
        if any(value is Failed for value in inputs.values()):
            raise Failed
        if op.pipeline_gathers:
            inputs = self._gathered(inputs)
            streams = {}
        else:
            streams = {name: value for name, value in inputs.items() if isinstance(value, list)}
        inputs = {name: value for name, value in inputs.items() if value is not ABSENT}
        if not inputs:
            return ABSENT
        if not streams:
            found = self._answers(op, inputs)
            if isinstance(op, MAKERS):
                return found
            if found == [ERROR]:
                raise Failed
            # A reader of a stream that went elsewhere makes one part.
            return found if op in self.case.streams else found[0]
        made: list[Any] = []
        for number in range(max(map(len, streams.values()))):
            row = {name: parts[number] for name, parts in streams.items() if number < len(parts)}
            if any(part is ERROR for part in row.values()):
                return [*made, ERROR]
            if all(part is ABSENT for part in row.values()):
                made += [] if isinstance(op, MAKERS) else [ABSENT]
                continue
            now = {**inputs, **row}
            found = self._answers(op, {n: v for n, v in now.items() if v is not ABSENT})
            made += found
            if ERROR in found:
                return made
        return made

    def _gathered(self, inputs: dict[str, Any]) -> dict[str, Any]:
        kept = {
            name: [part for part in value if part is not ABSENT]
            for name, value in inputs.items()
            if isinstance(value, list)
        }
        if any(ERROR in parts for parts in kept.values()):
            raise Failed
        if sum(map(len, kept.values())) > self.case.dag["max_parts"]:
            raise Failed
        return {**inputs, **kept}

    def _answers(self, op: FuzzedOp, inputs: dict[str, Any]) -> list[Any]:
        """Return the parts that an Op makes from one set of inputs."""
        order = [one.name for one in op.get_input_ops() if one.name in inputs]
        order += [name for name in inputs if name not in order]  # an Op that loops to it
        names = {("@DAGExecutor" if name[0] == "@" else name): inputs[name] for name in order}
        text = op.joined(names)
        if chance("fail" + text, op.fails):
            return [ERROR]
        texts = parts_of(op, text) if isinstance(op, MAKERS) else [text]
        made: list[Any] = []
        for each in texts:
            made.append(ERROR if each is ERROR else self._leaving(op, each))
            if made[-1] is ERROR:
                break
        return made

    def _leaving(self, op: FuzzedOp, text: str) -> Any:
        if chance("answer" + text, op.answers):
            self.answers.append(text + "!")
            return ABSENT
        if chance("hold" + text, op.holds):
            return ERROR
        return {"text": text, "to": op.way(text)}


def given_alone(case: Case, op: FuzzedOp, text: str) -> dict[str, Any]:
    """Return the inputs of an Op for a request to this Op alone."""
    given: dict[str, Any] = {}
    for one in op.get_input_ops():
        is_whole = op.pipeline_gathers and one in case.streams
        given[one.name] = [{"text": text}] if is_whole else {"text": text}
    return given


def _seen_by(op: Op, value: Any) -> Any:
    """Return the part of an answer that one of its readers gets."""
    if isinstance(value, list):
        return [_seen_by(op, part) for part in value]
    if isinstance(value, dict) and value.get("to") is not None and op.name not in value["to"]:
        return ABSENT
    return value
