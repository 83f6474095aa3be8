"""Models on other machines: which module speaks which protocol."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pipeline.errors import InitError
from pipeline.predictors.base import Predictor

DEFAULT_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """What a remote predictor is made from; the fields are keys of `op.<name>`.

    Args:
        name: the Op's name, for error texts.
        client_type: a key of `CLIENTS`.
        endpoints: "host:port" of servers that all serve the model.
        client_config: the client prototxt of the model, or its folder (brpc, grpc).
        fetch_list: the outputs to return by default; none: all.
        model_name: what the model is called at the server (triton, kserve); none: `name`.
        model_version: as text; empty: the server chooses (triton, kserve).
        sends_tensors: whether arrays travel as tensors rather than as text (pipeline_grpc).
        timeout_s: limit of a call that no deadline bounds.
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


CLIENTS: Mapping[str, str] = MappingProxyType(
    {
        "brpc": "pipeline.predictors.remote.brpc",
        "grpc": "pipeline.predictors.remote.grpc",
        "pipeline_grpc": "pipeline.predictors.remote.pipeline",
        "triton": "pipeline.predictors.remote.kserve",
        "kserve": "pipeline.predictors.remote.kserve",
    }
)
"""`op.<name>.client_type` to the module that speaks it; each has `connect(model: RemoteModel)`."""


def connect_remote_predictor(model: RemoteModel) -> Predictor:
    """A predictor that asks `model.endpoints`.

    Raises:
        InitError: no such protocol, or the client cannot be made: see the protocol's module.
    """
    module = CLIENTS.get(model.client_type)
    if module is None:
        raise InitError(
            f"op.{model.name}.client_type: {model.client_type!r} is none of {', '.join(CLIENTS)}"
        )
    predictor: Predictor = importlib.import_module(module).connect(model)
    return predictor
