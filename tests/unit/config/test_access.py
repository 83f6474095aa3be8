"""`access` and `tls`: what is wrong with them, and what the gateway is told."""

from __future__ import annotations

import json

import pytest
from paths import ROOT

from pipeline.config.access import (
    ROLES,
    AccessConfig,
    CallerLimits,
    TlsConfig,
    document_of,
    fault_of_access,
)
from pipeline.config.default_host import default_host, listen_as_the_predecessor
from pipeline.config.schema import load_config
from pipeline.frontends.v2.restrictions import api_of

NOBODY = AccessConfig(callers_file="callers.json", anonymous=())
SECURE = TlsConfig(certificate="c", key="k")


@pytest.mark.parametrize(
    ("access", "tls", "is_gateway", "text"),
    [
        (AccessConfig(), TlsConfig(), False, ""),
        (NOBODY, SECURE, True, ""),
        (NOBODY, TlsConfig(), False, "access: it is the gateway's"),
        (AccessConfig(), SECURE, False, "tls: it is the gateway's"),
        (AccessConfig(), TlsConfig(certificate="c"), True, "belong together"),
        (AccessConfig(), TlsConfig(client_ca="c"), True, "needs a certificate"),
        (AccessConfig(anonymous=("infer",)), TlsConfig(), True, "name a callers_file"),
    ],
)
def test_faults(access: AccessConfig, tls: TlsConfig, is_gateway: bool, text: str) -> None:
    fault = fault_of_access(access, tls, is_gateway)
    assert text in fault
    assert bool(text) == bool(fault)


def test_the_gateway_is_told_all_of_it() -> None:
    access = AccessConfig(callers_file="f", limits=CallerLimits(requests_per_s=2.5), audit_file="a")
    assert json.loads(document_of(access)) == {
        "callers_file": "f",
        "anonymous": list(ROLES),
        "limits": {"requests_per_s": 2.5, "burst": 0, "in_flight": 0},
        "audit_file": "a",
    }


def test_nothing_that_changes_models_goes_without_the_role_admin() -> None:
    """What the gateway takes for harmless is no part of v2 that changes anything."""
    rows = json.loads((ROOT / "tests/support/golden/access_roles.json").read_text())
    changing = {"model-repository", "shared-memory", "trace", "logging"}
    asked = [row for row in rows if row["door"] == "http" and row["role"] in ("", "infer")]
    assert [row for row in asked if api_of(row["path"].partition("?")[0]) in changing] == []


def test_a_server_is_for_its_own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.config.default_host._hosts", ["127.0.0.1"])
    assert load_config(yml_dict={"rpc_port": 0}).host == "127.0.0.1"
    listen_as_the_predecessor()
    assert default_host() == load_config(yml_dict={"rpc_port": 0}).host == "::"
    assert load_config(yml_dict={"rpc_port": 0, "host": "10.0.0.1"}).host == "10.0.0.1"
