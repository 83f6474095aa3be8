"""Runtime: the processes of a server, one or several, and what both have beside them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from pipeline.config.schema import (
    DagConfig,
    LogConfig,
    ServiceConfig,
    op_warnings,
    unknown_ops,
)
from pipeline.config.sections import LOOPBACK
from pipeline.engine.engine import Engine
from pipeline.engine.graph import Graph
from pipeline.engine.run.hooks import doubtful_names
from pipeline.frontends.base import OpenFrontends
from pipeline.frontends.registry import pipeline_frontends
from pipeline.observe.logs.setup import open_logs, open_otel_logs
from pipeline.observe.logs.terminal import TOLD
from pipeline.runtime.model_services import ModelServices
from pipeline.runtime.predictor_loader import PredictorLoader
from pipeline.system.startup_log import log_if_slow

_LOGGER = logging.getLogger(__name__)

STRAGGLERS_S = 0.2  # for requests of callers that could not know yet that frontends are closed


class Ingress:
    """No ingress, and the base of one: a process that takes requests and asks the frontends.

    Attributes:
        takes: names of its own ports, of "HTTP" and "gRPC"; there it forwards to the
            frontends.
        ports: where it listens, by these names, after `start`.
    """

    takes: frozenset[str] = frozenset()
    ports: Mapping[str, int] = MappingProxyType({})

    def start(self) -> asyncio.Future[None]:
        """Take requests; done when they are answered. InitError says why they are not."""
        started = asyncio.get_running_loop().create_future()
        started.set_result(None)
        return started

    def drain(self) -> None:
        """Say not ready, serve on for the `drain_delay`, then take no more."""

    async def stop(self, grace_s: float) -> None:
        """Take no more, and end when the active ones are answered, or `grace_s` is over.

        The frontends are still open. May be called without `start`.
        """

    def cancel_grace(self) -> None:
        """Cut the grace period short."""

    def close(self) -> None:
        """Remove what it had in common with the frontends, which are closed."""


no_ingress: Ingress = Ingress()
"""Callers reach the frontends."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """The outside of a server: its frontends, where its logs go, its edge."""

    frontends: OpenFrontends = pipeline_frontends
    logs: Callable[[LogConfig], AbstractContextManager[object]] = open_logs
    ingress: Ingress = no_ingress


class Pipeline(NamedTuple):
    """A graph that a server has from the start; without a name it takes requests for any service.

    Its Ops are configured; `load_predictor` gives them their models. `dag` is its own, where it is
    not the server's.
    """

    name: str | None
    graph: Graph
    load_predictor: PredictorLoader
    dag: DagConfig | None = None


Pipelines = Sequence[Pipeline]
"""Those of a server; none: its models are those of a repository."""


class Runtime(ABC):
    """The processes of a server, and their life: what `run_server` runs."""

    def __init__(
        self,
        pipelines: Pipelines,
        config: ServiceConfig,
        sidecar: ModelServices | None,
        exposure: Exposure | None,
    ) -> None:
        self._pipelines = pipelines
        self._name = pipelines[0].name if pipelines else None
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
        """Return one line for the user who started the server."""

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

    def _open_logs(self) -> None:
        """Log, until `_closing` is closed, beginning with what is odd about the configuration."""
        config = self._config
        self._closing.enter_context(self._exposure.logs(config.log))
        if "logs" in config.signals:
            self._closing.enter_context(open_otel_logs(self._name or "", config.log))
        for warning in config.warnings:
            _LOGGER.warning("%s", warning, extra=TOLD)  # when it was read
        graphs = [pipeline.graph for pipeline in self._pipelines]
        configs = {op.name: op.pipeline_config for graph in graphs for op in graph.ops}
        for warning in (
            *(line for graph in graphs for line in doubtful_names(graph.all_ops)),
            *(unknown_ops(config, list(configs)) if graphs else ()),
            *op_warnings(config, configs),
        ):
            _LOGGER.warning("%s", warning)

    async def _start_beside(self) -> asyncio.Future[None]:
        """Start the sidecar, and the ingress, which is up when what is returned is done."""
        ingress_ready = self._exposure.ingress.start()
        if self._sidecar is not None:
            loop = asyncio.get_running_loop()
            await log_if_slow("model services", self._sidecar.start(), loop)
        return ingress_ready


def ready_line(pipelines: Pipelines, ports: Mapping[str, int | None], more: str = "") -> str:
    """Return one line for the user who started a server."""
    names = ", ".join(pipeline.name for pipeline in pipelines if pipeline.name)
    where = ", ".join(f"{frontend} on port {port}" for frontend, port in ports.items() if port)
    return f"pipeline server {names} is ready: {where}{more}".replace("  ", " ")


def reach_of(config: ServiceConfig) -> str:
    """Return what a ready line says of a server that only this machine can ask; "": others can."""
    hosts = {config.rpc_host or config.host, config.http_host or config.host}
    return '; `host: "::"` opens it to other machines' if hosts == {LOOPBACK} else ""
