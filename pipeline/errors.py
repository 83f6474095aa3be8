"""The only tree of exceptions: every class has its `err_no`, and its statuses over HTTP and gRPC.

The codes are those of Paddle Serving's pipeline 0.8 and later; `OVERLOADED` is new. Frontends
call `http_status_of` and `grpc_status_of`; those of OpenAI's API and Triton's protocol translate to
the codes of these APIs.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import ClassVar

from pipeline.answer_head import AnswerHead, grpc_status_for, head_of

MAX_TEXT = 16384  # characters of an error; a longer text is of no use, and costs time
_MAX_CHARACTERS = 400  # of a text of another library

ERROR_STATUSES = (400, 599)
"""Bounds of the HTTP statuses that user code may give an error."""

UNPRINTABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""Characters that could fake a line of a log, or change how the text is shown."""


class ErrorCode(enum.IntEnum):
    """Values of `Response.err_no`. 51-99 are free for products; any int32 is passed through."""

    OK = 0
    PRODUCT_ERROR = 50
    NOT_IMPLEMENTED = 3000
    CLOSED_ERROR = 3001
    NO_SERVICE = 3002
    INIT_ERROR = 3003
    OVERLOADED = 3004
    UNAUTHENTICATED = 3010
    FORBIDDEN = 3011
    OVER_LIMIT = 3012
    CONF_ERROR = 4000
    INPUT_PARAMS_ERROR = 5000
    TIMEOUT = 6000
    TYPE_ERROR = 7000
    RPC_PACKAGE_ERROR = 8000
    CLIENT_ERROR = 9000
    UNKNOW = 10000
    UNKNOWN = 10000


class PipelineError(Exception):
    """Base of all errors of this library.

    Attributes:
        code: the `err_no` that a client gets.
        http_status: of the answer, if the protocol has statuses; `grpc_status` over gRPC.
        head: a status and headers that user code set instead.
        was_logged: the log has the cause, with its traceback.
        is_callers: the request is wrong, and the service works as it should.
        op: the name of the Op that failed, set when the engine passes the error on; None: no Op.
    """

    code: int = ErrorCode.UNKNOW
    http_status: int = 500
    grpc_status: str = "INTERNAL"
    head: AnswerHead | None = None
    was_logged: bool = False
    is_callers: bool = False
    op: str | None = None


class ProductError(PipelineError):
    """An error of the product, not of the framework: raise it from any user method.

    `raise ProductError(51, "no face in the picture")` is the same as returning `prod_errcode` and
    `prod_errinfo`: later Ops are skipped and the client gets both.

    Args:
        code: `err_no` of the answer.
        text: `err_msg` of the answer.
        status: over HTTP, 400 to 599; over gRPC a matching one. None: 400 in protocols whose errors
            have a status, and 200 in those with an `err_no` instead.
        headers: of the answer, such as Retry-After.

    Raises:
        ValueError: an answer cannot have that status, or those headers.
    """

    code: int = ErrorCode.PRODUCT_ERROR
    http_status = 400
    grpc_status = "INVALID_ARGUMENT"
    is_callers = True
    status: int | None = None
    headers: Mapping[str, str] = {}

    def __init__(
        self,
        code: int,
        text: str = "",
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(text)
        self.code = int(code)
        if status is not None:
            self.status = status
        if headers is not None:
            self.headers = headers
        head_of(status, headers or {}, *ERROR_STATUSES)


class NotImplementedByOpError(PipelineError):
    """The author of an Op has to write the method that was called."""

    code: int = ErrorCode.NOT_IMPLEMENTED
    http_status = 501
    grpc_status = "UNIMPLEMENTED"


class ClosedError(PipelineError):
    """The server is stopping: the request was not processed, or only in part."""

    code: int = ErrorCode.CLOSED_ERROR
    http_status = 503
    grpc_status = "UNAVAILABLE"


class RequestCancelledError(ClosedError):
    """The request will not run, because another one of its sequence was given up."""

    http_status = 499
    grpc_status = "CANCELLED"


class NoServiceError(PipelineError):
    """The request names another service."""

    code: int = ErrorCode.NO_SERVICE
    http_status = 404
    grpc_status = "NOT_FOUND"


class InitError(PipelineError):
    """An Op, predictor or frontend could not be started."""

    code: int = ErrorCode.INIT_ERROR
    http_status = 503
    grpc_status = "UNAVAILABLE"


class PortInUseError(InitError):
    """A port is in use by another process.

    Attributes:
        key: the configuration's key for the port.
        port: its number.
    """

    key: str = ""
    port: int = 0


class OverloadedError(PipelineError):
    """The server cannot process the request, or not in time: try again later, or elsewhere.

    `retry_after_s`: when there will probably be room.
    """

    code: int = ErrorCode.OVERLOADED
    http_status = 503
    grpc_status = "RESOURCE_EXHAUSTED"

    def __init__(self, text: str = "", retry_after_s: int = 1) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class NoRoomError(OverloadedError):
    """The data of a request has no room now in memory for other processes."""


class QueueLimitError(OverloadedError):
    """A limit of an Op's queue kept the request from its workers: too many, or too long."""


class TooLateError(QueueLimitError):
    """The request would have missed its deadline in the queue of an Op, and was refused."""


class ConfigError(PipelineError):
    """The configuration is wrong. The text has file, line, key, expected and found value."""

    code: int = ErrorCode.CONF_ERROR


class GraphError(ConfigError):
    """The Ops do not form a graph that can be served."""


class InputError(PipelineError):
    """A model was fed names or shapes that it does not have."""

    code: int = ErrorCode.INPUT_PARAMS_ERROR
    http_status = 400
    grpc_status = "INVALID_ARGUMENT"


class UnspecifiedError(InputError):
    """A model refused a request without a more specific error: UNKNOWN over gRPC."""

    http_status = 400
    grpc_status = "UNKNOWN"


class ConflictError(InputError):
    """A model refused a request because something exists already: ALREADY_EXISTS over gRPC."""

    http_status = 400
    grpc_status = "ALREADY_EXISTS"


class FieldsError(InputError):
    """A client's fields, which went to a model unchanged, are not what the model takes."""

    is_callers = True


class FeedError(PipelineError):
    """An Op fed its model something that the model does not take."""

    code: int = ErrorCode.INPUT_PARAMS_ERROR


class DeadlineError(PipelineError):
    """A deadline or an Op's timeout passed."""

    code: int = ErrorCode.TIMEOUT
    http_status = 504
    grpc_status = "DEADLINE_EXCEEDED"


class PayloadTypeError(PipelineError):
    """Data has a type or layout that cannot be used here."""

    code: int = ErrorCode.TYPE_ERROR


class PackageError(PipelineError):
    """A request could not be unpacked, or a response not packed."""

    code: int = ErrorCode.RPC_PACKAGE_ERROR
    http_status = 400
    grpc_status = "INVALID_ARGUMENT"


class TooLargeError(PackageError):
    """A message is larger than a limit of this server; the text names the limit's key."""

    http_status = 413
    grpc_status = "RESOURCE_EXHAUSTED"


class AnswerTooLargeError(TooLargeError):
    """An Op's answer has no room in memory for other processes. The Op has run: no repeat."""

    http_status = 500
    grpc_status = "INTERNAL"


class PredictorError(PipelineError):
    """A predictor failed. `retryable`: the same call may succeed later."""

    code: int = ErrorCode.CLIENT_ERROR
    retryable: ClassVar[bool] = False


class PredictorUnavailableError(PredictorError):
    """A predictor's server could not be reached, or refused the call for now."""

    http_status = 503
    grpc_status = "UNAVAILABLE"
    retryable = True


class UserCodeError(PipelineError):
    """A user's method raised, or `process` failed, without a more specific code."""

    code: int = ErrorCode.UNKNOW
    was_logged = True


class WorkerDiedError(PipelineError):
    """The process that ran the request ended: killed, crashed, or ended by user code."""

    code: int = ErrorCode.UNKNOW


class DataLostError(WorkerDiedError):
    """Data for an Op was lost with its machine, or had no room there."""


_FROM_NAME: dict[str, type[PipelineError]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, PipelineError)
}
# Of several classes with one code the first is the general one.
_FROM_CODE: dict[int, type[PipelineError]] = {
    kind.code: kind
    for kind in reversed(_FROM_NAME.values())
    if kind is not PipelineError and kind is not ProductError
}


def http_status_of(error: PipelineError) -> int:
    """Return the HTTP status of an error, for protocols with statuses."""
    if error.head is not None and error.head.status is not None:
        return error.head.status
    return InputError.http_status if _is_blamed_on_caller(error) else error.http_status


def grpc_status_of(error: PipelineError) -> str:
    """Return the name of the gRPC status of an error, for calls with statuses."""
    if error.head is not None and error.head.status is not None:
        return grpc_status_for(error.head.status)
    return InputError.grpc_status if _is_blamed_on_caller(error) else error.grpc_status


def _is_blamed_on_caller(error: PipelineError) -> bool:
    return error.is_callers and error.http_status == PipelineError.http_status


def coded_error(code: int, text: str) -> PipelineError:
    """Return an error with a code that user code chose, and with the statuses of this code."""
    error = PipelineError(text)
    _set_code(error, code)
    return error


def _set_code(error: PipelineError, code: int) -> None:
    error.code = code
    kind = _FROM_CODE.get(code)
    if kind is not None:
        error.http_status, error.grpc_status = kind.http_status, kind.grpc_status


def error_from_wire(code: int, text: str, cause: PipelineError | None = None) -> PipelineError:
    """Return the error that a peer answered as `err_no` (not 0) and `err_msg`.

    An unknown code is a product's. Only this function turns wire data into errors; the other
    direction is each class's `code`. `cause` is the error that a ResponseOp of this server got, if
    known: several classes may share a code on the wire.
    """
    kind = _FROM_CODE.get(code)
    error = ProductError(code, text) if kind is None else kind(text)
    if cause is not None:
        error.head = cause.head
        if cause.code == code:
            error.http_status, error.grpc_status = cause.http_status, cause.grpc_status
            error.is_callers = cause.is_callers
    return error


def error_to_fields(
    error: PipelineError,
) -> tuple[str, int, str, int | None, AnswerHead | None]:
    """Return (class, code, text, `retry_after_s`, head) of an error, for another of our processes.

    The code has at most 64 bits: a longer one, which no peer could read, goes into the text.
    """
    kind = next(kind for kind in type(error).__mro__ if _FROM_NAME.get(kind.__name__) is kind)
    code, text = int(error.code), str(error)
    if code.bit_length() > 63:
        code, text = ErrorCode.PRODUCT_ERROR, f"[{code}] {text}"
    later_s = error.retry_after_s if isinstance(error, OverloadedError) else None
    return kind.__name__, int(code), utf8_text(text), later_s, error.head


def note_op(outcome: object, name: str) -> None:
    """Note the Op in an error that does not name one."""
    if isinstance(outcome, PipelineError) and outcome.op is None:
        outcome.op = name


def utf8_text(text: str) -> str:
    """Return `text` in valid UTF-8; names of files may have other bytes."""
    return text.encode("utf-8", "backslashreplace").decode()


def one_line(text: str) -> str:
    """Return another library's error text, short enough for an answer and a log."""
    text = " ".join(text.split())
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "..."


def printable(text: str) -> str:
    r"""Return `text` without characters that begin a line, colour a terminal or change the
    direction.

    Control characters except the tab, line and paragraph separators, direction marks and lone
    surrogates are escaped as in a Python string: `\\n`, `\\x1b`.
    """
    if text.isprintable():
        return text
    return UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def shortened(text: str) -> str:
    """Return the beginning, and the length, of a text that is too long for an answer or a log."""
    return f"{text[:MAX_TEXT]}... ({len(text)} characters)" if len(text) > MAX_TEXT else text


def described(error: BaseException) -> str:
    """Return the text of an exception, with its type before it if it is not this library's."""
    kind = type(error).__name__
    try:
        text = shortened(str(error))
    except Exception:  # the user's own __str__
        return f"{kind}, whose text cannot be read"
    if text and isinstance(error, PipelineError):
        return text
    return f"{kind}: {text}" if text else kind


def with_text(error: PipelineError, text: str) -> PipelineError:
    """Return a copy with another text, because other requests may have the same error."""
    kind = type(error)
    copy = kind.__new__(kind)
    vars(copy).update(vars(error))
    copy.args = (text,)
    return copy


def error_from_fields(
    name: str,
    code: int,
    text: str,
    retry_after_s: int | None = None,
    head: AnswerHead | None = None,
) -> PipelineError:
    """Return the error of `error_to_fields`; for a user's class its base class in this library."""
    kind = _FROM_NAME[name]
    error = kind(code, text) if issubclass(kind, ProductError) else kind(text)
    if isinstance(error, OverloadedError) and retry_after_s is not None:
        error.retry_after_s = retry_after_s
    if error.code != code:
        _set_code(error, code)
    if head is not None:
        error.head = head
    return error
