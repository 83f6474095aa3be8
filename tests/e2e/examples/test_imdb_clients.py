"""Clients that others' tools write of the IMDB example's OpenAPI document, asking the example.

The one in TypeScript takes packages of npm: `make clients` runs it, where Node is there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from openapi_spec_validator import validate
from paths import ROOT
from served import free_port

EXAMPLE = ROOT / "examples" / "imdb_ensemble"
START_S = 60.0
NPM = ("openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9.3")
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
ENVIRONMENT = {
    **os.environ,
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
    "PYTHONDONTWRITEBYTECODE": "1",
}

IN_PYTHON = """
import sys
from imdb import Client
from imdb.api.imdb import ask_imdb
from imdb.models import Error, Review, Scores

client = Client(base_url=sys.argv[1])
for text in ("A wonderful film, I loved it.", "A stupid plot, and awful acting."):
    scores = ask_imdb.sync(client=client, body=Review(words=text))
    assert isinstance(scores, Scores), scores
    (score,) = scores.prediction
    print("positive" if score > 0.5 else "negative")
refused = ask_imdb.sync_detailed(client=client, body=Review(words=5))
assert isinstance(refused.parsed, Error), refused
print(int(refused.status_code), refused.parsed.error.code, refused.parsed.error.message)
"""
IN_TYPESCRIPT = """
import createClient from "openapi-fetch";
import type { paths } from "./imdb.js";

declare const process: { argv: string[] };
const client = createClient<paths>({ baseUrl: process.argv[2]! });
for (const words of ["A wonderful film, I loved it.", "A stupid plot, and awful acting."]) {
  const { data } = await client.POST("/api/imdb", { body: { words } });
  console.log(data!.prediction[0]! > 0.5 ? "positive" : "negative");
}
// @ts-expect-error: it is not a text
const { error, response } = await client.POST("/api/imdb", { body: { words: 5 } });
console.log(response.status, error!.error.code, error!.error.message);
"""
PRINTED = "positive\nnegative\n400 8000 words: expected str, found int 5\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the example as its users start it, on ports that are free."""
    folder = tmp_path_factory.mktemp("served") / "imdb"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", "training"))
    config = folder / "config.yml"
    values = yaml.safe_load(config.read_text(encoding="utf-8"))
    values |= {"rpc_port": free_port(), "http_port": free_port()}
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    url = f"http://127.0.0.1:{values['http_port']}"
    with (folder / "said.txt").open("wb") as said:
        command = [sys.executable, str(folder / "web_server.py")]
        process = subprocess.Popen(
            command, stdout=said, stderr=said, cwd=folder, env={**ENVIRONMENT}
        )
        try:
            wait_until_ready(process, f"{url}/health/ready", folder / "said.txt")
            yield url
        finally:
            process.terminate()
            process.wait(60)


def wait_until_ready(process: subprocess.Popen[bytes], url: str, said: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with DIRECT.open(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def document(service: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The OpenAPI document of the service, in a file."""
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    with DIRECT.open(f"{service}/openapi.json", timeout=30) as answer:
        path.write_bytes(answer.read())
    return path


def ran(folder: Path, *command: str) -> str:
    """What a command prints, which must succeed."""
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_document_passes_a_validator(document: Path):
    validate(json.loads(document.read_text(encoding="utf-8")))


def test_a_client_by_openapi_python_client_asks_the_service(service, document, tmp_path):
    written = ("--path", str(document), "--output-path", "imdb", "--meta", "none")
    ran(tmp_path, "openapi-python-client", "generate", *written, "--fail-on-warning")
    (tmp_path / "ask.py").write_text(IN_PYTHON, encoding="utf-8")
    assert ran(tmp_path, sys.executable, "ask.py", service) == PRINTED


@pytest.mark.packages
@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no Node, with npm, on the PATH")
def test_a_client_by_openapi_typescript_asks_the_service(service, document, tmp_path):
    (tmp_path / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
    ran(tmp_path, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *NPM)
    tools = tmp_path / "node_modules" / ".bin"
    ran(tmp_path, str(tools / "openapi-typescript"), str(document), "--output", "imdb.ts")
    (tmp_path / "ask.ts").write_text(IN_TYPESCRIPT, encoding="utf-8")
    strictly = ("--strict", "--noUncheckedIndexedAccess", "--skipLibCheck")
    ran(
        tmp_path,
        str(tools / "tsc"),
        *strictly,
        "--module",
        "nodenext",
        "--target",
        "es2022",
        "ask.ts",
    )
    assert ran(tmp_path, "node", "ask.js", service) == PRINTED
