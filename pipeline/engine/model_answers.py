"""Things beside the outputs in a model's answer: parameters of it, or an error in its place.

They stand in the dict of its outputs, under names that no output has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import PipelineError, error_from_fields, error_to_fields

PARAMETERS = "@parameters"
"""The name of the parameters, a dict."""

LAST = "@last"
"""The name of what says that no other answer follows this one of several."""

_ERROR = "@error"
_NAMES = (PARAMETERS, LAST)


def failed_part(error: PipelineError) -> dict[str, Any]:
    """Return an error as one answer of several: others may follow it."""
    *fields, _head = error_to_fields(error)  # a model says no head
    return {_ERROR: fields}


def error_in(answer: Any) -> PipelineError | None:
    """Return the error that one answer of several is; None: it is none."""
    if type(answer) is not dict or _ERROR not in answer:
        return None
    return error_from_fields(*answer[_ERROR])


def is_last_part(answer: Any) -> bool:
    """Return whether one answer of several says that no other follows it."""
    return type(answer) is dict and LAST in answer


def outputs_in(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs alone."""
    return {name: value for name, value in answer.items() if name not in _NAMES}
