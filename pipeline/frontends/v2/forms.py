"""RequestForms: what is found out once for all requests that differ in nothing but their data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec
from google.protobuf.message import DecodeError

from pipeline.data import NO_INFO, ChannelData, RequestInfo
from pipeline.engine.model_answers import PARAMETERS
from pipeline.engine.request import RequestHandle, ResponseSink, UnarySink
from pipeline.errors import PipelineError
from pipeline.frontends.v2.convoys import Muster, Mustered, can_muster
from pipeline.frontends.v2.errors import V2Error, V2Status
from pipeline.frontends.v2.repository import FittedRequest, ModelRepository
from pipeline.observe.traces.traces import GRPC, HTTP, FrontendStages
from pipeline.proto.inference_v2_pb2 import ModelInferRequest
from pipeline.proto.slices import Limits, is_short
from pipeline.proto.v2.codec import (
    InferRequest,
    InferResponse,
    Parameters,
    request_from_message,
)
from pipeline.proto.v2.forms import Cut, InputsForm, OutputsForm, cut_json, layout
from pipeline.proto.v2.json import binary_names, read_request
from pipeline.proto.v2.message_forms import MessageInputs, MessageOutputs, cut_message
from pipeline.proto.v2.raw import Array

_MOST_FORMS = 256  # that are known
_MOST_BYTES = 2048  # of the key of one
_MOST_SEEN = 1024
_MOST_LAYOUTS = 16  # of the answers to requests of one form

_Inputs = TypeVar("_Inputs", InputsForm, MessageInputs)
Headers = Callable[[], Iterable[tuple[str | bytes, str | bytes]]]


class UnknownFormError(Exception):
    """A request that is not for these ways: the usual ones find out what it is."""


def read_message(message: bytes, limits: Limits) -> InferRequest:
    """Return the request in a message. Raises V2Error for what is none, and PackageError."""
    try:
        found = ModelInferRequest.FromString(message)
    except DecodeError as error:
        text = f"the message is no ModelInferRequest: {error}"
        raise V2Error(V2Status.INVALID, text) from error
    return request_from_message(found, limits)


class Told(NamedTuple):
    """Words of a caller beside a request, see `ModelRepository.infer`."""

    timeout_s: float | None
    traceparent: str
    headers: Headers


class RequestForm(Generic[_Inputs]):
    """Requests of one form, with all that was found out about them.

    Args:
        fitted: what the model is asked.
        request: one of them.
        inputs: reads their data; None: it is known of this request alone.
        outputs_form: remembers how an answer looks.

    Attributes:
        muster: where requests wait for others to go on with; None: each goes by itself.
        info: of those that have no id, and no headers that are forwarded.
    """

    def __init__(
        self,
        fitted: FittedRequest,
        request: InferRequest,
        inputs: _Inputs | None,
        outputs_form: Callable[[InferResponse, set[str]], Any],
    ) -> None:
        self.fitted: FittedRequest = fitted
        self.inputs: _Inputs | None = inputs
        self.id: str = request.id
        self.parameters: Parameters = request.parameters
        self._asked = msgspec.structs.replace(request, inputs={})
        slots = fitted.interface.outputs or ()
        self._names = tuple(dict.fromkeys(fitted.wanted or [slot.name for slot in slots]))
        self._outputs_form = outputs_form
        self._layouts: dict[Any, Any] = {}
        self.muster: Muster | None = None
        self.info: RequestInfo = NO_INFO

    def asks_again(self, inputs: dict[str, Array]) -> InferRequest:
        """Return a request of this form, for what has taken its model's place."""
        return msgspec.structs.replace(self._asked, inputs=inputs)

    def written(self, answer: Any, request_id: str) -> Any:
        """Return what the outputs' form writes for an engine's answer; None: no such is known.

        It is known if an answer with the same arrays but for their elements was learnt.
        """
        if not self._layouts or type(answer) is not ChannelData or answer.error is not None:
            return None
        payload = answer.payload
        if type(payload) is not dict or PARAMETERS in payload:
            return None
        names = self._names or tuple(payload)
        found = layout(payload, names)
        form = None if found is None else self._layouts.get((names, found[1]))
        return None if form is None or found is None else form.write(request_id, found[0])

    def response(self, request_id: str, outputs: dict[str, Array]) -> InferResponse:
        """Return the answer to a request."""
        return self.fitted.response(request_id, self.parameters, outputs)

    def binary(self, outputs: Iterable[str]) -> set[str]:
        """Return those of the outputs that are wanted as bytes behind the JSON."""
        return binary_names(self._asked, outputs)

    def learn(self, answer: Any, response: InferResponse) -> None:
        """Remember how the response of an engine's answer looked, if it shows its very arrays."""
        if self.inputs is None or type(answer) is not ChannelData:
            return
        payload = answer.payload
        if (
            type(payload) is not dict
            or PARAMETERS in payload
            or any(type(name) is not str for name in payload)
        ):
            return
        names = self._names or tuple(payload)
        found = layout(payload, names)
        if found is None or tuple(response.outputs) != names or not is_short(response.outputs):
            return
        for value, array in zip(found[0], response.outputs.values(), strict=True):
            if value.dtype != array.dtype or value.size != array.size:
                return
        form = self._outputs_form(response, self.binary(names))
        if form is not None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[names, found[1]] = form


class InferCall(UnarySink):
    """One request, between its frontend and the engine; gives the sink itself and the answer."""

    __slots__ = ("form", "id", "sink")

    def __init__(self, form: RequestForm[Any], request_id: str, sink: ResponseSink) -> None:
        self.form: RequestForm[Any] = form
        self.id: str = request_id
        self.sink: ResponseSink = sink

    def end(self, answer: Any) -> None:
        self.sink.end((self, answer))


class RequestForms(Generic[_Inputs]):
    """The forms that came last, by what is the same in all requests of each.

    Args:
        models: the models that are asked.
        limits: of text in requests.
    """

    door: ClassVar[FrontendStages]

    def __init__(self, models: ModelRepository, limits: Limits) -> None:
        self._models = models
        self._limits = limits
        self._known: dict[bytes, RequestForm[_Inputs]] = {}
        self._seen: set[int] = set()

    def _begin(
        self,
        form: RequestForm[_Inputs],
        request_id: str,
        inputs: dict[str, Array],
        told: Told,
        sink: ResponseSink,
    ) -> RequestHandle:
        """Begin a request; the sink is given the InferCall and what `Engine.begin` gives a sink.

        Raises UnknownFormError, before anything was begun, and what `Engine.begin` does.
        """
        fitted = form.fitted
        timeout_s, traceparent, headers = told
        muster = form.muster
        may_wait = timeout_s is None and self._models.lets_muster
        if muster is not None and may_wait and muster.is_open:
            info = form.info
            if request_id or self._models.forwards:
                info = self._models.info(fitted, request_id, form.parameters, headers)
            call = InferCall(form, request_id, sink)
            return muster.add(Mustered(call, inputs, fitted.rows, info))
        try:
            raw, target = self._models.route(
                fitted, inputs, request_id, form.parameters, traceparent, headers
            )
        except (PipelineError, V2Error):
            raise UnknownFormError from None
        call = InferCall(form, request_id, sink)
        begin = self._models.begin_of(fitted.entry, request_id, inputs, self.door)
        return begin(raw, fitted.left_of(timeout_s), target, call)

    def _find(self, key: bytes) -> RequestForm[_Inputs] | None:
        """Return a form that is known, and still true of its model."""
        form = self._known.get(key)
        return form if form is not None and self._models.is_current(form.fitted) else None

    def _fit(self, read: Callable[[], InferRequest]) -> tuple[InferRequest, FittedRequest]:
        """Read a request of no form that is known. Raises UnknownFormError."""
        try:
            request = read()
            fitted = self._models.fit(request)
        except (PipelineError, V2Error):
            raise UnknownFormError from None
        is_simple = is_short(request.inputs) and not request.regions
        if not is_simple or fitted.model.is_decoupled:
            raise UnknownFormError
        return request, fitted

    def _is_seen(self, key: bytes) -> bool:
        """Return whether this has come before, so that it is worth being known."""
        if len(key) > _MOST_BYTES:
            return False
        if hash(key) in self._seen:
            return True
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(hash(key))
        return False

    def _keep(self, key: bytes, form: RequestForm[_Inputs], inputs: dict[str, Array]) -> None:
        """Remember a form, which the request with these inputs has."""
        if can_muster(inputs):
            form.muster = self._models.muster(form.fitted, form.asks_again)
            form.info = self._models.info(form.fitted, "", form.parameters, tuple)
        if len(self._known) >= _MOST_FORMS:
            self._known.clear()
        self._known[key] = form


class BodyForms(RequestForms[InputsForm]):
    """Forms of what is posted to one model.

    Args:
        name, version: of the model, as a caller gives them; the version may be "".
    """

    door: ClassVar[FrontendStages] = HTTP

    def __init__(self, models: ModelRepository, limits: Limits, name: str, version: str) -> None:
        super().__init__(models, limits)
        self._name = name
        self._version = version

    def begin(
        self, body: bytes, length: int | None, told: Told, sink: ResponseSink
    ) -> RequestHandle:
        """Begin a request, see `_begin`; `body` and `length`: see `read_request`, but short."""
        text = body if length is None else body[:length]
        if len(text) > self._limits.json_bytes:
            raise UnknownFormError
        cut = cut_json(text, length is None)
        form = None if cut is None else self._find(cut.key)
        inputs = None
        if cut is not None and form is not None and form.inputs is not None:
            inputs = form.inputs.read(cut, body, len(text), self._limits)
        if cut is None or form is None or inputs is None:
            return self._begin_anew(body, length, cut, told, sink)
        return self._begin(form, form.id if cut.id is None else cut.id, inputs, told, sink)

    def _begin_anew(
        self, body: bytes, length: int | None, cut: Cut | None, told: Told, sink: ResponseSink
    ) -> RequestHandle:
        """Begin a request of no form that is known; the second of a form makes it known."""
        request, fitted = self._fit(
            lambda: read_request(
                body,
                length,
                model_name=self._name,
                model_version=self._version,
                limits=self._limits,
            )
        )
        inputs = None
        if cut is not None and self._is_seen(cut.key):
            inputs = InputsForm.of(cut, request)
        form = RequestForm(fitted, request, inputs, OutputsForm.of)
        if inputs is not None and cut is not None:
            self._keep(cut.key, form, request.inputs)
        return self._begin(form, request.id, request.inputs, told, sink)


class MessageForms(RequestForms[MessageInputs]):
    """Forms of ModelInferRequests."""

    door: ClassVar[FrontendStages] = GRPC

    def begin(self, message: bytes, told: Told, sink: ResponseSink) -> RequestHandle:
        """Begin a request, see `_begin`, if its tensors are raw; it is short."""
        cut = cut_message(message)
        if cut is None:
            raise UnknownFormError
        form = self._find(cut.key)
        inputs = None
        if form is not None and form.inputs is not None:
            inputs = form.inputs.read(cut, message, self._limits)
        if form is not None and inputs is not None:
            return self._begin(form, cut.id, inputs, told, sink)
        request, fitted = self._fit(lambda: read_message(message, self._limits))
        found = MessageInputs.of(cut, request) if self._is_seen(cut.key) else None
        form = RequestForm(fitted, request, found, MessageOutputs.of)
        if found is not None:
            self._keep(cut.key, form, request.inputs)
        return self._begin(form, request.id, request.inputs, told, sink)
