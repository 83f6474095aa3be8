"""Requests, responses and errors of `triton_python_backend_utils`."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.data import RequestContext, SequenceStep, own_parameters
from pipeline.engine.model_calls import LAST, PARAMETERS, failed_part
from pipeline.errors import (
    ConflictError,
    InputError,
    NoServiceError,
    NotImplementedByOpError,
    OverloadedError,
    PipelineError,
    RequestCancelledError,
    UnspecifiedError,
    UserCodeError,
)
from pipeline.repository.backends.python.tensors import (
    NamedTensor,
    TritonModelException,
    received,
    sent,
)

FLAG_START = 1
"""Flag of the first request of a sequence."""

FLAG_END = 2
"""Flag of the last one."""

COMPLETE_FINAL = 1
"""Flag of the last response to a request."""

RELEASE_ALL = 1
"""Flag of a request that is over with its response."""

RELEASE_RESCHEDULE = 2
"""Flag of one that comes again."""

_WAIT_S = 0.1  # between two looks at whether a caller has left


class TritonError(Exception):
    """An error of one request, with one of the codes."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        super().__init__(message)
        self._message = message
        self._code = code

    def message(self) -> str:
        """Return the text."""
        return self._message

    def code(self) -> int:
        """Return the code."""
        return self._code


_ERRORS: Mapping[int, type[PipelineError]] = {
    TritonError.UNKNOWN: UnspecifiedError,
    TritonError.NOT_FOUND: NoServiceError,
    TritonError.INVALID_ARG: InputError,
    TritonError.UNAVAILABLE: OverloadedError,
    TritonError.UNSUPPORTED: NotImplementedByOpError,
    TritonError.ALREADY_EXISTS: ConflictError,
    TritonError.CANCELLED: RequestCancelledError,
}


def error_of(error: Any) -> PipelineError:
    """Return the error that a caller gets for a TritonError of a response."""
    text = error.message() if isinstance(error, TritonError) else str(error)
    code = error.code() if isinstance(error, TritonError) else TritonError.INTERNAL
    return _ERRORS.get(code, UserCodeError)(text)


def checked(parameters: Any) -> dict[str, bool | int | str]:
    """Return parameters of a request or response. TritonModelException: they are not valid."""
    if isinstance(parameters, str):
        parameters = json.loads(parameters or "{}")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect parameters to be a dict, got {type(parameters)}")
    for name, value in parameters.items():
        if not isinstance(name, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(name)}"
            )
        if not isinstance(value, bool | int | str):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
    return parameters


class InferenceResponse:
    """A response to one request: tensors, or an error.

    Raises:
        TritonModelException: an output is no NamedTensor, a parameter no bool, number or text.

    Attributes:
        is_last: whether it was sent as the last one of several.
    """

    is_last: bool = False

    def __init__(
        self,
        output_tensors: Sequence[NamedTensor] = (),
        error: TritonError | None = None,
        parameters: str | Mapping[str, Any] | None = None,
    ) -> None:
        for tensor in output_tensors:
            if not isinstance(tensor, NamedTensor):
                raise TritonModelException(f"expected a NamedTensor, found {type(tensor).__name__}")
        self._outputs = list(output_tensors)
        self._error = error
        self._parameters = {} if parameters is None else checked(parameters)

    def output_tensors(self) -> list[NamedTensor]:
        """Return the tensors."""
        return self._outputs

    def has_error(self) -> bool:
        """Return whether it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error, if it is one."""
        return self._error

    def parameters(self) -> str:
        """Return the parameters, as JSON; "" for none."""
        return json.dumps(self._parameters) if self._parameters else ""

    def result(self) -> Any:
        """Return the arrays by name, or the error that the caller gets."""
        if self._error is not None:
            return error_of(self._error)
        tensors: dict[str, Any] = {}
        for tensor in self._outputs:
            tensors[tensor.name()] = sent(tensor.as_numpy())
        if self._parameters:
            tensors[PARAMETERS] = self._parameters
        return tensors

    def part(self) -> Any:
        """Return it as one response of several: an error does not end them."""
        result = self.result()
        if isinstance(result, PipelineError):
            return failed_part(result)
        return {**result, LAST: True} if self.is_last else result


class ResponseSender:
    """Sends the responses to one request, from any thread.

    Args:
        is_cancelled: returns whether nobody waits for them any more.
        put: gets each, and None behind the last; None: they wait for `next`.
        sends_one: whether there is one response to a request.

    Attributes:
        has_sent: whether a response was sent.
    """

    def __init__(
        self,
        is_cancelled: Callable[[], bool],
        put: Callable[[Any], None] | None = None,
        sends_one: bool = False,
    ) -> None:
        self._is_cancelled = is_cancelled
        self._sends_one = sends_one
        self.has_sent: bool = False
        self._sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._put = put or self._sent.put
        self._lock = threading.Lock()
        self._is_closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, or the flag COMPLETE_FINAL, behind which there is none, or both.

        Raises:
            TritonModelException: the last one was sent before, or it is neither.
        """
        with self._lock:
            if self._is_closed:
                raise TritonModelException(
                    "Unable to send response. Response sender has been closed."
                )
            if flags not in (0, COMPLETE_FINAL):
                raise TritonModelException(
                    "Unable to send response. Unsupported flag provided. Only supported flag is "
                    "TRITONSERVER_RESPONSE_COMPLETE_FINAL."
                )
            if response is None and not flags:
                raise TritonModelException(
                    "Inference Response object must be provided when the response flags is set to "
                    "zero."
                )
            if self._sends_one and response is not None and self.has_sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one "
                    "response."
                )
            if self._sends_one and response is None and not self.has_sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final "
                    "before sending a response."
                )
            self.has_sent = True
            self._is_closed = bool(flags)
            if response is not None and flags and response.has_error():
                self._put(response.result())  # which ends it
                return
            if response is not None:
                response.is_last = bool(flags)
                self._put(response)
            if flags:
                self._put(None)

    def is_cancelled(self) -> bool:
        """Return whether nobody waits for the responses any more."""
        return self._is_cancelled()

    def fail(self, error: PipelineError) -> bool:
        """End with an error; return False, and do nothing, if the last response was sent."""
        with self._lock:
            if self._is_closed:
                return False
            self._is_closed = True
            self._put(error)
            return True

    def next(self) -> Any:
        """Return the next response, or the error in its place; None: there is no other.

        It is waited for, unless nobody waits for the responses any more.
        """
        while True:
            try:
                return self._sent.get(timeout=_WAIT_S)
            except queue.Empty:
                if self._is_cancelled():
                    return None


class IncomingRequest:
    """A request, as `execute` of a model gets it.

    Args:
        feed: arrays by input.
        context: what its caller sends besides them.
        model_name: of the model.
        outputs: names of all outputs of the model.
        put: gets what its sender sends; see `ResponseSender`, as for `sends_one`.

    Attributes:
        has_sender: whether the model has asked for its sender.
        is_rescheduled: whether the model wants it again.
    """

    has_sender: bool = False
    is_rescheduled: bool = False

    def __init__(
        self,
        feed: Mapping[str, Any],
        context: RequestContext,
        model_name: str,
        outputs: Sequence[str],
        put: Callable[[Any], None] | None = None,
        sends_one: bool = False,
    ) -> None:
        self._inputs = list(map(received, feed, feed.values()))
        self._context = context
        self._model_name = model_name
        self._outputs = outputs
        self._told = put, sends_one

    @property
    def step(self) -> SequenceStep | None:
        """Step of its sequence, with the slot of that; None: the model has no sequences."""
        return self._context.sequence

    def inputs(self) -> list[NamedTensor]:
        """Return the tensors."""
        return self._inputs

    def request_id(self) -> str:
        """Return the caller's id; "" for none."""
        return self._context.id

    def correlation_id(self) -> int | str:
        """Return the id of the sequence; 0 or "" for none."""
        return self._context.sequence_id

    def requested_output_names(self) -> set[str]:
        """Return the outputs that are asked for."""
        return set(self._context.outputs or self._outputs)

    def model_name(self) -> str:
        """Return the name of the model."""
        return self._model_name

    def flags(self) -> int:
        """Return whether it is the first or the last one of its sequence."""
        context = self._context
        return FLAG_START * context.sequence_start | FLAG_END * context.sequence_end

    def timeout(self) -> int:
        """Return the caller's timeout in microseconds; 0: none."""
        timeout_us = self._context.parameters.get("timeout", 0)
        return timeout_us if isinstance(timeout_us, int) else 0

    def parameters(self) -> str:
        """Return the parameters that are the caller's own, and forwarded headers, as JSON."""
        return json.dumps(own_parameters(self._context))

    def preferred_memory(self) -> None:
        """Return None: outputs are made in the host's memory."""

    def trace(self) -> None:
        """Return None: requests are traced by the server."""

    def is_cancelled(self) -> bool:
        """Return whether nobody waits for the response any more."""
        return self._context.is_cancelled()

    @property
    def sender(self) -> ResponseSender:
        """Return what sends its responses, which few models ask for; in any thread."""
        own: dict[str, Any] = vars(self)
        own_sender: ResponseSender | None = own.get("_sender")
        if own_sender is None:
            made = ResponseSender(self._context.is_cancelled, *self._told)
            own_sender = own.setdefault("_sender", made)
        return own_sender

    @property
    def has_sent(self) -> bool:
        """Return whether a response was sent, and not returned."""
        return self.has_sender and self.sender.has_sent

    def get_response_sender(self) -> ResponseSender:
        """Return what sends the response, or several, in the place of what `execute` returns."""
        self.has_sender = True
        return self.sender

    def set_release_flags(self, flags: int) -> None:
        """Say whether the request is to come again. TritonModelException: no such flags."""
        if flags not in (RELEASE_ALL, RELEASE_RESCHEDULE):
            raise TritonModelException(f"flags {flags}: expected RELEASE_ALL or RELEASE_RESCHEDULE")
        self.is_rescheduled = flags == RELEASE_RESCHEDULE

    def comes_again(self) -> bool:
        """Return whether the model wants it again, and somebody still waits for its answer."""
        comes, self.is_rescheduled = self.is_rescheduled, False
        return comes and not self.is_cancelled()
