"""Static files: our pages, read once, and the headers that isolate them from other sites."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pipeline.frontends.http.routes import Header, WebRequest, WebResponse

_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}


def safe_headers(pictures: bytes = b"'self'") -> tuple[Header, ...]:
    """Return headers that allow only content from this server, nothing inline, and no frame.

    `pictures`: allowed sources of pictures.
    """
    policy = (
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src %s; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return (
        (b"content-security-policy", policy % pictures),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-resource-policy", b"same-origin"),
    )


def files_in(folder: Path, headers: tuple[Header, ...]) -> Mapping[str, WebResponse]:
    """Return the files of a page by name. The files are small."""
    return {path.name: _read(path, headers) for path in folder.iterdir() if path.suffix in _TYPES}


def _read(path: Path, headers: tuple[Header, ...]) -> WebResponse:
    body = path.read_bytes()
    tag = b'"%s"' % hashlib.sha256(body).hexdigest()[:16].encode()
    headers_of_file = ((b"cache-control", b"no-cache"), (b"etag", tag), *headers)
    return WebResponse(200, body, _TYPES[path.suffix], headers_of_file)


def unless_known(file: WebResponse, request: WebRequest) -> WebResponse:
    """Return a file, or 304 if the client has it."""
    if (b"etag", request.headers.get(b"if-none-match")) in file.headers:
        return msgspec.structs.replace(file, status=304, body=b"")
    return file
