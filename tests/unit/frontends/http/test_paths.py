"""Paths: who answers, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.errors import NoServiceError, PackageError, PipelineError
from pipeline.frontends.http.paths import Paths
from pipeline.frontends.http.routes import HttpError, WebRequest, WebResponse


async def shown(request, name):
    return WebResponse(body=f"shown {name}".encode())


async def fails(request, name):
    raise PackageError("no")


async def refused(request, name):
    raise NoServiceError(request.path)


PATHS = Paths(
    "/x",
    {"/x/(?P<name>[^/]+)": ("GET", shown), "/y": ("POST", fails), "/x/a/b": ("POST", shown)},
    refused,
)


def answer_to(method, raw_path):
    request = WebRequest(method, raw_path.replace("%2F", "/"), raw_path, "", {}, None)  # type: ignore[arg-type]
    endpoint = PATHS.endpoint(request)
    try:
        return endpoint and asyncio.run(endpoint(request))
    except (HttpError, PipelineError) as error:
        return error


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/x/one", b"shown one"),
        ("HEAD", "/x/one", b"shown one"),  # of which the connection writes the head
        ("GET", "/x/a%2Fb", b"shown a/b"),
        ("POST", "/x/a/b", b"shown "),
    ],
)
def test_a_path_leads_to_its_handler(method, path, body):
    assert answer_to(method, path).body == body


@pytest.mark.parametrize(
    ("method", "path", "kind", "text"),
    [
        ("POST", "/x/one", HttpError, "method POST is not allowed here: use GET, HEAD"),
        ("GET", "/x/a/b", HttpError, "method GET is not allowed here: use POST"),
        ("POST", "/y", PackageError, "no"),
        ("GET", "/x", NoServiceError, "/x"),
        ("GET", "/x/", NoServiceError, "/x/"),
    ],
)
def test_an_invalid_path_is_refused(method, path, kind, text):
    error = answer_to(method, path)
    assert (type(error), str(error)) == (kind, text)


def test_a_refused_method_has_the_allowed_ones():
    assert answer_to("PUT", "/x/one").headers == ((b"allow", b"GET, HEAD"),)


@pytest.mark.parametrize("path", ["/", "/xx", "/yy", "/v2/x", "/y/"])
def test_paths_of_others_are_left(path):
    assert answer_to("GET", path) is None
