"""The seam of backends: who serves the models of a repository that name them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from pipeline.engine.graph import Graph
from pipeline.proto.inference_v2_pb2 import ModelConfig

BACKENDS = Path("/opt/tritonserver/backends")
"""The folder in which Triton looks for backends."""


class ModelSource(msgspec.Struct, frozen=True):
    """One version of a model, as it lies in a repository.

    Args:
        folder: of the model, which has the configuration, labels and the model's other files.
        config: with its defaults filled in.
        is_complete: the configuration needs no completion, see `Backend.complete`.
        key: what the server knows it by; "": its name.
    """

    name: str
    version: int
    folder: Path
    config: ModelConfig
    is_complete: bool = False
    key: str = ""

    @property
    def path(self) -> Path:
        """The folder of the version."""
        return self.folder / str(self.version)

    @property
    def file(self) -> Path:
        """The file that the configuration names as the model."""
        return self.path / self.config.default_model_filename


class Backend(Protocol):
    """A way to serve models; the registry has them as `backends`. By default a backend has no
    settings, needs no completion, and its Op is checked as Triton does.

    There is one object for all models of a server, or a class, of which the server makes an object
    with its `ServedModels`.

    Attributes:
        serves_graph: the model is the whole graph. Else it is the only Op of it: what callers send
            comes to its `process`, and what that returns they get.
        workers: kind of workers that the Op gets: "thread", "process", ...; "": the graph's own.
        checks_output_shapes: an output that has another shape than the configuration says is an
            error. Triton does not check those of its backends `python` and `onnxruntime`.
    """

    serves_graph: bool = False
    workers: str = ""
    checks_output_shapes: bool = True

    async def complete(self, source: ModelSource) -> ModelConfig:
        """Return the configuration with what the model's files say and it does not.

        Raises:
            ConfigError: the files say otherwise than the configuration; in Triton's words.
            InitError: they cannot be read.
        """
        return source.config

    def settings(self, source: ModelSource) -> Mapping[str, Any]:
        """Return keys of `op.<name>` of config.yml besides the keys that every model has."""
        return {}

    def graph(self, source: ModelSource) -> Graph:
        """Return what serves a model whose configuration is complete; nothing is loaded yet.

        Raises:
            ConfigError: the configuration wants what there is not.
        """
