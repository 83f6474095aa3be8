"""Replicas: a server as several processes, each with doors, graph and workers of its own.

All of them listen on the same ports (SO_REUSEPORT): the system shares the connections out. Where
there is a front it takes HTTP, and shares the requests out. This process only supervises: it starts
the copies, replaces one that ends, tells all of them whether the whole is ready, and writes the log
files.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from typing import Any

import msgspec

from pipeline.config.schema import DagConfig, ServiceConfig
from pipeline.engine.engine import Engine
from pipeline.engine.graph import Graph
from pipeline.engine.startup_log import told_if_slow
from pipeline.errors import InitError
from pipeline.frontends.grpc.fork_guard import require_grpc_unused
from pipeline.frontends.listen import reserve
from pipeline.observe.logs.remote import replay_bytes
from pipeline.observe.logs.setup import open_logs
from pipeline.runtime.ingress import NoIngress
from pipeline.runtime.predictor_loader import PredictorLoader
from pipeline.runtime.replica_main import ReplicaCommand, ReplicaMain, ReplicaStatus
from pipeline.runtime.replica_query import (
    SNAPSHOT,
    QueryReply,
    QueryRequest,
    ReplicaQuery,
    RetiredCounters,
)
from pipeline.runtime.service import LAST_S, Exposure, Sidecar, described, log_warnings
from pipeline.system.event_loop import waited
from pipeline.workers.process.wire import Link, framed
from pipeline.workers.restart_policy import KILLED_S, STOPPED_S, RestartSlot
from pipeline.workers.zygote.controller import Child, Zygotes

_LOGGER = logging.getLogger(__name__)

_END_S = 10.0  # for a copy to end after its grace period
_PARTED_S = 5.0  # for a copy to end after its last word
_FIRST, _REPLACEMENT = 0, 1  # the main functions that a copy can run


class _RunningReplica:
    """One copy as the server sees it.

    `word` is the last that it said of itself, `snapshot` its last Snapshot. `cause` is why we
    killed it, if we did.
    """

    def __init__(self, copies: Replicas, place: RestartSlot, zygotes: Zygotes, main: int) -> None:
        self.place = place
        self.word: ReplicaStatus = ReplicaStatus()
        self.snapshot: bytes = b""
        self.cause: str = ""
        self._copies = copies
        self._told = ReplicaCommand()
        self._loop = asyncio.get_running_loop()
        self.child: Child = zygotes.start(main, place.number, self._changed)
        self._link = Link(self.child.sock, self._loop, ReplicaStatus, self._heard, self._parted)

    def tell(self, order: ReplicaCommand) -> None:
        """Say it, unless it is nothing new."""
        if order != self._told:
            self._told = order
            self._link.send(framed(order))

    def _heard(self, word: ReplicaStatus) -> None:
        if word.is_aside:
            self._heard_aside(word)
            return
        self.word = word
        if word.is_over:
            self._link.close()
            self._parted()
        self._copies.heard_of(self)

    def _heard_aside(self, word: ReplicaStatus) -> None:
        for record in word.records:
            replay_bytes(record)
        self.snapshot = word.snapshot or self.snapshot
        if word.question is not None:
            self._copies.queries.start(self, word.question)
        if word.reply is not None:
            text = self._copies.queries.on_reply(self, word.reply)
            if text == SNAPSHOT:  # what has been shown must not be less when this copy is dead
                self.snapshot = b"".join(word.reply.answers) or self.snapshot

    def send_query(self, request: QueryRequest) -> None:
        """Ask it."""
        self._link.send(framed(ReplicaCommand(question=request)))

    def send_reply(self, reply: QueryReply) -> None:
        """Tell it what all copies say to a question of its own."""
        self._link.send(framed(ReplicaCommand(reply=reply)))

    def _parted(self) -> None:
        """It has closed its socket, or we have: it is about to end."""
        self._kill_in(_PARTED_S, "closed its connection to the server, did not end, and was killed")

    def _changed(self, child: Child) -> None:
        if child.state == "stopped":
            self._kill_in(STOPPED_S, "was stopped (SIGSTOP), did not go on, and was killed")
        elif child.state == "running":
            self.place.set_timer(None)
        else:
            self._link.drain()
            self._copies.ended(self)

    def _kill_in(self, delay_s: float, cause: str) -> None:
        self.place.set_timer(self._loop.call_later(delay_s, self._kill, cause))

    def _kill(self, cause: str) -> None:
        self.cause = cause
        self.child.kill()


class Replicas:
    """A service of several processes, with the interface of `Service`.

    Every copy answers for the whole: it is ready when all are, but for one that is just being
    replaced after a crash.
    """

    def __init__(
        self,
        name: str | None,
        graph: Graph,
        config: ServiceConfig,
        load_predictor: PredictorLoader,
        companion: Sidecar | None = None,
        outside: Exposure | None = None,
    ) -> None:
        self._name = name
        self._graph = graph
        self._config = config
        self._load_predictor = load_predictor
        self._companion = companion
        self._outside = outside or Exposure()
        self._closing = contextlib.ExitStack()
        self._zygotes: Zygotes | None = None
        self._places = [RestartSlot(number) for number in range(config.copies)]
        self._running: set[_RunningReplica] = set()
        self._is_up = False
        self._order = ReplicaCommand()
        self._retired = RetiredCounters()
        self.queries: ReplicaQuery = ReplicaQuery(
            lambda: [copy for copy in self._running if copy.word.is_started],
            lambda copy, text: copy.snapshot if text == SNAPSHOT else b"",
            lambda text: self._retired.snapshots() if text == SNAPSHOT else [],
        )
        self._stopping: asyncio.Task[None] | None = None
        self._hurried = asyncio.Event()
        self.rpc_port: int | None = None
        self._http_port: int | None = None

    @property
    def http_port(self) -> int | None:
        return self._outside.front.port if self._outside.front.takes_http else self._http_port

    @property
    def executor(self) -> Engine:
        raise InitError("build_dag_each_worker: the engines run in processes of their own.")

    def describe(self) -> str:
        """One line for whoever started the server."""
        line = described(self._name, {"gRPC": self.rpc_port, "HTTP": self.http_port})
        return f"{line}, {len(self._places)} copies"

    def fork(self) -> None:
        """Reserve the ports and fork what the copies are forked from.

        Raises:
            InitError: a port is in use, or gRPC is in this process, see `require_grpc_unused`.
        """
        start_method = self._config.dag.start_method
        if start_method == "fork":
            require_grpc_unused()
        try:
            main = ReplicaMain(
                self._name,
                self._graph,
                msgspec.structs.replace(self._config, **self._reserved()),
                self._load_predictor,
                dataclasses.replace(self._outside, front=NoIngress()),  # it is not theirs to run
            )
            mains = [main, dataclasses.replace(main, is_replacement=True)]
            self._zygotes = Zygotes(mains, start_method)
        except BaseException:
            self._closing.close()
            raise

    def _reserved(self) -> dict[str, Any]:
        """What the copies' configuration says of ports: the real ones, which are theirs alone."""
        self.rpc_port = self._reserve(self._config.rpc_port, "rpc_port")
        found: dict[str, Any] = {"rpc_port": self.rpc_port}
        if not self._outside.front.takes_http:  # else it is bound by who does
            found["http_port"] = self._http_port = self._reserve(
                self._config.http_port, "http_port"
            )
        return {**found, "dag": self._dag()}

    def _dag(self) -> DagConfig:
        """`dag` with the port of the metrics, if there is one."""
        dag = self._config.dag
        if not dag.enable_prometheus:
            return dag
        port = self._reserve(dag.prometheus_port, "dag.prometheus_port")
        return msgspec.structs.replace(dag, prometheus_port=port)

    def _reserve(self, port: int | None, key: str) -> int | None:
        if port is None:
            return None
        held = self._closing.enter_context(
            reserve(self._config.host, port, key, self._config.reuse_port)
        )
        found: int = held.getsockname()[1]
        return found

    async def start(self) -> None:
        """Start the copies; returns when all are ready. InitError tells why one is not."""
        assert self._zygotes is not None, "fork() comes first"
        self._loop = asyncio.get_running_loop()
        self._all_ended = asyncio.Event()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._closing.enter_context(open_logs(self._config.log))
        log_warnings(self._config, self._graph)
        fronted = self._outside.front.start()
        if self._companion is not None:
            await told_if_slow("model services", self._companion.start(), self._loop)
        self._zygotes.attach(self._loop)
        for place in self._places:
            self._launch(place)
        await self._started
        await fronted
        _LOGGER.info("%s", self.describe())

    async def stop(self) -> None:
        """Have the copies drain for the grace period, and end them."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    def cancel_grace(self) -> None:
        """Cut the grace period short: what is left is answered at once."""
        self._hurried.set()
        self._outside.front.cancel_grace()
        self._tell_to_hurry()

    def _tell_to_hurry(self) -> None:
        self._tell(ReplicaCommand(stop=True, cancel_grace=True))

    async def _stop(self) -> None:
        try:
            await self._drain()
            if self._zygotes is not None:
                await self._zygotes.close(KILLED_S)
        finally:
            for place in self._places:
                place.set_timer(None)
            self.queries.close()
            self._outside.front.close()
            if self._companion is not None:
                await self._companion.stop()
            _LOGGER.info("pipeline server stopped")
            self._closing.close()

    async def _drain(self) -> None:
        """Have the front end, and then the copies, within the grace period."""
        loop, grace_s = asyncio.get_running_loop(), self._config.stop_grace_period_s
        if self._is_up and not self._order.stop:
            self._outside.front.drain()
            self._tell(ReplicaCommand(drains=True))
            await waited(self._hurried, self._config.drain_delay_s)
        late = loop.call_later(grace_s, self._tell_to_hurry)
        if not self._is_up:  # what waits for the Ops waits in vain
            self.cancel_grace()
        elif not self._order.stop:
            self._tell(ReplicaCommand(closes=True))
            await waited(self._hurried, min(LAST_S, self._config.drain_delay_s))
        await self._outside.front.stop(grace_s)
        if self._running:
            if not self._order.stop:
                self._tell(ReplicaCommand(stop=True))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_ended.wait(), grace_s + _END_S)
        late.cancel()

    def _launch(self, place: RestartSlot) -> None:
        assert self._zygotes is not None, "fork() comes first"
        if self._stopping is not None:
            return
        try:
            main = _REPLACEMENT if self._is_up else _FIRST
            copy = _RunningReplica(self, place, self._zygotes, main)
        except InitError as error:  # no file descriptor is left
            place.ended(f"could not be started: {error}", got_somewhere=False)
            self._make_good(place, None)
            return
        self._running.add(copy)
        self._all_ended.clear()
        copy.tell(self._order)

    def heard_of(self, copy: _RunningReplica) -> None:
        """A copy started, failed to, is ready or no longer, or says so at its doors."""
        if copy.word.is_ready:
            copy.place.is_steady()
        if not self._is_up and len(self._running) == len(self._places):
            self._is_up = all(each.word.is_started and each.word.is_ready for each in self._running)
        self._tell_readiness()
        is_shown = self._is_up and all(each.word.shows_ready for each in self._running)
        if is_shown and not self._started.done():
            self._started.set_result(None)

    @property
    def _is_ready(self) -> bool:
        """Whether the whole is: one that is being replaced is made good by the others."""
        started = [copy.word for copy in self._running if copy.word.is_started]
        return (
            self._is_up
            and bool(started)
            and all(word.is_ready for word in started)
            and not any(place.is_looping for place in self._places)
        )

    def _tell_readiness(self) -> None:
        if self._stopping is None:
            self._tell(ReplicaCommand(self._is_ready))

    def _tell(self, order: ReplicaCommand) -> None:
        self._order = order
        for copy in self._running:
            copy.tell(order)

    def ended(self, copy: _RunningReplica) -> None:
        """A copy is gone: its callers see their connections close; another takes its place."""
        self._running.discard(copy)
        self._retired.add(copy.snapshot)
        self.queries.on_exit(copy)
        if not self._running:
            self._all_ended.set()
        word, place = copy.word, copy.place
        cause = copy.cause or ("did not start" if word.failure else copy.child.ending)
        place.ended(cause, got_somewhere=word.is_started)
        self._make_good(place, copy.child.pid, word.failure)

    def _make_good(self, place: RestartSlot, pid: int | None, failure: str = "") -> None:
        """Have what just ended started anew, or give up if the server never came up."""
        if self._stopping is not None:
            return
        what = f"copy {place.number} of the server (pid {pid}) {place.last_cause}"
        if not self._is_up:
            if not self._started.done():
                self._started.set_exception(InitError(failure or f"{what}."))
            return
        _LOGGER.error("%s: %s%s", what, place.describe_restart(), failure and f"\n{failure}")
        place.set_timer(self._loop.call_later(place.pause_s, self._launch, place))
        self._tell_readiness()
