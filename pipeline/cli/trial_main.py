"""The child process of a trial: a script's server with other settings, or what it would serve."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pipeline.cli.graph import server_of
from pipeline.config.schema import OpConfig
from pipeline.config.yaml import read_yaml
from pipeline.dropin.script import ScriptNotFoundError, run_module, run_script
from pipeline.engine.streams.plan import plan_streams
from pipeline.errors import ConfigError
from pipeline.op import Op
from pipeline.server import PipelineServer
from pipeline.tuning.tried_server import Changes, Described, DescribedOp

_SETTINGS = ("concurrency", "batch_size", "auto_batching_timeout")
_ALONE = {
    "http_port": 0,
    "rpc_port": 0,
    "edge": "embedded",
    "http_server": None,
    "reuse_port": False,
    "drain_delay": 0,
    "stop_grace_period": 1000,
    "sinks": {},
    "opentelemetry": False,
}
"""Keys of config.yml without which a trial could be in the live server's way, or in its books."""
_ALONE_DAG = {
    "use_profile": True,
    "profile_per_s": 400,
    "enable_prometheus": False,
    "tracer": {"interval_s": -1},
}
_FAILED = 1
_RECORD = "record"


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
        with _changed(changes.ops):
            (run_module if is_module else run_script)(script, arguments)
    except ScriptNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return _FAILED
    return 0


# Describe ----------------------------------------------------------------------------------


def _describe(is_module: bool, script: str, arguments: list[str]) -> int:
    """Write what the script would serve, as JSON, as the last line; its threads are left."""
    with _noted() as sources:
        server = server_of(is_module, script, arguments)
    if server is None or (graph := server._graph) is None:
        return _FAILED
    streams = plan_streams(graph)
    found = Described(
        server.name or "",
        sources.get(id(server), ""),
        tuple(_described(op, streams is not None and streams.has(op)) for op in graph.ops),
    )
    sys.stdout.write(f"\n{msgspec.json.encode(found).decode()}\n")
    sys.stdout.flush()
    os._exit(0)


def _described(op: Op, streams: bool) -> DescribedOp:
    config: OpConfig = op.pipeline_config
    held = ""
    if config.sequence.strategy is not None:
        held = "it has sequences"
    elif config.batching not in ("full", "adaptive"):
        held = f"batching: {config.batching}"
    elif streams:
        held = "it streams"
    said = tuple(key for key in _SETTINGS if op.pipeline_given.get(key) is not None)
    return DescribedOp(
        op.name,
        config.concurrency,
        config.batch_size,
        1e3 * (config.auto_batching_timeout_s or 0.0),
        in_processes=config.workers != "thread",
        takes_batches=_has_process(op),
        held=held,
        said=said,
    )


def _has_process(op: Op) -> bool:
    """Return whether there is anything to do for a batch at once."""
    config = op.pipeline_config
    has_model = bool(config.local_service_conf.model_config or config.server_endpoints)
    return has_model or type(op).process is not Op.process


@contextlib.contextmanager
def _noted() -> Iterator[dict[int, str]]:
    """Note the file that each server is prepared with."""
    sources: dict[int, str] = {}
    original = PipelineServer.prepare_server

    def prepare(
        server: PipelineServer,
        yml_file: str | None = None,
        yml_dict: Mapping[str, Any] | None = None,
    ) -> None:
        original(server, yml_file, yml_dict)
        sources[id(server)] = str(Path(yml_file).resolve()) if yml_file else ""

    with _replaced(prepare):
        yield sources


# Run ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _changed(ops: Mapping[str, Mapping[str, int | float]]) -> Iterator[None]:
    """Have servers prepared with other values of these Ops, and where nobody else is."""
    original = PipelineServer.prepare_server

    def prepare(
        server: PipelineServer,
        yml_file: str | None = None,
        yml_dict: Mapping[str, Any] | None = None,
    ) -> None:
        for op in server._graph.all_ops if server._graph is not None else ():
            if op.name in ops:  # the trial's values win over the constructor's
                op.pipeline_given = {
                    key: value
                    for key, value in op.pipeline_given.items()
                    if key not in ops[op.name]
                }
        data = read_yaml(yml_file).data if yml_file else yml_dict
        original(server, None, changed(data, ops))
        if yml_file:
            server._base_dir = Path(yml_file).resolve().parent

    with _replaced(prepare):
        yield


def changed(data: object, ops: Mapping[str, Mapping[str, int | float]]) -> dict[str, Any]:
    """Return a configuration with other values of these Ops. Raises ConfigError: it is none."""
    if not isinstance(data, Mapping):
        raise ConfigError("the configuration is no mapping")
    dag = data.get("dag") if isinstance(data.get("dag"), Mapping) else {}
    filters = data.get("filters") if isinstance(data.get("filters"), Mapping) else {}
    of_ops = dict(data.get("op") or {})
    for name, values in ops.items():
        of_ops[name] = {**(of_ops.get(name) or {}), **values}
    return {
        **data,
        **_ALONE,
        "dag": {**(dag or {}), **_ALONE_DAG},
        "filters": {name: given for name, given in (filters or {}).items() if name != _RECORD},
        "op": of_ops,
    }


@contextlib.contextmanager
def _replaced(prepare: Any) -> Iterator[None]:
    names = ("prepare_server", "prepare_pipeline_config")  # the second one is the first's alias
    originals = [getattr(PipelineServer, name) for name in names]
    for name in names:
        setattr(PipelineServer, name, prepare)
    try:
        yield
    finally:
        for name, original in zip(names, originals, strict=True):
            setattr(PipelineServer, name, original)


if __name__ == "__main__":
    raise SystemExit(main())
