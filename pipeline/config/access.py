"""`access` and `tls`: who may ask a server for what, and how its ports are secured.

Both are the gateway's to see to: `edge: gateway`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

Role = Literal["infer", "observe", "admin"]
"""Part of what may be done: ask models; look at the page, metrics, statistics; change models."""

ROLES: tuple[Role, ...] = ("infer", "observe", "admin")


class CallerLimits(Struct, frozen=True, kw_only=True):
    """`access.limits`: how much one caller may ask."""

    requests_per_s: Annotated[
        float, Meta(ge=0), "Requests a second of one caller; more are refused; 0: any number."
    ] = 0.0
    burst: Annotated[int, Meta(ge=0), "Of these, how many may come at once; 0: a second's."] = 0
    in_flight: Annotated[
        int, Meta(ge=0), "Requests of one caller that are worked on at once; 0: any number."
    ] = 0


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
        limits: None: those of `access.limits`.
    """

    name: str
    roles: list[Role] = []
    tokens: list[str] = []
    certificates: list[str] = []
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
    if not access.callers_file and access.anonymous != ROLES and not tls.client_ca:
        return "access.anonymous: nobody else is known: name a callers_file"
    return ""


def document_of(access: AccessConfig) -> bytes:
    """Return what the gateway is told, as JSON; its own package `access` reads it."""
    return msgspec.json.encode(access)
