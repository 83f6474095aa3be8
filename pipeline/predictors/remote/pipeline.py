"""Client of another pipeline server (this library's or Paddle's) over gRPC."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from pipeline.data import RequestContext
from pipeline.errors import (
    ConfigError,
    InitError,
    PackageError,
    PayloadTypeError,
    PredictorUnavailableError,
    error_from_wire,
)
from pipeline.predictors.remote.base import RemoteModel, RemotePredictor, encoded
from pipeline.predictors.remote.grpc_calls import GrpcCalls
from pipeline.predictors.signature import LOD, only_feed
from pipeline.proto.codec import decode_tensors, text_to_numpy
from pipeline.proto.messages import INFERENCE_PATH, CallOptions, request_from_feed
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.targets import own_ip, split_name
from pipeline.stores.base import InputStore, forget, open_store, stored


class PipelinePredictor(RemotePredictor):
    """Another pipeline as a `Predictor`; calls go round robin over the servers that answer.

    The peer decides its inputs and outputs: `feed_names` is empty, and so is `fetch_names` without
    a `fetch_list`; without either, all results are returned. Inputs are arrays, text, bytes,
    numbers, lists of them, and LoD offsets as `<name>.lod`; `batch=False` gives arrays and lists a
    first axis of one. Results are arrays by name, with their LoD; other text and bytes are returned
    unchanged. If the peer answers in text only, as Paddle's server does, the text of an array or of
    a list of text becomes an array. An error of the peer is raised with its class, code and text.
    """

    def __init__(self, model: RemoteModel, calls: GrpcCalls, pipeline: str = "") -> None:
        ask = calls.asker(INFERENCE_PATH, Response.FromString)
        super().__init__(model.name, (), tuple(model.fetch_list or ()), ask, calls.close)
        # As .npy bytes an array keeps its dtype, and integers are much quicker to write.
        self._sends_tensors = model.sends_tensors
        self._own_ip = own_ip(calls.peer)
        self._pipeline = pipeline
        self._calls = calls

    def request(self, feed: Any, fetch: Sequence[str] | None, batch: bool, log_id: int) -> bytes:
        data = dict(only_feed(self._name, feed))
        if not batch:
            data = {name: _with_batch_axis(name, value) for name, value in data.items()}
        options = CallOptions(
            fetch=None,
            as_tensors=self._sends_tensors,
            as_bytes=self._sends_tensors,
            profile=False,
            log_id=log_id,
        )
        try:
            request = request_from_feed(data, options, self._own_ip)
        except TypeError as error:
            raise PayloadTypeError(f"[{self._name}] {error}") from error
        request.name = self._pipeline
        return encoded(self._name, request)

    def result(self, answer: Response, fetch: Sequence[str] | None) -> dict[str, Any]:
        if answer.err_no:
            raise error_from_wire(answer.err_no, answer.err_msg)
        names = (fetch,) if isinstance(fetch, str) else fetch or self.fetch_names
        try:
            return _results(answer, names)
        except PackageError as error:
            self._calls.refuse_answer(error)


def _with_batch_axis(name: str, value: Any) -> Any:
    if str(name).endswith(LOD):
        return value
    if isinstance(value, np.ndarray):
        return value[np.newaxis]
    return [value] if isinstance(value, list) else value


def _results(response: Response, names: Sequence[str]) -> dict[str, Any]:
    """Return the results `names` in that order, each with its LoD; all if `names` is empty."""
    tensors = {tensor.name: tensor for tensor in response.tensors}
    texts = dict(zip(response.key, response.value, strict=False))
    results: dict[str, Any] = {}
    for name in names or {**texts, **tensors}:
        if name in tensors:
            for key, value in decode_tensors([tensors[name]]).items():
                results[key] = _text_array(value) if isinstance(value, list) else value
        elif name in texts:
            results[name] = _from_text(texts[name])
        elif not name.endswith(LOD) or name.removesuffix(LOD) not in tensors:  # it came with them
            raise PackageError(f"it lacks {name!r}; it has {', '.join({**texts, **tensors})}")
    return results


def _from_text(text: str) -> Any:
    """Return the array that a server wrote as this text; other text unchanged, also digits.

    Servers write arrays and lists of `str` so. Other text was text at the peer and stays text, even
    if it looks like a number.
    """
    if not text.startswith(("array(", "[")):
        return text
    try:
        value = text_to_numpy(text)
    except PackageError:
        return text
    if isinstance(value, np.ndarray):
        return value
    return _text_array(value) if all(isinstance(item, str) for item in value) else text


def _text_array(texts: list[str]) -> np.ndarray:
    return np.array(texts, dtype=object)


class StoringPredictor(PipelinePredictor):
    """Another pipeline with a store for large inputs: the request has references to them."""

    def __init__(
        self, model: RemoteModel, calls: GrpcCalls, pipeline: str, store: InputStore
    ) -> None:
        super().__init__(model, calls, pipeline)
        self._store = store
        self._from_bytes = model.input_store.from_bytes
        self._ttl_s = model.input_store.ttl_s

    def predict(
        self,
        feed: Any,
        fetch: Sequence[str] | None = None,
        batch: bool = True,
        log_id: int = 0,
        *,
        context: Sequence[RequestContext] = (),
        **more: Any,
    ) -> dict[str, Any]:
        """Run it once, see `PipelinePredictor`; then remove the stored inputs."""
        data = dict(only_feed(self._name, feed))
        references = []
        try:
            for name, value in data.items():
                if isinstance(value, np.ndarray) and value.nbytes >= self._from_bytes:
                    array = value if batch else _with_batch_axis(name, value)
                    data[name] = stored(self._store, array, self._ttl_s)
                    references.append(data[name])
            return super().predict(data, fetch, batch, log_id, context=context, **more)
        finally:
            for reference in references:
                with contextlib.suppress(
                    PredictorUnavailableError
                ):  # the store removes it after its lifetime
                    forget(self._store, reference)


def connect(model: RemoteModel) -> PipelinePredictor:
    """Return a predictor that asks `model.endpoints`; if none answers yet, a warning is logged.

    Endpoints are "host:port", or "host:port/name" with the name of a pipeline.

    Raises InitError: an endpoint has another form, or the store cannot be opened.
    """
    try:
        hosts, pipeline = split_name(model.endpoints)
    except ConfigError as error:
        raise InitError(f"op.{model.name}.server_endpoints: {error}") from None
    model = replace(model, endpoints=tuple(hosts))
    url = model.input_store.url
    store = None if url is None else open_store(url)
    calls = GrpcCalls(model)
    calls.warn_if_down()
    if store is None:
        return PipelinePredictor(model, calls, pipeline)
    return StoringPredictor(model, calls, pipeline, store)
