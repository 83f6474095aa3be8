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

_told: WeakSet[type[ProductError]] = WeakSet()  # classes, of each of which the log tells once


def product_error(error: ProductError) -> PipelineError:
    """Return what is ours of it: a user's own class may fail wherever it is looked at."""
    ours = ProductError(code_of(error), described(error))
    ours.head = with_head(error).head
    return ours


def with_head(error: PipelineError) -> PipelineError:
    """Return the error, a product's with the head of the answer that its status and headers say.

    Where they say what no answer can have, a class of old means something else by these names: it
    is answered as it was before there were heads.
    """
    if not isinstance(error, ProductError):
        return error
    try:
        error.head = error.head or head_of(error.status, error.headers, *ERROR_STATUSES)
    except Exception as wrong:  # the user's own class: it may fail wherever it is looked at
        kind = type(error)
        if kind not in _told:
            _told.add(kind)
            text = "%s is answered without its status and headers: %s"
            _LOGGER.warning(text, kind.__name__, described(wrong))
    return error


def code_of(error: BaseException) -> int:
    """Return the code of an error, whatever a user's own class has in its place."""
    if isinstance(error, PipelineError):
        with contextlib.suppress(Exception):  # the user's own class may have it of any type
            return int(error.code)
    return int(UserCodeError.code)
