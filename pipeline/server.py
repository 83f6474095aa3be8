"""PipelineServer: from a ResponseOp and a configuration to a running service."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import logging
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pipeline.config import (
    ServiceConfig,
    batch_fill_warnings,
    load_config,
    resolve_op,
    unknown_ops,
)
from pipeline.doors.grpc import GrpcDoor
from pipeline.doors.http import HttpDoor
from pipeline.engine.executor import DAGExecutor
from pipeline.engine.graph import Graph, build_graph
from pipeline.engine.workers.base import WorkersFactory
from pipeline.engine.workers.mailbox import Mailbox
from pipeline.engine.workers.thread import ThreadWorkers
from pipeline.errors import ConfigError, GraphError, InitError, NoServiceError, PipelineError
from pipeline.observe.logs import RequestLog, configure_logs
from pipeline.observe.span import RequestSink, RequestSpan
from pipeline.op import Op, ResponseOp
from pipeline.predictors.base import LocalModel, load_local_predictor

_LOGGER = logging.getLogger(__name__)

_EDGE_WORKERS = 4  # threads for an overridden unpack or pack method, unless configured
_DOOR_GRACE_S = 1.0  # for answers that are on their way out when the doors close


class PipelineServer:
    """Serves the graph that ends in a ResponseOp over gRPC and HTTP.

    Scripts call `set_response_op`, `prepare_server` and `run_server`. Tests and programs that
    embed a server use it as a context manager (`with server:`), or `async with server:` inside
    a running event loop.

    Args:
        name: the service's name, first part of the URL `/<name>/<method>`. A request that names
            another service is refused; without a name every request is served.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self._graph: Graph | None = None
        self._config: ServiceConfig | None = None
        self._base_dir = Path.cwd()
        self._service: _Service | None = None
        self._thread: _LoopThread | None = None

    def set_response_op(self, response_op: ResponseOp) -> None:
        """Set the end of the graph; GraphError says what is wrong with the graph."""
        self._graph = build_graph(response_op)

    def prepare_server(
        self, yml_file: str | None = None, yml_dict: Mapping[str, Any] | None = None
    ) -> None:
        """Read the configuration, from a file or a mapping, and give it to the Ops.

        Raises:
            ConfigError: file, line and key of everything that is wrong.
        """
        if self._graph is None:
            raise GraphError("no graph yet: call set_response_op before prepare_server.")
        config = load_config(yml_file, yml_dict)
        self._base_dir = Path(yml_file).resolve().parent if yml_file else Path.cwd()
        for op in (self._graph.request_op, *self._graph.ops, self._graph.response_op):
            op.configure(resolve_op(op.name, op.given, config))
        self._config = config

    prepare_pipeline_config = prepare_server

    def run_server(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain and return.

        Raises:
            InitError: an Op, model or port could not be started; nothing is left running.
        """
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._serve_until_signalled())

    async def _serve_until_signalled(self) -> None:
        stop = asyncio.Event()
        service = self._new_service()
        with _signals_set(stop, service):
            try:
                if await _ends_before(stop, service.start()):
                    with _startup_frozen():
                        await stop.wait()
            finally:
                await service.stop()

    # Embedding --------------------------------------------------------------------------

    def start(self) -> Self:
        """Serve from a thread of our own; returns when every worker is ready."""
        if self._thread is not None:
            raise InitError("the server is running already.")
        thread = _LoopThread()
        try:
            self._service = thread.run(self._start_here())
        except BaseException:
            thread.close()
            raise
        self._thread = thread
        return self

    def stop(self) -> None:
        """Drain, answer what is left and end; does nothing if the server does not run."""
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
        self._service = await self._start_here()
        return self

    async def __aexit__(self, *_: object) -> None:
        service, self._service = self._service, None
        if service is not None:
            await service.stop()

    async def _start_here(self) -> _Service:
        service = self._new_service()
        try:
            await service.start()
        except BaseException:
            await service.stop()
            raise
        return service

    def _new_service(self) -> _Service:
        if self._graph is None or self._config is None:
            raise ConfigError("call set_response_op and prepare_server before running the server.")
        return _Service(self.name, self._graph, self._config, self._base_dir)

    # What is known of a running server --------------------------------------------------

    @property
    def rpc_port(self) -> int | None:
        """The gRPC port, the real one where 0 was configured."""
        return self._running().rpc_port

    @property
    def http_port(self) -> int | None:
        """The HTTP port, or None without HTTP."""
        return self._running().http_port

    @property
    def executor(self) -> DAGExecutor:
        """The running engine."""
        return self._running().executor

    def _running(self) -> _Service:
        if self._service is None:
            raise InitError("the server is not running: call start() first.")
        return self._service


class _Service:
    """Everything that runs while a server runs, on the event loop that called `start`."""

    def __init__(
        self, name: str | None, graph: Graph, config: ServiceConfig, base_dir: Path
    ) -> None:
        self._name = name
        self._graph = graph
        self._config = config
        self._base_dir = base_dir
        self._closing = contextlib.ExitStack()
        self._stopping: asyncio.Task[None] | None = None
        self._grace_s = config.stop_grace_period_s
        self._grpc: GrpcDoor | None = None
        self._http: HttpDoor | None = None

    @property
    def rpc_port(self) -> int | None:
        return self._grpc.port if self._grpc else None

    @property
    def http_port(self) -> int | None:
        return self._http.port if self._http else None

    async def start(self) -> None:
        """Open the doors, initialise the Ops, report ready."""
        config = self._config
        loop = asyncio.get_running_loop()
        log = config.log
        self._closing.enter_context(
            configure_logs(log.level, max_bytes=log.max_bytes, backup_count=log.backup_count)
        )
        self._warn()
        self._lower_switch_interval()
        self.executor = DAGExecutor(
            self._graph,
            config,
            functools.partial(self._workers_factory, loop),
            loop,
            request_sinks=[_log_sink(RequestLog(_LOGGER, log.request_sample))],
            screen=self._screen,
        )
        await self._open_doors()
        await self.executor.start()
        if self._grpc is not None:
            await self._grpc.set_ready(True)
        _LOGGER.info("pipeline server is ready: rpc_port=%s http_port=%s", *self._ports())

    async def stop(self) -> None:
        """Stop accepting, drain for the grace period, answer the rest, end all threads."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    def hurry(self) -> None:
        """Cut the grace period short: what is left is answered at once."""
        self._grace_s = 0.0
        if hasattr(self, "executor"):
            self.executor.answer_all_closed()

    async def _stop(self) -> None:
        if self._http is not None:
            await self._http.close()
        refuse = None
        if self._grpc is not None:
            refuse = asyncio.ensure_future(self._grpc.stop(self._grace_s + _DOOR_GRACE_S))
        if hasattr(self, "executor"):
            left = await self.executor.stop(self._grace_s)
            if left:
                _LOGGER.warning("%d worker threads hang in user code and were left behind", left)
        if self._grpc is not None and refuse is not None:
            await self._grpc.stop(_DOOR_GRACE_S)
            await refuse
        if self._http is not None:
            await self._http.stop()
        _LOGGER.info("pipeline server stopped")
        self._closing.close()

    async def _open_doors(self) -> None:
        config = self._config
        if config.rpc_port is not None:
            self._grpc = GrpcDoor(
                self.executor.handle, config.host, config.rpc_port, config.max_message_bytes
            )
            await self._grpc.start()
        if config.http_port is not None:
            self._http = HttpDoor(
                self.executor.handle,
                lambda: self.executor.is_ready,
                config.host,
                config.http_port,
                config.max_message_bytes,
            )
            await self._http.start()

    def _ports(self) -> tuple[int | None, int | None]:
        return self.rpc_port, self.http_port

    def _screen(self, request: Any) -> PipelineError | None:
        if self._name is None or not request.name or request.name == self._name:
            return None
        return NoServiceError(
            "Failed to inference: Service name error. "
            f"This server is {self._name!r}, the request names {request.name!r}."
        )

    def _not_acted_on(self) -> Iterator[str]:
        """What the configuration asks for that this version does not do."""
        config, where = self._config, self._config.source
        asked = {
            "build_dag_each_worker": config.build_dag_each_worker,
            "dag.use_profile": config.dag.use_profile,
            "dag.tracer.interval_s": config.dag.tracer.interval_s is not None,
            "dag.enable_prometheus": config.dag.enable_prometheus,
        }
        for key, is_asked in asked.items():
            if is_asked:
                yield f"{where}: {key}: not acted on by this version"
        for op in self._graph.ops:
            if op.config.workers == "process":
                yield (
                    f"{where}: Op {op.name!r} asks for process workers (dag.is_thread_op: False or "
                    "op.workers): this version runs it in threads"
                )

    def _warn(self) -> None:
        names = [op.name for op in self._graph.ops]
        configs = {op.name: op.config for op in self._graph.ops}
        for warning in (
            *self._config.warnings,
            *self._not_acted_on(),
            *unknown_ops(self._config, names),
            *batch_fill_warnings(self._config, configs),
        ):
            _LOGGER.warning("%s", warning)

    def _lower_switch_interval(self) -> None:
        """Beside a busy Python thread the loop waits a whole interval for the GIL."""
        if self._config.switch_interval_s:
            self._closing.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(self._config.switch_interval_s)

    def _workers_factory(
        self, loop: asyncio.AbstractEventLoop, pump: Callable[[], None]
    ) -> WorkersFactory:
        mailbox = Mailbox(loop, after=pump)

        def make(op: Op, on_done: Any, on_change: Callable[[], None]) -> ThreadWorkers:
            count = op.config.concurrency
            if op in (self._graph.request_op, self._graph.response_op):
                count = max(count, _EDGE_WORKERS)
            return ThreadWorkers(op, count, loop, mailbox, self._connect, on_done, on_change)

        return make

    def _connect(self, op: Op) -> None:
        """Give an Op that has a model its predictor."""
        if op.config.server_endpoints:
            raise InitError(
                f"op.{op.name}.server_endpoints: this version runs local models only; set "
                "local_service_conf.model_config."
            )
        local = op.config.local_service_conf
        if local.model_config is None:
            return
        predictor = load_local_predictor(
            LocalModel(
                model_path=self._resolved(local.model_config),
                fetch_list=op.config.fetch_list or local.fetch_list,
                thread_num=local.thread_num,
                device_type=local.device_type,
                devices=local.devices,
                precision=local.precision,
                engine=local.engine,
            )
        )
        op.connect(predictor, predictor.feed_names, predictor.fetch_names)

    def _resolved(self, path: str) -> Path:
        """A relative path is looked up beside the configuration first, then where we run."""
        beside = self._base_dir / path
        return beside if beside.exists() else Path(path)


def _log_sink(log: RequestLog) -> RequestSink:
    """Writes the request lines of the log."""

    def sink(span: RequestSpan) -> None:
        if span.error is None:
            log.succeeded(span.data_id, span.log_id)
        else:
            log.failed(span.data_id, span.log_id, span.error)

    return sink


class _LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=_loop_factory())
        self._loop: concurrent.futures.Future[asyncio.AbstractEventLoop]
        self._loop = concurrent.futures.Future()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="pipeline-loop", daemon=True)
        self._thread.start()

    def run(self, work: Any) -> Any:
        """The result of a coroutine that runs in the thread's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop.result()).result()

    def close(self) -> None:
        """End the loop and the thread."""
        self._loop.result().call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        with self._runner as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._loop.set_result(asyncio.get_running_loop())
        await self._end.wait()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: asyncio's own loop serves as well
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _ends_before(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do `work`; False if `stop` was set first: then the work was cancelled."""
    working = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not working.done():
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        return False
    await working
    return True


@contextlib.contextmanager
def _startup_frozen() -> Iterator[None]:
    """Keep modules and models out of the garbage collector's rounds (5 % of an echo's time)."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def _signals_set(stop: asyncio.Event, service: _Service) -> Any:
    """SIGTERM and SIGINT set `stop`; a second one ends the grace period."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            service.hurry()
        stop.set()

    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
