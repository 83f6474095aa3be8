"""`pipeline init`: the service that it makes is tested, served, asked and measured, as users do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles import wait_until
from paths import ROOT
from served import PATIENCE_S, environment, python

RUFF = Path(sys.executable).with_name("ruff")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("init")
    done = pipeline(place, "init", "hello")
    assert (done.returncode, done.stderr) == (0, "")
    return place / "hello"


@pytest.fixture(scope="module")
def port(folder) -> Iterator[str]:
    """The HTTP port of the service, which `pipeline serve` serves."""
    command = [sys.executable, "-m", "pipeline", "serve", "--port", "0"]
    stderr = folder / "stderr"
    with stderr.open("w") as written:
        env = environment(PYTHONPATH=str(ROOT))
        process = subprocess.Popen(command, cwd=folder, stderr=written, env=env)
    try:
        wait_until(
            lambda: "is ready" in stderr.read_text() or process.poll() is not None, PATIENCE_S
        )
        match = re.search(r"HTTP on port (\d+)", stderr.read_text())
        assert match, stderr.read_text()
        yield match[1]
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def pipeline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "pipeline", *arguments)


def test_its_test_passes_at_once(folder):
    done = python(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_it_is_in_order(folder):
    assert pipeline(folder, "check", "--strict", "config.yml").returncode == 0
    for arguments in (["format", "--check"], ["check"]):
        command = [RUFF, *arguments, "--isolated", "."]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("path", "options", "answer"),
    [
        ("", [], {"text": "Hello, Anna!"}),
        ("/hello", [], {"text": "Hello, Anna!"}),
        (
            "/hello",
            ["--form", "pipeline"],
            {"err_no": 0, "err_msg": "", "key": ["text"], "value": ["Hello, Anna!"], "tensors": []},
        ),
    ],
)
def test_the_new_service_answers(folder, port, path, options, answer):
    done = pipeline(folder, "client", f":{port}{path}", *options, "name=Anna")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == answer


def test_the_new_service_answers_triton_requests(folder, port):
    done = pipeline(folder, "client", f"localhost:{port}/v2/models/hello", "name=Anna")
    assert json.loads(done.stdout)["outputs"][0]["data"] == ["Hello, Anna!"]


@pytest.mark.parametrize(
    ("words", "said"),
    [(["/hello", "name:=3"], "expected str, found int 3"), (["/nobody"], "no pipeline 'nobody'")],
)
def test_an_error_is_printed_and_is_the_exit_status(folder, port, words, said):
    done = pipeline(folder, "client", f":{port}{words[0]}", *words[1:])
    assert (done.returncode, said in done.stdout) == (1, True)


def test_it_is_measured(folder, port):
    options = ["--seconds", "0.3", "--warmup", "0.1", "--concurrency", "2", "--json"]
    done = pipeline(folder, "bench", f":{port}/hello", *options, "name=Anna")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["requests"] > 0
    assert document["failed"] == 0
    assert (
        0 < document["p50_ms"] <= document["p90_ms"] <= document["p99_ms"] <= document["longest_ms"]
    )


def test_a_measurement_of_errors_fails(folder, port):
    options = ["--seconds", "0.2", "--warmup", "0.1"]
    done = pipeline(folder, "bench", f":{port}/hello", *options)
    assert done.returncode == 1
    assert "failed; the first: HTTP 400: " in done.stdout


def test_a_server_that_is_not_there_is_named(folder):
    for command in ("client", "bench"):
        done = pipeline(folder, command, ":1/hello")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"pipeline {command}: :1/hello: ")
