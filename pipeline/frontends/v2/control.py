"""The interface between the v2 protocol and a model repository, and requests to load and unload."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
import orjson

from pipeline.errors import TooLargeError
from pipeline.frontends.v2.errors import internal, invalid
from pipeline.frontends.v2.json_objects import json_object
from pipeline.proto.plain_json import check_members
from pipeline.proto.slices import SHORT_BYTES, SLICE_BYTES, Limits, breathe, sliced

_FILE = "file:"


class Overrides(msgspec.Struct, frozen=True):
    """Parts of a model in a request to load it.

    Args:
        config: JSON that replaces the configuration file.
        files: contents by "<version>/<path>", which replace the folder.
    """

    config: str | None = None
    files: Mapping[str, bytes] = {}


class IndexedModel(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version of a model in a repository; a model that was never loaded has only a name."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


class RepositoryControl(Protocol):
    """The models of a repository, and which of them are loaded."""

    server_name: str
    """Name of the server in its metadata."""

    log_file: str
    """The file of the log; "" without one."""

    is_explicit: bool
    """Whether callers may load and unload."""

    is_strict: bool
    """Whether the server is ready only if all of its models are."""

    @property
    def is_live(self) -> bool:
        """Return whether the server has a repository."""

    @property
    def is_ready(self) -> bool:
        """Return whether all models are ready, as far as the server's readiness depends on it."""

    def has(self, name: str, version: int | None = None) -> bool:
        """Return whether a model, or a version of it, was ever loaded or failed to load."""

    async def load(self, name: str, overrides: Overrides, is_inner: bool = False) -> None:
        """Load a model, or load it again; returns when it is ready. Raises V2Error.

        `is_inner`: another model that is being loaded needs it, so it does not wait for a place.
        """

    async def unload(self, name: str, with_dependents: bool = False) -> None:
        """Unload a model; returns at once. Raises V2Error.

        `with_dependents`: also the models that only it uses.
        """

    async def index(self) -> list[IndexedModel]:
        """Return all models, loaded or not, by name and version."""


def overrides_of_json(body: bytes, limits: Limits) -> Overrides:
    """Return the overrides of a request over HTTP to load a model. Raises V2Error, in Triton's
    words.

    `limits`: of the server; `json_bytes` applies to the JSON without its long texts.
    """
    config, files = None, {}
    rest, long = cut(body)
    check_members(rest)
    for name, value in _parameters(rest, "load model", limits.json_bytes).items():
        if not isinstance(value, str):
            raise internal("attempt to access JSON non-string as string")
        if name == "config":
            config = text_of(value, long)
        elif name.startswith(_FILE):
            try:
                files[name.removeprefix(_FILE)] = bytes_of(value, long)
            except binascii.Error as error:
                raise internal(f"{name} is not valid base64: {error}") from error
        else:
            raise internal("unexpected error on creating Triton parameter")
    return Overrides(config, files)


def with_dependents_of_json(body: bytes) -> bool:
    """Return `unload_dependents` of a request over HTTP. Raises V2Error."""
    unloads_dependents = _parameters(body, "unload model").get("unload_dependents", False)
    if not isinstance(unloads_dependents, bool):
        text = "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean"
        raise internal(text)
    return unloads_dependents


def overrides_of(parameters: Mapping[str, Any]) -> Overrides:
    """Return the overrides of a request over gRPC to load a model. Raises V2Error."""
    config, files = None, {}
    for name, value in parameters.items():
        field = {"config": "string_param"}.get(name, "bytes_param")
        if name != "config" and not name.startswith(_FILE):
            raise invalid(f"unrecognized load parameter '{name}'.")
        if value.WhichOneof("parameter_choice") != field:
            raise invalid(f"invalid value type for load parameter '{name}', expected {field}.")
        if name == "config":
            config = value.string_param
        else:
            files[name.removeprefix(_FILE)] = value.bytes_param
    return Overrides(config, files)


def with_dependents_of(parameters: Mapping[str, Any]) -> bool:
    """Return `unload_dependents` of a request over gRPC. Raises V2Error."""
    parameter = parameters.get("unload_dependents")
    if parameter is None:
        return False
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise invalid("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    return bool(parameter.bool_param)


def _parameters(body: bytes, what: str, most_bytes: int = SHORT_BYTES) -> Mapping[str, Any]:
    parameters = json_object(body, what, most_bytes).get("parameters", {})
    if not isinstance(parameters, dict):
        raise invalid(f"the {what} request must be a JSON object of parameters")
    return parameters


# Long texts in the body of a request to load a model: its files, in base64 ----------------------


_LONG_BYTES = 2**20  # a longer text is not copied
_MOST_TEXTS = 2**16
_WINDOW_BYTES = 2**22  # searched without a pause
_BACKSLASH = ord("\\")

Long = dict[str, memoryview]
"""Long texts of the JSON, by their placeholders in it."""


def cut(body: bytes) -> tuple[bytes, Long]:
    """Return a JSON without its long texts, and these texts.

    Raises TooLargeError: it has more texts than such a request needs.
    """
    parts: list[bytes] = []
    long: Long = {}
    behind = at = 0
    mark = os.urandom(8).hex()  # secret, so that a caller's text is never taken for a placeholder
    for _ in range(_MOST_TEXTS):
        start = _quote(body, at)
        end = -1 if start < 0 else _end_of(body, start)
        if end < 0:  # no further text; the parser reports invalid JSON
            return b"".join((*parts, body[behind:])) if parts else body, long
        if end - start > _LONG_BYTES:
            name = f"{mark} {len(long)}"
            parts += [body[behind : start + 1], name.encode()]
            long[name] = memoryview(body)[start + 1 : end]
            behind = end
        at = end + 1
    raise TooLargeError(f"the load model request has more than {_MOST_TEXTS} texts")


def text_of(value: str, long: Long) -> str:
    """Return a text of the JSON that `cut` returns."""
    long_text = long.get(value)
    text: str = value if long_text is None else orjson.loads(b'"%b"' % bytes(long_text))
    return text


def bytes_of(value: str, long: Long) -> bytes:
    """Return the bytes of a base64 text. Raises binascii.Error: it is not valid."""
    content: bytes | memoryview | None = long.get(value)
    if content is None:
        content = value.encode()
    pieces: list[bytes] = []
    for part in sliced(content, SLICE_BYTES):
        if pieces and len(pieces[-1]) % 3:
            raise binascii.Error("there is padding before its end")
        try:
            pieces.append(base64.b64decode(bytes(part), validate=True))
        except binascii.Error:
            if b"\\" not in bytes(part):
                raise
            return base64.b64decode(text_of(value, long), validate=True)  # slashes are escaped
    return b"".join(pieces)


def _quote(body: bytes, at: int) -> int:
    """Return the place of the next quote, or -1."""
    while at < len(body):
        place = body.find(b'"', at, at + _WINDOW_BYTES)
        if place >= 0:
            return place
        at += _WINDOW_BYTES
        breathe()
    return -1


def _end_of(body: bytes, start: int) -> int:
    """Return the end of the text that begins with a quote, or -1."""
    end = _quote(body, start + 1)
    while end >= 0:
        before = end - 1
        while body[before] == _BACKSLASH:
            before -= 1
        if (end - before) % 2:  # the quote is not escaped
            return end
        end = _quote(body, end + 1)
    return -1
