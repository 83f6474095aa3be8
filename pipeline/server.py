"""PipelineServer: from a ResponseOp and a configuration to a running service."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from pipeline.config.layers import layers_here
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import (
    DagConfig,
    ServiceConfig,
    dag_of_pipeline,
    load_config,
    unheeded_of,
)
from pipeline.engine.engine import Engine
from pipeline.engine.graph import Graph, build_graph
from pipeline.engine.run.hooks import check_hooks
from pipeline.errors import ConfigError, GraphError, InitError
from pipeline.frontends.api.pipelines import check_name
from pipeline.frontends.registry import pipeline_frontends
from pipeline.gateway.ingress import Gateway, check_access, taken_by_gateway, with_edge
from pipeline.observe.statistics import model_names
from pipeline.op import ResponseOp, configure_op
from pipeline.predictors.base import Predictor
from pipeline.runtime.base import Exposure, Pipeline, Runtime
from pipeline.runtime.model_services import ModelServices
from pipeline.runtime.predictor_loader import PredictorLoader
from pipeline.runtime.replicas import Replicas
from pipeline.runtime.service import Service, gc_frozen
from pipeline.system.event_loop import LoopThread, end_tasks, loop_factory, or_stopped
from pipeline.system.processes import (
    Handler,
    StartedChildren,
    handlers_now,
    keep_signals_from_children,
)
from pipeline.system.resources import exhaustion_named, tune_malloc
from pipeline.system.service_manager import ServiceManager
from pipeline.system.stdio import ensure_stdio, say_on_stderr

_LOGGER = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class PipelineServer:
    """Serves the graph that ends in a ResponseOp over gRPC and HTTP, and further graphs.

    Scripts call `set_response_op`, `prepare_server` and `run_server`, and `add_pipeline` for each
    further graph. Tests and programs that embed a server use it as a context manager (`with
    server:`), or `async with server:` inside a running event loop.

    Args:
        name: the service's name, first part of the URL `/<name>/<method>`. A request for another
            name than the pipelines of this server is refused; a request without a name is served.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self._graphs: dict[str | None, Graph] = {}
        self._folders: dict[str | None, Path] = {}  # of relative model paths, once prepared
        self._dags: dict[str | None, DagConfig] = {}  # of pipelines with their own configuration
        self._config: ServiceConfig | None = None
        self._service: Runtime | None = None
        self._thread: LoopThread | None = None
        self._predictors: Mapping[str, Predictor] = {}  # by Op, instead of its model

    def set_response_op(self, response_op: ResponseOp) -> None:
        """Set the end of the graph; GraphError says what is wrong with the graph."""
        graph = self._build_graph(response_op)
        others = {name: other for name, other in self._graphs.items() if name != self.name}
        self._graphs = _apart({self.name: graph, **others})  # the first takes unnamed requests

    def add_pipeline(self, name: str, response_op: ResponseOp) -> None:
        """Serve one more graph, under a name of its own; call it before `prepare_server`.

        Its Ops have their settings in the same configuration, and names that no other Op has.

        Raises:
            GraphError: the graph is wrong; or the name of the pipeline or of an Op is taken.
        """
        self._add(name, self._build_graph(response_op))

    def _add(self, name: str | None, graph: Graph) -> None:
        taken = (self.name, *self._graphs)
        if not isinstance(name, str) or not name or "/" in name or name in taken:
            there = ", ".join(repr(name) for name in dict.fromkeys(taken))
            raise GraphError(
                "a pipeline needs a name of its own, text without slashes, "
                f"found {name!r} beside {there}."
            )
        self._graphs = _apart({**self._graphs, name: graph})

    def _join(self, other: PipelineServer) -> None:
        """Also serve the pipelines of another server that is prepared.

        Its configuration holds for its Ops and, as `dag`, for its pipelines. A warning names the
        other settings, which are ignored.

        Raises:
            GraphError: the name of one of its pipelines or Ops is taken.
        """
        if (ours := self._config) is None or (theirs := other._config) is None:
            raise ConfigError(f"pipeline {other.name!r}: call prepare_server before it is joined.")
        for name, graph in other._graphs.items():
            if ours.http_port is not None:
                check_name(name)
            self._add(name, graph)
            self._dags[name] = dag_of_pipeline(theirs, ours)
        self._folders |= other._folders
        ignored = [f"pipeline {other.name!r}: {line}" for line in unheeded_of(theirs, ours)]
        for warning in ignored:
            _LOGGER.warning("%s", warning)
        self._config = msgspec.structs.replace(
            ours,
            op={**theirs.op, **ours.op},
            places={**theirs.places, **ours.places},
            warnings=(*ours.warnings, *theirs.warnings, *ignored),
        )

    def _build_graph(self, response_op: ResponseOp) -> Graph:
        return build_graph(response_op)

    def prepare_server(
        self, yml_file: str | None = None, yml_dict: Mapping[str, Any] | None = None
    ) -> None:
        """Read the configuration, from a file or a mapping, and give it to the Ops.

        The environment may add to it and change it, see docs/configuration.md.

        Raises:
            ConfigError: file, line and key of every mistake; or the name is invalid.
        """
        if not self._graphs:
            raise GraphError("no graph yet: call set_response_op before prepare_server.")
        config = load_config(yml_file, yml_dict, layers_here())
        for name, graph in self._graphs.items():
            if config.http_port is not None:
                check_name(name)
            for op in graph.all_ops:
                configure_op(op, resolve_op(op.name, op.pipeline_given, config))
        folder = Path(yml_file).resolve().parent if yml_file else Path.cwd()
        self._folders = dict.fromkeys(self._graphs, folder)
        self._dags = {}
        self._config = config

    prepare_pipeline_config = prepare_server

    def run_server(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain and return.

        Raises:
            InitError: an Op, model or port could not be started; nothing is left running.
        """
        ensure_stdio()
        tune_malloc()
        manager = ServiceManager.taken_from(os.environ)
        service = self._new_service()
        is_logged = self._config is not None and self._config.log.to == "stdout"
        serve_until_signalled(service, lambda: _report_ready(service, manager, is_logged))

    # Embedding --------------------------------------------------------------------------

    def start(self) -> Self:
        """Serve from a background thread; returns when every worker is ready."""
        if self._thread is not None:
            raise InitError("the server is running already.")
        service = self._new_service()
        thread = LoopThread()
        try:
            self._service = thread.run(self._start(service))
        except BaseException:
            thread.close()
            raise
        self._thread = thread
        return self

    def stop(self) -> None:
        """Drain, answer the rest and end; does nothing if the server does not run."""
        thread, self._thread = self._thread, None
        service, self._service = self._service, None
        if thread is not None and service is not None:
            try:
                thread.run(service.stop())
            finally:
                thread.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        self._service = await self._start(self._new_service())
        return self

    async def __aexit__(self, *_: object) -> None:
        service, self._service = self._service, None
        if service is not None:
            await service.stop()

    async def _start(self, service: Runtime) -> Runtime:
        try:
            with exhaustion_named():
                await service.start()
        except BaseException:
            await service.stop()
            raise
        return service

    def _new_service(self) -> Runtime:
        if self._config is None or self._graphs.keys() != self._folders.keys():
            raise ConfigError("call set_response_op and prepare_server before running the server.")
        for graph in self._graphs.values():
            check_hooks(graph.all_ops)
        config = with_edge(self._config)
        kind = Replicas if config.build_dag_each_worker else Service
        with contextlib.ExitStack() as undo:
            exposure = self._exposure(config, undo)
            given, folders = self._predictors, self._folders
            models = ModelServices(
                {
                    op: folders[name]
                    for name, graph in self._graphs.items()
                    for op in graph.ops
                    if op.name not in given
                }
            )
            undo.callback(models.close)
            models.open()
            pipelines = [
                Pipeline(
                    name,
                    graph,
                    PredictorLoader(folders[name], models.addresses, given=given),
                    self._dags.get(name),
                )
                for name, graph in self._graphs.items()
            ]
            service = kind(pipelines, config, sidecar=models, exposure=exposure)
            service.fork()
            undo.pop_all()
        return service

    def _exposure(self, config: ServiceConfig, undo: contextlib.ExitStack) -> Exposure:
        return exposure_of(config, undo)

    # State of a running server ---------------------------------------------------------

    @property
    def rpc_port(self) -> int | None:
        """Return the gRPC port, the real one if 0 was configured."""
        return self._running().rpc_port

    @property
    def http_port(self) -> int | None:
        """Return the HTTP port; None: no HTTP."""
        return self._running().http_port

    @property
    def executor(self) -> Engine:
        """Return the running engine; of several pipelines the first one's."""
        return self._running().engine

    def _running(self) -> Runtime:
        if self._service is None:
            raise InitError("the server is not running: call start() first.")
        return self._service


def _apart(graphs: dict[str | None, Graph]) -> dict[str | None, Graph]:
    """Return the graphs of a server. Raises GraphError: two of their models share a name."""
    owners: dict[str, str] = {}
    for name, graph in graphs.items():
        whole, ops = model_names(name, [op.name for op in graph.ops])
        own = {whole: f"the pipeline {whole!r}"}
        own |= {op: f"Op {op!r} of the pipeline {whole!r}" for op in ops}
        for taken in own.keys() & owners.keys():
            raise GraphError(
                f"{owners[taken]} and {own[taken]} have the same name: the Ops and pipelines of a "
                "server are models beside each other, give one of them another name."
            )
        owners |= own
    return graphs


def _report_ready(service: Runtime, manager: ServiceManager, is_logged: bool) -> None:
    """Report that requests are answered, and where, unless the log has reported it."""
    if not is_logged:  # the log writes to stdout, and all lines there are the log's
        say_on_stderr(service.describe())
    ports = {"X_RPC_PORT": service.rpc_port or 0, "X_HTTP_PORT": service.http_port or 0}
    manager.tell(READY=1, STATUS=service.describe(), **ports)


def exposure_of(
    config: ServiceConfig, undo: contextlib.ExitStack, is_repository: bool = False
) -> Exposure:
    """Return the side that clients see: this server's frontends, or the gateway before them.

    A repository serves clients even if some of its models are not ready.
    """
    taken = taken_by_gateway(config)
    check_access(config, taken)
    if not taken:
        return Exposure()
    gateway = Gateway(config, taken, waits=not is_repository)
    undo.callback(gateway.close)
    frontends = functools.partial(pipeline_frontends, sockets=gateway.open(), taken=taken)
    return Exposure(frontends, ingress=gateway)


def serve_until_signalled(
    service: Runtime,
    on_ready: Callable[[], object],
    attend: Callable[[Callable[[], None]], None] = lambda stop: None,
) -> None:
    """Run a forked service until SIGTERM or SIGINT; then it drains.

    Processes that user code has started end with it.

    Args:
        service: the service to run.
        on_ready: called when it takes requests.
        attend: called on the event loop, with a function that stops the service as a signal does.
    """

    async def serve() -> None:
        stop = asyncio.Event()
        attend(stop.set)
        with _signals_set(stop, service, handlers):
            try:
                if await or_stopped(stop, service.start()):
                    on_ready()
                    with gc_frozen():
                        await stop.wait()
            finally:
                await service.stop()
                await end_tasks()

    handlers = handlers_now(_SIGNALS)
    runner = asyncio.Runner(loop_factory=loop_factory())
    with exhaustion_named(), _children_ended(), runner:
        runner.run(serve())


@contextlib.contextmanager
def _children_ended() -> Iterator[None]:
    """End the processes that user code has started, if signals are this server's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    children = StartedChildren()
    try:
        yield
    finally:
        children.end()


@contextlib.contextmanager
def _signals_set(stop: asyncio.Event, service: Runtime, before: Mapping[int, Handler]) -> Any:
    """Let SIGTERM and SIGINT set `stop`; a second signal ends the grace period.

    Children handle signals as before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            service.cancel_grace()
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    keep_signals_from_children(before)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
