"""Clients of the general model service of Paddle Serving: feed to `Request`, answer to arrays.

brpc and gRPC carry the same messages; the modules of each are imported when they are needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.data import RequestContext
from pipeline.errors import ConfigError, InitError, InputError, PayloadTypeError, PredictorError
from pipeline.predictors.base import TensorSpec
from pipeline.predictors.model_conf import ModelConf, Var, read_model_conf
from pipeline.predictors.remote.base import Ask, RemoteModel, RemotePredictor, waiting_of
from pipeline.predictors.signature import LOD, ModelSignature, are_offsets, only_feed
from pipeline.proto.brpc.arrays import (
    Answer,
    AnswerReader,
    ArrayWriter,
    Pieces,
    request_bytes,
    tensor_field,
)
from pipeline.proto.brpc.frames import SERVICE, FrameError
from pipeline.proto.brpc.general_model import BrpcElemType, dtype_of, lod_of, tensor_to_array
from pipeline.proto.general_model_pb2 import ModelOutput, Tensor
from pipeline.proto.lists import as_array
from pipeline.proto.targets import host_and_port

_LOGGER = logging.getLogger(__name__)
_ANY_DTYPE = np.dtype(object)
_MAX_SHOWN = 16
_BRPC_STARTUP_PROBE_S = 1.0  # per server at start, before a warning that it is not there


class _Feed(NamedTuple):
    """One input. `writer` is None if it is text."""

    var: Var
    lod_name: str
    writer: ArrayWriter | None


class GeneralModelPredictor(RemotePredictor):
    """A model behind `GeneralModelService`s, as its client configuration describes it.

    It checks names, casts numbers and refuses empty arrays, because the service would answer output
    0 for an unknown name and drop an empty array. It does not check shapes: a configuration states
    one size for models that take any.

    Args:
        conf: the feeds and fetches of the model.
        model: name of the model in error texts.
        fetch_list: aliases of the outputs to fetch by default; all if empty.
        ask: asks a server and returns an `Answer`.
        close: closes the connections; calls in progress finish.

    Raises InitError: `fetch_list` names an output that the model does not have.
    """

    def __init__(
        self,
        conf: ModelConf,
        model: str,
        fetch_list: Sequence[str] | None,
        ask: Ask,
        close: Callable[[], None],
    ) -> None:
        # Not `signature`: the types and shapes in the configuration are not reliable.
        self._signature = ModelSignature(
            model,
            inputs=[TensorSpec(var.alias, dtype_of(var.elem_type), None) for var in conf.feeds],
            outputs=[TensorSpec(var.alias, _ANY_DTYPE, None) for var in conf.fetches],
            fetch_list=fetch_list,
        )
        names = self._signature.feed_names, self._signature.fetch_names
        super().__init__(model, *names, ask, close)
        self._feeds = tuple(_Feed(var, var.alias + LOD, _writer(var)) for var in conf.feeds)
        self._aliases = {var.name: var.alias for var in conf.fetches}

    def request(
        self, feed: Any, fetch: Sequence[str] | None = None, batch: bool = True, log_id: int = 0
    ) -> bytes:
        """Return the arguments of `Predictor.predict` as the service's `Request`.

        The level-of-detail offsets of the input `x` are fed as `x.lod`: ascending, from 0 to the
        length of `x`. `log_id` may be any 64-bit number; its bits are sent.

        Raises:
            InputError: a name, dtype or LoD does not fit, an array is empty, or the total is 2 GiB
                or more.
            PayloadTypeError: a value is neither ndarray nor list of str, or cannot be sent.
        """
        fetched = self._signature.fetch(fetch)
        given = feed if feed.__class__ is dict else only_feed(self._name, feed)
        arrays = self._signature.feed(given, batch)
        tensors = [self._tensor(feed, arrays[feed.var.alias], given) for feed in self._feeds]
        try:
            return request_bytes(tensors, fetched, log_id % 2**64)
        except ValueError as error:
            raise InputError(f"[{self._name}] the request is too large: {error}") from error

    def result(self, answer: Answer, fetch: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the outputs of an answer by alias, in the order of `fetch`.

        An output with offsets adds `"<alias>.lod"`, 1-D int32. If several models answered, each has
        its own dict under its engine_name, as in Paddle Serving's client. Raises PredictorError:
        the service reports an error, or its answer lacks an output.
        """
        names = self._signature.fetch(fetch)
        if isinstance(answer, dict):
            self._refuse_missing(names, answer)
            return {name: answer[name] for name in names}
        if answer.err_no:
            raise PredictorError(
                f"[{self._name}] the model's server answered error {answer.err_no}: "
                f"{answer.err_msg}"
            )
        if len(answer.outputs) == 1:
            return self._outputs(answer.outputs[0], names)
        results = {output.engine_name: self._outputs(output, names) for output in answer.outputs}
        if not results or len(results) != len(answer.outputs):
            raise self._bad_answer(f"{len(answer.outputs)} outputs, of the engines {list(results)}")
        return results

    def _tensor(self, feed: _Feed, array: np.ndarray, given: Mapping[str, Any]) -> Pieces:
        var, lod_name, writer = feed
        if not array.size:
            raise InputError(
                f"[{self._name}] feed {var.alias!r} is empty (shape {array.shape}), "
                "which the model's server cannot take"
            )
        lod = None
        if lod_name in given and lod_name not in self.feed_names:
            lod = self._offsets(lod_name, given[lod_name], array)
        if writer is not None and lod is None:
            return writer.pieces(array)
        try:
            return tensor_field(var.name, var.alias, array, lod)
        except PayloadTypeError as error:
            raise PayloadTypeError(f"[{self._name}] {error}") from error

    def _offsets(self, name: str, value: Any, array: np.ndarray) -> np.ndarray | None:
        """Return LoD offsets as a 1-D array; one level may come as [[0, 3, 5]]. None: no LoD."""
        try:
            offsets = as_array(value).reshape(-1) if len(value) else None
        except (TypeError, ValueError) as error:
            raise PayloadTypeError(f"[{self._name}] feed {name!r} is no LoD: {error}") from error
        if offsets is None:
            return None
        length = len(array) if array.ndim else 0
        if are_offsets(offsets, length):
            return offsets
        raise InputError(
            f"[{self._name}] feed {name!r} is {offsets[:_MAX_SHOWN].tolist()}: offsets ascend "
            f"from 0 to the length of {name.removesuffix(LOD)!r}, which is {length} "
            f"(shape {array.shape}; batch=False adds a first axis)"
        )

    def _outputs(self, output: ModelOutput, names: Sequence[str]) -> dict[str, Any]:
        aliases = self._aliases
        tensors = {t.alias_name or aliases.get(t.name, t.name): t for t in output.tensor}
        self._refuse_missing(names, tensors)
        try:
            return {key: value for name in names for key, value in _values(name, tensors[name])}
        except FrameError as error:
            raise self._bad_answer(str(error)) from error

    def _refuse_missing(self, names: Sequence[str], answer: Mapping[str, object]) -> None:
        for name in names:
            if name not in answer:
                missing = [name for name in names if name not in answer]
                raise self._bad_answer(f"no output {missing}, only {list(answer)[:_MAX_SHOWN]}")

    def _bad_answer(self, what: str) -> PredictorError:
        return PredictorError(f"[{self._name}] the model's server answered {what}")


def _writer(var: Var) -> ArrayWriter | None:
    is_text = var.elem_type == BrpcElemType.STRING
    return None if is_text else ArrayWriter(var.name, var.alias, var.elem_type)


def _values(name: str, tensor: Tensor) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the array of one output and, where it has one, its LoD."""
    yield name, tensor_to_array(tensor)
    lod = lod_of(tensor)
    if lod is not None:
        yield name + LOD, lod


def connect_brpc(model: RemoteModel) -> GeneralModelPredictor:
    """Return a predictor that asks `model.endpoints`; it logs a warning for servers that are down.

    It has no threads. In a forked child it opens its own connections. Raises InitError:
    `client_config` is missing or cannot be read, or an endpoint is missing or not valid.
    """
    from pipeline.predictors.remote.brpc_channel import BrpcChannel

    addresses = _addresses(model)
    conf = _client_config(model)
    channel = BrpcChannel(model.name, model.endpoints, addresses)
    read = AnswerReader()

    def ask(
        body: bytes, log_id: int, deadline_s: float | None, context: Sequence[RequestContext]
    ) -> Any:
        return channel.ask(body, log_id, waiting_of(context, deadline_s, model.timeout_s), read)

    predictor = GeneralModelPredictor(conf, model.name, model.fetch_list, ask, channel.close)
    for problem in channel.connect(_BRPC_STARTUP_PROBE_S):
        _LOGGER.warning("[%s] no server at %s", model.name, problem)
    return predictor


def connect_grpc(model: RemoteModel) -> GeneralModelPredictor:
    """Return a predictor that asks `model.endpoints`; it logs a warning if none is there yet.

    Raises InitError: the prototxt is missing or wrong, or an endpoint is not "host:port".
    """
    from pipeline.predictors.remote.grpc_calls import GrpcCalls

    conf = _client_config(model)
    calls = GrpcCalls(model)
    ask = calls.asker(f"/{SERVICE}/inference", AnswerReader())
    try:
        predictor = GeneralModelPredictor(conf, model.name, model.fetch_list, ask, calls.close)
    except InitError:
        calls.close()
        raise
    calls.warn_if_down()
    return predictor


def _client_config(model: RemoteModel) -> ModelConf:
    if model.client_config is None:
        raise InitError(
            f"op.{model.name}.client_config: client_type {model.client_type} needs the model's "
            "serving_client_conf.prototxt, or the folder that holds it; `python -m "
            "pipeline.serve --write_client_conf DIR` writes one"
        )
    return read_model_conf(model.client_config)


def _addresses(model: RemoteModel) -> list[tuple[str, int]]:
    if not model.endpoints:
        raise InitError(f"op.{model.name}.server_endpoints: name at least one 'host:port'")
    try:
        return [host_and_port(endpoint) for endpoint in model.endpoints]
    except (ConfigError, TypeError) as error:
        raise InitError(f"op.{model.name}.server_endpoints: {error}") from error
