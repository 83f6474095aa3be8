"""Models behind brpc servers of the general model service, such as Paddle Serving's own."""

from __future__ import annotations

import logging

from pipeline.errors import ConfigError, InitError
from pipeline.predictors.remote.brpc_channel import BrpcChannel
from pipeline.predictors.remote.general_model import (
    GeneralModelPredictor,
    described_by_client_config,
)
from pipeline.predictors.remote.registry import RemoteModel
from pipeline.proto.general_model_pb2 import Response
from pipeline.proto.targets import host_and_port
from pipeline.system.deadline import time_left

_LOGGER = logging.getLogger(__name__)
_FIRST_LOOK_S = 1.0  # for each server at start, before a warning says that it is not there


def connect(model: RemoteModel) -> GeneralModelPredictor:
    """A predictor that asks `model.endpoints`; one that is down is a warning, it may come later.

    It has no threads of its own, and works in a forked child too, on connections of its own.

    Raises:
        InitError: no `client_config`, or it cannot be read; no endpoint, or one that is none.
    """
    addresses = _addresses(model)
    messages = described_by_client_config(model)
    channel = BrpcChannel(model.name, model.endpoints, addresses)
    for problem in channel.connect(_FIRST_LOOK_S):
        _LOGGER.warning("[%s] no server at %s", model.name, problem)

    def ask(body: bytes, log_id: int, deadline_s: float | None) -> Response:
        time_s = time_left(deadline_s, model.timeout_s)
        return channel.ask(body, log_id, time_s, Response.FromString)

    return GeneralModelPredictor(messages, ask, channel.close)


def _addresses(model: RemoteModel) -> list[tuple[str, int]]:
    if not model.endpoints:
        raise InitError(f"op.{model.name}.server_endpoints: name at least one 'host:port'")
    try:
        return [host_and_port(endpoint) for endpoint in model.endpoints]
    except (ConfigError, TypeError) as error:
        raise InitError(f"op.{model.name}.server_endpoints: {error}") from error
