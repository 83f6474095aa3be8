"""`python -m pipeline.serve --model DIR --port N`: one model as a service for any client.

It serves Paddle Serving's general model service over gRPC, brpc's baidu_std and HTTP, all on one
port, by the engine of a pipeline with a single Op.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import LogConfig, ServiceConfig, load_config
from pipeline.engine.graph import Graph, build_graph
from pipeline.errors import InitError, PipelineError
from pipeline.frontends.base import Frontend, FrontendContext
from pipeline.frontends.grpc.server import GrpcFrontend
from pipeline.frontends.http.server import HttpFrontend
from pipeline.frontends.listen import ABSTRACT, bind
from pipeline.observe.logs.lines import LineFormatter
from pipeline.op import configure_op
from pipeline.predictors.model_conf import conf_beside
from pipeline.runtime.base import Exposure, Pipeline
from pipeline.runtime.predictor_loader import PredictorLoader
from pipeline.runtime.service import Service
from pipeline.runtime.sidecar import READY
from pipeline.serve.arguments import MODEL, ServeSettings, read_arguments
from pipeline.serve.http import ModelRoutes
from pipeline.serve.mux import OnePortFrontend
from pipeline.serve.ops import AnswerOp, ModelOp, answers_of, grpc_service
from pipeline.server import serve_until_signalled
from pipeline.system.resources import tune_malloc
from pipeline.system.stdio import ensure_stdio, say_on_stderr

_LOG = "%(levelname)s %(asctime)s [%(name)s] %(message)s"
_CHILD_LOG = "%(levelname)s %(name)s: %(message)s"  # the server adds the time
_LOGGER = logging.getLogger("pipeline")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. An error is one line on stderr."""
    try:
        serve(read_arguments(arguments))
    except PipelineError as error:
        text = str(error).strip().partition("\n")[0]  # a worker's traceback follows
        sys.stderr.write(f"pipeline.serve: {text}\n")
        return 1
    return 0


def serve(settings: ServeSettings) -> None:
    """Serve one model until SIGTERM or SIGINT, then drain and return.

    Raises:
        ConfigError: a setting is not valid.
        InitError: the model, a port or a folder cannot be used; nothing is left running.
    """
    for note in settings.notes:
        sys.stderr.write(f"pipeline.serve: {note}\n")
    ensure_stdio()
    tune_malloc()
    _make_folder(settings.client_conf)
    config = load_config(
        yml_dict={**settings.config, "statistics": False}
    )  # no client can ask for them
    graph = _graph(settings, config)
    with contextlib.ExitStack() as closing:
        listener = closing.enter_context(
            bind(settings.host, settings.port, "--port")
            if settings.fd is None
            else socket.socket(fileno=settings.fd)
        )
        exposure = Exposure(
            lambda context: _frontends(context, listener, settings),
            functools.partial(_logs_to_stderr, _CHILD_LOG if settings.parent_fd else _LOG),
        )
        pipeline = Pipeline(None, graph, PredictorLoader(Path.cwd()))
        service = Service([pipeline], config, exposure=exposure)
        service.fork()
        if settings.parent_fd is None:
            serve_until_signalled(
                service, lambda: say_on_stderr(f"{settings.name}: {service.describe()}")
            )
            return
        parent = closing.enter_context(socket.socket(fileno=settings.parent_fd))
        serve_until_signalled(
            service, lambda: parent.send(READY), functools.partial(_attend, parent)
        )


def _graph(settings: ServeSettings, config: ServiceConfig) -> Graph:
    conf = conf_beside(settings.model)
    op = ModelOp(MODEL, conf, config.max_message_bytes, settings.client_conf)
    op.dynamic_shape_info = settings.dynamic_shapes
    graph = build_graph(AnswerOp(op))
    for member in (graph.request_op, op, graph.response_op):
        configure_op(member, resolve_op(member.name, member.pipeline_given, config))
    return graph


def _make_folder(folder: Path | None) -> None:
    """Make the folder here, because workers may outlive the server and its clean-up."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InitError(f"--write_client_conf: {folder} cannot be made: {error}.") from error


def _frontends(
    context: FrontendContext, listener: socket.socket, settings: ServeSettings
) -> Mapping[str, Frontend]:
    assert context.engine is not None  # it has a graph
    answer = answers_of(context.engine.begin)
    service, limit = grpc_service(answer), context.config.max_message_bytes
    inner = f"pipeline-{os.getpid()}-{secrets.token_hex(8)}"
    frontends: dict[str, Frontend] = {
        "relayed gRPC": GrpcFrontend([service], f"{ABSTRACT}{inner}", 0, limit),
        "relayed HTTP": HttpFrontend(
            None,
            f"{ABSTRACT}{inner}-http",
            0,
            limit,
            routes=[ModelRoutes(answer, context.config.limits)],
            offload=context.offload,
        ),
        "brpc, gRPC and HTTP": OnePortFrontend(
            answer,
            listener,
            limit,
            f"\0{inner}",
            f"\0{inner}-http",
            offload=context.offload,
        ),
    }
    if settings.grpc_port is not None:
        frontends["gRPC"] = GrpcFrontend(
            [service], settings.host, settings.grpc_port, limit, key="--grpc_port"
        )
    return frontends


def _attend(parent: socket.socket, stop: Callable[[], None]) -> None:
    """Stop when the process at the other end of `parent` has ended."""
    loop = asyncio.get_running_loop()

    def left() -> None:
        loop.remove_reader(parent)
        stop()

    loop.add_reader(parent, left)


@contextlib.contextmanager
def _logs_to_stderr(form: str, log: LogConfig) -> Iterator[None]:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form))
    level, propagates = _LOGGER.level, _LOGGER.propagate
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(log.level)
    _LOGGER.propagate = False
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)
        _LOGGER.propagate = propagates


if __name__ == "__main__":
    raise SystemExit(main())
