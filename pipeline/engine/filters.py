"""Filters: code around the requests of an engine, each in a class of its own."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.config.registry import did_you_mean, find
from pipeline.engine.journal.journal import Outcome
from pipeline.engine.op.channel import own_dict
from pipeline.engine.request import RequestState
from pipeline.errors import (
    ConfigError,
    DataLostError,
    DeadlineError,
    InitError,
    NoServiceError,
    PipelineError,
    described,
)
from pipeline.op import PROFILE_KEY
from pipeline.proto.pipeline_service_pb2 import Response

_LOGGER = logging.getLogger(__name__)


class Filter:
    """Base class of filters: override the hooks that you need; the others cost nothing.

    Hooks run on the event loop and must not block. They are called in the order in which the
    filters are configured; `on_answer` is called in the reverse order. All hooks get the same
    `request` object:
    its `info` has the client's parameters and headers, its `raw` the message as it came.

    Args:
        options: the options in config.yml below the filter's name, a Struct of the class' own type
            `Options`; None: there are none.
    """

    # True: the filter does nothing for single requests of a convoy, and `on_input` may run in any
    # thread.
    pipeline_is_light: bool = False

    def __init__(self, options: Any = None) -> None:
        self.options: Any = options

    def on_request(self, request: RequestState) -> None:
        """Check a new request; raise a PipelineError to refuse it.

        An OverloadedError tells the client to come back later, as the server's own does.
        """

    def on_admission(self, request: RequestState) -> None:
        """Act on a request before it is admitted or queued."""

    def on_input(self, request: RequestState, payload: Any) -> None:
        """Act on an unpacked request before the first Ops get it."""

    def on_error(self, request: RequestState, error: PipelineError) -> bool:
        """Return whether you started a failed request again; not called while the server stops."""
        return False

    def on_answer(self, request: RequestState, answer: Any) -> Any:
        """Return the answer to send: `answer`, or another one."""
        return answer

    def on_end(self, request: RequestState) -> None:
        """Act on a request that has ended, answered or left by its client; see its `error`."""


class FilterChain:
    """The overridden hooks of all filters, by name, in the order of their calls.

    `lets_convoys_pass`: no filter needs to see each request of a convoy. `looks_in_any_thread`:
    `on_input` may be called in any thread.

    Args:
        ours: filters of this library.
        users: other filters, which must not harm requests: an exception is logged, except that
            one of `on_request` refuses the request.
    """

    on_request: tuple[Callable[[RequestState], None], ...]
    on_admission: tuple[Callable[[RequestState], None], ...]
    on_input: tuple[Callable[[RequestState, Any], None], ...]
    on_error: tuple[Callable[[RequestState, PipelineError], bool], ...]
    on_answer: tuple[Callable[[RequestState, Any], Any], ...]
    on_end: tuple[Callable[[RequestState], None], ...]

    def __init__(self, ours: Sequence[Filter], users: Sequence[Filter] = ()) -> None:
        self.lets_convoys_pass: bool = not users and all(
            own_filter.pipeline_is_light for own_filter in ours
        )
        self.looks_in_any_thread: bool = all(
            user_filter.pipeline_is_light or type(user_filter).on_input is Filter.on_input
            for user_filter in (*users, *ours)
        )
        for name in FilterChain.__annotations__:
            base = getattr(Filter, name)
            hooks = [
                _guarded(getattr(user_filter, name))
                if user_filter in users and name != "on_request"
                else getattr(user_filter, name)
                for user_filter in (*users, *ours)
                if getattr(type(user_filter), name) is not base
            ]
            setattr(self, name, tuple(hooks[::-1] if name == "on_answer" else hooks))


def configured(chosen: Mapping[str, object]) -> list[Filter]:
    """Return the filters that config.yml names, each made with its options.

    Raises:
        ConfigError: what the registry has for a name is not a filter.
        InitError: a filter cannot be made.
    """
    return [_made(name, options) for name, options in chosen.items()]


def _made(name: str, options: object) -> Filter:
    make = find("filters", name)
    try:
        made = make(options)
    except PipelineError:
        raise
    except Exception as error:  # the user's code
        raise InitError(f"filters.{name}: it cannot be made: {described(error)}") from error
    if not isinstance(made, Filter):
        raise ConfigError(f"filters: {name}: expected a Filter, found {type(made).__name__}")
    hooks = FilterChain.__annotations__
    for method in dir(made):
        hint = did_you_mean(method, hooks) if method.startswith("on_") else ""
        if hint and method not in hooks:
            _LOGGER.warning("filters.%s: %s is not a hook%s", name, method, hint)
    return made


def _guarded(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that does not raise; if it fails, the answer does not change."""

    @functools.wraps(hook)
    def guarded(request: RequestState, *subject: Any) -> Any:
        is_of_answer = hook.__name__ == "on_answer"
        try:
            result = hook(request, *subject)
        except Exception:
            _LOGGER.exception("%s failed", hook.__qualname__)
            return subject[0] if is_of_answer else None
        if is_of_answer and result is None:
            _LOGGER.error("%s returned None: the answer does not change", hook.__qualname__)
            return subject[0]
        return result

    return guarded


class NameCheck(Filter):
    """Refuses requests that name another service."""

    def __init__(self, name: str) -> None:
        self._name = name

    def on_request(self, request: RequestState) -> None:
        name = request.raw.name
        if name and name != self._name:
            raise NoServiceError(
                "Failed to inference: Service name error. "
                f"This server is {self._name!r}, the request names {name!r}."
            )


class Deadline(Filter):
    """Sets the deadline of each request: the client's or the service's, whichever is earlier.

    Args:
        limit_s: the service's limit; None: none.
        judge: raises OverloadedError for a request that cannot be answered before its deadline.
        end: answers a request with an error, at once.
    """

    def __init__(
        self,
        limit_s: float | None,
        loop: asyncio.AbstractEventLoop,
        judge: Callable[[RequestState], None],
        end: Callable[[RequestState, PipelineError, Outcome], None],
    ) -> None:
        self._limit_s = limit_s
        self.pipeline_is_light: bool = limit_s is None
        self._loop = loop
        self._judge = judge
        self._end = end

    def on_admission(self, request: RequestState) -> None:
        left_s = request.timeout_s
        if self._limit_s is not None and (left_s is None or self._limit_s < left_s):
            left_s = self._limit_s
        if left_s is not None:
            request.arrived_at = self._loop.time()
            request.deadline = when = request.arrived_at + left_s
            self._judge(request)
            request.deadline_timer = self._loop.call_at(when, self._expire, request)

    def _expire(self, request: RequestState) -> None:
        error = DeadlineError(
            f"(data_id={request.data_id} log_id={request.log_id}) the request's deadline "
            "passed before it was answered."
        )
        self._end(request, error, Outcome.REJECTED)


class RequestRetry(Filter):
    """Runs a whole request again (`dag.retry`) after a timeout, or if an Op's result was lost."""

    def __init__(self, attempts: int, start_over: Callable[[RequestState, Any], None]) -> None:
        self._attempts = attempts
        self._start_over = start_over
        self._payloads: dict[RequestState, Any] = {}

    def on_input(self, request: RequestState, payload: Any) -> None:
        self._payloads[request] = own_dict(payload)

    def on_end(self, request: RequestState) -> None:
        self._payloads.pop(request, None)

    def on_error(self, request: RequestState, error: PipelineError) -> bool:
        stream = request.stream
        if stream is not None and (stream.given or stream.is_packing):
            return False
        has_attempts = request.generation + 1 < self._attempts
        if not (has_attempts and isinstance(error, DeadlineError | DataLostError)):
            return False
        self._start_over(request, own_dict(self._payloads[request]))
        return True


class Trace(Filter):
    """Gives each request its own traceparent, made of its data id and the client's traceparent or
    "".
    """

    def __init__(self, begin: Callable[[int, str], str]) -> None:
        self._begin = begin

    def on_admission(self, request: RequestState) -> None:
        traceparent = request.target.traceparent if request.target is not None else ""
        try:
            request.trace = self._begin(request.data_id, traceparent)
        except Exception:  # an observer: its failure must not affect requests
            _LOGGER.exception("a trace could not be begun")


class ProfileFilter(Filter):
    """Adds a profile to the answer if the client asked for one and `write` returns one."""

    pipeline_is_light: bool = True

    def __init__(self, write: Callable[[RequestState], str], clock_ns: Callable[[], int]) -> None:
        self._write = write
        self._clock_ns = clock_ns

    def on_input(self, request: RequestState, payload: Any) -> None:
        # messages of other protocols have no keys
        keys: Sequence[str] = getattr(request.raw, "key", ())
        # Most requests have one pair, and `in` takes three times as long.
        if keys[0] == PROFILE_KEY if len(keys) == 1 else PROFILE_KEY in keys:
            request.is_profiled = True
            if request.spans is None:
                request.spans = []

    def on_answer(self, request: RequestState, answer: Any) -> Any:
        if not request.is_profiled:
            return answer
        message = getattr(answer, "head", answer)  # a large answer
        if type(message) is Response:
            request.end_ns = self._clock_ns()
            try:
                profile = self._write(request)
            except Exception:  # an observer: its failure must not affect requests
                _LOGGER.exception("a profile could not be written")
                return answer
            if profile:
                message.key.append(PROFILE_KEY)
                message.value.append(profile)
        return answer
