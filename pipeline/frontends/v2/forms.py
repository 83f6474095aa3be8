"""RequestForms: what is found out once for all requests that differ in nothing but their data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from pipeline.data import ChannelData
from pipeline.engine.request import RequestHandle, ResponseSink, UnarySink
from pipeline.errors import PackageError, PipelineError
from pipeline.frontends.v2.errors import V2Error
from pipeline.frontends.v2.repository import FittedRequest, ModelRepository
from pipeline.proto.slices import Limits, is_short
from pipeline.proto.v2.codec import InferRequest, InferResponse, Parameters
from pipeline.proto.v2.forms import Cut, InputsForm, OutputsForm, cut_json, layout
from pipeline.proto.v2.json import binary_names, read_request
from pipeline.proto.v2.raw import Array

_MOST_FORMS = 128  # of a model that are known
_MOST_BYTES = 2048  # of the JSON of one
_MOST_SEEN = 1024
_MOST_LAYOUTS = 16  # of the answers to requests of one form

Headers = Callable[[], Iterable[tuple[str | bytes, str | bytes]]]


class UnknownFormError(Exception):
    """A request that is not for these ways: the usual ones find out what it is."""


class RequestForm:
    """Requests of one form, with all that was found out about them.

    Args:
        fitted: what the model is asked.
        request: one of them.
        inputs: reads their data; None: it is known of this request alone.
    """

    def __init__(
        self, fitted: FittedRequest, request: InferRequest, inputs: InputsForm | None = None
    ) -> None:
        self.fitted: FittedRequest = fitted
        self.inputs: InputsForm | None = inputs
        self.id: str = request.id
        self.parameters: Parameters = request.parameters
        self._asked = msgspec.structs.replace(request, inputs={})
        slots = fitted.interface.outputs or ()
        self._names = tuple(dict.fromkeys(fitted.wanted or [slot.name for slot in slots]))
        self._layouts: dict[Any, OutputsForm] = {}

    def written(self, answer: Any, request_id: str) -> tuple[bytes, int | None] | None:
        """Return what `write_response` makes of an engine's answer; None: nothing like it is known.

        It is known if an answer with the same arrays but for their elements was `learnt`.
        """
        if not self._layouts or type(answer) is not ChannelData or answer.error is not None:
            return None
        payload = answer.payload
        if type(payload) is not dict:
            return None
        names = self._names or tuple(payload)
        found = layout(payload, names)
        form = None if found is None else self._layouts.get((names, found[1]))
        return None if form is None or found is None else form.write(request_id, found[0])

    def response(self, request_id: str, outputs: dict[str, Array]) -> InferResponse:
        """Return the answer to a request."""
        entry = self.fitted.entry
        return InferResponse(entry.name, entry.version, request_id, {}, outputs)

    def binary(self, outputs: Iterable[str]) -> set[str]:
        """Return those of the outputs that are wanted as bytes behind the JSON."""
        return binary_names(self._asked, outputs)

    def learn(self, answer: Any, response: InferResponse) -> None:
        """Remember how the response of an engine's answer looked, if it shows its very arrays."""
        if self.inputs is None or type(answer) is not ChannelData:
            return
        payload = answer.payload
        if type(payload) is not dict or any(type(name) is not str for name in payload):
            return
        names = self._names or tuple(payload)
        found = layout(payload, names)
        if found is None or tuple(response.outputs) != names or not is_short(response.outputs):
            return
        for value, array in zip(found[0], response.outputs.values(), strict=True):
            if value.dtype != array.dtype or value.size != array.size:
                return
        form = OutputsForm.of(response, self.binary(names))
        if form is not None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[names, found[1]] = form


class InferCall(UnarySink):
    """One request, between its frontend and the engine; gives the sink itself and the answer."""

    __slots__ = ("form", "id", "sink")

    def __init__(self, form: RequestForm, request_id: str, sink: ResponseSink) -> None:
        self.form = form
        self.id = request_id
        self.sink = sink

    def end(self, answer: Any) -> None:
        self.sink.end((self, answer))


class RequestForms:
    """The forms of the requests for one model that came last.

    Args:
        models: has the model.
        name, version: as a caller gives them; the version may be "".
    """

    def __init__(self, models: ModelRepository, name: str, version: str, limits: Limits) -> None:
        self._models = models
        self._name = name
        self._version = version
        self._limits = limits
        self._known: dict[bytes, RequestForm] = {}
        self._seen: set[int] = set()

    def begin(
        self,
        body: bytes,
        length: int | None,
        timeout_s: float | None,
        traceparent: str,
        headers: Headers,
        sink: ResponseSink,
    ) -> RequestHandle:
        """Begin a request; the sink is given the InferCall and what `Engine.begin` gives a sink.

        Args:
            body, length: see `read_request`; short.
            timeout_s, traceparent, headers: see `ModelRepository.infer`.

        Raises:
            UnknownFormError: before anything was begun; whoever reads the request anew sees why.
            OverloadedError: as `Engine.begin` does.
        """
        form, request_id, inputs = self._read(body, length)
        fitted = form.fitted
        try:
            raw, target = self._models.route(
                fitted, inputs, request_id, form.parameters, traceparent, headers
            )
        except (PipelineError, V2Error):
            raise UnknownFormError from None
        call = InferCall(form, request_id, sink)
        return fitted.entry.served.engine.begin(raw, fitted.left_of(timeout_s), target, call)

    def _read(self, body: bytes, length: int | None) -> tuple[RequestForm, str, dict[str, Array]]:
        text = body if length is None else body[:length]
        if len(text) > self._limits.json_bytes:
            raise UnknownFormError
        cut = cut_json(text, length is None)
        if cut is not None:
            form = self._known.get(cut.key)
            if form is not None and form.inputs is not None and self._is_current(form):
                with contextlib.suppress(ValueError, PackageError):
                    inputs = form.inputs.read(cut, body, len(text), self._limits)
                    return form, form.id if cut.id is None else cut.id, inputs
        return self._read_anew(body, text, length, cut)

    def _is_current(self, form: RequestForm) -> bool:
        return self._models.is_current(form.fitted)

    def _read_anew(
        self, body: bytes, text: bytes, length: int | None, cut: Cut | None
    ) -> tuple[RequestForm, str, dict[str, Array]]:
        """Read a request of no form that is known; the second of a form makes it known."""
        try:
            request = read_request(
                body,
                length,
                model_name=self._name,
                model_version=self._version,
                limits=self._limits,
            )
            fitted = self._models.fit(request)
        except (PipelineError, V2Error):
            raise UnknownFormError from None
        if not is_short(request.inputs):
            raise UnknownFormError
        inputs = None
        if cut is not None and len(cut.key) <= _MOST_BYTES and self._is_seen(cut.key):
            inputs = InputsForm.of(cut, request)
        form = RequestForm(fitted, request, inputs)
        if inputs is not None and cut is not None:
            if len(self._known) >= _MOST_FORMS:
                self._known.clear()
            self._known[cut.key] = form
        return form, request.id, request.inputs

    def _is_seen(self, key: bytes) -> bool:
        """Return whether this has come before."""
        if hash(key) in self._seen:
            return True
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(hash(key))
        return False
