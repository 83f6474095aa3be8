"""The general model service over HTTP: `POST /GeneralModelService/inference`, as in brpc."""

from __future__ import annotations

import asyncio
import gzip
import re

from pipeline.errors import (
    ErrorCode,
    NoServiceError,
    PipelineError,
    TooLargeError,
    http_status_of,
    utf8_text,
)
from pipeline.frontends.http.routes import (
    JSON,
    Endpoint,
    HttpError,
    WebRequest,
    WebResponse,
    not_allowed,
)
from pipeline.proto.brpc.general_model import response_to_json
from pipeline.proto.general_model_pb2 import Response
from pipeline.proto.slices import Limits
from pipeline.serve.ops import METHODS, Answer, ModelCall, log_id_of

PROTO = b"application/proto"
_PROTOS = (PROTO, b"application/x-protobuf", b"application/protobuf")
_PATH = re.compile(rf"/(?:baidu[.a-z_]*\.)?GeneralModelService/(?:{'|'.join(METHODS)})")
_MIN_GZIP_BYTES = 512  # as in brpc; below it gzip costs more than it saves
_MAX_INLINE_BYTES = 64 * 1024  # of an answer that is compressed on the event loop
_LEVEL = 1  # of gzip: higher levels compress tensors hardly better


class ModelRoutes:
    """The service's methods by path.

    A body of `application/proto` is a Request; other bodies are JSON, as `curl -d` sends it. The
    answer has the same form. Errors of the model and of its input are answers with status 200,
    `err_no` and `err_msg`.

    Args:
        answer: answers a call of any protocol.
        limits: limits of JSON.
    """

    def __init__(self, answer: Answer, limits: Limits | None = None) -> None:
        self._answer = answer
        self._limits = limits or Limits()

    def endpoint(self, request: WebRequest) -> Endpoint:
        """Return the endpoint for a request, also for unknown paths."""
        return self._infer

    async def _infer(self, request: WebRequest) -> WebResponse:
        if not _PATH.fullmatch(request.path):
            text = f"no such path: {request.path}; POST /GeneralModelService/inference"
            raise HttpError(404, NoServiceError(text))
        if request.method != "POST":
            raise not_allowed(request.method, b"POST")
        content_type = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        is_json = content_type not in _PROTOS
        message = await request.read()
        if is_json and len(message) > self._limits.json_bytes:
            text = f"the request is larger than max_json_bytes ({self._limits.json_bytes} bytes)"
            raise HttpError(413, TooLargeError(f"{text}: send {PROTO.decode()}"))
        log_id = 0 if is_json else log_id_of(message)
        status, headers = 200, []
        try:
            body = await self._answer(
                ModelCall(message, log_id=log_id, is_json=is_json), request.timeout_s
            )
        except PipelineError as error:
            status = 503 if http_status_of(error) == 503 else 200  # other errors are in the answer
            body = _failed(error, log_id, is_json)
        del message
        if len(body) >= _MIN_GZIP_BYTES and _takes_gzip(request):
            if len(body) > _MAX_INLINE_BYTES:
                body = await asyncio.to_thread(gzip.compress, body, _LEVEL)
            else:
                body = gzip.compress(body, _LEVEL)
            headers.append((b"content-encoding", b"gzip"))
        return WebResponse(status, body, JSON if is_json else PROTO, tuple(headers))


def _takes_gzip(request: WebRequest) -> bool:
    accepted = request.headers.get(b"accept-encoding", b"").lower()
    return re.search(rb"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))", accepted) is not None


def _failed(error: PipelineError, log_id: int, is_json: bool) -> bytes:
    code, text = int(error.code), utf8_text(str(error))
    if not -(2**31) <= code < 2**31:  # such a code must not make the answer fail
        code, text = ErrorCode.PRODUCT_ERROR, f"[{code}] {text}"
    response = Response(err_no=code, err_msg=text, log_id=log_id)
    return response_to_json(response) if is_json else response.SerializeToString()
