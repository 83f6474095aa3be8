"""What a server tells who started it, as sd_notify has it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pipeline.system.service_manager import VARIABLE, ServiceManager


def test_lines_are_one_datagram_and_the_variable_is_removed(tmp_path: Path):
    place = str(tmp_path / "notify")
    environ = {VARIABLE: place, "OTHER": "x"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(place)
        ServiceManager.taken_from(environ).tell(READY=1, STATUS="is ready")
        listener.settimeout(10)
        assert listener.recv(100) == b"READY=1\nSTATUS=is ready"
    assert environ == {"OTHER": "x"}


def test_an_abstract_socket_is_named_with_an_at(tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{tmp_path}")
        ServiceManager(f"@{tmp_path}").tell(READY=1)
        listener.settimeout(10)
        assert listener.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", [None, "", "/absent/place", "@absent"])
def test_a_missing_manager_is_not_an_error(address):
    ServiceManager(address).tell(READY=1)
