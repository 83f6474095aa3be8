"""Releases on one port, as docs/deployment.md has it: under load no request fails."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from rolling import SERVICE, Load
from served import Served, free_port

COPIES = {"build_dag_each_worker": True, "worker_num": 2}


@pytest.mark.parametrize(
    ("more", "releases"), [({}, ("one", "two", "three")), (COPIES, ("a", "b"))]
)
def test_the_next_release_takes_over_without_a_failed_request(tmp_path: Path, more, releases):
    ports = {"rpc_port": free_port(), "http_port": free_port()}
    config = {**ports, **more, "reuse_port": True, "drain_delay": 1000}
    running: list[Served] = []

    def release(name: str) -> Served:
        folder = tmp_path / name
        folder.mkdir()
        served = Served(folder, SERVICE.format(release=name), config)
        running.append(served)
        return served.wait_until_ready()

    try:
        last = release(releases[0])
        with Load(**ports) as load:
            load.wait_for(releases[0])
            for name in releases[1:]:
                following = release(name)
                last.process.send_signal(signal.SIGTERM)
                assert last.ends() == 0
                load.wait_for_only(name)
                last = following
        assert load.failures == []
        assert {kind: set(counts) for kind, counts in load.answers.items()} == {
            "http": set(releases),
            "grpc": set(releases),
        }
    finally:
        for served in running:
            served.close()
