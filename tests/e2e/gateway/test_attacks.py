"""A second of some attacks on both ports of a real server, which still answers the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.attack.__main__ import gateway_of, make_certificates, measure
from benchmarks.attack.callers import Callers
from benchmarks.attack.catalog import attacks
from benchmarks.process import Service, running

pytestmark = [pytest.mark.usefixtures("gateway_binary")]

SENT_AWAY = ("rapid reset", "CONTINUATION flood, empty")
BORNE = ("header confetti",)
SECONDS = 1.0
MOST_MIB = 150.0  # of 100, on a machine that does much else


@pytest.fixture(scope="module")
def target(tmp_path_factory, gateway_binary: Path) -> Iterator[SimpleNamespace]:
    """A server that runs, and who asks it."""
    authority, certificate, key = make_certificates(tmp_path_factory.mktemp("attack"))
    with running("secured", str(certificate), str(key)) as service:
        callers = Callers(service.http_port, service.grpc_port, authority)
        service.first_answer(callers.first)
        yield SimpleNamespace(service=service, callers=callers)


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize("name", [*SENT_AWAY, *BORNE])
def test_other_clients_are_answered_during_an_attack(target, kind: str, name: str) -> None:
    service: Service = target.service
    gateway = gateway_of(service)
    (attack,) = (attack for attack in attacks(kind == "grpc") if attack.name == name)
    result = measure(service, target.callers, attack, SECONDS, kind)
    assert gateway_of(service) == gateway
    assert result.failures == []
    assert result.rss_mib < MOST_MIB, result
    assert isinstance(result.sent["units"], int)
    assert result.sent["units"] > 0
    if name in SENT_AWAY:
        assert result.sent["ends"], "nobody was sent away"
