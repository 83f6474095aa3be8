"""Frames of baidu_std: genuine ones are read and written, lies cost no memory."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib

import pytest
from golden import FRAMES
from google.protobuf.descriptor import Descriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.proto.brpc import frames as baidu_std
from pipeline.proto.brpc.frames import (
    HEADER_BYTES,
    SERVICE,
    BrpcCode,
    BrpcFrame,
    BrpcTrace,
    Compression,
    FrameError,
    FrameReader,
    compress,
    decompress,
    error_of,
    pack,
    request_meta,
    response_meta,
)
from pipeline.proto.brpc_meta_pb2 import RpcMeta, RpcRequestMeta, RpcResponseMeta
from pipeline.proto.general_model_pb2 import Request

MIB = 2**20
INT64 = st.integers(-(2**63), 2**63 - 1)
READABLE = (Compression.NONE, Compression.SNAPPY, Compression.GZIP, Compression.ZLIB)


def frame_of(data: bytes) -> BrpcFrame:
    (frame,) = FrameReader().feed(data)
    return frame


def golden(name: str, way: str) -> BrpcFrame:
    return frame_of(FRAMES[name, way])


def header(size: int, meta_size: int, magic: bytes = b"PRPC") -> bytes:
    return struct.pack(">4sII", magic, size, meta_size)


@st.composite
def pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """`data` as it may arrive: cut anywhere, empty pieces included."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


# --- genuine frames ---------------------------------------------------------------------------


@pytest.mark.parametrize("key", FRAMES, ids=" ".join)
def test_a_genuine_frame_is_read_and_written_again_to_the_byte(key: tuple[str, str]):
    frame = frame_of(FRAMES[key])
    assert pack(frame.meta, frame.body, frame.attachment) == FRAMES[key]


@given(st.data())
def test_frames_are_parsed_with_any_cuts(data: st.DataObject):
    keys = data.draw(st.lists(st.sampled_from(sorted(FRAMES)), min_size=1, max_size=5))
    reader = FrameReader()
    arrived = []
    for piece in data.draw(pieces(b"".join(FRAMES[key] for key in keys))):
        arrived += reader.feed(piece)
    assert arrived == [frame_of(FRAMES[key]) for key in keys]


def test_frames_are_read_byte_by_byte():
    reader = FrameReader()
    stream = b"".join(FRAMES.values())
    arrived = [frame for at in range(len(stream)) for frame in reader.feed(stream[at : at + 1])]
    assert arrived == [frame_of(data) for data in FRAMES.values()]


def test_a_large_frame_between_small_ones_arrives_whole():
    small, large = FRAMES["brpc SetFailed(123)", "c2s"], bytes(range(256)) * 1000
    stream = small + pack(request_meta("inference", 9), large, b"tail") + small
    for size in (1000, 65536, len(stream)):
        reader = FrameReader()
        parts = [stream[at : at + size] for at in range(0, len(stream), size)]
        frames = [frame for part in parts for frame in reader.feed(part)]
        assert [frame.body for frame in frames[1:2]] == [large]
        assert frames[1].attachment == b"tail"
        assert frames[0] == frames[2] == frame_of(small)


@pytest.mark.parametrize("length", [10, 100_000])
def test_a_buffer_may_be_used_again_after_it_was_fed(length: int):
    buffer = bytearray(pack(request_meta("m", 1), b"a" * length, b"tail"))
    tail = bytearray(buffer[:50])
    reader = FrameReader()
    (frame,) = reader.feed(memoryview(buffer))
    assert reader.feed(tail) == []
    rest = bytes(buffer[50:])
    buffer[:] = bytes(len(buffer))
    tail[:] = bytes(50)
    assert frame == BrpcFrame(frame.meta, b"a" * length, b"tail")
    assert reader.feed(rest) == [frame]


def test_the_genuine_client_names_service_method_and_call():
    meta = golden("real Paddle Serving client", "c2s").meta
    assert (meta.request.service_name, meta.request.method_name) == (SERVICE, "inference")
    assert meta.correlation_id != 0
    assert meta.compress_type == Compression.NONE


def test_errors_of_an_original_server_are_parsed():
    code, text = error_of(golden("brpc unknown method 1002", "s2c").meta)
    assert code == BrpcCode.NO_METHOD
    assert f"Fail to find method={SERVICE}/nope" in text
    assert error_of(golden("brpc unparsable body 1003", "s2c").meta)[0] == BrpcCode.BAD_REQUEST
    assert error_of(golden("brpc SetFailed(123)", "s2c").meta)[0] == 123
    failed = golden("brpc general error -5000", "s2c")
    assert error_of(failed.meta)[0] == -5000
    assert failed.meta.compress_type == Compression.GZIP
    assert failed.body == b""
    assert error_of(golden("brpc echo zlib both ways", "s2c").meta) == (0, "")


@pytest.mark.parametrize(("way", "fields"), [("c2s", {"a": b"b"}), ("s2c", {"srv": b"brpc"})])
def test_the_attachment_of_an_original_frame_is_separated_from_its_body(
    way: str, fields: dict[str, bytes]
):
    frame = golden("brpc echo attachment + user_fields", way)
    assert frame.attachment == b"\x00\x01att"
    assert not frame.body.endswith(b"att")
    assert frame.body
    assert dict(frame.meta.user_fields) == fields


@pytest.mark.parametrize("kind", ["gzip", "zlib", "snappy"])
def test_requests_that_genuine_brpc_compressed_are_the_plain_one(kind: str):
    plain = golden("C++ brpc client, request plain", "c2s")
    frame = golden(f"C++ brpc client, request {kind}", "c2s")
    assert frame.meta.compress_type == Compression[kind.upper()]
    assert decompress(frame.meta.compress_type, frame.body, 1000) == plain.body
    assert Request.FromString(plain.body).tensor[0].alias_name == "x"


# --- writer and reader ------------------------------------------------------------------------


@given(INT64, INT64, st.text(), st.binary(max_size=50), st.binary(max_size=50), st.data())
def test_a_packed_frame_is_parsed_unchanged(
    correlation_id: int,
    log_id: int,
    method: str,
    body: bytes,
    attachment: bytes,
    data: st.DataObject,
):
    meta = request_meta(method, correlation_id, log_id=log_id, timeout_ms=7)
    reader = FrameReader()
    parts = data.draw(pieces(pack(meta, body, attachment)))
    (frame,) = [frame for part in parts for frame in reader.feed(part)]
    assert frame == BrpcFrame(meta, body, attachment)
    assert frame.meta.request.log_id == log_id
    assert frame.meta.correlation_id == correlation_id


def test_a_log_id_of_64_bits_keeps_its_bits():
    assert request_meta("m", 1, log_id=2**64 - 1).request.log_id == -1
    assert request_meta("m", 1, log_id=2**63).request.log_id == -(2**63)
    assert not request_meta("m", 1).request.HasField("log_id")


def test_a_trace_travels_as_the_low_64_bits_of_its_ids():
    request = request_meta("m", 1, trace=BrpcTrace(2**64 + 3, 2**63, 2**64 - 1)).request
    assert (request.trace_id, request.span_id, request.parent_span_id) == (3, -(2**63), -1)
    assert not request_meta("m", 1).request.HasField("trace_id")


def test_a_timeout_longer_than_the_field_is_the_longest():
    assert request_meta("m", 1, timeout_ms=10**12).request.timeout_ms == 2**31 - 1


@given(st.integers(-(2**31), 2**31 - 1), st.text())
def test_an_error_is_parsed_unchanged(code: int, text: str):
    frame = frame_of(pack(response_meta(3, code, text), b""))
    assert frame.meta.correlation_id == 3
    assert error_of(frame.meta) == (code, text)


def test_an_error_text_in_another_encoding_is_escaped():
    meta = RpcMeta(response=RpcResponseMeta(error_code=1, error_text="不行".encode("gbk")))
    assert error_of(meta) == (1, r"\xb2\xbb\xd0\xd0")
    assert error_of(response_meta(1, 2, "name \udcff")) == (2, r"name \udcff")


def test_packing_again_without_the_attachment_forgets_its_size():
    meta = request_meta("m", 1)
    pack(meta, b"body", b"tail")
    assert frame_of(pack(meta, b"body")) == BrpcFrame(request_meta("m", 1), b"body", b"")


def test_codes_are_named_for_people():
    assert baidu_std.code_name(2001) == "2001 (INTERNAL)"
    assert baidu_std.code_name(-5000) == "-5000"


def test_the_meta_has_the_released_numbers():
    def numbers(message: Descriptor) -> dict[str, int]:
        return {field.name: field.number for field in message.fields}

    assert numbers(RpcMeta.DESCRIPTOR) == {
        "request": 1,
        "response": 2,
        "compress_type": 3,
        "correlation_id": 4,
        "attachment_size": 5,
        "authentication_data": 7,
        "user_fields": 9,
        "content_type": 10,
        "checksum_type": 11,
        "checksum_value": 12,
    }
    assert numbers(RpcRequestMeta.DESCRIPTOR) == {
        "service_name": 1,
        "method_name": 2,
        "log_id": 3,
        "trace_id": 4,
        "span_id": 5,
        "parent_span_id": 6,
        "request_id": 7,
        "timeout_ms": 8,
    }
    assert numbers(RpcResponseMeta.DESCRIPTOR) == {"error_code": 1, "error_text": 2}


# --- frames that lie --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no baidu_std"),
        (b"HT", "no baidu_std"),
        (b"P\x00", "no baidu_std"),
        (b"\x16\x03\x01", "no baidu_std"),
        (b"\x00", "no baidu_std"),
        (header(4, 4, b"HULU") + b"\x00" * 4, "no baidu_std"),
        (header(2000, 10), "2000 bytes is larger than 1000"),
        (header(2**32 - 1, 0), "4294967295 bytes is larger than 1000"),
        (header(10, 11), "a meta of 11 bytes in a frame of 10"),
        (header(2, 2) + b"\xff\xff", "no RpcMeta"),
        (header(2, 2) + b"\x28\x01", "attachment of 1 bytes in 0"),
        (header(11, 11) + b"\x28" + b"\xff" * 9 + b"\x01", "attachment of -1 bytes in 0"),
    ],
)
def test_an_invalid_frame_is_refused_at_once_and_permanently(data: bytes, why: str):
    reader = FrameReader(max_bytes=1000)
    with pytest.raises(FrameError, match=why):
        reader.feed(data)
    with pytest.raises(FrameError, match=why):
        reader.feed(FRAMES["brpc SetFailed(123)", "c2s"])


def test_garbage_after_a_frame_is_refused():
    with pytest.raises(FrameError, match="no baidu_std"):
        FrameReader().feed(FRAMES["brpc SetFailed(123)", "c2s"] + b"X")


def test_a_frame_of_the_largest_size_is_accepted():
    meta = request_meta("m", 1)
    body = bytes(1000 - len(meta.SerializeToString()))
    assert FrameReader(max_bytes=1000).feed(pack(meta, body))[0].body == body
    with pytest.raises(FrameError, match="1001 bytes is larger"):
        FrameReader(max_bytes=1000).feed(pack(meta, body + b"1"))


def peak_bytes_of_feeding(reader: FrameReader, parts: list[bytes]) -> int:
    tracemalloc.start()
    try:
        for part in parts:
            reader.feed(part)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_stated_size_alone_takes_no_memory():
    reader = FrameReader()
    parts = [header(500 * MIB, 100), *[b"\x00" * 1000] * 100]
    assert peak_bytes_of_feeding(reader, parts) < MIB


def test_single_bytes_take_no_more_memory_than_their_number():
    parts = [header(500 * MIB, 100), *[b"\x00"] * 200_000]
    assert peak_bytes_of_feeding(FrameReader(), parts) < MIB


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Genuine frames in which bytes are changed, lost or added."""
    keys = draw(st.lists(st.sampled_from(sorted(FRAMES)), min_size=1, max_size=2))
    data = bytearray(b"".join(FRAMES[key] for key in keys))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)) | st.integers(0, min(40, len(data))))
        removed = draw(st.sampled_from((0, 1, 1, 1, 4, 20)))
        data[at : at + removed] = draw(st.binary(max_size=max(removed, 4)))
    return bytes(data)


def read_all(reader: FrameReader, data: bytes) -> None:
    """Do everything that our peers do with the data that arrives."""
    for frame in reader.feed(data):
        error_of(frame.meta)
        plain = decompress(frame.meta.compress_type, frame.body, 10_000)
        assert len(plain) <= 10_000


@settings(max_examples=400, deadline=None)
@given(damaged() | st.binary(max_size=100), st.data())
def test_any_bytes_are_frames_or_a_frame_error(stream: bytes, data: st.DataObject):
    reader = FrameReader(max_bytes=100_000)
    for piece in data.draw(pieces(stream)):
        try:
            read_all(reader, piece)
        except FrameError:
            return


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 300), st.integers(0, 300), st.binary(max_size=300))
def test_any_stated_sizes_are_frames_or_a_frame_error(size: int, meta_size: int, rest: bytes):
    try:
        frames = FrameReader(max_bytes=200).feed(header(size, meta_size) + rest)
    except FrameError:
        return
    assert all(len(frame.body) + len(frame.attachment) <= size for frame in frames)


# --- compression ------------------------------------------------------------------------------


@given(st.sampled_from(READABLE), st.binary(max_size=2000))
def test_compressed_data_is_decompressed_unchanged(kind: Compression, data: bytes):
    packed = compress(kind, data)
    assert decompress(kind, packed, len(data)) == data
    assert decompress(kind, memoryview(packed), len(data)) == data
    if data:
        with pytest.raises(FrameError, match=r"larger than|more than"):
            decompress(kind, packed, len(data) - 1)


def test_standard_tools_decompress_our_data():
    assert gzip.decompress(compress(Compression.GZIP, b"abc")) == b"abc"
    assert zlib.decompress(compress(Compression.ZLIB, b"abc")) == b"abc"


@pytest.mark.parametrize("kind", [Compression.GZIP, Compression.ZLIB])
def test_a_decompression_bomb_takes_no_memory(kind: Compression):
    bomb = compress(kind, bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match="larger than 1048576 bytes when decompressed"):
            decompress(kind, bomb, MIB)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        (Compression.GZIP, b"", "ends too early"),
        (Compression.GZIP, b"\x00" * 20, "neither gzip nor zlib"),
        (Compression.GZIP, zlib.compress(b"abc"), "neither gzip nor zlib"),
        (Compression.ZLIB, gzip.compress(b"abc", mtime=0), "neither gzip nor zlib"),
        (Compression.ZLIB, zlib.compress(b"abc")[:-1], "ends too early"),
        (Compression.GZIP, gzip.compress(b"abc", mtime=0) + b"x", "1 bytes follow"),
        (Compression.SNAPPY, b"", "a body as snappy"),
        (Compression.LZ4, b"abc", r"4 \(lz4\) is not supported"),
        (5, b"abc", "compress_type 5 is unknown"),
        (-1, b"abc", "compress_type -1 is unknown"),
    ],
)
def test_an_invalid_compressed_body_is_refused(kind: int, body: bytes, why: str):
    with pytest.raises(FrameError, match=why):
        decompress(kind, body, MIB)


@pytest.mark.parametrize("kind", [Compression.LZ4, 9])
def test_an_unknown_compression_is_refused(kind: int):
    with pytest.raises(FrameError, match=f"compress_type {kind}"):
        compress(kind, b"abc")


def test_the_header_is_that_of_the_frames():
    assert len(header(0, 0)) == HEADER_BYTES
    assert FrameReader().feed(header(0, 0)) == [BrpcFrame(RpcMeta(), b"", b"")]
