"""Description: `GET /openapi.json`, and `GET /docs`, a page to try requests on."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from pipeline.engine.models import Served
from pipeline.frontends.api.of_models import answer_of, request_of
from pipeline.frontends.api.openapi import Described, Operation, document
from pipeline.frontends.api.pipelines import Pipelines, takes_sequences
from pipeline.frontends.http.paths import Answer
from pipeline.frontends.http.routes import WebRequest, WebResponse
from pipeline.frontends.http.static_files import files_in, safe_headers, unless_known

_STATIC = Path(__file__).with_name("static")
_PAGE = "docs.html"
_PICTURES = b"'self' blob: data:"  # those that a reader uploads, or an Op answers


class Description:
    """Documents of the pipelines of a server.

    Args:
        name: of the service; None shows it as "pipeline".
        pipelines: are described, as they are when somebody asks.
        others: what other frontends have in the document, once all of them are made.
    """

    def __init__(
        self, name: str | None, pipelines: Pipelines, others: Sequence[Described] = ()
    ) -> None:
        self._name = name or "pipeline"
        self._pipelines = pipelines
        self._others = others
        self._described: tuple[Operation, ...] = ()
        self._body = b""

    def paths(self) -> Mapping[str, tuple[str, Answer]]:
        """Return the paths and their answers, for ApiRoutes."""
        files = (name.replace(".", r"\.") for name in _files() if name != _PAGE)
        found: dict[str, tuple[str, Answer]] = {f"/{name}": ("GET", _file) for name in files}
        return {r"/openapi\.json": ("GET", self._document), "/docs": ("GET", _file), **found}

    async def _document(self, request: WebRequest, name: str) -> WebResponse:
        """Answer with the OpenAPI document."""
        there = tuple(_operation(self._pipelines.find(each)) for each in self._pipelines.names())
        if there != self._described or not self._body:
            self._body = orjson.dumps(document(self._name, there, self._others))
            self._described = there
        return WebResponse(body=self._body, headers=((b"cache-control", b"no-cache"),))


def _operation(served: Served) -> Operation:
    graph = served.graph
    return Operation(
        str(served.names[0]),
        graph.request_op.pipeline_schema or request_of(served),
        graph.response_op.pipeline_schema or answer_of(served),
        served.engine.executor.is_decoupled(),
        takes_sequences(served),
    )


@functools.cache
def _files() -> Mapping[str, WebResponse]:
    """Return the page's files by name. They are read once: when a server is made."""
    return files_in(_STATIC, safe_headers(_PICTURES))


async def _file(request: WebRequest, name: str) -> WebResponse:
    """Answer with the page, or one of its files."""
    found = _files().get(request.path.removeprefix("/")) or _files()[_PAGE]
    return unless_known(found, request)
