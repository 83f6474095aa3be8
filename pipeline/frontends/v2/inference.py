"""Inference: requests of the v2 protocol, from arrays to an engine and back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import msgspec

from pipeline.data import ChannelData, RequestInfo
from pipeline.engine.convoy import Arrays
from pipeline.engine.model_calls import PARAMETERS, error_in, is_last_part
from pipeline.engine.models import ModelEntry
from pipeline.engine.offload import Offload
from pipeline.engine.request import Begin, RequestTarget, ask
from pipeline.errors import PipelineError
from pipeline.frontends.base import HeaderForwarding, takes_info
from pipeline.frontends.parts import answers_to
from pipeline.frontends.v2.convert import arrays_of, classes_of, classes_wanted, payload_of
from pipeline.frontends.v2.convoys import ConvoyCollector, Routed
from pipeline.frontends.v2.errors import V2Error, v2_error
from pipeline.frontends.v2.interface import ModelInterface
from pipeline.frontends.v2.model import ConfiguredModel, Model, ModelViews, PipelineModel
from pipeline.frontends.v2.parameters import OF_SEQUENCES, info_of, timeout_of
from pipeline.frontends.v2.shared_regions import SharedRegions, opened, stored
from pipeline.frontends.v2.side_by_side import Place
from pipeline.observe.traces.traces import HTTP, FrontendStages, RequestTraces, TracedModel
from pipeline.proto.pipeline.response import LargeResponse
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.proto.slices import SHORT_BYTES, Limits, is_short, weight
from pipeline.proto.v2.codec import InferRequest, InferResponse, Parameters, SharedPlace
from pipeline.proto.v2.raw import Array

Headers = Callable[[], Iterable[tuple[str | bytes, str | bytes]]]


class CallerInfo(NamedTuple):
    """Data that a caller sends beside a request.

    Args:
        timeout_s: the caller's deadline, from now; if the server has a deadline, the request's
            parameter `timeout`, in microseconds, also applies.
        traceparent: the caller's, see `tracing`; "": without.
        headers: returns the caller's headers, if they are needed.
        door: the frontend's name, for the trace.
    """

    timeout_s: float | None = None
    traceparent: str = ""
    headers: Headers = tuple
    door: FrontendStages = HTTP


class OutputsAndParameters(dict[str, Array]):
    """Outputs of a model that also answers parameters."""

    def __init__(self, outputs: dict[str, Array], parameters: Parameters) -> None:
        super().__init__(outputs)
        self.parameters: Parameters = parameters


class FittedRequest(msgspec.Struct, frozen=True):
    """A request that fits its model.

    Args:
        wanted: the requested outputs; empty: all.
        rows: its number of samples.
        limit_s: its parameter `timeout`, if that applies.
        changes: the registry's count of changes when the request was checked.
        classes: the number of classes, by output that is requested as classes.
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
        """Return its remaining time: the caller's, or its own if that is shorter."""
        if timeout_s is None or self.limit_s is None:
            return self.limit_s if timeout_s is None else timeout_s
        return min(timeout_s, self.limit_s)

    def outputs(self, answer: Any) -> dict[str, Array]:
        """Return the outputs in an engine's answer, possibly with parameters. Raises V2Error."""
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
        answered = payload.get(PARAMETERS) if may_lack else None
        return OutputsAndParameters(outputs, answered) if answered else outputs

    def failed(self, request_id: str, error: V2Error) -> InferResponse:
        """Return a response with an error, as one of several."""
        response = InferResponse(self.entry.name, self.entry.version, request_id)
        return msgspec.structs.replace(response, error=error)

    def response(
        self, request_id: str, parameters_sent: Parameters, outputs: dict[str, Array]
    ) -> InferResponse:
        """Return the response to a request with parameters; an ensemble repeats those of its
        sequence.
        """
        entry = self.entry
        parameters: Parameters = {}
        if entry.op is None and isinstance(self.model, ConfiguredModel):
            parameters = {
                name: parameters_sent.get(name, default) for name, default in OF_SEQUENCES.items()
            }
        if isinstance(outputs, OutputsAndParameters):
            parameters |= outputs.parameters
        return InferResponse(entry.name, entry.version, request_id, parameters, outputs)


class Inference:
    """Sends requests to the models of a server.

    Args:
        views: the models.
        offload: checks large requests and answers; its owner stops it.
        forwarding: the headers that hooks and filters get; None: no headers.
        regions: shared memory of callers.
        limits: of text in shared memory.
        traces: select requests to trace.
    """

    def __init__(
        self,
        views: ModelViews,
        offload: Offload,
        forwarding: HeaderForwarding | None,
        regions: SharedRegions,
        limits: Limits,
        traces: RequestTraces,
    ) -> None:
        self.views: ModelViews = views
        self._registry = views.registry
        self._offload = offload
        self._forwarding = forwarding
        self._regions = regions
        self._limits = limits
        self._traces = traces
        self._takes_info = self._registry.is_repository or takes_info(self._registry)

    async def infer(
        self,
        request: InferRequest,
        caller: CallerInfo = CallerInfo(),  # noqa: B008 - it cannot be changed
        learn: Callable[[InferRequest, FittedRequest], object] | None = None,
    ) -> InferResponse:
        """Run the pipeline, or only one Op; `learn` receives the checked request.

        Raises V2Error: the request does not fit the model (with Triton's texts), or it failed.
        """
        try:
            async with self._opened(request, caller.timeout_s) as (request, left_s):
                fitted = self.fit(request)
                if learn is not None:
                    learn(request, fitted)
                engine_input = await self._engine_input(fitted, request, caller, left_s)
                begin = self.begin_of(fitted.entry, request.id, request.inputs, caller.door)
                answer = await ask(begin, *engine_input)
                own = request.id, request.parameters
                response = await self._response(fitted, own, answer, engine_input[1])
                return await self._stored(response, request.places)
        except PipelineError as error:
            raise v2_error(error) from error

    async def answers(
        self,
        request: InferRequest,
        caller: CallerInfo,
        entrance: Place | None = None,
    ) -> AsyncGenerator[tuple[InferResponse, bool], None]:
        """Run as `infer` does; yield each answer, and whether others follow it, or may follow.

        See `answers_to`; a part may say that it is the last. An error, also after some parts, is
        raised; an error as a part is in its answer. With an `entrance` the engine gets the request
        after those before it.
        """
        try:
            async with self._opened(request, caller.timeout_s) as (request, left_s):
                fitted, own = self.fit(request), (request.id, request.parameters)
                request_id, places = request.id, request.places
                engine_input = await self._engine_input(fitted, request, caller, left_s)
                begin = self.begin_of(fitted.entry, request_id, request.inputs, caller.door)
                del request
                if entrance is not None:
                    await entrance.come()
                    begin = entrance.leaving(begin)
                responses = answers_to(begin, *engine_input)
                async with aclosing(responses):
                    async for answer, is_part in responses:
                        payload = answer.payload if type(answer) is ChannelData else None
                        failure = error_in(payload)
                        if failure is not None:
                            yield fitted.failed(request_id, v2_error(failure)), is_part
                            continue
                        goes_on = is_part and not is_last_part(payload)
                        response = await self._response(fitted, own, answer)
                        yield await self._stored(response, places), goes_on
        except PipelineError as error:
            raise v2_error(error) from error

    def begin_of(
        self, entry: ModelEntry, request_id: str, inputs: Mapping[str, Array], door: FrontendStages
    ) -> Begin:
        """Return the function that begins a request at a model, with a trace if it is selected."""
        if self._traces.is_off:
            return entry.served.engine.begin
        return self._traces.begin_of(TracedModel(entry, request_id, inputs), door)

    @asynccontextmanager
    async def _opened(
        self, request: InferRequest, left_s: float | None
    ) -> AsyncIterator[tuple[InferRequest, float | None]]:
        """Yield a request with its data from shared memory, which is held, and the time left."""
        names = request.regions if request.shared or request.outputs else ()
        if not names:
            yield request, left_s
            return
        with self._regions.held(names):
            read = partial(opened, request, self._regions, self._limits)
            del request
            yield await self._offload.run(read, left_s)

    async def _stored(
        self, response: InferResponse, places: Mapping[str, SharedPlace]
    ) -> InferResponse:
        """Put outputs into shared memory, where the request has places for them."""
        if not places:
            return response
        return (await self._offload.run(partial(stored, response, places, self._regions)))[0]

    async def _engine_input(
        self,
        fitted: FittedRequest,
        request: InferRequest,
        caller: CallerInfo,
        left_s: float | None,
    ) -> tuple[Request, float | None, RequestTarget]:
        """Return the engine's input."""
        left_s = fitted.left_of(left_s)
        route = partial(self.route, fitted, request.inputs, request.id, request.parameters, caller)
        if is_short(request.inputs):
            raw, target = route()
        else:
            (raw, target), left_s = await self._offload.run(route, left_s)
        return raw, left_s, target

    async def _response(
        self,
        fitted: FittedRequest,
        own: tuple[str, Parameters],
        answer: Any,
        left_s: float | None = None,
    ) -> InferResponse:
        """Return the response for an engine's answer; `said`: its id and parameters."""
        if is_short_answer(answer):
            outputs = fitted.outputs(answer)
        else:
            outputs, _ = await self._offload.run(partial(fitted.outputs, answer), left_s)
        return fitted.response(*own, outputs)

    def fit(self, request: InferRequest) -> FittedRequest:
        """Return the checked request. Raises V2Error if it does not fit the model."""
        entry = self.views.entry(request.model_name, request.model_version)
        model = self.views.view(entry)
        outputs = [output.name for output in request.outputs]
        # The description may change during the check: workers may be loading the model.
        interface = model.interface
        try:
            limit_s = timeout_of(request.parameters)
            classes = classes_wanted(request.outputs)
            interface.check_outputs(model.name, outputs)
            rows = interface.check_inputs(model.name, request.inputs)
        except V2Error as error:
            raise V2Error(error.kind, error.about(request.id)) from None
        if entry.served.config.timeout_s is None:
            limit_s = None
        changes = self._registry.changes
        return FittedRequest(entry, model, interface, outputs, rows, limit_s, changes, classes)

    def is_current(self, fitted: FittedRequest) -> bool:
        """Return whether `fit` would find the same model with the same interface again."""
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
        caller: CallerInfo,
    ) -> tuple[Request, RequestTarget]:
        """Return the engine's input. Raises V2Error, PipelineError."""
        raw, target = fitted.model.routed(inputs, request_id, fitted.rows, caller.traceparent)
        if self._takes_info:
            info = self.info(fitted, request_id, parameters, caller.headers)
            target = msgspec.structs.replace(target, info=info)
        return raw, target

    def info(
        self,
        fitted: FittedRequest,
        request_id: str,
        parameters: Parameters,
        headers: Headers,
    ) -> RequestInfo:
        """Return the request info."""
        chosen = self._forwarding.choose(headers()) if self._forwarding else {}
        return info_of(request_id, parameters, chosen, fitted.wanted)

    @property
    def forwards(self) -> bool:
        """Return whether headers of a request are forwarded."""
        return self._forwarding is not None

    @property
    def allows_convoys(self) -> bool:
        """Return whether requests may form a convoy: none of them is traced."""
        return self._traces.is_off

    def collector(
        self,
        fitted: FittedRequest,
        asks_again: Callable[[Any], InferRequest],
        written_each: Callable[[Arrays, Sequence[Any]], Sequence[Any] | None],
        stacked: Callable[[Sequence[Any]], Arrays],
    ) -> ConvoyCollector | None:
        """Return the collector for requests of a form; None: they never form convoys.

        `asks_again`: makes a request of the same inputs for a model that was loaded again.
        `written_each`, `stacked`: see `ConvoyCollector`.
        """
        if not self._registry.is_repository or fitted.limit_s is not None:
            return None

        def successor(inputs: Any) -> tuple[Begin, Routed] | None:
            if self.is_current(fitted):
                return None
            try:
                successor_fit = self.fit(asks_again(inputs))
            except (PipelineError, V2Error):
                return None
            return successor_fit.entry.served.engine.begin, partial(_routed, successor_fit.model)

        engine = fitted.entry.served.engine
        routed = partial(_routed, fitted.model)
        return ConvoyCollector(engine, fitted.rows, routed, successor, written_each, stacked)


def _routed(model: Model, inputs: Arrays, rows: int) -> tuple[Any, RequestTarget]:
    """Return the engine's input, without the caller's info."""
    return model.routed(inputs, "", rows, "")


def is_short_answer(answer: Any) -> bool:
    """Return whether the event loop may inspect an engine's answer."""
    if isinstance(answer, ChannelData):
        payload = answer.payload
        return is_short(payload) if type(payload) is dict else weight(payload) <= SHORT_BYTES
    return not isinstance(answer, LargeResponse)
