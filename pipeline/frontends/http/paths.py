"""Paths: the endpoints of a frontend with one path prefix."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Protocol
from urllib.parse import unquote

from pipeline.frontends.http.routes import (
    Endpoint,
    WebReply,
    WebRequest,
    not_allowed,
)


class PathEndpoint(Protocol):
    """Answers a request; `name` is the path's group of that name, or ""."""

    def __call__(self, request: WebRequest, name: str) -> Awaitable[WebReply]: ...


class Paths:
    """The paths at and below `below`, and other paths in `endpoints`.

    Args:
        below: for example "/api".
        endpoints: (method, answer) by the pattern of a path; the answer gets the pattern's group
            `name`. A path for GET also accepts HEAD.
        refuse: answers if no pattern fits.
    """

    def __init__(
        self,
        below: str,
        endpoints: Mapping[str, tuple[str, PathEndpoint]],
        refuse: PathEndpoint,
    ) -> None:
        self._below = below
        self._endpoints = [
            (re.compile(path), _METHODS[method], answer)
            for path, (method, answer) in endpoints.items()
        ]
        self._refuse = refuse

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        """Return the endpoint of a path; None: a path of other routes."""
        for pattern, methods, answer in self._endpoints:
            match = pattern.fullmatch(request.raw_path)
            if match is not None:
                if request.method not in methods:
                    answer = partial(_refuse_method, methods=methods)
                return partial(answer, name=unquote(match.groupdict().get("name", "")))
        if request.path == self._below or request.path.startswith(f"{self._below}/"):
            return partial(self._refuse, name="")
        return None


_METHODS: Mapping[str, tuple[str, ...]] = {
    "GET": ("GET", "HEAD"),
    "POST": ("POST",),
    "GET, DELETE": ("GET", "HEAD", "DELETE"),
}


async def _refuse_method(request: WebRequest, name: str, methods: tuple[str, ...]) -> WebReply:
    raise not_allowed(request.method, ", ".join(methods).encode())
