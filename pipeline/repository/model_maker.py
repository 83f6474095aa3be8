"""GraphMaker: loads one version of a model, as a graph with an engine of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from pipeline.config import registry
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import ServiceConfig, load_config
from pipeline.engine.graph import Graph
from pipeline.engine.models import ModelNames, key_of_model
from pipeline.engine.op.elastic import can_be_resized
from pipeline.engine.run.hooks import check_hooks
from pipeline.errors import ConfigError
from pipeline.op import configure_op
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.backends.base import BACKENDS, Backend, ModelSource
from pipeline.repository.backends.python.backend import PythonBackend
from pipeline.repository.model_checks import check
from pipeline.repository.model_defaults import ENSEMBLE, fill_in_batching
from pipeline.repository.op_settings import (
    instances_of,
    kinds_of_instances,
    metrics_settings,
    op_settings,
)
from pipeline.repository.served_models import ServedModels
from pipeline.repository.warm_up import samples_of
from pipeline.runtime.loaded_graph import GraphPlace, LoadedGraph, RepositoryModel
from pipeline.runtime.predictor_loader import PredictorLoader
from pipeline.runtime.service import ReplicaContext
from pipeline.runtime.share import Share
from pipeline.workers.process.shared import SharedProcesses


class GraphMaker:
    """Loads models and ends them, on the event loop.

    Args:
        settings: keys of config.yml that all models have in common.
        on_readiness: told when an engine is ready, or is not any more.
        grace_s: time that a model which is unloaded has for its requests.
        models: of the server, for backends whose models ask others.
        cards: numbers of the machine's.
        backend_directory: has backends that are Python: BACKEND/model.py.
        processes: of the server; None: a model's are forked for it.
        share: what models have in common.
        replica: that has them; None: the server is one process.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        on_readiness: Callable[[bool], None],
        grace_s: float,
        models: ServedModels,
        cards: Collection[int] = (),
        backend_directory: Path = BACKENDS,
        processes: SharedProcesses | None = None,
        share: Share | None = None,
        replica: ReplicaContext | None = None,
    ) -> None:
        self._settings = settings
        self._on_readiness = on_readiness
        self._grace_s = grace_s
        self._models = models
        self._backends: dict[str, Backend] = {}
        self._cards = cards
        self._backend_directory = backend_directory
        self._processes = processes
        self._share = share or Share()
        self._replica = replica

    async def make(self, source: ModelSource) -> LoadedGraph:
        """Load a version, and return it when it can take requests. Raises PipelineError."""
        backend = self._backend(source.config)
        config = await backend.complete(source)
        fill_in_batching(config)
        check(config, self._cards)
        source = msgspec.structs.replace(source, config=config)
        if backend.serves_graph:  # of an ensemble, which asks the loop's models
            graph = backend.graph(source)
        else:
            graph = await asyncio.to_thread(backend.graph, source)
        settings = self._configured(backend, source, graph)
        key = source.key or source.name
        names: ModelNames = None, [key]
        if backend.serves_graph:
            names = key, [None] * len(graph.ops)
        labels = {**backend.labels(source), **await asyncio.to_thread(_labels, source)}
        if not backend.serves_graph:
            graph.ops[0].pipeline_warm_up = await asyncio.to_thread(samples_of, source)
        model = RepositoryModel(names, str(source.version), config, labels, backend.output_checks)
        replica, word, place = self._replica, _question_to(model), None
        if replica is not None:
            place = GraphPlace(replica.number, replica.count, replica.number, replica.asking(word))
        served = LoadedGraph(
            *(None, graph, settings, PredictorLoader(source.folder)),
            place=place,
            model=model,
            processes=self._processes,
            share=self._share,
        )
        await asyncio.to_thread(served.fork)
        try:
            served.open(self._on_readiness)
            await served.load()
        except BaseException:
            await self._close(served)
            raise
        if replica is not None:
            answer = served.observation.answer
            replica.answers[word] = lambda text, number: answer(text)
        return served

    def _backend(self, config: ModelConfig) -> Backend:
        """Return the backend of a model. Raises ConfigError: there is no backend of that name."""
        name = ENSEMBLE if config.platform == ENSEMBLE else config.backend
        if name not in self._backends:
            backend = self._find(name)
            self._backends[name] = backend(self._models) if isinstance(backend, type) else backend
        return self._backends[name]

    def _find(self, name: str) -> Any:
        """Return a backend of the registry, or of the folder. Raises ConfigError: unknown name."""
        if registry.known_as("backends", name) == name:
            return registry.find("backends", name)
        file = self._backend_directory / name / "model.py"
        if Path(name).name == name and name not in ("", "..") and file.is_file():
            return PythonBackend(file)
        known = ", ".join(sorted(registry.names("backends")))
        raise ConfigError(
            f"unable to find backend library for backend '{name}', try specifying runtime on the "
            f"model configuration: there is {known}, and no {file}"
        )

    def _configured(self, backend: Backend, source: ModelSource, graph: Graph) -> ServiceConfig:
        """Give the Ops their configuration, and return that of all."""
        of_op = {} if backend.serves_graph else op_settings(source.config)
        of_op |= backend.settings(source)
        if backend.workers:
            of_op["workers"] = backend.workers
        keeps = {"response_cache": source.config.response_cache.enable}
        of_graph: dict[str, Any] = {"op": {source.name: of_op}}
        if backend.serves_graph:
            of_graph |= keeps
        else:
            of_op |= keeps
        metrics = {**self._settings.get("metrics", {}), **metrics_settings(source.config)}
        config = load_config(yml_dict={**self._settings, "metrics": metrics, **of_graph})
        for op in graph.all_ops:
            configure_op(op, resolve_op(op.name, op.pipeline_given, config))
        check_hooks(graph.all_ops)
        return config

    async def change(self, served: LoadedGraph, source: ModelSource) -> bool:
        """Give a version the number of instances that its configuration says, while it serves.

        Returns False if it has to be reloaded: they are on other devices, or are of several kinds.
        Raises PipelineError: they cannot start; nothing has changed.
        """
        before, config = served.model_config, source.config
        op = served.graph.ops[0]
        count = max(1, instances_of(config))
        if (
            before is None
            or self._backend(config).serves_graph
            or kinds_of_instances(before) != kinds_of_instances(config)
            or len(kinds_of_instances(config)) > 1
            or not can_be_resized(op, count)
        ):
            return False
        check(config, self._cards)
        self._backend(config).settings(source)
        if count != op.pipeline_config.concurrency:
            await served.resize(op, count)
        changed = ModelConfig()
        changed.CopyFrom(before)
        del changed.instance_group[:]
        changed.instance_group.extend(config.instance_group)
        changed.version_policy.CopyFrom(config.version_policy)
        served.model_config = changed
        return True

    async def end(self, served: LoadedGraph) -> None:
        """Let a version that gets no more requests finish its current ones, and end it."""
        observation, earlier = served.observation, self._share.earlier
        earlier.ending(key_of_model(served.names), observation)
        try:
            await self._close(served)
        finally:
            earlier.ended(observation)

    async def _close(self, served: LoadedGraph) -> None:
        served.leave()
        await served.unload(self._grace_s)
        served.observation.stop_soon()
        await served.observation.close()


def _question_to(model: RepositoryModel) -> str:
    """Return the word that questions to a version of a model begin with."""
    return f"model/{quote(key_of_model(model.names))}/{model.version}"


def _labels(source: ModelSource) -> dict[str, list[bytes]]:
    """Return the lines of the files that name an output's classes, as Triton cuts them.

    A line ends with a line feed and with nothing else; what is in it need be no UTF-8.

    Raises ConfigError: there is no such file.
    """
    labels = {}
    for output in source.config.output:
        if output.label_filename:
            file = source.folder / output.label_filename
            try:
                labels[output.name] = file.read_bytes().removesuffix(b"\n").split(b"\n")
            except OSError as error:
                raise ConfigError(
                    f"model '{source.name}': label_filename of output '{output.name}': {error}"
                ) from error
    return labels
