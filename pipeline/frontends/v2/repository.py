"""ModelRepository: everything that the v2 protocol asks of a server, by HTTP and gRPC."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from pipeline.data import ChannelData, RequestInfo
from pipeline.engine.convoy import Arrays
from pipeline.engine.model_answers import PARAMETERS, error_in, is_last_part
from pipeline.engine.models import ModelEntry, ModelRegistry
from pipeline.engine.offload import Offload
from pipeline.engine.request import Begin, RequestTarget, ask
from pipeline.errors import ConfigError, InputError, PipelineError
from pipeline.frontends.base import HeaderForwarding, takes_info
from pipeline.frontends.parts import answers_to
from pipeline.frontends.v2 import model_config as config
from pipeline.frontends.v2.classification import classes_of, classes_wanted
from pipeline.frontends.v2.control import Overrides, RepositoryControl
from pipeline.frontends.v2.convert import arrays_of, payload_of
from pipeline.frontends.v2.convoys import Muster, Routed
from pipeline.frontends.v2.errors import V2Error, V2Status, v2_error
from pipeline.frontends.v2.interface import ModelInterface, Slot
from pipeline.frontends.v2.log_settings import LogSettings
from pipeline.frontends.v2.model import ConfiguredModel, Model, OpModel, PipelineModel
from pipeline.frontends.v2.parameters import OF_SEQUENCES, info_of, timeout_of
from pipeline.frontends.v2.shared_memory import opened, stored
from pipeline.frontends.v2.shared_regions import SharedRegions
from pipeline.frontends.v2.side_by_side import Place
from pipeline.frontends.v2.unsupported import NO_LOADING
from pipeline.observe.snapshot import ModelCounters, Snapshot
from pipeline.observe.statistics import StatisticsError, merge, select, version_number
from pipeline.observe.traces.settings import TraceSettings
from pipeline.observe.traces.traces import HTTP, Asked, FrontendStages, RequestTraces
from pipeline.proto.pipeline.large import LargeResponse
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.proto.slices import SHORT_BYTES, Limits, is_short, weight
from pipeline.proto.v2.codec import InferRequest, InferResponse, Parameters, SharedPlace
from pipeline.proto.v2.config_json import as_json
from pipeline.proto.v2.json import RawInput
from pipeline.proto.v2.raw import Array, about_request

_EXTENSIONS = (
    *("classification", "sequence", "model_repository", "schedule_policy"),
    *("model_configuration", "binary_tensor_data", "parameters"),
)
_OF_REPOSITORY = "model_repository(unload_dependents)"
_STATISTICS = "statistics"
_TRACE, _LOGGING = "trace", "logging"
_SERVER = "pipeline-serving"


class OutputsAndParameters(dict[str, Array]):
    """Outputs of a model that says more in its answer."""

    def __init__(self, outputs: dict[str, Array], parameters: Parameters) -> None:
        super().__init__(outputs)
        self.parameters: Parameters = parameters


class FittedRequest(msgspec.Struct, frozen=True):
    """A request that fits its model.

    Args:
        wanted: the outputs that it asks for; empty: all.
        rows: samples that it brings.
        limit_s: the `timeout` among its parameters, where it counts.
        changes: those of the registry when it was found to fit.
        classes: how many are wanted of an output, of those that are wanted as classes.
    """

    entry: ModelEntry
    model: Model
    interface: ModelInterface
    wanted: list[str]
    rows: int
    limit_s: float | None
    changes: int = 0
    classes: Mapping[str, int] = {}

    def left_of(self, timeout_s: float | None) -> float | None:
        """Return the time that it has, of its caller's and its own."""
        if timeout_s is None or self.limit_s is None:
            return self.limit_s if timeout_s is None else timeout_s
        return min(timeout_s, self.limit_s)

    def outputs(self, answer: Any) -> dict[str, Array]:
        """Return the outputs in an engine's answer, maybe with parameters. Raises V2Error."""
        message = answer.message if isinstance(answer, LargeResponse) else answer
        model, interface = self.model, self.interface
        ensemble = model.name if isinstance(model, PipelineModel) else ""
        payload = payload_of(message, interface, ensemble)
        may_lack = isinstance(model, ConfiguredModel)
        outputs = arrays_of(payload, interface, model.name, self.wanted, may_lack)
        for name in self.classes.keys() & outputs.keys():
            labels = model.labels.get(name, ()) if isinstance(model, ConfiguredModel) else ()
            count = self.classes[name]
            outputs[name] = classes_of(outputs[name], count, labels, interface.batches)
        told = payload.get(PARAMETERS) if may_lack else None
        return OutputsAndParameters(outputs, told) if told else outputs

    def failed(self, request_id: str, error: V2Error) -> InferResponse:
        """Return an answer that is an error, of several."""
        response = InferResponse(self.entry.name, self.entry.version, request_id)
        return msgspec.structs.replace(response, error=error)

    def response(
        self, request_id: str, asked: Parameters, outputs: dict[str, Array]
    ) -> InferResponse:
        """Return what a caller gets, who has `asked` so; an ensemble repeats its sequence."""
        entry = self.entry
        told: Parameters = {}
        if entry.op is None and isinstance(self.model, ConfiguredModel):
            told = {name: asked.get(name, default) for name, default in OF_SEQUENCES.items()}
        if isinstance(outputs, OutputsAndParameters):
            told |= outputs.parameters
        return InferResponse(entry.name, entry.version, request_id, told, outputs)


class ModelRepository:
    """The models of a server as the v2 protocol sees them.

    The methods that take a model's name, and a version that may be "", raise V2Error for those
    that are not there.

    Args:
        registry: has the models.
        has_statistics: False if they are switched off.
        offload: where large requests and answers are looked into; its owner stops it.
        forwarding: the headers that hooks and filters get; None: none.
        control: of a repository, from which models are loaded; None: there is none.
        regions: shared memory of callers; None: there is none.
        limits: of text in it.
        log_settings: what can be changed of the log while the server runs.
        traces: of requests whose turn it is; None: there are none.

    Raises:
        ConfigError: what an Op declares of its inputs does not fit the graph.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        has_statistics: bool = True,
        offload: Offload | None = None,
        forwarding: HeaderForwarding | None = None,
        control: RepositoryControl | None = None,
        regions: SharedRegions | None = None,
        limits: Limits | None = None,
        log_settings: LogSettings | None = None,
        traces: RequestTraces | None = None,
    ) -> None:
        self._registry = registry
        self._control = control
        self.regions: SharedRegions = regions or SharedRegions()
        self.log_settings: LogSettings = log_settings or LogSettings()
        self._traces = traces or RequestTraces()
        self._limits = limits or Limits()
        self._offload = offload or Offload(threads=0)
        self._has_statistics = has_statistics
        self._forwarding = forwarding
        self._takes_info = registry.is_repository or takes_info(registry)
        self._models: dict[ModelEntry, Model] = {}
        for entry in registry.entries():
            self._view(entry)

    def _view(self, entry: ModelEntry) -> Model:
        """Return a model with its interface, made when it is first asked for."""
        if entry not in self._models:
            if entry.served.model_config is not None:
                known = set(self._registry.entries())
                self._models = {each: self._models[each] for each in self._models if each in known}
                self._models[entry] = ConfiguredModel(
                    entry.served.model_config,
                    entry.op,
                    entry.served.labels,
                    entry.served.checks_output_shapes,
                )
                return self._models[entry]
            is_decoupled = entry.served.engine.executor.is_decoupled(entry.op)
            if entry.op is None:
                _, *ops = self._registry.members(entry.served)
                steps = [self._view(each) for each in ops]
                graph = entry.served.graph
                self._models[entry] = PipelineModel(entry.name, graph, steps, is_decoupled)
            else:
                note = entry.served.engine.note
                self._models[entry] = OpModel(entry.name, entry.op, note, is_decoupled)
        return self._models[entry]

    # Descriptions -----------------------------------------------------------------------

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions, in the words of ServerMetadataResponse."""
        counted = [_STATISTICS] if self._has_statistics else []
        extensions = [*_EXTENSIONS, *counted, _TRACE, _LOGGING]
        if self._control is not None:
            extensions.insert(extensions.index("model_repository") + 1, _OF_REPOSITORY)
        if self.regions.is_enabled:
            extensions.insert(extensions.index("binary_tensor_data"), "system_shared_memory")
        library = importlib.import_module(__name__.partition(".")[0])
        name = _SERVER if self._control is None else self._control.server_name
        return {"name": name, "version": library.__version__, "extensions": extensions}

    def metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """Return one model's, in the words of ModelMetadataResponse."""
        model = self._view(self._entry(name, version))
        ready = [each for each in self._registry.versions(name).values() if not each.is_unloaded]
        versions = sorted((entry.version for entry in ready), key=int)
        if version and self._registry.is_repository:
            versions = [str(version_number(version))]
        return config.metadata_of(model.name, model.platform, model.interface, versions)

    def config(self, name: str, version: str = "") -> dict[str, Any]:
        """Return one model's configuration, in the words of ModelConfig."""
        entry = self._entry(name, version)
        if entry.served.model_config is not None:  # its instances may have changed
            return as_json(entry.served.model_config)
        view = self._view(entry)
        assert not isinstance(view, ConfiguredModel), "it has a configuration"
        return view.config()

    def interface(self, name: str, version: str = "") -> ModelInterface:
        """Return a model's inputs and outputs."""
        return self._view(self._entry(name, version)).interface

    def raw_inputs(self, name: str, version: str = "") -> list[RawInput] | None:
        """Return a model's inputs, for requests that are only data; None if it declares none."""
        interface = self.interface(name, version)
        if interface.inputs is None:
            return None
        return [_raw_input(slot, interface.batches) for slot in interface.inputs]

    # States -----------------------------------------------------------------------------

    @property
    def is_live(self) -> bool:
        """Return whether the server is to be left running."""
        return self._control is None or self._control.is_live

    async def is_ready(self) -> bool:
        """Return whether all replicas of the server take requests."""
        if self._control is not None and not self._control.is_ready:
            return False
        if self._control is not None and not self._registry.graphs():
            return True
        found = [_all_ready(await served.snapshots()) for served in self._registry.graphs()]
        return bool(found) and all(found)

    async def is_model_ready(self, name: str, version: str = "") -> bool:
        """Return whether all replicas take requests for this model; False for an unknown one."""
        try:
            entry = self._entry(name, version)
        except V2Error:
            return False
        return _is_ready(entry, await entry.served.snapshots())

    async def index(self, only_ready: bool = False) -> list[dict[str, str]]:
        """Return all models, in the words of RepositoryIndexResponse.ModelIndex, sorted by name."""
        if self._control is not None:
            indexed = await self._control.index()
            shown = (each for each in indexed if each.state == "READY" or not only_ready)
            return [msgspec.to_builtins(each) for each in shown]
        snapshots = {served: await served.snapshots() for served in self._registry.graphs()}
        found = []
        for entry in sorted(self._registry.entries(), key=lambda entry: entry.name):
            is_ready = _is_ready(entry, snapshots.get(entry.served, ()))
            if is_ready or not only_ready:
                found.append(_indexed(entry, is_ready))
        return found

    async def statistics(self, name: str = "", version: str = "") -> list[ModelCounters]:
        """Return the counters of one model, or ("") of all, sorted by name."""
        if not self._has_statistics:
            raise V2Error(
                V2Status.UNSUPPORTED, "the statistics are switched off: statistics: False"
            )
        graphs = self._registry.graphs()
        snapshots = [each for served in graphs for each in await served.snapshots()]
        counters = merge(snapshot.models for snapshot in snapshots)
        try:
            return select(counters, name, version)
        except StatisticsError as error:
            raise v2_error(error) from error

    # Traces -----------------------------------------------------------------------------

    async def trace_settings(
        self, name: str, changes: Callable[[], Mapping[str, Any] | None]
    ) -> TraceSettings:
        """Return the settings of traces of a model, or ("") of all, after changes, if there are.

        These are asked for when the model is known to be there. Raises V2Error, in Triton's words;
        nothing is changed then.
        """
        if name and not await self.is_model_ready(name):
            raise V2Error(V2Status.INVALID, f"Request for unknown model : {name}")
        changed = changes()
        if changed is not None:
            if self._traces.is_fixed:
                text = "trace settings can not be changed where a server has several replicas"
                raise V2Error(V2Status.UNSUPPORTED, text)
            try:
                self._traces.change(name, changed)
            except ConfigError as error:
                raise V2Error(V2Status.INVALID, str(error)) from error
        return self._traces.register.sampler(name).settings

    # Loading ----------------------------------------------------------------------------

    async def load(self, name: str, overrides: Overrides) -> None:
        """Load a model of the repository; returns when it is ready. Raises V2Error."""
        await self._controlled().load(name, overrides)

    async def unload(self, name: str, with_dependents: bool = False) -> None:
        """Unload a model of the repository. Raises V2Error."""
        await self._controlled().unload(name, with_dependents)

    def _controlled(self) -> RepositoryControl:
        if self._control is None:
            raise V2Error(V2Status.UNAVAILABLE, NO_LOADING)
        return self._control

    # Inference --------------------------------------------------------------------------

    async def infer(
        self,
        request: InferRequest,
        timeout_s: float | None = None,
        traceparent: str = "",
        headers: Callable[[], Iterable[tuple[str | bytes, str | bytes]]] = tuple,
        door: FrontendStages = HTTP,
    ) -> InferResponse:
        """Run the pipeline, or one Op alone.

        Args:
            timeout_s: the caller's deadline, from now; where the server has one, too, a `timeout`
                among the request's parameters, in microseconds, applies as well.
            traceparent: the caller's, see `tracing`; "" for none.
            headers: gives the caller's, if they are asked for.
            door: where it came in, for its trace.

        Raises:
            V2Error: with Triton's texts, for what does not fit the model; and for whatever the
                request ended in.
        """
        try:
            async with self._opened(request, timeout_s) as (request, timeout_s):
                fitted = self.fit(request)
                asked = await self._asked(fitted, request, timeout_s, traceparent, headers)
                begin = self.begin_of(fitted.entry, request.id, request.inputs, door)
                answer = await ask(begin, *asked)
                said = request.id, request.parameters
                response = await self._response(fitted, said, answer, asked[1])
                return await self._stored(response, request.places)
        except PipelineError as error:
            raise v2_error(error) from error

    async def answers(
        self,
        request: InferRequest,
        timeout_s: float | None = None,
        traceparent: str = "",
        headers: Callable[[], Iterable[tuple[str | bytes, str | bytes]]] = tuple,
        entrance: Place | None = None,
        door: FrontendStages = HTTP,
    ) -> AsyncGenerator[tuple[InferResponse, bool], None]:
        """Run as `infer` does; yield each answer, and whether others follow it, or may.

        See `answers_to`; a part may say that it is the last. An error, also one behind some parts,
        is raised; one that is a part is in its answer. With an `entrance` the engine is asked when
        those before have asked it.
        """
        try:
            async with self._opened(request, timeout_s) as (request, timeout_s):
                fitted, said = self.fit(request), (request.id, request.parameters)
                request_id, places = request.id, request.places
                asked = await self._asked(fitted, request, timeout_s, traceparent, headers)
                begin = self.begin_of(fitted.entry, request_id, request.inputs, door)
                del request
                if entrance is not None:
                    await entrance.come()
                    begin = entrance.leaving(begin)
                found = answers_to(begin, *asked)
                async with aclosing(found):
                    async for answer, is_part in found:
                        payload = answer.payload if type(answer) is ChannelData else None
                        failure = error_in(payload)
                        if failure is not None:
                            yield fitted.failed(request_id, v2_error(failure)), is_part
                            continue
                        goes_on = is_part and not is_last_part(payload)
                        response = await self._response(fitted, said, answer)
                        yield await self._stored(response, places), goes_on
        except PipelineError as error:
            raise v2_error(error) from error

    def begin_of(
        self, entry: ModelEntry, request_id: str, inputs: Mapping[str, Array], door: FrontendStages
    ) -> Begin:
        """Return what begins a request at a model, and has it traced, if it is its turn."""
        if self._traces.is_off:
            return entry.served.engine.begin
        return self._traces.begin_of(Asked(entry, request_id, inputs), door)

    @asynccontextmanager
    async def _opened(
        self, request: InferRequest, left_s: float | None
    ) -> AsyncIterator[tuple[InferRequest, float | None]]:
        """Give a request with what is in shared memory, which is kept, and the time left."""
        names = request.regions if request.shared or request.outputs else ()
        if not names:
            yield request, left_s
            return
        with self.regions.held(names):
            read = partial(opened, request, self.regions, self._limits)
            del request
            yield await self._offload.run(read, left_s)

    async def _stored(
        self, response: InferResponse, places: Mapping[str, SharedPlace]
    ) -> InferResponse:
        """Put outputs in shared memory, where their caller has places for them."""
        if not places:
            return response
        return (await self._offload.run(partial(stored, response, places, self.regions)))[0]

    async def _asked(
        self,
        fitted: FittedRequest,
        request: InferRequest,
        timeout_s: float | None,
        traceparent: str,
        headers: Callable[[], Iterable[tuple[str | bytes, str | bytes]]],
    ) -> tuple[Request, float | None, RequestTarget]:
        """Return what the engine is asked."""
        left_s = fitted.left_of(timeout_s)
        said = (request.inputs, request.id, request.parameters)
        route = partial(self.route, fitted, *said, traceparent, headers)
        if is_short(request.inputs):
            raw, target = route()
        else:
            (raw, target), left_s = await self._offload.run(route, left_s)
        return raw, left_s, target

    async def _response(
        self,
        fitted: FittedRequest,
        said: tuple[str, Parameters],
        answer: Any,
        left_s: float | None = None,
    ) -> InferResponse:
        """Return what a caller gets for an engine's answer; `said`: its id and parameters."""
        if is_short_answer(answer):
            outputs = fitted.outputs(answer)
        else:
            outputs, _ = await self._offload.run(partial(fitted.outputs, answer), left_s)
        return fitted.response(*said, outputs)

    def is_decoupled(self, name: str, version: str = "") -> bool:
        """Return whether a model answers in parts."""
        return self._view(self._entry(name, version)).is_decoupled

    def check_unary(self, name: str, version: str, door: str) -> None:
        """Raise V2Error for a model that answers in parts, for which the `door` has no place."""
        if self.is_decoupled(name, version):
            text = f"{door} doesn't support models with decoupled transaction policy"
            raise V2Error(V2Status.UNSUPPORTED, text)

    @property
    def is_repository(self) -> bool:
        """True if its models come from a repository, as Triton's do."""
        return self._registry.is_repository

    def has(self, name: str) -> bool:
        """Return whether there is a model of this name, in any version."""
        try:
            return bool(self._registry.versions(name))
        except InputError:  # which whoever asks for it is told
            return False

    def fit(self, request: InferRequest) -> FittedRequest:
        """Return what the model is asked. Raises V2Error for what does not fit it."""
        entry = self._entry(request.model_name, request.model_version)
        model = self._view(entry)
        wanted = [output.name for output in request.outputs]
        # The description may change while the model runs: its workers may load it just then.
        interface = model.interface
        try:
            limit_s = timeout_of(request.parameters)
            classes = classes_wanted(request.outputs)
            interface.check_outputs(model.name, wanted)
            rows = interface.check_inputs(model.name, request.inputs)
        except V2Error as error:
            raise V2Error(error.kind, f"{about_request(request.id)}{error}") from None
        if entry.served.config.timeout_s is None:
            limit_s = None
        changes = self._registry.changes
        return FittedRequest(entry, model, interface, wanted, rows, limit_s, changes, classes)

    def is_current(self, fitted: FittedRequest) -> bool:
        """Return whether `fit` would still find the same model with the same interface."""
        return (
            fitted.changes == self._registry.changes
            and not fitted.entry.is_unloaded
            and fitted.model.interface is fitted.interface
        )

    def route(
        self,
        fitted: FittedRequest,
        inputs: Mapping[str, Array],
        request_id: str,
        parameters: Parameters,
        traceparent: str,
        headers: Callable[[], Iterable[tuple[str | bytes, str | bytes]]],
    ) -> tuple[Request, RequestTarget]:
        """Return what the engine takes. Raises V2Error, PipelineError."""
        raw, target = fitted.model.routed(inputs, request_id, fitted.rows, traceparent)
        if self._takes_info:
            info = self.info(fitted, request_id, parameters, headers)
            target = msgspec.structs.replace(target, info=info)
        return raw, target

    def info(
        self,
        fitted: FittedRequest,
        request_id: str,
        parameters: Parameters,
        headers: Callable[[], Iterable[tuple[str | bytes, str | bytes]]],
    ) -> RequestInfo:
        """Return what a request says beside its data."""
        chosen = self._forwarding.choose(headers()) if self._forwarding else {}
        return info_of(request_id, parameters, chosen, fitted.wanted)

    @property
    def forwards(self) -> bool:
        """Return whether a request's headers are part of what it says."""
        return self._forwarding is not None

    @property
    def lets_muster(self) -> bool:
        """Return whether requests may go on together: none is traced by itself."""
        return self._traces.is_off

    def muster(
        self, fitted: FittedRequest, asks_again: Callable[[Arrays], InferRequest]
    ) -> Muster | None:
        """Return where requests of a form wait for each other; None: each goes by itself.

        `asks_again`: makes another request of such inputs, for a model that was loaded anew.
        """
        engine = fitted.entry.served.engine
        is_many = engine.executor.convoys.rows >= 2 * fitted.rows
        if not (self._registry.is_repository and is_many and fitted.limit_s is None):
            return None

        def successor(inputs: Arrays) -> tuple[Begin, Routed] | None:
            if self.is_current(fitted):
                return None
            try:
                found = self.fit(asks_again(inputs))
            except (PipelineError, V2Error):
                return None
            return found.entry.served.engine.begin, partial(_routed, found.model)

        return Muster(engine, partial(_routed, fitted.model), successor)

    # Names ------------------------------------------------------------------------------

    def _entry(self, name: str, version: str) -> ModelEntry:
        unknown = f"Request for unknown model: '{name}'"
        number = number_of(version)
        versions = self._registry.versions(name)
        if not versions and (self._control is None or not self._control.has(name)):
            raise V2Error(V2Status.NOT_FOUND, f"{unknown} is not found")
        if number is None:
            latest = self._registry.latest(name)
            if latest is not None:
                return latest
            if self._registry.is_repository:
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
    """Return the version that a caller asks for; None: any. Raises V2Error: it is no number."""
    try:
        return version_number(version)
    except StatisticsError as error:
        raise v2_error(error) from error


def _routed(model: Model, inputs: Arrays, rows: int) -> tuple[Any, RequestTarget]:
    """Return what an engine takes, but for what callers say beside it."""
    return model.routed(inputs, "", rows, "")


def is_short_answer(answer: Any) -> bool:
    """Return whether an engine's answer can be looked into on the event loop."""
    if isinstance(answer, ChannelData):
        payload = answer.payload
        return is_short(payload) if type(payload) is dict else weight(payload) <= SHORT_BYTES
    return not isinstance(answer, LargeResponse)


def _indexed(entry: ModelEntry, is_ready: bool) -> dict[str, str]:
    state = "READY" if is_ready else "UNAVAILABLE"
    # There are clients that want a reason, be it none.
    reason = "" if is_ready else "the server, or a copy of it, takes no requests for it"
    if entry.is_unloaded:
        state, reason = entry.state.value, entry.reason
    return {"name": entry.name, "version": entry.version, "state": state, "reason": reason}


def _raw_input(slot: Slot, batches: bool) -> RawInput:
    _, *shape = slot.full_shape(batches=True)
    batch = (1,) if batches else ()
    return RawInput(slot.name, slot.datatype, (*batch, *shape))


def _all_ready(snapshots: Sequence[Snapshot]) -> bool:
    return bool(snapshots) and all(snapshot.engine.is_ready for snapshot in snapshots)


def _is_ready(model: ModelEntry, snapshots: Sequence[Snapshot]) -> bool:
    """Return whether a model takes requests in all replicas: one Op may, and another not."""
    if model.op is None:
        return _all_ready(snapshots)
    states = [
        state
        for snapshot in snapshots
        for state in snapshot.engine.ops
        if state.name == model.op.name
    ]
    return bool(states) and all(state.workers.up for state in states)
