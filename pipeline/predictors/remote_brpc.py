"""Models behind brpc servers of the general model service, such as Paddle Serving's own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import EncodeError

from pipeline.deadline import time_left
from pipeline.errors import ConfigError, InitError, InputError
from pipeline.predictors.brpc_channel import BrpcChannel
from pipeline.predictors.general_model import GeneralModel, described_by_client_config
from pipeline.predictors.remote import RemoteModel
from pipeline.predictors.signature import refuse_unknown_arguments
from pipeline.proto.general_model_pb2 import Response
from pipeline.proto.targets import host_and_port

_LOGGER = logging.getLogger(__name__)
_FIRST_LOOK_S = 1.0  # for each server at start, before a warning says that it is not there


class BrpcPredictor:
    """One model on one or several servers as a `Predictor`. Safe to use from many threads.

    It has no threads of its own, and works in a forked child too, on connections of its own.

    Args:
        model: its name goes into error texts, `timeout_s` bounds calls without a deadline.
        messages: makes its requests and reads the responses.
        channel: sends them; closed with the predictor.
    """

    def __init__(self, model: RemoteModel, messages: GeneralModel, channel: BrpcChannel) -> None:
        self._name = model.name
        self._timeout_s = model.timeout_s
        self._messages = messages
        self._channel = channel
        self.feed_names = messages.feed_names
        self.fetch_names = messages.fetch_names

    def predict(
        self,
        feed: Any,
        fetch: Sequence[str] | None = None,
        batch: bool = True,
        log_id: int = 0,
        *,
        deadline_s: float | None = None,
        **legacy: Any,
    ) -> dict[str, np.ndarray]:
        """Run the model once: see `Predictor.predict`.

        A request may reach a server twice, or two of them, when a connection breaks before the
        answer.

        Raises:
            PredictorUnavailableError: no server could be reached, or none takes calls now, or
                what they answer cannot be read.
            DeadlineError: no answer in time.
        """
        if legacy:
            refuse_unknown_arguments(legacy)
            log_id = log_id or legacy.get("logid", 0)
        time_s = time_left(deadline_s, self._timeout_s)
        request = self._messages.request(feed, fetch, batch, log_id)
        try:
            body = request.SerializeToString()
        except (EncodeError, ValueError) as error:  # protobuf's limit of 2 GiB
            raise InputError(f"[{self._name}] the request is too large: {error}") from error
        response = self._channel.ask(body, log_id, time_s, Response.FromString)
        return self._messages.result(response, fetch)

    def close(self) -> None:
        """Let no call begin any more; those under way finish. May be called twice."""
        self._channel.close()


def connect(model: RemoteModel) -> BrpcPredictor:
    """A predictor that asks `model.endpoints`; one that is down is a warning, it may come later.

    Raises:
        InitError: no `client_config`, or it cannot be read; no endpoint, or one that is none.
    """
    addresses = _addresses(model)
    messages = described_by_client_config(model)
    channel = BrpcChannel(model.name, model.endpoints, addresses)
    for problem in channel.connect(_FIRST_LOOK_S):
        _LOGGER.warning("[%s] no server at %s", model.name, problem)
    return BrpcPredictor(model, messages, channel)


def _addresses(model: RemoteModel) -> list[tuple[str, int]]:
    if not model.endpoints:
        raise InitError(f"op.{model.name}.server_endpoints: name at least one 'host:port'")
    try:
        return [host_and_port(endpoint) for endpoint in model.endpoints]
    except (ConfigError, TypeError) as error:
        raise InitError(f"op.{model.name}.server_endpoints: {error}") from error
