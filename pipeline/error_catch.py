"""The predecessor's module name for its exceptions; see `compat`."""

from pipeline.dropin.names import (
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
