"""RequestForms: results that are the same for all requests that differ only in their data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pipeline.data import NO_INFO, ChannelData, RequestInfo
from pipeline.engine.model_calls import PARAMETERS
from pipeline.engine.request import RequestHandle, ResponseSink, UnarySink
from pipeline.errors import PipelineError
from pipeline.frontends.v2.convoys import ConvoyCollector, ConvoyRequest, can_stack
from pipeline.frontends.v2.errors import V2Error
from pipeline.frontends.v2.inference import CallerInfo, FittedRequest, Inference
from pipeline.proto.slices import Limits, is_short
from pipeline.proto.v2.codec import InferRequest, InferResponse
from pipeline.proto.v2.forms import (
    AnswerForms,
    FormCodec,
    FormMemory,
    UnknownFormError,
    joined,
)
from pipeline.proto.v2.json import binary_names
from pipeline.proto.v2.raw import Array

_PARTS = {tuple}  # type of what a form's `parts` returns


class Written(msgspec.Struct):
    """An answer that was written together with others; `text` is in a form's output."""

    text: Any


class RequestForm:
    """Requests of one form, with everything known about them.

    Args:
        fitted: the checked request.
        request: one of them.
        inputs: reads their data; None: the form is known of this request only.
        codec: of their protocol.

    Attributes:
        collector: where requests wait for others to form a convoy; None: they never do.
        info: of requests without an id and without forwarded headers.
    """

    def __init__(
        self, fitted: FittedRequest, request: InferRequest, inputs: Any, codec: FormCodec
    ) -> None:
        self.fitted: FittedRequest = fitted
        self.inputs: Any = inputs
        self.id: str = request.id
        self.asked: InferRequest = msgspec.structs.replace(request, inputs={})
        slots = fitted.interface.outputs or ()
        names = tuple(fitted.wanted or [slot.name for slot in slots])
        self.answers: AnswerForms = AnswerForms(names, codec.outputs_of)
        self.collector: ConvoyCollector | None = None
        self.info: RequestInfo = NO_INFO

    def written_each(self, stack: Mapping[str, Any], calls: Sequence[Any]) -> list[Written] | None:
        """Return the answers to InferCalls from the arrays of all; None: each must be written."""
        texts = self.answers.write_each(stack, [call.id for call in calls])
        return None if texts is None else [Written(text) for text in texts]

    def stacked(self, inputs: Sequence[Any]) -> dict[str, Array]:
        """Return the joined arrays of requests, from the arrays, or parts, of each."""
        if set(map(type, inputs)) == _PARTS:
            return joined(self.inputs.tensors, inputs)
        arrays = [
            arrays_of_one if type(arrays_of_one) is dict else self.stacked([arrays_of_one])
            for arrays_of_one in inputs
        ]
        if len(arrays) == 1:
            return arrays[0]
        return {name: np.concatenate([array[name] for array in arrays]) for name in arrays[0]}

    def asks_again(self, inputs: Any) -> InferRequest:
        """Return a request of this form, for the replacement of its model."""
        return msgspec.structs.replace(self.asked, inputs=self.stacked([inputs]))


class InferCall(UnarySink):
    """One request, between its frontend and the engine; hands itself and the answer to the sink."""

    __slots__ = ("_form", "_sink", "id")

    def __init__(self, form: RequestForm, request_id: str, sink: ResponseSink) -> None:
        self._form = form
        self.id: str = request_id
        self._sink = sink

    def end(self, answer: Any) -> None:
        self._sink.end((self, answer))

    def written(self, answer: Any) -> Any:
        """Return an engine's answer, written by its form; None: no form is known."""
        if type(answer) is Written:
            return answer.text
        if type(answer) is not ChannelData or answer.error is not None:
            return None
        payload = answer.payload
        if type(payload) is not dict or PARAMETERS in payload:
            return None
        return self._form.answers.write(payload, self.id)

    def response(self, answer: Any) -> InferResponse:
        """Return the response for an engine's answer. Raises V2Error."""
        fitted = self._form.fitted
        outputs = fitted.outputs(answer)
        return fitted.response(self.id, self._form.asked.parameters, outputs)

    def binary(self, response: InferResponse) -> set[str]:
        """Return the outputs that the request wants as bytes after the JSON."""
        return binary_names(self._form.asked, response.outputs)

    def learn(self, answer: Any, response: InferResponse) -> None:
        """Remember the form of the response to an engine's answer."""
        if self._form.inputs is None or type(answer) is not ChannelData:
            return
        payload = answer.payload
        if type(payload) is dict and PARAMETERS not in payload:
            self._form.answers.learn(payload, response, self.binary(response))


class RequestForms:
    """The most recent forms.

    Args:
        inference: asks the models.
        codec: of the protocol.
        limits: of text in requests.
    """

    def __init__(self, inference: Inference, codec: FormCodec, limits: Limits) -> None:
        self._inference = inference
        self._codec = codec
        self._limits = limits
        self._memory: FormMemory[RequestForm] = FormMemory()

    def begin(
        self, body: bytes, length: int | None, caller: CallerInfo, sink: ResponseSink
    ) -> RequestHandle:
        """Begin a short request; the second request of a form makes the form known.

        The sink gets the InferCall and the engine's answer. Raises UnknownFormError, before
        anything has begun, and what `Engine.begin` does.
        """
        cut = self._codec.cut(body, length)
        form = None if cut is None else self._memory.known.get(cut.key)
        if form is None or not self._inference.is_current(form.fitted):
            return self._begin_new_form(body, length, cut, caller, sink)
        collector = form.collector
        may_wait = (
            collector is not None and caller.timeout_s is None and self._inference.allows_convoys
        )
        if collector is not None and may_wait and collector.is_open:
            waiting = self._wait(collector, form, cut, caller, sink)
            return waiting or self._begin_new_form(body, length, cut, caller, sink)
        inputs = form.inputs.read(cut, self._limits)
        if inputs is None:
            return self._begin_new_form(body, length, cut, caller, sink)
        return self._begin(form, form.id if cut.id is None else cut.id, inputs, caller, sink)

    def begin_on(
        self, body: memoryview, length: int, caller: CallerInfo, sink: ResponseSink
    ) -> RequestHandle:
        """Begin a large request without copying its arrays; `learn` makes its form known."""
        cut = self._codec.cut(bytes(body[:length]), length)
        form = None if cut is None else self._memory.known.get(cut.key)
        if form is None or not self._inference.is_current(form.fitted):
            raise UnknownFormError
        inputs = form.inputs.on(body[length:])
        if inputs is None:
            raise UnknownFormError
        return self._begin(form, form.id if cut.id is None else cut.id, inputs, caller, sink)

    def learn(self, text: bytes, request: InferRequest, fitted: FittedRequest) -> None:
        """Make a form known by the JSON of its second large request."""
        try:
            cut = self._codec.cut(text, len(text))
        except UnknownFormError:
            return
        if cut is None or fitted.model.is_decoupled or request.regions:
            return
        known = self._memory.known.get(cut.key)
        if known is not None and self._inference.is_current(known.fitted):
            return
        if not self._memory.is_seen(cut.key):
            return
        inputs = self._codec.inputs_of(cut, request)
        if inputs is not None and inputs.stay:
            self._memory.keep(cut.key, RequestForm(fitted, request, inputs, self._codec))

    def _begin_new_form(
        self, body: bytes, length: int | None, cut: Any, caller: CallerInfo, sink: ResponseSink
    ) -> RequestHandle:
        """Begin a request of an unknown form."""
        inference, codec = self._inference, self._codec
        try:
            request = codec.read(body, length)
            fitted = inference.fit(request)
        except (PipelineError, V2Error):
            raise UnknownFormError from None
        is_simple = is_short(request.inputs) and not request.regions
        if not is_simple or fitted.model.is_decoupled:
            raise UnknownFormError
        inputs = None
        if cut is not None and self._memory.is_seen(cut.key):
            inputs = codec.inputs_of(cut, request)
        form = RequestForm(fitted, request, inputs, codec)
        if inputs is not None:
            if can_stack(request.inputs, fitted.rows):
                how = form.asks_again, form.written_each, form.stacked
                form.collector = inference.collector(fitted, *how)
                form.info = inference.info(fitted, "", request.parameters, tuple)
            self._memory.keep(cut.key, form)
        return self._begin(form, request.id, request.inputs, caller, sink)

    def _begin(
        self,
        form: RequestForm,
        request_id: str,
        inputs: dict[str, Array],
        caller: CallerInfo,
        sink: ResponseSink,
    ) -> RequestHandle:
        fitted, inference = form.fitted, self._inference
        call = InferCall(form, request_id, sink)
        try:
            raw, target = inference.route(fitted, inputs, request_id, form.asked.parameters, caller)
        except (PipelineError, V2Error):
            raise UnknownFormError from None
        begin = inference.begin_of(fitted.entry, request_id, inputs, caller.door)
        return begin(raw, fitted.left_of(caller.timeout_s), target, call)

    def _wait(
        self,
        collector: ConvoyCollector,
        form: RequestForm,
        cut: Any,
        caller: CallerInfo,
        sink: ResponseSink,
    ) -> RequestHandle | None:
        """Have a request wait for others; None: its data is invalid."""
        inputs = form.inputs.parts(cut) or form.inputs.read(cut, self._limits)
        if inputs is None:
            return None
        fitted, inference, info = form.fitted, self._inference, form.info
        request_id = form.id if cut.id is None else cut.id
        if request_id or inference.forwards:
            try:
                info = inference.info(fitted, request_id, form.asked.parameters, caller.headers)
            except V2Error:
                raise UnknownFormError from None
        return collector.add(
            ConvoyRequest(InferCall(form, request_id, sink), inputs, fitted.rows, info)
        )
