"""Pipelines: the pipelines of a server by their names in `/api/<name>`, and requests to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pipeline.config.batching import has_sequences
from pipeline.engine.models import FIRST_VERSION, ModelEntry, ModelRegistry, ServedGraph
from pipeline.engine.request import RequestTarget
from pipeline.errors import ClosedError, ConfigError, NoServiceError, PayloadTypeError
from pipeline.frontends.base import HeaderForwarding
from pipeline.op import overrides
from pipeline.proto.codec import numpy_to_tensor
from pipeline.proto.lists import as_array
from pipeline.proto.pipeline_service_pb2 import Request

RESERVED = {"api": "those of plain JSON (POST /api/<name>)", "v1": "those of OpenAI's API"}
"""First parts of paths that cannot be a pipeline's name, with their owners."""

EMPTY = Request()
"""Placeholder for hooks that expect a Request, if the request has another form."""

_NUMERIC = (bool, int, float, list)

EngineRequest = tuple[Any, RequestTarget]
"""The engine's input: the request, and how to handle it."""


class Pipelines:
    """The pipelines of a server.

    Args:
        registry: of the server's models.
        forwarding: the headers that hooks and filters get; None: they get no headers.
        takes_trace: the engine receives the client's traceparent.
    """

    def __init__(
        self, registry: ModelRegistry, forwarding: HeaderForwarding | None, takes_trace: bool
    ) -> None:
        self._registry = registry
        self._forwarding = forwarding
        self._takes_trace = takes_trace

    def names(self) -> list[str]:
        """Return the names of the current pipelines."""
        names = (served.names[0] for served in self._registry.graphs())
        return [name for name in names if name is not None]

    def entry(self, name: str) -> ModelEntry:
        """Return a pipeline's entry in the registry; it stays the same. Raises NoServiceError."""
        entry = self._registry.versions(name).get(FIRST_VERSION)
        if entry is None or entry.op is not None:
            there = ", ".join(f"/api/{name}" for name in self.names())
            raise NoServiceError(f"there is no pipeline {name!r} here: POST {there}")
        return entry

    def find(self, name: str) -> ServedGraph:
        """Return a pipeline. Raises NoServiceError; ClosedError: it is unloaded."""
        return served_by(self.entry(name))

    def is_plain(self, served: ServedGraph) -> bool:
        """Return whether an engine takes and returns only fields."""
        methods = _own_methods(served)
        return not (methods.unpacks or methods.packs or self._takes_trace or self._forwarding)

    def is_own(self, served: ServedGraph) -> bool:
        """Return whether our RequestOp reads a pipeline's requests."""
        return not _own_methods(served).unpacks

    def asked(
        self,
        served: ServedGraph,
        fields: dict[str, Any],
        headers: Mapping[bytes, bytes],
        is_text: bool = False,
        takes_views: bool = False,
    ) -> EngineRequest:
        """Return the engine's input. Raises PackageError, PayloadTypeError.

        `is_text`: numbers in the fields are text, as in a form. `takes_views`: see RequestTarget.

        A RequestOp that reads requests itself gets an equivalent Request, see `request_of`;
        otherwise the fields replace its result.
        """
        trace = ""
        if self._takes_trace:
            trace = headers.get(b"traceparent", b"").decode("latin-1")
        info = None if self._forwarding is None else self._forwarding.info(headers.items())
        unpacks, packs = _own_methods(served)
        raw = request_of(fields) if unpacks else EMPTY
        payload = None if unpacks else fields
        return raw, RequestTarget(
            payload=payload,
            wants_response=packs,
            traceparent=trace,
            info=info,
            is_text=is_text,
            takes_views=takes_views,
        )


def takes_sequences(served: ServedGraph) -> bool:
    """Return whether an Op of a pipeline has `sequence`, so that requests name theirs."""
    return any(has_sequences(op.pipeline_config) for op in served.graph.ops)


class _OwnMethods(NamedTuple):
    """The methods that a pipeline's user overrides."""

    unpacks: bool
    packs: bool


def _own_methods(served: ServedGraph) -> _OwnMethods:
    graph = served.graph
    return _OwnMethods(
        overrides(graph.request_op, "unpack_request_package"),
        overrides(graph.response_op, "pack_response_package"),
    )


def served_by(entry: ModelEntry) -> ServedGraph:
    """Return the pipeline of an entry. Raises ClosedError: it is unloaded."""
    if entry.is_unloaded:
        raise ClosedError(f"the pipeline {entry.name!r} is unloaded")
    return entry.served


def check_name(name: str | None) -> None:
    """Raise ConfigError for a pipeline's name that is the prefix of another frontend's paths."""
    if name in RESERVED:
        raise ConfigError(
            f"a pipeline cannot be called {name!r}: over HTTP its paths are {RESERVED[name]}; "
            "give PipelineServer another name, or set http_port: null"
        )


def request_of(fields: Mapping[str, Any]) -> Request:
    """Return the Request with the same content as the fields.

    Text becomes a pair; numbers, evenly nested lists of numbers or texts, and bytes become tensors;
    any other value becomes a pair with its JSON.
    """
    request = Request()
    for name, value in fields.items():
        if isinstance(value, str):
            _add_pair(request, name, value)
            continue
        try:
            request.tensors.append(numpy_to_tensor(name, _array(value)))
        except (PayloadTypeError, TypeError, ValueError, OverflowError):
            _add_pair(request, name, msgspec.json.encode(value).decode())
    return request


def _array(value: Any) -> Any:
    """Return a value that can be a tensor. Raises ValueError, TypeError: it cannot."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, _NUMERIC):
        raise TypeError("neither a number nor a list")
    array = as_array(value)
    if array.dtype.kind in "iufb" or all(type(element) is str for element in array.flat):
        return array
    raise TypeError("no numbers alone")


def _add_pair(request: Request, name: str, text: str) -> None:
    request.key.append(name)
    request.value.append(text)
