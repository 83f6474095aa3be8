"""Proxies of the environment: never for loopback, elsewhere by gRPC's rules, and named."""

from __future__ import annotations

import pytest

from pipeline.proto.channels import channel_options
from pipeline.proto.proxies import proxy_hint

PROXY = "http://127.0.0.1:9"
VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [
        (["127.0.0.1:1"], 0),
        (["127.8.0.1:1"], 0),
        (["localhost:1"], 0),
        (["LocalHost.:1"], 0),
        (["[::1]:1"], 0),
        (["10.0.0.1:1", "127.0.0.1:1"], 0),
        (["10.0.0.1:1"], 1),
        (["localhost.example:1"], 1),
        (["[fe80::1]:1"], 1),
    ],
)
def test_loopback_endpoints_bypass_the_proxy(endpoints, expected):
    assert dict(channel_options(endpoints=endpoints))["grpc.enable_http_proxy"] == expected


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({}, ""),
        ({"http_proxy": PROXY}, "http_proxy"),
        ({"http_proxy": PROXY, "https_proxy": PROXY}, "https_proxy"),
        ({"http_proxy": PROXY, "grpc_proxy": ""}, ""),
        ({"http_proxy": PROXY, "no_proxy": "other.example"}, "http_proxy"),
        ({"http_proxy": PROXY, "no_proxy": "other.example, .example"}, ""),
        ({"http_proxy": PROXY, "no_proxy": "ocr.example", "no_grpc_proxy": "a"}, "http_proxy"),
    ],
)
def test_the_variable_of_the_proxy_is_named(monkeypatch, variables, named):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    hint = proxy_hint(["ocr.example:1"])
    assert (f"that {named} names" in hint) if named else hint == ""
    assert proxy_hint(["127.0.0.1:1"]) == ""
