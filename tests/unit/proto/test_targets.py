"""Endpoints become one gRPC target; what cannot be called is refused before it is."""

from __future__ import annotations

import pytest

from pipeline.errors import ConfigError
from pipeline.proto.targets import grpc_target, split_name


@pytest.mark.parametrize(
    ("endpoints", "target"),
    [
        ("127.0.0.1:9998", "ipv4:127.0.0.1:9998"),
        (["127.0.0.1:9998"], "ipv4:127.0.0.1:9998"),
        (("127.0.0.1:1", " 127.0.0.2:65535 "), "ipv4:127.0.0.1:1,127.0.0.2:65535"),
        (["[::1]:9998"], "ipv6:[::1]:9998"),
        (["[::1]:1", "[fe80::2]:2"], "ipv6:[::1]:1,[fe80::2]:2"),
        ("ocr.example:9998", "dns:///ocr.example:9998"),
        ("my_ocr:9998", "dns:///my_ocr:9998"),
        ("b\u00fccher.example:9998", "dns:///xn--bcher-kva.example:9998"),
        ("[fe80::2%lo]:2", "ipv6:[fe80::2%lo]:2"),
        (["localhost:1", "127.0.0.1:2"], "ipv4:127.0.0.1:1,127.0.0.1:2"),
    ],
)
def test_endpoints_become_one_target(endpoints: str | list[str], target: str):
    assert grpc_target(endpoints)[0] == target


@pytest.mark.parametrize(
    ("endpoints", "told"),
    [
        ([], "at least one"),
        ("9998", "host:port"),
        (":9998", "host:port"),
        ("127.0.0.1", "host:port"),
        ("127.0.0.1:", "host:port"),
        ("127.0.0.1:http", "host:port"),
        ("127.0.0.1:0", "host:port"),
        ("127.0.0.1:65536", "host:port"),
        ("127.0.0.1:9998,127.0.0.2:9998", "host:port"),
        ("::1:9998", r"\[::1\]:9998"),
        (["127.0.0.1:1", "[::1]:2"], "neither IPv4 nor IPv6"),
        (["127.0.0.1:1", "no-such-host.invalid:2"], "'no-such-host.invalid:2'"),
        ("a..b:80", "host:port"),
        (["a..b:80", "127.0.0.1:1"], "host:port"),
        (f"{'a' * 64}.b:80", "host:port"),
        ("a b:80", "host:port"),
        ("a\r\nb:80", "host:port"),
        ("a\x00b:80", "host:port"),
        ("\udc80:80", "host:port"),
        ("me@there:80", "host:port"),
        ("[a:b]:80", "host:port"),
        (f"there:{'9' * 5000}", "host:port"),
    ],
)
def test_an_endpoint_that_cannot_be_called_is_refused(endpoints: str | list[str], told: str):
    with pytest.raises(ConfigError, match=told):
        grpc_target(endpoints)


def test_an_endpoint_that_is_not_text_is_refused():
    with pytest.raises(TypeError, match="9998"):
        grpc_target([9998])


def test_a_pipeline_may_be_named_after_the_port_equally_in_all_endpoints():
    assert split_name(["a:1/embed", "[::1]:2/embed"]) == (["a:1", "[::1]:2"], "embed")
    others = ["a:1", "http://a:1/embed", "dns:///a:1", "a:1/", "a/b"]
    assert split_name(others) == (others, "")
    with pytest.raises(ConfigError, match="all need the same name of a pipeline"):
        split_name(["a:1/embed", "a:2"])
