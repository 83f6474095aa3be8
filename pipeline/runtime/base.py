"""Runtime: the processes of a server, one or several, and what both have beside them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from pipeline.config.schema import LogConfig, ServiceConfig, batch_fill_warnings, unknown_ops
from pipeline.engine.engine import Engine
from pipeline.engine.graph import Graph
from pipeline.engine.hooks import doubtful_names
from pipeline.engine.startup_log import told_if_slow
from pipeline.frontends.base import OpenFrontends
from pipeline.frontends.registry import pipeline_frontends
from pipeline.observe.logs.setup import open_logs
from pipeline.observe.logs.terminal import TOLD
from pipeline.runtime.ingress import Ingress, no_ingress

_LOGGER = logging.getLogger(__name__)

STRAGGLERS_S = 0.2  # for requests of callers that could not know yet that frontends are closed


class Sidecar(Protocol):
    """A program that has to run before a server can start, and ends after it."""

    async def start(self) -> None:
        """Return when it runs; InitError says why it does not."""

    async def stop(self) -> None:
        """End it. May be called without `start`, and twice."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """The outside of a server: its frontends, where its logs go, what stands before all."""

    frontends: OpenFrontends = pipeline_frontends
    logs: Callable[[LogConfig], AbstractContextManager[object]] = open_logs
    ingress: Ingress = no_ingress


class Runtime(ABC):
    """The processes of a server, and their life: what `run_server` runs."""

    def __init__(
        self, config: ServiceConfig, sidecar: Sidecar | None, exposure: Exposure | None
    ) -> None:
        self._config = config
        self._sidecar = sidecar
        self._exposure = exposure or Exposure()
        self._closing = contextlib.ExitStack()
        self._stopping: asyncio.Task[None] | None = None
        self._grace_cancelled = asyncio.Event()

    @property
    @abstractmethod
    def rpc_port(self) -> int | None:
        """The gRPC port, the real one where 0 was configured."""

    @property
    @abstractmethod
    def http_port(self) -> int | None:
        """The HTTP port; None: there is no HTTP."""

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine; InitError if it is not in this process, or not started."""

    @abstractmethod
    def describe(self) -> str:
        """Return one line for whoever started the server."""

    @abstractmethod
    def fork(self) -> None:
        """Fork what processes are forked from: before there are threads or gRPC objects.

        Those do not survive a fork, and locks that they hold stay locked in the child.
        """

    @abstractmethod
    async def start(self) -> None:
        """Return when requests are answered; InitError says why they are not."""

    async def stop(self) -> None:
        """Take no more requests, answer what is left within the grace period, end all."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    @abstractmethod
    async def _stop(self) -> None:
        """Do what `stop` says; called once."""

    def cancel_grace(self) -> None:
        """End the grace period: what is left is answered at once."""
        self._grace_cancelled.set()
        self._exposure.ingress.cancel_grace()
        self._answer_all()

    @abstractmethod
    def _answer_all(self) -> None:
        """Answer all requests at once."""

    def _open_logs(self, graph: Graph) -> None:
        """Begin to log, until `_closing` is closed."""
        self._closing.enter_context(self._exposure.logs(self._config.log))
        log_warnings(self._config, graph)

    async def _start_beside(self) -> asyncio.Future[None]:
        """Start the sidecar, and the ingress, which is up when what is returned is done."""
        ingress_ready = self._exposure.ingress.start()
        if self._sidecar is not None:
            loop = asyncio.get_running_loop()
            await told_if_slow("model services", self._sidecar.start(), loop)
        return ingress_ready


def ready_line(name: str | None, ports: Mapping[str, int | None]) -> str:
    """Return one line for whoever started a server."""
    where = ", ".join(f"{frontend} on port {port}" for frontend, port in ports.items() if port)
    return f"pipeline server {name or ''} is ready: {where}".replace("  ", " ")


def log_warnings(config: ServiceConfig, graph: Graph) -> None:
    """Log what is odd about a configuration, and about the methods of its Ops."""
    for warning in config.warnings:
        _LOGGER.warning("%s", warning, extra=TOLD)  # when it was read
    for warning in _warnings_about(config, graph):
        _LOGGER.warning("%s", warning)


def _warnings_about(config: ServiceConfig, graph: Graph) -> Iterator[str]:
    yield from doubtful_names(graph.all_ops)
    yield from unknown_ops(config, [op.name for op in graph.ops])
    yield from batch_fill_warnings(config, {op.name: op.pipeline_config for op in graph.ops})
