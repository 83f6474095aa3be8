"""The own address, as the system tells it."""

from __future__ import annotations

import ipaddress

from pipeline.proto.targets import own_ip


def test_the_local_address_is_the_one_visible_to_the_peer():
    assert own_ip(ipaddress.ip_address("127.0.0.1")) == "127.0.0.1"


def test_without_a_route_the_local_address_is_empty():
    assert own_ip(ipaddress.ip_address("255.255.255.255")) == ""
    assert isinstance(own_ip(None), str)
