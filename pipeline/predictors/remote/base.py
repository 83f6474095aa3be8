"""Models on other machines: what a client is made from, and which client speaks which protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from pipeline.config import registry
from pipeline.errors import InitError
from pipeline.predictors.base import Predictor, as_own_struct

DEFAULT_TIMEOUT_S = 20.0


class RemoteModel(Struct, frozen=True):
    """A model for a remote predictor; the fields are keys of `op.<name>`.

    A client with keys of its own has a Struct of them, its `Options`: this one, and fields that
    are annotated as those of a configuration are.

    Args:
        name: the Op's name, for error texts.
        client_type: a name of the registry's `clients`.
        endpoints: "host:port" of servers that all serve the model.
        client_config: the client prototxt of the model, or its folder (brpc, grpc).
        fetch_list: the outputs to return by default; none: all.
        model_name: what the model is called at the server (triton, kserve); none: `name`.
        model_version: as text; empty: the server chooses (triton, kserve).
        sends_tensors: whether arrays travel as tensors rather than as text (pipeline_grpc).
        timeout_s: limit of a call that no deadline bounds.
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
    options: Mapping[str, object] = {}


def connect_remote_predictor(model: RemoteModel) -> Predictor:
    """Return a predictor that asks `model.endpoints`.

    Its client is a callable of the registry that takes a RemoteModel, or its own `Options`.

    Raises:
        InitError: no such protocol, or the client cannot be made: see the protocol's module.
        ConfigError: the plug-in of a client is broken.
    """
    name = registry.known_as("clients", model.client_type)
    if name is None:
        raise InitError(
            f"op.{model.name}.client_type: {model.client_type!r} is none of "
            f"{', '.join(registry.names('clients'))}"
        )
    connect = registry.find("clients", name)
    own = registry.options_of("clients", name) or RemoteModel
    predictor: Predictor = connect(as_own_struct(model, own))
    return predictor
