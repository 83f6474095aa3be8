"""Calls from a model to its server: `InferenceRequest` with its `exec`, and `MetricFamily`."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import math
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from pipeline.engine.model_calls import (
    LAST,
    PARAMETERS,
    MetricUse,
    ModelCaller,
    ModelChange,
    ModelPart,
    OnPart,
    PeerCall,
    error_in,
    outputs_in,
)
from pipeline.errors import DeadlineError, InputError, PipelineError, RequestCancelledError
from pipeline.frontends.v2.errors import V2Error, V2Status, v2_error
from pipeline.frontends.v2.parameters import check_parameters, info_of
from pipeline.repository.backends.python.requests import (
    FLAG_END,
    FLAG_START,
    InferenceResponse,
    TritonError,
    checked,
)
from pipeline.repository.backends.python.tensors import (
    NamedTensor,
    TritonModelException,
    received,
    sent,
)
from pipeline.tracing.context import call_trace
from pipeline.workers.peer_calls import refused

_CODES = {
    V2Status.NOT_FOUND: TritonError.NOT_FOUND,
    V2Status.INVALID: TritonError.INVALID_ARG,
    V2Status.UNAVAILABLE: TritonError.UNAVAILABLE,
    V2Status.UNSUPPORTED: TritonError.UNSUPPORTED,
    V2Status.CANCELLED: TritonError.CANCELLED,
}


class ServerAccess:
    """The models of the server, for a worker's code.

    Attributes:
        caller: calls them; None: not possible.
        is_idle: `initialize` or `finalize` of a model runs here.
    """

    caller: ModelCaller | None = None
    is_idle: ContextVar[bool] = ContextVar("is_idle", default=False)

    @classmethod
    def without(cls, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return a context in which a method of a model may not call other models."""
        token = cls.is_idle.set(True)
        try:
            return work(*arguments)
        finally:
            cls.is_idle.reset(token)

    @classmethod
    def get(cls) -> ModelCaller:
        """Return the caller. Raises TritonModelException: there is none."""
        if cls.caller is None:
            raise TritonModelException("this process has no way to the models of a server")
        return cls.caller


class InferenceRequest:
    """A request to another model of the server.

    Args:
        model_name: of the model.
        requested_output_names: requested outputs; empty: all.
        inputs: tensors.
        request_id: only for logs.
        correlation_id: of a sequence; 0 or "" for none.
        model_version: -1: the latest.
        flags: of a sequence.
        timeout: microseconds, after which the response is an error; 0: none.
        preferred_memory: has no effect.
        trace: has no effect: it is traced with the current request.
        parameters: of the request, a dict.

    Raises:
        TritonModelException: an argument is invalid.
        TypeError: an argument is missing, or has a wrong type.
    """

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[NamedTensor] | None = None,
        requested_output_names: Sequence[str] | None = None,
        model_name: str | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: Any = None,
        trace: Any = None,
        parameters: Mapping[str, Any] | str | None = None,
    ) -> None:
        if inputs is None or requested_output_names is None or model_name is None:
            needed = {
                "inputs": inputs,
                "requested_output_names": requested_output_names,
                "model_name": model_name,
            }
            missing = [name for name, given in needed.items() if given is None]
            raise TypeError(f"InferenceRequest needs {', '.join(missing)}")
        for number in (model_version, flags, timeout):
            if not isinstance(number, int):
                raise TypeError(f"expected a whole number, found {type(number).__name__}")
        about = f"for request with id '{request_id}' and model name '{model_name}' should not be"
        if any(tensor is None for tensor in inputs):
            raise TritonModelException(f"Input tensor {about} empty.")
        if "" in requested_output_names:
            raise TritonModelException(f"Requested output name {about} empty.")
        if correlation_id is None:
            raise TypeError("correlation_id cannot be None")
        if isinstance(correlation_id, bool) or not isinstance(correlation_id, int | str):
            raise TritonModelException("Correlation ID must be integer or string")
        self._name = _text(model_name)
        self._version = model_version
        self._inputs = list(inputs)
        self._outputs = [_text(name) for name in requested_output_names]
        self._id = _text(request_id)
        self._sequence = correlation_id
        self._flags = flags
        self._timeout = timeout
        self._said: Mapping[str, Any] = checked(parameters)
        self._ends = math.inf

    def inputs(self) -> list[NamedTensor]:
        """Return the tensors."""
        return self._inputs

    def request_id(self) -> str:
        """Return the id."""
        return self._id

    def correlation_id(self) -> int | str:
        """Return the id of the sequence."""
        return self._sequence

    def requested_output_names(self) -> set[str]:
        """Return the requested outputs."""
        return set(self._outputs)

    def model_name(self) -> str:
        """Return the name of the model."""
        return self._name

    def set_flags(self, flags: int) -> None:
        """Set whether it is the first or the last request of its sequence."""
        self._flags = flags

    def flags(self) -> int:
        """Return the flags."""
        return self._flags

    def timeout(self) -> int:
        """Return the microseconds after which the response is an error; 0: none."""
        return self._timeout

    def parameters(self) -> str:
        """Return the parameters, as JSON."""
        return json.dumps(dict(self._said))

    def trace(self) -> None:
        """Return None: requests are traced by the server."""

    def exec(self, decoupled: bool = False) -> InferenceResponse | Iterator[InferenceResponse]:
        """Return the response; if it is `decoupled`, an iterator of several.

        Raises:
            TritonModelException: the model is not executing, or cannot call others.
        """
        if decoupled:
            return _Responses(self)
        answers: queue.SimpleQueue[ModelPart] = queue.SimpleQueue()
        try:
            self.begin(False, answers.put)
        except PipelineError as error:
            return failed(error)
        return self.response(answers.get())

    def async_exec(self, decoupled: bool = False) -> asyncio.Future[Any]:
        """Begin the call, and return an awaitable of the response.

        If it is `decoupled`, the result is an iterator of several responses, when the first has
        arrived. Raises as `exec` does.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def take(answer: Callable[[], Any]) -> None:
            if not future.done():
                future.set_result(answer())

        def soon(answer: Callable[[], Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(take, answer)

        if decoupled:
            responses = _Responses(self, lambda: soon(lambda: responses))
            return future
        try:
            call = self.begin(False, lambda part: soon(functools.partial(self.response, part)))
        except PipelineError as error:
            future.set_result(failed(error))
        else:
            future.add_done_callback(lambda done: call.cancel() if done.cancelled() else None)
        return future

    def begin(self, takes_parts: bool, on_part: OnPart) -> Any:
        """Begin the call. Raises PipelineError, and TritonModelException as `exec` does."""
        if ServerAccess.is_idle.get():
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        own_parameters = self._parameters()
        try:
            check_parameters({"sequence_id": self._sequence})
        except V2Error as error:
            raise refused(self._name, InputError(str(error))) from None
        limit_s = self._timeout / 1e6 if self._timeout else None
        self._ends = time.monotonic() + (limit_s or math.inf)
        info = info_of(self._id, own_parameters, {}, self._outputs)
        call = PeerCall(self._name, self._version, info, limit_s, call_trace(), takes_parts)
        feeds = {tensor.name(): sent(tensor.as_numpy()) for tensor in self._inputs}
        return ServerAccess.get().begin(call, feeds, on_part)

    def response(self, part: ModelPart) -> InferenceResponse:
        """Return an answer as the model's response."""
        if isinstance(part.error, DeadlineError) and time.monotonic() >= self._ends:
            return failed(DeadlineError("Request timeout expired"))
        if part.error is not None:
            return failed(part.error)
        answer = part.outputs or {}
        failure = error_in(answer)
        if failure is not None:
            return failed(failure)
        outputs = outputs_in(answer)
        names = [name for name in self._outputs if name in outputs] or outputs
        tensors = [received(name, outputs[name]) for name in names]
        return InferenceResponse(tensors, parameters=answer.get(PARAMETERS))

    def _parameters(self) -> dict[str, Any]:
        values = dict(self._said)
        if self._timeout:
            values["timeout"] = self._timeout
        if self._sequence:
            values["sequence_id"] = self._sequence
            values["sequence_start"] = bool(self._flags & FLAG_START)
            values["sequence_end"] = bool(self._flags & FLAG_END)
        return values


class _Responses:
    """The responses to a request, in order; dropping the iterator cancels the rest.

    As in Triton's backend, a response without outputs follows the last one, and a second iteration
    yields the same responses.
    """

    def __init__(
        self, request: InferenceRequest, on_first: Callable[[], None] = lambda: None
    ) -> None:
        self._request = request
        self._on_first = on_first
        self._has_first = False
        self._answers: queue.SimpleQueue[ModelPart] = queue.SimpleQueue()
        self._seen: list[InferenceResponse] = []
        self._at = 0
        self._asked: Any = None
        try:
            self._asked = request.begin(True, self._take)
        except PipelineError as error:
            self._take(ModelPart(error=error))
        self._is_over = self._is_cancelled = False

    def _take(self, part: ModelPart) -> None:
        self._answers.put(part)
        if not self._has_first:
            self._has_first = True
            self._on_first()

    def __iter__(self) -> Iterator[InferenceResponse]:
        if self._is_over and self._at == len(self._seen):
            self._at = 0
        return self

    def __next__(self) -> InferenceResponse:
        if self._at == len(self._seen):
            if self._is_over:
                raise StopIteration
            part = self._answers.get()
            self._is_over = part.is_final or LAST in (part.outputs or ())
            if not part.is_final and not self._is_cancelled:
                self._asked.took_part()
            self._seen.append(self._request.response(part))
        self._at += 1
        return self._seen[self._at - 1]

    def cancel(self) -> None:
        """Have the model drop the request; an error follows the received responses."""
        if self._asked is None or self._is_over or self._is_cancelled:
            return
        self._is_cancelled = True
        self._asked.cancel()
        self._answers.put(ModelPart(error=RequestCancelledError("the request was cancelled")))

    def __del__(self) -> None:
        if hasattr(self, "_is_over"):
            self.cancel()


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load a model of the server, or load it again. Raises TritonModelException."""
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and "
            "file contents"
        )
    _change(ModelChange(_text(model_name), "load", config=config or None, files=files or {}))


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model of the server. Raises TritonModelException."""
    _change(ModelChange(_text(model_name), "unload", with_dependents=unload_dependents))


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model is ready. Raises TritonModelException: the version is invalid."""
    try:
        version = int(model_version or -1)
    except ValueError:
        version = 0
    if model_version and version <= 0:
        raise TritonModelException(
            "failed to get model version from specified version string "
            f"'{model_version}', version should be an integral value > 0"
        )
    return _change(ModelChange(_text(model_name), "is_ready", version)).is_ready


def _change(change: ModelChange) -> ModelPart:
    answers: queue.SimpleQueue[ModelPart] = queue.SimpleQueue()
    try:
        ServerAccess.get().change(change, answers.put)
        outcome = answers.get()
        if outcome.error is not None:
            raise outcome.error
    except PipelineError as error:
        raise TritonModelException(str(error)) from None
    return outcome


def _text(name: str | bytes) -> str:
    """Return a name, which may be an element of a text tensor. Raises TypeError."""
    if not isinstance(name, str | bytes):
        raise TypeError(f"expected a text, found {type(name).__name__}")
    return name.decode() if isinstance(name, bytes) else name


def failed(error: PipelineError) -> InferenceResponse:
    """Return an error as a response."""
    return InferenceResponse(error=triton_error(v2_error(error)))


def triton_error(error: V2Error) -> TritonError:
    return TritonError(str(error), _CODES.get(error.kind, TritonError.INTERNAL))


_NUMBERS = itertools.count(1)
_KINDS = ("counter", "gauge", "histogram")
_CAN = {"increment": ("counter", "gauge"), "set": ("gauge",), "observe": ("histogram",)}
_ACTIONS = {"increment": "add", "set": "set", "observe": "observe"}
_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The "
    "'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been "
    "deleted."
)


class Metric:
    """One series of a family, which exists as long as the family.

    Values are sent to the server without waiting, in the order of the calls.
    """

    def __init__(self, caller: ModelCaller, number: int, kind: str, labels: dict[str, str]) -> None:
        self.is_deleted: bool = False
        self._caller = caller
        self._number = number
        self._kind = kind
        self._labels = labels

    def increment(self, value: float) -> None:
        """Add to the value. Raises TritonModelException: it is negative, and this a counter."""
        if self._kind == "counter" and value < 0:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be "
                "incremented monotonically by non-negative values."
            )
        self._tell("increment", value)

    def set(self, value: float) -> None:
        """Set the value of a gauge. Raises TritonModelException: it is not a gauge."""
        self._tell("set", value)

    def observe(self, value: float) -> None:
        """Record a value of a histogram. Raises TritonModelException: it is not a histogram."""
        self._tell("observe", value)

    def value(self) -> float:
        """Return the value, summed over all models. Raises TritonModelException: it has none."""
        about = "Failed to get metric value"
        self._check(about)
        if self._kind == "histogram":
            raise self._unsupported(about, "Value")
        use = MetricUse(self._number, "value", labels=self._labels)
        return _asked(self._caller, use, about)

    def _tell(self, what: str, value: float) -> None:
        about = f"Failed to {what} metric value"
        self._check(about)
        if self._kind not in _CAN[what]:
            raise self._unsupported(about, what.capitalize())
        action: Any = _ACTIONS[what]
        use = MetricUse(self._number, action, labels=self._labels, amount=float(value))
        _caught(lambda: self._caller.metric(use, None), about)

    def _check(self, about: str) -> None:
        if self.is_deleted:
            raise TritonModelException(f"{about}: {_DELETED}")

    def _unsupported(self, about: str, what: str) -> TritonModelException:
        kind = f"TRITONSERVER_METRIC_KIND_{self._kind.upper()}"
        return TritonModelException(f"{about}: {kind} does not support {what}")


class MetricFamily:
    """Series of one name, which exist as long as this object.

    Args:
        name: in `/metrics`.
        description: its help text there.
        kind: COUNTER, GAUGE or HISTOGRAM.

    Raises:
        TritonModelException: the server has a family of this name and another kind, or refuses it.
    """

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

    def __init__(self, name: str, description: str, kind: int) -> None:
        about = "Error when creating MetricFamily"
        if kind not in range(len(_KINDS)):
            raise TritonModelException(f"{about}: Unknown metric kind")
        self._series: dict[tuple[tuple[str, str], ...], Metric] = {}
        self._kind = _KINDS[kind]
        self._number = next(_NUMBERS)
        caller = ServerAccess.get()
        use = MetricUse(self._number, "family", name=name, text=description, kind=self._kind)
        _asked(caller, use, about)
        self._caller: ModelCaller = caller  # from here on it must be released

    def Metric(
        self, labels: Mapping[str, str] | None = None, buckets: list[float] | None = None
    ) -> Metric:
        """Return the series of these labels. Raises TritonModelException."""
        about = "Failed to create metric"
        labels = {} if labels is None else labels
        if not isinstance(labels, dict):
            raise TritonModelException(f"{about}. Labels must be a dictionary.")
        if not all(isinstance(text, str) for item in labels.items() for text in item):
            raise TritonModelException(f"{about}. Labels and their values must be str.")
        self._check_buckets(about, buckets)
        bounds = [float(bound) for bound in buckets or ()]
        use = MetricUse(self._number, "series", labels=labels, buckets=bounds)
        key = tuple(sorted(labels.items()))
        if key not in self._series:
            _asked(self._caller, use, "Error when creating Metric")
        made = Metric(self._caller, self._number, self._kind, dict(labels))
        return self._series.setdefault(key, made)

    def _check_buckets(self, about: str, buckets: Any) -> None:
        if buckets is None:
            if self._kind == "histogram":
                raise TritonModelException(f"{about}. Missing required buckets.")
        elif not isinstance(buckets, list):
            raise TritonModelException(f"{about}. Buckets must be a list.")
        elif self._kind != "histogram":
            raise TritonModelException(f"{about}. Unexpected buckets found.")

    def __del__(self) -> None:
        caller = getattr(self, "_caller", None)  # its `__init__` may have failed
        if caller is not None:
            for metric in self._series.values():
                metric.is_deleted = True
            caller.drop_metrics(MetricUse(self._number, "drop"))


def _asked(caller: ModelCaller, use: MetricUse, about: str) -> float:
    """Return the server's answer. Raises TritonModelException: an error, described by `about`."""
    answers: queue.SimpleQueue[ModelPart] = queue.SimpleQueue()
    _caught(lambda: caller.metric(use, answers.put), about)
    outcome = answers.get()
    if outcome.error is not None:
        raise TritonModelException(f"{about}: {outcome.error}")
    return outcome.value


def _caught(work: Callable[[], None], about: str) -> None:
    try:
        work()
    except PipelineError as error:
        raise TritonModelException(f"{about}: {error}") from None
