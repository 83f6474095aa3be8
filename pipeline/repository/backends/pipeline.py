"""The backend `pipeline`: a script whose graph of Ops is the model."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

from pipeline.engine.graph import Graph, build_graph
from pipeline.errors import ConfigError, PipelineError, described
from pipeline.op import ResponseOp
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.backends.base import Backend, ModelSource
from pipeline.repository.model_ops import bind_models
from pipeline.repository.served_models import ServedModels
from pipeline.system.script import SourceLoader

SCRIPT = "web_server.py"


class PipelineBackend(Backend):
    """Backend of pipelines: the script in a version's folder has one ResponseOp, the end of the
    graph.

    Tensors go by name to the first Ops, and come from the last one: the RequestOp and the
    ResponseOp are not used. Its AskModelOps call other models of the repository.

    Args:
        models: of the repository.
    """

    serves_graph = True

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._graphs: dict[tuple[str, int], Graph] = {}

    async def complete(self, source: ModelSource) -> ModelConfig:
        """Run the script in a thread, and return the configuration unchanged.

        Raises:
            ConfigError: there is no script, it has no graph, or it fails.
        """
        file = source.path / (source.config.default_model_filename or SCRIPT)
        graph = await asyncio.to_thread(graph_of_file, file, f"{source.name}_{source.version}")
        bind_models(graph, self._models)
        self._graphs[source.name, source.version] = graph
        return source.config

    def graph(self, source: ModelSource) -> Graph:
        return self._graphs.pop((source.name, source.version))


def graph_of_file(file: Path, name: str) -> Graph:
    """Return the graph of a script, which runs as the module of a model. Raises ConfigError."""
    module_name = f"pipeline_of_{name}"
    if not file.is_file():
        raise ConfigError(f"unable to find '{file}': a script with the graph of the model")
    loader = SourceLoader(module_name, str(file))
    module = importlib.util.module_from_spec(ModuleSpec(module_name, loader, origin=str(file)))
    module.__file__ = str(file)
    sys.modules[module_name] = module
    try:
        loader.exec_module(module)
    except PipelineError:
        raise
    except Exception as error:  # user code
        raise ConfigError(f"{file} raised {described(error)}") from error
    ends = [value for value in vars(module).values() if isinstance(value, ResponseOp)]
    if len(ends) != 1:
        raise ConfigError(f"{file}: there are {len(ends)} ResponseOps among its names, not one")
    return build_graph(ends[0])
