"""Replicas: a server as several processes, each with frontends, graph and workers of its own.

All of them listen on the same ports (SO_REUSEPORT): the system shares the connections out. Where
there is an ingress it takes the requests of its ports, and shares them out. This process only
supervises: it starts the replicas, replaces one that ends, tells all of them whether the whole is
ready, and writes the log files.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from pipeline.config.schema import ServiceConfig
from pipeline.engine.engine import Engine
from pipeline.errors import InitError
from pipeline.frontends.listen import reserve
from pipeline.observe.logs.remote import replay_bytes
from pipeline.runtime.base import (
    STRAGGLERS_S,
    Exposure,
    Pipelines,
    Runtime,
    no_ingress,
    reach_of,
    ready_line,
)
from pipeline.runtime.model_services import ModelServices
from pipeline.runtime.replica_main import ReplicaCommand, ReplicaMain, ReplicaStatus
from pipeline.runtime.replica_query import QueryReply, QueryRequest, ReplicaQuery
from pipeline.system.event_loop import waited
from pipeline.workers.process.wire import Link, framed
from pipeline.workers.restart_policy import KILLED_S, STOPPED_S, RestartSlot
from pipeline.workers.zygote.controller import Child, Zygotes

_LOGGER = logging.getLogger(__name__)

_EXIT_TIMEOUT_S = 10.0  # for a replica to end after its grace period
_DISCONNECTED_TIMEOUT_S = 5.0  # for a replica to end after its last status
_GRPC_THREADS = {"event_engine", "lifeguard"}  # gRPC's own, as long as it is in use
_GRPC_END_TIMEOUT_S = 5.0  # for them to end after the last channel was closed, on a busy machine
_FIRST, _REPLACEMENT = 0, 1  # the main functions that a replica can run


class _RunningReplica:
    """One replica as the server sees it.

    `status` is the last that it told of itself, `snapshots` the last of each of its pipelines, by
    the question that asks for it. `cause` is why we killed it, if we did.
    """

    def __init__(self, replicas: Replicas, slot: RestartSlot, zygotes: Zygotes, main: int) -> None:
        self.slot = slot
        self.status: ReplicaStatus = ReplicaStatus()
        self.snapshots: dict[str, bytes] = {}
        self.cause: str = ""
        self._replicas = replicas
        self._sent = ReplicaCommand()
        self._loop = asyncio.get_running_loop()
        self.child: Child = zygotes.start(main, slot.number, self._on_child_change)
        self._link = Link(
            self.child.sock, self._loop, ReplicaStatus, self._on_status, self._on_disconnect
        )

    def tell(self, command: ReplicaCommand) -> None:
        """Send the command, unless it is nothing new."""
        if command != self._sent:
            self._sent = command
            self._link.send(framed(command))

    def _on_status(self, status: ReplicaStatus) -> None:
        if status.is_extra:
            self._on_extra(status)
            return
        self.status = status
        if status.is_done:
            self._link.close()
            self._on_disconnect()
        self._replicas.on_status(self)

    def _on_extra(self, status: ReplicaStatus) -> None:
        for record in status.records:
            replay_bytes(record)
        if status.snapshot is not None:
            question, snapshot = status.snapshot
            self.snapshots[question] = snapshot
        if status.question is not None:
            self._replicas.queries.start(self, status.question)
        if status.reply is not None:
            self._replicas.queries.on_reply(self, status.reply)

    def send_query(self, request: QueryRequest) -> None:
        self._link.send(framed(ReplicaCommand(question=request)))

    def send_reply(self, reply: QueryReply) -> None:
        """Tell it what all replicas say to a question of its own."""
        self._link.send(framed(ReplicaCommand(reply=reply)))

    def _on_disconnect(self) -> None:
        """See that it ends, now that it has closed its socket, or we have."""
        self._kill_in(
            _DISCONNECTED_TIMEOUT_S,
            "closed its connection to the server, did not end, and was killed",
        )

    def _on_child_change(self, child: Child) -> None:
        if child.state == "stopped":
            self._kill_in(STOPPED_S, "was stopped (SIGSTOP), did not continue, and was killed")
        elif child.state == "running":
            self.slot.set_timer(None)
        else:
            self._link.drain()
            self._replicas.on_exit(self)

    def _kill_in(self, delay_s: float, cause: str) -> None:
        self.slot.set_timer(self._loop.call_later(delay_s, self._kill, cause))

    def _kill(self, cause: str) -> None:
        self.cause = cause
        self.child.kill()


class Replicas(Runtime):
    """A Runtime of several processes.

    Every replica answers for the whole: it is ready when all are, but for one that is just being
    replaced after a crash.
    """

    def __init__(
        self,
        pipelines: Pipelines,
        config: ServiceConfig,
        sidecar: ModelServices | None = None,
        exposure: Exposure | None = None,
        make: Callable[..., ReplicaMain] = ReplicaMain,
    ) -> None:
        super().__init__(pipelines, config, sidecar, exposure)
        theirs = dataclasses.replace(self._exposure, ingress=no_ingress)  # it is not theirs to run
        self._main = make(pipelines, config, theirs)
        self._zygotes: Zygotes | None = None
        self._slots = [RestartSlot(number) for number in range(config.replicas)]
        self._running: set[_RunningReplica] = set()
        self._is_up = False
        self._command = ReplicaCommand()
        self.queries: ReplicaQuery = ReplicaQuery(
            lambda: [replica for replica in self._running if replica.status.is_started]
        )

    @property
    def rpc_port(self) -> int | None:
        return self._exposure.ingress.ports.get("gRPC", self._config.rpc_port)

    @property
    def http_port(self) -> int | None:
        return self._exposure.ingress.ports.get("HTTP", self._config.http_port)

    @property
    def engine(self) -> Engine:
        raise InitError("build_dag_each_worker: the engines run in processes of their own.")

    def describe(self) -> str:
        ports = {"gRPC": self.rpc_port, "HTTP": self.http_port}
        more = f", {len(self._slots)} copies{reach_of(self._config)}"
        return ready_line(self._pipelines, ports, more)

    def fork(self) -> None:
        """Reserve the ports and fork what the replicas are forked from.

        InitError: a port is in use, or gRPC is in this process, see `require_grpc_unused`.
        """
        start_method = self._config.dag.start_method
        if start_method == "fork":
            require_grpc_unused()
        try:
            self._config = self._with_real_ports()
            main = dataclasses.replace(self._main, config=self._config)
            mains = [main, dataclasses.replace(main, is_replacement=True)]
            runtime_groups = (
                pipeline.load_predictor.runtimes(pipeline.graph.ops) for pipeline in self._pipelines
            )
            runtimes = list(dict.fromkeys(itertools.chain.from_iterable(runtime_groups)))
            self._zygotes = Zygotes(mains, start_method, runtimes=runtimes)
        except BaseException:
            self._closing.close()
            raise

    def _with_real_ports(self) -> ServiceConfig:
        """Reserve the ports; return the configuration with the replicas' ports."""
        config = self._config
        rpc_port, http_port, dag = config.rpc_port, config.http_port, config.dag
        bound_elsewhere = self._exposure.ingress.takes
        if rpc_port is not None and "gRPC" not in bound_elsewhere:
            rpc_port = self._reserve(config.rpc_host, rpc_port, "rpc_port")
        if http_port is not None and "HTTP" not in bound_elsewhere:
            http_port = self._reserve(config.http_host, http_port, "http_port")
        if dag.enable_prometheus:
            port = self._reserve(dag.prometheus_host, dag.prometheus_port, "dag.prometheus_port")
            dag = msgspec.structs.replace(dag, prometheus_port=port)
        return msgspec.structs.replace(config, rpc_port=rpc_port, http_port=http_port, dag=dag)

    def _reserve(self, host: str | None, port: int, key: str) -> int:
        held = self._closing.enter_context(
            reserve(host or self._config.host, port, key, self._config.reuse_port)
        )
        bound_port: int = held.getsockname()[1]
        return bound_port

    async def start(self) -> None:
        """Start the replicas; returns when all are ready. InitError tells why one is not."""
        assert self._zygotes is not None, "fork() comes first"
        self._loop = asyncio.get_running_loop()
        self._all_ended = asyncio.Event()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._open_logs()
        ingress_ready = await self._start_beside()
        self._zygotes.attach(self._loop)
        for slot in self._slots:
            self._launch(slot)
        await self._started
        await ingress_ready
        _LOGGER.info("%s", self.describe())

    def _answer_all(self) -> None:
        self._tell(ReplicaCommand(stop=True, cancel_grace=True))

    async def _stop(self) -> None:
        try:
            await self._drain()
            if self._zygotes is not None:
                await self._zygotes.close(KILLED_S)
        finally:
            for slot in self._slots:
                slot.set_timer(None)
            self.queries.close()
            self._exposure.ingress.close()
            if self._sidecar is not None:
                await self._sidecar.stop()
            _LOGGER.info("pipeline server stopped")
            self._closing.close()

    async def _drain(self) -> None:
        """Have the ingress end, and then the replicas, within the grace period."""
        loop, grace_s = asyncio.get_running_loop(), self._config.stop_grace_period_s
        if self._is_up and not self._command.stop:
            self._exposure.ingress.drain()
            self._tell(ReplicaCommand(drains=True))
            await waited(self._grace_cancelled, self._config.drain_delay_s)
        late = loop.call_later(grace_s, self._answer_all)
        if not self._is_up:  # the Ops will never answer the waiting requests
            self.cancel_grace()
        elif not self._command.stop:
            self._tell(ReplicaCommand(closes=True))
            await waited(self._grace_cancelled, min(STRAGGLERS_S, self._config.drain_delay_s))
        await self._exposure.ingress.stop(grace_s)
        if self._running:
            if not self._command.stop:
                self._tell(ReplicaCommand(stop=True))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_ended.wait(), grace_s + _EXIT_TIMEOUT_S)
        late.cancel()

    def _launch(self, slot: RestartSlot) -> None:
        assert self._zygotes is not None, "fork() comes first"
        if self._stopping is not None:
            return
        try:
            main = _REPLACEMENT if self._is_up else _FIRST
            replica = _RunningReplica(self, slot, self._zygotes, main)
        except InitError as error:  # no file descriptor is left
            slot.ended(f"could not be started: {error}", got_somewhere=False)
            self._replace(slot, None)
            return
        self._running.add(replica)
        self._all_ended.clear()
        replica.tell(self._command)

    def on_status(self, replica: _RunningReplica) -> None:
        """Take in that a replica started, failed to, is ready or no longer, or shows so."""
        if replica.status.is_ready:
            replica.slot.is_steady()
        if not self._is_up and len(self._running) == len(self._slots):
            self._is_up = all(
                replica.status.is_started and replica.status.is_ready for replica in self._running
            )
        self._tell_readiness()
        is_shown = self._is_up and all(replica.status.shows_ready for replica in self._running)
        if is_shown and not self._started.done():
            self._started.set_result(None)

    @property
    def _is_ready(self) -> bool:
        """True if the whole is ready: the others stand in for one that is being replaced."""
        started = [replica.status for replica in self._running if replica.status.is_started]
        return (
            self._is_up
            and bool(started)
            and all(status.is_ready for status in started)
            and not any(slot.is_looping for slot in self._slots)
        )

    def _tell_readiness(self) -> None:
        if self._stopping is None:
            self._tell(ReplicaCommand(self._is_ready))

    def _tell(self, command: ReplicaCommand) -> None:
        self._command = command
        for replica in self._running:
            replica.tell(command)

    def on_exit(self, replica: _RunningReplica) -> None:
        """Have another take the slot of a replica that has ended; its callers are disconnected."""
        self._running.discard(replica)
        self.queries.on_exit(replica)
        if not self._running:
            self._all_ended.set()
        status, slot = replica.status, replica.slot
        cause = replica.cause or ("did not start" if status.failure else replica.child.ending)
        slot.ended(cause, got_somewhere=status.is_started)
        self._replace(slot, replica.child.pid, status.failure)

    def _replace(self, slot: RestartSlot, pid: int | None, failure: str = "") -> None:
        """Restart the copy that just ended, or give up if the server never came up."""
        if self._stopping is not None:
            return
        what = f"copy {slot.number} of the server (pid {pid}) {slot.last_cause}"
        if not self._is_up:
            if not self._started.done():
                self._started.set_exception(InitError(failure or f"{what}."))
            return
        _LOGGER.error("%s: %s%s", what, slot.describe_restart(), failure and f"\n{failure}")
        slot.set_timer(self._loop.call_later(slot.pause_s, self._launch, slot))
        self._tell_readiness()


def require_grpc_unused() -> None:
    """Check, before a fork, that the child can use gRPC; InitError: this process uses it."""
    deadline = time.monotonic() + _GRPC_END_TIMEOUT_S
    while grpc_is_used():
        if time.monotonic() > deadline:
            raise InitError(
                "build_dag_each_worker: gRPC is in use in this process, so that copies of the "
                "server that are forked from it could not use it. Close the channels, "
                "PipelineClients and servers of this process first, or start this server before "
                "them, or set dag.start_method: spawn."
            )
        time.sleep(0.002)


def grpc_is_used() -> bool:
    """Return whether gRPC has threads in this process."""
    names = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has just ended
            names.add(path.read_text().strip())
    return bool(_GRPC_THREADS & names)
