"""BodyReader: reads the body of an HTTP request, whole and unpacked."""

from __future__ import annotations

import contextlib
import functools
import zlib

from pipeline.engine.offload import Offload
from pipeline.engine.run.payload import LOCAL, MemoryDomain
from pipeline.errors import OverloadedError, PackageError
from pipeline.frontends.http.exchange import Exchange
from pipeline.frontends.http.heads import aligned_at
from pipeline.frontends.http.routes import Body, Headers, HttpError, SizeLimit
from pipeline.proto.inflate import emptied, inflated
from pipeline.proto.slices import SHORT_BYTES

_WINDOW_BITS = {
    b"gzip": zlib.MAX_WBITS | 16,
    b"x-gzip": zlib.MAX_WBITS | 16,
    b"deflate": zlib.MAX_WBITS,
}
JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"  # curl's default type for every body
_BINARY = b"inference-header-content-length"  # length of the JSON before binary data, in v2


def kind_of(content_type: bytes) -> str:
    """Return a content type without its parameters."""
    return content_type.decode("latin-1").partition(";")[0].strip(" \t").lower()


def is_json(content_type: bytes) -> bool:
    """Return whether a body of this type is JSON, as are b"" (no type) and `curl -d`'s type."""
    kind = kind_of(content_type)
    return kind in ("", JSON, _FORM) or kind.endswith("+json")


def is_all_json(headers: Headers) -> bool:
    """Return whether the body after these headers is only JSON."""
    return _BINARY not in headers and is_json(headers.get(b"content-type", b""))


class BodyReader:
    """A reader of bodies.

    Args:
        offload: joins and unpacks large bodies.
        memory: receives bodies of a declared length.
    """

    def __init__(self, offload: Offload, memory: MemoryDomain = LOCAL) -> None:
        self._offload = offload
        self._memory = memory

    async def read(self, exchange: Exchange, encoding: bytes, limit: SizeLimit) -> bytes:
        """Return the body of a request, unpacked. Raises HttpError."""
        body = await self.receive(exchange, encoding, limit)
        if isinstance(body, bytes):
            return body
        copy, _ = await self._offload.run(functools.partial(bytes, body))
        return copy

    async def receive(self, exchange: Exchange, encoding: bytes, limit: SizeLimit) -> Body:
        """Return the same without a copy, in the memory that received it. Raises HttpError."""
        announced = int(exchange.said.get(b"content-length", 0))
        if announced > limit.size:
            raise limit.passed(announced)
        body = exchange.take_body()
        if body is None and announced > SHORT_BYTES and exchange.has_more:
            try:
                body = self._memory.place(announced, aligned_at(exchange.said)).data
            except OverloadedError as error:
                raise HttpError(error.http_status, error) from error
            await exchange.receive(body)
        elif body is None:
            body = await self._rest(exchange, limit)
        if len(body) > limit.size:
            raise limit.passed(len(body))
        return await self._decompressed(body, encoding, limit) if encoding else body

    async def _rest(self, exchange: Exchange, limit: SizeLimit) -> bytes:
        """Return the body of a request that is still arriving."""
        pieces: list[bytes] = []
        size = 0
        while piece := await exchange.next_piece():
            pieces.append(piece)
            size += len(piece)
            if size > limit.size:
                raise limit.passed(size)
        if size <= SHORT_BYTES:
            return b"".join(pieces)
        body, _ = await self._offload.run(functools.partial(emptied, pieces))
        return body

    async def _decompressed(self, body: Body, encoding: bytes, limit: SizeLimit) -> bytes:
        if encoding not in _WINDOW_BITS:
            name = encoding.decode("latin-1")
            text = f'unsupported content-encoding "{name}": send gzip, deflate or none'
            raise HttpError(415, PackageError(text))
        name = encoding.removeprefix(b"x-").decode()
        bits = _WINDOW_BITS[encoding]
        try:
            if len(body) <= SHORT_BYTES:
                with contextlib.suppress(OverflowError):
                    return inflated(body, bits, min(SHORT_BYTES, limit.size))
            inflate = functools.partial(inflated, body, bits, limit.size)
            unpacked, _ = await self._offload.run(inflate)
            return unpacked
        except OverflowError as error:
            raise limit.passed() from error
        except zlib.error as error:
            raise HttpError(400, PackageError(f"the body is not valid {name}: {error}")) from error
        except EOFError as error:
            text = f"the body is cut short: incomplete {name} data"
            raise HttpError(400, PackageError(text)) from error
        except ValueError as error:
            text = f"there is data behind the end of the {name} data: send one member"
            raise HttpError(400, PackageError(text)) from error
