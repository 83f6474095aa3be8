"""Streams as tests take them: Ops that make and read parts, a sink of one's own, real workers."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from doubles import wait_until

from pipeline import Op, ResponseOp
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.engine.engine import Engine
from pipeline.engine.graph import build_graph
from pipeline.engine.journal.journal import EngineObservers, Journal
from pipeline.engine.request import RequestState, RequestTarget, StreamSink, UnarySink
from pipeline.engine.worker_api import WorkerContext
from pipeline.op import configure_op
from pipeline.proto import pipeline_service_pb2
from pipeline.workers.process.kind import ProcessKind
from pipeline.workers.ray.kind import RayKind
from pipeline.workers.thread import ThreadKind

PATIENCE_S = 20.0


class Event:
    """A threading.Event that processes also share, if it is made before they are forked.

    That of multiprocessing hangs where a process that waits for it is killed.
    """

    def __init__(self) -> None:
        self._flag = mmap.mmap(-1, 1)

    def set(self) -> None:
        self._flag[0] = 1

    def clear(self) -> None:
        self._flag[0] = 0

    def is_set(self) -> bool:
        return self._flag[0] == 1

    def wait(self, timeout: float) -> bool:
        ends = time.monotonic() + timeout
        while not self.is_set() and time.monotonic() < ends:
            time.sleep(0.001)
        return self.is_set()


class Noted:
    """Numbers that an Op notes, in a thread or a process; the first thousand of them."""

    def __init__(self) -> None:
        self._cells = memoryview(mmap.mmap(-1, 8 * 1001)).cast("q")

    def append(self, number: int) -> None:
        if self._cells[0] < 1000:
            self._cells[self._cells[0] + 1] = number
            self._cells[0] += 1

    def __len__(self) -> int:
        return self._cells[0]

    def __iter__(self) -> Iterator[int]:
        return iter(self._cells[1 : len(self) + 1].tolist())


usual_workers = "thread"
"""What `serving` takes if it is not told."""


class Count(Op):
    """Yields {"text": "0"}, {"text": "1"}, ... `n` times; "n" is in the request."""

    def process(self, feed_batch, log_id):
        for number in range(int(feed_batch[0]["n"])):
            yield {"text": f"{number}"}


class Mark(Op):
    """Writes its name before the texts that it reads."""

    def preprocess(self, input_dicts, data_id, log_id):
        return {"text": self.name + "+".join(part["text"] for part in input_dicts.values())}


class PartsSink(StreamSink):
    """Keeps what it is given; takes it at once, or when `take` is called.

    `answers` has the texts of the parts; `last` what the stream ended with.
    """

    def __init__(self, takes_at_once: bool = True) -> None:
        self.takes_at_once = takes_at_once
        self.answers: list[dict[str, str]] = []
        self.last: Any = "nothing yet"
        self.request: RequestState
        self.changed = asyncio.Event()

    def add(self, answers: Sequence[Any]) -> None:
        assert self.last == "nothing yet", "nothing comes behind the end"
        self.answers += [dict(zip(each.key, each.value, strict=True)) for each in answers]
        self.changed.set()
        if self.takes_at_once:
            self.take(len(answers))

    def end(self, answer: Any) -> None:
        assert self.last == "nothing yet", "there is one end"
        self.last = answer
        self.changed.set()

    def take(self, count: int = 1) -> None:
        for _ in range(count):
            self.request.took_part()

    @property
    def texts(self) -> list[str]:
        return [answer["text"] for answer in self.answers]

    async def until(self, parts: int) -> list[str]:
        """Wait for so many parts; return the texts of all."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.answers) < parts and self.last == "nothing yet":
                self.changed.clear()
                await self.changed.wait()
        return self.texts

    async def ended(self) -> Any:
        """Wait for the end; return what it came with."""
        async with asyncio.timeout(PATIENCE_S):
            while self.last == "nothing yet":
                self.changed.clear()
                await self.changed.wait()
        return self.last


class OneSink(UnarySink, asyncio.Future[Any]):
    """Takes one answer only."""

    def end(self, answer: Any) -> None:
        self.set_result(answer)


class Streams:
    """An engine over real workers, without frontends, on the running loop."""

    def __init__(self, engine: Engine, journal: Journal, sink: Rows) -> None:
        self.engine = engine
        self.journal = journal
        self.rows = sink

    def begin(
        self,
        sink: Any = None,
        timeout_s: float | None = None,
        target: RequestTarget | None = None,
        **pairs: Any,
    ) -> Any:
        """Begin a request; returns its sink."""
        sink = PartsSink() if sink is None else sink
        texts = [str(value) for value in pairs.values()]
        raw = pipeline_service_pb2.Request(key=list(pairs), value=texts)
        sink.request = self.engine.begin(raw, timeout_s, target, sink)
        return sink

    async def combined(self, **pairs: Any) -> Any:
        """What a caller gets who takes one answer."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.begin(OneSink(), **pairs)

    def node(self, name: str) -> Any:
        return next(node for op, node in self.engine.executor.nodes.items() if op.name == name)

    async def idle(self) -> None:
        """Wait until no generator is left anywhere."""
        nodes = self.engine.executor.nodes.values()
        await asyncio.to_thread(
            wait_until,
            lambda: (
                not any(
                    getattr(node, "_slices", 0) or node.load.running or getattr(node, "_runs", None)
                    for node in nodes
                )
            ),
        )


class Rows:
    """A sink of the journal that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[dict[str, int]] = []
        self.requests: list[dict[str, int]] = []
        self.parts: list[dict[str, int]] = []

    def notify_parts(self, parts: Any) -> None:
        self.parts += [dict(zip(parts.dtype.names, row, strict=True)) for row in parts.tolist()]

    def notify(self, spans: Any, requests: Any) -> None:
        for rows, found in ((spans, self.spans), (requests, self.requests)):
            found += [dict(zip(rows.dtype.names, row, strict=True)) for row in rows.tolist()]


@contextlib.asynccontextmanager
async def serving(
    last_op: Op, response_op: ResponseOp | None = None, workers: str | None = None, **config: Any
) -> AsyncIterator[Streams]:
    """Serve a graph, as a server does, for requests that are begun by hand.

    `workers` of its Ops are threads of this process, or processes; see `usual_workers`.
    """
    graph = build_graph(response_op or ResponseOp(input_ops=[last_op]))
    dag = {"is_thread_op": (workers or usual_workers) == "thread", **config.pop("dag", {})}
    settings = load_config(yml_dict={"rpc_port": 0, "dag": dag, **config})
    ops: Sequence[Op] = (graph.request_op, *graph.ops, graph.response_op)
    for op in ops:
        configure_op(op, resolve_op(op.name, op.pipeline_given, settings))
    loop = asyncio.get_running_loop()
    context = WorkerContext(settings, lambda op, number: None)
    kinds: dict[str, Any] = {"thread": ThreadKind((), context)}
    elsewhere = {"process": ProcessKind, "ray": RayKind}
    for name, make in elsewhere.items():
        members = [op for op in graph.ops if op.pipeline_config.workers == name]
        if members:
            kinds[name] = make(members, context)
            kinds[name].fork()

    def make_workers(schedule: Any) -> Any:
        for kind in kinds.values():
            kind.attach(loop, schedule)

        def make(op: Op, owner: Any) -> Any:
            own = (
                op.pipeline_config.workers if op in graph.ops else None
            )  # else at the ends: threads
            kind = kinds.get(own or "", kinds["thread"])
            return kind.workers(op, op.pipeline_config.concurrency, owner)

        return make

    rows = Rows()
    journal = Journal([rows])
    async with contextlib.AsyncExitStack() as stack:
        for name in elsewhere.keys() & kinds.keys():
            kinds[name].attach(loop, lambda: None)
            stack.push_async_callback(kinds[name].close)
        engine = Engine(graph, settings, make_workers, loop, EngineObservers(journal))
        stack.push_async_callback(engine.stop, 0.0)
        await engine.start()
        yield Streams(engine, journal, rows)
