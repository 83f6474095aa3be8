"""Asks a model that is served as `GeneralModelService` over gRPC."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from pipeline.predictors.remote.general_model import (
    GeneralModelPredictor,
    described_by_client_config,
)
from pipeline.predictors.remote.grpc_calls import GrpcCalls, GrpcChannel
from pipeline.predictors.remote.registry import RemoteModel
from pipeline.proto.brpc.frames import SERVICE
from pipeline.proto.general_model_pb2 import Response


def connect(model: RemoteModel) -> GeneralModelPredictor:
    """A predictor that asks `model.endpoints`; that none is there yet is a logged warning.

    Raises:
        InitError: the prototxt is missing or wrong, or an endpoint is no "host:port".
    """
    described = described_by_client_config(model)
    channel = GrpcChannel(model)
    channel.warn_if_down()
    calls = GrpcCalls(model, channel.close)
    inference = channel.method(f"/{SERVICE}/inference")

    def ask(body: bytes, log_id: int, deadline_s: float | None) -> Response:
        answer = calls.run(inference, body, deadline_s)
        try:
            return Response.FromString(answer)
        except DecodeError as error:
            calls.refuse_answer(error)

    return GeneralModelPredictor(described, ask, calls.close)
