"""The own address, as the system tells it."""

from __future__ import annotations

import ipaddress

from pipeline.proto.targets import own_ip


def test_the_own_address_is_the_one_that_the_peer_sees():
    assert own_ip(ipaddress.ip_address("127.0.0.1")) == "127.0.0.1"


def test_without_a_way_to_the_peer_the_own_address_is_empty_and_no_error():
    assert own_ip(ipaddress.ip_address("255.255.255.255")) == ""
    assert isinstance(own_ip(None), str)
