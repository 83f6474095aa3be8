"""The frontends of a pipeline's server: built-in ones and plug-ins.

Each is an entry of the registry's kind `frontends`. Built-in frontends have their own keys in the
configuration; a frontend of a plug-in or a script is named under `frontends`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.config.registry import find
from pipeline.config.schema import ServiceConfig
from pipeline.errors import ConfigError
from pipeline.frontends.access_log import access_log
from pipeline.frontends.api.describing import Description
from pipeline.frontends.api.errors import reply_to
from pipeline.frontends.api.pipelines import Pipelines
from pipeline.frontends.api.routes import ApiRoutes
from pipeline.frontends.base import Frontend, FrontendContext
from pipeline.frontends.dashboard.routes import ModelsDashboard, dashboards
from pipeline.frontends.grpc.inference import pipeline_service
from pipeline.frontends.grpc.logged import logged
from pipeline.frontends.grpc.server import GrpcFrontend, GrpcService
from pipeline.frontends.http.cors import Cors
from pipeline.frontends.http.hosts import Hosts
from pipeline.frontends.http.metrics import MetricsRoutes, metrics_server
from pipeline.frontends.http.routes import LaneService, Routes
from pipeline.frontends.http.server import HttpFrontend
from pipeline.frontends.link.methods import LinkMethod, inference_methods, service_methods
from pipeline.frontends.link.places import find_secret, keep_private, socket_paths
from pipeline.frontends.link.post import POST, PostCall, PostService
from pipeline.frontends.link.server import LinkFrontend
from pipeline.frontends.listen import UNIX, is_loopback
from pipeline.frontends.v2 import ModelRepository
from pipeline.frontends.v2.grpc import inference_service
from pipeline.frontends.v2.http import InferenceRoutes
from pipeline.frontends.v2.restrictions import (
    RestrictedLane,
    RestrictedRoutes,
    restricted_service,
    secrets_of,
)
from pipeline.frontends.v2.shared_regions import SharedRegions
from pipeline.frontends.wire import JsonWire, PipelineWire
from pipeline.op import overrides

_PARTS = (
    "v2",
    "api",
    "metrics_routes",
    "dashboard",
)  # routes and services, in the order of their paths
_LISTENERS = {"grpc": "gRPC", "http": "HTTP", "link": "link", "metrics": "metrics"}


def pipeline_frontends(
    context: FrontendContext, sockets: Path | None = None, taken: frozenset[str] = frozenset()
) -> Mapping[str, Frontend]:
    """Return the configured frontends, by the names that the server shows.

    With `sockets` an ingress has the ports that `taken` names ("HTTP", "gRPC"), and calls frontends
    on Unix sockets in this folder: the link, and HTTP for everything else.

    Raises:
        ConfigError: `frontends` names a built-in one, or an unknown one.
    """
    others = context.config.frontends
    if ours := others.keys() & {*_PARTS, *_LISTENERS, *_LISTENERS.values()}:
        raise ConfigError(f"frontends: {min(ours)} is the server's own: it has other keys")
    context = replace(context, sockets=sockets, taken=taken)
    asked = {**dict.fromkeys(_PARTS), **others, **dict.fromkeys(_LISTENERS)}
    made = {name: find("frontends", name)(context, options) for name, options in asked.items()}
    shown = _LISTENERS | {name: name for name in others}
    return {shown[name]: made[name] for name in shown if made[name] is not None}


def v2(context: FrontendContext, options: None) -> None:
    """Add the v2 protocol to the HTTP and the gRPC port."""
    config = context.config
    models = ModelRepository(
        context.models,
        config.statistics,
        context.offload,
        context.forwarding,
        context.control,
        _shared_regions(config),
        config.limits,
        traces=context.traces,
    )
    inference_routes = InferenceRoutes(models, context.offload, config.limits)
    routes: Routes = inference_routes
    lane: LaneService = inference_routes.inference
    sends, memory = config.sends_traces, context.memory
    service = inference_service(models, context.offload, config.limits, sends, memory)
    if over_http := secrets_of(config.restricted_apis.http):
        routes, lane = RestrictedRoutes(routes, over_http), RestrictedLane(lane, over_http)
    if over_grpc := secrets_of(config.restricted_apis.grpc):
        service = restricted_service(service, over_grpc)
    context.routes.append(routes)
    context.services.append(service)
    context.lanes.append(lane)


def _shared_regions(config: ServiceConfig) -> SharedRegions:
    """Return the shared memory for callers; disabled at an address that others can reach."""
    setting = config.client_shared_memory
    hosts = (config.rpc_host or config.host, config.http_host or config.host)
    is_allowed = all(map(is_loopback, hosts)) if setting.allow is None else setting.allow
    return SharedRegions(setting.prefix if is_allowed and not config.replicas else None)


def api(context: FrontendContext, options: None) -> None:
    """Add plain JSON to the HTTP port."""
    config = context.config
    pipelines = Pipelines(context.models, context.forwarding, config.sends_traces)
    paths = Description(context.name, pipelines, context.described).paths()
    routes = ApiRoutes(pipelines, context.offload, config.limits, paths)
    for path in ("/api/", *paths):
        context.error_forms[path.replace("\\", "")] = reply_to
    context.routes.append(routes)
    context.lanes.append(routes)


def metrics_routes(context: FrontendContext, options: None) -> None:
    """Add `/metrics` to the HTTP port."""
    config = context.config
    by_replica = config.replicas > 0
    own = context.metrics
    routes = MetricsRoutes(context.whole, by_replica, wanted=config.metrics, custom=own)
    context.routes.append(_restricted(routes, config))


def dashboard(context: FrontendContext, options: None) -> None:
    """Add the dashboard to the HTTP port, with `status_page`."""
    config = context.config
    if config.status_page and context.control is not None:
        hosts = Hosts(config.allowed_hosts)
        page = ModelsDashboard(context.control, context.whole, hosts)
        context.routes.append(_restricted(page, config))
    if config.status_page and not context.models.is_repository:
        shown = dashboards(context.models.graphs(), config.statistics, Hosts(config.allowed_hosts))
        context.routes.append(_restricted(shown, config))


def _restricted(routes: Routes, config: ServiceConfig) -> Routes:
    """Return routes that repeat parts of v2, restricted to callers of these parts."""
    secrets = secrets_of(config.restricted_apis.http)
    return RestrictedRoutes(routes, secrets) if secrets else routes


def grpc(context: FrontendContext, options: None) -> Frontend | None:
    """Return the gRPC port, with `rpc_port` and no ingress before it."""
    config = context.config
    if config.rpc_port is None or "gRPC" in context.taken:
        return None
    limit, is_shared = config.max_message_bytes, context.is_shared
    services = [*_pipeline_services(context), *context.services]
    access = access_log(config.log.request_sample)
    if access is not None:
        services = [logged(service, access) for service in services]
    return GrpcFrontend(services, config.rpc_host or config.host, config.rpc_port, limit, is_shared)


def http(context: FrontendContext, options: None) -> Frontend | None:
    """Return the HTTP port, with `http_port` and no ingress before it."""
    config = context.config
    if config.http_port is None or "HTTP" in context.taken:
        return None
    return _http(context, config.http_host or config.host, config.http_port)


def link(context: FrontendContext, options: None) -> Frontend | None:
    """Return the frontends for an ingress, if there is one: the link, and HTTP."""
    config = context.config
    if context.sockets is None:
        return None
    paths = socket_paths(context.sockets, context.replica)
    takes_trace, offload, forwarding = config.sends_traces, context.offload, context.forwarding
    # The pipeline's unary method is last: it is the sink of its own answers.
    streams = [replace(service, methods={}) for service in _pipeline_services(context)]
    methods = [*service_methods([*streams, *context.services], offload)]
    if not context.models.is_repository:
        methods += inference_methods(
            context.models.begin,
            _wire(context),
            JsonWire(offload, config.limits, _takes_plain(context)),
            takes_trace,
            forwarding,
        )
    restricts = bool(config.restricted_apis.grpc or config.restricted_apis.http)
    http_frontend = _http(context, f"{UNIX}{paths.http}", 0)
    methods.append(LinkMethod(POST, PostCall, PostService(http_frontend.heads, offload)))
    linked = LinkFrontend(
        methods,
        paths.link,
        takes_trace,
        takes_headers=forwarding is not None or restricts,
        secret=find_secret(context.sockets),
        memory=context.memory,
        own_memory_mib=config.dag.shared_memory_mib,
    )
    return InternalFrontends([linked, http_frontend], paths)


def metrics(context: FrontendContext, options: None) -> Frontend | None:
    """Return the separate port of metrics, with `dag.enable_prometheus`."""
    config = context.config
    if not config.dag.enable_prometheus:
        return None
    by_replica, wanted = config.replicas > 0, config.metrics
    routes = MetricsRoutes(context.whole, by_replica, True, wanted, context.metrics)
    host = config.dag.prometheus_host or config.host
    return metrics_server(routes, host, config.dag.prometheus_port, context.is_shared)


def _pipeline_services(context: FrontendContext) -> list[GrpcService]:
    """Return the service of the pipeline's own protocol, in a list; empty for a repository."""
    if context.models.is_repository:
        return []
    begin, takes_trace = context.models.begin, context.config.sends_traces
    return [pipeline_service(begin, takes_trace, _wire(context), context.forwarding)]


def _wire(context: FrontendContext) -> PipelineWire:
    limits, is_own = context.config.limits, _is_own(context)
    return PipelineWire(context.offload, limits, is_own, _takes_plain(context))


def _is_own(context: FrontendContext) -> bool:
    """Return whether our RequestOp reads the requests; it needs no complete Request."""
    readers = [served.graph.request_op for served in context.models.graphs()]
    return not any(overrides(op, "unpack_request_package") for op in readers)


def _takes_plain(context: FrontendContext) -> bool:
    """Return whether requests may be a PlainRequest: filters see whole messages."""
    filters = [served.config.filters for served in context.models.graphs()]
    return _is_own(context) and not any(filters)


def _http(context: FrontendContext, host: str, port: int) -> HttpFrontend:
    config = context.config
    is_edge = "HTTP" not in context.taken  # otherwise the gateway does both
    cors = Cors(config.cors) if is_edge else Cors()
    access = access_log(config.log.request_sample) if is_edge else None
    return HttpFrontend(
        None if context.models.is_repository else context.models.begin,
        host,
        port,
        config.max_message_bytes,
        is_shared=context.is_shared,
        routes=context.routes,
        takes_trace=config.sends_traces,
        forwarding=context.forwarding,
        offload=context.offload,
        limits=config.limits,
        hosts=Hosts(config.allowed_hosts, cors),
        is_plain=_takes_plain(context),
        lanes=context.lanes,
        access=access,
        memory=context.memory,
        error_forms=context.error_forms,
    )


class InternalFrontends:
    """Several frontends of an ingress as one; they stay open when the others close.

    The ingress may still pass on requests; it has ended before `stop`.

    Args:
        frontends: the ones that the ingress calls.
        paths: their sockets, which only this user can open.
    """

    port = 0

    def __init__(self, frontends: Sequence[Frontend], paths: Iterable[Path] = ()) -> None:
        self._frontends = frontends
        self._paths = paths

    async def start(self, is_ready: bool = False) -> None:
        """Listen."""
        for frontend in self._frontends:
            await frontend.start(is_ready)
        keep_private(self._paths)

    async def set_ready(self, ready: bool) -> None:
        """Report to the ingress whether the server is ready."""
        for frontend in self._frontends:
            await frontend.set_ready(ready)

    async def drain(self) -> None:
        """Report to the ingress that the server is not ready; keep the sockets open."""
        await self.set_ready(False)

    async def close(self, grace_s: float) -> None:
        """Stay open: the ingress closes."""

    async def stop(self, grace_s: float) -> None:
        """End the rest after `grace_s`."""
        for frontend in self._frontends:
            await frontend.close(grace_s)
            await frontend.stop(grace_s)
