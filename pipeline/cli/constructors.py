"""Constructor arguments of a script's Ops, as a layer of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.cli.graph import server_of
from pipeline.config.yaml import KeyPath, Source
from pipeline.errors import ConfigError
from pipeline.op import Op


def constructors_of(script: str) -> tuple[str, Source]:
    """Return the config.yml that a script names, and what the constructors of its Ops say.

    The script is executed up to where its server would start.

    Raises:
        ScriptNotFoundError: there is no such script.
        ConfigError: it runs no server, or one whose configuration is a dict.
        PipelineError: its graph or configuration is wrong.
    """
    server = server_of(False, script, ())
    if server is None or (config := server._config) is None or (graph := server._graph) is None:
        raise ConfigError(f"{script} ended without running a server")
    if config.source == "yml_dict":
        raise ConfigError(f"{script}: its configuration is a dict, and no file that can be shown")
    said = {op.name: _said(op) for op in graph.all_ops}
    origins: dict[KeyPath, str] = {
        ("op", name, key): f"constructor of Op {name!r}" for name in said for key in said[name]
    }
    return config.source, Source(script, {"op": said}, origins=origins)


def _said(op: Op) -> dict[str, Any]:
    """Return what an Op's constructor says, by the keys of config.yml."""
    given = {key: value for key, value in op.pipeline_given.items() if value is not None}
    handler: Any = given.pop("local_service_handler", None)
    if handler is not None:
        settings: Mapping[str, Any] = handler.as_settings()
        given["local_service_conf"] = {k: v for k, v in settings.items() if v is not None}
    if isinstance(strategy := given.get("sequence"), str):
        given["sequence"] = {"strategy": strategy}
    if "dynamic_batching" in given:
        given["batching"] = "dynamic"
    if given.get("retry") == 0:  # stands for not given
        del given["retry"]
    return given
