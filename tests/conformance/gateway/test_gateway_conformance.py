"""The server's own HTTP door and the gateway before it answer as the conformance table says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from conformance_gateway import PATIENT, both_ports, gateway_before, only_grpc
from conformance_server import Holder, conformance_server
from conformance_table import CASES, DIFFERENT, IN_OTHER_WORDS
from conformance_talk import Case, Place, hold, same
from served import children


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """The gateways outlive the tests; beside them there is nobody."""
    before = children()
    yield
    assert children() == before


@pytest.fixture(scope="module")
def holder() -> Holder:
    return Holder()


@pytest.fixture(scope="module")
def ports(
    gateway_binary: Path, holder: Holder, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Place, int | None]]:
    """The HTTP ports of a server, of gateways in front of it, and of a server that has its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVING_LOG_PATH", str(tmp_path_factory.mktemp("logs")))
        with (
            conformance_server(holder) as server,
            gateway_before(gateway_binary, both_ports(server), flags=PATIENT) as gateway,
            gateway_before(gateway_binary, only_grpc(server), flags=PATIENT) as blind,
            conformance_server(holder, http_server="gateway") as whole,
        ):
            gateway.wait_until_ready()
            blind.wait_until_ready()
            yield {
                Place.DOOR: server.http_port,
                Place.GATEWAY: gateway.port,
                Place.GRPC_ONLY: blind.port,
                Place.OWN: whole.http_port,
            }


@pytest.fixture
def nobody_waits(holder: Holder) -> Iterator[None]:
    yield
    holder.release()


pytestmark = pytest.mark.usefixtures("nobody_waits")


def everywhere(cases: Iterable[Case]) -> pytest.MarkDecorator:
    """Each case at each place; but the gateway that a server starts is left out where the answer
    is that a deadline has passed: it waits 250 ms for it, which on a busy machine may not do."""
    return pytest.mark.parametrize(
        ("case", "place"),
        [
            pytest.param(case, place, id=f"{place.name}: {case.name}")
            for case in cases
            for place in Place
            if place is not Place.OWN or not any(b"/conf/hold" in step for step in sent_in(case))
        ],
    )


def sent_in(case: Case, place: Place = Place.DOOR) -> tuple[bytes, ...]:
    return tuple(step for step in case.talk_with(place) if isinstance(step, bytes))


@everywhere([*CASES, *IN_OTHER_WORDS])
def test_it_answers_as_the_table_says(ports, case, place):
    hold(ports[place], case.talk_with(place), is_loose=place is Place.GRPC_ONLY)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_gateway_answers_as_the_door(ports, holder, case):
    door = hold(ports[Place.DOOR], case.door)
    holder.release()
    assert same(hold(ports[Place.GATEWAY], case.door), door)


@everywhere(DIFFERENT)
def test_where_they_differ_it_is_as_the_table_says(ports, case, place):
    hold(ports[place], case.talk_with(place))


def test_every_difference_has_its_reason():
    assert [case.name for case in CASES if case.grpc_only is not None and not case.why] == []
    assert [case.name for case in CASES if case.gateway is not None] == []
    assert [case.name for case in DIFFERENT if not case.why or case.gateway is None] == []


def test_no_case_is_there_twice():
    for place in Place:
        asked = [sent_in(case, place) for case in (*CASES, *IN_OTHER_WORDS, *DIFFERENT)]
        assert len(set(asked)) == len(asked)
