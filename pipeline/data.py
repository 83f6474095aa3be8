"""ChannelData: the frozen record that travels through the graph, and what a model is fed."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pipeline.errors import ErrorCode, PipelineError, ProductError


class ChannelDataType(enum.Enum):
    """What a `ChannelData` holds, by the predecessor's names and numbers."""

    DICT = 0
    CHANNEL_NPDATA = 1
    ERROR = 2


class ChannelData(msgspec.Struct, frozen=True):
    """One Op's answer for one request: a payload, or an error in its place.

    `payload` is the dict that the Op's `postprocess` returned. `data_id` is the server's own
    running number of the request, `log_id` the caller's. The properties are the names under
    which scripts of Paddle Serving read the record in `pack_response_package`.
    """

    data_id: int
    log_id: int = 0
    payload: Any = None
    error: PipelineError | None = None
    as_tensors: bool = False
    client_need_profile: bool = False

    @property
    def id(self) -> int:
        return self.data_id

    @property
    def datatype(self) -> int:
        if self.error is not None:
            return ChannelDataType.ERROR.value
        if self._holds_arrays():
            return ChannelDataType.CHANNEL_NPDATA.value
        return ChannelDataType.DICT.value

    @property
    def dictdata(self) -> Any:
        return None if self.datatype != ChannelDataType.DICT.value else self.payload

    @property
    def npdata(self) -> Any:
        return None if self.datatype != ChannelDataType.CHANNEL_NPDATA.value else self.payload

    @property
    def error_code(self) -> int:
        """0 for none; PRODUCT_ERROR for one of the product, whose own is `prod_error_code`."""
        if self.error is None:
            return ErrorCode.OK.value
        if isinstance(self.error, ProductError):
            return ErrorCode.PRODUCT_ERROR.value
        return int(self.error.code)

    @property
    def error_info(self) -> str:
        """The text of `error_code`; "" for an error of the product, see `prod_error_info`."""
        is_told_apart = self.error is None or isinstance(self.error, ProductError)
        return "" if is_told_apart else str(self.error)

    @property
    def prod_error_code(self) -> int | None:
        return self.error.code if isinstance(self.error, ProductError) else None

    @property
    def prod_error_info(self) -> str:
        return str(self.error) if isinstance(self.error, ProductError) else ""

    @property
    def profile_data_set(self) -> frozenset[str]:
        return frozenset()

    def parse(self) -> Any:
        """The payload; raises the error when there is one in its place."""
        if self.error is not None:
            raise self.error
        return self.payload

    def get_all_data(self) -> str:
        return (
            f"type[{self.datatype}], error_code[{self.error_code}], data_id[{self.data_id}], "
            f"log_id[{self.log_id}], data[{self.payload!r}]"
        )

    def _holds_arrays(self) -> bool:
        return isinstance(self.payload, Mapping) and self.check_npdata(self.payload)[0] == 0

    @staticmethod
    def check_dictdata(dictdata: object) -> tuple[int, str]:
        """(0, "") for a dict, or a list of dicts; else TYPE_ERROR and what was found."""
        items = dictdata if isinstance(dictdata, list) else [dictdata]
        for item in items:
            if not isinstance(item, dict):
                return (
                    ErrorCode.TYPE_ERROR.value,
                    f"Failed to check data: the type of data must be dict, but get {type(item)}.",
                )
        return ErrorCode.OK.value, ""

    @staticmethod
    def check_npdata(npdata: object) -> tuple[int, str]:
        """(0, "") for a dict whose values are ndarrays or lists of str, or a list of such."""
        items = npdata if isinstance(npdata, list) else [npdata]
        for item in items:
            problem = _not_feedable(item)
            if problem:
                return ErrorCode.TYPE_ERROR.value, problem
        return ErrorCode.OK.value, ""

    @staticmethod
    def check_batch_npdata(batch: Sequence[object]) -> tuple[int, str]:
        """`check_npdata` for every element of a batch."""
        for item in batch:
            code, info = ChannelData.check_npdata(item)
            if code != ErrorCode.OK.value:
                return code, info
        return ErrorCode.OK.value, ""


def _not_feedable(item: object) -> str:
    """Why `item` cannot be fed to a model; empty when it can."""
    if not isinstance(item, Mapping):
        return f"Failed to check data: the value of data must be dict, but get {type(item)}."
    for name, value in item.items():
        if isinstance(value, np.ndarray):
            continue
        if isinstance(value, list) and all(isinstance(element, str) for element in value):
            continue
        return (
            f"Failed to check data: feed_batch must be npdata: the value of {name!r} must be "
            f"np.ndarray or list[str], but get {type(value)}."
        )
    return ""
