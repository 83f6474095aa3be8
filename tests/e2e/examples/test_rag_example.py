"""The example of searched texts: its demo, in which one server asks another."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

from paths import ROOT

ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


def test_the_demo_passes(tmp_path):
    for name in ("rag", "chat", "generate"):
        ignored = shutil.ignore_patterns("__pycache__", "training")
        shutil.copytree(ROOT / "examples" / name, tmp_path / name, ignore=ignored)
        config = tmp_path / name / "config.yml"
        text = re.sub(r"_port: \d+", "_port: 0", config.read_text(encoding="utf-8"))
        config.write_text(text, encoding="utf-8")
    command = [sys.executable, "demo.py"]
    done = subprocess.run(
        command, cwd=tmp_path / "rag", env=ENVIRONMENT, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("demo passed")
