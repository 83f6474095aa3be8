"""The predecessor's module name for its exceptions; see `compat`."""

from pipeline.compat import (
    CustomException,
    CustomExceptionCode,
    ErrorCatch,
    ParamChecker,
    ProductErrCode,
)

__all__ = [
    "CustomException",
    "CustomExceptionCode",
    "ErrorCatch",
    "ParamChecker",
    "ProductErrCode",
]
