"""Writes what the Structs of the configuration say into the files that repeat it:

.venv/bin/python scripts/generate_reference.py

config.yml, docs/configuration-reference.md and config.schema.json.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from pipeline.config import json_schema, registry  # noqa: E402
from pipeline.config.fields import Setting, settings_of  # noqa: E402
from pipeline.config.schema import ServiceConfig  # noqa: E402
from pipeline.config.yaml import flow  # noqa: E402

REFERENCE = "docs/configuration-reference.md"
COMMON: Mapping[str, Any] = yaml.safe_load("""
{rpc_port: 18070, http_port: 18071, host: , edge: , worker_num: 64, build_dag_each_worker: ,
timeout: , queue_size: , log: {level: , request_sample: , to: , format: },
dag: {is_thread_op: , retry: , forward_headers: , use_profile: },
op: {example: {concurrency: , timeout: , retry: , batch_size: , auto_batching_timeout: , batching: ,
workers: process, server_endpoints: , client_type: triton, model_name: resnet50,
local_service_conf: {model_config: model, thread_num: , devices: , precision: ,
fetch_list: [prediction]}}}}
""")
"""Keys of the short config.yml; a value is the example for a key that has no default."""

_CONFIG = f"""\
# yaml-language-server: $schema=pipeline/config/config.schema.json
# The common keys with their defaults. All keys: {REFERENCE}.
# scripts/generate_reference.py writes this file.
#
# Copy what you change. A key that is absent or null has its default. A key after a plain #, such as
# #worker_num: 64, has no default: its value is an example.
"""
_PAGE = """\
# Configuration reference

Every key of config.yml. Where values come from: [configuration](configuration.md). The common keys
as a file to copy: [config.yml](../config.yml). `scripts/generate_reference.py` writes this page.

A key that is absent or null has its default. Durations are whole numbers; the text says their unit.
"""
_LISTS = "[]"


def generated() -> dict[Path, str]:
    """Return the files and their text."""
    return {
        Path("config.yml"): _CONFIG + "\n" + "".join(_lines(ServiceConfig, COMMON, "")),
        Path(REFERENCE): _PAGE + "".join(_section(*section) for section in _sections()),
        json_schema.FILE.relative_to(ROOT): json_schema.encoded(
            json_schema.config_schema()
        ).decode(),
    }


# config.yml -------------------------------------------------------------------------------------


def _lines(struct: type[msgspec.Struct], keys: Mapping[str, Any], indent: str) -> Iterator[str]:
    settings = settings_of(struct)
    for key, example in keys.items():
        setting = settings[key]
        yield f"{indent}# {setting.doc}\n"
        if setting.section is None:
            is_example = setting.default is None and not key.endswith("_port")
            value = example if setting.default is None else setting.default
            yield f"{indent}{'#' if is_example else ''}{key}: {flow(value)}\n"
        elif setting.many:
            ((name, inner),) = example.items()
            yield f"{indent}{key}:\n{indent}  {name}:\n"
            yield from _lines(setting.section, inner, indent + "    ")
        else:
            yield f"{indent}{key}:\n"
            yield from _lines(setting.section, example, indent + "  ")


# Tables -----------------------------------------------------------------------------------------


def _sections() -> Iterator[tuple[str, type[msgspec.Struct], str]]:
    """Yield (path, Struct, what it is) of each section, of the whole first, options last."""
    yield "config.yml", ServiceConfig, "The top level."
    yield from _below(ServiceConfig, "")
    for key in ("cache", "filters", "sinks", "frontends"):
        chosen = settings_of(ServiceConfig)[key].chosen
        assert chosen is not None
        for name in registry.BUILT_IN[chosen.kind]:
            if (options := registry.options_of(chosen.kind, name)) and settings_of(options):
                yield f"{key}.{name}", options, f"Options of `{name}`."
                yield from _below(options, f"{key}.{name}.")
    for name in registry.BUILT_IN["clients"]:
        if options := registry.options_of("clients", name):
            yield f"op.NAME with client_type: {name}", options, "Additional keys of the Op."


def _below(struct: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, Any, str]]:
    for key, setting in settings_of(struct).items():
        if setting.section is not None:
            path = prefix + key + (".NAME" if setting.many else _LISTS if setting.listed else "")
            yield path, setting.section, setting.doc
            yield from _below(setting.section, f"{path}.")


def _section(path: str, struct: type[msgspec.Struct], doc: str) -> str:
    prefix = "" if path == "config.yml" else f"{path}."
    return f"\n## `{path}`\n\n{doc}\n\n{_table(settings_of(struct), prefix)}"


def _table(settings: Mapping[str, Setting], prefix: str) -> str:
    rows = ["| key | meaning | value | default |\n|---|---|---|---|\n"]
    for key, setting in settings.items():
        meaning, value, default = setting.doc, "", ""
        if setting.section is not None:
            path = f"{prefix}{key}{'.NAME' if setting.many else ''}"
            value = f"[{'list' if setting.listed else 'section'}](#{_anchor(path)})"
        elif setting.chosen is not None:
            value = "names with options"
        else:
            value = setting.expected
            default = "required" if setting.is_required and "absent" not in setting.doc else ""
        if setting.default is not None:
            default = f"`{flow(setting.default)}`"
        name = f"`{key}`" + (f" (also `{setting.alias}`)" if setting.alias else "")
        rows.append(f"| {name} | {_cell(meaning)} | {_cell(value)} | {default} |\n")
    return "".join(rows)


def _anchor(path: str) -> str:
    return re.sub(r"[^\w\- ]", "", path.lower()).replace(" ", "-")


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*").replace("<", "&lt;")


if __name__ == "__main__":
    for path, text in generated().items():
        (ROOT / path).write_text(text, encoding="utf-8")
