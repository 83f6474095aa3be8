"""The Dockerfile, read: who runs what in it. Its linter and a builder: tests/e2e/deploy."""

from __future__ import annotations

import json
import re

from paths import ROOT

TEMPLATES = ROOT / "pipeline" / "cli" / "templates"
SERVICE = ROOT / "deploy" / "service"


def _instructions() -> list[tuple[str, str]]:
    text = (TEMPLATES / "Dockerfile").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    joined = lines.replace("\\\n", " ")
    return [
        (words[0], words[1].strip())
        for line in joined.splitlines()
        if len(words := line.split(" ", 1)) == 2
    ]


def _last_stage() -> list[tuple[str, str]]:
    instructions = _instructions()
    (*_, last) = [place for place, (name, _) in enumerate(instructions) if name == "FROM"]
    return instructions[last:]


def test_the_deployed_service_has_the_files_of_the_package():
    for name, copy in (("Dockerfile", "Dockerfile"), ("dockerignore", ".dockerignore")):
        assert (SERVICE / copy).read_text() == (TEMPLATES / name).read_text()


def test_the_image_is_slim_and_without_build_tools():
    stages = [value for name, value in _instructions() if name == "FROM"]
    assert len(stages) == 2
    assert all("-slim-" in value for value in stages)
    assert not any("pip install" in value for name, value in _last_stage() if name == "RUN")


def test_the_server_does_not_run_as_root_and_receives_its_signals():
    stage = dict(_last_stage())
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", stage["USER"])  # by number: runAsNonRoot reads it
    assert stage["STOPSIGNAL"] == "SIGTERM"
    assert json.loads(stage["CMD"]) == ["python", "web_server.py"]
    assert (SERVICE / "web_server.py").exists()


def test_files_of_the_service_do_not_belong_to_its_user():
    """An intruder can change no file that is started again."""
    copies = [value for name, value in _last_stage() if name == "COPY"]
    assert copies
    assert not any("--chown" in value for value in copies)


def test_the_healthcheck_requests_a_path_with_available_tools():
    check = dict(_last_stage())["HEALTHCHECK"]
    program, flag, code = json.loads(check[check.index("[") :])
    assert (program, flag) == ("python", "-c")
    compile(code, "healthcheck", "exec")
    assert "/health/ready" in code
