"""Fleets on a Ray cluster of this machine, by the command line, with an edge and a load."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles import wait_until
from served import free_port

pytest.importorskip("ray")
pytestmark = [pytest.mark.cluster]

SCRIPT = """
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

class Which(Op):
    def preprocess(self, input_dicts):
        return {"release": "1"}

server = PipelineServer("which")
server.set_response_op(ResponseOp(Which("which", RequestOp())))
server.prepare_server("config.yml")
server.run_server()
"""
PATIENCE_S = 120.0


class Command:
    """`pipeline cluster ...`, in a process of its own, its output in a file."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._log = folder / f"{words[0]}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", "cluster", *words],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def end(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)


class Load:
    """Requests from several connections, one after the other, until it is stopped."""

    def __init__(self, port: int) -> None:
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self._port = port
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(4)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        while not self._ends.is_set():
            connection.request("POST", "/which/prediction", '{"key": ["x"], "value": ["1"]}')
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                self.failures.append(f"{answer.status} {body!r}")
                continue
            self.answers[json.loads(body)["value"][0]] += 1
        connection.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("service")
    (made / "web_server.py").write_text(SCRIPT)
    (made / "config.yml").write_text("http_port: 9999\n")
    return made


@pytest.fixture(scope="module")
def sigint() -> Iterator[None]:
    """Not ignored: a shell does so for what runs in the background, and children inherit it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def address(folder, sigint) -> Iterator[str]:
    local = Command(folder, "local", "--nodes", "2", "--num-cpus", "4")
    wait_until(lambda: "is at" in local.said(), PATIENCE_S)
    match = re.search(r"is at (\S+);", local.said())
    assert match is not None
    yield match[1]
    local.end()


@pytest.fixture(scope="module")
def edge(folder, address) -> Iterator[tuple[int, int]]:
    """The ports of an edge before a fleet of two replicas, and of its status."""
    done(folder, address, "up", "web_server.py", "--replicas", "2")
    port, status_port = free_port(), free_port()
    listen = f"--listen=127.0.0.1:{port}", f"--status=127.0.0.1:{status_port}"
    made = Command(folder, "edge", f"--address={address}", *listen)
    wait_until(lambda: is_ready(port), PATIENCE_S)
    yield port, status_port
    made.end()


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5):
            return True
    except OSError:
        return False


def run(folder: Path, address: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", "cluster", *words, f"--address={address}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def done(folder: Path, address: str, *words: str) -> str:
    ended = run(folder, address, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def replicas(folder: Path, address: str) -> list[dict[str, object]]:
    status = run(folder, address, "status", "--json")
    assert status.stdout, status.stderr
    return json.loads(status.stdout)["replicas"]


def test_an_update_fails_no_request_and_a_failing_release_changes_nothing(folder, address, edge):
    script = folder / "web_server.py"
    load = Load(edge[0])
    try:
        script.write_text(SCRIPT.replace('"1"', '"2"'))
        done(folder, address, "update", "web_server.py")
        wait_until(lambda: load.answers["2"] > 20, PATIENCE_S)
        script.write_text("raise ValueError('no model')")
        ended = run(folder, address, "update", "web_server.py")
        assert (ended.returncode, "ValueError: no model" in ended.stderr) == (1, True)
        done(folder, address, "rollback")
    finally:
        load.stop()
    assert load.failures == []
    assert load.answers["1"] > 0


def test_metrics_of_all_replicas_are_together(edge):
    with urllib.request.urlopen(f"http://127.0.0.1:{edge[1]}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    numbers = set(re.findall(r'nv_inference_count_total\{.*replica="(\d+)"', text))
    assert len(numbers) == 2
    assert 'pipeline_fleet_replicas{fleet="pipeline",phase="ready"} 2.0' in text


def test_a_replica_whose_process_is_killed_restarts(folder, address, edge):
    before = {replica["number"] for replica in replicas(folder, address)}
    (pid, *_) = actors()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_renewed(folder, address, before), PATIENCE_S)


def is_renewed(folder: Path, address: str, before: set[object]) -> bool:
    now = replicas(folder, address)
    ready = [item for item in now if item["phase"] == "ready"]
    return len(ready) == 2 and {item["number"] for item in now} != before


def actors() -> list[int]:
    result = subprocess.run(["pgrep", "-f", "ray::ReplicaActor"], capture_output=True, text=True)
    return [int(pid) for pid in result.stdout.split()]


def test_down_ends_a_fleet(folder, address):
    (folder / "web_server.py").write_text(SCRIPT)
    others = set(actors())
    done(folder, address, "up", "web_server.py", "--name=other")
    assert set(actors()) - others
    done(folder, address, "down", "--name=other")
    assert "there is no fleet" in run(folder, address, "status", "--name=other").stderr
    wait_until(lambda: not set(actors()) - others, PATIENCE_S)
