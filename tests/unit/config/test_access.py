"""`access` and `tls`: errors in them, and the arguments of the gateway."""

from __future__ import annotations

import json

import pytest
from paths import ROOT

from pipeline.config.access import (
    ROLES,
    AccessConfig,
    CallerLimits,
    JwtConfig,
    TlsConfig,
    document_of,
    fault_of_access,
)
from pipeline.config.schema import load_config
from pipeline.config.sections import default_host, listen_as_the_predecessor
from pipeline.frontends.v2.restrictions import api_of

NOBODY = AccessConfig(callers_file="callers.json", anonymous=())
SIGNED = JwtConfig(jwks_file="k", issuer="i", audience="a", roles={"ops": ("admin",)})
SECURE = TlsConfig(certificate="c", key="k")


@pytest.mark.parametrize(
    ("access", "tls", "is_gateway", "text"),
    [
        (AccessConfig(), TlsConfig(), False, ""),
        (NOBODY, SECURE, True, ""),
        (NOBODY, TlsConfig(), False, "access: it needs the gateway on all ports"),
        (AccessConfig(), SECURE, False, "tls: it needs the gateway on all ports"),
        (AccessConfig(), TlsConfig(certificate="c"), True, "belong together"),
        (AccessConfig(), TlsConfig(client_ca="c"), True, "needs a certificate"),
        (AccessConfig(anonymous=("infer",)), TlsConfig(), True, "name a callers_file"),
        (AccessConfig(anonymous=(), jwt=SIGNED), TlsConfig(), True, ""),
        (AccessConfig(trusted_proxies=("10.0.0.0/8", "::1")), TlsConfig(), True, ""),
        (AccessConfig(limits=CallerLimits(buffered_bytes=9)), TlsConfig(), True, "give 65536"),
        (
            AccessConfig(trusted_proxies=("proxy",)),
            TlsConfig(),
            True,
            "'proxy' is neither an address",
        ),
        (AccessConfig(jwt=JwtConfig(jwks_file="k")), TlsConfig(), True, "give both"),
        (AccessConfig(jwt=JwtConfig(issuer="i")), TlsConfig(), True, "name the jwks_file"),
        (
            AccessConfig(jwt=JwtConfig(algorithms=("HS256",))),
            TlsConfig(),
            True,
            "is not one of RS256",
        ),
    ],
)
def test_faults(access: AccessConfig, tls: TlsConfig, is_gateway: bool, text: str) -> None:
    fault = fault_of_access(access, tls, is_gateway)
    assert text in fault
    assert bool(text) == bool(fault)


@pytest.mark.parametrize(
    ("access", "is_gateway", "has_grpc_alone", "text"),
    [
        (AccessConfig(), False, True, ""),
        (AccessConfig(), True, False, "tls.grpc_only: the gateway has to take gRPC"),
        (AccessConfig(), False, False, "tls.grpc_only: the gateway has to take gRPC"),
        (NOBODY, False, True, "access: it needs the gateway on all ports"),
    ],
)
def test_faults_of_tls_of_grpc_alone(
    access: AccessConfig, is_gateway: bool, has_grpc_alone: bool, text: str
) -> None:
    tls = TlsConfig(certificate="c", key="k", grpc_only=True)
    fault = fault_of_access(access, tls, is_gateway, has_grpc_alone)
    assert text in fault
    assert bool(text) == bool(fault)


def test_tls_of_grpc_alone_needs_a_certificate() -> None:
    fault = fault_of_access(AccessConfig(), TlsConfig(grpc_only=True), False, True)
    assert fault == "tls.grpc_only: it needs a certificate and a key"


def test_the_gateway_receives_all_settings_of_access() -> None:
    limits = CallerLimits(requests_per_s=2.5)
    access = AccessConfig(callers_file="f", limits=limits, audit_file="a", jwt=SIGNED)
    reported = json.loads(document_of(access))
    assert reported["limits"] == {"requests_per_s": 2.5}  # what is left out is 0 to the gateway
    assert (reported["callers_file"], reported["anonymous"], reported["audit_file"]) == (
        "f",
        list(ROLES),
        "a",
    )
    assert reported["jwt"] == {
        "jwks_file": "k",
        "issuer": "i",
        "audience": "a",
        "algorithms": [],
        "name_claim": "sub",
        "roles_claim": "roles",
        "roles": {"ops": ["admin"]},
        "leeway_s": 30.0,
    }


def test_methods_that_change_models_need_the_role_admin() -> None:
    """The gateway's harmless methods are the parts of v2 that change nothing."""
    rows = json.loads((ROOT / "tests/support/golden/access_roles.json").read_text())
    changing = {"model-repository", "shared-memory", "trace", "logging"}
    asked = [row for row in rows if row["door"] == "http" and row["role"] in ("", "infer")]
    assert [row for row in asked if api_of(row["path"].partition("?")[0]) in changing] == []


def test_a_server_is_for_its_own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.config.sections._hosts", ["127.0.0.1"])
    assert load_config(yml_dict={"rpc_port": 0}).host == "127.0.0.1"
    listen_as_the_predecessor()
    assert default_host() == load_config(yml_dict={"rpc_port": 0}).host == "::"
    assert load_config(yml_dict={"rpc_port": 0, "host": "10.0.0.1"}).host == "10.0.0.1"
