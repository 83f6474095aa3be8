"""Proxies of the environment: which one gRPC uses for a server, and when it uses none."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence

from pipeline.proto.targets import host_and_port

_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")  # the first one that is set counts
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address, which no proxy can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def has_loopback(endpoints: Sequence[str]) -> bool:
    """Return whether an endpoint is on loopback: then gRPC uses no proxy for any of them."""
    return any(is_loopback(host_and_port(endpoint)[0]) for endpoint in endpoints)


def proxy_hint(endpoints: Sequence[str]) -> str:
    """Return a sentence on the proxy that gRPC uses; "" if it uses none."""
    variable = next((name for name in _VARIABLES if name in os.environ), "")
    proxy = os.environ.get(variable, "")
    if not proxy or has_loopback(endpoints):
        return ""
    spared = next((os.environ[name] for name in _EXCEPTIONS if name in os.environ), "")
    suffixes = tuple(filter(None, (part.strip() for part in spared.split(","))))
    if all(host_and_port(endpoint)[0].endswith(suffixes) for endpoint in endpoints):
        return ""
    return (
        f"It was asked by the proxy that {variable} names: put the host into no_proxy if it "
        "can be reached directly."
    )
