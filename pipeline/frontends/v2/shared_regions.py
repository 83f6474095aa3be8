"""Shared memory of callers on this machine: regions by name, and request tensors in them."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from pipeline.errors import PackageError, PayloadTypeError, TooLargeError
from pipeline.frontends.v2.errors import V2Error, V2Status, internal, invalid
from pipeline.frontends.v2.json_objects import json_object
from pipeline.proto.slices import Limits
from pipeline.proto.v2.codec import InferRequest, InferResponse, SharedPlace, StoredOutput
from pipeline.proto.v2.raw import UnfilledError, datatype_of, raw_to_array, raw_view

_FOLDER = "/dev/shm"  # folder of shm_open
_MOST = 2**64 - 1  # limit of an offset, and of a size
_MOST_REGIONS = 1024
_RESERVED = "triton_python_backend_shm_region_"  # of Triton's own regions
_DISABLED = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable, "
    "or with `client_shared_memory: {allow: True}` in its configuration."
)


class Region(msgspec.Struct, frozen=True):
    """A registered region: `byte_size` bytes from `offset` on, in the memory with name `key`."""

    name: str
    key: str
    offset: int
    byte_size: int


class _Open:
    """A registered region; `uses` counts the requests that use it."""

    __slots__ = ("descriptor", "is_leaving", "region", "uses")

    def __init__(self, region: Region, descriptor: int) -> None:
        self.region = region
        self.descriptor = descriptor
        self.uses = 0
        self.is_leaving = False  # unregistered: it is closed after its last use


class SharedRegions:
    """Regions by name; methods may be called in any thread.

    Regions are read and written through descriptors and never mapped: the owner of a region can
    truncate it at any time, and access to a missing page would end this process. A region of a dead
    owner stays until it is unregistered.

    Args:
        prefix: required beginning of a key, after its slashes; None: registration is disabled.
        folder: where keys are names of files.
    """

    def __init__(self, prefix: str | None = None, folder: str = _FOLDER) -> None:
        self._prefix = prefix
        self._folder = folder
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}

    def register(self, region: Region) -> None:
        """Register a region. Raises V2Error, in Triton's words where it has any."""
        self._check_enabled()
        name = region.name
        file_name = self._file_name(region)
        with self._lock:
            if name in self._open:
                text = f"shared memory region '{name}' already in manager"
                raise V2Error(V2Status.ALREADY_EXISTS, text)
            if len(self._open) >= _MOST_REGIONS:
                text = f"cannot register shared memory region '{name}': {_MOST_REGIONS} are"
                raise V2Error(V2Status.UNAVAILABLE, text)
            descriptor = self._opened(region, file_name)
            self._open[name] = _Open(region, descriptor)

    def unregister(self, name: str = "") -> None:
        """Unregister a region, or ("") all; an unknown name has no effect.

        Requests that use it keep it until they end; as in Triton, others can use it meanwhile.
        """
        self._check_enabled()
        with self._lock:
            for known in [name] if name else list(self._open):
                opened = self._open.get(known)
                if opened is not None:
                    opened.is_leaving = True
                    self._close_unused(opened)

    def _close_unused(self, opened: _Open) -> None:
        if opened.is_leaving and not opened.uses:
            del self._open[opened.region.name]
            os.close(opened.descriptor)

    @contextmanager
    def held(self, names: Collection[str]) -> Iterator[None]:
        """Hold regions while a request uses them. Raises V2Error: a region does not exist."""
        self._check_enabled()
        with self._lock:
            regions = [self._found(name) for name in names]
            for region in regions:
                region.uses += 1
        try:
            yield
        finally:
            with self._lock:
                for region in regions:
                    region.uses -= 1
                    self._close_unused(region)

    def _found(self, name: str) -> _Open:
        opened = self._open.get(name)
        if opened is None:
            raise V2Error(V2Status.NOT_FOUND, f"Unable to find shared memory region: '{name}'")
        return opened

    def status(self, name: str = "") -> list[Region]:
        """Return one region, or ("") all, by name. Raises V2Error."""
        with self._lock:
            if not name:
                return [self._open[name].region for name in sorted(self._open)]
            if name not in self._open:
                text = f"Unable to find system shared memory region: '{name}'"
                raise V2Error(V2Status.NOT_FOUND, text)
            return [self._open[name].region]

    def read(self, name: str, offset: int, byte_size: int) -> bytearray:
        """Return bytes of a region. Raises V2Error: they are outside of it, or its file became
        shorter.
        """
        with self._in_use(name, offset, byte_size) as (descriptor, start):
            data = bytearray(byte_size)
            if _all(os.preadv, descriptor, memoryview(data), start) < byte_size:
                raise invalid(f"Invalid shared memory region: '{name}'")
            return data

    def write(
        self, name: str, offset: int, byte_size: int, data: bytes | memoryview, output: str
    ) -> None:
        """Write `data` of an output into the `byte_size` bytes that a request has for it.

        Raises V2Error: they are outside of the region, its file became shorter, or they are too
        few.
        """
        view = memoryview(data).cast("B")
        with self._in_use(name, offset, byte_size) as (descriptor, start):
            if len(view) > byte_size:
                raise internal(
                    f"shared memory size specified with the request for output '{output}' "
                    f"({byte_size} bytes) should be at least {len(view)} bytes to hold the results",
                )
            # Not beyond the end: the file would grow.
            if os.fstat(descriptor).st_size < start + len(view):
                raise invalid(f"Invalid shared memory region: '{name}'")
            _all(os.pwritev, descriptor, view, start)

    @contextmanager
    def _in_use(self, name: str, offset: int, byte_size: int) -> Iterator[tuple[int, int]]:
        """Yield a descriptor for this use, and the place of the bytes in its file."""
        self._check_enabled()
        with self._lock:
            opened = self._found(name)
            region, descriptor = opened.region, opened.descriptor
            if not 0 <= offset < region.byte_size:
                raise invalid(f"Invalid offset for shared memory region: '{name}'")
            if byte_size > _MOST - offset:
                raise invalid(
                    f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) "
                    f"exceeds maximum value ({_MOST}) for region '{name}'"
                )
            if byte_size < 0 or offset + byte_size > region.byte_size:
                raise invalid(f"Invalid offset + byte size for shared memory region: '{name}'")
            own = os.dup(descriptor)
        try:
            yield own, region.offset + offset
        finally:
            os.close(own)

    @property
    def is_enabled(self) -> bool:
        """Return whether regions can be registered."""
        return self._prefix is not None

    def check(self, name: str, offset: int, byte_size: int) -> None:
        """Raise V2Error if there are no such bytes."""
        with self._in_use(name, offset, byte_size):
            """It is there."""

    def _check_enabled(self) -> None:
        if self._prefix is None:
            raise V2Error(V2Status.UNSUPPORTED, _DISABLED)

    def _file_name(self, region: Region) -> str:
        """Return the name of the file that a key means, which is in the folder itself."""
        cannot = f"cannot register shared memory region '{region.name}'"
        file_name = region.key.lstrip("/")
        if file_name in ("", ".", "..") or "/" in file_name or "\0" in file_name:
            raise invalid(f"{cannot} - invalid shm key '{region.key}'")
        if file_name.startswith(_RESERVED):
            raise invalid(
                f"{cannot} with key '{region.key}' as the key contains the reserved prefix "
                f"'{_RESERVED}'"
            )
        if not file_name.startswith(self._prefix or ""):
            raise invalid(
                f"{cannot} with key '{region.key}' as the key does not begin with '{self._prefix}'"
            )
        return file_name

    def _opened(self, region: Region, file_name: str) -> int:
        path = os.path.join(self._folder, file_name)
        # Non-blocking, in case of a pipe, and without following a link.
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(path, flags)
        except (OSError, UnicodeEncodeError):
            raise internal(f"Unable to open shared memory region: '{region.key}'") from None
        status = os.fstat(descriptor)
        is_within = 0 <= region.offset <= _MOST and 0 <= region.byte_size <= _MOST
        if (
            not stat.S_ISREG(status.st_mode)
            or not is_within
            or region.offset + region.byte_size > status.st_size
        ):
            os.close(descriptor)
            raise invalid(f"failed to register shared memory region '{region.name}': invalid args")
        return descriptor


def _all(move: Any, descriptor: int, view: memoryview, start: int) -> int:
    """Read or write all of `view`, in several system calls if needed; return the number of bytes.

    Fewer bytes than `view` has: the file has ended.
    """
    done = 0
    while done < len(view):
        moved: int = move(descriptor, [view[done:]], start + done)
        if not moved:
            break
        done += moved
    return done


_LACKS = "Shared memory register request has no '{}' field"
_NO_NAME = "'region name' is necessary to register system shared memory region"


def region_of_json(name: str, body: bytes) -> Region:
    """Return the region of a request to register one. Raises V2Error, in Triton's words."""
    if not name:
        raise invalid(_NO_NAME)
    members = json_object(body, "register")
    for field in ("key", "byte_size"):
        if field not in members:
            raise invalid(_LACKS.format(field))
    key, offset, size = members["key"], members.get("offset", 0), members["byte_size"]
    if not isinstance(key, str):
        raise invalid("attempt to access JSON non-string as string: 'key'")
    for field, value in (("offset", offset), ("byte_size", size)):
        if type(value) is not int or value < 0:
            unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer"
            raise invalid(f"{unsigned}: '{field}'")
    return Region(name, key, offset, size)


def no_cuda(name: str, is_new: bool) -> V2Error:
    """Return the error for registering or unregistering GPU memory."""
    what = "register" if is_new else "unregister"
    text = f"failed to {what} CUDA shared memory region: '{name}', GPUs not supported"
    return invalid(text)


def no_cuda_region(name: str) -> V2Error:
    """Return the error for the status of GPU memory."""
    text = f"Unable to find cuda shared memory region: '{name}'"
    return V2Error(V2Status.NOT_FOUND, text)


# Requests and answers with tensors there --------------------------------------------------------


def opened(request: InferRequest, regions: SharedRegions, limits: Limits) -> InferRequest:
    """Return a request with a copy of its data in shared memory.

    Raises:
        V2Error: the data, or the places for outputs, do not exist.
        PackageError: the data does not fit its declaration.
        TooLargeError: the inputs together exceed the limit of a message. A sparse file takes no
            memory, but its copy does.
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
            raise V2Error(error.kind, error.about(request.id)) from None
    for place in request.places.values():
        regions.check(place.region, place.offset, place.byte_size)
    return msgspec.structs.replace(request, inputs=inputs, shared={})


def stored(
    response: InferResponse, places: Mapping[str, SharedPlace], regions: SharedRegions
) -> InferResponse:
    """Put outputs into their requested places; return the answer without their data.

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
