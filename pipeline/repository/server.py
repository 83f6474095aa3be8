"""A server of model repositories: its ports, its logs and its end, from RepositorySettings."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from pipeline.config.schema import ServiceConfig, load_config
from pipeline.engine.model_calls import MetricHolder, ModelChange, PeerCall
from pipeline.engine.models import ModelRegistry, ModelState
from pipeline.engine.request import ResponseSink, StreamHandle
from pipeline.errors import (
    ConfigError,
    NotImplementedByOpError,
    PipelineError,
)
from pipeline.frontends.v2.control import Overrides, RepositoryControl
from pipeline.frontends.v2.errors import V2Error
from pipeline.observe.custom_metrics import CustomMetrics
from pipeline.observe.logs.remote import LogsHome, replay_bytes
from pipeline.observe.logs.setup import LogSwitches, switch_logs
from pipeline.observe.traces.traces import collector_of
from pipeline.repository.backends.python.calls import triton_error
from pipeline.repository.backends.python.requests import error_of
from pipeline.repository.control import ControlSettings, ModelControl
from pipeline.repository.model_maker import GraphMaker
from pipeline.repository.replicated import ReplicatedControl
from pipeline.repository.served_models import ServedModels
from pipeline.repository.versions import ModelVersions
from pipeline.runtime.base import Runtime
from pipeline.runtime.replica_main import ReplicaMain
from pipeline.runtime.replicas import Replicas
from pipeline.runtime.service import MakeControl, ReplicaContext, Service
from pipeline.runtime.share import Share
from pipeline.server import exposure_of, serve_until_signalled
from pipeline.system.resources import tune_malloc
from pipeline.system.service_manager import ServiceManager
from pipeline.system.stdio import ensure_stdio
from pipeline.workers.process.shared import SharedProcesses

_OF_THE_SERVER = (
    *("host", "rpc_host", "http_host", "rpc_port", "http_port", "reuse_port", "cache"),
    *("rate_limit", "edge", "http_server", "build_dag_each_worker", "worker_num"),
    *("client_shared_memory", "restricted_apis", "request_traces"),
)
_PRELOAD = ("pipeline.repository.backends.python.model_op",)


class RepositorySettings(msgspec.Struct, frozen=True):
    """The settings of a server of repositories.

    Args:
        control: which models there are.
        server: keys of config.yml.
        verbose: above 0 the log has what is only of use to find faults.
        kinds: of records that are written, at first.
        closed: keys of ports that are not listened on.
    """

    control: ControlSettings
    server: Mapping[str, Any]
    verbose: int = 0
    kinds: LogSwitches = LogSwitches()
    closed: tuple[Literal["rpc_port", "http_port"], ...] = ()


def serve(settings: RepositorySettings) -> None:
    """Serve until SIGINT or SIGTERM, then let all models finish what they have.

    Raises:
        ConfigError: a setting has no meaning, or a repository is not a folder.
        InitError: a port is taken or a model cannot be loaded; nothing is left running.
    """
    if settings.control.log_file:
        _log_to(settings.control.log_file)
    ensure_stdio()
    tune_malloc()
    switch_logs(settings.kinds)
    service = new_service(settings)
    service.fork()
    manager = ServiceManager.taken_from(os.environ)

    def on_ready() -> None:
        if isinstance(service, Service):
            _say_models(service.models)
        sys.stderr.write(f"{service.describe()}\n")
        sys.stderr.flush()
        manager.tell(READY=1, STATUS=service.describe())

    serve_until_signalled(service, on_ready)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryMain(ReplicaMain):
    """The main function of a replica whose models are those of a repository."""

    settings: RepositorySettings

    def service(self, replica: ReplicaContext) -> Service:
        processes = _processes(self.config)
        control = make_control(self.settings, self.config, processes, replica)
        return Service(
            *((), self.config, replica),
            exposure=self.exposure,
            control=control,
            processes=processes,
        )


def new_service(settings: RepositorySettings) -> Runtime:
    """Return the server, which is not started.

    Raises:
        ConfigError: a setting has no meaning.
        InitError: the gateway is not there, or not of this version.
    """
    log = {"to": "stdout", "level": "DEBUG" if settings.verbose else "INFO"}
    config = load_config(yml_dict={"log": log, **settings.server})
    config = msgspec.structs.replace(config, **dict.fromkeys(settings.closed))
    with contextlib.ExitStack() as undo:
        exposure = exposure_of(config, undo, is_repository=True)
        service: Runtime
        if config.replicas:
            make = functools.partial(RepositoryMain, settings=settings)
            service = Replicas((), config, exposure=exposure, make=make)
        else:
            processes = _processes(config)
            control = make_control(settings, config, processes)
            service = Service((), config, exposure=exposure, control=control, processes=processes)
        undo.pop_all()
    return service


def _processes(config: ServiceConfig) -> SharedProcesses:
    return SharedProcesses(config.dag, LogsHome(config.log.level), replay_bytes, _PRELOAD)


def make_control(
    settings: RepositorySettings,
    config: ServiceConfig,
    processes: SharedProcesses,
    replica: ReplicaContext | None = None,
) -> MakeControl:
    """Return what makes the control of a server's models."""
    of_models = {
        name: value for name, value in settings.server.items() if name not in _OF_THE_SERVER
    }
    settings_of_dag = settings.server.get("dag", {})
    dag = {"start_method": "spawn"}
    dag |= {name: value for name, value in settings_of_dag.items() if "prometheus" not in name}
    of_models |= {"rpc_port": 0, "dag": dag}

    def make(models: Any, on_readiness: Any, share: Share) -> ModelControl:
        grace_s, cards = config.stop_grace_period_s, settings.control.cards
        served = ServedModels(models)
        maker = GraphMaker(
            *(of_models, on_readiness, grace_s, served, cards),
            settings.control.backend_directory,
            *(processes, share, replica),
        )
        versions = ModelVersions(models, maker, settings.control.load_retries)
        if replica is None:
            control = ModelControl(settings.control, versions, on_readiness)
        else:
            control = ReplicatedControl(settings.control, versions, replica)
        processes.models = RepositoryHost(served, control, share.metrics)
        return control

    return make


def _log_to(file: str) -> None:
    """Redirect the output of this process and its children to a file."""
    try:
        target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise ConfigError(f"--log-file: {file} cannot be written: {error.strerror}") from error
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(target, stream.fileno())
    os.close(target)


def _say_models(models: ModelRegistry) -> None:
    """Print the models that are ready."""
    entries = sorted(models.entries(), key=lambda entry: (entry.name, int(entry.version)))
    rows = [("Model", "Version", "Status")]
    rows += [
        (entry.name, entry.version, entry.state.value)
        for entry in entries
        if entry.state is ModelState.READY
    ]
    sys.stderr.write("\n".join([*table(rows), ""]))
    sys.stderr.flush()


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, whose first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    text = [
        "|" + "|".join(f" {cell:<{width}} " for cell, width in zip(row, widths, strict=True)) + "|"
        for row in rows
    ]
    return [line, text[0], line, *text[1:], line]


_FILE = "file:"


class RepositoryHost:
    """The models of a server, for its own; see `ModelHost`.

    Args:
        models: the models that are ready.
        control: loads them.
        metrics: that they count in.
    """

    def __init__(
        self, models: ServedModels, control: RepositoryControl, metrics: CustomMetrics
    ) -> None:
        self._models = models
        self._control = control
        self._metrics = metrics

    def begin(self, call: PeerCall, feeds: dict[str, Any], sink: ResponseSink) -> StreamHandle:
        """Ask a model. Raises PipelineError, in Triton's words: it cannot be asked so."""
        config = self._models.config(call.model, call.version)
        if config.model_transaction_policy.decoupled and not call.takes_parts:
            raise NotImplementedByOpError(
                f"Model {call.model} is using the decoupled. The current BLS request call doesn't "
                "support models using the decoupled transaction policy. Please use "
                "'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled "
                "models.'"
            )
        try:
            self._models.check_outputs(call.model, call.version, call.info.outputs)
        except V2Error as error:
            raise _ours(error) from None
        arguments = call.model, call.version, feeds, call.info, call.traceparent, sink
        collector = collector_of(call.traceparent)
        return self._models.begin(*arguments, timeout_s=call.timeout_s, collector=collector)

    async def change(self, change: ModelChange) -> bool:
        """Load or unload a model, or return whether it is ready. Raises PipelineError."""
        name, control = change.model, self._control
        if change.action == "is_ready":
            return await self._models.is_ready(name, change.version)
        try:
            if change.action == "load":
                files = {key.removeprefix(_FILE): data for key, data in change.files.items()}
                await control.load(name, Overrides(change.config, files), is_inner=True)
            else:
                await control.unload(name, change.with_dependents)
        except V2Error as error:
            raise _ours(error) from error
        return True

    def metrics(self) -> MetricHolder:
        """Return what a worker uses metrics by."""
        return self._metrics.holder()


def _ours(error: V2Error) -> PipelineError:
    return error_of(triton_error(error))
