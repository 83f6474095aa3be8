"""replica_main: one replica of a server, a Service that takes commands over its socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from pipeline.config.schema import ServiceConfig
from pipeline.errors import InitError, PipelineError, utf8_text
from pipeline.observe.logs.remote import LogsHome
from pipeline.runtime.base import Exposure, Pipelines
from pipeline.runtime.replica_query import QueryClient, QueryReply, QueryRequest
from pipeline.runtime.service import ReplicaContext, Service, gc_frozen
from pipeline.system.event_loop import end_tasks, loop_factory, or_stopped
from pipeline.system.resources import tune_malloc
from pipeline.workers.process.wire import Link, framed

_LOGGER = logging.getLogger(__name__)


class ReplicaCommand(msgspec.Struct, array_like=True):
    """A command to a replica: whether all replicas are ready, to stop, or to answer the rest at
    once.

    Before it stops it gets `drains`: report "not ready" and continue to serve; and `closes`: from
    then on requests come only through the ingress. Or one of these alone: a `question` of one of
    the replicas, the `reply` to its own question.
    """

    is_ready: bool = False
    drains: bool = False
    closes: bool = False
    stop: bool = False
    cancel_grace: bool = False
    question: QueryRequest | None = None
    reply: QueryReply | None = None


class ReplicaStatus(msgspec.Struct, array_like=True):
    """The status that a replica tells: all of it, or one of the last four alone.

    `shows_ready` is what its frontends say. `failure` is why it could not start. With `is_done` it
    has told everything, and ends when the server disconnects. `records` are of its log, `question`
    is for all replicas, `reply` the answer to another's. `snapshot` is one of its own in case that
    it dies, behind the question that asks for it.
    """

    is_started: bool = False
    is_ready: bool = False
    shows_ready: bool = False
    failure: str = ""
    is_done: bool = False
    records: list[bytes] = []
    question: QueryRequest | None = None
    reply: QueryReply | None = None
    snapshot: tuple[str, bytes] | None = None

    @property
    def is_extra(self) -> bool:
        """True if it tells nothing of the replica's state."""
        return bool(self.records or self.question or self.reply or self.snapshot)


@dataclass(frozen=True, slots=True)
class ReplicaMain:
    """The main function of a replica: a Service that takes commands over its socket."""

    pipelines: Pipelines
    config: ServiceConfig
    exposure: Exposure
    is_replacement: bool = False

    def service(self, replica: ReplicaContext) -> Service:
        """Return the Service, which is not started."""
        return Service(self.pipelines, self.config, replica, exposure=self.exposure)

    def __call__(self, sock: socket.socket, number: int) -> None:
        tune_malloc()
        replica = _Replica(self, number)
        try:
            replica.service.fork()
        except Exception as error:  # of any type: the server says why it does not start
            sock.sendall(framed(ReplicaStatus(failure=_failure_of(error))))
            return
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(replica.serve(sock))


class _Replica:
    """One replica, in its own process."""

    def __init__(self, main: ReplicaMain, number: int) -> None:
        self._queries = QueryClient(lambda question: self._send(ReplicaStatus(question=question)))
        self._stop = asyncio.Event()
        self._context = ReplicaContext(
            number,
            main.config.replicas,
            self._tell_readiness,
            self._queries.ask,
            main.is_replacement,
            self._stop.set,
        )
        self.service = main.service(self._context)
        self._level = main.config.log.level
        self._status = ReplicaStatus()
        self._disconnected = asyncio.Event()
        self._link: Link[ReplicaCommand] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, sock: socket.socket) -> None:
        """Serve until the server says stop, or is gone."""
        loop = asyncio.get_running_loop()
        link = self._link = Link(sock, loop, ReplicaCommand, self._on_command, self._on_disconnect)

        def send_record(record: bytes) -> None:  # from any thread
            with contextlib.suppress(RuntimeError):  # the loop is closed: the replica is ending
                loop.call_soon_threadsafe(link.send, framed(ReplicaStatus(records=[record])))

        LogsHome(self._level)(send_record)
        try:
            await self._serve_until_stopped()
        except Exception as error:  # of any type: the server says why it does not start
            self._status.failure = _failure_of(error)
        finally:
            await self.service.stop()
        await asyncio.sleep(0)  # log records of other threads are on their way
        self._status.is_done = True
        self._tell()
        await self._disconnected.wait()
        link.close()
        await end_tasks()

    async def _serve_until_stopped(self) -> None:
        if await or_stopped(self._stop, self.service.start()):
            with gc_frozen():
                self._status.is_started = True
                self._tell()
                self.service.on_snapshot(
                    lambda question, snapshot: self._send(
                        ReplicaStatus(snapshot=(question, snapshot))
                    )
                )
                if await or_stopped(self._stop, self.service.catch_up()):
                    await self._stop.wait()

    def _on_command(self, command: ReplicaCommand) -> None:
        if command.question is not None:
            self._do(self._answer(command.question))
        elif command.reply is not None:
            self._queries.on_reply(command.reply)
        else:
            self._apply(command)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, question: QueryRequest) -> None:
        word, _, rest = question.text.partition(" ")
        answer = b""
        try:
            if word in self._context.answers:
                answer = await self._context.answers[word](rest, question.number)
        except InitError:  # it has not come so far
            pass
        except Exception:  # a bug in our code: the asking replica must get an answer
            _LOGGER.exception("a question of another replica could not be answered: %s", word)
        self._send(ReplicaStatus(reply=QueryReply(question.number, [answer])))

    def _apply(self, command: ReplicaCommand) -> None:
        if command.drains:
            self._do(self.service.drain())
        if command.closes:
            self._do(self.service.close_frontends())
        if command.stop:
            self._stop.set()
        if command.cancel_grace:
            self.service.cancel_grace()
        if command.is_ready != self._status.shows_ready:
            self._status.shows_ready = command.is_ready
            self.service.show_ready(command.is_ready)
            self._tell()

    def _on_disconnect(self) -> None:
        self._stop.set()
        self._disconnected.set()

    def _tell_readiness(self, is_ready: bool) -> None:
        self._status.is_ready = is_ready
        self._tell()

    def _tell(self) -> None:
        self._send(self._status)

    def _send(self, status: ReplicaStatus) -> None:
        if self._link is not None:
            self._link.send(framed(status))


def _failure_of(error: Exception) -> str:
    """Return the text of a PipelineError, which says what is wrong; otherwise the traceback."""
    is_ours = isinstance(error, PipelineError)
    return utf8_text(str(error) if is_ours else "".join(traceback.format_exception(error)))
