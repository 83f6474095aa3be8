"""Names of the predecessor's module `channel`; see `pipeline.dropin.names`."""

from pipeline.dropin.names import (
    ChannelData,
    ChannelDataEcode,
    ChannelDataErrcode,
    ChannelDataType,
    ChannelStopError,
    ChannelTimeoutError,
    ProductErrCode,
)

__all__ = [
    "ChannelData",
    "ChannelDataEcode",
    "ChannelDataErrcode",
    "ChannelDataType",
    "ChannelStopError",
    "ChannelTimeoutError",
    "ProductErrCode",
]
