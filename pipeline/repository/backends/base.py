"""The interface of backends, which serve the models of a repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from pipeline.engine.graph import Graph
from pipeline.engine.models import ALL_CHECKS, OutputChecks
from pipeline.proto.inference_v2_pb2 import ModelConfig

BACKENDS = Path("/opt/tritonserver/backends")
"""The folder in which Triton looks for backends."""


class ModelSource(msgspec.Struct, frozen=True):
    """One version of a model in a repository.

    Args:
        folder: of the model, with the configuration, labels and other files.
        config: with its defaults filled in.
        is_complete: the configuration needs no completion, see `Backend.complete`.
        key: its key in the server; "": its name.
    """

    name: str
    version: int
    folder: Path
    config: ModelConfig
    is_complete: bool = False
    key: str = ""

    @property
    def path(self) -> Path:
        """Return the folder of the version."""
        return self.folder / str(self.version)

    @property
    def file(self) -> Path:
        """Return the configured file of the model."""
        return self.path / self.config.default_model_filename


class Backend(Protocol):
    """A way to serve models; the registry has them as `backends`.

    By default a backend has no settings, needs no completion, and its Op is checked as in Triton.
    It is one object for all models of a server, or a class: then the server makes an object with
    its `ServedModels`.

    Attributes:
        serves_graph: the model is the whole graph. Otherwise it is the only Op of the graph: its
            `process` gets a caller's inputs and returns the outputs.
        workers: kind of workers of the Op: "thread", "process", ...; "": the graph's own.
        output_checks: what is an error, if an output differs in it from its configuration. Triton
            checks no shape for its backends `python` and `onnxruntime`, and no type for `python`.
    """

    serves_graph: bool = False
    workers: str = ""
    output_checks: OutputChecks = ALL_CHECKS

    async def complete(self, source: ModelSource) -> ModelConfig:
        """Return the configuration, completed from the model's files.

        Raises:
            ConfigError: the files contradict the configuration; in Triton's words.
            InitError: they cannot be read.
        """
        return source.config

    def settings(self, source: ModelSource) -> Mapping[str, Any]:
        """Return keys of `op.<name>` of config.yml in addition to those of every model."""
        return {}

    def labels(self, source: ModelSource) -> Mapping[str, Sequence[bytes]]:
        """Return names of classes for outputs whose configuration has no file of them."""
        return {}

    def graph(self, source: ModelSource) -> Graph:
        """Return the graph of a model with a complete configuration; nothing is loaded yet.

        It may read files: the server calls it in a thread, unless the backend serves the graph.

        Raises:
            ConfigError: the configuration needs something that is not available.
        """
