"""The backend `ensemble`: models that are made of others of the repository."""

from __future__ import annotations

from typing import Any

from pipeline.engine.graph import Graph
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.backends.base import ModelSource
from pipeline.repository.ensembles import RepositoryModels, ensemble_graph, is_decoupled


class EnsembleBackend:
    """Ensembles.

    Args:
        models: of the repository, which their steps ask.
    """

    serves_graph = True
    workers = ""
    checks_output_shapes = True

    def __init__(self, models: RepositoryModels) -> None:
        self._models = models

    async def complete(self, source: ModelSource) -> ModelConfig:
        """Return the configuration, which says whether there are several answers to a request."""
        config = ModelConfig()
        config.CopyFrom(source.config)
        if is_decoupled(config, self._models):
            config.model_transaction_policy.decoupled = True
        return config

    def settings(self, source: ModelSource) -> dict[str, Any]:
        """Return nothing: its Ops have no workers of their own."""
        return {}

    def graph(self, source: ModelSource) -> Graph:
        """Return the steps. Raises ConfigError: they do not fit their models."""
        return ensemble_graph(source.config, self._models)
