"""Server scripts that run as processes, and what can be seen of them from outside."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from doubles import answers, wait_until

from pipeline import PipelineClient

PATIENCE_S = 60.0
unique = map("u{}".format, itertools.count())


# The view from outside ------------------------------------------------------------------------


def children() -> set[str]:
    """The processes that this one has started and not yet waited for."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@contextlib.contextmanager
def no_leftovers() -> Iterator[None]:
    """Child processes and shared memory are afterwards as before, or fewer."""
    before, memory = children(), shared_memory()
    yield
    assert children() <= before, children() - before
    wait_until(lambda: shared_memory() <= memory)


def shared_memory() -> set[str]:
    """Return the files in /dev/shm that this process maps or that a test has named.

    Other programs have theirs there.
    """
    mapped = re.findall(r"/dev/shm/.*", Path("/proc/self/maps").read_text())
    return {*mapped, *map(str, Path("/dev/shm").glob("test_*"))}


def family_of(folder: Path) -> set[int]:
    """Return the processes of the script in `folder`, its descendants' also; no zombies."""
    mark = f"SERVING_LOG_PATH={folder}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found


def stat_of(pid: int) -> tuple[str, int]:
    """(state, parent) of a process; ("X", 0) if there is none."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "X", 0
    return state, int(parent)


def zombies_of(family: set[int]) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    states = {pid: stat_of(pid) for pid in pids}
    return [pid for pid, (state, parent) in states.items() if state == "Z" and parent in family]


def open_files_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 10).close()
    except ConnectionError:  # refused, or reset while it is being closed
        return False
    return True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def environment(**more: str) -> dict[str, str]:
    """For a process whose only threads are ours, and whose output waits in a buffer."""
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**ours, "OPENBLAS_NUM_THREADS": "1", **more}


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in `folder`, where it also writes its logs."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(SERVING_LOG_PATH=str(folder)),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


_READY = r"(?m:^pipeline server .* is ready: .*\n)"
_LOGGED = r"(?m:^([A-Z]+) \d{4}-\d\d-\d\d [\d:,]+ \[.*?\] (.*)\n)"


def without_log(stderr: str) -> str:
    """What else is there."""
    return re.sub(_LOGGED, "", stderr)


# Scripts that run -----------------------------------------------------------------------------


class Served:
    """A server script that runs, in a session of its own, with its files in `folder`.

    It is given `folder` and the arguments; `config` is in config.yml, a line for each key.
    """

    def __init__(
        self,
        folder: Path,
        script: str,
        config: dict[str, Any],
        *arguments: str,
        cwd: Path | None = None,
    ) -> None:
        self.folder = folder
        self.rpc_port = self.http_port = 0
        settings = {"rpc_port": 0, "http_port": 0, **config}
        lines = [f"{key}: {json.dumps(value)}\n" for key, value in settings.items()]
        (folder / "config.yml").write_text("".join(lines))
        (folder / "web_server.py").write_text(script)
        with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(folder / "web_server.py"), str(folder), *arguments],
                cwd=cwd or folder,
                env=environment(SERVING_LOG_PATH=str(folder)),
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    @property
    def log(self) -> str:
        return self.text("PipelineServingLogs/pipeline.log")

    @property
    def ports(self) -> tuple[int, int]:
        """(rpc_port, http_port), once it is ready"""
        return self.rpc_port, self.http_port

    @property
    def family(self) -> set[int]:
        return family_of(self.folder)

    def descendants_of(self, pid: int) -> set[int]:
        """The members of the family that come from `pid`."""
        parents = {member: stat_of(member)[1] for member in self.family}
        found = {pid}
        while more := {child for child, parent in parents.items() if parent in found} - found:
            found |= more
        return found - {pid}

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Wait, but not for a process that has ended."""
        was_true = False  # once is enough: what a server says of itself may change again

        def holds_or_has_ended() -> bool:
            nonlocal was_true
            was_true = condition()
            return was_true or self.process.poll() is not None

        wait_until(holds_or_has_ended, timeout_s)
        assert was_true or condition(), self.text("stderr") + self.log

    def wait_until_ready(self) -> Self:
        self.wait_for(lambda: "is ready" in self.text("stderr"))
        found = re.search(r"gRPC on port (\d+), HTTP on port (\d+)", self.text("stderr"))
        assert found, self.text("stderr")
        self.rpc_port, self.http_port = int(found[1]), int(found[2])
        return self

    def is_ready(self) -> bool:
        url = f"http://127.0.0.1:{self.http_port}/health/ready"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return False

    def wait_until_held(self, name: str) -> None:
        """Until the script, which holds at `name`, has said that it is there."""
        self.wait_for((self.folder / f"{name}.entered").exists)

    def release(self, name: str) -> None:
        (self.folder / f"{name}.released").touch()

    def ends(self) -> int:
        """Its exit status, once it ended."""
        return self.process.wait(PATIENCE_S)

    def outcome(self) -> tuple[int, str, str]:
        """(exit status, stdout, stderr without what is logged there, and that it is ready)"""
        status, err = self.ends(), self.text("stderr")
        return status, self.text("stdout"), re.sub(_READY, "", without_log(err))

    @property
    def shown(self) -> list[str]:
        """What of the log is on stderr: levels and messages."""
        return [f"{level} {text}" for level, text in re.findall(_LOGGED, self.text("stderr"))]

    def close(self) -> None:
        wait_until(self._has_been_killed)
        self.process.wait()

    def _has_been_killed(self) -> bool:
        """Kill who is left: between two looks a member can have started another."""
        for pid in (left := self.family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.poll()  # reaps it
        return not left


class ServedWithClient(Served):
    """A server script, and a client that is connected to it once it is ready."""

    def __init__(self, folder: Path, script: str, config: dict[str, Any], *arguments: str) -> None:
        self.client = PipelineClient()
        super().__init__(folder, script, config, *arguments)

    def wait_until_ready(self) -> Self:
        super().wait_until_ready()
        self.client.connect([f"127.0.0.1:{self.rpc_port}"])
        return self

    def send(self, pairs: dict[str, str]) -> Any:
        return self.client.predict(pairs, asyn=True, timeout=PATIENCE_S)

    def ask(self, pairs: dict[str, str]) -> Any:
        """Return the answer, which may be an error."""
        return self.send(pairs).result(PATIENCE_S)

    def get(self, pairs: dict[str, str]) -> dict[str, str]:
        """The answer's pairs."""
        return answers(self.ask(pairs))

    def pid_of(self, op: str) -> int:
        """The worker of an Op that has one."""
        return int(self.get({})[op].split()[1])

    @contextlib.contextmanager
    def held(self, key: str, count: int = 1) -> Iterator[dict[int, Any]]:
        """{pid: call} of `count` requests that are held at `key` at the same time, each by a
        worker of its own, until the block ends."""
        names = [next(unique) for _ in range(count)]
        calls = {name: self.send({key: f"hold {name}"}) for name in names}
        entered = {name: self.folder / f"{name}.entered" for name in names}
        try:
            self.wait_for(lambda: all(path.exists() for path in entered.values()))
            yield {int(entered[name].read_text()): call for name, call in calls.items()}
        finally:
            for name in names:
                self.release(name)

    def close(self) -> None:
        self.client.close()
        super().close()
