"""Response: an answer, or the error in its place, as the pipeline protocol has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.data import ChannelData
from pipeline.errors import ErrorCode, PayloadTypeError, TooLargeError, shortened, utf8_text
from pipeline.proto import codec
from pipeline.proto.pipeline.large import LargeResponse, large_tensor, tensors_of
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.slices import Limits, is_short

_ARRAYS = frozenset({np.ndarray})
_NUMBERS = (int, float, np.bool_, np.integer, np.floating)
_TEXT_LIMIT = 1000  # elements an answer may have to be turned into text on the event loop


def pack_error(channeldata: ChannelData) -> Response:
    """Return the Response for an error; the one place where errors become wire data."""
    code, text = channeldata.prod_error_code, channeldata.prod_error_info
    if code is None:
        code, text = channeldata.error_code, channeldata.error_info
    if not -(2**31) <= code < 2**31:  # what the wire cannot hold must not cost the answer
        code, text = ErrorCode.PRODUCT_ERROR, f"[{code}] {text}"
    return Response(err_no=code, err_msg=utf8_text(shortened(text)))


def is_cheap(payload: Mapping[str, Any], as_text: bool) -> bool:
    """Return whether packing is quick enough for the event loop: nothing in the answer is large."""
    if not is_short(payload):
        return False
    return not as_text or all(map(_is_short, payload.values()))


def pack(payload: Mapping[str, Any], as_text: bool, as_tensors: bool) -> Response:
    """Return the Response for an answer; that of an error if it has no form for it."""
    response = Response()
    try:
        if as_text:
            _pack_text(payload, response)
        if as_tensors:
            response.tensors.extend(tensors_of(payload, codec.numpy_to_tensor))
    except PayloadTypeError as error:
        response.err_no = int(error.code)
        response.err_msg = str(error)
    return response


def pack_large(
    payload: Mapping[str, Any], as_text: bool, as_tensors: bool, limits: Limits
) -> Response | LargeResponse:
    """Return the Response for an answer that is large; tensors are not copied.

    Where it is text and tensors, there are only tensors if the text would be too long.
    """
    head = Response()
    tensors: list[Any] = []
    try:
        if as_text:
            try:
                _pack_text(payload, head, limits)
            except TooLargeError:
                if not as_tensors:
                    raise
                head.Clear()
        if as_tensors:
            tensors = list(tensors_of(payload, large_tensor))
    except PayloadTypeError as error:
        head.err_no = int(error.code)
        head.err_msg = str(error)
        return head
    return LargeResponse(head, tensors)


def _pack_text(
    payload: Mapping[str, Any], response: Response, limits: Limits | None = None
) -> None:
    """All values but numbers are str, or all are arrays and lists of str; refuse a mixture."""
    values = payload.values()
    if _are_arrays(payload):
        texts = [codec.numpy_to_text(value, limits) for value in values]
    elif _are_arrays({name: value for name, value in payload.items() if not is_number(value)}):
        texts = [
            number_text(value) if is_number(value) else codec.numpy_to_text(value, limits)
            for value in values
        ]
    else:
        texts = [
            number_text(value) if is_number(value) else _checked_str(value) for value in values
        ]
    response.key.extend(map(str, payload))
    response.value.extend(texts)


def _are_arrays(payload: Mapping[str, Any]) -> bool:
    """Return whether all values are arrays, or lists of str."""
    if _ARRAYS.issuperset(map(type, payload.values())):  # as nearly always
        return True
    return ChannelData.check_npdata(payload)[0] == ErrorCode.OK


def is_number(value: object) -> bool:
    """Return whether a value is a number, or true or false, of Python or numpy."""
    return isinstance(value, _NUMBERS)


def number_text(value: Any) -> str:
    """Return the text of a number: as numpy prints a scalar, in the fewest digits of its type.

    Raises PayloadTypeError: it has more digits than Python writes.
    """
    try:
        return str(value)
    except ValueError as error:
        raise PayloadTypeError(f"a number of the answer has no text: {error}") from None


def _checked_str(value: object) -> str:
    if not isinstance(value, str):
        raise PayloadTypeError(
            f"@DAGExecutor fetch var type must be str({type(value)}). Answer with str and numbers, "
            "or with ndarrays, lists of str and numbers, or ask for tensors (set_pack_format)."
        )
    return value


def _is_short(value: object) -> bool:
    if type(value) is str or is_number(value):
        return True
    if isinstance(value, np.ndarray):
        return value.size <= _TEXT_LIMIT
    return isinstance(value, list) and len(value) <= _TEXT_LIMIT
