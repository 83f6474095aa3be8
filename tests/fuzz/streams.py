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
import zlib
from collections.abc import Sequence
from typing import Any

from doubles import ScriptedWorkers, VirtualLoop

from pipeline import Goto, Op, ProductError, RequestOp, ResponseOp
from pipeline.config.schema import load_config, resolve_op
from pipeline.engine.engine import Engine
from pipeline.engine.graph import build_graph
from pipeline.engine.journal import EngineObservers, Journal
from pipeline.engine.request import StreamSink, UnarySink
from pipeline.engine.streams.plan import plan_streams
from pipeline.errors import ErrorCode, GraphError, OverloadedError
from pipeline.op import configure_op
from pipeline.proto import pipeline_service_pb2

_MOST_OPS = 6
_MOST_REQUESTS = 12
_OVER_S = 1000.0
ERROR = object()
"""Ends a list of parts that ends with an error."""
ABSENT = object()
"""Stands for a part that went nowhere."""


def chance(text: str, share: float) -> bool:
    """Whether something happens to a text: the same in the model and in the Op."""
    return zlib.crc32(text.encode()) % 1000 < share * 1000


class FuzzedOp(Op):
    """What all of them do: put texts together; fail, and drop parts, by what the text says."""

    fails = drops = 0.0
    open: list[int]  # how many generators of its case are

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
        return text

    def leaving(self, text: str) -> Any:
        return Goto({"text": text}) if chance("drop" + text, self.drops) else {"text": text}

    def preprocess(self, input_dicts, data_id, log_id):
        return {"text": self.checked(self.joined(input_dicts))}

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        text = fetch_data["text"]
        return self.leaving(text if isinstance(text, str) else text[0])


def parts_of(op: FuzzedOp, text: str) -> list[Any]:
    """The texts that an Op's generator makes of one text, perhaps with an error at the end."""
    count = zlib.crc32(f"{op.name}{text}".encode()) % op.most
    found = []
    for number in range(count):
        part = f"{text}.{number}"
        if op.breaks and chance("break" + part, op.fails):
            return [*found, ERROR]
        found.append(part)
    return found


class MakesInProcess(FuzzedOp):
    most, breaks = 5, True

    def process(self, feed_batch, log_id):
        self.open[0] += 1
        try:
            for part in parts_of(self, feed_batch[0]["text"]):
                if part is ERROR:
                    raise ProductError(77, "in the middle")
                yield {"text": part}
        finally:
            self.open[0] -= 1


class MakesInPostprocess(FuzzedOp):
    most, breaks = 5, True

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
    most, breaks = 5, False
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
                    # One that has no part at all cannot say so here.
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


MAKERS = (MakesInProcess, MakesInPostprocess, MakesInBatches)


class Case:
    """A random graph and configuration."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.read = RequestOp()
        self.ops: list[FuzzedOp] = []
        self.open = [0]
        self.streams: dict[Op, Op] = {}  # by Op, the source of what it answers
        for number in range(rng.randint(1, _MOST_OPS)):
            self._add(f"{'abcdefgh'[number]}")
        loose = [op for op in self.ops if not any(op in o.get_input_ops() for o in self.ops)]
        if len(loose) > 1:
            self._add("z", loose)
        self.last = self.ops[-1]
        self.config = {
            "dag": {
                "stream_window": rng.choice([1, 2, 16]),
                "channel_size": rng.choice([0, 0, 1, 3]),
                "retry": rng.choice([1, 2]),
            },
            "worker_num": rng.choice([0, 2]) or _MOST_REQUESTS,
        }

    def _add(self, name: str, inputs: Sequence[Op] | None = None) -> None:
        rng = self.rng
        before: list[Op] = [self.read, *self.ops]
        inputs = inputs or rng.sample(before, min(len(before), rng.choice([1, 1, 2, 3])))
        sources = {self.streams[op] for op in inputs if op in self.streams}
        gathers = len(sources) > 1 or (bool(sources) and rng.random() < 0.3)
        makes = rng.random() < 0.4
        kind = rng.choice(MAKERS) if makes else FuzzedOp
        batch_size = rng.choice([2, 4]) if kind is MakesInBatches else 1
        if kind is FuzzedOp and rng.random() < 0.3:
            batch_size = 3
        op = kind(
            name,
            list(inputs),
            gather=gathers,
            batch_size=batch_size,
            auto_batching_timeout=rng.choice([None, 5]),
            concurrency=rng.choice([1, 2, 3]),
        )
        op.fails, op.drops = rng.choice([0.0, 0.0, 0.1]), rng.choice([0.0, 0.0, 0.2])
        op.open = self.open
        op.how = rng.choice(["done", "none"])
        self.ops.append(op)
        if makes:
            self.streams[op] = op
        elif sources and not gathers:
            self.streams[op] = next(iter(sources))


# The model ----------------------------------------------------------------------------------------


class Failed(Exception):
    """The request fails before there is a part."""


def evaluate(case: Case, text: str) -> tuple[list[str], bool]:
    """The parts of a request's answer, or its one answer, and whether it ends with an error."""
    values: dict[Op, Any] = {case.read: {"text": text}}
    for op in case.ops:
        try:
            values[op] = _value(case, op, values)
        except Failed:
            values[op] = Failed
    found = values[case.last]
    if found is Failed or found is ABSENT:
        return [], True
    if not isinstance(found, list):
        return [found["text"]], False
    parts = [part["text"] for part in found if part not in (ERROR, ABSENT)]
    nothing = bool(found) and not parts and all(part is ABSENT for part in found)
    return parts, ERROR in found or nothing


def _value(case: Case, op: FuzzedOp, values: dict[Op, Any]) -> Any:
    """A dict; a list of them, perhaps with ERROR at its end; ABSENT; raises Failed."""
    inputs = {one.name: values[one] for one in op.get_input_ops()}
    if any(value is Failed for value in inputs.values()):
        raise Failed
    if op.pipeline_gathers:
        for name, value in inputs.items():
            if isinstance(value, list):
                if ERROR in value:
                    raise Failed
                inputs[name] = [part for part in value if part is not ABSENT]
        streams = {}
    else:
        streams = {name: value for name, value in inputs.items() if isinstance(value, list)}
    inputs = {name: value for name, value in inputs.items() if value is not ABSENT}
    if not inputs:
        return ABSENT
    if not streams:
        found = _answers(op, inputs)
        if isinstance(op, MAKERS):
            return found
        if found == [ERROR]:
            raise Failed
        # Who would have read a stream that went elsewhere has one part.
        return found if op in case.streams else found[0]
    made: list[Any] = []
    for number in range(max(map(len, streams.values()))):
        row = {name: parts[number] for name, parts in streams.items() if number < len(parts)}
        if any(part is ERROR for part in row.values()):
            return [*made, ERROR]
        if all(part is ABSENT for part in row.values()):
            made += [] if isinstance(op, MAKERS) else [ABSENT]
            continue
        now = {**inputs, **row}
        found = _answers(op, {n: v for n, v in now.items() if v is not ABSENT})
        made += found
        if ERROR in found:
            return made
    return made


def _answers(op: FuzzedOp, inputs: dict[str, Any]) -> list[Any]:
    """What an Op makes of one set of inputs."""
    order = [one.name for one in op.get_input_ops() if one.name in inputs]
    names = {("@DAGExecutor" if name.startswith("@") else name): inputs[name] for name in order}
    text = op.joined(names)
    if chance("fail" + text, op.fails):
        return [ERROR]
    texts = parts_of(op, text) if isinstance(op, MAKERS) else [text]
    return [
        ERROR if each is ERROR else ABSENT if chance("drop" + each, op.drops) else {"text": each}
        for each in texts
    ]


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


def run(seed: int) -> list[str]:
    """Run a case; return what is wrong."""
    rng = random.Random(seed)
    case = _case(rng)
    callers = [Caller(rng, number) for number in range(rng.randint(1, _MOST_REQUESTS))]
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        try:
            return runner.run(_run(case, callers, rng))
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]


def _case(rng: random.Random) -> Case:
    """A graph that can be served."""
    while True:
        case = Case(rng)
        try:
            plan_streams(build_graph(ResponseOp([case.last]), on_loose=lambda loose: None))
        except GraphError:
            continue
        return case


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
        loop.call_later(caller.begins_s, _begin, engine, caller, loop)
    await asyncio.sleep(_OVER_S)
    for caller in callers:
        wrong += _compared(case, caller)
    wrong += _left_over(engine)
    if case.open[0]:
        wrong.append(f"{case.open[0]} generators are open")
    await engine.stop(0.0)
    return wrong


def _begin(engine: Engine, caller: Caller, loop: asyncio.AbstractEventLoop) -> None:
    raw = pipeline_service_pb2.Request(key=["text"], value=[caller.text])
    sink = One(caller) if caller.kind == "one" else Parts(caller, loop)
    try:
        caller.request = engine.begin(raw, caller.timeout_s, None, sink)
    except OverloadedError:  # it could not be answered in its time
        caller.has_left = True
        return
    if caller.leaves_s is not None:
        loop.call_later(caller.leaves_s, _leave, caller)


def _leave(caller: Caller) -> None:
    if caller.last == "nothing":
        caller.has_left = True
        caller.request.cancel()


def _compared(case: Case, caller: Caller) -> list[str]:
    parts, has_failed = evaluate(case, caller.text)
    who = f"{caller.text} ({caller.kind})"
    if caller.has_left:
        is_prefix = parts[: len(caller.parts)] == caller.parts
        return [] if is_prefix else [f"{who}: {caller.parts} begins not as {parts}"]
    if caller.last == "nothing":
        return [f"{who}: has no end; {len(caller.parts)} of {len(parts)} parts"]
    answer = caller.last
    is_error = answer is not None and answer.err_no != 0
    if is_error and answer.err_no == ErrorCode.TIMEOUT and caller.timeout_s is not None:
        is_prefix = parts[: len(caller.parts)] == caller.parts
        return [] if is_prefix else [f"{who}: {caller.parts} begins not as {parts}"]
    if is_error != has_failed:
        return [f"{who}: ended with {answer!r:.200}, expected error: {has_failed}"]
    if caller.kind == "one" or case.last not in case.streams:
        if is_error:
            return []
        text = "".join(answer.value)
        return [] if text == "".join(parts) else [f"{who}: {text} is not {parts} in one"]
    return [] if caller.parts == parts else [f"{who}: {caller.parts} is not {parts}"]


def _left_over(engine: Engine) -> list[str]:
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
