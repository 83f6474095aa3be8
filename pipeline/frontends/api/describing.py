"""Description: `GET /openapi.json`, and `GET /docs`, a page for trying requests."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson

from pipeline.data import Tensor
from pipeline.engine.models import ServedGraph
from pipeline.frontends.api.openapi import Described, Operation, document
from pipeline.frontends.api.pipelines import Pipelines, takes_sequences
from pipeline.frontends.http.paths import PathEndpoint
from pipeline.frontends.http.routes import WebRequest, WebResponse
from pipeline.frontends.http.static_files import files_in, safe_headers, unless_known
from pipeline.frontends.v2.interface import Slot
from pipeline.frontends.v2.model import OpModel
from pipeline.op import Op, overrides
from pipeline.schema.arrays import tensor_schema

_STATIC = Path(__file__).with_name("static")
_PAGE = "docs.html"
_PICTURES = b"'self' blob: data:"  # pictures that a reader uploads, or that an Op answers


class Description:
    """Documents of the pipelines of a server.

    Args:
        name: of the service; None shows it as "pipeline".
        pipelines: are described in their state at the time of a request.
        others: parts of the document from other frontends.
    """

    def __init__(
        self, name: str | None, pipelines: Pipelines, others: Sequence[Described] = ()
    ) -> None:
        self._name = name or "pipeline"
        self._pipelines = pipelines
        self._others = others
        self._described: tuple[Operation, ...] = ()
        self._body = b""

    def paths(self) -> Mapping[str, tuple[str, PathEndpoint]]:
        """Return the paths and their answers, for ApiRoutes."""
        files = (name.replace(".", r"\.") for name in _files() if name != _PAGE)
        answers: dict[str, tuple[str, PathEndpoint]] = {
            f"/{name}": ("GET", _file) for name in files
        }
        return {r"/openapi\.json": ("GET", self._document), "/docs": ("GET", _file), **answers}

    async def _document(self, request: WebRequest, name: str) -> WebResponse:
        """Answer with the OpenAPI document."""
        there = tuple(_operation(self._pipelines.find(name)) for name in self._pipelines.names())
        if there != self._described or not self._body:
            self._body = orjson.dumps(document(self._name, there, self._others))
            self._described = there
        return WebResponse(body=self._body, headers=((b"cache-control", b"no-cache"),))


def _operation(served: ServedGraph) -> Operation:
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
    file = _files().get(request.path.removeprefix("/")) or _files()[_PAGE]
    return unless_known(file, request)


# Models of a repository -------------------------------------------------------------------------


class ModelTensors(msgspec.Struct, frozen=True):
    """Inputs or outputs of a model, in place of a schema in an Operation."""

    name: str
    slots: tuple[Slot, ...]
    batches: bool

    def json_schema(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the JSON schema of an object of the tensors, without components."""
        properties = {slot.name: self._one(slot) for slot in self.slots}
        required = [slot.name for slot in self.slots if not slot.is_optional]
        return {"type": "object", "properties": properties, "required": required}, {}

    def _one(self, slot: Slot) -> dict[str, Any]:
        if slot.is_scalar:
            return tensor_schema(Tensor(slot.name, slot.datatype, ()))
        if slot.shape is None:
            return {"description": f"{slot.datatype}: a value, or nested lists of any depth"}
        shape = tuple(slot.full_shape(self.batches))
        return tensor_schema(Tensor(slot.name, slot.datatype, shape))


def request_of(served: ServedGraph) -> ModelTensors | None:
    """Return the inputs of the model that reads a request's fields; None: not exactly one model."""
    read = served.graph.request_op
    readers = served.graph.successors(read)
    if len(readers) != 1 or overrides(read, "unpack_request_package"):
        return None
    if overrides(readers[0], "preprocess") or overrides(readers[0], "process"):
        return None
    model = OpModel(readers[0].name, readers[0], served.engine.note)
    return _tensors(readers[0], model.interface.inputs, model.interface.batches)


def answer_of(served: ServedGraph) -> ModelTensors | None:
    """Return the outputs that are the answer; None: they are not those of exactly one model."""
    last = served.graph.last_op
    if overrides(served.graph.response_op, "pack_response_package"):
        return None
    if overrides(last, "process") or overrides(last, "postprocess"):
        return None
    model = OpModel(last.name, last, served.engine.note)
    return _tensors(last, model.interface.outputs, model.interface.batches)


def _tensors(op: Op, slots: tuple[Slot, ...] | None, batches: bool) -> ModelTensors | None:
    return ModelTensors(op.name, slots, batches) if slots else None
