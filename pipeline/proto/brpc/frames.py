"""Frames of brpc's baidu_std protocol: their writer, their reader, and its error codes.

A frame is a header of 12 bytes ("PRPC", then the size of the rest and the size of the meta,
both uint32 big-endian), an `RpcMeta`, the body and, at the end, the attachment. Many requests are
in flight on one connection; answers come in any order and are matched by `correlation_id`.
Nothing here opens a socket, and nothing allocates by a size that a peer states.
"""

from __future__ import annotations

import enum
import struct
import zlib
from typing import Final, NamedTuple

import cramjam
from google.protobuf.message import DecodeError

from pipeline.proto.brpc_meta_pb2 import RpcMeta
from pipeline.proto.inflate import inflated
from pipeline.proto.slices import SHORT_BYTES

SERVICE: Final = "baidu.paddle_serving.predictor.general_model.GeneralModelService"
MAGIC: Final = b"PRPC"
HEADER_BYTES: Final = 12
MAX_FRAME_BYTES: Final = 512 * 2**20
"""Limit of Paddle Serving's server; brpc's own default is 64 MiB."""

_HEADER = struct.Struct(">4sII")
_MAX_UINT32 = 2**32 - 1
_SHORT_BYTES = 16 * 2**10


class BrpcCode(enum.IntEnum):
    """Values of `RpcResponseMeta.error_code` that brpc itself uses; services add their own."""

    NO_SERVICE = 1001
    NO_METHOD = 1002
    BAD_REQUEST = 1003
    AUTH = 1004
    TOO_MANY_FAILS = 1005
    BACKUP_REQUEST = 1007
    TIMED_OUT = 1008
    FAILED_SOCKET = 1009
    OVERCROWDED = 1011
    EOF = 1014
    INTERNAL = 2001
    BAD_RESPONSE = 2002
    LOGOFF = 2003
    LIMIT = 2004


class Compression(enum.IntEnum):
    """Values of `RpcMeta.compress_type`."""

    NONE = 0
    SNAPPY = 1
    GZIP = 2
    ZLIB = 3
    LZ4 = 4


_WBITS = {Compression.GZIP: 31, Compression.ZLIB: 15}


class FrameError(ValueError):
    """The bytes violate the format; the text says how."""


class BrpcTrace(NamedTuple):
    """Ids of a call's trace, its span and the parent span.

    brpc has 64 bits for each; of a longer id it sends the low 64.
    """

    trace_id: int
    span_id: int
    parent_span_id: int


class BrpcFrame(NamedTuple):
    """One message as received: `body` is still compressed as `meta.compress_type` says.

    The answer of a failed call has no body, whatever its `compress_type`. A large body is a view of
    the received bytes.
    """

    meta: RpcMeta
    body: bytes | memoryview
    attachment: bytes


# --- metas ------------------------------------------------------------------------------------


def request_meta(
    method: str,
    correlation_id: int,
    *,
    log_id: int = 0,
    timeout_ms: int = 0,
    service: str = SERVICE,
    trace: BrpcTrace | None = None,
) -> RpcMeta:
    """Return the meta of a call of `service`'s `method`, without a `log_id` or `timeout_ms` of 0.

    Ids may be any 64-bit number: one above 2**63 travels as the negative of the same bits.
    """
    meta = RpcMeta(correlation_id=correlation_id)
    request = meta.request
    request.service_name = service
    request.method_name = method
    if log_id:
        request.log_id = _signed(log_id)
    if timeout_ms:
        request.timeout_ms = min(timeout_ms, 2**31 - 1)
    if trace is not None:
        request.trace_id = _signed(trace.trace_id)
        request.span_id = _signed(trace.span_id)
        request.parent_span_id = _signed(trace.parent_span_id)
    return meta


def _signed(bits: int) -> int:
    """Return the low 64 bits as a signed number."""
    return (bits + 2**63) % 2**64 - 2**63


def response_meta(correlation_id: int, code: int = 0, text: str = "") -> RpcMeta:
    """Return the meta of an answer; an answer with a `code` other than 0 has no body."""
    meta = RpcMeta(correlation_id=correlation_id)
    meta.response.error_code = code
    if text:
        meta.response.error_text = text.encode("utf-8", "backslashreplace")
    return meta


def error_of(meta: RpcMeta) -> tuple[int, str]:
    """Return (code, text) of an answer; the code of a success is 0."""
    response = meta.response
    return response.error_code, response.error_text.decode("utf-8", "backslashreplace")


def code_name(code: int) -> str:
    """Return `code` for people: "1002 (NO_METHOD)", or the number if it is not brpc's own."""
    try:
        return f"{code} ({BrpcCode(code).name})"
    except ValueError:
        return str(code)


# --- frames -----------------------------------------------------------------------------------


def pack(meta: RpcMeta, body: bytes, attachment: bytes = b"") -> bytes:
    """Return the bytes of one frame; sets `meta.attachment_size`.

    Raises:
        FrameError: the frame's size does not fit into its header.
    """
    return b"".join((pack_head(meta, len(body), attachment), body, attachment))


def pack_head(meta: RpcMeta, body_bytes: int, attachment: bytes = b"") -> bytes:
    """Return the header and the meta, which precede the body."""
    if attachment:
        if len(attachment) >= 2**31:
            raise FrameError(
                f"an attachment of {len(attachment)} bytes; 2 GiB and more have no place"
            )
        meta.attachment_size = len(attachment)
    elif meta.attachment_size:
        meta.ClearField("attachment_size")
    head = meta.SerializeToString()
    size = len(head) + body_bytes + len(attachment)
    if size > _MAX_UINT32:
        raise FrameError(f"a frame of {size} bytes; 4 GiB and more have no place")
    return _HEADER.pack(MAGIC, size, len(head)) + head


class FrameReader:
    """Cuts what arrives on one connection into frames.

    Holds at most the bytes of one frame that have arrived (twice that while it returns them). It
    refuses a frame larger than `max_bytes` as soon as its header has arrived.

    Args:
        max_bytes: limit of meta, body and attachment of one frame together.
    """

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._wanted = HEADER_BYTES
        self._error: FrameError | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> list[BrpcFrame]:
        """Return the frames that `data` completes, in order; `data` is copied.

        Raises:
            FrameError: the peer does not speak baidu_std, or sends a frame that is too large. The
            rest of the connection cannot be read: every later call raises the same.
        """
        if self._error is not None:
            raise self._error
        try:
            if not self._rest:
                # Slices of bytes are copies, which are quicker than views while they are short.
                return self._cut(data if len(data) < _SHORT_BYTES else memoryview(bytearray(data)))
            self._rest += data
            if len(self._rest) < self._wanted:
                self._check_magic(self._rest)
                return []
            arrived, self._rest = self._rest, bytearray()
            return self._cut(memoryview(arrived).toreadonly())
        except FrameError as error:
            self._rest = bytearray()
            self._error = error
            raise

    def _cut(self, data: bytes | bytearray | memoryview) -> list[BrpcFrame]:
        """Return the whole frames of `data`; what is left over is kept."""
        frames = []
        at, end = 0, len(data)
        self._wanted = HEADER_BYTES
        while end - at >= HEADER_BYTES:
            size, meta_size = self._read_header(data, at)
            if end - at < HEADER_BYTES + size:
                self._wanted = HEADER_BYTES + size
                break
            at += HEADER_BYTES
            frames.append(_read_frame(data[at : at + size], meta_size))
            at += size
        if at < end:
            self._rest += data[at:]
            self._check_magic(self._rest)
        return frames

    def _read_header(self, data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
        """Return (size of the rest, size of the meta)."""
        magic, size, meta_size = _HEADER.unpack_from(data, at)
        if magic != MAGIC:
            raise _not_baidu_std(bytes(data[at : at + HEADER_BYTES]))
        if size > self._max_bytes:
            raise FrameError(f"a frame of {size} bytes is larger than {self._max_bytes}")
        if meta_size > size:
            raise FrameError(f"a meta of {meta_size} bytes in a frame of {size}")
        return size, meta_size

    @staticmethod
    def _check_magic(start: bytearray) -> None:
        """Refuse another protocol before a whole header has arrived."""
        if not start.startswith(MAGIC[: len(start)]):
            raise _not_baidu_std(bytes(start[:HEADER_BYTES]))


def _not_baidu_std(start: bytes) -> FrameError:
    return FrameError(f"no baidu_std: a frame begins with {MAGIC!r}, but this with {start!r}")


def _read_meta(data: bytes) -> RpcMeta:
    try:
        return RpcMeta.FromString(data)
    except DecodeError as error:
        raise FrameError("the meta of a frame is no RpcMeta") from error


def _read_frame(data: bytes | bytearray | memoryview, meta_size: int) -> BrpcFrame:
    """Return the frame whose meta, body and attachment are `data`."""
    meta = _read_meta(bytes(data[:meta_size]))
    attached = meta.attachment_size
    if not attached:
        return BrpcFrame(meta, _body(data[meta_size:]), b"")
    end = len(data) - attached
    if not meta_size <= end <= len(data):
        raise FrameError(f"an attachment of {attached} bytes in {len(data) - meta_size}")
    return BrpcFrame(meta, _body(data[meta_size:end]), bytes(data[end:]))


def _body(data: bytes | bytearray | memoryview) -> bytes | memoryview:
    """Return a copy; a view if the body is large and in a buffer of this library."""
    if isinstance(data, memoryview) and data.readonly and len(data) > SHORT_BYTES:
        return data
    return bytes(data)


# --- compression of bodies --------------------------------------------------------------------


def compress(kind: int, data: bytes) -> bytes:
    """Compress `data` as `compress_type` `kind` says.

    Raises:
        FrameError: this library lacks the compression.
    """
    if kind == Compression.NONE:
        return data
    if kind == Compression.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    return zlib.compress(data, wbits=_wbits(kind))


def decompress(kind: int, data: bytes | memoryview, max_bytes: int) -> bytes:
    """Decompress `data`; memory stays within `max_bytes` and some overhead.

    Raises:
        FrameError: it is longer than `max_bytes` or broken, or this library lacks the compression.
    """
    if kind == Compression.NONE:
        if len(data) > max_bytes:
            raise FrameError(f"a body of {len(data)} bytes is larger than {max_bytes}")
        return bytes(data)
    if kind == Compression.SNAPPY:
        return _from_snappy(data, max_bytes)
    wbits = _wbits(kind)
    try:
        return inflated(data, wbits, max_bytes)
    except zlib.error as error:
        raise FrameError(
            f"a body that is neither gzip nor zlib, as it should be: {error}"
        ) from None
    except OverflowError:
        raise FrameError(f"a body is larger than {max_bytes} bytes when decompressed") from None
    except EOFError:
        raise FrameError("a compressed body ends too early") from None
    except ValueError as error:
        raise FrameError(f"{error} bytes follow a compressed body") from None


def _from_snappy(data: bytes | memoryview, max_bytes: int) -> bytes:
    try:
        length = cramjam.snappy.decompress_raw_len(data)
        if length <= max_bytes:
            return bytes(cramjam.snappy.decompress_raw(data))
    except Exception as error:  # snappy raises a bare Exception for a missing length
        raise FrameError(f"a body as {error}") from None
    raise FrameError(f"a body as snappy: the data have {length} bytes, more than {max_bytes}")


def _wbits(kind: int) -> int:
    """Return zlib's number for the format. Raises FrameError: zlib lacks it."""
    try:
        return _WBITS[Compression(kind)]
    except KeyError:
        name = Compression(kind).name.lower()
        raise FrameError(f"compress_type {kind} ({name}) is not supported: use gzip") from None
    except ValueError:
        raise FrameError(f"compress_type {kind} is unknown (0 to {max(Compression)} are)") from None
