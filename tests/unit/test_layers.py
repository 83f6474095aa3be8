"""The layers of the design: which module may import which, read from the sources."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from paths import ROOT
from sources import nodes, parsed

PACKAGE = ROOT / "pipeline"

# From the bottom to the top; a module belongs to the longest name that it begins with, and may
# import those of its own layer and of the layers below.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("answer_head",),
    ("errors", "metrics", "data", "deadline", "routes", "system", "tracing", "dropin.names"),
    ("channel", "error_catch"),  # the predecessor's names for what is below
    ("proto",),
    (
        "client",
        "client_answers",
        "client_http",
        "client_sequence",
    ),  # what a client's install needs: see ONLY
    ("config",),
    ("schema", "openai"),
    ("stores",),
    ("op", "predictors"),
    ("engine",),
    ("workers", "caches"),
    ("observe", "tracing.sink", "tracing.recorder", "tracing.spans"),
    ("frontends",),
    ("runtime", "gateway", "repository", "tuning"),
    ("cluster",),
    ("server", "web_service"),
    ("serve", "repository.server"),
    ("dropin", "cli", "testing", "__main__"),
)
# Rules that are stricter than the layers: nothing of the package but this.
ONLY: dict[str, set[str]] = {
    "client": {
        *("errors", "data", "proto", "tracing"),
        *("client_answers", "client_http", "client_sequence"),
    },
    "client_answers": {"errors", "proto"},
    "client_sequence": {"errors", "proto", "client_answers"},
    "client_http": {"errors", "proto"},
    "channel": {"errors", "data", "dropin.names"},
    "error_catch": {"errors", "data", "dropin.names"},
    "dropin.names": {"errors", "data"},
    "answer_head": set(),
    "errors": {"answer_head"},
    "data": {"errors", "metrics"},
    "metrics": set(),
    "openai": {"errors", "schema"},
    "deadline": {"errors"},
    "routes": {"answer_head", "errors"},  # op for its types only
    "system": {"errors", "system"},
    "gateway.__main__": {"errors", "gateway.binary"},  # becomes the binary: nothing that it needs
    "gateway.binary": {"errors", "gateway.build"},
    "gateway.build": set(),  # packaging runs it with nothing of us installed
    "engine.journal.journal": {"errors", "data"},
    "proto": {"errors", "data", "proto"},
    "schema": {"errors", "data", "proto", "schema"},
    "op": {
        "errors",
        "data",
        "routes",
        "engine.journal",
        "proto",
        "schema",
    },  # config for its types only
    "predictors": {
        *("errors", "data", "deadline", "metrics", "proto", "config", "predictors", "stores"),
        *("system", "tracing"),
    },
    "tracing.context": set(),
}
# Third-party packages that are used in these places and nowhere else.
AT_HOME: dict[str, set[str]] = {
    "grpc": {
        *("client", "client_answers", "client_sequence"),
        "frontends.grpc.server",
        "frontends.grpc.calls",
        "frontends.grpc.guarded",
        "frontends.grpc.inference",
        "frontends.grpc.reflection",
        "frontends.v2.grpc",
        "frontends.v2.restrictions",
        "predictors.remote.grpc_calls",
        "proto.pipeline_service_pb2_grpc",
    },
    "grpc_health": {"frontends.grpc.server", "frontends.grpc.calls"},
    "opentelemetry": {
        "tracing.recorder",
        *("observe.otel.environment", "observe.otel.logs", "observe.otel.metrics"),
    },
    "prometheus_client": {"observe.metrics", "cluster.overview"},
    "grpc_reflection": {"frontends.grpc.reflection"},
    "httptools": {"frontends.http.reader", "frontends.http.heads", "proto.http"},
    "uvloop": {"system.event_loop"},
    "cramjam": {"proto.brpc.frames"},
    "shtab": {"cli.completion"},
    "python_multipart": {"frontends.api.multipart"},
    "yaml": {"config.yaml", "config.yaml_edit"},
    "onnxruntime": {"predictors.onnx.predictor"},
    "openvino": {"predictors.openvino.predictor"},
    "paddle": {"predictors.paddle.predictor"},
    "ray": {"workers.ray.cluster", "cluster.ray_fleet"},
    "dill": {"workers.shm.pickling", "workers.zygote.spawn"},
    "marshal": {"system.pickling"},
    "redis": {"caches.redis", "stores.redis"},
    "torch": set(),
}
HEAVY = {"onnxruntime", "openvino", "paddle", "ray", "uvloop", "dill", "redis"}
IN_THE_LIBRARY = {"msgspec", "numpy", "orjson", "ml_dtypes", "google", *AT_HOME}


@dataclass(frozen=True)
class Import:
    """One import: of `target`, in `module`, both without the package's name if they are ours."""

    module: str
    target: str
    line: int
    is_ours: bool
    is_at_load: bool
    is_for_types: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def names_of_modules() -> dict[str, Path]:
    """Every module of the package by its name without the package's: `frontends.http.server`."""
    collected = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        collected[name] = path
    return collected


MODULES = names_of_modules()


def imports_of(module: str) -> Iterator[Import]:
    tree = parsed(MODULES[module])
    yield from _imports_in(tree, module, is_at_load=True, is_for_types=False)


def _imports_in(
    node: ast.AST, module: str, is_at_load: bool, is_for_types: bool
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            for name in _targets(child, module):
                is_ours = name == "pipeline" or name.startswith("pipeline.")
                target = name.removeprefix("pipeline").removeprefix(".") if is_ours else name
                yield Import(module, target, child.lineno, is_ours, is_at_load, is_for_types)
            continue
        in_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from _imports_in(
            child, module, is_at_load and not in_function, is_for_types or guarded
        )


def _targets(node: ast.Import | ast.ImportFrom, module: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert not node.level, f"{module}:{node.lineno}: relative imports are not used here"
    base = node.module or ""
    if base.split(".")[0] != "pipeline":
        return [base]
    # `from pipeline.proto import codec` is an import of pipeline.proto.codec.
    members = [f"{base}.{alias.name}" for alias in node.names]
    return [name if name.removeprefix("pipeline.") in MODULES else base for name in members]


def matches(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


def longest(module: str, prefixes: set[str]) -> str | None:
    return max((p for p in prefixes if matches(module, p)), key=len, default=None)


def layer_of(module: str) -> int | None:
    names = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    result = longest(module, set(names))
    return None if result is None else names[result]


@cache  # not when it is imported: every process that collects tests would parse all
def edges() -> list[Import]:
    """Return all imports of the package."""
    return [edge for module in sorted(MODULES) for edge in imports_of(module)]


def ours() -> list[Import]:
    """Return the imports of the package's own modules when it runs."""
    return [edge for edge in edges() if edge.is_ours and not edge.is_for_types]


def theirs() -> list[Import]:
    """Return the imports of third-party packages."""
    return [
        edge
        for edge in edges()
        if not edge.is_ours and edge.target.split(".")[0] not in sys.stdlib_module_names
    ]


def test_the_reader_of_imports_finds_expected_edges():
    assert len(MODULES) > 30
    seen = {(edge.module, edge.target) for edge in edges()}
    assert ("engine.executor", "engine.op.dispatcher") in seen
    assert ("frontends.wire", "proto.pipeline.json") in seen, (
        "a module named after `import` counts as one"
    )
    for_types = [f for f in edges() if f.module == "op" and f.target == "config"]
    assert all(found.is_for_types for found in for_types)
    (in_function,) = [
        f for f in edges() if f.module == "system.event_loop" and f.target == "uvloop"
    ]
    assert not in_function.is_at_load


def test_the_drawing_has_lines_between_packages_that_import_each_other():
    """One imports the other: who is called, or the Protocol by which it is called."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawing = page.partition("```mermaid")[2].partition("```")[0]
    results = {(of(edge.module), of(edge.target)) for edge in edges() if edge.is_ours}
    lines = re.findall(
        r"^ *(\w+)(?:\[[^]]*\])? (?:-->|-- \"[^\"]*\" -->) (\w+)", drawing, re.MULTILINE
    )
    assert len(lines) > 8
    unknown = [line for line in lines if line not in results and line[::-1] not in results]
    assert unknown == [("op", "predictors")], "an Op has a Protocol of its own for it"


def of(module: str) -> str:
    """The folder of a module, or itself."""
    return module.partition(".")[0]


def test_every_module_has_its_layer():
    without = {module for module in MODULES if layer_of(module) is None}
    assert without == {""}  # the package's lazy names


def test_imports_lead_downwards_only():
    upwards = [
        str(our)
        for our in ours()
        if (here := layer_of(our.module)) is not None
        and ((there := layer_of(our.target)) is None or there > here)
    ]
    assert upwards == []


@pytest.mark.parametrize("prefix", sorted(ONLY))
def test_restricted_packages_import_only_allowed_modules(prefix):
    more = [
        str(our)
        for our in ours()
        if longest(our.module, set(ONLY)) == prefix and longest(our.target, ONLY[prefix]) is None
    ]
    assert more == []


def test_the_engine_imports_no_sinks_frontends_and_formats():
    strangers = [
        str(edge)
        for edge in edges()
        if matches(edge.module, "engine")
        and (
            (edge.is_ours and matches(edge.target, "observe") and edge.target != "engine.journal")
            or edge.target.split(".")[0] in {"grpc", "yaml", "httptools", "http", "orjson"}
        )
    ]
    assert strangers == []


def test_third_party_packages_stay_in_their_places():
    strays = [
        str(their)
        for their in theirs()
        if (homes := AT_HOME.get(their.target.split(".")[0])) is not None
        and their.module not in homes
    ]
    assert strays == []


def test_heavy_packages_are_loaded_when_they_are_needed():
    early = [
        str(their)
        for their in theirs()
        if their.target.split(".")[0] in HEAVY and their.is_at_load and not their.is_for_types
    ]
    assert early == []


def test_no_other_third_party_package_is_used():
    others = [str(their) for their in theirs() if their.target.split(".")[0] not in IN_THE_LIBRARY]
    assert others == []


def test_the_package_itself_imports_nothing():
    assert [str(edge) for edge in edges() if edge.module == "" and not edge.is_for_types] == [
        str(edge)
        for edge in edges()
        if edge.module == "" and edge.target in ("__future__", "importlib", "typing")
    ]


# Forbidden calls, and the few places that need them: a forked child must not return into the
# script that it was forked from, and only its zygote may kill it. Four modules pickle the
# messages between our own processes. `python -m pipeline graph` and the child of a trial
# are applications: the script that they looked at may have threads that never end.
ENDS = {
    "os._exit": {
        "workers.zygote.main",
        "workers.zygote.runtimes",
        "cli.graph",
        "cli.trial_main",
    },
    "os.kill": {"workers.zygote.main"},
}
PICKLES = {
    "pickle": {"workers.shm.payload", "workers.shm.pickling"},
    "dill": {"workers.shm.pickling", "workers.zygote.spawn"},
    "marshal": {"system.pickling"},
}


def test_no_module_evaluates_prints_or_exits():
    """`eval`, `exec` and the ways to end the process are for applications."""
    calls = {"eval", "exec", "os._exit", "sys.exit", "os.kill", "os.killpg", "exit", "print"}
    results = [
        f"{module}:{node.lineno} calls {name}"
        for module, path in MODULES.items()
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name | ast.Attribute)
        and (name := ast.unparse(node.func)) in calls
        and module not in ENDS.get(name, ())
    ]
    assert results == []


def test_only_data_of_our_own_processes_are_unpickled():
    unsafe = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    results = [
        str(i) for i in edges() if i.target in unsafe and i.module not in PICKLES.get(i.target, ())
    ]
    assert results == []


# Where the worker kinds are made, where a stage of an Op has the same name, and of a server that
# is not started, which has no workers to ask.
NAMES_KINDS = {"workers.thread", "workers.process.kind", "tracing.spans", "cli.trial_main"}
KINDS = {"thread", "process"}


def test_no_module_compares_the_name_of_a_worker_kind():
    """What a kind can do is an attribute of `Workers`: `memory_domain`, `keeps_progress` ..."""
    asks = [
        f"{module}:{node.lineno} compares with a worker kind's name"
        for module, path in MODULES.items()
        for node in nodes(path)
        if isinstance(node, ast.Compare | ast.MatchValue)
        and module not in NAMES_KINDS
        and any(isinstance(n, ast.Constant) and n.value in KINDS for n in ast.walk(node))
    ]
    assert asks == []
