"""Frontend: takes requests in; with the types that all frontends share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.config.batching import has_sequences, traits_of
from pipeline.config.schema import ServiceConfig
from pipeline.data import RequestInfo
from pipeline.engine.engine import Engine
from pipeline.engine.models import ModelRegistry
from pipeline.engine.offload import Offload
from pipeline.engine.run.hooks import asking
from pipeline.engine.run.payload import LOCAL, MemoryDomain
from pipeline.errors import PackageError
from pipeline.observe.custom_metrics import CustomMetrics
from pipeline.observe.snapshot import AskAll

if TYPE_CHECKING:  # these modules import this one
    from pipeline.frontends.api.openapi import Described
    from pipeline.frontends.grpc.server import GrpcService
    from pipeline.frontends.http.routes import ErrorForm, LaneService, Routes
    from pipeline.frontends.v2.control import RepositoryControl
    from pipeline.observe.traces.traces import RequestTraces

_WITHHELD = {  # headers of connections, and those with credentials
    *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding"),
    *("upgrade", "authorization", "cookie", "proxy-authenticate", "proxy-authorization"),
    *("set-cookie", "x-api-key", "x-auth-token"),
}
_MAX_NAMES = 1024  # of headers, with the remembered decision
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_GIVEN = re.compile("([0-9]{1,8})([HMSmun])")  # gRPC's form of a timeout


class Frontend(Protocol):
    """A listener that takes requests in, on the event loop that called `start`."""

    port: int
    """The actual port, after `start`."""

    async def start(self, is_ready: bool = False) -> None:
        """Listen. Raises InitError if the address is in use."""

    async def set_ready(self, ready: bool) -> None:
        """Set the answer to readiness requests."""

    async def drain(self) -> None:
        """Report the server as not ready, serve on, and close connections with their answers."""

    async def close(self, grace_s: float) -> None:
        """Stop accepting; active requests have `grace_s`. Does not wait for them."""

    async def stop(self, grace_s: float) -> None:
        """End the rest after `grace_s`. May be called without `start` or `close`, and twice."""


@dataclass(frozen=True, slots=True)
class FrontendContext:
    """The server behind its frontends.

    `name` and `engine` belong to the first pipeline; without a pipeline the models are those of a
    repository, under `control`. `whole` asks all replicas for their state. `offload` reads and
    writes large messages, and `memory` receives large bodies. `is_shared`: other processes listen
    on the same ports; this one is `replica`. With `sockets` an ingress has the ports that `taken`
    names, and calls frontends on Unix sockets in this folder. A frontend may add `routes` to the
    HTTP port, `lanes` for its fast paths, `described` for /openapi.json, `error_forms` by
    path, and `services` to the gRPC port. `traces` has v2 requests traced in files; models count
    in `metrics`.
    """

    name: str | None
    config: ServiceConfig
    engine: Engine | None
    models: ModelRegistry
    whole: AskAll
    offload: Offload
    is_shared: bool = False
    replica: int = 0
    sockets: Path | None = None
    taken: frozenset[str] = frozenset()
    routes: list[Routes] = field(default_factory=list)
    services: list[GrpcService] = field(default_factory=list)
    lanes: list[LaneService] = field(default_factory=list)
    described: list[Described] = field(default_factory=list)
    error_forms: dict[str, ErrorForm] = field(default_factory=dict)
    control: RepositoryControl | None = None
    traces: RequestTraces | None = None
    metrics: CustomMetrics | None = None
    memory: MemoryDomain = LOCAL

    @property
    def forwarding(self) -> HeaderForwarding | None:
        """Return the choice of headers for hooks and filters; None: they get no headers."""
        pattern = self.config.dag.forward_headers
        wants = self.models.is_repository or takes_info(self.models)
        return HeaderForwarding(pattern) if pattern and wants else None


def takes_info(models: ModelRegistry) -> bool:
    """Return whether a hook, filter, scheduler or ensemble model needs more of a request than its
    data.
    """
    graphs = models.graphs()
    if any(op.pipeline_config.workers == "model" for graph in graphs for op in graph.graph.ops):
        return True
    if any(served.config.filters for served in graphs):
        return True
    ops = [op for served in graphs for op in served.graph.ops]
    configs = [op.pipeline_config for op in ops]
    if any(has_sequences(graph) or traits_of(graph.batching).reads_section for graph in configs):
        return True
    return any(asking(op) for served in graphs for op in served.graph.all_ops)


class FrontendFactory(Protocol):
    """An entry of the registry's kind `frontends`: a function, or the class of a Frontend.

    Its optional attribute `Options`, a msgspec Struct, declares its keys in the configuration.
    """

    def __call__(self, context: FrontendContext, options: Any) -> Frontend | None:
        """Return a frontend, which the server starts; None if there is nothing to start."""


class HeaderForwarding:
    """Chooses the headers of a request for its context.

    Args:
        pattern: regular expression of whole names, in any case. Connection headers and headers with
            credentials match only if the pattern has their literal names.
    """

    def __init__(self, pattern: str) -> None:
        self._matches = re.compile(pattern, re.IGNORECASE).fullmatch
        named = pattern.lower()
        self._withheld = {name for name in _WITHHELD if name not in named}
        self._forwards = functools.lru_cache(_MAX_NAMES)(self._is_forwarded)

    def choose(self, headers: Iterable[tuple[str | bytes, str | bytes]]) -> dict[str, str]:
        """Return the forwarded headers, by names in lower case."""
        texts = ((_text(name).lower(), value) for name, value in headers)
        return {name: _text(value) for name, value in texts if self._forwards(name)}

    def info(self, headers: Iterable[tuple[str | bytes, str | bytes]]) -> RequestInfo | None:
        """Return the request info from headers; None: there is nothing to forward."""
        chosen = self.choose(headers)
        return RequestInfo(headers=chosen) if chosen else None

    def _is_forwarded(self, name: str) -> bool:
        return name not in self._withheld and self._matches(name) is not None


def _text(header: str | bytes) -> str:
    return header if isinstance(header, str) else header.decode("latin-1")


def no_response(answer: Any) -> PackageError:
    """Return the error for an overridden `pack_response_package` that returned no Response."""
    return PackageError(f"pack_response_package returned {type(answer).__name__}, not a Response")


OpenFrontends = Callable[[FrontendContext], Mapping[str, Frontend]]
"""Makes a server's frontends, by the names that it shows: {"gRPC": ..., "HTTP": ...}."""


def seconds_of(value: str, header: str) -> float:
    """Return 0.1 for `100m`: digits and a unit, gRPC's form of a timeout.

    Raises:
        PackageError: another form; the text names the header.
    """
    text = value.strip(" \t")
    match = _GIVEN.fullmatch(text)
    if match is None:
        raise PackageError(f"invalid {header} {text!r}: send digits and one of H M S m u n")
    return int(match[1]) * _UNITS_S[match[2]]
