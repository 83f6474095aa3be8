"""The generate example: its demo from start to end, and what it says to bad requests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from paths import ROOT

EXAMPLE = ROOT / "examples" / "generate"
ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}

ASK = """
from web_server import server
from pipeline import PipelineClient

with server, PipelineClient() as client:
    client.connect([f"127.0.0.1:{server.rpc_port}"])
    for asked in %r:
        answer = client.predict(asked, timeout=60)
        print(answer.err_no, answer.err_msg or answer.value[0])
"""


@pytest.fixture
def example(tmp_path):
    """A copy of the example on ports that are free, and how to run Python in it."""
    folder = tmp_path / "generate"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    config = folder / "config.yml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("18094", "0").replace("18095", "0"), encoding="utf-8")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=110
        )

    return run


def test_the_demo_passes(example):
    done = example("demo.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("demo passed")
    assert "16 callers at once" in done.stdout


def test_the_same_seed_gives_the_same_text_and_invalid_requests_are_refused(example):
    once = {"prompt": "this movie is", "seed": "3", "most": "7"}
    wrong = [{"words": "x"}, {**once, "most": "0"}, {**once, "seed": "x"}, {**once, "seed": "-1"}]
    done = example("-c", ASK % [once, once, *wrong])
    assert done.returncode == 0, done.stderr
    first, second, *refused = done.stdout.splitlines()
    assert first == second
    assert first.startswith("0 ")
    assert refused == [
        "8000 prompt: expected str, found nothing",
        "8000 most: expected int >= 1, found str '0'",
        "8000 seed: expected int, found str 'x'",
        "8000 seed: expected int >= 0, found str '-1'",
    ]
