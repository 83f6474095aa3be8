"""`edge`, and `http_server` before it: who takes HTTP and gRPC."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.schema import load_config
from pipeline.errors import ConfigError, InitError
from pipeline.gateway.ingress import taken_by_gateway

BOTH, HTTP, GRPC, NONE = ({"HTTP", "gRPC"}, {"HTTP"}, {"gRPC"}, set())
PORTS = {"http_port": 0, "rpc_port": 0}


@pytest.fixture(params=[True, False], ids=["binary", "no binary"])
def has_binary(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    binary = tmp_path / "gateway"
    if request.param:
        binary.touch(0o755)
    monkeypatch.setenv("PIPELINE_GATEWAY_BINARY", str(binary))
    return request.param


def ports_of(**config: object) -> set[str]:
    return set(taken_by_gateway(load_config(yml_dict=config)))


@pytest.mark.usefixtures("has_binary")
def test_the_server_is_its_own_edge_by_default():
    assert ports_of(**PORTS) == NONE
    assert ports_of(**PORTS, edge="embedded") == NONE


@pytest.mark.usefixtures("has_binary")
@pytest.mark.parametrize("word", ["gateway", "Gateway"])
def test_the_gateway_takes_over_configured_ports(word):
    assert ports_of(**PORTS, edge=word) == BOTH
    assert ports_of(http_port=0, edge=word) == BOTH
    assert ports_of(rpc_port=0, edge=word) == GRPC


@pytest.mark.usefixtures("has_binary")
def test_the_older_key_applies_to_http_only():
    assert ports_of(**PORTS, http_server="gateway") == HTTP
    assert ports_of(**PORTS, http_server="embedded") == NONE


@pytest.mark.usefixtures("has_binary")
def test_the_older_key_remains_valid_with_edge():
    assert ports_of(**PORTS, edge="gateway", http_server="embedded") == GRPC
    assert ports_of(**PORTS, edge="embedded", http_server="gateway") == HTTP
    assert ports_of(**PORTS, edge="gateway", http_server="gateway") == BOTH


def test_tls_of_grpc_alone_needs_the_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PIPELINE_GATEWAY_BINARY", str(tmp_path / "gateway"))
    tls = {"certificate": "c", "key": "k", "grpc_only": True}
    with pytest.raises(InitError, match="there is no gateway binary"):
        ports_of(**PORTS, edge="auto", tls=tls)


@pytest.mark.parametrize("key", ["edge", "http_server"])
def test_other_words_are_refused(key):
    with pytest.raises(ConfigError, match=f"{key}: expected embedded.* gateway.*, found"):
        load_config(yml_dict={**PORTS, key: "nginx"})


@pytest.mark.parametrize("more", [{}, {"http_port": None}])
def test_the_gateway_for_http_alone_needs_its_port(more):
    with pytest.raises(ConfigError, match=r"http_server: the gateway listens on http_port, .* set"):
        load_config(yml_dict={"rpc_port": 0, "http_server": "gateway", **more})


@pytest.mark.parametrize("key", ["edge", "http_server"])
def test_without_any_port_there_is_one_error(key):
    with pytest.raises(ConfigError) as caught:
        load_config(yml_dict={key: "gateway"})
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize("key", ["edge", "http_server"])
def test_a_port_that_is_wrong_is_not_called_absent(key):
    with pytest.raises(ConfigError) as caught:
        load_config(yml_dict={"http_port": 80, key: "gateway"})
    assert "absent" not in str(caught.value)
