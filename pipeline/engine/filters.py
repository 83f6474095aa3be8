"""Filters: all that surrounds the requests of an engine, each in a class of its own."""

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
    """Base of filters: override the hooks that are needed; the others cost nothing.

    Hooks run on the event loop and must not block. They are called in the order in which filters
    are configured, those of an answer in the opposite one. `request` is the same object in all:
    its `info` has what its caller says beside the data, its `raw` is what came.

    Args:
        options: what config.yml says below the filter's name, a Struct of the class' own type
            `Options`; None: it has none.
    """

    # Whether it has nothing to do for requests that come together, and looks in any thread.
    pipeline_is_light: bool = False

    def __init__(self, options: Any = None) -> None:
        self.options: Any = options

    def on_request(self, request: RequestState) -> None:
        """Look at a request that has come; raise a PipelineError to refuse it.

        An OverloadedError tells its caller to come back later, as the server itself does.
        """

    def on_admission(self, request: RequestState) -> None:
        """Look at a request that is about to be admitted, or to wait for that."""

    def on_input(self, request: RequestState, payload: Any) -> None:
        """Look at what was unpacked of a request, before the first Ops get it."""

    def on_error(self, request: RequestState, error: PipelineError) -> bool:
        """Return whether a request that failed was started over; not asked while stopping."""
        return False

    def on_answer(self, request: RequestState, answer: Any) -> Any:
        """Return what a request is answered with: `answer`, or something in its place."""
        return answer

    def on_end(self, request: RequestState) -> None:
        """Look at a request that is over, answered or left by its caller: see its `error`."""


class FilterChain:
    """The hooks that are overridden, by name, in the order in which they are called.

    `lets_convoys_pass`: none of them has to see each request of a Convoy. `looks_in_any_thread`:
    whether `on_input` may be called there.

    Args:
        ours: filters of this library.
        users: others, which must not harm the requests: what they raise is logged, but for
            `on_request`, which refuses with it.
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
        ConfigError: what the registry has for a name is no filter.
        InitError: one cannot be made.
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
            _LOGGER.warning("filters.%s: %s is no hook%s", name, method, hint)
    return made


def _guarded(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that raises nothing; where it fails, an answer stays as it is."""

    @functools.wraps(hook)
    def guarded(request: RequestState, *subject: Any) -> Any:
        is_of_answer = hook.__name__ == "on_answer"
        try:
            result = hook(request, *subject)
        except Exception:
            _LOGGER.exception("%s failed", hook.__qualname__)
            return subject[0] if is_of_answer else None
        if is_of_answer and result is None:
            _LOGGER.error("%s returned None: the answer stays as it was", hook.__qualname__)
            return subject[0]
        return result

    return guarded


class NameCheck(Filter):
    """Check of the service's name: requests for another service are refused."""

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
    """Time of each request: that of its caller or of the service, whichever is shorter.

    Args:
        limit_s: of the service; None: none.
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
            request.asked_at = self._loop.time()
            request.deadline = when = request.asked_at + left_s
            self._judge(request)
            request.deadline_timer = self._loop.call_at(when, self._expire, request)

    def _expire(self, request: RequestState) -> None:
        error = DeadlineError(
            f"(data_id={request.data_id} log_id={request.log_id}) the request's deadline "
            "passed before it was answered."
        )
        self._end(request, error, Outcome.REJECTED)


class RequestRetry(Filter):
    """`dag.retry`: a whole request runs again after a timeout, or when what an Op had made of it
    is lost, while it has attempts left."""

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
    """Traceparent of each request's own, made of (data id, its caller's or "")."""

    def __init__(self, begin: Callable[[int, str], str]) -> None:
        self._begin = begin

    def on_admission(self, request: RequestState) -> None:
        traceparent = request.target.traceparent if request.target is not None else ""
        try:
            request.trace = self._begin(request.data_id, traceparent)
        except Exception:  # an observer: its failure must not affect requests
            _LOGGER.exception("a trace could not be begun")


class ProfileFilter(Filter):
    """Profile of a request in its answer, where the caller asked for one and `write` gives one."""

    pipeline_is_light: bool = True

    def __init__(self, write: Callable[[RequestState], str], clock_ns: Callable[[], int]) -> None:
        self._write = write
        self._clock_ns = clock_ns

    def on_input(self, request: RequestState, payload: Any) -> None:
        keys: Sequence[str] = getattr(request.raw, "key", ())  # other doors have other messages
        # Most requests have one pair, and `in` takes three times as long.
        if keys[0] == PROFILE_KEY if len(keys) == 1 else PROFILE_KEY in keys:
            request.is_profiled = True
            if request.spans is None:
                request.spans = []

    def on_answer(self, request: RequestState, answer: Any) -> Any:
        if not request.is_profiled:
            return answer
        message = getattr(answer, "head", answer)  # of one that is large
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
