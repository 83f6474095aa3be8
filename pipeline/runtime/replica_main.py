"""One copy of a server, in a process of its own: a Service that takes orders over its socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from pipeline.config.schema import ServiceConfig
from pipeline.engine.graph import Graph
from pipeline.errors import InitError, PipelineError, utf8_text
from pipeline.observe.logs.remote import LogsHome
from pipeline.runtime.predictor_loader import PredictorLoader
from pipeline.runtime.replica_query import QueryClient, QueryReply, QueryRequest
from pipeline.runtime.service import Exposure, ReplicaContext, Service, gc_frozen
from pipeline.system.event_loop import end_tasks, loop_factory, or_stopped
from pipeline.system.malloc import tune_malloc
from pipeline.workers.process.wire import Link, framed


class ReplicaCommand(msgspec.Struct, array_like=True):
    """What a copy is told: whether the whole is ready, to stop, to answer what is left at once.

    Before it stops it is told that it `drains`, which is to say not ready and to serve on, and that
    it `closes`: from then on requests come through the front only.
    Or one of these alone: a `question` of one of the copies, the `reply` to one of its own.
    """

    is_ready: bool = False
    drains: bool = False
    closes: bool = False
    stop: bool = False
    cancel_grace: bool = False
    question: QueryRequest | None = None
    reply: QueryReply | None = None


class ReplicaStatus(msgspec.Struct, array_like=True):
    """What a copy tells: all of how it is, or one of the last four alone.

    `shows_ready` is what its doors say. `failure` is why it could not start. With `is_over` it
    has said everything, and ends when the server parts. `records` are of its log, `question` is
    for all copies, `reply` the answer to another's, `snapshot` its Snapshot, in case that it dies.
    """

    is_started: bool = False
    is_ready: bool = False
    shows_ready: bool = False
    failure: str = ""
    is_over: bool = False
    records: list[bytes] = []
    question: QueryRequest | None = None
    reply: QueryReply | None = None
    snapshot: bytes = b""

    @property
    def is_aside(self) -> bool:
        """Whether it says nothing of how the copy is."""
        return bool(self.records or self.question or self.reply or self.snapshot)


@dataclass(frozen=True, slots=True)
class ReplicaMain:
    """The main function of a copy: a Service that takes orders over its socket."""

    name: str | None
    graph: Graph
    config: ServiceConfig
    load_predictor: PredictorLoader
    outside: Exposure
    is_replacement: bool = False

    def __call__(self, sock: socket.socket, number: int) -> None:
        tune_malloc()
        copy = _Replica(self, number)
        try:
            copy.service.fork()
        except Exception as error:  # whatever it is: the server says why it does not start
            sock.sendall(framed(ReplicaStatus(failure=_described(error))))
            return
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(copy.serve(sock))


class _Replica:
    """One copy, in its own process."""

    def __init__(self, main: ReplicaMain, number: int) -> None:
        self._queries = QueryClient(lambda question: self._say(ReplicaStatus(question=question)))
        role = ReplicaContext(number, self._tell_readiness, self._queries.ask, main.is_replacement)
        self.service = Service(
            main.name, main.graph, main.config, main.load_predictor, role, outside=main.outside
        )
        self._level = main.config.log.level
        self._word = ReplicaStatus()
        self._stop = asyncio.Event()
        self._parted = asyncio.Event()
        self._link: Link[ReplicaCommand] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, sock: socket.socket) -> None:
        """Until the server says stop, or is gone."""
        loop = asyncio.get_running_loop()
        link = self._link = Link(sock, loop, ReplicaCommand, self._obey, self._lost_server)
        LogsHome(self._level)(
            lambda record: _from_any_thread(loop, link, framed(ReplicaStatus(records=[record])))
        )
        try:
            await self._serve_until_stopped()
        except Exception as error:  # whatever it is: the server says why it does not start
            self._word.failure = _described(error)
        finally:
            await self.service.stop()
        await asyncio.sleep(0)  # log records of other threads are on their way
        self._word.is_over = True
        self._tell()
        await self._parted.wait()
        link.close()
        await end_tasks()

    async def _serve_until_stopped(self) -> None:
        if await or_stopped(self._stop, self.service.start()):
            with gc_frozen():
                self._word.is_started = True
                self._tell()
                self.service.observation.on_snapshot(
                    lambda snapshot: self._say(ReplicaStatus(snapshot=snapshot))
                )
                await self._stop.wait()

    def _obey(self, order: ReplicaCommand) -> None:
        if order.question is not None:
            self._do(self._answer(order.question))
        elif order.reply is not None:
            self._queries.on_reply(order.reply)
        else:
            self._follow(order)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, question: QueryRequest) -> None:
        try:
            answer = await self.service.observation.answer(question.text)
        except InitError:  # it has not come so far
            answer = b""
        self._say(ReplicaStatus(reply=QueryReply(question.number, [answer])))

    def _follow(self, order: ReplicaCommand) -> None:
        if order.drains:
            self._do(self.service.drain())
        if order.closes:
            self._do(self.service.close_doors())
        if order.stop:
            self._stop.set()
        if order.cancel_grace:
            self.service.cancel_grace()
        if order.is_ready != self._word.shows_ready:
            self._word.shows_ready = order.is_ready
            self.service.show_ready(order.is_ready)
            self._tell()

    def _lost_server(self) -> None:
        self._stop.set()
        self._parted.set()

    def _tell_readiness(self, is_ready: bool) -> None:
        self._word.is_ready = is_ready
        self._tell()

    def _tell(self) -> None:
        self._say(self._word)

    def _say(self, word: ReplicaStatus) -> None:
        if self._link is not None:
            self._link.send(framed(word))


def _from_any_thread(
    loop: asyncio.AbstractEventLoop, link: Link[ReplicaCommand], frame: bytes
) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the copy is ending
        loop.call_soon_threadsafe(link.send, frame)


def _described(error: Exception) -> str:
    """Our own errors say what is wrong, and show the traceback if it is the user's."""
    is_ours = isinstance(error, PipelineError)
    return utf8_text(str(error) if is_ours else "".join(traceback.format_exception(error)))
