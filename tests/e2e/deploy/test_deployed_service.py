"""The files in deploy/ by the tools that read them, and the image where there is a builder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

DEPLOY = ROOT / "deploy"
LINTER = Path(sys.executable).with_name("hadolint")


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(item) for item in command], capture_output=True, text=True, timeout=300, check=False
    )


def test_the_linter_has_no_findings_in_the_dockerfile():
    done = _run(LINTER, "--failure-threshold", "style", DEPLOY / "service" / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")


def test_the_linter_would_find_something(tmp_path):
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python\nRUN cd / && pip install numpy\n")
    done = _run(LINTER, bad)
    assert (done.returncode, "DL3006" in done.stdout) == (1, True)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_reads_its_configuration_and_the_rules():
    done = _run("promtool", "check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("kustomize") is None, reason="kustomize is not installed")
def test_kustomize_builds_the_manifests():
    done = _run("kustomize", "build", DEPLOY / "kubernetes" / "production")
    assert done.returncode == 0, done.stderr
    assert "replicas:" not in done.stdout  # they are the autoscaler's


def _builder() -> str | None:
    """The container builder that works here, if any: docker needs its daemon."""
    for name in ("docker", "podman"):
        if shutil.which(name) and _run(name, "info").returncode == 0:
            return name
    return None


def test_the_image_is_built_and_serves_where_there_is_a_builder(tmp_path):
    builder = _builder()
    if builder is None:
        pytest.skip("neither docker nor podman works here")
    context = tmp_path / "service"
    shutil.copytree(DEPLOY / "service", context)
    written = _run(sys.executable, "-m", "pipeline", "dockerize", context)
    assert written.returncode == 0, written.stderr
    tag = f"pipeline-test-{tmp_path.name}".lower()
    built = _run(builder, "build", "--tag", tag, context)
    assert built.returncode == 0, built.stderr
    flags = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--detach", "--rm")
    started = _run(builder, "run", *flags, tag)
    assert started.returncode == 0, started.stderr
    container = started.stdout.strip()
    try:
        code = (
            "import time, urllib.request as r\n"
            "for _ in range(600):\n"
            "    try: print(r.urlopen('http://127.0.0.1:18071/health/ready').read()); break\n"
            "    except OSError: time.sleep(0.1)\n"
        )
        asked = _run(builder, "exec", container, "python", "-c", code)
        assert json.loads(asked.stdout.strip()[2:-1]) == {"status": "ok"}
    finally:
        _run(builder, "rm", "--force", container)
        _run(builder, "rmi", "--force", tag)
