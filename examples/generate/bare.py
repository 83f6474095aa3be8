"""The plain loop behind a bare uvicorn, with server-sent events.

`measure.py` uses it to measure the cost of events in Python without a framework.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import uvicorn
from words import Vocabulary
from writing import Run, begin, step

TEMPERATURE = 0.8
_WAIT_S = 0.001  # between looks for new requests


class Writer(threading.Thread):
    """Writes all running texts word by word, and calls the event loop once for each step."""

    def __init__(self, run: Run, vocabulary: Vocabulary) -> None:
        super().__init__(daemon=True)
        self.joining: deque[tuple[list[str], asyncio.Queue[str], asyncio.AbstractEventLoop]]
        self.joining = deque()
        self.is_stopped: bool = False
        self._run = run
        self._vocabulary = vocabulary

    def run(self) -> None:
        texts: list[dict[str, Any]] = []
        queues: list[asyncio.Queue[str]] = []
        stopped = threading.Event()
        while not self.is_stopped:
            while self.joining:
                (prompt, most, seed), queue, loop = self.joining.popleft()
                ids = self._vocabulary.encode(prompt)
                texts.append(begin(self._run, ids, int(seed), int(most)))
                queues.append(queue)
            if not texts:
                stopped.wait(_WAIT_S)
                continue
            words, done = step(self._run, texts, np.full(len(texts), TEMPERATURE, np.float32))
            written = [self._vocabulary.text_of(word) for word in words.tolist()]
            loop.call_soon_threadsafe(_hand_on, queues[:], written, done.tolist())
            for row in np.flatnonzero(done)[::-1]:
                del texts[row], queues[row]


def _hand_on(queues: list[asyncio.Queue[str]], words: list[str], done: list[bool]) -> None:
    for queue, word, is_last in zip(queues, words, done, strict=True):
        queue.put_nowait(word)
        if is_last:
            queue.put_nowait("")


def app_of(writer: Writer) -> Callable[..., Any]:
    """Return the ASGI app: a POST, an event for each word, and one for the end."""

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        values = json.loads(body + message["body"])["value"]
        queue: asyncio.Queue[str] = asyncio.Queue()
        writer.joining.append((values, queue, asyncio.get_running_loop()))
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while word := await queue.get():
            event = b"data: %b\n\n" % json.dumps({"text": word}).encode()
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"event: end\ndata: {}\n\n"})

    return app


@contextmanager
def bare_server(run: Run, vocabulary: Vocabulary, port: int) -> Iterator[None]:
    """Serve at a port of this machine while the block runs."""
    writer = Writer(run, vocabulary)
    config = uvicorn.Config(app_of(writer), port=port, log_level="error", lifespan="off")
    served = uvicorn.Server(config)
    thread = threading.Thread(target=served.run)
    writer.start()
    thread.start()
    while not served.started:
        threading.Event().wait(_WAIT_S)
    try:
        yield
    finally:
        served.should_exit = writer.is_stopped = True
        thread.join()
        writer.join()
