"""`pipeline config show` and `pipeline config schema`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pipeline.cli.parsing import FAILED, add_layers, command_parser, fails
from pipeline.config.json_schema import config_schema, encoded
from pipeline.config.layers import layers_here, merged, read_layers, use, without
from pipeline.config.rows import ConfigRow, rows_of, without_defaults
from pipeline.config.schema import ServiceConfig, config_of
from pipeline.config.yaml import ConfigSource, KeyPath, dotted, flow
from pipeline.errors import ConfigError, PipelineError
from pipeline.op import Op
from pipeline.system.script import ScriptNotFoundError

_COLUMN = 40  # where comments begin
_INDENT = 2
_SCRIPT_SUFFIX = ".py"


def config(arguments: Sequence[str]) -> int:
    """Run `pipeline config show|schema`; return the exit status."""
    options = config_parser().parse_args(list(arguments))
    status: int = options.work(options)
    return status


def config_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "config",
        "Show a configuration as a server here would read it, or the JSON Schema of all keys.",
        "pipeline config show config.yml --profile prod --set op.bow.concurrency=4\n"
        "pipeline config schema > .config.schema.json",
    )
    commands = parser.add_subparsers(required=True, metavar="show|schema")
    show = commands.add_parser("show", help="print every key, its value and where that came from")
    show.add_argument(
        "file",
        nargs="?",
        default="config.yml",
        help="a config.yml (the default), or a script, whose constructors' arguments are included",
    )
    show.add_argument("--given", action="store_true", help="leave out keys that have their default")
    show.add_argument("--json", action="store_true", help="print JSON, an object for each key")
    add_layers(show)
    show.set_defaults(work=_show)
    schema = commands.add_parser("schema", help="print the JSON Schema of config.yml, for editors")
    schema.set_defaults(work=_schema)
    return parser


def _schema(options: argparse.Namespace) -> int:
    sys.stdout.write(encoded(config_schema()).decode())
    return 0


def _show(options: argparse.Namespace) -> int:
    use(options.profile, options.set)
    try:
        file, constructors = options.file, None
        if file.endswith(_SCRIPT_SUFFIX):
            file, constructors = constructors_of(file)
        source, overrides = read_layers(ServiceConfig, file, None, layers_here())
    except (PipelineError, ScriptNotFoundError) as error:
        return fails("config show", str(error))
    merged_source = (
        source if constructors is None else merged(source, without(constructors, overrides))
    )
    rows = rows_of(merged_source, ServiceConfig)
    shown = without_defaults(rows) if options.given else list(rows)
    sys.stdout.write(_json(shown) if options.json else "".join(map(_line, shown)))
    try:
        config_of(source, overrides)
    except ConfigError as error:
        sys.stdout.flush()
        for line in str(error).splitlines():
            fails("config show", line)
        return FAILED
    return 0


def _line(row: ConfigRow) -> str:
    """Return a row as a line of YAML, with its origin as a comment."""
    indent = " " * _INDENT * (len(row.path) - 1)
    text = f"{indent}{flow(row.path[-1])}:"
    if row.is_section:
        return f"{text}\n"
    text += f" {flow(row.value)}"
    return f"{text:<{_COLUMN}}  # {row.origin}\n"


def _json(rows: Iterable[ConfigRow]) -> str:
    objects = [
        {"key": dotted(row.path), "value": row.value, "origin": row.origin}
        for row in rows
        if not row.is_section
    ]
    return msgspec.json.format(msgspec.json.encode(objects), indent=2).decode() + "\n"


# Arguments of a script's constructors -----------------------------------------------------------


def constructors_of(script: str) -> tuple[str, ConfigSource]:
    """Return the config.yml of a script, and the settings in the constructors of its Ops.

    The script runs up to the start of its server.

    Raises:
        ScriptNotFoundError: the script does not exist.
        ConfigError: it runs no server, or one whose configuration is a dict.
        PipelineError: its graph or configuration is wrong.
    """
    from pipeline.cli.graph import server_of  # here: it imports the server

    server = server_of(False, script, ())
    if server is None or (config := server._config) is None:
        raise ConfigError(f"{script} ended without running a server")
    if config.source == "yml_dict":
        raise ConfigError(f"{script}: its configuration is a dict, so there is no file to show")
    arguments = {
        op.name: _constructor_values(op)
        for graph in server._graphs.values()
        for op in graph.all_ops
    }
    origins: dict[KeyPath, str] = {
        ("op", name, key): f"constructor of Op {name!r}"
        for name in arguments
        for key in arguments[name]
    }
    return config.source, ConfigSource(script, {"op": arguments}, origins=origins)


def _constructor_values(op: Op) -> dict[str, Any]:
    """Return the settings in an Op's constructor, by the keys of config.yml."""
    values = {key: value for key, value in op.pipeline_given.items() if value is not None}
    handler: Any = values.pop("local_service_handler", None)
    if handler is not None:
        settings: Mapping[str, Any] = handler.as_settings()
        values["local_service_conf"] = {k: v for k, v in settings.items() if v is not None}
    if isinstance(strategy := values.get("sequence"), str):
        values["sequence"] = {"strategy": strategy}
    if "dynamic_batching" in values:
        values["batching"] = "dynamic"
    if values.get("retry") == 0:  # 0 means not set
        del values["retry"]
    return values
