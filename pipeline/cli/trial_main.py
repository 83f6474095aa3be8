"""The child process of a trial: a script's server with other settings, or what it would serve."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

import pipeline.server
from pipeline.cli.graph import server_of
from pipeline.config.layers import Layers, read_layers
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import OpConfig, ServiceConfig, config_of
from pipeline.dropin.import_hook import run_module, run_script
from pipeline.engine.streams.plan import plan_streams
from pipeline.errors import ConfigError, PipelineError
from pipeline.op import Op
from pipeline.system.script import ScriptNotFoundError
from pipeline.tuning.tried_server import Changes, OpValues, TriedOp, TriedService

_SETTINGS = ("concurrency", "batch_size", "auto_batching_timeout")
_ALONE: dict[str, object] = {
    "host": "127.0.0.1",
    "http_host": None,
    "http_port": 0,
    "rpc_host": None,
    "rpc_port": 0,
    "edge": "embedded",
    "http_server": None,
    "reuse_port": False,
    "drain_delay": 0,
    "stop_grace_period": 1000,
    "frontends": {},
    "sinks": {},
    "opentelemetry": False,
    "response_cache": False,
}
"""Keys of config.yml with which a trial is not in the live server's way, nor in its books."""
_ALONE_DAG = {
    "use_profile": True,
    "profile_per_s": 400,
    "enable_prometheus": False,
    "tracer": {"interval_s": -1},
}
_RECORD = "record"  # a filter that would write over the load
_PR_SET_PDEATHSIG = 1
_FAILED = 1


def main() -> int:
    """Run `trial_main CHANGES SCRIPT ...` or `trial_main CHANGES -m MODULE ...`."""
    changes = msgspec.json.decode(sys.argv[1].encode(), type=Changes)
    script, *arguments = sys.argv[2:]
    is_module = script == "-m"
    if is_module:
        script, *arguments = arguments
    try:
        if changes.describes:
            return _describe(is_module, script, arguments)
        _change(changes.ops)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # not longer than who tries
        (run_module if is_module else run_script)(script, arguments)
    except (ScriptNotFoundError, PipelineError) as error:
        sys.stderr.write(f"{error}\n")
        return _FAILED
    return 0


# Describe ----------------------------------------------------------------------------------


def _describe(is_module: bool, script: str, arguments: list[str]) -> int:
    """Write what the script would serve, as JSON, as the last line; its threads are left."""
    server = server_of(is_module, script, arguments)
    if server is None or (config := server._config) is None:
        return _FAILED
    graphs = [(graph, plan_streams(graph)) for graph in server._graphs.values()]
    ops = tuple(
        tried_op(op, streams is not None and streams.has(op))
        for graph, streams in graphs
        for op in graph.ops
    )
    source = Path(config.source)
    service = TriedService(str(source.resolve()) if source.is_file() else "", ops)
    sys.stdout.write(f"\n{msgspec.json.encode(service).decode()}\n")
    sys.stdout.flush()
    os._exit(0)


def tried_op(op: Op, streams: bool) -> TriedOp:
    """Return what a search has to know of an Op that is configured."""
    config: OpConfig = op.pipeline_config
    held = ""
    if config.sequence.strategy is not None:
        held = "it has sequences"
    elif config.batching not in ("full", "adaptive"):
        held = f"batching: {config.batching}"
    elif streams:
        held = "it streams"
    has_model = bool(config.local_service_conf.model_config or config.server_endpoints)
    return TriedOp(
        op.name,
        config.concurrency,
        config.batch_size,
        1e3 * (config.auto_batching_timeout_s or 0.0),
        in_processes=config.workers != "thread",
        takes_batches=has_model or type(op).process is not Op.process,
        held=held,
        said=tuple(key for key in _SETTINGS if op.pipeline_given.get(key) is not None),
    )


# Run ---------------------------------------------------------------------------------------


def _change(ops: Mapping[str, OpValues]) -> None:
    """Have this process' servers read other values of these Ops, which win over constructors'."""

    def load(
        yml_file: str | None, yml_dict: Mapping[str, Any] | None, layers: Layers
    ) -> ServiceConfig:
        source, overrides = read_layers(ServiceConfig, yml_file, yml_dict, layers)
        data = changed(source.data, ops)
        return config_of(msgspec.structs.replace(source, data=data), overrides)

    def resolve(name: str, values: Mapping[str, object], config: ServiceConfig) -> OpConfig:
        others = {key: value for key, value in values.items() if key not in ops.get(name, {})}
        return resolve_op(name, others, config)

    for function, replaced in ((load, "load_config"), (resolve, "resolve_op")):
        setattr(pipeline.server, replaced, function)


def changed(data: object, ops: Mapping[str, OpValues]) -> dict[str, Any]:
    """Return a configuration with other values of these Ops, and where nobody else is.

    Raises ConfigError: it is not a mapping.
    """
    if not isinstance(data, Mapping):
        raise ConfigError("expected the configuration to be a mapping")
    of_ops = {
        name: {**(values or {}), "response_cache": False}
        for name, values in (data.get("op") or {}).items()
    }
    for name, values in ops.items():
        of_ops[name] = {**of_ops.get(name, {}), **values}
    dag = {**(data.get("dag") or {}), **_ALONE_DAG}
    filters = {name: it for name, it in (data.get("filters") or {}).items() if name != _RECORD}
    return {**data, **_ALONE, "dag": dag, "filters": filters, "op": of_ops}


if __name__ == "__main__":
    raise SystemExit(main())
