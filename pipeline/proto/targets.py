"""Endpoints as users write them ("host:port"), and gRPC's target for all of them."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

from pipeline.errors import ConfigError, shortened

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_HOST = re.compile("[A-Za-z0-9._-]+")
_NAMED = re.compile(r"([^/]+:\d+)/([^/]+)")
_MOST_DIGITS = 5  # of a port


def grpc_target(endpoints: str | Sequence[str]) -> tuple[str, Address | None]:
    """Return gRPC's target for all endpoints, and the address of one if it is known.

    gRPC itself looks up a single host name, also again when the server moves. It cannot do so for
    several names, so this function looks them up, once.
    """
    names = [endpoints] if isinstance(endpoints, str) else list(endpoints)
    if not names:
        raise ConfigError("connect() needs at least one endpoint, such as '127.0.0.1:9998'")
    hosts = [host_and_port(name) for name in names]
    if len(hosts) == 1 and _literal(hosts[0][0]) is None:
        return f"dns:///{hosts[0][0]}:{hosts[0][1]}", None
    places = [[(address, port) for address in _addresses(host, port)] for host, port in hosts]
    for version in (4, 6):
        usable = [[pair for pair in pairs if pair[0].version == version] for pairs in places]
        if all(usable):
            form = "{}:{}" if version == 4 else "[{}]:{}"
            flat = [pair for pairs in usable for pair in pairs]
            targets = ",".join(form.format(address, port) for address, port in flat)
            return f"ipv{version}:{targets}", flat[0][0]
    raise ConfigError(f"endpoints {names}: neither IPv4 nor IPv6 reaches all; connect to one kind")


def split_name(endpoints: Sequence[str]) -> tuple[list[str], str]:
    """Return endpoints without the pipeline's name, and this name ("host:port/name"), or "".

    Raises:
        ConfigError: they have different ones.
    """
    matches = [
        _NAMED.fullmatch(endpoint) if isinstance(endpoint, str) else None for endpoint in endpoints
    ]
    names = {match[2] if match else "" for match in matches}
    if len(names) > 1:
        raise ConfigError(f"endpoints {list(endpoints)}: all need the same name of a pipeline")
    hosts = [
        match[1] if match else endpoint for match, endpoint in zip(matches, endpoints, strict=True)
    ]
    return hosts, names.pop() if names else ""


def host_and_port(endpoint: object) -> tuple[str, int]:
    """Return the two parts of "host:port"; an IPv6 address loses its brackets.

    A name with non-ASCII letters is returned in the form of a lookup: `xn--...`.

    Raises:
        TypeError: `endpoint` is not a text.
        ConfigError: it has another form.
    """
    if not isinstance(endpoint, str):
        raise TypeError(f"an endpoint must be 'host:port', but get {endpoint!r}")
    written, _, port = endpoint.strip().rpartition(":")
    host = _host(written)
    is_number = port.isascii() and port.isdigit() and len(port) <= _MOST_DIGITS
    if not (host and is_number and 0 < int(port) < 65536):
        shown = shortened(repr(endpoint))
        raise ConfigError(f"endpoint {shown}: write host:port, an IPv6 address as [::1]:9998")
    return host, int(port)


def _host(written: str) -> str:
    """Return the host for a lookup; "" if it is invalid or an IPv6 address without brackets."""
    if written.startswith("[") and written.endswith("]"):
        return written[1:-1] if _literal(written[1:-1]) else ""
    try:
        host = written.encode("idna").decode("ascii")
    except UnicodeError:
        return ""
    return host if _HOST.fullmatch(host) else ""


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _addresses(host: str, port: int) -> list[Address]:
    literal = _literal(host)
    if literal is not None:
        return [literal]
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"endpoint '{host}:{port}': no address is known: {error}") from error
    return list(dict.fromkeys(ipaddress.ip_address(str(entry[4][0])) for entry in entries))


def own_ip(peer: Address | None) -> str:
    """Return this host's address on the route to `peer`; empty without a route.

    Connecting a datagram socket only reads the routing table: it sends nothing, looks up no name
    and cannot block. Without a known peer a documentation address is used.
    """
    address = peer or ipaddress.IPv4Address("192.0.2.1")
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""
