"""The v2 inference protocol over HTTP: JSON, with tensors in it or as bytes that follow it.

A body is JSON, then the bytes of the tensors with a parameter `binary_data_size`, in their order;
the header Inference-Header-Content-Length is the JSON's length.
Without that header the body is JSON only; with 0 it is the model's only input. Errors begin with
Triton's words, which its test suites search for; this library's words follow.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import orjson

from pipeline.errors import PackageError, PayloadTypeError, TooLargeError
from pipeline.proto.pipeline.json_long import (
    LongArray,
    NotJsonError,
    check_utf8,
    elements_of,
    marked,
    members_of,
    struct_of,
    value_of,
)
from pipeline.proto.slices import SHORT_BYTES, Limits, joined
from pipeline.proto.v2.codec import (
    REGION,
    InferRequest,
    InferResponse,
    Parameters,
    RequestedOutput,
    SharedInput,
    refuse_twice,
    requested_output,
    shared_place,
)
from pipeline.proto.v2.json_data import array_to_data, data_to_array, shown
from pipeline.proto.v2.raw import (
    BYTES,
    Array,
    UnfilledError,
    about_request,
    datatype_of,
    known_dtype,
    object_array,
    raw_to_array,
    raw_view,
    size_of,
)

_MOST_ID_BYTES = 65_536
_REQUEST = struct_of(["id", "parameters", "inputs", "outputs"])
_INPUT = struct_of(["name", "datatype", "shape", "parameters", "data"])
_NO_JSON = "failed to parse the request JSON buffer: the request is not valid JSON"
_JSON_KINDS = {"a list": "array", "a string": "string"}
_SIZE = "binary_data_size"
_NO_SIZES = (
    "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer"
)
_ONE_SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)
_BINARY = "binary_data_output"  # only for the HTTP form: models do not receive it


class RawInput(msgspec.Struct, frozen=True):
    """An input of a model, for bodies that consist of its data.

    One dimension of `shape` may be -1: the size of the data gives it. A batch dimension is 1.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


# --- a request ------------------------------------------------------------------------------


def read_request(
    body: bytes | memoryview,
    header_length: int | None = None,
    *,
    model_name: str = "",
    model_version: str = "",
    raw_inputs: Sequence[RawInput] | None = None,
    limits: Limits | None = None,
) -> InferRequest:
    """Return the request that was posted to a model's `infer`.

    Args:
        body: the whole decompressed body; arrays may use the memory of a view.
        header_length: Inference-Header-Content-Length; None without this header.
        model_name, model_version: from the path; the body does not have them.
        raw_inputs: the model's inputs, for a `header_length` of 0, which needs exactly one input;
            None if the model does not declare them.

    Raises:
        PackageError: the body is not valid; the text says where and why.
    """
    if header_length == 0:
        return _raw_request(body, model_name, model_version, raw_inputs)
    length = len(body) if header_length is None else header_length
    if not 0 <= length <= len(body):
        raise PackageError(
            f"inference header size should be in range (0, {len(body)}), got: {length}"
        )
    view = memoryview(body)
    if length <= SHORT_BYTES:
        fields = _object(_parsed(view[:length]), "the request")
    else:
        fields = _large_fields(view[:length])
    parameters = _parameters(fields, "the request")
    _check_bool(parameters, _BINARY, "the request")
    request_id = _text(fields, "id", "the request", default="")
    stays = type(body) is memoryview
    tail = _Tail(view[length:], header_length is not None, model_name, stays)
    inputs, shared = _inputs(fields, tail, (model_name, request_id), limits or Limits())
    return InferRequest(
        model_name=model_name,
        model_version=model_version,
        id=request_id,
        parameters={name: parameters[name] for name in parameters if name != _BINARY},
        inputs=inputs,
        outputs=_outputs(fields, request_id),
        shared=shared,
        wants_binary=parameters.get(_BINARY) is True,
    )


def binary_names(request: InferRequest, names: Iterable[str]) -> set[str]:
    """Return the outputs that the request wants as bytes after the JSON.

    An output's parameter `binary_data` takes precedence over `binary_data_output`.
    """
    default = request.wants_binary
    requested = {
        output.name: output.parameters.get("binary_data", default) for output in request.outputs
    }
    return {name for name in names if requested.get(name, default)}


def _raw_request(
    body: bytes | memoryview, name: str, version: str, raw_inputs: Sequence[RawInput] | None
) -> InferRequest:
    if raw_inputs is None:
        raise PackageError(
            "Inference-Header-Content-Length is 0: data alone are for models that say that they "
            "have one input; send JSON"
        )
    if len(raw_inputs) != 1:
        raise PackageError(
            f"{about_request('')}Raw request must only have 1 input (found 1) to be deduced but "
            f"got {len(raw_inputs)} inputs in '{name}' model configuration: send JSON"
        )
    (raw_input,) = raw_inputs
    array = _raw_array(body, raw_input, name)
    # A caller that sends no JSON wants none back.
    return InferRequest(
        model_name=name,
        model_version=version,
        inputs={raw_input.name: array},
        wants_binary=True,
    )


def _raw_array(body: bytes | memoryview, raw_input: RawInput, model: str) -> Array:
    name, shape = raw_input.name, list(raw_input.shape)
    if shape.count(-1) > 1:
        raise PackageError(
            f"The shape of the raw input '{name}' can not be deduced because there are more than "
            f"one variable-sized dimension in {shape}: send JSON with it"
        )
    try:
        known = size_of([size for size in shape if size != -1])
        dtype = known_dtype(raw_input.datatype)
        if dtype != BYTES:
            if -1 in shape:
                shape[shape.index(-1)] = len(body) // (known * dtype.itemsize) if known else 0
            stays = type(body) is memoryview
            return raw_to_array(raw_input.datatype, shape, body, stays=stays)
    except UnfilledError as error:
        raise error.of_input(name, model, "") from None
    except PackageError as error:
        raise PackageError(f"input {name!r}: {error}") from None
    if known != 1:  # the element has no length before it
        raise PackageError(
            f"For BYTE datatype raw input '{name}', the model must have input shape [1], and it "
            f"has {shape}: send JSON with it"
        )
    return object_array([bytes(body)], [abs(size) for size in shape])


class _Tail:
    """The bytes after the JSON, from which each binary tensor takes its part.

    Args:
        is_told: whether the request says where they begin.
        model: name of the model.
        stays: whether arrays may use this memory.
    """

    def __init__(self, data: memoryview, is_told: bool, model: str, stays: bool) -> None:
        self.stays = stays
        self.data = data
        self.is_told = is_told
        self.model = model

    def take(self, name: str, size: int) -> memoryview:
        """Return the bytes of an input."""
        left = len(self.data)
        if size and not self.is_told:
            raise PackageError(
                "it has a 'binary_data_size', but there is no Inference-Header-Content-Length "
                "that says where the JSON ends"
            )
        if size > left:
            raise PackageError(
                f"unexpected size for input '{name}', expecting {size - left} additional bytes for "
                f"model '{self.model}': 'binary_data_size' is {size}, but {left} bytes are left of "
                "the body"
            )
        taken, self.data = self.data[:size], self.data[size:]
        return taken


def _inputs(
    fields: dict[str, Any], tail: _Tail, model_and_id: tuple[str, str], limits: Limits
) -> tuple[dict[str, Array], dict[str, SharedInput]]:
    """Return the arrays and the inputs in shared memory, by name."""
    arrays: dict[str, Array] = {}
    shared: dict[str, SharedInput] = {}
    names: list[str] = []
    for index, entry in enumerate(_list(fields, "inputs", "the request")):
        where = f"inputs[{index}]"
        tensor = _object(entry, where)
        name = _text(tensor, "name", where)
        names.append(name)
        parameters = _parameters(tensor, f"input {name!r}")
        try:
            if REGION in parameters:
                shared[name] = _shared_input(name, tensor, parameters)
            else:
                arrays[name] = _input(name, tensor, parameters, tail, limits)
        except UnfilledError as error:
            raise error.of_input(name, *model_and_id) from None
        except PackageError as error:
            kind = TooLargeError if isinstance(error, TooLargeError) else PackageError
            raise kind(f"input {name!r}: {error}") from None
    refuse_twice("input", names, model_and_id[1])
    if tail.data:
        raise PackageError(f"unexpected additional input data for model '{tail.model}'")
    return arrays, shared


def _shared_input(name: str, tensor: dict[str, Any], parameters: Parameters) -> SharedInput:
    others = [f"'{key}'" for key, of in (("data", tensor), (_SIZE, parameters)) if key in of]
    if others:
        raise PackageError(f"{_ONE_SOURCE}set {' '.join(others)} '{REGION}'")
    place = shared_place(f"tensor '{name}'", parameters)
    assert place is not None, "its parameters name one"
    return SharedInput(_text(tensor, "datatype", "it"), _shape(tensor), place)


def _shape(tensor: dict[str, Any]) -> list[int]:
    shape = _list(tensor, "shape", "it")
    if any(type(size) is not int for size in shape):
        raise PackageError(f"{_NO_SIZES}: 'shape' must have whole numbers, not {shown(shape)}")
    return shape


def _input(
    name: str, tensor: dict[str, Any], parameters: Parameters, tail: _Tail, limits: Limits
) -> Array:
    datatype = _text(tensor, "datatype", "it")
    shape = _shape(tensor)
    size = parameters.get(_SIZE)
    if size is None:
        # For an empty tensor Triton's clients send no data.
        data: Any = tensor.get("data")
        if "data" not in tensor:
            if 0 not in shape:
                raise PackageError(f"{_ONE_SOURCE}no field is set: it has no 'data'")
            data = []
        elif not isinstance(data, LongArray):
            data = _list(tensor, "data", "it")
        return data_to_array(datatype, shape, data, limits)
    if type(size) is not int or size < 0:
        raise PackageError(f"'binary_data_size' must be a number of bytes, not {shown(size)}")
    if "data" in tensor:
        both = "it has both 'data' and 'binary_data_size'"
        raise PackageError(f"{_ONE_SOURCE}set 'data' 'binary_data_size': {both}")
    return raw_to_array(datatype, shape, tail.take(name, size), limits, tail.stays)


def _outputs(fields: dict[str, Any], request_id: str) -> list[RequestedOutput]:
    outputs: list[RequestedOutput] = []
    if "outputs" not in fields:
        return outputs
    for index, entry in enumerate(_list(fields, "outputs", "the request")):
        where = f"outputs[{index}]"
        asked = _object(entry, where)
        output = requested_output(_text(asked, "name", where), _parameters(asked, where))
        _check_bool(output.parameters, "binary_data", where)
        outputs.append(output)
    refuse_twice("output", [output.name for output in outputs], request_id)
    return outputs


# --- a response -----------------------------------------------------------------------------


def write_response(
    response: InferResponse, binary: Collection[str] = (), limits: Limits | None = None
) -> tuple[bytes, int | None]:
    """Return the body of the answer, and the Inference-Header-Content-Length if it needs one.

    Outputs named in `binary` follow the JSON as bytes; others are flat lists in it. Lists write
    floats that are not finite as `NaN`, `Infinity` and `-Infinity`, which JSON lacks but clients of
    the protocol write and read.

    Raises:
        PackageError: an output has no JSON form; the caller must ask for binary data.
        PayloadTypeError: the protocol cannot carry an output or a parameter.
    """
    outputs: list[dict[str, Any]] = []
    tail: list[bytes | memoryview] = []
    for name, array in response.outputs.items():
        try:
            outputs.append(_output(name, array, tail if name in binary else None, limits))
        except (PackageError, PayloadTypeError) as error:
            raise type(error)(f"output {name!r}: {error}") from None
    for name, stored in response.stored.items():
        place = {"datatype": stored.datatype, "shape": stored.shape}
        outputs.append({"name": name, **place})
    fields = response_fields(response, outputs)
    try:
        text = orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as error:
        raise PayloadTypeError(f"the response has no JSON form: {error}") from None
    if not tail:
        return text, None
    return joined((text, *tail)), len(text)


def response_fields(response: InferResponse, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON of an answer with these outputs."""
    fields: dict[str, Any] = {"id": response.id} if response.id else {}
    fields |= {"model_name": response.model_name, "model_version": response.model_version}
    if response.parameters:
        fields["parameters"] = response.parameters
    return {**fields, "outputs": outputs}


def _output(
    name: str, array: Array, tail: list[bytes | memoryview] | None, limits: Limits | None
) -> dict[str, Any]:
    """Return an output's JSON; its bytes are appended to the `tail` if there is one."""
    if tail is None:
        return output_fields(name, array, data=array_to_data(array, limits))
    raw = raw_view(array)
    tail.append(raw)
    return output_fields(name, array, parameters={"binary_data_size": len(raw)})


def output_fields(name: str, array: Array, **where: Any) -> dict[str, Any]:
    """Return an output's JSON; `where` has its data, or their place."""
    return {"name": name, "datatype": datatype_of(array.dtype), "shape": array.shape, **where}


# --- fields of JSON objects -----------------------------------------------------------------


def _parsed(text: memoryview) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    data = bytes(text)
    if b"NaN" in data or b"Infinity" in data:  # not JSON, but Python and Triton write and read them
        with suppress(ValueError, TypeError, RecursionError):  # orjson's error is as good
            value = json.loads(data)
            orjson.dumps(value)  # refuses what orjson does not read: surrogates, long numbers
            return value
    raise PackageError(f"{_NO_JSON}: {reason}")


def _large_fields(text: memoryview) -> dict[str, Any]:
    """Return the members of a large request; long lists of data are LongArrays."""
    is_marked = False
    try:
        check_utf8(text)
        try:
            members = members_of(text, _REQUEST)
        except NotJsonError:
            whole = bytes(text)
            is_marked = b"NaN" in whole or b"Infinity" in whole
            if not is_marked:
                raise
            members = members_of(marked(whole), _REQUEST)
        if len(members.get("id", b"")) > _MOST_ID_BYTES:
            raise TooLargeError(f"'id' of the request has more than {_MOST_ID_BYTES} bytes")
        inputs = members.pop("inputs", None)
        fields = {name: _short(name, value_of(value)) for name, value in members.items()}
        if inputs is not None:
            fields["inputs"] = _large_inputs(inputs, is_marked)
    except TypeError:
        raise PackageError("the request must be a JSON object") from None
    except NotJsonError as error:
        raise PackageError(f"{_NO_JSON}: {error}") from None
    return fields


def _large_inputs(text: memoryview, is_marked: bool) -> Any:
    if bytes(text[:1]) != b"[":
        return _short("inputs", value_of(text))
    try:
        elements = elements_of(text, _INPUT, "inputs")
    except TypeError as error:
        raise PackageError(f"not as it has to be: each of 'inputs' is an object: {error}") from None
    return [
        {
            name: value_of(value, is_marked) if name == "data" else _short(name, value_of(value))
            for name, value in members.items()
        }
        for members in elements
    ]


def _short(name: str, value: Any) -> Any:
    """Return a member other than data, which has to be short enough to be read at once."""
    return value.whole(repr(name)) if isinstance(value, LongArray) else value


def _object(value: Any, where: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise PackageError(f"{where} must be a JSON object, not {shown(value)}")
    return value


def _list(fields: dict[str, Any], key: str, where: str) -> list[Any]:
    value = fields.get(key)
    if type(value) is not list:
        raise PackageError(_missing_or_wrong(fields, key, where, "a list"))
    return value


def _text(fields: dict[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = fields.get(key, default)
    if type(value) is not str:
        raise PackageError(_missing_or_wrong(fields, key, where, "a string"))
    return value


def _missing_or_wrong(fields: dict[str, Any], key: str, where: str, expected: str) -> str:
    unable = f"Unable to parse '{key}': attempt to access"
    if key not in fields:
        return f"{unable} non-existing object member '{key}': {where} has no {key!r}"
    kind = _JSON_KINDS[expected]
    ours = f"{key!r} of {where} must be {expected}, not {shown(fields[key])}"
    return f"{unable} JSON non-{kind} as {kind}: {ours}"


def _parameters(fields: dict[str, Any], where: str) -> Parameters:
    if "parameters" not in fields:
        return {}
    parameters = _object(fields["parameters"], f"'parameters' of {where}")
    for name, value in parameters.items():
        if type(value) not in (bool, int, float, str):
            raise PackageError(
                f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or "
                "'string'."
            )
    return parameters


def _check_bool(parameters: Parameters, name: str, where: str) -> None:
    if type(parameters.get(name, False)) is not bool:
        raise PackageError(
            f"Unable to parse '{name}': attempt to access JSON non-boolean as boolean: parameter "
            f"{name!r} of {where} must be true or false, not {shown(parameters[name])}"
        )
