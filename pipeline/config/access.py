"""`access` and `tls`: who may ask a server for what, and how its ports are secured.

Both are the gateway's to see to: `edge: gateway`.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

Role = Literal["infer", "observe", "admin"]
"""Part of what may be done: ask models; look at the page, metrics, statistics; change models."""

ROLES: tuple[Role, ...] = ("infer", "observe", "admin")


LEAST_BUFFERED_BYTES = 64 << 10


class CallerLimits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`access.limits`: how much one caller may ask."""

    requests_per_s: Annotated[
        float, Meta(ge=0), "Requests a second of one caller; more are refused; 0: any number."
    ] = 0.0
    burst: Annotated[int, Meta(ge=0), "Of these, how many may come at once; 0: a second's."] = 0
    in_flight: Annotated[
        int, Meta(ge=0), "Requests of one caller that are worked on at once; 0: any number."
    ] = 0
    bytes_per_s: Annotated[
        float, Meta(ge=0), "Bytes a second of bodies, in and out; 0: any number."
    ] = 0.0
    bytes_burst: Annotated[int, Meta(ge=0), "Of these, how many at once; 0: a second's."] = 0
    buffered_bytes: Annotated[
        int, Meta(ge=0), "Bytes that one caller's requests and answers may hold; 0: any number."
    ] = 0


class FairShareConfig(Struct, frozen=True, kw_only=True):
    """`access.fair_share`: places that callers share."""

    in_flight: Annotated[
        int, Meta(ge=0), "Requests of all callers that go on to the server at once; 0: any number."
    ] = 0
    queue: Annotated[
        int, Meta(ge=0), "Those that wait; more are refused to the caller with most of them."
    ] = 1000
    max_wait_s: Annotated[float, Meta(ge=0), "Seconds for which one waits, at most."] = 10.0


_OF_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
SIGNATURES = (*_OF_RSA, "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms of signed tokens of which the key that checks cannot sign."""


class JwtConfig(Struct, frozen=True, kw_only=True):
    """`access.jwt`: tokens that somebody else signs."""

    jwks_file: Annotated[
        str, 'JSON Web Key Set with the keys of an issuer; "": signed tokens are not taken.'
    ] = ""
    issuer: Annotated[str, "What their claim `iss` has to be."] = ""
    audience: Annotated[str, "What their claim `aud` has to be, or one of its values."] = ""
    algorithms: Annotated[
        tuple[str, ...], f"Those that are taken, of {' '.join(SIGNATURES)}; none: all of them."
    ] = ()
    name_claim: Annotated[str, "Claim that is the caller's name."] = "sub"
    roles_claim: Annotated[
        str, 'Claim with roles, a list or words; with dots one that lies deeper; "": none has any.'
    ] = "roles"
    roles: Annotated[
        dict[str, tuple[Role, ...]],
        "Roles by a value of that claim; empty: the values are infer, observe, admin themselves.",
    ] = {}
    leeway_s: Annotated[
        float, Meta(ge=0, le=3600), "Seconds by which clocks may differ for `exp` and `nbf`."
    ] = 30.0


class AccessConfig(Struct, frozen=True, kw_only=True):
    """`access`: who may do what."""

    callers_file: Annotated[
        str, 'JSON file of callers, as `python -m pipeline callers` writes it; "": none.'
    ] = ""
    anonymous: Annotated[
        tuple[Role, ...], "What who shows no credential may do: infer, observe, admin."
    ] = ROLES
    limits: Annotated[CallerLimits, "Limits of callers that have none of their own."] = (
        CallerLimits()
    )
    fair_share: Annotated[FairShareConfig, "Places that callers share: who has fewest is next."] = (
        FairShareConfig()
    )
    connections_per_address: Annotated[
        int, Meta(ge=0), "Connections of one address, of IPv6 of a /64, at once; 0: any number."
    ] = 0
    jwt: Annotated[JwtConfig, "Tokens that somebody else signs."] = JwtConfig()
    trusted_proxies: Annotated[
        tuple[str, ...],
        "Addresses or networks of proxies whose X-Forwarded-* say who asks.",
    ] = ()
    metadata: Annotated[
        tuple[str, ...],
        "Headers and metadata that callers may set, beside those of the protocols; empty: any.",
    ] = ()
    audit_file: Annotated[
        str, 'File that refusals, and what admins do, are written to as JSON lines; "": none.'
    ] = ""


class TlsConfig(Struct, frozen=True, kw_only=True):
    """`tls`: certificates of the ports."""

    certificate: Annotated[str, 'PEM file of the certificate; "": the ports speak no TLS.'] = ""
    key: Annotated[str, "PEM file of its key."] = ""
    client_ca: Annotated[
        str, 'PEM file: callers need a certificate of this authority; "": they need none.'
    ] = ""


class CallerEntry(Struct, kw_only=True, omit_defaults=True):
    """One caller in the file of callers.

    Attributes:
        tokens: `sha256:` and the digest of each, in hexadecimal digits.
        certificates: names in those that it shows: DNS, URI, e-mail or common name.
        subjects: its names in tokens that somebody else signs.
        limits: None: those of `access.limits`.
    """

    name: str
    roles: list[Role] = []
    tokens: list[str] = []
    certificates: list[str] = []
    subjects: list[str] = []
    limits: CallerLimits | None = None


class CallersFile(Struct, kw_only=True, forbid_unknown_fields=True):
    """The file of callers, which the gateway reads again whenever it changes."""

    callers: list[CallerEntry] = []


def fault_of_access(access: AccessConfig, tls: TlsConfig, is_all_the_gateways: bool) -> str:
    """Return what is wrong with both; "": nothing. The last says who has the ports."""
    if bool(tls.certificate) != bool(tls.key):
        return "tls: certificate and key belong together: give both"
    if tls.client_ca and not tls.certificate:
        return "tls: client_ca needs a certificate and a key"
    asked = [name for name, given in (("access", access), ("tls", tls)) if given != type(given)()]
    if asked and not is_all_the_gateways:
        return f"{asked[0]}: it is the gateway's to see to: set edge: gateway, for all ports"
    if (
        not access.callers_file
        and not access.jwt.jwks_file
        and access.anonymous != ROLES
        and not tls.client_ca
    ):
        return "access.anonymous: nobody else is known: name a callers_file"
    if 0 < access.limits.buffered_bytes < LEAST_BUFFERED_BYTES:
        return f"access.limits.buffered_bytes: give {LEAST_BUFFERED_BYTES} or more; 0: any number"
    return _fault_of_proxies(access.trusted_proxies) or _fault_of_jwt(access.jwt)


def _fault_of_proxies(proxies: tuple[str, ...]) -> str:
    for proxy in proxies:
        try:
            ip_network(proxy, strict=False)
        except ValueError:
            return f"access.trusted_proxies: {proxy!r} is no address and no network"
    return ""


def _fault_of_jwt(jwt: JwtConfig) -> str:
    unknown = [name for name in jwt.algorithms if name not in SIGNATURES]
    if unknown:
        return f"access.jwt.algorithms: {unknown[0]!r} is none of {', '.join(SIGNATURES)}"
    if jwt.jwks_file and not (jwt.issuer and jwt.audience):
        return "access.jwt: issuer and audience say which tokens are for this server: give both"
    if not jwt.jwks_file and jwt != JwtConfig():
        return "access.jwt: name the jwks_file"
    return ""


def document_of(access: AccessConfig) -> bytes:
    """Return what the gateway is told, as JSON; its own package `access` reads it."""
    return msgspec.json.encode(access)
