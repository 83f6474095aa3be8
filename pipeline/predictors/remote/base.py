"""Models on other machines: the description of a remote model, and the base of its predictors."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import EncodeError, Message
from msgspec import Struct

from pipeline.config import registry
from pipeline.config.sections import InputStoreConfig
from pipeline.data import RequestContext
from pipeline.deadline import time_left
from pipeline.errors import InitError, InputError
from pipeline.predictors.base import Predictor, as_own_struct
from pipeline.predictors.remote.pool import Waiting
from pipeline.predictors.signature import refuse_unknown_arguments

DEFAULT_TIMEOUT_S = 20.0


class RemoteModel(Struct, frozen=True):
    """A model for a remote predictor; the fields are keys of `op.<name>`.

    A client with its own keys has a derived Struct, its `Options`, whose fields are annotated as in
    a configuration.

    Args:
        name: the Op's name, for error texts.
        client_type: a name of the registry's `clients`.
        endpoints: "host:port" of servers that all serve the model.
        client_config: the client prototxt of the model, or its folder (brpc, grpc).
        fetch_list: the outputs to return by default; all if empty.
        model_name: name of the model at the server (triton, kserve, openai); `name` if empty.
        model_version: version as text; empty: the server chooses (triton, kserve).
        sends_tensors: whether arrays are sent as tensors rather than as text (pipeline_grpc).
        timeout_s: limit of a call without a deadline.
        input_store: the store for large inputs (pipeline_grpc).
        batch_size: maximum number of requests in one feed.
        options: keys of the client, for its own Struct.
    """

    name: str
    client_type: str
    endpoints: tuple[str, ...]
    client_config: Path | None = None
    fetch_list: Sequence[str] | None = None
    model_name: str | None = None
    model_version: str = ""
    sends_tensors: bool = True
    timeout_s: float = DEFAULT_TIMEOUT_S
    input_store: InputStoreConfig = InputStoreConfig()
    batch_size: int = 1
    options: Mapping[str, object] = {}


Ask = Callable[[bytes, int, float | None, Sequence[RequestContext]], Any]
"""(an encoded request, its log id, `deadline_s` and `context` of `predict`) -> the answer."""


def waiting_of(
    context: Sequence[RequestContext], deadline_s: float | None, default_s: float
) -> Waiting:
    """Return the limits of a call: `time_left`, and whether a request of `context` is wanted."""
    ends = time.monotonic() + time_left(deadline_s, default_s)
    return Waiting(ends, (lambda: all(one.is_cancelled() for one in context)) if context else None)


class RemotePredictor(ABC):
    """A model on other servers as a `Predictor`; base of all protocols.

    Args:
        name: name of the model, for error texts.
        ask: makes a call; it raises PredictorUnavailableError if no server can be reached or
            accepts calls now, DeadlineError, and ClosedError if no caller waits any more.
        close: closes the connections; calls in progress finish.
    """

    def __init__(
        self,
        name: str,
        feed_names: tuple[str, ...],
        fetch_names: tuple[str, ...],
        ask: Ask,
        close: Callable[[], None],
    ) -> None:
        self.feed_names: tuple[str, ...] = feed_names
        self.fetch_names: tuple[str, ...] = fetch_names
        self.close: Callable[[], None] = close
        self._name = name
        self._ask = ask

    def predict(
        self,
        feed: Any,
        fetch: Sequence[str] | None = None,
        batch: bool = True,
        log_id: int = 0,
        *,
        deadline_s: float | None = None,
        context: Sequence[RequestContext] = (),
        **legacy: Any,
    ) -> dict[str, Any]:
        """Run the model once: see `Predictor.predict`.

        If a connection breaks before the answer, a request may reach one server twice, or two
        servers. The call ends early when all requests of `context`, as `process` gets it, have
        ended.
        """
        if legacy:
            refuse_unknown_arguments(legacy)
            log_id = log_id or legacy.get("logid", 0)
        body = self.request(feed, fetch, batch, log_id)
        return self.result(self._ask(body, log_id, deadline_s, context), fetch)

    @abstractmethod
    def request(self, feed: Any, fetch: Sequence[str] | None, batch: bool, log_id: int) -> bytes:
        """Return the arguments of `predict` as an encoded request."""

    @abstractmethod
    def result(self, answer: Any, fetch: Sequence[str] | None) -> dict[str, Any]:
        """Return the outputs in an answer by name."""


def encoded(name: str, request: Message) -> bytes:
    """Return the bytes of a request for the model `name`. Raises InputError: it is too large."""
    try:
        return request.SerializeToString()
    except (EncodeError, ValueError) as error:  # protobuf's limit of 2 GiB
        raise InputError(f"[{name}] the request is too large: {error}") from error


def connect_remote_predictor(model: RemoteModel) -> Predictor:
    """Return a predictor that asks `model.endpoints`.

    The registry's entry of a client is a callable that takes a RemoteModel, or its own `Options`.

    Raises:
        InitError: the protocol is unknown, or the client cannot be made: see its module.
        ConfigError: the plug-in of a client is broken.
    """
    name = registry.known_as("clients", model.client_type)
    if name is None:
        raise InitError(
            f"op.{model.name}.client_type: {model.client_type!r} is not one of "
            f"{', '.join(registry.names('clients'))}"
        )
    connect = registry.find("clients", name)
    own = registry.options_of("clients", name) or RemoteModel
    predictor: Predictor = connect(as_own_struct(model, own))
    return predictor
