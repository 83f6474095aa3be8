"""Errors of a user's methods: the errors that clients get, and the log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.engine.product_errors import code_of, product_error
from pipeline.engine.run.collate import LOD
from pipeline.errors import (
    AnswerTooLargeError,
    FeedError,
    FieldsError,
    InputError,
    OverloadedError,
    PayloadTypeError,
    PipelineError,
    PredictorUnavailableError,
    ProductError,
    TooLargeError,
    UserCodeError,
    coded_error,
    described,
    printable,
    with_text,
)
from pipeline.op import EXECUTOR_NAME

if TYPE_CHECKING:
    from pipeline.engine.run.bound_op import BoundOp

_LOGGER = logging.getLogger(__name__)
_MAX_RETRY_AFTER_S = 2**31 - 1
_MAX_IDS = 256  # in one line
_MAX_LOGGED_CHARS = 400  # of an exception's text


def stage_error(
    error: BaseException, op: BoundOp, stage: str, log_id: int, *data_ids: int
) -> PipelineError:
    """Return the error that clients get for an exception in a user's method, in Paddle's form."""
    if isinstance(error, ProductError):
        return product_error(error)
    if not isinstance(error, PipelineError):
        log_raised(noted(data_ids, log_id), op.name, stage, error)
    function = getattr(op.op, stage)
    text = (
        f"Log_id: {log_id}  Raise_msg: {described(error)}{_hint_at(error)}  "
        f"ClassName: {getattr(function, '__qualname__', stage)}  FunctionName: {stage}"
    )
    return stage_failure(error, text)


def stage_failure(error: BaseException, text: str) -> PipelineError:
    """Return an error with this text and the code of `error`; an overload keeps its retry-after."""
    if not isinstance(error, PipelineError):
        return UserCodeError(text)
    code = code_of(error)
    if isinstance(error, OverloadedError) and code == OverloadedError.code:
        return OverloadedError(text, _retry_after_s(error))
    return coded_error(code, text)


def unsendable(error: PipelineError, maker: str) -> PipelineError:
    """Return the error of data that cannot be sent to another process, with its Op.

    An Op's answer without room is an AnswerTooLargeError: nobody repeats what has run already.

    Args:
        maker: the Op; EXECUTOR_NAME for the request's own data.
    """
    if maker == EXECUTOR_NAME:
        return with_text(error, f"the request's data: {error}")
    text = f"[{maker}] {error}"
    if isinstance(error, OverloadedError | TooLargeError):
        return AnswerTooLargeError(text)
    return with_text(error, text)


def ids_of(items: Iterable[Any]) -> list[int]:
    """Return the data ids of items."""
    return [item.data_id for item in items]


def noted(data_ids: Sequence[int], log_id: int | None = None) -> str:
    """Return ids of requests in the log's form, so that each can be found."""
    words = [f"data_id={data_id}" for data_id in data_ids[:_MAX_IDS]]
    if len(data_ids) > _MAX_IDS:
        words.append(f"and {len(data_ids) - _MAX_IDS} more")
    if log_id is not None:
        words.append(f"log_id={log_id}")
    return " ".join(words)


def log_raised(request: str, op_name: str, stage: str, error: BaseException) -> None:
    """Log an exception of a user's method, with its traceback."""
    what = printable(described(error)[:_MAX_LOGGED_CHARS])  # the traceback has all of it
    _LOGGER.error("(%s) [%s] %s raised %s", request, op_name, stage, what, exc_info=error)


def process_failure(
    error: BaseException, text: str, op: BoundOp, items: Sequence[Any], is_of_feed: bool = True
) -> PipelineError:
    """Return the error of requests for which `process` has failed, with this text.

    If a model cannot take its input, the code says who has to correct it: the client, or the Op.

    Args:
        is_of_feed: whether the error came from within `process`, not from its result.
    """
    if isinstance(error, PredictorUnavailableError):
        return PredictorUnavailableError(text)
    is_sent = all(op.hands_on_feeds if item.is_feed else op.hands_on_fields for item in items)
    kinds = (InputError, PayloadTypeError) if is_sent and is_of_feed else InputError
    if not isinstance(error, kinds):
        return stage_failure(error, text)
    failed: PipelineError = FieldsError(text) if is_sent else FeedError(text)
    failed.code = code_of(error)
    return failed


def too_large(op: BoundOp, item: Any) -> PipelineError:
    """Return the error for more rows than an execution may get, with Triton's text."""
    text = f"inference request batch-size must be <= {op.most_rows} for '{op.name}'"
    return process_failure(InputError(text), text, op, [item])


def _hint_at(error: BaseException) -> str:
    """Return advice on an error whose own text does not help."""
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if isinstance(key, str) and key.endswith(LOD):
        return (
            f" (the model gave no LoD of {key.removesuffix(LOD)!r}: Paddle from 2.6 on gives none "
            "of multiclass_nms3. Where each sample's rows begin are the sums of the output that "
            "has the number of boxes of each sample)"
        )
    return ""


def _retry_after_s(error: OverloadedError) -> int:
    with contextlib.suppress(Exception):  # of the user's own class, or of any type
        return min(max(0, int(error.retry_after_s)), _MAX_RETRY_AFTER_S)
    return 1
