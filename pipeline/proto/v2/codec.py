"""The v2 inference protocol's requests, responses and tensors: numpy to messages and back.

Tensors are written raw and read in both forms. `proto.v2.raw` converts the bytes of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from typing import Any

import msgspec
import numpy as np
from google.protobuf.message import DecodeError

from pipeline.errors import PackageError, PayloadTypeError, TooLargeError
from pipeline.proto.inference_v2_pb2 import (
    InferParameter,
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
)
from pipeline.proto.pipeline.blocks import BlockMessage, Shape, check_decoded, field_head, hollow
from pipeline.proto.slices import Limits, Piece, sliced
from pipeline.proto.v2.raw import (
    BYTES,
    DATATYPES,
    Array,
    UnfilledError,
    about_request,
    array_to_raw,
    count_mismatch,
    datatype_of,
    known_dtype,
    object_array,
    raw_to_array,
    raw_view,
    shaped,
    size_mismatch,
    size_of,
)

_NUMBERS = frozenset(
    field.number
    for field in InferTensorContents.DESCRIPTOR.fields
    if field.name != "bytes_contents"
)
_REQUEST_SHAPE = Shape(
    frozenset({ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER}),
    {
        ModelInferRequest.INPUTS_FIELD_NUMBER: Shape(
            frozenset(),
            {ModelInferRequest.InferInputTensor.CONTENTS_FIELD_NUMBER: Shape(_NUMBERS)},
        )
    },
)

InferTensor = ModelInferRequest.InferInputTensor | ModelInferResponse.InferOutputTensor
Parameters = dict[str, bool | int | float | str]

SERVICE = "inference.GRPCInferenceService"
"""The path of its methods: f"/{SERVICE}/ModelInfer" and so on."""

_CONTENTS: dict[str, tuple[str, np.dtype[Any]]] = {
    "BOOL": ("bool_contents", np.dtype(np.bool_)),
    "INT8": ("int_contents", np.dtype(np.int32)),
    "INT16": ("int_contents", np.dtype(np.int32)),
    "INT32": ("int_contents", np.dtype(np.int32)),
    "INT64": ("int64_contents", np.dtype(np.int64)),
    "UINT8": ("uint_contents", np.dtype(np.uint32)),
    "UINT16": ("uint_contents", np.dtype(np.uint32)),
    "UINT32": ("uint_contents", np.dtype(np.uint32)),
    "UINT64": ("uint64_contents", np.dtype(np.uint64)),
    "FP32": ("fp32_contents", np.dtype(np.float32)),
    "FP64": ("fp64_contents", np.dtype(np.float64)),
    "BYTES": ("bytes_contents", BYTES),
}
_CONTENTS_OF = {field: datatype_of(wide) for field, wide in _CONTENTS.values()}
"""The datatype of each field of InferTensorContents, for errors about the wrong field."""
_PARAMETER_FIELDS = {
    "sequence_id": ("int64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param",),
    "triton_enable_empty_final_response": ("bool_param",),
}
"""The fields of InferParameter for the protocol's own parameters of a request."""
REGION = "shared_memory_region"
"""The parameter of a tensor that names the shared memory region of its data."""

_OFFSET, _SIZE = "shared_memory_offset", "shared_memory_byte_size"
_ANY_FIELD = ("int64_param", "bool_param", "string_param")  # as Triton lists them


class SharedPlace(msgspec.Struct, frozen=True):
    """A place in shared memory that its caller has registered: bytes of a region."""

    region: str
    offset: int
    byte_size: int


class SharedInput(msgspec.Struct, frozen=True):
    """An input whose data are in shared memory."""

    datatype: str
    shape: list[int]
    place: SharedPlace


class StoredOutput(msgspec.Struct, frozen=True):
    """An output whose data were put in shared memory."""

    datatype: str
    shape: tuple[int, ...]


class RequestedOutput(msgspec.Struct, frozen=True):
    """An output that a request asks for, and its form. `place` is its place in shared memory."""

    name: str
    parameters: Parameters = {}
    place: SharedPlace | None = None


class InferRequest(msgspec.Struct, frozen=True):
    """Request for a model; BYTES inputs are object arrays of `bytes`.

    `model_version` is "" if the server chooses. No `outputs` means all outputs. `shared` are inputs
    that are not read yet. `wants_binary` is the default form of outputs over HTTP.
    """

    model_name: str
    model_version: str = ""
    id: str = ""
    parameters: Parameters = {}
    inputs: dict[str, Array] = {}
    outputs: list[RequestedOutput] = []
    shared: Mapping[str, SharedInput] = {}
    wants_binary: bool = False

    @property
    def places(self) -> dict[str, SharedPlace]:
        """Return the places in shared memory for outputs, by output name."""
        return {output.name: output.place for output in self.outputs if output.place is not None}

    @property
    def regions(self) -> set[str]:
        """Return the names of the regions of shared memory that the request uses."""
        places = [*(tensor.place for tensor in self.shared.values()), *self.places.values()]
        return {place.region for place in places}


class InferResponse(msgspec.Struct, frozen=True):
    """Answer of a model, its outputs in the order in which they are written.

    `error` replaces the outputs of one answer in a stream.
    """

    model_name: str
    model_version: str = ""
    id: str = ""
    parameters: Parameters = {}
    outputs: dict[str, Array] = {}
    error: Exception | None = None
    stored: Mapping[str, StoredOutput] = {}


# --- requests and responses -----------------------------------------------------------------


def request_from_message(
    message: ModelInferRequest | BlockMessage, limits: Limits | None = None, stays: bool = False
) -> InferRequest:
    """Return the request in a message; its arrays are writable.

    If `stays`, aligned arrays are not copied.

    Raises PackageError, with the name of the tensor or parameter, for a request that violates the
    protocol or needs an unsupported extension; TooLargeError for more text than `limits` allow.
    """
    refuse_twice("input", [tensor.name for tensor in message.inputs], message.id)
    refuse_twice("output", [output.name for output in message.outputs], message.id)
    shared = _shared_inputs(message.inputs)
    outputs = [
        requested_output(output.name, _from_parameters(output.parameters))
        for output in message.outputs
    ]
    return InferRequest(
        model_name=message.model_name,
        model_version=message.model_version,
        id=message.id,
        parameters=_from_parameters(message.parameters, _PARAMETER_FIELDS),
        inputs=_inputs_of(message, limits, shared, stays),
        outputs=outputs,
        shared=shared,
    )


def _shared_inputs(tensors: Iterable[InferTensor]) -> dict[str, SharedInput]:
    """Return the inputs whose data are in shared memory."""
    inputs = {}
    for tensor in tensors:
        if REGION in tensor.parameters:
            place = shared_place(f"tensor '{tensor.name}'", _from_parameters(tensor.parameters))
            if place is not None:
                inputs[tensor.name] = SharedInput(tensor.datatype, list(tensor.shape), place)
    return inputs


def _inputs_of(
    message: ModelInferRequest | BlockMessage,
    limits: Limits | None,
    shared: Mapping[str, SharedInput],
    stays: bool,
) -> dict[str, Array]:
    views = message.views("raw_input_contents") if isinstance(message, BlockMessage) else None
    raw = message.raw_input_contents if views is None else views
    if raw:
        for tensor in message.inputs:
            if tensor.contents.ListFields():  # MLServer sends empty ones beside raw data
                raise PackageError(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{tensor.name}' for model '{message.model_name}'"
                )
    model_and_id = (message.model_name, message.id)
    tensors: Sequence[InferTensor] = message.inputs
    if shared:  # their data are not in the message
        tensors = [tensor for tensor in tensors if tensor.name not in shared]
    return tensors_to_arrays(tensors, raw, model_and_id, limits, stays)


def read_message(message: bytes, limits: Limits) -> InferRequest:
    """Return the request in a message. Raises PackageError, also for an invalid message."""
    try:
        parsed = ModelInferRequest.FromString(message)
    except DecodeError as error:
        raise PackageError(f"the message is no ModelInferRequest: {error}") from error
    return request_from_message(parsed, limits)


def read_large_message(messages: list[Piece], limits: Limits) -> InferRequest:
    """Remove the only item of `messages` and return its request. Raises PackageError."""
    try:
        return large_request_from_message(messages.pop(), limits)
    except DecodeError as error:
        raise PackageError(f"the message is no ModelInferRequest: {error}") from error


def large_request_from_message(message: Piece, limits: Limits) -> InferRequest:
    """Read a request that is too large to be copied; arrays of a view are not copied.

    Also raises DecodeError: it is not a ModelInferRequest.
    """
    parsed = hollow(message, ModelInferRequest, _REQUEST_SHAPE, limits)
    return request_from_message(parsed, limits, stays=type(message) is memoryview)


def response_pieces(response: InferResponse) -> list[bytes | memoryview]:
    """Return a ModelInferResponse as protobuf writes it, its tensors raw, in pieces.

    Raises PayloadTypeError, with the name of the tensor or parameter, for a value that the
    protocol cannot carry.
    """
    head = ModelInferResponse(
        model_name=response.model_name, model_version=response.model_version, id=response.id
    )
    for name, value in response.parameters.items():
        set_parameter(head.parameters[name], name, value)
    raws: list[bytes | memoryview] = []
    for name, array in response.outputs.items():
        add_tensor(head.outputs, raws, name, array, raw_view)
    for name, stored in response.stored.items():
        head.outputs.add(name=name, datatype=stored.datatype, shape=stored.shape)
        raws.append(b"")
    number = ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
    pieces = [piece for raw in raws for piece in (field_head(number, len(raw)), raw)]
    return [head.SerializeToString(), *pieces]


def requested_output(name: str, parameters: Parameters) -> RequestedOutput:
    """Return a requested output. Raises PackageError: its parameters contradict each other."""
    place = shared_place(f"tensor '{name}'", parameters)
    if place is not None and "classification" in parameters:
        text = "output can't set both 'shared_memory_region' and 'classification'"
        raise PackageError(text)
    return RequestedOutput(name, parameters, place)


def shared_place(what: str, parameters: Mapping[str, Any]) -> SharedPlace | None:
    """Return the place in shared memory that parameters name, or None; `what` is for errors.

    Raises PackageError, in Triton's words.
    """
    region = parameters.get(REGION)
    if region is None:
        for name in (_OFFSET, _SIZE):
            if name in parameters:
                raise PackageError(
                    f"'{name}' can not be specified without '{REGION}' parameter for {what}"
                )
        return None
    if type(region) is not str:
        raise PackageError(
            f"invalid value type for '{REGION}' parameter for {what}, expected string_param."
        )
    offset, size = parameters.get(_OFFSET, 0), parameters.get(_SIZE, 0)
    for name, value in ((_OFFSET, offset), (_SIZE, size)):
        if type(value) is not int or not 0 <= value < 2**64:
            raise PackageError(
                f"invalid value type for '{name}' parameter for {what}, expected int64_param."
            )
    return SharedPlace(region, offset, size)


def refuse_twice(kind: str, names: Iterable[str], request_id: str) -> None:
    """Raise PackageError if two inputs, or two outputs, have one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise PackageError(
                f"{about_request(request_id)}{kind} '{name}' already exists in request"
            )
        seen.add(name)


def _from_parameters(
    parameters: Mapping[str, InferParameter], fields: Mapping[str, tuple[str, ...]] = {}
) -> Parameters:
    """Read parameters; `fields` has the allowed fields of some of them, by name."""
    values: Parameters = {}
    for name, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        allowed = fields.get(name)
        if kind is None or (allowed is not None and kind not in allowed):
            expected = _listed(allowed or _ANY_FIELD)
            raise PackageError(f"invalid value type for '{name}' parameter, expected {expected}.")
        values[name] = getattr(parameter, kind)
    return values


def _listed(fields: tuple[str, ...]) -> str:
    *first, last = fields
    return f"{', '.join(first)}{',' if len(first) > 1 else ''} or {last}" if first else last


def set_parameter(parameter: InferParameter, name: str, value: bool | int | float | str) -> None:
    """Set one parameter of a message. Raises PayloadTypeError: it cannot hold the value."""
    try:
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int):
            if value < 2**63:
                parameter.int64_param = value
            else:
                parameter.uint64_param = value
        elif isinstance(value, float):
            parameter.double_param = value
        else:
            parameter.string_param = value
    except (
        TypeError,
        ValueError,
        UnicodeError,
    ) as error:  # wrong type, out of range, lone surrogate
        raise PayloadTypeError(f"parameter {name!r} of a response: {error}") from None


# --- tensors ----------------------------------------------------------------------------------


def add_tensor(
    tensors: Any,
    raw_contents: MutableSequence[Any],
    name: str,
    array: Array,
    raw_of: Callable[[Array], bytes | memoryview] = array_to_raw,
) -> None:
    """Append an array to the `inputs` and raw contents of a request, or `outputs` of a response.

    Raises PayloadTypeError, with the tensor's name, for a value that the protocol cannot carry.
    """
    try:
        raw = raw_of(array)
    except PayloadTypeError as error:
        raise PayloadTypeError(f"tensor {name!r}: {error}") from None
    tensors.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
    raw_contents.append(raw)


def tensors_to_arrays(
    tensors: Sequence[InferTensor],
    raw_contents: Sequence[bytes | memoryview],
    model_and_id: tuple[str, str] | None = None,
    limits: Limits | None = None,
    stays: bool = False,
) -> dict[str, Array]:
    """Return the writable arrays of all tensors of a request or response by name.

    Raw tensors are copied unless `stays` allows the use of the received memory.
    Raises PackageError, with the tensor's name and the numbers, for an unknown datatype, for data
    that do not fit the shape, and if only some tensors are raw. With the model and the id of a
    request, it has Triton's text where Triton has one.
    """
    if raw_contents and len(raw_contents) != len(tensors):
        raise PackageError(f"{len(tensors)} tensors, but {len(raw_contents)} raw contents")
    arrays: dict[str, Array] = {}
    for index, tensor in enumerate(tensors):
        try:
            if not raw_contents:
                array = contents_to_array(tensor.datatype, tensor.shape, tensor.contents, limits)
            elif tensor.contents.ListFields():  # MLServer sends empty ones beside raw data
                raise PackageError("it has contents, but the message's tensors are raw")
            else:
                raw = raw_contents[index]
                array = raw_to_array(tensor.datatype, tensor.shape, raw, limits, stays)
        except PackageError as error:
            raise _about(tensor.name, error, model_and_id) from None
        arrays[tensor.name] = array
    return arrays


def _about(name: str, error: PackageError, model_and_id: tuple[str, str] | None) -> PackageError:
    if model_and_id is not None and isinstance(error, UnfilledError):
        return error.of_input(name, *model_and_id)
    kind = TooLargeError if isinstance(error, TooLargeError) else PackageError
    return kind(f"tensor {name!r}: {error}")


def contents_to_array(
    datatype: str,
    shape: Sequence[int],
    contents: InferTensorContents,
    limits: Limits | None = None,
) -> Array:
    """Return the array of one tensor that is not raw; of BYTES, an object array of `bytes`.

    Raises PackageError for FP16 and BF16, which have no field, for an unknown datatype, and for
    data that does not fit the datatype or the shape.
    """
    dtype = known_dtype(datatype)
    if datatype not in _CONTENTS:
        raise PackageError(f"{datatype} has no contents: it travels raw only")
    field, wide = _CONTENTS[datatype]
    size = size_of(shape)
    came, parts = _parts(contents, field, wide)
    filled = contents.ListFields()
    if came != size or len(filled) > 1:
        raise _wrong_contents(
            datatype, list(shape), field, [descriptor.name for descriptor, _ in filled], came
        )
    if dtype == BYTES:
        if limits is not None:
            limits.check_texts(size)
        return object_array([element for part in parts for element in part], shape)
    if isinstance(contents, BlockMessage):
        check_decoded("it", came * dtype.itemsize, contents.limits)
    flat, at = np.empty(came, dtype), 0
    for part in parts:
        values = np.asarray(part, wide)
        flat[at : at + values.size] = narrow = values.astype(dtype, copy=False)
        at += values.size
        if narrow is not values and not np.array_equal(narrow, values):
            low, high = values.min(), values.max()
            raise PackageError(f"{field} holds {low} to {high}, too much for {datatype}")
    return shaped(flat, shape)


def _parts(
    contents: InferTensorContents | BlockMessage, field: str, wide: np.dtype[Any]
) -> tuple[int, Iterable[Any]]:
    """Return the number of a field's elements, and slices of them."""
    if not isinstance(contents, BlockMessage) or contents.views(field) is None:
        elements = getattr(contents, field)
        return len(elements), sliced(elements)
    packed = contents.packed(field, wide) if wide.kind in "bf" else None
    if packed is not None:
        return packed.size, (packed,)
    return contents.count(field), contents.varints(field, wide) or ()


def _wrong_contents(
    datatype: str, shape: list[int], field: str, filled: list[str], came: int
) -> UnfilledError:
    """Return the error of contents that do not fill the shape, or fill other fields.

    `field` is the field of the datatype; `filled` are the fields with data.
    """
    size = size_of(shape)
    what = f"{datatype} of shape {shape}"
    text = f"{what} has {size} elements, but {field} holds {came}"
    if not filled:
        return UnfilledError(text, "unable to find data for input tensor {} in request.")
    if filled[0] != field:
        pattern = "unexpected explicit tensor data for input tensor {} of type "
        pattern += f"'{_CONTENTS_OF[filled[0]]}', expected datatype '{datatype}'"
        return UnfilledError(text, pattern)
    if len(filled) > 1:
        pattern = (
            "unexpected explicit tensor data for input tensor {}, binary data was already supplied."
        )
        return UnfilledError(f"{what} has {' and '.join(filled)}", pattern)
    if datatype == "BYTES":
        return count_mismatch(size, came)
    item = DATATYPES[datatype].itemsize
    return size_mismatch(what, size * item, came * item)
