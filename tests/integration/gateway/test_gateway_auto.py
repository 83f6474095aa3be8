"""`edge: auto`: the gateway for gRPC, where its program is there and runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.schema import load_config
from pipeline.frontends.link.frames import VERSION
from pipeline.gateway.ingress import taken_by_gateway

BOTH, GRPC, NONE = ({"HTTP", "gRPC"}, {"gRPC"}, set())
PORTS = {"http_port": 0, "rpc_port": 0}


def write_binary(path: Path, version: int) -> None:
    """A program that says a version of the link."""
    path.write_text(f"#!/bin/sh\necho pipeline-gateway 1 '(link {version})'\n")
    path.chmod(0o755)


@pytest.fixture(params=[True, False], ids=["binary", "no binary"])
def has_binary(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    binary = tmp_path / "gateway"
    if request.param:
        write_binary(binary, VERSION)
    monkeypatch.setenv("PIPELINE_GATEWAY_BINARY", str(binary))
    return request.param


def ports_of(**config: object) -> set[str]:
    return set(taken_by_gateway(load_config(yml_dict=config)))


def test_auto_is_the_gateway_for_grpc_where_there_is_one(has_binary, caplog):
    caplog.set_level("INFO")
    assert ports_of(**PORTS, edge="auto") == (GRPC if has_binary else NONE)
    assert ports_of(rpc_port=0, edge="auto") == (GRPC if has_binary else NONE)
    assert ("the gateway takes gRPC" in caplog.text) is has_binary
    assert ("the server takes gRPC itself: " in caplog.text) is not has_binary


def test_auto_selects_the_gateway_for_http_if_only_the_gateway_has_the_feature(has_binary):
    expected = BOTH if has_binary else NONE
    assert ports_of(**PORTS, edge="auto", admin_port=0) == expected
    assert ports_of(**PORTS, edge="auto", access={"anonymous": ["infer"]}) == expected


@pytest.mark.parametrize("is_runnable", [True, False], ids=["other version", "no program"])
def test_auto_is_the_server_where_the_program_cannot_be_used(
    tmp_path, monkeypatch, caplog, is_runnable
):
    binary = tmp_path / "gateway"
    write_binary(binary, VERSION - 1)
    if not is_runnable:
        binary.write_text("")
    monkeypatch.setenv("PIPELINE_GATEWAY_BINARY", str(binary))
    caplog.set_level("INFO")
    assert ports_of(**PORTS, edge="auto") == NONE
    assert "the server takes gRPC itself: " in caplog.text
