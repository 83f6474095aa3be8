"""Copies: a server as several processes, each with doors, graph and workers of its own.

All of them listen on the same ports (SO_REUSEPORT): the system shares the connections out. This
process only supervises: it starts the copies, replaces one that ends, tells all of them whether
the whole is ready, and writes the log files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeline.config import ServiceConfig
from pipeline.doors.listen import reserve
from pipeline.engine.executor import DAGExecutor
from pipeline.engine.graph import Graph
from pipeline.engine.workers.frames import Link, framed
from pipeline.engine.workers.supervision import Place
from pipeline.engine.workers.zygote import Child, Zygotes
from pipeline.errors import InitError, utf8_text
from pipeline.event_loop import loop_factory
from pipeline.observe.records import LogsHome, replay_bytes
from pipeline.service import CopyRole, Service, described, open_logs, warnings_about

_LOGGER = logging.getLogger(__name__)

_END_S = 10.0  # for a copy to end after its grace period
_KILLED_S = 5.0  # for the system to end processes that were killed


class Order(msgspec.Struct, array_like=True):
    """What a copy is told: whether the whole is ready, to stop, to answer what is left at once."""

    is_ready: bool = False
    stop: bool = False
    hurry: bool = False


class Word(msgspec.Struct, array_like=True):
    """What a copy tells. `failure` is why it could not start; `records` are log lines."""

    is_started: bool = False
    is_ready: bool = False
    failure: str = ""
    records: list[bytes] = []


# In a copy ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyMain:
    """The main function of a copy: a Service that takes orders over its socket."""

    name: str | None
    graph: Graph
    config: ServiceConfig
    base_dir: Path

    def __call__(self, sock: socket.socket, number: int) -> None:
        copy = _Copy(self, number)
        copy.service.fork()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(copy.serve(sock))


class _Copy:
    """One copy, in its own process."""

    def __init__(self, main: CopyMain, number: int) -> None:
        role = CopyRole(number, self._tell_readiness)
        self.service = Service(main.name, main.graph, main.config, main.base_dir, role)
        self._level = main.config.log.level
        self._is_started = False
        self._is_ready = False
        self._stop = asyncio.Event()
        self._link: Link[Order] | None = None

    async def serve(self, sock: socket.socket) -> None:
        """Until the server says stop, or is gone."""
        loop = asyncio.get_running_loop()
        link = self._link = Link(sock, loop, Order, self._obey, self._stop.set)
        LogsHome(self._level)(
            lambda record: _from_any_thread(loop, link, framed(Word(records=[record])))
        )
        try:
            await self.service.start()
            self._is_started = True
            self._tell()
            await self._stop.wait()
        except InitError as error:
            link.send(framed(Word(failure=utf8_text(str(error)))))
        finally:
            await self.service.stop()
            await asyncio.sleep(0)  # log records of other threads are on their way
            link.close()

    def _obey(self, order: Order) -> None:
        if order.stop:
            self._stop.set()
        if order.hurry:
            self.service.hurry()
        if self._is_started and not self._stop.is_set():
            self.service.show_ready(order.is_ready)

    def _tell_readiness(self, is_ready: bool) -> None:
        self._is_ready = is_ready
        if not is_ready:
            self.service.show_ready(False)
        self._tell()

    def _tell(self) -> None:
        if self._link is not None:
            self._link.send(framed(Word(self._is_started, self._is_ready)))


def _from_any_thread(loop: asyncio.AbstractEventLoop, link: Link[Order], frame: bytes) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the copy is ending
        loop.call_soon_threadsafe(link.send, frame)


# In the server ------------------------------------------------------------------------------


class _RunningCopy:
    """One copy as the server sees it."""

    def __init__(self, copies: Copies, place: Place, zygotes: Zygotes) -> None:
        self.place = place
        self.is_started = False
        self.is_ready = False
        self.failure = ""
        self._copies = copies
        self.child = zygotes.start(0, place.number, self._changed)
        loop = asyncio.get_running_loop()
        self.link = Link(self.child.sock, loop, Word, self._heard, self.child.kill)

    def send(self, order: Order) -> None:
        self.link.send(framed(order))

    def _heard(self, word: Word) -> None:
        for record in word.records:
            replay_bytes(record)
        if word.records:
            return
        self.failure = self.failure or word.failure
        self.is_started = self.is_started or word.is_started
        self.is_ready = word.is_ready
        self._copies.heard_of(self)

    def _changed(self, child: Child) -> None:
        if child.state == "ended":
            self.link.drain()
            self._copies.ended(self)


class Copies:
    """A service of several processes, with the interface of `Service`.

    Every copy answers for the whole: it is ready when all are, but for one that is just being
    replaced after a crash.
    """

    def __init__(
        self, name: str | None, graph: Graph, config: ServiceConfig, base_dir: Path
    ) -> None:
        self._name = name
        self._graph = graph
        self._config = config
        self._base_dir = base_dir
        self._closing = contextlib.ExitStack()
        self._zygotes: Zygotes | None = None
        self._places = [Place(number) for number in range(config.copies)]
        self._running: set[_RunningCopy] = set()
        self._is_up = False
        self._is_stopping = False
        self._stopping: asyncio.Task[None] | None = None
        self._was_ready = False
        self.rpc_port: int | None = None
        self.http_port: int | None = None

    @property
    def executor(self) -> DAGExecutor:
        raise InitError("build_dag_each_worker: the engines run in processes of their own.")

    def describe(self) -> str:
        """One line for whoever started the server."""
        line = described(self._name, self.rpc_port, self.http_port)
        return f"{line}, {len(self._places)} processes"

    def fork(self) -> None:
        """Reserve the ports and fork what the copies are forked from."""
        try:
            self.rpc_port = self._reserve(self._config.rpc_port, "rpc_port")
            self.http_port = self._reserve(self._config.http_port, "http_port")
            config = msgspec.structs.replace(
                self._config, rpc_port=self.rpc_port, http_port=self.http_port
            )
            main = CopyMain(self._name, self._graph, config, self._base_dir)
            self._zygotes = Zygotes([main])
        except BaseException:
            self._closing.close()
            raise

    def _reserve(self, port: int | None, key: str) -> int | None:
        if port is None:
            return None
        held = self._closing.enter_context(reserve(self._config.host, port, key))
        found: int = held.getsockname()[1]
        return found

    async def start(self) -> None:
        """Start the copies; returns when all are ready. InitError tells why one is not."""
        assert self._zygotes is not None, "fork() comes first"
        self._closing.enter_context(open_logs(self._config.log))
        for warning in warnings_about(self._config, self._graph):
            _LOGGER.warning("%s", warning)
        self._loop = asyncio.get_running_loop()
        self._all_ended = asyncio.Event()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._zygotes.attach(self._loop)
        for place in self._places:
            self._launch(place)
        await self._started
        _LOGGER.info("%s", self.describe())

    async def stop(self) -> None:
        """Have the copies drain for the grace period, and end them."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    def hurry(self) -> None:
        """Cut the grace period short: what is left is answered at once."""
        self._tell_all(Order(stop=True, hurry=True))

    async def _stop(self) -> None:
        self._is_stopping = True
        for place in self._places:
            place.set_timer(None)
        if self._running:
            self._tell_all(Order(stop=True, hurry=not self._is_up))
            with contextlib.suppress(TimeoutError):
                limit_s = self._config.stop_grace_period_s + _END_S
                await asyncio.wait_for(self._all_ended.wait(), limit_s)
        if self._zygotes is not None:
            await self._zygotes.close(_KILLED_S)
        _LOGGER.info("pipeline server stopped")
        self._closing.close()

    def _launch(self, place: Place) -> None:
        assert self._zygotes is not None, "fork() comes first"
        place.set_timer(None)
        self._running.add(_RunningCopy(self, place, self._zygotes))

    def heard_of(self, copy: _RunningCopy) -> None:
        """A copy started, failed to, or is ready or no longer."""
        if copy.is_ready:
            copy.place.failures = 0
        is_complete = len(self._running) == len(self._places)
        if is_complete and all(other.is_ready for other in self._running):
            self._is_up = True
            if not self._started.done():
                self._started.set_result(None)
        self._tell_readiness()
        copy.send(Order(self._is_ready))

    @property
    def _is_ready(self) -> bool:
        """Whether the whole is: one that is being replaced is made good by the others."""
        started = [copy for copy in self._running if copy.is_started]
        return (
            self._is_up
            and not self._is_stopping
            and bool(started)
            and all(copy.is_ready for copy in started)
            and not any(place.is_looping for place in self._places)
        )

    def _tell_readiness(self) -> None:
        if self._was_ready != self._is_ready:
            self._was_ready = self._is_ready
            self._tell_all(Order(self._was_ready))

    def _tell_all(self, order: Order) -> None:
        for copy in self._running:
            copy.send(order)

    def ended(self, copy: _RunningCopy) -> None:
        """A copy is gone: its callers see their connections close; another takes its place."""
        self._running.discard(copy)
        if not self._running:
            self._all_ended.set()
        place = copy.place
        place.ended(copy.child.ending, got_somewhere=copy.is_started)
        if self._is_stopping:
            return
        if not self._is_up:
            reason = copy.failure or f"a copy of the server {place.last_cause}"
            if not self._started.done():
                self._started.set_exception(InitError(reason))
            return
        _LOGGER.error(
            "copy %d of the server (pid %s) %s: %s%s",
            place.number,
            copy.child.pid,
            place.last_cause,
            place.describe_restart(),
            f"\n{copy.failure}" if copy.failure else "",
        )
        place.set_timer(self._loop.call_later(place.pause_s, self._launch, place))
        self._tell_readiness()
