"""Doubles: a loop with a virtual clock, workers that run when told, a service without doors."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import gc
import inspect
import json
import selectors
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from pipeline import Op, PipelineClient, PipelineServer, RequestOp, ResponseOp
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import LogConfig, load_config
from pipeline.engine import engine as engines
from pipeline.engine.filters import FilterChain
from pipeline.engine.graph import build_graph
from pipeline.engine.journal.journal import EngineObservers, Journal, Rows
from pipeline.engine.op.cache import ModelCache
from pipeline.engine.op.dispatcher import OpDispatcher
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.payload import LOCAL, MemoryDomain
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.state import WorkersState
from pipeline.engine.worker_api import Job, Worker, WorkersBase, WorkersOwner
from pipeline.errors import DeadlineError, PipelineError
from pipeline.observe.logs.setup import LogSession, open_logs
from pipeline.op import configure_op
from pipeline.proto import pipeline_service_pb2


def logs_in(directory: Path | None = None, level: str = "INFO", **keys: Any) -> LogSession:
    """The log as a server with such a configuration writes it, on stderr only if that is said."""
    return open_logs(LogConfig(level=level, **{"stderr": "never", **keys}), directory)


class _NoWaitSelector(selectors.DefaultSelector):
    """Where a loop would sleep, time jumps."""

    def __init__(self, clock: VirtualLoop) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if not events and timeout is None:
            raise RuntimeError("deadlock: nothing is ready and no timer is set")
        if not events and timeout:
            self._clock.now += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer: no test waits, none is random.

    `tick_s`: its time is in steps of that, as uvloop's is in ms.
    """

    def __init__(self, tick_s: float = 0.0) -> None:
        self.now = 1000.0
        self._tick_s = tick_s
        super().__init__(_NoWaitSelector(self))
        # Timers fire when they are due, not a clock tick before.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.now - self.now % self._tick_s if self._tick_s else self.now


def run_virtual(test: Coroutine[Any, Any, Any], tick_s: float = 0.0) -> Any:
    """Run a coroutine to its end on a VirtualLoop."""
    with asyncio.Runner(loop_factory=functools.partial(VirtualLoop, tick_s)) as runner:
        return runner.run(test)


def in_place_of(test: Callable[..., Any], run: Any, *ours: str) -> Callable[..., Any]:
    """`run` as the test instead of `test`, whose parameters are fixtures, but for `ours`."""
    signature = inspect.signature(test)
    functools.update_wrapper(run, test)
    fixtures = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in signature.parameters.items()
        if name not in ours
    ]
    run.__signature__ = signature.replace(parameters=fixtures)
    return run


def virtual(test: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Run an async test on a VirtualLoop."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        return run_virtual(test(*args, **kwargs))

    return run


class _SkippingLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, for which more time may have passed than has."""

    skipped_s = 0.0

    def time(self) -> float:
        return super().time() + self.skipped_s


def on_loop(test: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Run an async test on asyncio's own loop, in real time; see `skip`."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        with asyncio.Runner(loop_factory=_SkippingLoop) as runner:
            return runner.run(test(*args, **kwargs))

    return run


async def skip(seconds: float) -> None:
    """Under `on_loop`: advance the clock by `seconds`, and run the timers that are due."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _SkippingLoop)
    loop.skipped_s += seconds
    await settle()


class RecordingOwner:
    """Writes down what a pool of workers reports."""

    def __init__(self) -> None:
        self.finished: list[tuple[Worker, Any]] = []
        self.losses: list[tuple[Any, PipelineError]] = []
        self.made: list[tuple[Any, Sequence[tuple[int, Any]]]] = []
        self.changes = 0

    def done(self, worker: Worker, job: Any) -> None:
        self.finished.append((worker, job))

    def lost(self, job: Any, error: PipelineError) -> None:
        self.losses.append((job, error))

    def parts(self, run: Any, entries: Sequence[tuple[int, Any]]) -> None:
        self.made.append((run, entries))

    def workers_changed(self) -> None:
        self.changes += 1


class ScriptedWorker:
    """One place that runs one job at a time."""

    def __init__(self, op: BoundOp, number: int, owner: Any) -> None:
        self.op = op
        self.number = number
        self.owner = owner
        self.job: Job | None = None
        self.call_started: float | None = None
        self.job_started: float | None = None

    def call_begins(self) -> None:
        """The time of a call is scripted, see `ScriptedWorkers`."""

    def call_ends(self) -> None:
        """The time of a call is scripted, see `ScriptedWorkers`."""

    def yielded(self, run: Any, entries: Sequence[tuple[int, Any]]) -> None:
        self.owner.parts(run, entries)


class ScriptedWorkers(WorkersBase):
    """Workers on the virtual clock: a job takes `service_s`, or until `release` is called.

    `batches` has the data ids of every batch that was begun, in order.
    """

    takes_convoys = keeps_progress = runs_slices = True

    def __init__(
        self,
        op: Op,
        owner: WorkersOwner,
        service_s: float | None = 0.0,
        memory_domain: MemoryDomain = LOCAL,
    ) -> None:
        self.memory_domain = memory_domain
        self.op = op
        self.service_s = service_s
        self.owner = owner
        self.queue: list[Job] = []
        self.batches: list[list[int]] = []
        self.begun_at: list[float] = []
        self.given_up: list[ScriptedWorker] = []
        self.refuses_replacement = False
        self._lives: Counter[int] = Counter()
        self._workers: list[ScriptedWorker] = []
        self._loop = asyncio.get_running_loop()

    @property
    def count(self) -> int:
        return len(self._workers)

    async def start(self) -> None:
        self.op.init_op()
        bound = BoundOp(self.op, 0)
        self._workers = [
            ScriptedWorker(bound, i, self.owner) for i in range(self.op.pipeline_config.concurrency)
        ]

    note = None

    def lives(self) -> dict[int, int]:
        return {worker.number: self._lives[worker.number] for worker in self._workers}

    def state(self) -> WorkersState:
        busy = sum(worker.job is not None for worker in self._workers)
        return WorkersState("scripted", len(self._workers), len(self._workers), busy)

    @property
    def is_ready(self) -> bool:
        return len(self._workers) >= self.op.pipeline_config.concurrency

    @property
    def outage(self) -> PipelineError | None:
        return None if self._workers else DeadlineError("all workers hang")

    def submit(self, jobs: Sequence[Job]) -> None:
        self.queue.extend(jobs)
        self._feed()

    def busy(self) -> Iterable[Worker]:
        return [worker for worker in self._workers if worker.job is not None]

    def replace(self, worker: Worker, job: Job | None) -> bool:
        assert isinstance(worker, ScriptedWorker)
        self._workers.remove(worker)
        self.given_up.append(worker)
        self._lives[worker.number] += 1
        if self.refuses_replacement:
            self.owner.workers_changed()
            return False
        following = ScriptedWorker(worker.op, worker.number, self.owner)
        self._workers.append(following)
        if job is not None:
            self._begin(following, job)
        return True

    async def stop(self, timeout_s: float) -> int:
        return 0

    def release(self, count: int = 1) -> None:
        """Let the `count` jobs that are running longest finish."""
        for worker in [worker for worker in self._workers if worker.job][:count]:
            self._finish(worker)

    def _clock_ns(self) -> int:
        return int(self._loop.time() * 1e9)

    def _feed(self) -> None:
        for worker in self._workers:
            own = [job for job in self.queue if job.worker in (None, worker.number)]
            if worker.job is None and own:
                self.queue.remove(own[0])
                self._begin(worker, own[0])

    def _begin(self, worker: ScriptedWorker, job: Job) -> None:
        worker.job = job
        worker.job_started = worker.call_started = self._loop.time()
        if isinstance(job, BatchRun):
            if job.calls is None:
                job.prepare(worker.op, self._clock_ns)
            self.batches.append([sample.data_id for sample in job.items])
            _count_attempt(job, 1)
        self.begun_at.append(self._loop.time())
        if isinstance(job, BatchRun) and job.calls and all(call.done for call in job.calls):
            self._loop.call_soon(self._finish, worker)  # resumed, and nothing left to call
        elif self.service_s is not None:
            self._loop.call_later(self.service_s, self._finish, worker)

    def _finish(self, worker: ScriptedWorker) -> None:
        job = worker.job
        if job is None or worker in self.given_up:
            return
        if isinstance(job, BatchRun):
            _count_attempt(job, -1)  # `run` begins the call once more
        job.run(worker.op, worker, self._clock_ns)
        worker.job = worker.job_started = worker.call_started = None
        self.owner.done(worker, job)
        self._feed()


def _count_attempt(run: BatchRun, count: int) -> None:
    """The call that is about to run counts as begun: it may be found to hang."""
    call = next((call for call in run.calls or () if not call.done), None)
    if call is not None:
        call.attempts += count


class Engine:
    """An engine over scripted workers, without doors, on the running (virtual) loop.

    Args:
        last_op: the last Op of the graph.
        config: as in config.yml; ports are added.
        service_s: seconds that a batch takes, by Op name; None: until it is released.
        cache: of answers.
        serialize: of the memory that Ops with `workers: process` share, though all are scripted.
    """

    def __init__(
        self,
        last_op: Op,
        config: dict[str, Any] | None = None,
        service_s: dict[str, float | None] | None = None,
        response_op: ResponseOp | None = None,
        serialize: Callable[[Any], Any] | None = None,
        cache: ModelCache | None = None,
    ) -> None:
        graph = build_graph(response_op or ResponseOp(input_ops=[last_op]))
        settings = self._settings = load_config(yml_dict={"rpc_port": 0, **(config or {})})
        for op in (graph.request_op, *graph.ops, graph.response_op):
            configure_op(op, resolve_op(op.name, op.pipeline_given, settings))
        self.readiness: list[bool] = []
        self.journal = Journal([self])
        self.spans: list[dict[str, int]] = []
        self.requests: list[dict[str, int]] = []
        self.pools: dict[str, ScriptedWorkers] = {}
        times = service_s or {}
        elsewhere = MemoryDomain()
        if serialize is not None:
            elsewhere.serialize = serialize

        def make_workers(pump: Callable[[], None]) -> Any:
            def make(op: Op, owner: WorkersOwner) -> ScriptedWorkers:
                is_apart = serialize is not None and op.pipeline_config.workers == "process"
                domain = elsewhere if is_apart else LOCAL
                pool = ScriptedWorkers(op, owner, times.get(op.name, 0.0), domain)
                self.pools[type(op).__name__ if op.name.startswith("@") else op.name] = pool
                return pool

            return make

        loop = asyncio.get_running_loop()
        self.executor = engines.Engine(
            graph,
            settings,
            make_workers,
            loop,
            EngineObservers(self.journal, clock_ns=lambda: int(loop.time() * 1e9)),
            on_readiness=self.readiness.append,
            cache=cache,
        )

    def watch(self, **told: Any) -> None:
        """Add observers, before the first request."""
        executor = self.executor
        executor._observers = dataclasses.replace(executor._observers, **told)
        executor._filters = FilterChain(executor._own_filters(self._settings))

    @property
    def nodes(self) -> dict[Op, OpDispatcher]:
        """The dispatchers of its Ops."""
        return self.executor.executor.nodes

    def notify(self, spans: Rows, requests: Rows) -> None:
        """The journal's sink."""
        for rows, found in ((spans, self.spans), (requests, self.requests)):
            found += [dict(zip(rows.dtype.names, row, strict=True)) for row in rows.tolist()]

    async def __aenter__(self) -> Engine:
        await self.executor.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.executor.stop(0.0)

    def ask(self, timeout_s: float | None = None, **pairs: str) -> asyncio.Task[Any]:
        """A request on its way; its result is the Response."""
        request = pipeline_service_pb2.Request(key=list(pairs), value=list(pairs.values()))
        return asyncio.ensure_future(self.executor.handle(request, timeout_s))


async def settle(rounds: int = 20) -> None:
    """Let everything that is ready run, without letting time pass."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def answers(response: Any) -> dict[str, str]:
    """Return the pairs of a Response, which has to be a success."""
    assert response.err_no == 0, response.err_msg
    return dict(zip(response.key, response.value, strict=True))


class Tag(Op):
    """Adds its name to the path that a request took; joins paths of several inputs."""

    def preprocess(self, input_dicts, data_id, log_id):
        paths = [str(answer.get("path", "")) for answer in input_dicts.values()]
        joined = paths[0] if len(paths) == 1 else "(" + "|".join(paths) + ")"
        return {"path": f"{joined}>{self.name}" if joined else self.name}, False, None, ""


class Holds(Op):
    """Holds every request until it is released."""

    def __init__(self) -> None:
        super().__init__("holds", [RequestOp()])
        self.entered, self.release = threading.Semaphore(0), threading.Event()

    def preprocess(self, input_dicts, data_id, log_id):
        self.entered.release()
        self.release.wait(60)
        return {"done": "1"}


def chain(*names: str, read: RequestOp | None = None) -> Op:
    """Tags in a row; returns the last."""
    op: Op = read or RequestOp()
    for name in names:
        op = Tag(name=name, input_ops=[op])
    return op


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Run a block in which only the end of the last reference frees an object."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait until another thread or process has made the condition true; fail if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the awaited condition never came true"
        time.sleep(0.002)


def side_by_side(call: Callable[[int], Any], count: int) -> list[Any]:
    """What `call(0)`, `call(1)` and so on return, each on a thread of its own, begun together."""
    together = threading.Barrier(count)

    def begun(number: int) -> Any:
        together.wait()
        return call(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(begun, range(count)))


class Clock:
    """Seconds, moved on by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def until(condition: Callable[[], bool]) -> None:
    """Do `wait_until` in a thread, so that the loop keeps running."""
    await asyncio.to_thread(wait_until, condition)


def server_for(
    last_op: Op, name: str | None = "svc", response_op: ResponseOp | None = None, **config: Any
) -> PipelineServer:
    """A prepared server on free ports; use it as a context manager."""
    server = PipelineServer(name)
    server.set_response_op(response_op or ResponseOp(input_ops=[last_op]))
    server.prepare_server(yml_dict={"rpc_port": 0, "http_port": 0, **config})
    return server


def post(
    server: PipelineServer, body: bytes | Any, path: str = "/svc/prediction", **headers: str
) -> tuple[int, Any]:
    """(status, parsed body) of a POST; `body` is JSON data or raw bytes."""
    status, _, answer = http(server, "POST", path, body, headers)
    return status, answer


def http(
    server: PipelineServer,
    method: str,
    path: str,
    body: bytes | Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, str], Any]:
    """(status, headers, parsed body) of one request on a connection of its own."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection = HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    try:
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        text = response.read()
        parsed = json.loads(text) if text else None
        return response.status, {k.lower(): v for k, v in response.getheaders()}, parsed
    finally:
        connection.close()


@contextlib.contextmanager
def client_of(server: PipelineServer) -> Iterator[PipelineClient]:
    """A client that is connected to `server`."""
    with PipelineClient() as client:
        client.connect([f"127.0.0.1:{server.rpc_port}"])
        yield client
