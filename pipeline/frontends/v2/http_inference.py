"""Inference of v2 over HTTP: infer, in the lane or not, generate and generate_stream."""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

import orjson

from pipeline.engine.offload import Offload
from pipeline.engine.request import RequestHandle, ResponseSink
from pipeline.errors import PackageError, PipelineError
from pipeline.frontends.http.routes import (
    JSON,
    TEXT,
    BodySizeError,
    HandOverError,
    HttpError,
    LaneReply,
    SizeLimit,
    WebRequest,
    WebResponse,
    WebStream,
)
from pipeline.frontends.v2.errors import V2Error, v2_error
from pipeline.frontends.v2.forms import InferCall, RequestForms
from pipeline.frontends.v2.generate import NOT_ONE, read_generate, write_generate
from pipeline.frontends.v2.inference import CallerInfo, Inference, is_short_answer
from pipeline.proto.slices import SHORT_BYTES, SLICE_BYTES, Limits, breathe, is_short
from pipeline.proto.v2.codec import InferResponse
from pipeline.proto.v2.forms import UnknownFormError, Written, json_codec
from pipeline.proto.v2.json import binary_names, read_request, write_response

HEADER_LENGTH = b"inference-header-content-length"
"""The header that says how long the JSON is which a body begins with."""

BINARY = b"application/octet-stream"
"""The type of a body that has bytes behind its JSON."""

EVENTS = b"text/event-stream; charset=utf-8"
"""The type of the answers to generate_stream."""

# The lane takes one spelling of a version, so that there are no forms for each other spelling.
_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([1-9][0-9]{0,17}))?/infer")
_LENGTH = re.compile(rb"[1-9][0-9]{0,8}")
_MOST_MODELS = 1024  # whose forms are known
_LEVEL = 1  # of zlib: tensors gain little by more
_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


class ModelRequest(NamedTuple):
    """A request, with the model's name and version in its path."""

    web: WebRequest
    name: str
    version: str


class HttpInference:
    """`infer`, `generate` and `generate_stream`.

    Args:
        inference: asks the models.
        offload: where large requests and answers are read and written; its owner stops it.
        limits: of JSON.
    """

    def __init__(self, inference: Inference, offload: Offload, limits: Limits) -> None:
        self.inference: Inference = inference
        self.offload: Offload = offload
        self.limits: Limits = limits
        self._views = inference.views
        self._forms: dict[tuple[str, str], RequestForms] = {}

    def in_line(self, request: WebRequest) -> InferEndpoint | None:
        """Return what answers a POST to `infer`; None: it is left to the routes."""
        match, headers = _INFER.fullmatch(request.path), request.headers
        if match is None or not self._views.has(match[1]):
            return None
        if accepted(headers.get(b"accept-encoding", b"").decode("latin-1")):
            return None
        json_length = headers.get(HEADER_LENGTH)
        if json_length is not None and _LENGTH.fullmatch(json_length) is None:
            return None
        forms = self._forms_of(match[1], match[2] or "")
        length = None if json_length is None else int(json_length)
        if length is not None and int(headers.get(b"content-length", 0)) > SHORT_BYTES:
            return LargeInferEndpoint(self, forms, length, request)
        return InferEndpoint(self, forms, length, request)

    def _forms_of(self, name: str, version: str) -> RequestForms:
        forms = self._forms.get((name, version))
        if forms is None:
            if len(self._forms) >= _MOST_MODELS:
                self._forms.clear()
            codec = json_codec(name, version, self.limits)
            forms = RequestForms(self.inference, codec, self.limits)
            self._forms[name, version] = forms
        return forms

    async def infer(self, model_request: ModelRequest) -> WebResponse:
        """Answer a request of any size, with an answer in the encoding that its caller takes."""
        web = model_request.web
        try:
            # 404 and 501 without reading
            self._views.check_unary(model_request.name, model_request.version, "HTTP end point")
            raw_inputs = self._views.raw_inputs(model_request.name, model_request.version)
            body = await web.received()
            length, left_s = _header_length(web, len(body)), web.timeout_s
        except (HttpError, PipelineError, V2Error) as error:
            return failure(error, TEXT)  # in Triton it comes before a handler has begun
        json_bytes = len(body) if length is None else min(length, len(body))
        self._check_json(json_bytes)
        read = partial(
            read_request,
            body,
            length,
            model_name=model_request.name,
            model_version=model_request.version,
            raw_inputs=raw_inputs,
            limits=self.limits,
        )
        if len(body) <= SHORT_BYTES:
            request = read()
        else:
            request, left_s = await self.offload.run(read, left_s)
        learn = None
        if type(body) is memoryview and json_bytes <= SHORT_BYTES and not request.shared:
            forms = self._forms_of(model_request.name, model_request.version)
            learn = partial(forms.learn, bytes(body[:json_bytes]))
        del body, read
        response = await self.inference.infer(request, caller_info(web, left_s), learn)
        binary = binary_names(request, response.outputs)
        encoding = accepted(web.headers.get(b"accept-encoding", b"").decode("latin-1"))
        if is_short(response.outputs):
            return reply_of(response, binary, encoding, self.limits)
        write = partial(reply_of, response, binary, encoding, self.limits)
        return (await self.offload.run(write, left_s))[0]

    def _check_json(self, size: int) -> None:
        """Raise BodySizeError for too many bytes of JSON."""
        if size > self.limits.json_bytes:
            raise SizeLimit("max_json_bytes", self.limits.json_bytes).passed(size)

    async def generate(self, model_request: ModelRequest) -> WebResponse:
        async with aclosing(await self._generated(model_request)) as answers:
            body = await anext(answers, None)
            if body is None or await anext(answers, None) is not None:
                return failed(200, NOT_ONE)  # Triton's status: the model has not failed
        return WebResponse(200, body)

    async def generate_stream(self, model_request: ModelRequest) -> WebStream:
        """Answer with server-sent events; the first answer is awaited, to tell its status."""
        answers = await self._generated(model_request)
        try:
            first = await anext(answers, None)
        except (PipelineError, V2Error) as error:
            refusal = failure(error)
            return WebStream(_only_answer(refusal.body), EVENTS, refusal.headers, refusal.status)
        return WebStream(_events(first, answers), EVENTS)

    async def _generated(self, model_request: ModelRequest) -> AsyncGenerator[bytes, None]:
        """Return the answers to a request, as they come. Raises for one that does not fit."""
        web = model_request.web
        interface = self._views.interface(
            model_request.name, model_request.version
        )  # 404 without reading
        body, left_s = await web.read(), web.timeout_s
        self._check_json(len(body))
        read = partial(
            read_generate, body, model_request.name, model_request.version, interface, self.limits
        )
        if len(body) <= SHORT_BYTES:
            request = read()
        else:
            request, left_s = await self.offload.run(read, left_s)
        self.inference.fit(request)
        return self._bodies(self.inference.answers(request, caller_info(web, left_s)))

    async def _bodies(
        self, answers: AsyncGenerator[tuple[InferResponse, bool], None]
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(answers):
            is_first = True
            async for response, _ in answers:
                if isinstance(response.error, V2Error):
                    if is_first:  # there is a status yet to tell it
                        raise response.error
                    yield failure(response.error).body
                    continue
                is_first = False
                write = partial(write_generate, response, self.limits)
                if is_short(response.outputs):
                    yield write()
                else:
                    yield (await self.offload.run(write))[0]


class InferEndpoint:
    """Requests for one model in the lane, whose heads are the same; see `LaneEndpoint`."""

    takes_large: bool = False

    def __init__(
        self, door: HttpInference, forms: RequestForms, length: int | None, web: WebRequest
    ) -> None:
        self._door = door
        self._forms = forms
        self._length = length
        self._caller = caller_info(web, web.timeout_s)

    def begin(self, body: Any, sink: ResponseSink) -> RequestHandle:
        """Have the engine begin a request. Raises HandOverError, and what `Engine.begin` does."""
        if self._length is not None and self._length > len(body):
            raise HandOverError
        try:
            return self._forms.begin(body, self._length, self._caller, sink)
        except UnknownFormError:
            raise HandOverError from None

    def reply(self, ended: Any, cause: PipelineError | None) -> LaneReply:
        """Return what is written for the answer of an engine, or for what it raised."""
        if isinstance(ended, PipelineError):
            return failure(ended)
        if isinstance(ended, Exception):
            raise ended
        call: InferCall = ended[0]
        answer = ended[1]
        written: Written | None = call.written(answer)
        if written is not None:
            body, length, tail = written
            if length is None:
                return body
            return WebResponse(200, body, BINARY, ((HEADER_LENGTH, b"%d" % length),), tail)
        if not is_short_answer(answer):
            return self._written_in_thread(call, answer)
        try:
            response = call.response(answer)
            if not is_short(response.outputs):
                return self._written_in_thread(call, answer)
            call.learn(answer, response)
            return reply_of(response, call.binary(response), "", self._door.limits)
        except (PipelineError, V2Error) as error:
            return failure(error)

    async def _written_in_thread(self, call: InferCall, answer: Any) -> WebResponse:
        """Have a large answer written beside the event loop."""
        limits = self._door.limits

        def write() -> WebResponse:
            response = call.response(answer)
            call.learn(answer, response)
            return reply_of(response, call.binary(response), "", limits)

        try:
            return (await self._door.offload.run(write, self._caller.timeout_s))[0]
        except (PipelineError, V2Error) as error:
            return failure(error)


class LargeInferEndpoint(InferEndpoint):
    """The same for bodies in a view, whose arrays stay there."""

    takes_large: bool = True

    def begin(self, body: memoryview, sink: ResponseSink) -> RequestHandle:
        """Have the engine begin a request. Raises HandOverError, and what `Engine.begin` does."""
        length = self._length
        if length is None or not 0 < length <= min(len(body), SHORT_BYTES):
            raise HandOverError
        try:
            return self._forms.begin_on(body, length, self._caller, sink)
        except UnknownFormError:
            raise HandOverError from None


def caller_info(web: WebRequest, left_s: float | None) -> CallerInfo:
    """Return what a caller says beside its request, for which it waits so long."""
    return CallerInfo(
        left_s, web.headers.get(b"traceparent", b"").decode("latin-1"), web.headers.items
    )


async def _only_answer(body: bytes) -> AsyncGenerator[bytes, None]:
    yield b"data: %b\n\n" % body


async def _events(
    first: bytes | None, answers: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Yield an event for each answer; an error after some of them is the last event."""
    async with aclosing(answers):
        if first is not None:
            yield b"data: %b\n\n" % first
        try:
            async for body in answers:
                yield b"data: %b\n\n" % body
        except (PipelineError, V2Error) as error:
            yield b"data: %b\n\n" % failure(error).body


def failure(error: HttpError | PipelineError | V2Error, content_type: bytes = JSON) -> WebResponse:
    """Return the answer to a request that ended in an error."""
    if isinstance(error, BodySizeError):
        return failed(400, _too_large(error), error.headers, content_type)
    if isinstance(error, HttpError):  # of reading the body
        status = 501 if error.status == 415 else error.status  # as Triton says it
        return failed(status, str(error), error.headers, content_type)
    refusal = v2_error(error)
    after_s = refusal.retry_after_s
    headers = () if after_s is None else ((b"retry-after", b"%d" % after_s),)
    return failed(refusal.kind.http_status, str(refusal), headers, content_type)


def _too_large(error: BodySizeError) -> str:
    """Return Triton's text for a body above a limit, and the limit's key here."""
    key, most = error.limit
    if error.size is None:
        text = f"Decompressed data size exceeds the maximum allowed value of {most} bytes."
    else:
        text = (
            f"request JSON size of {error.size} bytes exceeds the maximum allowed input size of "
            f"{most} bytes."
        )
    return f"{text} Use --http-max-input-size to increase the limit. In config.yml it is {key}."


def failed(
    status: int,
    text: str,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    content_type: bytes = JSON,
) -> WebResponse:
    """Return an answer that is an error."""
    return WebResponse(status, orjson.dumps({"error": text}), content_type, headers)


def _header_length(web: WebRequest, body_length: int) -> int | None:
    """Return the length of the JSON that the body begins with, if the request says it."""
    header = web.headers.get(HEADER_LENGTH)
    if header is None:
        return None
    text = header.decode("latin-1").strip()
    if not re.fullmatch("-?[0-9]{1,18}", text):
        raise PackageError(f"Inference-Header-Content-Length {text!r} is not a number of bytes")
    if not 0 <= int(text) <= body_length:
        raise PackageError(
            f"inference header size should be in range (0, {body_length}), got: {text}"
        )
    return int(text)


def accepted(header: str) -> str:
    """Return the encoding that a caller takes its answer in; "": unencoded."""
    weights: dict[str, float] = {}
    for entry in header.lower().split(","):
        name, _, weight = entry.partition(";")
        weights[name.strip()] = _weight(weight)
    encoding = max(_WINDOW_BITS, key=lambda name: weights.get(name, weights.get("*", 0.0)))
    return encoding if weights.get(encoding, weights.get("*", 0.0)) > 0 else ""


def _weight(text: str) -> float:
    """Return 0.5 for `q=0.5`; 1 where there is none."""
    match = re.fullmatch(r"\s*q=([01](?:\.[0-9]{0,3})?)\s*", text)
    return float(match[1]) if match else 1.0


def reply_of(
    response: InferResponse, binary: set[str], encoding: str, limits: Limits
) -> WebResponse:
    """Return the answer to an inference request. Raises PackageError, PayloadTypeError."""
    body, length = write_response(response, binary, limits)
    headers, content_type = [], b"application/json"
    if length is not None:
        content_type = BINARY
        headers.append((HEADER_LENGTH, b"%d" % length))
    if encoding:
        body = _compress(body, encoding)
        headers.append((b"content-encoding", encoding.encode()))
    return WebResponse(200, body, content_type, tuple(headers))


def _compress(body: bytes, encoding: str) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[encoding])
    view, pieces = memoryview(body), []
    for at in range(0, len(body), SLICE_BYTES):
        pieces.append(packer.compress(view[at : at + SLICE_BYTES]))
        breathe()
    return b"".join((*pieces, packer.flush()))
