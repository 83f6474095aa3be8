"""Models of the v2 protocol, by name and version: the whole pipeline, or only one Op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from pipeline.data import Tensor, declared, max_batch_size_of
from pipeline.engine.graph import Graph
from pipeline.engine.models import ModelEntry, ModelRegistry, OutputChecks
from pipeline.engine.request import RequestTarget
from pipeline.engine.sequences.feeds import hidden_inputs, hidden_outputs
from pipeline.errors import ConfigError, InputError
from pipeline.frontends.v2.control import RepositoryControl
from pipeline.frontends.v2.convert import request_of, values_of
from pipeline.frontends.v2.errors import V2Error, V2Status, invalid, v2_error
from pipeline.frontends.v2.interface import (
    ModelInterface,
    Slot,
    interface_of,
    interface_of_config,
    slots_of,
)
from pipeline.frontends.v2.model_config import config_of_op, config_of_pipeline, step_of
from pipeline.observe.statistics import StatisticsError, version_number
from pipeline.op import Op, overrides
from pipeline.predictors.base import ModelMetadata
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.proto.v2.json import RawInput
from pipeline.proto.v2.raw import Array, with_text

MetadataOf = Callable[[Op], ModelMetadata | None]
"""`Engine.note`: of the model that an Op's workers have loaded."""

_EMPTY = Request()  # for hooks that expect a Request


class PipelineModel:
    """The whole graph; its callers see it as an ensemble of Triton.

    Its inputs are the RequestOp's declared ones; its outputs the ResponseOp's or, if that declares
    none, the last Op's. `is_decoupled`: it answers in parts.
    """

    op: Op | None = None
    platform = "ensemble"

    def __init__(
        self, name: str, graph: Graph, steps: Sequence[Model], is_decoupled: bool = False
    ) -> None:
        self.name = name
        self.is_decoupled: bool = is_decoupled
        self._graph = graph
        self._steps = steps
        read, write = graph.request_op, graph.response_op
        outputs = declared(write, "output_tensors") or declared(graph.last_op, "output_tensors")
        self.interface: ModelInterface = ModelInterface(
            slots_of(declared(read, "input_tensors")), slots_of(outputs), max_batch_size_of(read)
        )
        self._unpacks = overrides(read, "unpack_request_package")
        self._packs = overrides(write, "pack_response_package")

    def config(self) -> dict[str, Any]:
        """Return its configuration, in the words of ModelConfig."""
        steps = [
            step_of(model.name, model.op, self._graph)
            for model in self._steps
            if model.op is not None
        ]
        return config_of_pipeline(self.name, self.interface, steps, self.is_decoupled)

    def routed(
        self, inputs: Mapping[str, Array], request_id: str, rows: int, traceparent: str
    ) -> tuple[Request, RequestTarget]:
        """Return the engine's input, if the inputs fit. Raises V2Error, PipelineError."""
        values = values_of(inputs, self.interface)
        raw, payload = _EMPTY, None
        if self._unpacks:
            raw = request_of(values, request_id)
        else:
            payload = values
        return raw, RequestTarget(
            payload=payload, wants_response=self._packs, rows=rows, traceparent=traceparent
        )


class OpModel:
    """Only one Op.

    If the Op declares inputs, they go to `preprocess`. Otherwise, if its workers have loaded a
    model, the inputs are the model's and go to `process`. `is_decoupled`: it answers in parts.

    Raises:
        ConfigError: the Op's declarations do not fit the graph.
    """

    def __init__(
        self, name: str, op: Op, metadata_of: MetadataOf, is_decoupled: bool = False
    ) -> None:
        self.name = name
        self.is_decoupled: bool = is_decoupled
        self.op: Op = op
        self._metadata_of = metadata_of
        self._inputs = declared(op, "input_tensors")
        self._producers = [producer.name for producer in op.get_input_ops()]
        _check_sources(op, self._inputs, self._producers)
        self._noted: ModelMetadata | None = None
        self._of_note: ModelInterface | None = None
        self._declared: ModelInterface | None = None
        if self._inputs:
            outputs = slots_of(declared(op, "output_tensors"))
            self._declared = ModelInterface(slots_of(self._inputs), outputs, max_batch_size_of(op))

    @property
    def platform(self) -> str:
        note = self._metadata_of(self.op)
        return (note.platform if note else "") or "python"

    @property
    def interface(self) -> ModelInterface:
        return self._declared or self._own or ModelInterface()

    @property
    def _own(self) -> ModelInterface | None:
        """Return the interface of the model that its workers have loaded."""
        note = self._metadata_of(self.op)
        if note is not self._noted:
            self._noted, self._of_note = note, None if note is None else self._read(note)
        return self._of_note

    def _read(self, note: ModelMetadata) -> ModelInterface | None:
        config = self.op.pipeline_config
        fetch = config.fetch_list or config.local_service_conf.fetch_list
        if config.sequence.state or config.sequence.controls or config.batch_input:
            hidden = hidden_inputs(self.op), hidden_outputs(self.op)
            note = msgspec.structs.replace(
                note,
                inputs=[tensor for tensor in note.inputs if tensor.name not in hidden[0]],
                outputs=[tensor for tensor in note.outputs if tensor.name not in hidden[1]],
            )
        return interface_of(note, config.batch_size, fetch, max_batch_size_of(self.op))

    def config(self) -> dict[str, Any]:
        """Return its configuration, in the words of ModelConfig."""
        settings = self.op.pipeline_config
        return config_of_op(self.name, self.platform, self.interface, settings, self.is_decoupled)

    def routed(
        self, inputs: Mapping[str, Array], request_id: str, rows: int, traceparent: str
    ) -> tuple[Request, RequestTarget]:
        """Return the engine's input, if the inputs fit. Raises V2Error, PipelineError."""
        if self._declared is not None:
            payload: Any = self._input_dicts(values_of(inputs, self._declared))
        elif self._own is not None:
            payload = {name: with_text(array) for name, array in inputs.items()}
        else:
            raise invalid(
                f"model '{self.name}' cannot be asked by itself: neither does the Op "
                f"{self.op.name!r} declare input_tensors, nor have its workers loaded a model "
                "that tells its inputs. Give its class "
                "input_tensors = [Tensor(name, datatype, shape)], or ask the pipeline",
            )
        feeds = self._declared is None
        route = RequestTarget(
            self.op, payload, feeds, wants_response=False, rows=rows, traceparent=traceparent
        )
        return _EMPTY, route

    def _input_dicts(self, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the input of `preprocess`: values by input Op and name."""
        inputs: dict[str, dict[str, Any]] = {producer: {} for producer in self._producers}
        for tensor in self._inputs:
            source = tensor.source or self._producers[0]
            inputs[source][tensor.name] = values[tensor.full_name]
        return inputs


class ConfiguredModel:
    """A model of a repository, with a configuration.

    `process` of the Op gets its inputs unchanged; without an `op` it is the whole graph. `labels`
    are names of classes, by output.
    """

    def __init__(
        self,
        config: ModelConfig,
        op: Op | None,
        labels: Mapping[str, Sequence[bytes]],
        checks: OutputChecks,
    ) -> None:
        self.name: str = config.name
        self.labels: Mapping[str, Sequence[bytes]] = labels
        self.op: Op | None = op
        self.is_decoupled: bool = config.model_transaction_policy.decoupled
        self.platform: str = config.platform or config.backend
        self.interface: ModelInterface = interface_of_config(config, checks)

    def routed(
        self, inputs: Mapping[str, Array], request_id: str, rows: int, traceparent: str
    ) -> tuple[Request, RequestTarget]:
        """Return the engine's input."""
        payload = {name: with_text(array) for name, array in inputs.items()}
        route = RequestTarget(
            self.op,
            payload,
            self.op is not None,
            wants_response=False,
            rows=rows,
            traceparent=traceparent,
        )
        return _EMPTY, route


Model = PipelineModel | OpModel | ConfiguredModel
"""One model of the server; without an `op` it is the whole pipeline."""


def _check_sources(op: Op, inputs: Sequence[Tensor], producers: Sequence[str]) -> None:
    seen, reads = set(), ", ".join(map(repr, producers))
    for tensor in inputs:
        what = f"Op {op.name!r}: input_tensors: {tensor.name!r}"
        if tensor.full_name in seen:
            raise ConfigError(f"{what} is there twice")
        seen.add(tensor.full_name)
        if tensor.source and tensor.source not in producers:
            raise ConfigError(f"{what} has the source {tensor.source!r}, but the Op reads {reads}")
        if not tensor.source and len(producers) > 1:
            raise ConfigError(
                f"{what} has no source, and the Op reads {reads}: say which of them "
                "gives it, Tensor(..., source=<name>)"
            )


# By name and version ----------------------------------------------------------------------------


class ModelViews:
    """The models of a server for callers of v2.

    The methods with a model's name, and a version that may be "", raise V2Error for an unknown
    model or version.

    Args:
        registry: of the server's models.
        control: of the repository that they are loaded from, or None.

    Raises:
        ConfigError: an Op's declared inputs do not fit the graph.
    """

    def __init__(self, registry: ModelRegistry, control: RepositoryControl | None = None) -> None:
        self.registry: ModelRegistry = registry
        self._control = control
        self._views: dict[ModelEntry, Model] = {}
        for entry in registry.entries():
            self.view(entry)

    def view(self, entry: ModelEntry) -> Model:
        """Return a model with its interface, which is made at the first request for it."""
        if entry not in self._views:
            if entry.served.model_config is not None:
                known = set(self.registry.entries())
                self._views = {key: self._views[key] for key in self._views if key in known}
                self._views[entry] = ConfiguredModel(
                    entry.served.model_config,
                    entry.op,
                    entry.served.labels,
                    entry.served.output_checks,
                )
                return self._views[entry]
            is_decoupled = entry.served.engine.executor.is_decoupled(entry.op)
            if entry.op is None:
                _, *ops = self.registry.members(entry.served)
                steps = [self.view(op) for op in ops]
                graph = entry.served.graph
                self._views[entry] = PipelineModel(entry.name, graph, steps, is_decoupled)
            else:
                note = entry.served.engine.note
                self._views[entry] = OpModel(entry.name, entry.op, note, is_decoupled)
        return self._views[entry]

    def has(self, name: str) -> bool:
        """Return whether a model of this name exists, in any version."""
        try:
            return bool(self.registry.versions(name))
        except InputError:  # every request for the model gets this error
            return False

    def interface(self, name: str, version: str = "") -> ModelInterface:
        """Return a model's inputs and outputs."""
        return self.view(self.entry(name, version)).interface

    def raw_inputs(self, name: str, version: str = "") -> list[RawInput] | None:
        """Return a model's inputs, for requests that are only data; None if it declares none."""
        interface = self.interface(name, version)
        if interface.inputs is None:
            return None
        return [_raw_input(slot, interface.batches) for slot in interface.inputs]

    def is_decoupled(self, name: str, version: str = "") -> bool:
        """Return whether a model answers in parts."""
        return self.view(self.entry(name, version)).is_decoupled

    def check_unary(self, name: str, version: str, door: str) -> None:
        """Raise V2Error for a model that answers in parts, which the `door` cannot return."""
        if self.is_decoupled(name, version):
            text = f"{door} doesn't support models with decoupled transaction policy"
            raise V2Error(V2Status.UNSUPPORTED, text)

    def entry(self, name: str, version: str = "") -> ModelEntry:
        """Return a version of a model, or ("") the latest one."""
        unknown = f"Request for unknown model: '{name}'"
        number = number_of(version)
        versions = self.registry.versions(name)
        if not versions and (self._control is None or not self._control.has(name)):
            raise V2Error(V2Status.NOT_FOUND, f"{unknown} is not found")
        if number is None:
            latest = self.registry.latest(name)
            if latest is not None:
                return latest
            if self.registry.is_repository:
                raise V2Error(V2Status.NOT_FOUND, f"{unknown} has no available versions")
            wanted = max(versions, key=int)
        else:
            wanted = str(number)
        entry = versions.get(wanted)
        is_known = self._control is not None and self._control.has(name, int(wanted))
        if entry is None and not is_known:
            raise V2Error(V2Status.NOT_FOUND, f"{unknown} version {number} is not found")
        if entry is None or entry.is_unloaded:
            text = f"{unknown} version {wanted} is not at ready state"
            raise V2Error(V2Status.UNAVAILABLE, text)
        return entry


def number_of(version: str) -> int | None:
    """Return the requested version; None: any. Raises V2Error: it is not a number."""
    try:
        return version_number(version)
    except StatisticsError as error:
        raise v2_error(error) from error


def _raw_input(slot: Slot, batches: bool) -> RawInput:
    _, *shape = slot.full_shape(batches=True)
    batch = (1,) if batches else ()
    return RawInput(slot.name, slot.datatype, (*batch, *shape))
