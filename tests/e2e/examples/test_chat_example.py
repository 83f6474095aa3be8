"""The chat example: its demo, in which the official client asks a server of OpenAI's API."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from paths import ROOT

ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


def test_the_demo_passes(tmp_path):
    for name in ("chat", "generate"):
        ignored = shutil.ignore_patterns("__pycache__", "training")
        shutil.copytree(ROOT / "examples" / name, tmp_path / name, ignore=ignored)
    for config in tmp_path.glob("*/config.yml"):
        text = config.read_text(encoding="utf-8")
        for port in ("18094", "18095", "18096", "18097"):
            text = text.replace(port, "0")
        config.write_text(text, encoding="utf-8")
    command = [sys.executable, "demo.py"]
    done = subprocess.run(
        command, cwd=tmp_path / "chat", env=ENVIRONMENT, capture_output=True, text=True, timeout=110
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert "models: reviews-small" in lines
    assert lines[-1].startswith("demo passed")
