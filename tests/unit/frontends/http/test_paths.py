"""Paths: who answers, what is refused and in which form; streams whose first piece is there."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.errors import NoServiceError, PackageError
from pipeline.frontends.http.paths import Paths, begun
from pipeline.frontends.http.routes import HttpError, WebRequest, WebResponse, WebStream


async def shown(request, name):
    return WebResponse(body=f"shown {name}".encode())


async def fails(request, name):
    raise PackageError("no")


async def refused(request, name):
    raise NoServiceError(request.path)


def reply_to(error):
    return WebResponse(error.status if isinstance(error, HttpError) else 400, str(error).encode())


PATHS = Paths(
    "/x",
    {"/x/(?P<name>[^/]+)": ("GET", shown), "/y": ("POST", fails), "/x/a/b": ("POST", shown)},
    refused,
    reply_to,
)


def answer_to(method, raw_path):
    request = WebRequest(method, raw_path.replace("%2F", "/"), raw_path, "", {}, None)  # type: ignore[arg-type]
    endpoint = PATHS.endpoint(request)
    return endpoint and asyncio.run(endpoint(request))


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/x/one", 200, b"shown one"),
        ("HEAD", "/x/one", 200, b"shown one"),  # of which the connection writes the head
        ("GET", "/x/a%2Fb", 200, b"shown a/b"),
        ("POST", "/x/a/b", 200, b"shown "),
        ("POST", "/x/one", 405, b"method POST is not allowed here: use GET, HEAD"),
        ("GET", "/x/a/b", 405, b"method GET is not allowed here: use POST"),
        ("POST", "/y", 400, b"no"),
        ("GET", "/x", 400, b"/x"),
        ("GET", "/x/", 400, b"/x/"),
    ],
)
def test_who_answers(method, path, status, body):
    found = answer_to(method, path)
    assert (found.status, found.body) == (status, body)


def test_a_method_that_is_refused_says_which_are_taken():
    seen = []
    paths = Paths("/x", {"/x": ("GET", shown)}, refused, lambda error: seen.append(error))  # type: ignore[arg-type,func-returns-value]
    request = WebRequest("PUT", "/x", "/x", "", {}, None)  # type: ignore[arg-type]
    endpoint = paths.endpoint(request)
    assert endpoint is not None
    asyncio.run(endpoint(request))
    assert seen[0].headers == ((b"allow", b"GET, HEAD"),)


@pytest.mark.parametrize("path", ["/", "/xx", "/yy", "/v2/x", "/y/"])
def test_paths_of_others_are_left(path):
    assert answer_to("GET", path) is None


async def pieces_of(*pieces, closed):
    try:
        for piece in pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece
    finally:
        closed.append(True)


@pytest.mark.parametrize("pieces", [(), (b"a",), (b"a", b"b", b"c")])
def test_a_begun_stream_has_all_its_pieces(pieces):
    async def read():
        stream = await begun(WebStream(pieces_of(*pieces, closed=[]), b"text/plain"))
        return [piece async for piece in stream.pieces]

    assert asyncio.run(read()) == [*pieces]


def test_an_error_in_the_place_of_the_first_piece_is_raised_at_once():
    async def begin():
        await begun(WebStream(pieces_of(HttpError(404, PackageError("no")), closed=[]), b""))

    with pytest.raises(HttpError):
        asyncio.run(begin())


def test_who_closes_a_begun_stream_closes_what_is_behind_it():
    closed: list[bool] = []

    async def leave():
        stream = await begun(WebStream(pieces_of(b"a", b"b", closed=closed), b""))
        assert await anext(stream.pieces) == b"a"
        await stream.pieces.aclose()
        return bool(closed)

    assert asyncio.run(leave())
