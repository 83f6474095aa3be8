"""`access` and `tls`: access rules of callers, and TLS of the ports.

The gateway applies both, so they need `edge: gateway`.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

Role = Literal["infer", "observe", "admin"]
"""A role: ask models; read the status page, metrics and statistics; change models."""

ROLES: tuple[Role, ...] = ("infer", "observe", "admin")


LEAST_BUFFERED_BYTES = 64 << 10


class CallerLimits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`access.limits`: limits of one caller."""

    requests_per_s: Annotated[
        float,
        Meta(ge=0),
        "Maximum requests per second of one caller; more are refused; 0: no limit.",
    ] = 0.0
    burst: Annotated[
        int, Meta(ge=0), "Maximum number of those requests at once; 0: those of one second."
    ] = 0
    in_flight: Annotated[
        int, Meta(ge=0), "Maximum number of running requests of one caller; 0: no limit."
    ] = 0
    bytes_per_s: Annotated[
        float, Meta(ge=0), "Maximum bytes per second of bodies, in and out; 0: no limit."
    ] = 0.0
    bytes_burst: Annotated[
        int, Meta(ge=0), "Maximum number of those bytes at once; 0: those of one second."
    ] = 0
    buffered_bytes: Annotated[
        int,
        Meta(ge=0),
        "Maximum memory for requests and answers of one caller, bytes; 0: no limit.",
    ] = 0


class FairShareConfig(Struct, frozen=True, kw_only=True):
    """`access.fair_share`: places that callers share."""

    in_flight: Annotated[
        int, Meta(ge=0), "Maximum number of running requests of all callers together; 0: no limit."
    ] = 0
    queue: Annotated[
        int,
        Meta(ge=0),
        "Maximum number of waiting requests; beyond it the caller with most of them is refused.",
    ] = 1000
    max_wait_s: Annotated[float, Meta(ge=0), "Maximum wait of a request, s."] = 10.0


_OF_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
SIGNATURES = (*_OF_RSA, "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms of signed tokens whose checking key cannot sign."""


class JwtConfig(Struct, frozen=True, kw_only=True):
    """`access.jwt`: tokens of an identity provider."""

    jwks_file: Annotated[str, 'JSON Web Key Set with the issuer\'s keys; "": no signed tokens.'] = (
        ""
    )
    issuer: Annotated[str, "Required value of the claim iss."] = ""
    audience: Annotated[str, "Required value of the claim aud."] = ""
    algorithms: Annotated[
        tuple[str, ...], f"Accepted algorithms, of {' '.join(SIGNATURES)}; empty: all."
    ] = ()
    name_claim: Annotated[str, "Claim with the caller's name."] = "sub"
    roles_claim: Annotated[
        str,
        'Claim with the roles, as a list or as words; a dot leads into an object; "": no roles.',
    ] = "roles"
    roles: Annotated[
        dict[str, tuple[Role, ...]],
        "Roles for each value of that claim; empty: the values are the roles themselves.",
    ] = {}
    leeway_s: Annotated[
        float, Meta(ge=0, le=3600), "Allowed clock difference for exp and nbf, s."
    ] = 30.0


class AccessConfig(Struct, frozen=True, kw_only=True):
    """`access`: who may do what."""

    callers_file: Annotated[
        str, 'JSON file of callers, written by `python -m pipeline callers`; "": none.'
    ] = ""
    anonymous: Annotated[
        tuple[Role, ...], "Roles of a caller without credentials: infer, observe, admin."
    ] = ROLES
    limits: Annotated[CallerLimits, "Limits of a caller whose entry sets no limits."] = (
        CallerLimits()
    )
    fair_share: Annotated[
        FairShareConfig, "Places that all callers share; the caller with the fewest goes next."
    ] = FairShareConfig()
    connections_per_address: Annotated[
        int,
        Meta(ge=0),
        "Maximum number of connections from one address (IPv6: one /64 network); 0: no limit.",
    ] = 0
    jwt: Annotated[JwtConfig, "Tokens that an identity provider signs."] = JwtConfig()
    trusted_proxies: Annotated[
        tuple[str, ...],
        "Addresses or networks of proxies whose X-Forwarded-* headers are trusted.",
    ] = ()
    metadata: Annotated[
        tuple[str, ...],
        "Headers and metadata that callers may set besides those of the protocols; empty: any.",
    ] = ()
    audit_file: Annotated[
        str, 'File for refusals and administrative actions, as JSON lines; "": none.'
    ] = ""


class TlsConfig(Struct, frozen=True, kw_only=True):
    """`tls`: certificates of the ports."""

    certificate: Annotated[str, 'PEM file with the certificate; "": no TLS.'] = ""
    key: Annotated[str, "PEM file with the key."] = ""
    client_ca: Annotated[
        str,
        'PEM file with the authority of client certificates, which are then required; "": not '
        "required.",
    ] = ""
    grpc_only: Annotated[bool, "The HTTP port, which is the server's own, has no TLS."] = False


class CallerEntry(Struct, kw_only=True, omit_defaults=True):
    """One caller in the file of callers.

    Attributes:
        tokens: `sha256:` and the hexadecimal digest of each token.
        certificates: names in its client certificates: DNS, URI, e-mail or common name.
        subjects: its names in tokens of an identity provider.
        limits: its limits; None: `access.limits`.
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


def fault_of_access(
    access: AccessConfig, tls: TlsConfig, is_all_the_gateways: bool, has_grpc_alone: bool = False
) -> str:
    """Return the fault of both sections, or "".

    The last arguments: the gateway has all open ports; it has the gRPC port only.
    """
    if bool(tls.certificate) != bool(tls.key):
        return "tls: certificate and key belong together: give both"
    if tls.client_ca and not tls.certificate:
        return "tls: client_ca needs a certificate and a key"
    if tls.grpc_only and not tls.certificate:
        return "tls.grpc_only: it needs a certificate and a key"
    if tls.grpc_only and not has_grpc_alone:
        return "tls.grpc_only: the gateway has to take gRPC, and the server HTTP: see edge"
    asked = [name for name, given in (("access", access), ("tls", tls)) if given != type(given)()]
    if tls.grpc_only:
        asked.remove("tls")
    if asked and not is_all_the_gateways:
        return f"{asked[0]}: it needs the gateway on all ports: set edge: gateway"
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
            return f"access.trusted_proxies: {proxy!r} is neither an address nor a network"
    return ""


def _fault_of_jwt(jwt: JwtConfig) -> str:
    unknown = [name for name in jwt.algorithms if name not in SIGNATURES]
    if unknown:
        return f"access.jwt.algorithms: {unknown[0]!r} is not one of {', '.join(SIGNATURES)}"
    if jwt.jwks_file and not (jwt.issuer and jwt.audience):
        return "access.jwt: issuer and audience say which tokens are for this server: give both"
    if not jwt.jwks_file and jwt != JwtConfig():
        return "access.jwt: name the jwks_file"
    return ""


def document_of(access: AccessConfig) -> bytes:
    """Return the section as JSON for the gateway's package `access`."""
    return msgspec.json.encode(access)
