"""Registry of the names in config.yml: engines, client types, worker kinds and other open sets.

Three sources: built-in implementations, listed here by their modules and imported when used; entry
points of installed distributions, group `pipeline.<kind>`; and `register`, from a script.

The options of an implementation are the fields of a msgspec Struct, its attribute `Options`, each
`Annotated` with its check and a sentence of documentation. In config.yml they are keys next to the
one that names the implementation (`workers: mine`, `batching: mine`, `engine: mine`, `client_type:
mine`); under `filters`, `sinks` and `frontends` they are keys of the mapping below the name.
"""

from __future__ import annotations

import difflib
import functools
import pkgutil
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pipeline.errors import ConfigError, described

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Kind = Literal[
    "engines",
    "clients",
    "workers",
    "schedulers",
    "strategies",
    "frontends",
    "sinks",
    "filters",
    "backends",
    "caches",
    "stores",
]

BUILT_IN: Mapping[Kind, Mapping[str, str]] = {
    "engines": {
        "onnx": "pipeline.predictors.onnx:ENGINE",
        "paddle": "pipeline.predictors.paddle:ENGINE",
        "openvino": "pipeline.predictors.openvino:ENGINE",
    },
    "clients": {
        "brpc": "pipeline.predictors.remote.general_model:connect_brpc",
        "grpc": "pipeline.predictors.remote.general_model:connect_grpc",
        "pipeline_grpc": "pipeline.predictors.remote.pipeline:connect",
        "triton": "pipeline.predictors.remote.kserve:connect",
        "kserve": "pipeline.predictors.remote.kserve:connect",
        "openai": "pipeline.predictors.remote.openai:OpenAIPredictor",
    },
    "workers": {
        "thread": "pipeline.workers.thread:ThreadKind",
        "process": "pipeline.workers.process.kind:ProcessKind",
        "model": "pipeline.workers.model:ModelKind",
        "ray": "pipeline.workers.ray.kind:RayKind",
    },
    "schedulers": {
        "full": "pipeline.engine.schedulers.dynamic:FullScheduler",
        "adaptive": "pipeline.engine.schedulers.dynamic:AdaptiveScheduler",
        "dynamic": "pipeline.engine.schedulers.dynamic_batcher:DynamicBatcher",
        "iterative": "pipeline.engine.schedulers.iterative:IterativeScheduler",
    },
    "strategies": {
        "direct": "pipeline.engine.sequences.scheduler:DirectScheduler",
        "oldest": "pipeline.engine.sequences.scheduler:OldestScheduler",
    },
    "frontends": {
        "v2": "pipeline.frontends.registry:v2",
        "api": "pipeline.frontends.registry:api",
        "openai": "pipeline.frontends.openai.routes:openai",
        "metrics_routes": "pipeline.frontends.registry:metrics_routes",
        "dashboard": "pipeline.frontends.registry:dashboard",
        "grpc": "pipeline.frontends.registry:grpc",
        "http": "pipeline.frontends.registry:http",
        "link": "pipeline.frontends.registry:link",
        "metrics": "pipeline.frontends.registry:metrics",
    },
    "sinks": {
        "statistics": "pipeline.observe.statistics:open_statistics",
        "slow_requests": "pipeline.frontends.dashboard.recent:open_slow_requests",
        "recording": "pipeline.frontends.dashboard.recent:open_recording",
        "last_minute": "pipeline.frontends.dashboard.recent:open_last_minute",
        "profile": "pipeline.observe.paddle.profile:open_profile",
        "opentelemetry": "pipeline.tracing.sink:open_telemetry",
        "tracer": "pipeline.observe.paddle.tracer:open_tracer",
    },
    "filters": {"record": "pipeline.observe.record:Record"},
    "caches": {
        "local": "pipeline.caches.local:LocalCache",
        "redis": "pipeline.caches.redis:RedisCache",
    },
    "stores": {
        "redis": "pipeline.stores.redis:RedisStore",
        "rediss": "pipeline.stores.redis:RedisStore",
    },
    "backends": {
        "onnxruntime": "pipeline.repository.backends.onnxruntime:ONNXRUNTIME",
        "identity": "pipeline.repository.backends.identity:IDENTITY",
        "pipeline": "pipeline.repository.backends.pipeline:PipelineBackend",
        "ensemble": "pipeline.repository.ensembles:EnsembleBackend",
        "python": "pipeline.repository.backends.python.backend:PYTHON",
    },
}
"""The place "module:attribute" of each built-in implementation."""

_registered: dict[tuple[Kind, str], Any] = {}


def register(kind: Kind, name: str, implementation: Any) -> None:
    """Let config.yml name `implementation`; call it where the script is imported.

    It follows the kind's Protocol, or is its place as text, "module:attribute". Raises ConfigError:
    the kind does not exist, or another implementation has the name. A script that runs
    again, as in tests, replaces its own.
    """
    if kind not in BUILT_IN:
        raise ConfigError(f"register: expected {' or '.join(BUILT_IN)}, found {kind!r}")
    known = BUILT_IN[kind].get(name) or _registered.get((kind, name), implementation)
    if known != implementation and _name_of(known) != _name_of(implementation):
        raise ConfigError(f"register: the name {name!r} is taken among {kind}: {known!r}")
    _registered[kind, name] = implementation


def _name_of(implementation: Any) -> str:
    """Return the name of an implementation, the same when its script runs again."""
    name = getattr(implementation, "__qualname__", "<")  # classes and functions have one
    has_own_name = "<" not in name  # not that of a lambda or of a function's inner one
    return f"{implementation.__module__}.{name}" if has_own_name else repr(implementation)


def find(kind: Kind, name: str) -> Any:
    """Return the implementation; import it if necessary.

    Raises ConfigError: the name is unknown, its plug-in is broken, or its place is empty.
    """
    implementation = BUILT_IN[kind].get(name) or _registered.get((kind, name))
    if implementation is None:
        return _load_plug_in(kind, name)
    try:
        return (
            pkgutil.resolve_name(implementation)
            if isinstance(implementation, str)
            else implementation
        )
    except (ImportError, AttributeError, ValueError) as error:
        place = f"{kind}: {name!r} cannot be loaded from {implementation!r}"
        raise ConfigError(f"{place}: {described(error)}") from error


def options_of(kind: Kind, name: str) -> type[msgspec.Struct] | None:
    """Return the Struct of an implementation's options, its attribute `Options`; see `find`."""
    options: Any = getattr(find(kind, name), "Options", None)
    if options is None or (isinstance(options, type) and issubclass(options, msgspec.Struct)):
        return options
    raise ConfigError(
        f"{kind}: expected a msgspec.Struct as the Options of {name!r}, got {options!r}"
    )


def known_as(kind: Kind, word: str) -> str | None:
    """Return the name that matches `word` in any case; None if no name does.

    Plug-ins are searched only when no built-in name matches.
    """
    return _in_any_case(word, BUILT_IN[kind]) or _in_any_case(word, names(kind))


def names(kind: Kind) -> tuple[str, ...]:
    """Return all names of a kind: built-in ones, the script's, and those of plug-ins."""
    scripts = (name for registered, name in _registered if registered == kind)
    plugged = (point.name for point in _plug_ins(kind))
    return tuple(dict.fromkeys((*BUILT_IN[kind], *scripts, *plugged)))


def _in_any_case(word: str, known: Collection[str]) -> str | None:
    if word in known:
        return word
    return next((name for name in known if name.lower() == word.lower()), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean batch_size?`, or nothing when no known word is near."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


@functools.cache
def _plug_ins(kind: Kind) -> tuple[EntryPoint, ...]:
    """Return the entry points of a kind; there may be several of one name."""
    # Slow, and rarely needed. `import importlib.metadata` may fail while another thread does it.
    from importlib.metadata import entry_points

    points = tuple(entry_points(group=f"pipeline.{kind}"))
    for point in points:
        if point.name in BUILT_IN[kind]:
            raise ConfigError(f"{_described(point)} has the name of one that is built in")
    return points


def _load_plug_in(kind: Kind, name: str) -> Any:
    points = [point for point in _plug_ins(kind) if point.name == name]
    if not points:
        known = names(kind)
        there = " or ".join(known) or "none, as no plug-in is installed"
        raise ConfigError(f"{kind}: expected {there}, found {name!r}{did_you_mean(name, known)}")
    if len(points) > 1:
        raise ConfigError(
            f"{kind}: several plug-ins are called {name!r}: uninstall all but one of "
            f"{', '.join(map(_described, points))}"
        )
    try:
        return points[0].load()
    except Exception as error:  # a plug-in may raise anything
        raise ConfigError(
            f"{_described(points[0])} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def _described(point: EntryPoint) -> str:
    owner = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
    return f"the plug-in {point.name} = {point.value} of {owner} (entry point {point.group})"
