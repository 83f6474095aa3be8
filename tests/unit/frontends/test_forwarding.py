"""Which headers `dag.forward_headers` lets through to the context of a request."""

from __future__ import annotations

import pytest

from pipeline.config.schema import load_config
from pipeline.errors import ConfigError
from pipeline.frontends.base import HeaderForwarding

HEADERS = [
    (b"X-User", b"anna"),
    (b"x-user-id", b"7"),
    (b"x-api-key", b"secret"),
    (b"authorization", b"Bearer secret"),
    (b"cookie", b"secret"),
    (b"connection", b"close"),
    (b"accept", b"*/*"),
]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("x-user", {"x-user"}),
        ("x-.*", {"x-user", "x-user-id"}),
        ("X-USER|Accept", {"x-user", "accept"}),
        (".*", {"x-user", "x-user-id", "accept"}),
        ("x-user-id|authorization", {"x-user-id", "authorization"}),
        (".*|Cookie|x-api-key|connection", {"x-user", "x-user-id", "x-api-key", "cookie", "accept",
                                            "connection"}),
    ],
)  # fmt: skip
def test_credentials_and_hop_by_hop_headers_need_their_name_in_the_pattern(pattern, names):
    assert HeaderForwarding(pattern).choose(HEADERS).keys() == names


def test_metadata_of_grpc_is_text_or_bytes_and_the_last_value_counts():
    headers = [("x-a", "1"), ("x-b-bin", b"\xff"), ("x-a", "2")]
    assert HeaderForwarding("x-.*").choose(headers) == {"x-a": "2", "x-b-bin": "\xff"}


def test_without_a_match_there_is_no_info():
    assert HeaderForwarding("y").info(HEADERS) is None


def test_an_invalid_pattern_is_refused_at_the_start():
    with pytest.raises(ConfigError, match=r"dag\.forward_headers: expected a regular expression"):
        load_config(yml_dict={"rpc_port": 0, "dag": {"forward_headers": "x-("}})
