"""TestClient: a server in this process, for tests of it, and all its ways in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import orjson

from pipeline.cli.graph import pipeline_server, server_of_script
from pipeline.client import PipelineClient
from pipeline.client_sequence import PipelineSequence
from pipeline.config.access import AccessConfig, TlsConfig
from pipeline.config.registry import did_you_mean
from pipeline.config.schema import ServiceConfig
from pipeline.config.sections import LOOPBACK
from pipeline.errors import ConfigError, InitError, PipelineError
from pipeline.frontends.api.pipelines import check_name
from pipeline.op import Op, configure_op
from pipeline.predictors.base import Predictor
from pipeline.proto.messages import PipelineResponse
from pipeline.runtime.base import Exposure
from pipeline.server import PipelineServer
from pipeline.testing.http import (
    HEADER,
    JSON,
    HttpReply,
    ask,
    ask_for_lines,
    infer_body,
    outputs_of,
)
from pipeline.testing.predictor import Fake, as_predictor
from pipeline.web_service import WebService


class TestClient:
    """A client of a server that runs in this process during the `with` block.

    The server is the real one, with its graph, workers and frontends, on free ports of this
    machine. Unlike in production one process answers (no replicas, no gateway, so no TLS and no
    access rules), log records go to Python's loggers (pytest shows them, `caplog` has them) and not
    to files, and no traces are sent.

    Args:
        server: a PipelineServer or WebService, whose graph is set; or the path of the script that
            would run it.
        config: its configuration, a file or a mapping; None: it is prepared already.
        predictors: replacements of models, by the Op's name: a FakePredictor, or its answers. These
            Ops run in threads, so that the fake sees every call.

    >>> with TestClient(server, predictors={"bow": {"prob": [[0.1, 0.9]]}}) as client:
    ...     assert client.predict({"words": "good"})["label"] == "positive"
    """

    __test__ = False  # pytest: this is not a test

    def __init__(
        self,
        server: PipelineServer | WebService | str | Path,
        config: str | Path | Mapping[str, Any] | None = None,
        predictors: Mapping[str, Fake] | None = None,
    ) -> None:
        if isinstance(server, str | Path):
            server = server_of_script(server)
        if isinstance(config, Mapping):
            server.prepare_server(yml_dict=config)
        elif config is not None:
            server.prepare_server(str(config))
        fakes = {name: as_predictor(fake) for name, fake in (predictors or {}).items()}
        self._server = _TestServer(pipeline_server(server), fakes)
        self._closing = contextlib.ExitStack()
        self._client = PipelineClient()

    # Life ---------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Start the server. InitError: an Op, or a model, could not be started."""
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._server.with_fakes())
            undo.enter_context(self._server)
            undo.callback(self._client.close)
            self._client.connect(f"127.0.0.1:{self._server.rpc_port}")
            self._closing = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @property
    def rpc_port(self) -> int:
        """The gRPC port, for clients of your own."""
        port = self._server.rpc_port
        assert port is not None, "every server has gRPC"
        return port

    @property
    def http_port(self) -> int:
        """The HTTP port. InitError: the server's name cannot be one in a URL."""
        port = self._server.http_port
        if port is None:
            raise InitError(f"{self._server.name!r} has no HTTP: its name cannot be part of a URL")
        return port

    # The pipeline -------------------------------------------------------------------------------

    def predict(
        self, feed: Mapping[str, Any], fetch: Sequence[str] | None = None, **options: Any
    ) -> PipelineResponse:
        """Return the answer over gRPC, as `PipelineClient.predict` with these options.

        Raises PipelineError: the error in the answer, with its `code`.
        """
        answer: PipelineResponse = self._client.predict(
            dict(feed), list(fetch) if fetch else None, **options
        )
        answer.raise_for_error()
        return answer

    def predict_stream(self, feed: Mapping[str, Any], **options: Any) -> Iterator[PipelineResponse]:
        """Yield the parts of the answer over gRPC. Raises PipelineError, as `predict`."""
        with self._client.predict_stream(dict(feed), **options) as parts:
            for part in parts:
                part.raise_for_error()
                yield part

    def sequence(self, id: int | str | None = None) -> PipelineSequence:
        """Return a sequence, as `PipelineClient.sequence`; its answers have `raise_for_error`."""
        return self._client.sequence(id)

    def api(self, feed: Mapping[str, Any] | None = None, name: str | None = None) -> dict[str, Any]:
        """Return the answer of plain JSON, `POST /api/<name>`: the last Op's dict.

        Raises PipelineError: the error in the answer, with its `code` and `op`.
        """
        reply = self.post(f"/api/{self._named(name)}", json=dict(feed or {}))
        reply.raise_for_error()
        answer: dict[str, Any] = reply.json()
        return answer

    def api_stream(
        self, feed: Mapping[str, Any] | None = None, name: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the parts of an answer of plain JSON. Raises PipelineError, as `api`."""
        body = orjson.dumps(dict(feed or {}))
        return ask_for_lines(self.http_port, f"/api/{self._named(name)}", body)

    def infer(
        self,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        model: str | None = None,
    ) -> dict[str, np.ndarray]:
        """Return the outputs of a model of the v2 protocol, over HTTP, by name.

        Args:
            inputs: arrays, the batch first; text as arrays or lists of it.
            outputs: names of those to return; None: all.
            model: the pipeline's name, or an Op's; None: the pipeline's.

        Raises PipelineError: the error in the answer.
        """
        body, size = infer_body(inputs, outputs)
        path = f"/v2/models/{self._named(model)}/infer"
        return outputs_of(self.post(path, data=body, headers={HEADER: str(size)}))

    def _named(self, name: str | None) -> str:
        """Return a model's name. Raises InitError: none is given, and the server has none."""
        model_name = name or self._server.name
        if not model_name:
            raise InitError("the server has no name: say which pipeline or Op is meant")
        return model_name

    # HTTP ---------------------------------------------------------------------------------------

    def post(
        self,
        path: str,
        *,
        json: object = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        """Return the answer to `POST path`: its status, also of an error, and its body.

        Args:
            path: from "/" on: "/name/prediction", "/api/name", "/v2/models/name/infer".
            json: sent as JSON.
            data: bytes that are sent unchanged, instead of `json`.
            headers: of the request.
        """
        body = orjson.dumps(json) if data is None else data
        sent = {"content-type": JSON} if data is None else {}
        return ask(self.http_port, "POST", path, body, {**sent, **(headers or {})})

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> HttpReply:
        """Return what `GET path` is answered: "/metrics", "/v2/health/ready"."""
        return ask(self.http_port, "GET", path, None, headers or {})


class _TestServer(PipelineServer):
    """The same graph as a server's, with a configuration for tests."""

    def __init__(self, server: PipelineServer, fakes: Mapping[str, Predictor]) -> None:
        super().__init__(server.name)
        if server._config is None:
            raise ConfigError("the server is not prepared: give TestClient its config")
        self._graphs, self._folders = server._graphs, server._folders
        self._config = _for_tests(server._config, self._graphs)
        self._predictors = fakes
        ops = {op.name: op for graph in self._graphs.values() for op in graph.ops}
        for name in fakes:
            if name not in ops:
                raise ConfigError(
                    f"predictors: {name!r} is no Op of the graph, which has {', '.join(ops)}"
                    f"{did_you_mean(name, ops)}"
                )
        self._faked: list[Op] = [ops[name] for name in fakes]

    @contextlib.contextmanager
    def with_fakes(self) -> Iterator[None]:
        """Let the Ops whose models are fakes run in threads."""
        before = [op.pipeline_config for op in self._faked]
        for op in self._faked:
            configure_op(op, msgspec.structs.replace(op.pipeline_config, workers="thread"))
        try:
            yield
        finally:
            for op, config in zip(self._faked, before, strict=True):
                configure_op(op, config)

    def _exposure(self, config: ServiceConfig, undo: contextlib.ExitStack) -> Exposure:
        """Leave Python's loggers alone, and open our own frontends."""
        return Exposure(logs=lambda log: contextlib.nullcontext())


def _for_tests(config: ServiceConfig, names: Iterable[str | None]) -> ServiceConfig:
    """Return a configuration with free ports of this machine alone, and one process."""
    try:
        for name in names:
            check_name(name)
        http_port: int | None = 0
    except PipelineError:  # it has gRPC alone
        http_port = None
    return msgspec.structs.replace(
        config,
        rpc_port=0,
        http_port=http_port,
        host=LOOPBACK,
        rpc_host=None,
        http_host=None,
        edge="embedded",
        http_server=None,
        access=AccessConfig(),
        tls=TlsConfig(),
        build_dag_each_worker=False,
        worker_num=None if config.build_dag_each_worker else config.worker_num,
        drain_delay_s=0.0,
        opentelemetry=False,
        dag=msgspec.structs.replace(config.dag, prometheus_port=0),
    )
