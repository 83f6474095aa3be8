"""Errors of the product that users raise, as the engine passes them on."""

from __future__ import annotations

import contextlib
import logging
from weakref import WeakSet

from pipeline.answer_head import head_of
from pipeline.errors import (
    ERROR_STATUSES,
    PipelineError,
    ProductError,
    UserCodeError,
    described,
)

_LOGGER = logging.getLogger(__name__)

# the classes that the log has warned about, once each
_warned: WeakSet[type[ProductError]] = WeakSet()


def product_error(error: ProductError) -> PipelineError:
    """Return an error with the code and text of a user's, whose class may fail in any method."""
    ours = ProductError(code_of(error), described(error))
    ours.head = with_head(error).head
    return ours


def with_head(error: PipelineError) -> PipelineError:
    """Return the error; a ProductError with the head of its status and headers.

    If their values are not valid, an old class uses these names for other things: then the answer
    has no head, as before heads existed.
    """
    if not isinstance(error, ProductError):
        return error
    try:
        error.head = error.head or head_of(error.status, error.headers, *ERROR_STATUSES)
    except Exception as wrong:  # the user's own class may fail in any method
        kind = type(error)
        if kind not in _warned:
            _warned.add(kind)
            text = "%s is answered without its status and headers: %s"
            _LOGGER.warning(text, kind.__name__, described(wrong))
    return error


def code_of(error: BaseException) -> int:
    """Return the code of an error, whatever type a user's own class gives it."""
    if isinstance(error, PipelineError):
        with contextlib.suppress(Exception):  # the user's own class may have any type
            return int(error.code)
    return int(UserCodeError.code)
