"""The worker kind `ray`: the parts that all actors of a server share."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.sections import RayConfig, RayOpConfig
from pipeline.engine.worker_api import WorkerContext, WorkersOwner
from pipeline.errors import ConfigError
from pipeline.op import Op
from pipeline.system.script import MODULES
from pipeline.workers.inbox import LoopInbox
from pipeline.workers.ray.api import RayApi
from pipeline.workers.ray.cargo import ActorSetup, for_transport
from pipeline.workers.ray.clock import boot_id
from pipeline.workers.ray.cluster import RayCluster
from pipeline.workers.ray.link import RayContext, Sender
from pipeline.workers.ray.models import model_files
from pipeline.workers.ray.objects import RayMemory
from pipeline.workers.ray.pool import RayWorkers
from pipeline.workers.zygote.spawn import classes_of

_CLOSE_TIMEOUT_S = 20.0


class RayKind:
    """Actors of one cluster, whose payloads are in its store; see `WorkerKind`.

    Args:
        api: replaces Ray, in tests.
    """

    def __init__(
        self, ops: Sequence[Op], context: WorkerContext, api: RayApi | None = None
    ) -> None:
        self._ops = list(ops)
        self._context = context
        self._config: RayConfig = context.config.dag.ray
        self._api: RayApi = api or RayCluster()
        self._pools: dict[str, RayWorkers] = {}
        self._connected: asyncio.Task[None] | None = None
        self._models: dict[str, tuple[str, ...]] = {}  # names of the files that are sent
        self.start_timeout_s: float = self._config.start_timeout_s

    def fork(self) -> None:
        """Check `near` of the Ops; nothing is forked."""
        for op in self._ops:
            _check_near(op, {other.name: other for other in self._ops})

    def attach(self, loop: asyncio.AbstractEventLoop, schedule: Callable[[], None]) -> None:
        self._loop, self._schedule = loop, schedule
        memory = RayMemory(self._api, self._context.config.dag.trust_workers)
        inbox = LoopInbox(loop, after=schedule)
        self._shared = RayContext(
            self._api, memory, inbox, Sender("control"), self._context.on_record
        )

    def workers(self, op: Op, count: int, owner: WorkersOwner) -> RayWorkers:
        readers = list(op.pipeline_consumers)
        passes_on = bool(readers) and set(self._ops).issuperset(readers)
        # A cache reads the requests and the answers in this process.
        passes_on &= not any(reader.pipeline_config.response_cache for reader in (op, *readers))
        pool = RayWorkers(
            op, count, self._loop, self._shared, owner, self._schedule, self, passes_on
        )
        self._pools[op.name] = pool
        return pool

    async def close(self) -> None:
        if self._connected is None:
            return
        await asyncio.wait([self._connected])
        closed = asyncio.Event()
        control = self._shared.control
        control.do(self._api.close)
        control.do(lambda: self._shared.inbox.post(lambda *_: closed.set(), None, None))
        control.close()
        if not self._connected.cancelled() and self._connected.exception() is None:
            with contextlib.suppress(TimeoutError):  # of a cluster that does not reply any more
                await asyncio.wait_for(closed.wait(), _CLOSE_TIMEOUT_S)

    # For the workers ----------------------------------------------------------------------------

    async def prepare(self, op: Op) -> Sequence[Any]:
        if self._connected is None:
            self._connected = self._loop.create_task(self._connect())
        await asyncio.shield(self._connected)
        near = op.pipeline_config.ray.near
        if near is not None:
            await self._pools[near].has_started.wait()
        return await asyncio.to_thread(self._put_model, op)

    async def _connect(self) -> None:
        try:
            await asyncio.to_thread(self._api.connect, self._config)
        finally:
            _take_back_sigterm()
        self._shared.control.start()

    def _put_model(self, op: Op) -> Sequence[Any]:
        """Put a model into the store, if it has to be sent. Not on the loop."""
        path = op.pipeline_config.local_service_conf.model_config
        if path is None or op.pipeline_config.ray.model_from != "store":
            return []
        beside = self._context.base_dir / path
        files = model_files(op, beside if beside.exists() else Path(path))
        self._models[op.name] = tuple(files)
        return [self._api.put(data) for data in files.values()]

    def cargo(self, op: Op, number: int, look_s: float) -> ActorSetup:
        context = self._context
        return ActorSetup(
            for_transport(op),
            number,
            context.set_up,
            context.keep_logs,
            boot_id(),
            self._api.where,
            look_s,
            classes_of(sys.modules["__main__"], *MODULES),
            self._models.get(op.name, ()),
        )

    def node_for(self, op: Op, number: int, silent: str) -> str | None:
        wanted: RayOpConfig = op.pipeline_config.ray
        if wanted.near is not None:
            nodes = sorted({*self._pools[wanted.near].nodes} - {"", silent})
        elif silent:
            all_nodes = (node for pool in self._pools.values() for node in pool.nodes)
            nodes = sorted({*all_nodes} - {"", silent})
        elif wanted.placement == "pack":
            nodes = [node for node in self._pools[op.name].nodes if node][:1]
        else:
            nodes = []
        return nodes[number % len(nodes)] if nodes else None

    async def describe_room(self) -> str:
        return await asyncio.to_thread(self._api.describe_room)


def _take_back_sigterm() -> None:
    """Restore the handler of SIGTERM: Ray's native part has installed one that aborts."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:  # otherwise it is not Python's
            signal.signal(signal.SIGTERM, handler)
            signal.siginterrupt(signal.SIGTERM, False)


def _check_near(op: Op, others: Mapping[str, Op]) -> None:
    """Raise ConfigError if an Op waits for one that is not an actor, or that waits for it."""
    seen = [op.name]
    while (near := others[seen[-1]].pipeline_config.ray.near) is not None:
        if near not in others or near in seen:
            why = "they wait for each other" if near in seen else "there are no actors of that name"
            raise ConfigError(f"op.{op.name}.ray.near: {' near '.join([*seen, near])}: {why}")
        seen.append(near)
