"""The headers for browsers about web pages of other origins."""

from __future__ import annotations

import pytest

from pipeline.config.sections import CorsConfig, fault_of_cors
from pipeline.frontends.http.cors import Cors

APP = "https://app.example.com"
LISTED = Cors(CorsConfig(origins=(APP,), headers=("X-User",), credentials=True, max_age_s=5))
VARY = (b"vary", b"Origin")


def test_an_origin_that_is_not_listed_gets_no_headers() -> None:
    for origin in (b"https://evil.example.com", b"null", b"", APP.encode() + b".evil.com"):
        headers = {b"origin": origin, b"access-control-request-method": b"POST"}
        assert LISTED.headers_for(headers) == (VARY,)
        assert LISTED.preflight("OPTIONS", headers) is None
    assert Cors().headers_for({b"origin": APP.encode()}) == ()


def test_a_listed_origin_gets_headers() -> None:
    assert LISTED.headers_for({b"origin": APP.encode()}) == (
        VARY,
        (b"access-control-allow-origin", APP.encode()),
        (b"access-control-allow-credentials", b"true"),
        (b"access-control-expose-headers", b"Inference-Header-Content-Length, Retry-After"),
    )


def test_a_preflight_is_answered_with_the_allowed_methods_and_headers() -> None:
    fields = {
        b"origin": APP.encode(),
        b"access-control-request-method": b"POST",
        b"access-control-request-headers": b"Content-Type, X-User,x-evil",
    }
    reply = LISTED.preflight("OPTIONS", fields)
    assert reply is not None
    headers = dict(reply.headers)
    assert headers[b"access-control-allow-headers"] == b"content-type, x-user"
    assert headers[b"access-control-allow-methods"] == b"GET, HEAD, POST"
    assert headers[b"access-control-max-age"] == b"5"
    assert LISTED.preflight("POST", fields) is None
    assert LISTED.preflight("OPTIONS", {b"origin": APP.encode()}) is None


def test_any_page_is_any_page() -> None:
    headers = Cors(CorsConfig(origins=("*",))).headers_for({b"origin": b"https://x"})
    assert (b"access-control-allow-origin", b"*") in headers
    assert VARY not in headers


@pytest.mark.parametrize(
    ("cors", "text"),
    [
        (CorsConfig(origins=("*",), credentials=True), "name origins"),
        (CorsConfig(origins=("app.example.com",)), "is not an origin"),
        (CorsConfig(origins=(APP + "/",)), "is not an origin"),
        (CorsConfig(origins=(APP, "http://localhost:3000"), credentials=True), ""),
    ],
)
def test_faults(cors: CorsConfig, text: str) -> None:
    assert text in fault_of_cors(cors)
    assert bool(text) == bool(fault_of_cors(cors))
