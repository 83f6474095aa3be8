"""Paths: endpoints of a frontend that has all paths below one, and its own form of errors."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from urllib.parse import unquote

import msgspec

from pipeline.errors import PipelineError
from pipeline.frontends.http.routes import (
    Endpoint,
    HttpError,
    WebReply,
    WebRequest,
    WebResponse,
    WebStream,
    not_allowed,
)

Answer = Callable[[WebRequest, str], Awaitable[WebReply]]
"""Answers a request whose path has this name in it, or "" where it has none."""


class Paths:
    """The paths that are `below` or beneath it, and what else `endpoints` has.

    Args:
        below: such as "/api".
        endpoints: (method, answer) by the pattern of a path; the answer gets the pattern's group
        `name`. A path that takes GET also takes HEAD.
        refuse: answers where no pattern fits.
        reply_to: makes the answer to a request that ended in an error.
    """

    def __init__(
        self,
        below: str,
        endpoints: Mapping[str, tuple[str, Answer]],
        refuse: Answer,
        reply_to: Callable[[PipelineError | HttpError], WebResponse],
    ) -> None:
        self._below = below
        self._endpoints = [
            (re.compile(path), _METHODS[method], answer)
            for path, (method, answer) in endpoints.items()
        ]
        self._refuse = refuse
        self._reply_to = reply_to

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        """Return the endpoint that answers it; None for paths of others."""
        for pattern, methods, answer in self._endpoints:
            match = pattern.fullmatch(request.raw_path)
            if match is not None:
                if request.method not in methods:
                    answer = partial(_refuse_method, methods=methods)
                return self._guarded(answer, unquote(match.groupdict().get("name", "")))
        if request.path == self._below or request.path.startswith(f"{self._below}/"):
            return self._guarded(self._refuse, "")
        return None

    def _guarded(self, answer: Answer, name: str) -> Endpoint:
        async def endpoint(request: WebRequest) -> WebReply:
            try:
                return await answer(request, name)
            except (HttpError, PipelineError) as error:
                return self._reply_to(error)

        return endpoint


_METHODS: Mapping[str, tuple[str, ...]] = {
    "GET": ("GET", "HEAD"),
    "POST": ("POST",),
    "GET, DELETE": ("GET", "HEAD", "DELETE"),
}


async def begun(stream: WebStream) -> WebStream:
    """Return a stream whose first piece is there. Raises what the stream raises in its place."""
    first = await anext(stream.pieces, b"")
    return msgspec.structs.replace(stream, pieces=_behind(first, stream.pieces))


async def _behind(first: bytes, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(pieces):
        if first:
            yield first
        async for piece in pieces:
            yield piece


async def _refuse_method(request: WebRequest, name: str, methods: tuple[str, ...]) -> WebReply:
    raise not_allowed(request.method, ", ".join(methods).encode())
