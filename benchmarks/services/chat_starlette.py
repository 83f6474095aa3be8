"""The same chat by hand on Starlette and uvicorn. Arguments: as those of chat.py."""

# ruff: noqa: E402 - Starlette is imported from the folder that use_peers adds

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import orjson

from benchmarks.services.installed import use_peers
from benchmarks.services.ports import HTTP_PORT

use_peers()
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

RATE, WORDS = map(int, sys.argv[1:3])


def event(delta: dict[str, Any], reason: str | None = None) -> bytes:
    """Return a chunk of a chat as an event."""
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": "chat",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}],
    }
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


async def words() -> AsyncIterator[bytes]:
    """Yield the events of an answer."""
    yield event({"role": "assistant", "content": ""})
    for _ in range(WORDS):
        if RATE:
            await asyncio.sleep(1 / RATE)
        yield event({"content": "word "})
    yield event({}, "stop")
    yield b"data: [DONE]\n\n"


async def chat(request: Request) -> StreamingResponse:
    """Answer a chat part by part."""
    await request.json()
    return StreamingResponse(words(), media_type="text/event-stream")


if __name__ == "__main__":
    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    uvicorn.run(app, port=HTTP_PORT, access_log=False, log_level="warning")
