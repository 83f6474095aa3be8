"""Names of the predecessor's module `error_catch`; see `pipeline.dropin.names`."""

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
