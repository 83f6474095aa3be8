"""The cascade example: its demo from start to end, and who is asked for what."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from paths import ROOT

EXAMPLES = ROOT / "examples"
SAMPLES = 6


@pytest.fixture
def demo(tmp_path):
    """A copy of the example on ports that are free, and how to run its demo."""
    skipped = shutil.ignore_patterns("__pycache__")
    for name in ("cascade", "imdb_ensemble"):
        shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=skipped)
    config = tmp_path / "cascade" / "config.yml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("18090", "0").replace("18091", "0"), encoding="utf-8")

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(tmp_path / "cascade" / "demo.py")]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110
        )

    run.folder = tmp_path / "cascade"
    return run


def sure(demo, share):
    """Set how sure `bow` has to be."""
    script = demo.folder / "web_server.py"
    text = script.read_text(encoding="utf-8")
    assert "SURE = 0.8 " in text
    script.write_text(text.replace("SURE = 0.8 ", f"SURE = {share} "), encoding="utf-8")


def test_the_demo_passes_from_any_folder(demo):
    done = demo()
    assert (done.returncode, done.stderr) == (0, "")
    stdout = done.stdout
    assert stdout.splitlines()[-1].startswith("demo passed")
    assert f"bow -> verdict: {2 * SAMPLES} of {2 * SAMPLES} answers" in stdout
    count = stdout.count(", cnn 0.")
    assert f"bow -> cnn: {count} of {2 * SAMPLES} answers" in stdout
    assert f"cnn -> verdict: {count} of {count} answers" in stdout


@pytest.mark.parametrize(("share", "asked"), [(0.5, 0), (1.1, 2 * SAMPLES)])
def test_a_sure_model_is_the_only_one_called(demo, share, asked):
    sure(demo, share)
    done = demo()
    assert done.returncode == 1, "then it is not a cascade"
    assert f"bow -> cnn: {asked} of {2 * SAMPLES} answers" in done.stdout
    assert done.stdout.count(", cnn ") == asked
