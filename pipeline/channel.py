"""The predecessor's module name for the record that travels and its codes; see `compat`."""

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
