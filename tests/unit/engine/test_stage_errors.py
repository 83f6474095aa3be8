"""Errors of users' methods become errors of their requests."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.engine.run.stage_errors import noted, stage_failure, unsendable
from pipeline.errors import (
    AnswerTooLargeError,
    ErrorCode,
    NoRoomError,
    OverloadedError,
    PayloadTypeError,
    PipelineError,
    TooLargeError,
)
from pipeline.op import EXECUTOR_NAME


class Odd(OverloadedError):
    """A user's own, which cannot tell when."""

    @property
    def retry_after_s(self) -> int:
        raise RuntimeError("who knows")

    @retry_after_s.setter
    def retry_after_s(self, value: int) -> None:
        pass


class Coded(OverloadedError):
    code = 5123


@pytest.mark.parametrize(
    ("given", "told"),
    [(7, 7), (0, 0), (2.9, 2), (-1, 0), (10**30, 2**31 - 1), (float("inf"), 1), ("soon", 1)],
)
def test_an_error_of_overload_keeps_when_to_ask_again(given: Any, told: int):
    failure = stage_failure(OverloadedError("no place", retry_after_s=given), "text")
    assert isinstance(failure, OverloadedError)
    assert (str(failure), failure.code) == ("text", ErrorCode.OVERLOADED)
    assert failure.retry_after_s == told


def test_an_overload_error_with_an_unreadable_delay_has_one_second():
    failure = stage_failure(Odd("no place"), "text")
    assert type(failure) is OverloadedError
    assert failure.retry_after_s == 1


def test_an_overload_error_with_its_own_code_is_an_error_of_that_code():
    failure = stage_failure(Coded("no place"), "text")
    assert not isinstance(failure, OverloadedError)
    assert failure.code == 5123


@pytest.mark.parametrize(
    ("ids", "log_id", "text"),
    [
        ((), 0, "log_id=0"),
        ((), None, ""),
        ((7,), 0, "data_id=7 log_id=0"),
        ((7, 8), None, "data_id=7 data_id=8"),
    ],
)
def test_ids_of_requests_are_noted_without_gaps(ids: Any, log_id: Any, text: str):
    assert noted(ids, log_id) == text


@pytest.mark.parametrize(
    ("error", "maker", "kind", "text"),
    [
        (NoRoomError("full"), EXECUTOR_NAME, NoRoomError, "the request's data: full"),
        (TooLargeError("full"), EXECUTOR_NAME, TooLargeError, "the request's data: full"),
        (NoRoomError("full"), "op", AnswerTooLargeError, "[op] full"),
        (TooLargeError("full"), "op", AnswerTooLargeError, "[op] full"),
        (OverloadedError("no memory"), "op", AnswerTooLargeError, "[op] no memory"),
        (PayloadTypeError("a file"), "op", PayloadTypeError, "[op] a file"),
    ],
)
def test_only_a_request_without_room_may_come_again(
    error: PipelineError, maker: str, kind: type[PipelineError], text: str
):
    result = unsendable(error, maker)
    assert (type(result), str(result)) == (kind, text)
