"""Asks a model that is served as `GeneralModelService` over gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from pipeline.predictors.general_model import GeneralModel, described_by_client_config
from pipeline.predictors.grpc_calls import GrpcCalls, GrpcChannel, Method
from pipeline.predictors.remote import RemoteModel
from pipeline.predictors.signature import refuse_unknown_arguments
from pipeline.proto.baidu_std import SERVICE
from pipeline.proto.general_model_pb2 import Response


class GrpcPredictor:
    """A model on other servers as a `Predictor`; calls go round robin over those that are there.

    Args:
        model: what is sent and read, by the client's prototxt.
        inference: the service's method.
        calls: makes the calls, and is closed with this predictor.
    """

    def __init__(self, model: GeneralModel, inference: Method, calls: GrpcCalls) -> None:
        self.feed_names = model.feed_names
        self.fetch_names = model.fetch_names
        self.close = calls.close
        self._model = model
        self._inference = inference
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
        """Have the model run once: see `Predictor.predict` and `GrpcCalls.run`."""
        if legacy:
            refuse_unknown_arguments(legacy)
        request = self._model.request(feed, fetch, batch, log_id)
        answer = self._calls.run(self._inference, request.SerializeToString(), deadline_s)
        try:
            response = Response.FromString(answer)
        except DecodeError as error:
            self._calls.refuse_answer(error)
        return self._model.result(response, fetch)


def connect(model: RemoteModel) -> GrpcPredictor:
    """A predictor that asks `model.endpoints`; that none is there yet is a logged warning.

    Raises:
        InitError: the prototxt is missing or wrong, or an endpoint is no "host:port".
    """
    described = described_by_client_config(model)
    channel = GrpcChannel(model)
    channel.warn_if_down()
    inference = channel.method(f"/{SERVICE}/inference")
    return GrpcPredictor(described, inference, GrpcCalls(model, channel.close))
