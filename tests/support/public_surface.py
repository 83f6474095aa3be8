"""The public surface as text, a fact a line, in sections: what users' programs hold on to.

    cd tests/support && PYTHONPATH=<tree> python public_surface.py > golden/public_surface.txt

writes it for any tree since a8c0ad6, the commit that the golden file was first made of.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import inspect
import io
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf.descriptor import FileDescriptor

from pipeline.errors import PipelineError

# Modules under the names of docs, examples and users' scripts. Names are listed where a module
# also has private ones; otherwise `__all__`, or every definition, is public.
PUBLIC_MODULES: dict[str, tuple[str, ...]] = {
    "pipeline": (),
    "pipeline.channel": (),
    "pipeline.client": (),
    "pipeline.data": ("ChannelData", "ChannelDataType"),
    "pipeline.deadline": ("call_deadline",),
    "pipeline.dropin": (),
    "pipeline.dropin.client": (),
    "pipeline.dropin.client.httpclient": (),
    "pipeline.dropin.client.utils": (),
    "pipeline.dropin.server": (),
    "pipeline.dropin.server.pipeline.profiler": (),
    "pipeline.dropin.server.util": (),
    "pipeline.error_catch": (),
    "pipeline.errors": ("ErrorCode",),  # the others: under [errors]
    "pipeline.gateway": (),
    "pipeline.gateway.build": ("BINARY", "build", "main"),
    "pipeline.op": ("Op", "RequestOp", "ResponseOp"),
    "pipeline.proto.channels": (),
    "pipeline.proto.codec": (
        *("ElemType", "decode_tensors", "numpy_to_tensor", "numpy_to_text"),
        *("tensor_to_numpy", "text_to_numpy"),
    ),
    "pipeline.proto.messages": ("CallOptions", "PipelineResponse", "request_from_feed"),
    "pipeline.serve": ("main",),
    "pipeline.server": ("PipelineServer",),
    "pipeline.testing": (),
    "pipeline.tracing": (
        *("TraceContext", "call_trace", "child", "format_traceparent"),
        *("parse_traceparent", "set_call_trace"),
    ),
    "pipeline.web_service": (),
}
GENERATED = ("brpc_meta", "general_model", "general_model_config", "inference_v2",
             "paddle_program", "pipeline_service")  # fmt: skip
# The predecessor's modules: below `paddle_serving_server`, `..._server_gpu` and `..._client`.
SERVERS = (
    *("", "pipeline", "pipeline.analyse", "pipeline.channel", "pipeline.dag"),
    *("pipeline.error_catch", "pipeline.local_service_handler", "pipeline.logger"),
    *("pipeline.operator", "pipeline.pipeline_client", "pipeline.pipeline_server"),
    *("pipeline.profiler", "pipeline.util", "pipeline.proto"),
    *("pipeline.proto.pipeline_service_pb2", "pipeline.proto.pipeline_service_pb2_grpc"),
    *("proto", "proto.general_model_config_pb2"),
    *("serve", "util", "version", "web_service"),
)
CLIENTS = (
    *("", "convert", "httpclient", "io", "pipeline", "pipeline.pipeline_client", "utils"),
    *("proto", "proto.general_model_config_pb2"),
)
# Where a part that is shown here lies today, and where it lay in a8c0ad6.
_FORMERLY = {
    "pipeline.config.fields": "pipeline.config_fields",
    "pipeline.config.schema": "pipeline.config",
    "pipeline.dropin.import_hook": "pipeline.dropin.finder",
    "pipeline.engine.journal.journal": "pipeline.observe.span",
    "pipeline.cli.graph": "pipeline.commands_graph",
    "pipeline.cli.commands": "pipeline.commands",
    "pipeline.serve.arguments": "pipeline.serve_arguments",
}
_CONSTRUCTED = {
    "Op": ("one",),
    "RequestOp": (),
    "ResponseOp": ([],),
    "ProductError": (51, "text"),
    "CaughtError": (0, ""),
    "ErrorCode": (0,),
}


def surface() -> dict[str, list[str]]:
    """Return the lines of each section."""
    return {name: sorted(set(lines())) for name, lines in SECTIONS.items()}


def as_text(sections: Mapping[str, list[str]]) -> str:
    return "".join(f"[{name}]\n" + "".join(f"{line}\n" for line in lines) + "\n"
                   for name, lines in sections.items())  # fmt: skip


def from_text(text: str) -> dict[str, list[str]]:
    """Return the sections of a golden file."""
    sections: dict[str, list[str]] = {}
    for line in text.splitlines():
        if heading := re.fullmatch(r"\[([\w ]+)\]", line):
            lines = sections.setdefault(heading[1], [])
        elif line:
            lines.append(line)
    return sections


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return importlib.import_module(_FORMERLY[name])


# Names and signatures --------------------------------------------------------------------------


def _names() -> Iterator[str]:
    for module, public in PUBLIC_MODULES.items():
        yield from _lines_of_module(module, importlib.import_module(module), public)


def _paddle_names() -> Iterator[str]:
    home_of = _module("pipeline.dropin.import_hook").home_of
    roots = {"server": SERVERS, "server_gpu": SERVERS, "client": CLIENTS}
    for root, modules in roots.items():
        for below in modules:
            name = f"paddle_serving_{root}.{below}".rstrip(".")
            module = importlib.import_module(home_of(name))
            yield f"{name}"
            for public in _public_names(module):
                yield f"{name}.{public}: {_kind(getattr(module, public))}"


def _lines_of_module(name: str, module: ModuleType, names: tuple[str, ...]) -> Iterator[str]:
    yield name
    for public in names or _public_names(module):
        value = getattr(module, public)
        yield f"{name}.{public}: {_kind(value)}"
        if inspect.isclass(value):
            yield from _lines_of_class(f"{name}.{public}", value)
        elif callable(value):
            yield f"{name}.{public}{_signature(value)}"


def _public_names(module: ModuleType) -> list[str]:
    """`__all__`, or what the module itself defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    names = {name for node in ast.parse(source).body for name in _defined(node)}
    return sorted(name for name in names if not name.startswith("_"))


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _kind(value: object) -> str:
    if inspect.isclass(value):
        return f"class {value.__name__}"
    if callable(value):
        return "callable"
    return type(value).__name__


def _lines_of_class(path: str, cls: type) -> Iterator[str]:
    yield f"{path}{_signature(cls)}"
    for name in sorted({name for base in _ours(cls) for name in vars(base)}):
        if name.startswith(("_", "pipeline_")):  # these are the library's own on users' classes
            continue
        value = inspect.getattr_static(cls, name)
        is_method = callable(getattr(value, "__func__", value))
        yield f"{path}.{name}{_signature(getattr(cls, name)) if is_method else ''}"
    if (arguments := _CONSTRUCTED.get(cls.__name__)) is not None:
        with contextlib.suppress(AttributeError):
            for name in vars(cls(*arguments)):
                if not name.startswith(("_", "pipeline_")):
                    yield f"{path}().{name}"


def _ours(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__module__.startswith("pipeline")]


def _signature(value: Any) -> str:
    """Names, kinds and defaults of parameters; types are a type checker's to compare."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    except PipelineError:  # a stand-in for what there is not: it says so
        return "(stand-in)"
    parameters = [each.replace(annotation=inspect.Parameter.empty)
                  for each in signature.parameters.values()]  # fmt: skip
    bare = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return re.sub(r"<[^<>]*>", "<...>", str(bare))


# Configuration, metrics, errors, messages, command lines ---------------------------------------


def _config_keys() -> Iterator[str]:
    known_keys = _module("pipeline.config.fields").known_keys
    for path, setting in known_keys(_module("pipeline.config.schema").ServiceConfig):
        other = f" (also {setting.alias})" if setting.alias else ""
        expected = "section" if setting.section else setting.expected
        yield f"{path}{other}: {expected} = {setting.default!r}"


def _metrics() -> Iterator[str]:
    """Name, type and help of each, rendered from a server with a model that is known."""
    metrics = importlib.import_module("pipeline.observe.metrics")
    snapshots = importlib.import_module("pipeline.observe.snapshot")
    state = importlib.import_module("pipeline.engine.state")
    memory = importlib.import_module("pipeline.predictors.base")
    counters = snapshots.ModelCounters("op")
    counters.memory = [memory.MemoryUse("GPU", 0, 1)]
    workers = state.WorkersState("thread", 4, 3, 2, 1, 9)
    op = state.OpState("op", 5, 6, 7, workers, edges=[state.EdgeState("next", 8, 2)])
    engine = state.EngineState(True, 3, 2, 50, 4, [op])
    snapshot = snapshots.Snapshot(0, engine, [snapshots.ModelCounters("pipeline"), counters])
    text = metrics.render([snapshot])
    text += metrics.as_text(metrics.predecessor_metrics([snapshot]))
    for line in text.decode().splitlines():
        yield line if line.startswith("#") else _without_value(line)


def _without_value(line: str) -> str:
    name, _, labels = line.rpartition(" ")[0].partition("{")
    return f"{name} with labels {sorted(re.findall(r'([a-z_]+)=', labels))}"


def _error_codes() -> Iterator[str]:
    errors = importlib.import_module("pipeline.errors")
    for name, cls in vars(errors).items():
        if inspect.isclass(cls) and issubclass(cls, errors.PipelineError):
            bases = ", ".join(base.__name__ for base in cls.__bases__)
            yield f"{name}({bases}): code {int(cls.code)}, is_callers {cls.is_callers}"
    for name, code in errors.ErrorCode.__members__.items():
        yield f"ErrorCode.{name} = {int(code)}"


def _descriptors() -> Iterator[str]:
    for name in GENERATED:
        module = importlib.import_module(f"pipeline.proto.{name}_pb2")
        descriptor: FileDescriptor = module.DESCRIPTOR
        digest = hashlib.sha256(descriptor.serialized_pb).hexdigest()
        yield f"pipeline.proto.{name}_pb2: {descriptor.name} {descriptor.package} {digest}"
        for public in sorted(vars(module)):
            is_module = inspect.ismodule(getattr(module, public))
            if not (is_module or public.startswith("_") or "__" in public):
                yield f"pipeline.proto.{name}_pb2.{public}"
    module = importlib.import_module("pipeline.proto.pipeline_service_pb2_grpc")
    for public in sorted(name for name in vars(module) if name.startswith(("Pipeline", "add_"))):
        yield f"{module.__name__}.{public}"


def _command_lines() -> Iterator[str]:
    commands: dict[str, Callable[[list[str]], object]] = {
        "pipeline": importlib.import_module("pipeline.__main__").main,
        "pipeline.serve": importlib.import_module("pipeline.serve").main,
        "pipeline.gateway.build": importlib.import_module("pipeline.gateway.build").main,
    }
    for name, main in commands.items():
        yield from _help(name, main, ["--help"])
    for command in ("analyse", "graph", "check"):
        yield from _help(f"pipeline {command}", commands["pipeline"], [command, "--help"])
    root = Path(str(importlib.import_module("pipeline").__file__)).parents[1]
    code = sorted(Path(root, "pipeline/gateway/internal/config").glob("*.go"))
    flags = "".join(file.read_text(encoding="utf-8") for file in code)
    for line in re.findall(r"^\tflags\.\w+\(.*", flags, re.MULTILINE):
        if option := re.search(r'"([\w-]+)".*"(.*)"\)', line):
            yield f"pipeline.gateway: --{option[1]}: {option[2]}"
    for name, script in tomllib.loads((root / "pyproject.toml").read_text())["project"][
        "scripts"
    ].items():
        yield f"{name} = {script}"


def _help(name: str, main: Callable[[list[str]], object], arguments: list[str]) -> Iterator[str]:
    """The lines, spaces aside: where they break is argparse's affair."""
    written = io.StringIO()
    width = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "1000"
    try:
        with contextlib.redirect_stdout(written), contextlib.suppress(SystemExit):
            main(arguments)
    finally:
        del os.environ["COLUMNS"]
        if width is not None:
            os.environ["COLUMNS"] = width
    for line in written.getvalue().splitlines():
        if line.strip() and "(default: /" not in line:  # this machine's own
            yield f"{name}: {' '.join(line.split())}"


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "names": _names,
    "names of Paddle Serving": _paddle_names,
    "configuration": _config_keys,
    "metrics": _metrics,
    "errors": _error_codes,
    "messages": _descriptors,
    "command lines": _command_lines,
}


if __name__ == "__main__":
    sys.stdout.write(as_text(surface()))
