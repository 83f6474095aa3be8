"""The client's half of the wire: a feed dict as a Request, a Response as results by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from pipeline.errors import PackageError, PayloadTypeError, error_from_wire
from pipeline.proto.codec import decode_tensors, numpy_to_tensor, numpy_to_text, text_to_numpy
from pipeline.proto.lists import as_array
from pipeline.proto.pipeline_service_pb2 import DESCRIPTOR, Request, Response, Tensor
from pipeline.proto.plain_answer import json_elements

INFERENCE_PATH = f"/{DESCRIPTOR.services_by_name['PipelineService'].full_name}/inference"
STREAM_PATH = f"{INFERENCE_PATH}_stream"
PROFILE_KEY = "pipeline.profile"
_LOD_SUFFIX = ".lod"
_MOST_PADDED = 2**18  # characters of an array of text, the padding too
_META_KEYS = ("logid", "clientip")  # of a feed_dict: their numbers and texts describe the request
_ANSWER_FIELDS = {
    "ecode": "err_no",
    "err_no": "err_no",
    "error_info": "err_msg",
    "err_msg": "err_msg",
}


# --- feed dict to request -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options of one call."""

    fetch: list[str] | None
    as_tensors: bool
    as_bytes: bool
    profile: bool
    log_id: int


def request_from_feed(feed_dict: dict[str, Any], options: CallOptions, own_ip: str) -> Request:
    """Return the message of a call. Raises TypeError with the key that cannot be sent."""
    _check_arguments(feed_dict, options.fetch)
    request = Request()
    about = {
        key: feed_dict[key] for key in _META_KEYS if key in feed_dict and _is_word(feed_dict[key])
    }
    try:
        request.clientip = str(about.get("clientip") or own_ip)
    except ValueError as error:
        raise TypeError(f"feed_dict['clientip'] cannot be sent: {error}") from error
    log_id = options.log_id or about.get("logid") or 0
    try:
        request.logid = int(log_id)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"the log id {log_id!r} is no 64-bit number: {error}") from error
    for key, value in feed_dict.items():
        if key in about:
            continue
        try:
            if not options.as_tensors:
                _add_pair(request, key, value)
            elif not _is_lod(key, feed_dict):
                lod = feed_dict.get(key + _LOD_SUFFIX)
                request.tensors.append(_tensor(key, value, lod, options.as_bytes))
        except (PayloadTypeError, TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"feed_dict[{key!r}] cannot be sent: {error}") from error
    if options.profile:
        request.key.append(PROFILE_KEY)
        request.value.append("1")
    return request


def _check_arguments(feed_dict: object, fetch: object) -> None:
    if not isinstance(feed_dict, dict):
        raise TypeError(f"feed_dict must be dict type, but get {type(feed_dict)}")
    for key in feed_dict:
        if not isinstance(key, str):
            raise TypeError(f"the keys of feed_dict must be str, but get {key!r}")
    if fetch is not None and not isinstance(fetch, list):
        raise TypeError(f"fetch must be list type or None, but get {type(fetch)}")
    for name in fetch or ():
        if not isinstance(name, str):
            raise TypeError(f"the names in fetch must be str, but get {name!r}")


def _is_word(value: Any) -> bool:
    """Return whether a value describes the request; arrays and lists are inputs of that name."""
    return not isinstance(value, np.ndarray | list | tuple)


def _is_lod(key: str, feed_dict: dict[str, Any]) -> bool:
    """Return whether the value of `key` is the LoD of another value and is sent in its tensor."""
    return key.endswith(_LOD_SUFFIX) and key.removesuffix(_LOD_SUFFIX) in feed_dict


def _tensor(key: str, value: Any, lod: Any, as_bytes: bool) -> Tensor:
    return numpy_to_tensor(key, _json(value) if isinstance(value, dict) else value, lod, as_bytes)


def _add_pair(request: Request, key: str, value: Any) -> None:
    """Add a value as text; bytes, which a pair cannot hold, as a tensor."""
    if isinstance(value, bytes | bytearray | memoryview):
        request.tensors.append(numpy_to_tensor(key, value))
        return
    if isinstance(value, list | tuple):
        value = _printed_array(value)
    request.value.append(_json(value) if isinstance(value, dict) else numpy_to_text(value))
    request.key.append(key)


def _printed_array(value: Any) -> npt.NDArray[Any]:
    """Return the array that numpy prints for lists.

    It is of objects for bytes, since numpy drops NULs at their end, and for text that would take
    too much memory when padded to the longest.
    """
    objects = as_array(value)
    elements = objects.ravel().tolist() if objects.dtype.hasobject else []
    if any(isinstance(element, str) for element in elements):
        widest = max(len(element) for element in elements if isinstance(element, str))
        return np.array(value) if objects.size * widest <= _MOST_PADDED else objects
    return objects


def _json(value: dict[Any, Any]) -> str:
    return orjson.dumps(value, _numpy_in_json, orjson.OPT_NON_STR_KEYS).decode()


def _numpy_in_json(value: Any) -> orjson.Fragment:
    """Return the JSON of an array of any layout, or of a numpy number."""
    known = json_elements(value) if isinstance(value, np.ndarray) else value
    return orjson.Fragment(orjson.dumps(known, option=orjson.OPT_SERIALIZE_NUMPY))


def cut_answer(proto: Response, options: CallOptions) -> PipelineResponse:
    """Return the answer with only the names to fetch.

    An answer without any of them is returned whole: the predecessor ignored `fetch`, so existing
    scripts name outputs that never existed.
    """
    names = set(options.fetch or ())
    if names.isdisjoint(proto.key) and names.isdisjoint(tensor.name for tensor in proto.tensors):
        return PipelineResponse(proto)
    if options.profile:
        names.add(PROFILE_KEY)
    pairs = [pair for pair in zip(proto.key, proto.value, strict=False) if pair[0] in names]
    cut = Response(
        err_no=proto.err_no,
        err_msg=proto.err_msg,
        key=[key for key, _ in pairs],
        value=[value for _, value in pairs],
        tensors=[tensor for tensor in proto.tensors if tensor.name in names],
    )
    return PipelineResponse(cut)


# --- response to results ------------------------------------------------------------------------


class PipelineResponse:
    """An answer: the message's fields as attributes, the results by name.

    `response["price"]` is the result `price` as a value: a tensor as its array, the text of an
    array, list or number parsed (never evaluated), any other text unchanged. `ecode` and `err_no`,
    `error_info` and `err_msg` are the error's code and text, also where a result has that name.
    `keys()` are the results' names alone; a tensor with a LoD adds `"<name>.lod"`.
    """

    def __init__(self, proto: Response) -> None:
        self.proto = proto

    @property
    def err_no(self) -> int:
        return self.proto.err_no

    @property
    def err_msg(self) -> str:
        return self.proto.err_msg

    @property
    def key(self) -> Sequence[str]:
        return self.proto.key

    @property
    def value(self) -> Sequence[str]:
        return self.proto.value

    @property
    def tensors(self) -> Sequence[Tensor]:
        return self.proto.tensors

    def keys(self) -> list[str]:
        """Return the names of the results."""
        return list(self._sources)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __contains__(self, name: object) -> bool:
        return name in _ANSWER_FIELDS or name in self._sources

    def __getitem__(self, name: str) -> Any:
        if name in _ANSWER_FIELDS:
            return getattr(self.proto, _ANSWER_FIELDS[name])
        return self._result(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 - this is get

    def as_numpy(self, name: str) -> npt.NDArray[Any]:
        """Return the result as an array; text as objects.

        Raises KeyError for an unknown name, PayloadTypeError when it is not an array.
        """
        value = self._result(name)
        if isinstance(value, str | bytes):
            raise PayloadTypeError(f"result {name!r} is not an array, but {value[:40]!r}")
        try:
            return as_array(value)
        except ValueError as error:
            raise PayloadTypeError(f"result {name!r} is not an array: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return all results by name, with `err_no` and `err_msg`."""
        results = {name: self._result(name) for name in self._sources}
        return {**results, "err_no": self.err_no, "err_msg": self.err_msg}

    def raise_for_error(self) -> None:
        """Raise the PipelineError of `err_no`, unless it is 0."""
        if self.err_no:
            raise error_from_wire(self.err_no, self.err_msg)

    def __str__(self) -> str:
        return str(self.proto)

    def __repr__(self) -> str:
        return f"PipelineResponse(err_no={self.err_no}, err_msg={self.err_msg!r}, {self.keys()})"

    @cached_property
    def _sources(self) -> dict[str, str | Tensor]:
        """Return the source of each result; a tensor takes precedence over a pair of its name."""
        sources: dict[str, str | Tensor] = dict(zip(self.proto.key, self.proto.value, strict=False))
        for tensor in self.proto.tensors:
            sources[tensor.name] = tensor
            if tensor.lod:
                sources[tensor.name + _LOD_SUFFIX] = tensor
        return sources

    def _result(self, name: str) -> Any:
        source = self._sources.get(name)
        if source is None:
            raise KeyError(f"{name!r}; the answer has {self.keys()}")
        if isinstance(source, Tensor):
            return decode_tensors([source])[name]
        try:
            return text_to_numpy(source)
        except PackageError:
            return source
