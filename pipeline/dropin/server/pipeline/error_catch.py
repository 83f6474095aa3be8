"""`paddle_serving_server.pipeline.error_catch`; `paddle_serving_app` imports it, too."""

from typing import Any

from pipeline.dropin.stubs import stub
from pipeline.error_catch import (
    CustomException,
    CustomExceptionCode,
    ErrorCatch,
    ParamChecker,
    ProductErrCode,
)

ParamVerify: Any = stub("ParamVerify", __name__, "the library checks its own parameters")

__all__ = [
    "CustomException",
    "CustomExceptionCode",
    "ErrorCatch",
    "ParamChecker",
    "ParamVerify",
    "ProductErrCode",
]
