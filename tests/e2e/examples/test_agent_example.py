"""The example of an agent: its demo, and with a model of OpenAI's API in the place of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from openai_upstream import chat, says, upstream
from paths import ROOT

ASK = """
import json, urllib.request
from agent_server import server
with server:
    body = json.dumps({"model": "agent", "messages": [{"role": "user", "content": "2 * 3?"}]})
    url = f"http://127.0.0.1:{server.http_port}/v1/chat/completions"
    request = urllib.request.Request(url, body.encode(), {"content-type": "application/json"})
    print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The example, on free ports."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "examples" / "agent", tmp_path / "agent", ignore=ignored)
    config = tmp_path / "agent" / "config.yml"
    text = re.sub(r"_port: \d+", "_port: 0", config.read_text(encoding="utf-8"))
    config.write_text(text, encoding="utf-8")
    return tmp_path / "agent"


def run(folder: Path, *command: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_demo_passes(folder):
    assert run(folder, "demo.py")[-1].startswith("demo passed")


def test_a_long_question_does_not_hold_the_server(folder):
    ask = 'from planner import plan; print(plan([{"role": "user", "content": "(+" * 10_000}]))'
    assert "Ask for a sum" in run(folder, "-c", ask)[0]


def test_a_remote_model_replaces_the_planner(folder):
    call = {"id": "c1", "type": "function", "function": {"name": "calculate"}}
    call["function"]["arguments"] = '{"expression": "2 * 3"}'
    asks = says(chat(None, "tool_calls", tool_calls=[call]))
    with upstream(asks, says(chat("It is six."))) as model:
        lines = run(
            folder,
            *("-c", ASK),
            PIPELINE__OP__think__client_type="openai",
            PIPELINE__OP__think__server_endpoints=f'["{model.url}"]',
        )
    assert lines[-1].strip() == "It is six."
    first, second = model.asked
    assert [tool["function"]["name"] for tool in first.body["tools"]] == [
        "calculate",
        "temperature",
    ]
    assert [item["role"] for item in second.body["messages"]] == ["user", "assistant", "tool"]
    assert second.body["messages"][-1]["content"] == "6"
