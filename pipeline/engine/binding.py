"""BoundOp: an Op's methods in one form, whatever arity and return shape the user wrote.

The forms are those of every release of Paddle Serving's pipeline (and of its design document):
one to four parameters, a bare dict or a tuple with product error or error code. They are
normalised here, once, when a worker binds its copy of the Op; behind this file there is one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import inspect
import logging
from collections.abc import Callable
from typing import Any

from pipeline.errors import (
    ErrorCode,
    PackageError,
    PayloadTypeError,
    PipelineError,
    ProductError,
)
from pipeline.op import Op, overrides, runs_process

_LOGGER = logging.getLogger(__name__)

Prepared = tuple[Any, bool]
"""(what `process` is fed, whether to skip `process`)"""


class BoundOp:
    """One worker's own copy of an Op, callable in one form.

    Args:
        op: the Op after `init_op`; it is copied, shallowly.
        worker: the worker's number, from 0.
        loop: where `async def` methods run.
    """

    def __init__(self, op: Op, worker: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.op = copy.copy(op)
        self.name = op.name
        self.worker = worker
        self.runs_process = runs_process(op)
        self.has_model = op.client is not None
        self.attempts = max(1, op.pipeline_config.retry)
        self.timeout_s = op.pipeline_config.timeout_s
        self.jumps = op.is_jump_op()
        self.keeps_state = overrides(op, "preprocess") and overrides(op, "postprocess")
        self.state = vars(self.op)
        self._loop = loop
        self._awaited: concurrent.futures.Future[Any] | None = None
        # An override set on the instance is bound to the original: bind it to the copy.
        for name in ("preprocess", "process", "postprocess"):
            own = vars(self.op).get(name)
            if inspect.ismethod(own) and own.__self__ is op:
                setattr(self.op, name, own.__func__.__get__(self.op))
        self._preprocess = self._adapt("preprocess", _preprocess_forms)
        self._process = self._adapt("process", _process_forms)
        self._postprocess = self._adapt("postprocess", _postprocess_forms)

    def replacement(self) -> BoundOp:
        """A copy for the worker that takes over from one that is stuck, with its state."""
        return BoundOp(self.op, self.worker, self._loop)

    def cancel(self) -> None:
        """Cancel the `async def` method that its worker waits for. Thread-safe."""
        awaited = self._awaited
        if awaited is not None:
            awaited.cancel()

    def preprocess(self, inputs: dict[str, Any], data_id: int, log_id: int) -> Prepared:
        """Raises ProductError for a returned product code."""
        returned = self._preprocess(inputs, data_id, log_id)
        if isinstance(returned, tuple):
            if len(returned) == 4 and returned[2] is None:
                return returned[0], returned[1]
            return _unpack_prepared(returned)
        if returned is None:
            raise PayloadTypeError(
                f"Op {self.name!r}: preprocess returned None: return a dict, or a list of dicts."
            )
        return returned, False

    def process(self, feed: Any, log_id: int) -> Any:
        """The result for one merged feed; raises a PipelineError for a returned error code."""
        returned = self._process([feed], log_id)
        if _is_process_triple(returned):
            result, code, info = returned
            if code not in (None, ErrorCode.OK):
                raise coded_error(int(code), str(info))
            returned = result
        if returned is None:
            raise PayloadTypeError("process returned None: return a dict of results")
        return returned

    def postprocess(
        self, inputs: dict[str, Any], fetched: Any, data_id: int, log_id: int
    ) -> dict[str, Any]:
        """Raises ProductError for a returned product code, PayloadTypeError for no dict."""
        answer = self._postprocess(inputs, fetched, data_id, log_id)
        if isinstance(answer, tuple):
            answer, code, info = answer if len(answer) == 3 else _padded(answer, 3, "postprocess")
            if code is not None:
                raise ProductError(code, str(info or ""))
        if not isinstance(answer, dict):
            raise PayloadTypeError(
                f"postprocess should return dict, but Op {self.name!r} returned {type(answer)}"
            )
        return answer

    def call(self, method: str, argument: Any) -> Any:
        """The result of one of the Op's one-argument methods, or the PipelineError it ended in."""
        function = getattr(self.op, method)
        if inspect.iscoroutinefunction(function):
            function = self._on_loop(function, method)
        try:
            return function(argument)
        except ProductError as error:
            return error
        except BaseException as error:  # user code; a worker survives even SystemExit
            _LOGGER.exception("[%s] %s raised", type(self.op).__name__, method)
            return PackageError(f"rpc package error: {error}")

    def _adapt(self, name: str, forms: Callable[..., Any]) -> Callable[..., Any]:
        method = getattr(self.op, name)
        if inspect.iscoroutinefunction(method):
            method = self._on_loop(method, name)
        adapted: Callable[..., Any] = forms(method, _positional(getattr(self.op, name)))
        return adapted

    def _on_loop(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        """An `async def` method as a plain one: it runs on the loop, its worker waits."""
        loop = self._loop
        if loop is None:
            raise PipelineError(f"Op {self.name!r}: async methods need a running server")

        def wait_for(*args: Any) -> Any:
            self._awaited = awaited = asyncio.run_coroutine_threadsafe(method(*args), loop)
            try:
                return awaited.result()
            except concurrent.futures.CancelledError as error:  # by us, or by user code
                raise PipelineError(f"{name} was cancelled") from error
            finally:
                self._awaited = None

        return wait_for


def coded_error(code: int, text: str) -> PipelineError:
    """A PipelineError with a code that a user's method chose."""
    error = PipelineError(text)
    error.code = code
    return error


def unpack_result(returned: Any) -> tuple[Any, int | None]:
    """(payload, log id or None) of `unpack_request_package` in any historical shape."""
    if not isinstance(returned, tuple):
        return returned, None
    payload, log_id, code, info = (
        returned if len(returned) == 4 else _padded(returned, 4, "unpack_request_package")
    )
    if code is not None:
        raise ProductError(code, str(info or ""))
    return payload, log_id


def _positional(method: Callable[..., Any]) -> list[str]:
    """Names of the parameters that can be passed by position; "*" for any number."""
    names = []
    for parameter in inspect.signature(method).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names.append("*")
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return names


def _takes(names: list[str], count: int) -> bool:
    return "*" in names or len(names) >= count


def _preprocess_forms(method: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """(inputs, data_id, log_id), (inputs, log_id | data_id), (inputs)"""
    if _takes(names, 3):
        return method
    if len(names) < 2:
        return lambda inputs, data_id, log_id: method(inputs)
    if names[1] == "data_id":
        return lambda inputs, data_id, log_id: method(inputs, data_id)
    return lambda inputs, data_id, log_id: method(inputs, log_id)


def _process_forms(method: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """(feed_batch, log_id), (feed_batch), and v0.3's (feed_dict), which takes the dict itself."""
    if _takes(names, 2):
        return method
    if names == ["feed_dict"]:
        return lambda feed_batch, log_id: method(feed_batch[0])
    return lambda feed_batch, log_id: method(feed_batch)


def _postprocess_forms(method: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """(inputs, fetched, data_id, log_id), (inputs, fetched, log_id | data_id), (inputs, fetched)"""
    if _takes(names, 4):
        return method
    if len(names) < 3:
        return lambda inputs, fetched, data_id, log_id: method(inputs, fetched)
    if names[2] == "data_id":
        return lambda inputs, fetched, data_id, log_id: method(inputs, fetched, data_id)
    return lambda inputs, fetched, data_id, log_id: method(inputs, fetched, log_id)


def _unpack_prepared(returned: tuple[Any, ...]) -> Prepared:
    """(data, is_skip, code, info), or (data, code, info) without the flag."""
    if len(returned) == 3 and not isinstance(returned[1], bool):
        data, code, info = returned
        skip: Any = False
    else:
        data, skip, code, info = _padded(returned, 4, "preprocess")
    if code is not None:
        raise ProductError(code, str(info or ""))
    return data, bool(skip)


def _padded(returned: tuple[Any, ...], length: int, method: str) -> tuple[Any, ...]:
    if not 1 <= len(returned) <= length:
        raise PayloadTypeError(
            f"{method} returned a tuple of {len(returned)} values: return {length} values, or "
            "only the first."
        )
    return returned + (None,) * (length - len(returned))


def _is_process_triple(returned: Any) -> bool:
    return (
        isinstance(returned, tuple)
        and len(returned) == 3
        and (returned[1] is None or isinstance(returned[1], int))
    )
