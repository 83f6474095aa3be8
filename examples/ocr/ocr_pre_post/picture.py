"""Reads picture files into arrays, and refuses unreadable ones before they cost memory."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np

NO_PICTURE, BAD_PICTURE, TOO_LARGE = 51, 52, 53  # product error codes, from the free range 51-99

MAX_PIXELS = 50_000_000  # of a file; A4 at 600 dpi has 35 million; 3 bytes each when decoded
WORK_PIXELS = 12_000_000  # a larger picture is shrunk to this: it bounds the memory of a request
WORK_SIDE = 30_000  # and its longer side to this: OpenCV cannot cut lines out of longer ones

FORMATS = "JPEG, PNG, BMP or WebP"

_PNG, _JPEG, _BMP = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"BM"
_ALPHA_TYPES = (4, 6)  # of PNG: grey and colour with alpha
_CHUNK_BYTES = 12  # of PNG, around the data: length, kind, checksum
_SOF_MARKERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # frame headers, which have the size
_ALONE_MARKERS = {0x01, *range(0xD0, 0xD9)}  # without a length


class PictureError(ValueError):
    """A picture that cannot be read; `code` is the service's error code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Picture(NamedTuple):
    """`image`: uint8 [height, width, 3]; a pixel of it is `scale` pixels of the file wide."""

    image: np.ndarray
    scale: float


class Header(NamedTuple):
    """The header of a picture file. `ends`: the file is complete."""

    width: int
    height: int
    has_alpha: bool
    ends: bool


def settle_opencv() -> None:
    """Set one thread for each caller, and no messages on stderr for broken files."""
    cv2.setNumThreads(1)
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


def read_picture(sent: object) -> Picture:
    """Return the picture of a request: base64 text, the bytes of a file, or these as uint8 array.

    Raises:
        PictureError: it is missing, cannot be read, or is too large.
    """
    if isinstance(sent, np.ndarray) and sent.dtype == np.uint8 and sent.ndim == 1:
        sent = sent.tobytes()
    if isinstance(sent, str):
        sent = _from_base64(sent)
    if not isinstance(sent, bytes) or not sent:
        raise PictureError(
            NO_PICTURE,
            'no picture: send a file under the key "image", as base64 text or as a tensor of bytes',
        )
    return decode(sent)


def decode(data: bytes) -> Picture:
    """Return a file's picture, upright by its EXIF data, with transparent parts white.

    Raises:
        PictureError: it has an unknown format, is broken, is cut off, or is too large.
    """
    header = read_header(data)
    if header.width * header.height > MAX_PIXELS:
        raise PictureError(
            TOO_LARGE,
            f"the picture has {header.width} x {header.height} pixels, "
            f"the limit is {MAX_PIXELS:,}: make it smaller",
        )
    if not header.ends:
        raise PictureError(BAD_PICTURE, "the picture is cut off: the end of the file is missing")
    flags = cv2.IMREAD_UNCHANGED if header.has_alpha else cv2.IMREAD_COLOR
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        image = None
    if image is None or not image.size:
        raise PictureError(BAD_PICTURE, "the picture is broken: it cannot be decoded")
    return _shrunk(_on_white(image))


def read_header(data: bytes) -> Header:
    """Return the size and kind of a picture file, without decoding it.

    Raises:
        PictureError: it has an unknown format, or ends within its header.
    """
    try:
        header = _reader_of(data)(data)
    except (struct.error, IndexError):
        raise PictureError(BAD_PICTURE, "the picture is cut off: its header is not whole") from None
    if header.width < 1 or header.height < 1:
        raise PictureError(
            BAD_PICTURE, f"the picture is empty: {header.width} x {header.height} pixels"
        )
    return header


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise PictureError(
            BAD_PICTURE, "the picture is broken: it is text, but not base64 (RFC 4648, padded)"
        ) from None


def _reader_of(data: bytes) -> Callable[[bytes], Header]:
    if data.startswith(_PNG):
        return _png
    if data.startswith(_JPEG):
        return _jpeg
    if data.startswith(_BMP):
        return _bmp
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp
    raise PictureError(BAD_PICTURE, f"the format of the picture is not known: send {FORMATS}")


def _png(data: bytes) -> Header:
    width, height = struct.unpack_from(">II", data, 16)
    has_alpha, ends, at = data[25] in _ALPHA_TYPES, False, len(_PNG)
    # Every chunk must be within the file: OpenCV would allocate gigabytes for a wrong length.
    while at + _CHUNK_BYTES <= len(data):
        (size,), kind = struct.unpack_from(">I", data, at), data[at + 4 : at + 8]
        if (kind == b"IHDR") != (
            at == len(_PNG)
        ):  # the size was read from the first one, which must be the only one
            raise PictureError(BAD_PICTURE, "the picture is broken: a PNG with its parts mixed up")
        at += size + _CHUNK_BYTES
        has_alpha |= kind == b"tRNS"
        if kind == b"IEND":
            ends = at <= len(data)
            break
    return Header(width, height, has_alpha, ends)


def _jpeg(data: bytes) -> Header:
    at = 2
    while True:
        if data[at] != 0xFF:
            raise PictureError(BAD_PICTURE, f"the picture is broken: no JPEG marker at {at}")
        marker = data[at + 1]
        if marker in _SOF_MARKERS:
            height, width = struct.unpack_from(">HH", data, at + 5)
            # The thumbnail before the frame header has its own end marker.
            return Header(width, height, False, data.find(b"\xff\xd9", at) >= 0)
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _ALONE_MARKERS:
            at += 2
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]


def _bmp(data: bytes) -> Header:
    old = data[14] == 12  # the header of OS/2 has short numbers
    width, height = struct.unpack_from("<HH" if old else "<ii", data, 18)
    (size,) = struct.unpack_from("<I", data, 2)
    return Header(width, abs(height), False, len(data) >= size)  # negative: rows from the top


def _webp(data: bytes) -> Header:
    ends = len(data) >= 8 + struct.unpack_from("<I", data, 4)[0]
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        return Header(width, height, bool(data[20] & 0x10), ends and len(data) >= 30)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return Header((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, bool(bits >> 28 & 1), ends)
    width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    return Header(width, height, False, ends)


def _on_white(image: np.ndarray) -> np.ndarray:
    """Return 8-bit BGR from OpenCV's unchanged reading: 8 or 16 bits, with or without alpha."""
    if image.dtype != np.uint8:
        image = (image >> 8).astype(np.uint8)
    if image.ndim == 2:
        return cv2.cvtColor(image, cv2.COLOR_GRAY2BGR)
    if image.shape[2] == 3:
        return image
    alpha = image[:, :, 3:].astype(np.uint16)
    colour = image[:, :, :3].astype(np.uint16)
    return ((colour * alpha + 255 * (255 - alpha)) // 255).astype(np.uint8)


def _shrunk(image: np.ndarray) -> Picture:
    height, width = image.shape[:2]
    scale = max((height * width / WORK_PIXELS) ** 0.5, max(height, width) / WORK_SIDE)
    if scale <= 1:
        return Picture(image, 1.0)
    size = max(1, round(width / scale)), max(1, round(height / scale))
    return Picture(cv2.resize(image, size, interpolation=cv2.INTER_AREA), scale)
