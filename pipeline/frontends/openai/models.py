"""Models: pipelines by their ids in OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pipeline.engine.models import ServedGraph
from pipeline.errors import ConfigError
from pipeline.frontends.api.pipelines import EngineRequest, Pipelines
from pipeline.frontends.http.routes import ErrorForm
from pipeline.frontends.openai.arguments import Fields
from pipeline.frontends.openai.errors import ArgumentError, reply_to
from pipeline.frontends.openai.options import ModelOptions
from pipeline.frontends.openai.questions import Questions
from pipeline.frontends.openai.writers import Writer

Read = Callable[[Fields, ModelOptions], Questions]
"""Reads the body of a request. Raises ArgumentError."""


def is_never_large(fields: Fields) -> bool:
    """Return that a request stands for nothing but its body."""
    return False


class Form(NamedTuple):
    """The form of one API: the kind of its models, its reader and its writer.

    `reply_to` makes the answer to a request that ended in an error. `is_large`: whether a short
    request stands for more than can be read on the event loop.
    """

    kind: str
    read: Read
    write: Callable[[str, Questions], Writer]
    reply_to: ErrorForm = reply_to
    is_large: Callable[[Fields], bool] = is_never_large


class ParsedRequest(NamedTuple):
    """A request that was read: its model, its questions, and the engine's input for each text."""

    model_id: str
    model: ModelOptions
    served: ServedGraph
    questions: Questions
    engine_requests: Sequence[EngineRequest]


class Models:
    """The models of a server.

    Args:
        options: by model id; empty: each pipeline is a model with its own name.
        pipelines: answer the requests.

    Raises:
        ConfigError: a model's pipeline does not exist.
    """

    def __init__(self, options: Mapping[str, ModelOptions], pipelines: Pipelines) -> None:
        there = pipelines.names()
        self.options: Mapping[str, ModelOptions] = options or {
            name: ModelOptions() for name in there
        }
        self._pipelines = pipelines
        for model_id, model in options.items():
            name = _pipeline_of(model_id, model, there)
            if name not in there:
                raise ConfigError(
                    f"frontends.openai.models.{model_id}: there is no pipeline {name!r}, "
                    f"but {', '.join(there)}: say which under `pipeline`"
                )

    def find(self, model_id: object, kind: str = "") -> ModelOptions:
        """Return a model. Raises ArgumentError: it does not exist, or is not of the kind."""
        if not isinstance(model_id, str) or not model_id:
            raise ArgumentError("model must be the id of a model, as text", "model")
        model = self.options.get(model_id)
        if model is None:
            text = f"there is no model {model_id!r} here, but {', '.join(self.options)}"
            raise ArgumentError(text, "model", "model_not_found", 404)
        if kind and kind not in model.kinds:
            text = f"the model {model_id!r} answers {' and '.join(model.kinds)}, not {kind}"
            raise ArgumentError(text, "model", "model_not_supported")
        return model

    def parse(
        self, fields: Fields, headers: Mapping[bytes, bytes], kind: str, read: Read
    ) -> ParsedRequest:
        """Return a request for models of a kind, read and checked.

        Raises ArgumentError, PackageError, ClosedError.
        """
        model_id = fields.get("model")
        model = self.find(model_id, kind)
        name = model.pipeline or _pipeline_of(str(model_id), model, self._pipelines.names())
        served, questions = self._pipelines.find(name), read(fields, model)
        engine_requests = [
            self._pipelines.asked(served, text_fields, headers) for text_fields in questions.fields
        ]
        return ParsedRequest(str(model_id), model, served, questions, engine_requests)


def _pipeline_of(model_id: str, model: ModelOptions, there: Sequence[str]) -> str:
    """Return the name of a model's pipeline."""
    if model.pipeline is not None:
        return model.pipeline
    return there[0] if len(there) == 1 else model_id
