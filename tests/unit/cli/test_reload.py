"""Which server serves while files change: the decisions of `pipeline serve --reload`."""

from __future__ import annotations

from pipeline.cli.reload import Reloader, pinned


class FakeRelease:
    """A server that is ready, or has ended, when the test says so."""

    def __init__(self, given):
        self.given, self.told, self.ended, self.left = given, None, None, 0
        self.shared = ""

    def ports(self):
        reported, self.told = self.told, None
        return reported

    def status(self):
        return self.ended

    def leave(self):
        self.left += 1

    def shared_port(self):
        return self.shared


class Desk:
    """A Reloader, the servers that it has started, the files that change, and what it says."""

    def __init__(self):
        self.releases: list[FakeRelease] = []
        self.files: list[str] = []
        self.said: list[str] = []
        self.reloader = Reloader(self._start, self._changed, self.said.append)

    def _start(self, ports):
        self.releases.append(FakeRelease(ports))
        return self.releases[-1]

    def _changed(self):
        files, self.files = self.files, []
        return files

    def tick(self, *files):
        self.files = list(files)
        self.reloader.tick()

    def ready(self, number, ports=None):
        self.releases[number].told = ports or {"http_port": "1", "rpc_port": "2"}
        self.tick()


def test_the_old_server_leaves_when_the_new_one_is_ready():
    desk = Desk()
    desk.ready(0)
    desk.tick("a.py", "b.py")
    assert (len(desk.releases), desk.releases[0].left) == (2, 0)
    desk.ready(1)
    assert [release.left for release in desk.releases] == [1, 0]
    assert desk.said == ["a.py and 1 more changed", "the new server has taken over"]


def test_the_next_server_gets_the_ports_of_the_first():
    desk = Desk()
    desk.ready(0, {"http_port": "7", "rpc_port": "8"})
    desk.tick("a.py")
    assert [release.given for release in desk.releases] == [{}, {"http_port": "7", "rpc_port": "8"}]


def test_a_release_that_cannot_start_changes_nothing():
    desk = Desk()
    desk.ready(0)
    desk.tick("a.py")
    desk.releases[1].ended = 1
    desk.tick()
    assert desk.releases[0].left == 0
    assert desk.said[-1] == "the server could not start (status 1); the previous server continues"
    desk.tick("a.py")
    desk.ready(2)
    assert [release.left for release in desk.releases] == [1, 0, 0]


def test_a_change_during_a_start_restarts():
    desk = Desk()
    desk.tick("a.py")
    assert [release.left for release in desk.releases] == [1, 0]
    desk.ready(0)  # too late
    desk.ready(1)
    assert [release.left for release in desk.releases] == [1, 0]


def test_a_server_that_ends_is_reported_once():
    desk = Desk()
    desk.ready(0)
    desk.releases[0].ended = -9
    desk.tick()
    desk.tick()
    assert desk.said == ["the server has ended (status -9); waiting for a change"]
    desk.tick("a.py")
    assert len(desk.releases) == 2


def test_all_releases_stop_at_the_end_and_a_second_signal_repeats_it():
    desk = Desk()
    desk.ready(0)
    desk.tick("a.py")
    desk.reloader.stop()
    assert [release.left for release in desk.releases] == [1, 1]
    assert not desk.reloader.is_over
    desk.reloader.stop()
    assert [release.left for release in desk.releases] == [2, 2]
    for release in desk.releases:
        release.ended = 0
    assert desk.reloader.is_over


def test_free_ports_are_pinned_and_others_unchanged():
    ports = {"http_port": "7", "rpc_port": "8"}
    free = ["http_port=0", "rpc_port=", "a=b"]
    assert pinned(free, {}) == free
    assert pinned(free, ports) == [*free, "http_port=7", "rpc_port=8"]
    assert pinned(["http_port=9"], ports) == ["http_port=9"]
    assert pinned(["rpc_port=0"], {"http_port": "0", "rpc_port": "8"}) == [
        "rpc_port=0",
        "rpc_port=8",
    ]


def test_a_port_shared_with_another_server_is_reported_at_the_first_start_only():
    desk = Desk()
    desk.releases[0].shared = "7"
    desk.ready(0)
    assert desk.said == ["port 7 is also another server's: stop that server, or use --port"]
    assert desk.reloader.is_unwanted
    desk = Desk()
    desk.ready(0)
    desk.tick("a.py")
    desk.releases[1].shared = "7"  # with the one before
    desk.ready(1)
    assert not desk.reloader.is_unwanted
