"""The server's own HTTP door and the gateway before it answer as the conformance table says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance_dialogue import Case, Place, run_dialogue, same
from conformance_gateway import PATIENT, both_ports, gateway_before, only_grpc
from conformance_server import Holder, conformance_server
from conformance_table import CASES, DIFFERENT, IN_OTHER_WORDS


@pytest.fixture(scope="module")
def ports(
    gateway_binary: Path, holder: Holder, module_logs: None
) -> Iterator[dict[Place, int | None]]:
    """The HTTP ports of a server, of gateways in front of it, and of a server that has its own."""
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


def places_of(case: Case) -> list[Place]:
    """All of them; but the gateway that a server starts is left out where the answer is that a
    deadline has passed: it waits 250 ms for it, which on a busy machine may not do."""
    holds = any(b"/conf/hold" in step for step in sent_in(case))
    return [place for place in Place if place is not Place.OWN or not holds]


def sent_in(case: Case, place: Place = Place.DOOR) -> tuple[bytes, ...]:
    return tuple(step for step in case.dialogue_at(place) if isinstance(step, bytes))


class EachDoor:
    """Every door and gateway: each case runs at all of them, also after a failure."""

    def __init__(self, ports: dict[Place, int | None], holder: Holder) -> None:
        self._ports = ports
        self._holder = holder

    def run(self, case: Case, loose: Place | None = None) -> dict[Place, list[Any]]:
        """Return the answers of each place; at `loose` the texts may differ."""
        received: dict[Place, list[Any]] = {}
        errors: list[Exception] = []
        for place in places_of(case):
            try:
                dialogue = case.dialogue_at(place)
                received[place] = run_dialogue(
                    self._ports[place], dialogue, is_loose=place is loose
                )
            except (AssertionError, OSError) as error:
                error.add_note(f"asked: {place.value}")
                errors.append(error)
            finally:
                self._holder.release()
        if errors:
            raise ExceptionGroup(case.name, errors)
        return received


@pytest.fixture(scope="module")
def doors(ports: dict[Place, int | None], holder: Holder) -> EachDoor:
    return EachDoor(ports, holder)


def parametrize(cases: Iterable[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@parametrize(CASES)
def test_server_and_gateway_give_equal_answers_of_the_table(doors: EachDoor, case: Case):
    received = doors.run(case, loose=Place.GRPC_ONLY)
    assert same(received[Place.GATEWAY], received[Place.DOOR])


@parametrize(IN_OTHER_WORDS)
def test_all_places_answer_as_in_the_table_with_their_own_texts(doors: EachDoor, case: Case):
    doors.run(case, loose=Place.GRPC_ONLY)


@parametrize(DIFFERENT)
def test_known_differences_are_as_in_the_table(doors: EachDoor, case: Case):
    doors.run(case)


def test_every_difference_has_its_reason():
    assert [case.name for case in CASES if case.grpc_only is not None and not case.why] == []
    assert [case.name for case in CASES if case.gateway is not None] == []
    assert [case.name for case in DIFFERENT if not case.why or case.gateway is None] == []


def test_no_case_is_there_twice():
    for place in Place:
        asked = [sent_in(case, place) for case in (*CASES, *IN_OTHER_WORDS, *DIFFERENT)]
        assert len(set(asked)) == len(asked)
