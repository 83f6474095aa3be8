"""`pipeline serve --reload` under load: servers follow the files, and no request fails."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from doubles import http, wait_until
from rolling import SERVICE, Load
from served import PATIENCE_S, environment, family_of

CONFIG = "rpc_port: 0\nhttp_port: 0\n"


class Developed:
    """A service that is being developed: its folder, and `pipeline serve --reload` in it."""

    def __init__(self, folder: Path, script: str, port: int = 0, other: str = "") -> None:
        self.folder = folder
        (folder / "config.yml").write_text(CONFIG)
        self.write(script)
        command = [sys.executable, "-m", "pipeline", "serve", "--reload", "--port", str(port)]
        if other:
            self.write(other, "other.py")
            command += ["web_server.py", "other.py"]
        with (folder / "stderr").open("w") as stderr:
            self.process = subprocess.Popen(
                # Not the port behind that of HTTP, which may be another test's.
                [*command, "--set", "rpc_port=0", "--set", "drain_delay=1000"],
                cwd=folder,
                env=environment(SERVING_LOG_PATH=str(folder)),
                stderr=stderr,
            )

    def write(self, script: str, name: str = "web_server.py") -> None:
        """Write the script, at once, as editors do."""
        (self.folder / "next").write_text(script)
        (self.folder / "next").replace(self.folder / name)

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def wait_for(self, text: str, times: int = 1) -> None:
        def said_or_ended() -> bool:
            return self.stderr.count(text) >= times or self.process.poll() is not None

        wait_until(said_or_ended, PATIENCE_S)
        assert self.stderr.count(text) >= times, self.stderr

    @property
    def ports(self) -> tuple[int, int]:
        match = re.search(r"gRPC on port (\d+), HTTP on port (\d+)", self.stderr)
        assert match
        return int(match[1]), int(match[2])


@pytest.fixture
def developed(tmp_path: Path) -> Iterator[Developed]:
    with ended(Developed(tmp_path, SERVICE.format(release="one"))) as service:
        yield service


@contextlib.contextmanager
def ended(service: Developed) -> Iterator[Developed]:
    try:
        yield service
    finally:
        service.process.kill()
        service.process.wait()
        wait_until(lambda: not family_of(service.folder), PATIENCE_S)  # its children also end


OTHER = SERVICE.replace('"say"', '"other_say"').replace('"rolling"', '"other"')


def test_a_server_of_several_scripts_follows_each_of_them(tmp_path):
    scripts = SERVICE.format(release="one"), OTHER.format(release="two")

    def says(name: str) -> str:
        body = http(SimpleNamespace(http_port=service.ports[1]), "POST", f"/api/{name}", {})[2]
        return str(body["release"])

    with ended(Developed(tmp_path, scripts[0], other=scripts[1])) as service:
        service.wait_for("pipeline server rolling, other is ready")
        assert (says("rolling"), says("other")) == ("one", "two")
        service.write(OTHER.format(release="three"), "other.py")
        wait_until(lambda: says("other") == "three", PATIENCE_S)  # the old one may be asked last
        assert says("rolling") == "one"


def test_no_request_fails_while_a_server_follows_its_files(developed, tmp_path):
    developed.wait_for("is ready")
    with Load(*developed.ports) as load:
        load.wait_for("one")
        developed.write(SERVICE.format(release="two"))
        load.wait_for_only("two")
        developed.write("raise RuntimeError('not yet')")
        developed.wait_for("the server could not start (status 1); the previous server continues")
        assert "RuntimeError: not yet" in developed.stderr
        load.wait_for_only("two")
        (developed.folder / "config.yml").write_text(f"{CONFIG}op: {{say: {{concurrency: 0}}}}")
        developed.write(SERVICE.format(release="three"))
        developed.wait_for("op.say.concurrency: expected int >= 1, found 0 (int)")
        (developed.folder / "config.yml").write_text(CONFIG)
        load.wait_for_only("three")
    assert load.failures == []
    elsewhere = tmp_path / "second"
    elsewhere.mkdir()
    second = Developed(elsewhere, SERVICE.format(release="second"), developed.ports[1])
    assert second.process.wait(PATIENCE_S) == 1
    assert f"port {developed.ports[1]} is also another server's" in second.stderr
    developed.process.send_signal(signal.SIGINT)
    assert developed.process.wait(PATIENCE_S) == 0
    assert not family_of(developed.folder)


def test_a_server_that_cannot_start_is_waited_for_and_killed_processes_leave_none(tmp_path):
    developed = Developed(tmp_path, "raise SystemExit(3)")
    try:
        developed.wait_for("the server could not start (status 3); waiting for a change")
        developed.write(SERVICE.format(release="one"))
        developed.wait_for("is ready")
    finally:
        developed.process.kill()
        developed.process.wait()
    wait_until(lambda: not family_of(tmp_path), PATIENCE_S)
