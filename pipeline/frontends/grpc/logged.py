"""gRPC's calls in the access log."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import replace

from pipeline.frontends.access_log import AccessLog, Entry
from pipeline.frontends.grpc.calls import Messages
from pipeline.frontends.grpc.server import GrpcCall, GrpcError, GrpcService, Stream, Unary
from pipeline.tracing.context import HEADER

_CANCELLED = "Canceled"  # Go's name of the status


def logged(service: GrpcService, access: AccessLog) -> GrpcService:
    """Return the service with its calls written to a log."""
    methods = {
        name: _logged_unary(access, f"/{service.name}/{name}", method)
        for name, method in service.methods.items()
    }
    streams = {
        name: _logged_stream(access, f"/{service.name}/{name}", stream)
        for name, stream in service.streams.items()
    }
    return replace(service, methods=methods, streams=streams)


def _logged_unary(access: AccessLog, name: str, method: Unary) -> Unary:
    async def answer(message: bytes, call: GrpcCall) -> bytes:
        with _writing(access, name, call) as entry:
            data: bytes = await method(message, call)
            entry.sent_bytes = len(data)
            return data

    return answer


def _logged_stream(access: AccessLog, name: str, stream: Stream) -> Stream:
    async def answers(
        messages: AsyncIterator[bytes], call: GrpcCall
    ) -> AsyncGenerator[bytes, None]:
        with _writing(access, name, call) as entry:
            async with contextlib.aclosing(stream(messages, call)) as stream_answers:
                async for data in stream_answers:
                    entry.sent_bytes += len(data)
                    yield data
            if isinstance(messages, Messages) and messages.is_cut:  # the server has stopped
                entry.status = "Unavailable"

    return answers


@contextlib.contextmanager
def _writing(access: AccessLog, name: str, call: GrpcCall) -> Iterator[Entry]:
    """Write a call at its end."""
    entry, began = Entry(call.address(), name, "OK"), time.monotonic()
    entry.traceparent = call.header(HEADER)
    try:
        yield entry
    except GrpcError as error:
        words = error.status.name.split("_")
        entry.status = _CANCELLED if words == ["CANCELLED"] else "".join(map(str.title, words))
        raise
    except (asyncio.CancelledError, GeneratorExit):
        entry.status = _CANCELLED
        raise
    except Exception:
        entry.status = "Internal"
        raise
    finally:
        entry.took_s = time.monotonic() - began
        access.write(entry)
