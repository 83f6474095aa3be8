"""ModelRepository: everything that the v2 protocol asks of a server, whatever the door."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import msgspec

from pipeline.data import ChannelData
from pipeline.engine.graph import Graph
from pipeline.engine.offload import Offload
from pipeline.engine.sink import Begin, ask
from pipeline.errors import PipelineError
from pipeline.frontends.base import HeaderForwarding
from pipeline.frontends.v2 import model_config as config
from pipeline.frontends.v2.convert import arrays_of, payload_of
from pipeline.frontends.v2.errors import V2Error, V2Status, v2_error
from pipeline.frontends.v2.interface import ModelInterface, Slot
from pipeline.frontends.v2.model import Model, OpModel, PipelineModel
from pipeline.frontends.v2.model_config import VERSION
from pipeline.frontends.v2.parameters import info_of, timeout_of
from pipeline.observe.snapshot import AskAll, ModelCounters, Snapshot
from pipeline.observe.statistics import (
    StatisticsError,
    merge,
    model_names,
    select,
    version_number,
)
from pipeline.op import Op
from pipeline.predictors.metadata import ModelMetadata
from pipeline.proto.pipeline.large import LargeResponse
from pipeline.proto.slices import SHORT_BYTES, is_short, weight
from pipeline.proto.v2.codec import InferRequest, InferResponse
from pipeline.proto.v2.json import RawInput
from pipeline.proto.v2.raw import Array, about_request

_EXTENSIONS = ("model_repository", "model_configuration", "binary_tensor_data")
_STATISTICS = "statistics"
_SERVER = "pipeline-serving"


class ModelExecutor(Protocol):
    """The part of `Engine` that is asked here."""

    @property
    def begin(self) -> Begin: ...

    def note(self, op: Op) -> ModelMetadata | None: ...


class ModelRepository:
    """The pipeline and its Ops as models of version "1".

    The methods that take a model's name, and a version that may be "", raise V2Error for those
    that are not there.

    Args:
        graph: its Ops are configured.
        service_name: of the server; the pipeline is called like it.
        engine: answers the requests.
        whole: describes the server in all its copies.
        has_statistics: False if they are switched off.
        offload: where large requests and answers are looked into; its owner stops it.
        has_deadline: whether the server limits the time of requests by itself. Only then does it
            heed the `timeout` of a request, as Triton does: there are clients that send anything.
        takes_info: whether a hook or a filter asks what callers say beside their data.
        forwarding: the headers that these get; None: none.

    Raises:
        ConfigError: what an Op declares of its inputs does not fit the graph.
    """

    def __init__(
        self,
        graph: Graph,
        service_name: str | None,
        engine: ModelExecutor,
        whole: AskAll,
        has_statistics: bool = True,
        has_deadline: bool = False,
        offload: Offload | None = None,
        takes_info: bool = False,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self._engine = engine
        self._offload = offload or Offload(threads=0)
        self._whole = whole
        self._has_statistics = has_statistics
        self._has_deadline = has_deadline
        self._takes_info = takes_info
        self._forwarding = forwarding
        name, op_names = model_names(service_name, [op.name for op in graph.ops])
        ops = [
            OpModel(op_name, op, engine.note)
            for op_name, op in zip(op_names, graph.ops, strict=True)
        ]
        pipeline = PipelineModel(name, graph, ops)
        models: list[Model] = [pipeline, *ops]
        self._models = {model.name: model for model in models}

    # Descriptions -----------------------------------------------------------------------

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions, in the words of ServerMetadataResponse."""
        extensions = [*_EXTENSIONS, *([_STATISTICS] if self._has_statistics else [])]
        library = importlib.import_module(__name__.partition(".")[0])
        return {"name": _SERVER, "version": library.__version__, "extensions": extensions}

    def metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """One model's, in the words of ModelMetadataResponse."""
        model = self._model(name, version)
        return config.metadata_of(model.name, model.platform, model.interface)

    def config(self, name: str, version: str = "") -> dict[str, Any]:
        """One model's configuration, in the words of ModelConfig."""
        return self._model(name, version).config()

    def raw_inputs(self, name: str, version: str = "") -> list[RawInput] | None:
        """A model's inputs, for requests that are only data; None if it does not say them."""
        interface = self._model(name, version).interface
        if interface.inputs is None:
            return None
        return [_raw_input(slot, interface.batches) for slot in interface.inputs]

    # States -----------------------------------------------------------------------------

    async def is_ready(self) -> bool:
        """Whether all copies of the server take requests."""
        return _all_ready(await self._whole())

    async def is_model_ready(self, name: str, version: str = "") -> bool:
        """Whether all copies take requests for this model; False for one that is not there."""
        try:
            model = self._model(name, version)
        except V2Error:
            return False
        return _is_ready(model, await self._whole())

    async def index(self, only_ready: bool = False) -> list[dict[str, str]]:
        """All models, in the words of RepositoryIndexResponse.ModelIndex, sorted by name."""
        snapshots = await self._whole()
        found = []
        for name in sorted(self._models):
            is_ready = _is_ready(self._models[name], snapshots)
            if is_ready or not only_ready:
                found.append(_indexed(name, is_ready))
        return found

    async def statistics(self, name: str = "", version: str = "") -> list[ModelCounters]:
        """The counters of one model, or ("") of all, sorted by name."""
        if not self._has_statistics:
            raise V2Error(
                V2Status.UNSUPPORTED, "the statistics are switched off: statistics: False"
            )
        counters = merge(snapshot.models for snapshot in await self._whole())
        try:
            return select(counters, name, version)
        except StatisticsError as error:
            raise V2Error(V2Status.INVALID, str(error)) from error

    # Inference --------------------------------------------------------------------------

    async def infer(
        self,
        request: InferRequest,
        timeout_s: float | None = None,
        traceparent: str = "",
        headers: Callable[[], Iterable[tuple[str | bytes, str | bytes]]] = tuple,
    ) -> InferResponse:
        """Run the pipeline, or one Op alone.

        Args:
            timeout_s: the caller's deadline, from now; where the server has one, too, a `timeout`
                among the request's parameters, in microseconds, applies as well.
            traceparent: the caller's, see `tracing`; "" for none.
            headers: gives the caller's, if they are asked for.

        Raises:
            V2Error: with Triton's texts, for what does not fit the model; and for whatever the
                request ended in.
        """
        model = self._model(request.model_name, request.model_version)
        wanted = [output.name for output in request.outputs]
        # The description may change while the model runs: its workers may load it just then.
        interface = model.interface
        try:
            rows, limit_s = _checked(request, model.name, interface, wanted)
            asked = (timeout_s, limit_s if self._has_deadline else None)
            left_s = min((limit for limit in asked if limit is not None), default=None)
            if is_short(request.inputs):
                raw, target = model.routed(request, rows, traceparent)
            else:
                work = partial(model.routed, request, rows, traceparent)
                (raw, target), left_s = await self._offload.run(work, left_s)
            if self._takes_info:
                chosen = self._forwarding.choose(headers()) if self._forwarding else {}
                target = msgspec.structs.replace(target, info=info_of(request, chosen))
            answer = await ask(self._engine.begin, raw, left_s, target)
            if _is_short(answer):
                outputs = _outputs(answer, model, interface, wanted)
            else:
                read = partial(_outputs, answer, model, interface, wanted)
                outputs, _ = await self._offload.run(read, left_s)
        except PipelineError as error:
            raise v2_error(error) from error
        return InferResponse(model.name, VERSION, request.id, {}, outputs)

    # Names ------------------------------------------------------------------------------

    def _model(self, name: str, version: str) -> Model:
        unknown = f"Request for unknown model: '{name}'"
        model = self._models.get(name)
        if model is None:
            raise V2Error(V2Status.NOT_FOUND, f"{unknown} is not found")
        try:
            number = version_number(version)
        except StatisticsError as error:
            raise V2Error(V2Status.INVALID, str(error)) from error
        if number is not None and str(number) != VERSION:
            raise V2Error(V2Status.NOT_FOUND, f"{unknown} version {number} is not found")
        return model


def _checked(
    request: InferRequest, model: str, interface: ModelInterface, wanted: list[str]
) -> tuple[int, float | None]:
    """(samples, seconds of its own) of a request that fits the model; else raises V2Error."""
    try:
        limit_s = timeout_of(request.parameters)
        interface.check_outputs(model, wanted)
        return interface.check_inputs(model, request.inputs), limit_s
    except V2Error as error:
        raise V2Error(error.kind, f"{about_request(request.id)}{error}") from None


def _is_short(answer: Any) -> bool:
    if isinstance(answer, ChannelData):
        payload = answer.payload
        return is_short(payload) if type(payload) is dict else weight(payload) <= SHORT_BYTES
    return not isinstance(answer, LargeResponse)


def _outputs(
    answer: Any, model: Model, interface: ModelInterface, wanted: list[str]
) -> dict[str, Array]:
    message = answer.message if isinstance(answer, LargeResponse) else answer
    ensemble = model.name if model.op is None else ""
    payload = payload_of(message, interface, ensemble)
    return arrays_of(payload, interface, model.name, wanted)


def _indexed(name: str, is_ready: bool) -> dict[str, str]:
    state = "READY" if is_ready else "UNAVAILABLE"
    # There are clients that want a reason, be it none.
    reason = "" if is_ready else "the server, or a copy of it, takes no requests for it"
    return {"name": name, "version": VERSION, "state": state, "reason": reason}


def _raw_input(slot: Slot, batches: bool) -> RawInput:
    _, *shape = slot.full_shape(batches=True)
    batch = (1,) if batches else ()
    return RawInput(slot.name, slot.datatype, (*batch, *shape))


def _all_ready(snapshots: list[Snapshot]) -> bool:
    return bool(snapshots) and all(snapshot.engine.is_ready for snapshot in snapshots)


def _is_ready(model: Model, snapshots: list[Snapshot]) -> bool:
    """Whether a model takes requests in all copies: one Op may while another does not."""
    if model.op is None:
        return _all_ready(snapshots)
    states = [
        state
        for snapshot in snapshots
        for state in snapshot.engine.ops
        if state.name == model.op.name
    ]
    return bool(states) and all(state.workers.up for state in states)
