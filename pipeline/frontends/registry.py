"""Which doors a server of a pipeline has, as its configuration says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.frontends.base import Frontend, FrontendContext
from pipeline.frontends.dashboard.routes import Dashboard
from pipeline.frontends.grpc.server import GrpcFrontend, pipeline_service
from pipeline.frontends.http.hosts import Hosts
from pipeline.frontends.http.metrics import MetricsRoutes, MetricsServer
from pipeline.frontends.http.routes import Routes
from pipeline.frontends.http.server import HttpFrontend
from pipeline.frontends.link.server import LinkFrontend
from pipeline.frontends.link.sockets import InternalFrontends, socket_paths
from pipeline.frontends.listen import UNIX
from pipeline.frontends.v2 import ModelRepository
from pipeline.frontends.v2.grpc import inference_service
from pipeline.frontends.v2.http import InferenceRoutes
from pipeline.frontends.wire import PipelineWire
from pipeline.op import overrides


def pipeline_doors(behind: FrontendContext, sockets: Path | None = None) -> Mapping[str, Frontend]:
    """gRPC and HTTP, as configured.

    With `sockets` there is a front, which takes HTTP and asks doors on Unix sockets in this folder:
    the link for the pipeline, HTTP for everything else.
    """
    config, doors = behind.config, dict[str, Frontend]()
    models = _models(behind)
    handle, takes_trace = behind.engine.handle, config.opentelemetry
    is_own = not overrides(behind.graph.request_op, "unpack_request_package")
    wire = PipelineWire(behind.offload, config.limits, is_own)
    if config.rpc_port is not None:
        services = [
            pipeline_service(handle, takes_trace, wire),
            inference_service(models, behind.offload, config.limits),
        ]
        limit, is_shared = config.max_message_bytes, behind.is_shared
        doors["gRPC"] = GrpcFrontend(services, config.host, config.rpc_port, limit, is_shared)
    if config.http_port is not None and sockets is None:
        doors["HTTP"] = _http_door(behind, models, config.host, config.http_port)
    elif config.http_port is not None and sockets is not None:
        paths = socket_paths(sockets, behind.copy)
        link = LinkFrontend(handle, paths.link, takes_trace, wire=wire)
        http = _http_door(behind, models, f"{UNIX}{paths.http}", 0)
        doors["HTTP"] = InternalFrontends([link, http])
    if config.dag.enable_prometheus:
        metrics = MetricsRoutes(behind.whole, by_copy=config.copies > 0, predecessors=True)
        port = config.dag.prometheus_port
        doors["metrics"] = MetricsServer(metrics, config.host, port, behind.is_shared)
    return doors


def _models(behind: FrontendContext) -> ModelRepository:
    return ModelRepository(
        behind.graph,
        behind.name,
        behind.engine,
        behind.whole,
        has_statistics=behind.config.statistics,
        has_deadline=behind.config.timeout_s is not None,
        offload=behind.offload,
    )


def _http_door(
    behind: FrontendContext, models: ModelRepository, host: str, port: int
) -> HttpFrontend:
    return HttpFrontend(
        behind.engine.handle,
        host,
        port,
        behind.config.max_message_bytes,
        is_shared=behind.is_shared,
        sites=list(_sites(behind, models)),
        takes_trace=behind.config.opentelemetry,
        offload=behind.offload,
        limits=behind.config.limits,
        hosts=Hosts(behind.config.allowed_hosts),
    )


def _sites(behind: FrontendContext, models: ModelRepository) -> Iterator[Routes]:
    """What is served on the HTTP port beside the pipeline."""
    config = behind.config
    yield InferenceRoutes(models, behind.offload, config.limits)
    yield MetricsRoutes(behind.whole, by_copy=config.copies > 0)
    if config.status_page:
        record = behind.record if config.statistics else None
        hosts = Hosts(config.allowed_hosts)
        yield Dashboard(behind.name, behind.graph, behind.whole, record, hosts)
