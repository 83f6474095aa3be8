"""Client of another pipeline server, of ours or Paddle's, over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from pipeline.errors import PackageError, PayloadTypeError, error_from_wire
from pipeline.predictors.remote.base import RemoteModel
from pipeline.predictors.remote.grpc_calls import GrpcCalls, GrpcChannel
from pipeline.predictors.signature import LOD, only_feed, refuse_unknown_arguments
from pipeline.proto.codec import decode_tensors, text_to_numpy
from pipeline.proto.messages import INFERENCE_PATH, CallOptions, request_from_feed
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.targets import own_ip


class PipelinePredictor:
    """Another pipeline as a `Predictor`; calls go round robin over the servers that are there.

    What it is fed, and answers, are the peer's own matter: `feed_names` is empty, and so is
    `fetch_names` without a `fetch_list`.

    Args:
        model: says whether arrays are sent as tensors or as text.
        channel: leads to the peers.
        calls: makes the calls, and is closed with this predictor.
    """

    def __init__(self, model: RemoteModel, channel: GrpcChannel, calls: GrpcCalls) -> None:
        self.feed_names: tuple[str, ...] = ()
        self.fetch_names: tuple[str, ...] = tuple(model.fetch_list or ())
        self.close: Callable[[], None] = calls.close
        self._name = model.name
        self._sends_tensors = model.sends_tensors
        self._own_ip = own_ip(channel.peer)
        self._inference = channel.method(INFERENCE_PATH)
        self._calls = calls

    def predict(
        self,
        feed: Any,
        fetch: Sequence[str] | None = None,
        batch: bool = True,
        log_id: int = 0,
        *,
        deadline_s: float | None = None,
        **legacy: Any,
    ) -> dict[str, Any]:
        """Have the peer answer once: see `Predictor.predict` and `GrpcCalls.run`.

        Args:
            feed: arrays, text, bytes, numbers, lists of them, and LoD offsets as `<name>.lod`.
            fetch: names of the results to return; none: `fetch_names`, and if there are none, all.
            batch: False gives arrays and lists a first axis of one.
            log_id: the peer's own log id of the request.
            deadline_s: as everywhere; the peer is told.
            legacy: as everywhere.

        Returns:
            Arrays by name, with their LoD; text and bytes that are no array as they are. Where
            the peer answers text only, as Paddle's server does, the text of an array or of a
            list of text becomes an array.

        Raises:
            PipelineError: the class, code and text that the peer answered.
            PayloadTypeError: a value cannot be sent.
            PredictorError: the answer lacks a name of `fetch`, or cannot be read.
        """
        if legacy:
            refuse_unknown_arguments(legacy)
        request = self._request(feed, batch, log_id)
        answer = self._calls.run(self._inference, request.SerializeToString(), deadline_s)
        try:
            response = Response.FromString(answer)
        except DecodeError as error:
            self._calls.refuse_answer(error)
        if response.err_no:
            raise error_from_wire(response.err_no, response.err_msg)
        try:
            return _results(response, _names(fetch) or self.fetch_names)
        except PackageError as error:
            self._calls.refuse_answer(error)

    def _request(self, feed: Any, batch: bool, log_id: int) -> Request:
        data = dict(only_feed(self._name, feed))
        if not batch:
            data = {name: _with_batch_axis(name, value) for name, value in data.items()}
        # As .npy bytes an array keeps its dtype, and integers are written much quicker.
        options = CallOptions(
            fetch=None,
            as_tensors=self._sends_tensors,
            as_bytes=self._sends_tensors,
            profile=False,
            log_id=log_id,
        )
        try:
            return request_from_feed(data, options, self._own_ip)
        except TypeError as error:
            raise PayloadTypeError(f"[{self._name}] {error}") from error


def _names(fetch: Sequence[str] | None) -> Sequence[str]:
    return (fetch,) if isinstance(fetch, str) else fetch or ()


def _with_batch_axis(name: str, value: Any) -> Any:
    if str(name).endswith(LOD):
        return value
    if isinstance(value, np.ndarray):
        return value[np.newaxis]
    return [value] if isinstance(value, list) else value


def _results(response: Response, names: Sequence[str]) -> dict[str, Any]:
    """Return the results called `names`, in that order, each with its LoD; none: all."""
    tensors = {tensor.name: tensor for tensor in response.tensors}
    texts = dict(zip(response.key, response.value, strict=False))
    results: dict[str, Any] = {}
    for name in names or {**texts, **tensors}:
        if name in tensors:
            for key, value in decode_tensors([tensors[name]]).items():
                results[key] = _text_array(value) if isinstance(value, list) else value
        elif name in texts:
            results[name] = _from_text(texts[name])
        elif not _is_lod(name, tensors):
            raise PackageError(f"it lacks {name!r}; it has {', '.join({**texts, **tensors})}")
    return results


def _is_lod(name: str, tensors: Any) -> bool:
    """Return whether `name` is the LoD of a result, which comes with that result."""
    return name.endswith(LOD) and name.removesuffix(LOD) in tensors


def _from_text(text: str) -> Any:
    """Return the array that a server wrote as this text; any other text is itself, digits too.

    Servers write arrays and lists of `str`. Other text was text at the peer, and what it looks
    like must not decide its type.
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


def connect(model: RemoteModel) -> PipelinePredictor:
    """Return a predictor that asks `model.endpoints`; that none is there yet is a logged warning.

    Raises:
        InitError: an endpoint is no "host:port".
    """
    channel = GrpcChannel(model)
    channel.warn_if_down()
    return PipelinePredictor(model, channel, GrpcCalls(model, channel.close))
