"""`pipeline cluster` beside others who change the same fleet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from pipeline.cli.cluster import cluster_parser, down, scale
from pipeline.cluster.fleet import FleetView
from pipeline.cluster.plan import DesiredFleet


class PlayedFleets:
    """One fleet, which is asked for its view by `_wait` and changed by somebody else meanwhile."""

    def __init__(self, *wanted: DesiredFleet, ends: bool = True) -> None:
        self._wanted = list(wanted)
        self._answers: dict[str, Callable[[], Any]] = {
            "want": lambda: None,
            "view": self._view,
            "end": lambda: ends,
        }
        self.ended = False

    def find(self, name: str) -> str:
        return name

    def ask(self, fleet: str, method: str, *arguments: Any) -> Any:
        return self._answers[method]()

    def end(self, fleet: str) -> None:
        self.ended = True

    def _view(self) -> bytes:
        wanted = self._wanted.pop(0) if len(self._wanted) > 1 else self._wanted[0]
        return msgspec.json.encode(FleetView("f", wanted, True, False, "", ()))


def test_down_ends_the_fleet():
    fleets = PlayedFleets(DesiredFleet(1, 0))
    assert down(cluster_parser().parse_args(["down"]), fleets) == 0
    assert fleets.ended


def test_down_does_not_end_a_fleet_that_another_command_starts(capsys):
    given = cluster_parser().parse_args(["down"])
    for fleets in (
        PlayedFleets(DesiredFleet(1, 0), DesiredFleet(2, 2)),  # while it was waited for
        PlayedFleets(DesiredFleet(1, 0), ends=False),  # or behind that
    ):
        assert down(given, fleets) == 1
        assert not fleets.ended
        assert "another command has changed the fleet meanwhile" in capsys.readouterr().err


def test_scale_reports_a_concurrent_change(capsys):
    fleets = PlayedFleets(DesiredFleet(1, 3), DesiredFleet(1, 5))
    assert scale(cluster_parser().parse_args(["scale", "3"]), fleets) == 1
    assert "another command" in capsys.readouterr().err
