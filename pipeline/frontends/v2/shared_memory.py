"""Inputs of requests that are in shared memory, and outputs that are put there."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pipeline.errors import PackageError, PayloadTypeError, TooLargeError
from pipeline.frontends.v2.errors import V2Error, internal
from pipeline.frontends.v2.shared_regions import SharedRegions
from pipeline.proto.slices import Limits
from pipeline.proto.v2.codec import InferRequest, InferResponse, SharedPlace, StoredOutput
from pipeline.proto.v2.raw import UnfilledError, about_request, datatype_of, raw_to_array, raw_view


def opened(request: InferRequest, regions: SharedRegions, limits: Limits) -> InferRequest:
    """Return a request with what its caller has in shared memory: a copy, as large as that.

    Raises:
        V2Error: it is not there, or the places for outputs are not.
        PackageError: it is not what it is said to be.
        TooLargeError: all inputs that are there are larger than a message may be. A file takes no
            memory for bytes that nobody has written, their copy does.
    """
    inputs, size = dict(request.inputs), 0
    for name, shared in request.shared.items():
        place = shared.place
        try:
            regions.check(place.region, place.offset, place.byte_size)
            size += place.byte_size
            if size > limits.message_bytes:
                raise TooLargeError(
                    f"{size} bytes of shared memory are more than max_message_bytes "
                    f"({limits.message_bytes})"
                )
            data = regions.read(place.region, place.offset, place.byte_size)
            inputs[name] = raw_to_array(shared.datatype, shared.shape, memoryview(data), limits)
        except UnfilledError as error:
            raise error.of_input(name, request.model_name, request.id) from None
        except PackageError as error:
            raise type(error)(f"input {name!r}: {error}") from None
        except V2Error as error:
            raise V2Error(error.kind, f"{about_request(request.id)}{error}") from None
    for place in request.places.values():
        regions.check(place.region, place.offset, place.byte_size)
    return msgspec.structs.replace(request, inputs=inputs, shared={})


def stored(
    response: InferResponse, places: Mapping[str, SharedPlace], regions: SharedRegions
) -> InferResponse:
    """Put outputs where their caller wants them; return the answer without their data.

    Raises V2Error: there is no room for them, or an output has no bytes.
    """
    outputs, put = dict(response.outputs), {}
    for name, place in places.items():
        array = outputs.pop(name, None)
        if array is None:
            continue
        try:
            data = raw_view(array)
        except PayloadTypeError as error:
            raise internal(f"output {name!r}: {error}") from None
        regions.write(place.region, place.offset, place.byte_size, data, name)
        put[name] = StoredOutput(datatype_of(array.dtype), array.shape)
    return msgspec.structs.replace(response, outputs=outputs, stored=put)
