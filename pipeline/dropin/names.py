"""The names besides the Ops that scripts of Paddle Serving's pipeline import.

Scripts import them from `pipeline.channel` and `pipeline.error_catch`.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from pipeline import data
from pipeline.data import ChannelDataType
from pipeline.errors import ClosedError, DeadlineError, ErrorCode, PipelineError, ProductError

__all__ = [
    "ChannelData",
    "ChannelDataEcode",
    "ChannelDataErrcode",
    "ChannelDataType",
    "ChannelStopError",
    "ChannelTimeoutError",
    "CustomException",
    "CustomExceptionCode",
    "ErrorCatch",
    "ParamChecker",
    "ProductErrCode",
]

CustomExceptionCode = ErrorCode
ChannelDataErrcode = ErrorCode
ChannelDataEcode = ErrorCode
ChannelTimeoutError = DeadlineError
ChannelStopError = ClosedError

_Function = TypeVar("_Function", bound=Callable[..., Any])


class ProductErrCode(enum.Enum):
    """Base class of a product's own error codes: extend it with members of 51 to 99."""


class CustomException(PipelineError):
    """`raise CustomException(CustomExceptionCode.INPUT_PARAMS_ERROR, "text", True)`

    Args:
        exceptionCode: a member of `CustomExceptionCode` or `ProductErrCode`, or an int.
        errorMsg: the message that the caller receives.
        isSendToUser: has no effect; an error always goes to the caller and never ends a process.
    """

    def __init__(
        self, exceptionCode: enum.Enum | int, errorMsg: str = "", isSendToUser: bool = False
    ) -> None:
        super().__init__(errorMsg)
        value = exceptionCode.value if isinstance(exceptionCode, enum.Enum) else exceptionCode
        self.code: int = int(value)


def ErrorCatch(function: _Function) -> Callable[..., tuple[Any, CaughtError]]:
    """`@ErrorCatch` turns what a function raises into `(None, response with code and text)`."""

    @functools.wraps(function)
    def caught(*args: Any, **kwargs: Any) -> tuple[Any, CaughtError]:
        try:
            return function(*args, **kwargs), CaughtError(ErrorCode.OK.value, "")
        except PipelineError as error:
            return None, CaughtError(int(error.code), str(error))
        except Exception as error:  # the purpose of the decorator
            return None, CaughtError(ErrorCode.UNKNOW.value, str(error))

    return caught


class CaughtError:
    """Outcome of a call under `ErrorCatch`; `error_code` is 0 if the call succeeded."""

    def __init__(self, error_code: int, error_info: str) -> None:
        self.error_code = error_code
        self.error_info = error_info


def ParamChecker(function: _Function) -> _Function:
    """Return the function unchanged: the framework checks its own parameters."""
    return function


class _Record(type):
    """Makes `isinstance` true for the records that the framework makes."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, data.ChannelData)


class ChannelData(metaclass=_Record):
    """The record with the predecessor's constructor, for scripts that make one."""

    check_dictdata: Callable[[Any], tuple[int, str]] = staticmethod(data.ChannelData.check_dictdata)
    check_npdata: Callable[[Any], tuple[int, str]] = staticmethod(data.ChannelData.check_npdata)
    check_batch_npdata: Callable[[Any], tuple[int, str]] = staticmethod(
        data.ChannelData.check_batch_npdata
    )

    def __new__(  # type: ignore[misc]  # scripts want a record of the real class
        cls,
        datatype: int | None = None,
        npdata: Any = None,
        dictdata: Any = None,
        data_id: int | None = None,
        log_id: int | None = None,
        error_code: int | None = None,
        error_info: str | None = None,
        prod_error_code: int | None = None,
        prod_error_info: str | None = None,
        client_need_profile: bool = False,
    ) -> data.ChannelData:
        return data.ChannelData(
            data_id=data_id or 0,
            log_id=log_id or 0,
            payload=npdata if npdata is not None else dictdata,
            error=_error(error_code, error_info, prod_error_code, prod_error_info),
            client_need_profile=client_need_profile,
        )


def _error(
    error_code: int | None,
    error_info: str | None,
    prod_error_code: int | None,
    prod_error_info: str | None,
) -> PipelineError | None:
    if prod_error_code is not None:
        return ProductError(prod_error_code, prod_error_info or "")
    if not error_code:
        return None
    error = PipelineError(error_info or "")
    error.code = error_code
    return error
