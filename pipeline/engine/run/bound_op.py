"""BoundOp: an Op's methods in one form, for any arity and return shape that the user wrote.

The forms are those of every release of Paddle Serving's pipeline (and of its design document): one
to four parameters, a bare dict or a tuple with product error or error code. They are normalised
here, once, when a worker binds its copy of the Op; all other code knows one form.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import inspect
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from enum import Enum
from typing import Any

import numpy as np

from pipeline.data import RequestContext
from pipeline.engine.run.collate import with_columns
from pipeline.engine.run.hooks import (
    CONTEXT,
    POSTPROCESS,
    PREPROCESS,
    PROCESS,
    UNPACK,
    Hook,
    call_form,
)
from pipeline.engine.run.op_facts import OpFacts, has_columns
from pipeline.engine.run.stage_errors import stage_error
from pipeline.engine.sequences.feeds import SequenceFeeds, feeds_of
from pipeline.errors import (
    ErrorCode,
    PackageError,
    PayloadTypeError,
    PipelineError,
    ProductError,
    coded_error,
    described,
    printable,
)
from pipeline.op import Op, overrides
from pipeline.proto.slices import AbandonedError
from pipeline.routes import Answer, Goto, Routed, checked
from pipeline.system.event_loop import ending_alone, result_of
from pipeline.tracing.running import Notes

_LOGGER = logging.getLogger(__name__)

_FEEDS = (dict, list)
_FETCHED = (dict, type(None))
_RESULTS = (dict, Answer)
_FLAGS = (bool, np.bool_, int, type(None))
GENERATORS = (Generator, AsyncGenerator)
_UNFINISHED = (*GENERATORS, Awaitable)

Prepared = tuple[Any, bool]
"""(the feed of `process`, whether to skip `process`)"""


class BoundOp(OpFacts):
    """One worker's own copy of an Op, callable in one form.

    Args:
        op: the Op after `init_op`; it is copied, shallowly.
        worker: the worker's number, from 0.
        loop: where `async def` methods run.

    Attributes:
        context: for hooks that ask for it: of the request that the worker runs, or of all requests
            of a call of `process`.
        notes: takes notes of the running work, for logs; None: nothing reads them.
        feeds: what its sequences add to the feed of `process`; None: nothing.
        users_preprocess: the user's method, with all its parameters; see `prepared`.
        users_process: the same; see `processed`.
        users_postprocess: the same; see `answered`.
    """

    def __init__(self, op: Op, worker: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(op)
        self.op: Op = copy.copy(op)
        self.worker = worker
        self.context: RequestContext | Sequence[RequestContext] | None = None
        self._needs_dicts = not overrides(op, "postprocess")
        self.keeps_state: bool = overrides(op, "preprocess") and not self._needs_dicts
        self.state: dict[str, Any] = vars(self.op)
        self.feeds: SequenceFeeds | None = feeds_of(self.op)
        self._has_columns = has_columns(op)
        self._called: dict[str, Callable[..., Any]] = {}
        self._loop = loop
        self._awaited: concurrent.futures.Future[Any] | None = None
        # An override set on the instance is bound to the original: bind it to the copy.
        for name in ("preprocess", "process", "postprocess"):
            own = vars(self.op).get(name)
            if inspect.ismethod(own) and own.__self__ is op:
                setattr(self.op, name, own.__func__.__get__(self.op))
        self.notes: Notes | None = op.pipeline_notes
        self.users_preprocess: Callable[..., Any] = self._adapt(PREPROCESS)
        self.users_process: Callable[..., Any] = self._adapt(PROCESS)
        self.users_postprocess: Callable[..., Any] = self._adapt(POSTPROCESS)

    def replacement(self) -> BoundOp:
        """Return a copy, with its state, for the worker that replaces a stuck one."""
        copied = BoundOp(self.op, self.worker, self._loop)
        if self.feeds is not None:
            copied.feeds = self.feeds.taken_over()
        return copied

    def cancel(self) -> None:
        """Cancel the `async def` method that its worker waits for. Thread-safe."""
        awaited = self._awaited
        if awaited is not None:
            awaited.cancel()

    def plain(
        self,
        inputs: dict[str, Any],
        data_id: int,
        log_id: int,
        clock_ns: Callable[[], int],
        visit: Any,
    ) -> tuple[Any, int]:
        """Return the outcome of one request at an Op that `is_plain`, and when preprocess ended.

        Inlined for the common case, to save bytecodes. Raises nothing.

        Args:
            visit: its `apart` is the batch that it has become, if any: when another worker has that
                batch, this one must not continue.
        """
        middle_ns = 0
        try:
            data = returned = self.users_preprocess(inputs, data_id, log_id)
            if type(returned) is tuple and len(returned) == 4:
                data, skip, code, _ = returned
                if code is not None or type(skip) is not bool:
                    data = None
            if type(data) is dict:
                middle_ns = clock_ns()
                if visit.apart is not None and visit.apart.is_superseded:
                    return None, middle_ns
                answer = self.users_postprocess(inputs, data, data_id, log_id)
                if type(answer) is tuple and len(answer) == 3 and answer[1] is None:
                    answer = answer[0]
                if type(answer) is not dict:
                    answer = self.answered(answer)
                return answer, middle_ns
            data, _ = self.prepared(returned)
            middle_ns = clock_ns()
            if visit.apart is not None and visit.apart.is_superseded:
                return None, middle_ns
            return self.postprocess(inputs, data, data_id, log_id), middle_ns
        except BaseException as error:  # user code; a worker survives even SystemExit
            stage = "postprocess" if middle_ns else "preprocess"
            return stage_error(error, self, stage, log_id, data_id), middle_ns or clock_ns()

    def began(self, item: Any) -> Prepared:
        """Return the result of `preprocess` for an item, or the error in its place; see `ended`."""
        try:
            return self.preprocess(item.inputs, item.data_id, item.log_id)
        except BaseException as error:  # user code; a worker survives even SystemExit
            return stage_error(error, self, "preprocess", item.log_id, item.data_id), True

    def ended(self, item: Any, data: Any) -> Any:
        """Return the outcome of an item whose result, or error, is `data`. Raises nothing."""
        try:
            if type(data) is dict:  # the common case
                if item.is_feed or self._needs_dicts:
                    return data
                answer = self.users_postprocess(item.inputs, data, item.data_id, item.log_id)
                return answer if type(answer) is dict else self._plain_answer(answer)
            if isinstance(data, PipelineError):
                return data
            if item.is_feed:
                return self.answer(data)
            return self.postprocess(item.inputs, data, item.data_id, item.log_id)
        except BaseException as error:  # as above
            return stage_error(error, self, "postprocess", item.log_id, item.data_id)

    def preprocess(self, inputs: dict[str, Any], data_id: int, log_id: int) -> Prepared:
        """Return the data, and whether to skip process; raise an error that preprocess returned."""
        returned = self.users_preprocess(inputs, data_id, log_id)
        is_other = type(returned) is not tuple or len(returned) != 4 or returned[2] is not None
        if is_other or type(returned[0]) is not dict or type(returned[1]) is not bool:
            data, skip = self.prepared(returned)
        else:
            data, skip, _, _ = returned  # the common case
        return (data if skip or not self._has_columns else with_columns(data)), skip

    def prepared(self, data: Any) -> Prepared:
        """Return the result of the user's preprocess, in one form."""
        skip = False
        if isinstance(data, tuple):
            data, skip = self._unpack_prepared(data)
        elif data is None:
            raise self._refused("preprocess", None, "return a dict, or a list of dicts.")
        if isinstance(data, _FEEDS):
            return data, skip
        if isinstance(data, Routed):  # nothing else runs
            return checked(data, _named(self, "preprocess")), True
        data = self._finished("preprocess", data)
        if self.runs_process and not skip:
            raise PayloadTypeError(
                f"expect input type is dict or list, but get {type(data)} from preprocess of Op "
                f"{self.name!r}"
            )
        return data, skip

    def process(self, feed: Any, log_id: int) -> Any:
        """Return the result for one merged feed. Raises PipelineError for a returned error code."""
        if not self.merges:  # the result is checked where it is cut
            return self.users_process(feed, log_id)
        result = self.users_process([feed], log_id)
        return result if type(result) is dict else self.processed(result)

    def processed(self, result: Any) -> Any:
        """Return what the user's process returned, or yielded, in one form."""
        if _is_process_triple(result):
            result, code, info = result
            code = code.value if isinstance(code, Enum) else code
            if code not in (None, ErrorCode.OK):
                raise coded_error(int(code), str(info))
        if isinstance(result, dict):
            return result
        if isinstance(result, Goto):
            expected = "it runs for several requests at once, return Goto from postprocess"
            raise self._refused("process", result, expected)
        if isinstance(result, Answer):
            return checked(result, _named(self, "process"))
        if result is None or self._needs_dicts:
            return self.answer(result)
        return self._finished("process", result)

    def answer(self, result: Any) -> Any:
        """Return the result of `process` as the answer, if the user has no postprocess."""
        if isinstance(result, _RESULTS):
            return result
        expected = "return a dict of results, or (dict, err_code, err_info)"
        raise self._refused("process", result, expected)

    def postprocess(self, inputs: dict[str, Any], fetched: Any, data_id: int, log_id: int) -> Any:
        """Return the answer, or a Goto or Answer.

        Raises ProductError for a returned product code, PayloadTypeError for no dict.
        """
        if type(fetched) is not dict and isinstance(fetched, Routed):
            return fetched
        if self._needs_dicts and type(fetched) is dict:  # it is the answer
            return fetched
        if self._needs_dicts and not isinstance(fetched, _FETCHED):
            expected = "return a dict, or write a postprocess that makes one of it or its results"
            raise self._refused("preprocess", fetched, expected)
        return self._plain_answer(self.users_postprocess(inputs, fetched, data_id, log_id))

    def _plain_answer(self, answer: Any) -> Any:
        """Return the result of postprocess: the answer, or the generator of its parts."""
        if type(answer) is tuple and len(answer) == 3 and answer[1] is None:
            answer = answer[0]
        if type(answer) is dict:
            return answer
        return answer if self.streams == "postprocess" else self.answered(answer)

    def answered(self, answer: Any) -> Any:
        """Return the result of the user's postprocess, in one form: a dict, a Goto or Answer."""
        if isinstance(answer, tuple):
            if len(answer) != 3:
                answer = _padded(answer, 3, _named(self, "postprocess"))
            answer, code, info = answer
            if code is not None:
                raise _product_error(code, info, _named(self, "postprocess"))
        if isinstance(answer, Routed):
            return checked(answer, _named(self, "postprocess"))
        if not isinstance(answer, dict):
            _close(answer)
            raise PayloadTypeError(
                f"postprocess should return dict, but Op {self.name!r} returned {type(answer)}"
            )
        return answer

    def _finished(self, method: str, value: Any) -> Any:
        """Return `value`; raise if it is a coroutine or generator."""
        if isinstance(value, _UNFINISHED):
            expected = (
                "return a dict; only what is declared async def is awaited, and only a process or "
                "postprocess that has a yield itself streams"
            )
            raise self._refused(method, value, expected)
        return value

    def _refused(self, method: str, value: Any, expected: str) -> PayloadTypeError:
        _close(value)
        kind = "None" if value is None else type(value).__name__
        return PayloadTypeError(f"{_named(self, method)} returned {kind}: {expected}")

    def _unpack_prepared(self, returned: tuple[Any, ...]) -> Prepared:
        """Return the data and the flag of (data, is_skip, code, info), or (data, code, info)."""
        what = _named(self, "preprocess")
        if len(returned) == 3 and not isinstance(returned[1], bool | np.bool_):
            data, code, info = returned
            skip: Any = False
        else:
            data, skip, code, info = _padded(returned, 4, what)
        if code is not None:
            raise _product_error(code, info, what)
        if not isinstance(skip, _FLAGS):
            raise PayloadTypeError(
                f"{what} returned a tuple with {type(skip).__name__} as its second value: return "
                "(data, is_skip_process, prod_errcode, prod_errinfo), or only the data."
            )
        return data, bool(skip)

    def call(
        self, method: str, argument: Any, data_id: int, context: RequestContext | None = None
    ) -> Any:
        """Return the result of one of the Op's one-argument methods, or the PipelineError in its
        place.

        `data_id` is the request's, for the log; `context` is for a method that asks for it.
        """
        function = self._called.get(method)
        if function is None:
            function = getattr(self.op, method)
            if inspect.iscoroutinefunction(function):
                function = self._on_loop(function, method)
            self._called[method] = function
        try:
            return function(argument) if context is None else function(argument, context=context)
        except AbandonedError:
            raise
        except ProductError as error:
            return error
        except BaseException as error:  # user code; a worker survives even SystemExit
            what = described(error)
            where = (data_id, type(self.op).__name__, method)
            _LOGGER.exception("(data_id=%d) [%s] %s raised %s", *where, printable(what))
            failure = PackageError(f"rpc package error: {what}")
            failure.was_logged = True
            return failure

    def _adapt(self, hook: Hook) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self.op, hook.name)
        count, names, takes_context = call_form(self.op, hook)
        if inspect.iscoroutinefunction(method):
            method = self._on_loop(method, hook.name)
        if takes_context:
            method = self._in_context(method)
        whole = method if count == len(hook.most) else _adapted(hook, method, names[:count])
        if self.notes is None or hook is PROCESS:  # each call notes all of its requests
            return whole
        return self.notes.around(self.name, hook.name, whole)

    def _in_context(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            return method(*args, **{CONTEXT: self.context})

        return call

    def _on_loop(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return an `async def` method as a plain one: it runs on the loop, its worker waits."""
        if self._loop is None:
            raise PipelineError(f"Op {self.name!r}: async methods need a running server")

        def wait_for(*args: Any, **named: Any) -> Any:
            return self.wait_for(method(*args, **named), name)

        return wait_for

    def wait_for(self, coroutine: Awaitable[Any], name: str) -> Any:
        """Return the result of `coroutine`, the method `name`, which runs on the loop."""
        assert self._loop is not None, "there is a loop for every async method"
        self._awaited = asyncio.run_coroutine_threadsafe(ending_alone(coroutine), self._loop)
        try:
            return result_of(self._awaited)
        except concurrent.futures.CancelledError as error:  # by this library, or by user code
            raise PipelineError(f"{name} was cancelled") from error
        finally:
            self._awaited = None


def _named(op: BoundOp, hook: str) -> str:
    return f"Op {op.name!r}: {hook}"


def unpack_result(returned: Any) -> tuple[Any, int | None]:
    """Return (payload or Answer, log id or None) of any result of `unpack_request_package`."""
    payload, log_id = returned, None
    if isinstance(returned, tuple):
        if len(returned) != 4:
            returned = _padded(returned, 4, UNPACK.name)
        payload, log_id, code, info = returned
        if code is not None:
            raise _product_error(code, info, UNPACK.name)
    if isinstance(payload, Answer):
        checked(payload, UNPACK.name)
    elif type(payload) is not dict and not isinstance(payload, Mapping):
        _close(payload)
        raise PayloadTypeError(
            f"{UNPACK.name} returned {type(payload).__name__}: return a dict, or (dict, log_id, "
            "prod_errcode, prod_errinfo)"
        )
    if log_id is None or (type(log_id) is int and log_id.bit_length() < 64):
        return payload, log_id
    return payload, _log_id(log_id)


def _log_id(given: Any) -> int:
    try:
        log_id = int(given or 0)
        log_id.to_bytes(8, signed=True)  # the limit of the wire format
    except (TypeError, ValueError, OverflowError):
        raise PayloadTypeError(
            f"{UNPACK.name} returned {type(given).__name__} {given!s:.40} as log id: return an "
            "int of at most 64 bits"
        ) from None
    return log_id


def _adapted(hook: Hook, method: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """Return a method with fewer parameters as one that takes all parameters of its hook.

    The one id that it may take is the log id, unless its name is data_id; v0.3's (feed_dict) takes
    the dict itself.
    """
    if names == ["feed_dict"] and hook is PROCESS:
        return lambda feed_batch, log_id: method(feed_batch[0])
    if len(names) == hook.least or names[-1] == "data_id":
        return lambda *args: method(*args[: len(names)])
    return lambda *args: method(*args[: hook.least], args[-1])


def _padded(returned: tuple[Any, ...], length: int, what: str) -> tuple[Any, ...]:
    if not 1 <= len(returned) <= length:
        raise PayloadTypeError(
            f"{what} returned a tuple of {len(returned)} values: return {length} values, or "
            "only the first."
        )
    return returned + (None,) * (length - len(returned))


def _product_error(code: Any, info: Any, what: str) -> PipelineError:
    """Return the ProductError for a returned code, which may be a member of an Enum."""
    try:
        return ProductError(code.value if isinstance(code, Enum) else code, str(info or ""))
    except (TypeError, ValueError):
        return PayloadTypeError(
            f"{what} returned {type(code).__name__} as error code: return an int, or None"
        )


def _close(value: object) -> None:
    """Drop what a method returned; Python warns about a coroutine that is not closed."""
    if isinstance(value, Coroutine):
        value.close()


def _is_process_triple(returned: Any) -> bool:
    return (
        isinstance(returned, tuple)
        and len(returned) == 3
        and (returned[1] is None or isinstance(returned[1], int | np.integer | Enum))
    )
