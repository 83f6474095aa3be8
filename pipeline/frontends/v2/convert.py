"""Conversions between arrays of the v2 protocol and the values of Ops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.data import ChannelData
from pipeline.errors import (
    ErrorCode,
    PackageError,
    PayloadTypeError,
    PipelineError,
    error_from_wire,
    utf8_text,
)
from pipeline.frontends.v2.errors import V2Error, internal, invalid, v2_error
from pipeline.frontends.v2.interface import ModelInterface, Slot, fits, no_such_output
from pipeline.op import PROFILE_KEY
from pipeline.proto.codec import decode_tensors, numpy_to_tensor
from pipeline.proto.pipeline.array_text import text_to_numpy
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.v2.codec import RequestedOutput
from pipeline.proto.v2.raw import Array, array_of, datatype_of, in_datatype, with_text

_BYTES = "BYTES"
_MAX_LOG_ID = 2**63 - 1
_OF_THE_SERVER = (ErrorCode.CLOSED_ERROR, ErrorCode.OVERLOADED, ErrorCode.NO_SERVICE)


# --- in -------------------------------------------------------------------------------------


def values_of(inputs: Mapping[str, Array], interface: ModelInterface) -> dict[str, Any]:
    """Return the values for an Op, or for the first Ops of a pipeline, one for each input.

    Numbers stay arrays. A text of one element, if it cannot have more, is a `str`, or `bytes` if it
    is not UTF-8; texts in one dimension are a list, in more dimensions an object array.
    """
    if all(array.dtype.kind != "O" for array in inputs.values()):
        return dict(inputs)
    slots = {slot.name: slot for slot in interface.inputs or ()}
    return {
        name: _value(array, _is_single(slots.get(name), interface.batches))
        for name, array in inputs.items()
    }


def _is_single(slot: Slot | None, batches: bool) -> bool:
    """Return whether an input can have only one element, as far as its shape says."""
    if batches or slot is None:
        return not batches
    return slot.shape is not None and all(size == 1 for size in slot.shape)


def _value(array: Array, is_single: bool) -> Any:
    if array.dtype != object:
        return array
    text = with_text(array)
    if is_single and text.size == 1:
        return text.item()
    return text.tolist() if text.ndim == 1 else text


def request_of(values: Mapping[str, Any], request_id: str) -> Request:
    """Return the equivalent Request for a user's own RequestOp.

    A text of one element becomes a pair, anything else a tensor; a request id that is a number
    becomes the log id. Raises PayloadTypeError for a value that a Request cannot have.
    """
    request = Request(logid=_log_id(request_id))
    for name, value in values.items():
        if isinstance(value, str):
            request.key.append(name)
            request.value.append(value)
        else:
            request.tensors.append(numpy_to_tensor(name, value))
    return request


def _log_id(request_id: str) -> int:
    if not (request_id.isascii() and request_id.isdigit()) or len(request_id) > 19:
        return 0
    number = int(request_id)
    return number if number <= _MAX_LOG_ID else 0


# --- out ------------------------------------------------------------------------------------


def payload_of(answer: object, interface: ModelInterface, ensemble: str = "") -> Mapping[str, Any]:
    """Return the values in an engine's answer: a ChannelData, or the result of a ResponseOp.

    Raises V2Error for an error, and for an invalid answer. The error of a request to an `ensemble`
    names it, unless it is the server's own and not a step's.
    """
    if isinstance(answer, ChannelData):
        if answer.error is not None:
            raise _in_ensemble(answer.error, ensemble)
        if not isinstance(answer.payload, Mapping):
            raise internal(f"the model answered with {_kind(answer.payload)}, not with a dict")
        return answer.payload
    if not isinstance(answer, Response):
        raise internal(f"pack_response_package returned {_kind(answer)}, not a Response")
    if answer.err_no:
        raise _in_ensemble(error_from_wire(answer.err_no, answer.err_msg), ensemble)
    numeric = {slot.name for slot in interface.outputs or () if slot.datatype != _BYTES}
    values: dict[str, Any] = {}
    for name, text in zip(answer.key, answer.value, strict=False):
        values[name] = _number(text) if name in numeric else text
    values.pop(PROFILE_KEY, None)
    try:
        values.update(decode_tensors(answer.tensors))
    except PackageError as error:
        raise internal(str(error)) from error
    return values


def _in_ensemble(error: PipelineError, ensemble: str) -> V2Error:
    failure = v2_error(error)
    if not ensemble or error.code in _OF_THE_SERVER:
        return failure
    return V2Error(failure.kind, f"in ensemble '{ensemble}', {failure}")


def _number(text: str) -> Any:
    """Return the number or array in `text`; the text itself if it is neither."""
    try:
        return text_to_numpy(text)
    except PackageError:
        return text


def arrays_of(
    payload: Mapping[str, Any],
    interface: ModelInterface,
    model: str,
    wanted: Sequence[str],
    may_lack: bool = False,
) -> dict[str, Array]:
    """Return the `wanted` outputs, or all; some `may_lack`.

    Raises V2Error: an output is missing, has no type of the protocol, or differs from the Op's
    declaration.
    """
    slots = {slot.name: slot for slot in interface.outputs or ()}
    by_name = {utf8_text(str(name)): value for name, value in payload.items()}
    names = dict.fromkeys(wanted or slots or by_name)
    outputs = {}
    for name in names:
        if name not in by_name:
            if name not in slots:
                raise no_such_output(model, name)
            if may_lack:
                continue
            raise internal(f"model '{model}' did not answer with its output '{name}'")
        try:
            array = array_of(by_name[name])
            outputs[name] = (
                array if name not in slots else _as_declared(array, slots[name], interface)
            )
        except (PipelineError, TypeError, ValueError, OverflowError) as error:
            raise internal(f"output '{name}' of model '{model}': {error}") from error
    return outputs


def _as_declared(array: Array, slot: Slot, interface: ModelInterface) -> Array:
    """Return `array` in the datatype and shape of the Op's declaration, as far as it is checked.

    Raises PayloadTypeError.
    """
    if slot.shape is not None and array.size == 1 and _is_single(slot, interface.batches):
        array = array.reshape(slot.shape)
    expected = slot.full_shape(interface.batches)
    if (
        "shape" in interface.output_checks
        and slot.shape is not None
        and not fits(array.shape, expected)
    ):
        raise PayloadTypeError(f"its shape is {list(array.shape)}, but {expected} is declared")
    try:
        return in_datatype(array, slot.datatype)
    except PayloadTypeError:
        if "type" in interface.output_checks:
            raise
        return array


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


# Outputs as classes -----------------------------------------------------------------------------


_PARAMETER = "classification"
_MOST = 1_000_000  # elements of an output that is searched for classes, as in Triton
_NUMBERS = {
    *(f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)),
    *("FP32", "FP64"),
}

Labels = Mapping[str, Sequence[bytes]]
"""Names of the classes, by output."""


def classes_wanted(outputs: Iterable[RequestedOutput]) -> dict[str, int]:
    """Return the requested number of classes, by output with classes.

    Raises:
        V2Error: it is not a number of classes.
    """
    counts = {}
    for output in outputs:
        count = output.parameters.get(_PARAMETER, 0)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 2**32:
            raise invalid(
                f"parameter 'classification' of output '{output.name}' must be a number of "
                f"classes, found {count!r}",
            )
        if count:
            counts[output.name] = count
    return counts


def classes_of(array: Array, count: int, labels: Sequence[bytes], batches: bool) -> Array:
    """Return the highest values of an output, each as b"<value>:<index>[:<label>]".

    Args:
        count: maximum number of classes.
        labels: by index; may be incomplete.
        batches: each row of the output has its own classes.

    Returns:
        An array of the shape (rows, classes), or (classes,).

    Raises:
        V2Error: the output has no numbers, or too many.
    """
    datatype = datatype_of(array.dtype)
    if datatype not in _NUMBERS:
        raise invalid(f"class result not available for output due to unsupported type '{datatype}'")
    if array.size > _MOST:
        raise invalid("classification output tensor too large")
    rows = array.reshape(len(array), -1) if batches else array.reshape(1, -1)
    most = min(count, rows.shape[1])
    classes = np.empty((len(rows), most), object)
    for at, row in enumerate(rows):
        # In descending order; of equal values the first.
        order = (len(row) - 1 - np.argsort(row[::-1], kind="stable"))[::-1][:most]
        classes[at] = [_class(row[index], index, labels) for index in order.tolist()]
    return classes if batches else classes[0]


def _class(value: Any, index: int, labels: Sequence[bytes]) -> bytes:
    text = f"{float(value):f}" if value.dtype.kind == "f" else str(int(value))
    label = b":" + labels[index] if index < len(labels) and labels[index] else b""
    return f"{text}:{index}".encode() + label
