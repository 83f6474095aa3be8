"""Compare what is installed here, and what the gateway is built of, with the known advisories.

Python's come with the package index, Go's with a module of Go's database. Where an index has none,
the table in docs/security.md is what is known. Exit status 1: an advisory holds, or nobody could be
asked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.gateway.build import BuildError, Toolchain, find_go

_DATABASE = "golang.org/x/vulndb@latest"
_CHECKER = "golang.org/x/vuln/cmd/govulncheck@v1.9.0"


class CheckError(Exception):
    """A checker gave no report; the text is its own."""


def of_python() -> tuple[list[str], int]:
    """Return what holds of the installed packages, and how many of these the index knows.

    Raises CheckError without a report.
    """
    command = [sys.executable, "-m", "pip_audit", "--skip-editable", "--format=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise CheckError(f"pip_audit, status {done.returncode}: {done.stderr.strip()}")
    packages = [each for each in json.loads(done.stdout)["dependencies"] if "vulns" in each]
    holding = [
        f"{package['name']} {package['version']}: {advisory['id']}, mended in "
        f"{', '.join(advisory['fix_versions']) or 'no release'}"
        for package in packages
        for advisory in package["vulns"]
    ]
    return holding, len(packages)


def of_go(go: Toolchain) -> tuple[list[str], str]:
    """Return what holds of functions that the gateway calls, and the date of the database."""
    module = json.loads(go.run("mod", "download", "-json", _DATABASE))
    entries = Path(module["Dir"], "data", "osv")
    date = json.loads(Path(module["Info"]).read_bytes())["Time"].partition("T")[0]
    with TemporaryDirectory(prefix="vulndb-") as folder:
        write_index(entries, Path(folder))
        report = go.run("run", _CHECKER, f"-db=file://{folder}", "-format=json", "./...")
    return sorted({_text(each) for each in _objects(report) if _is_called(each)}), date


def write_index(entries: Path, folder: Path) -> None:
    """Write the database as govulncheck reads it, of the files that the module has."""
    modules: dict[str, list[dict[str, str]]] = {}
    (folder / "ID").mkdir()
    (folder / "index").mkdir()
    for path in sorted(entries.glob("*.json")):
        (folder / "ID" / path.name).write_bytes(path.read_bytes())
        entry = json.loads(path.read_bytes())
        row = {"id": entry["id"], "modified": entry["modified"]}
        for affected in entry["affected"]:
            modules.setdefault(affected["package"]["name"], []).append(row)
    index = [{"path": path, "vulns": rows} for path, rows in sorted(modules.items())]
    (folder / "index" / "modules.json").write_text(json.dumps(index))
    (folder / "index" / "db.json").write_text(json.dumps({"modified": "1970-01-01T00:00:00Z"}))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects that stand one after the other."""
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        value, at = decoder.raw_decode(text, at)
        yield value


def _is_called(message: dict[str, Any]) -> bool:
    return "function" in message.get("finding", {"trace": [{}]})["trace"][0]


def _text(message: dict[str, Any]) -> str:
    finding = message["finding"]
    where = finding["trace"][0]
    mended = finding.get("fixed_version", "no release")
    return f"{where['module']} {where['version']}: {finding['osv']}, mended in {mended}"


def main() -> int:
    try:
        python, count = of_python()
        go, date = of_go(find_go())
    except (BuildError, CheckError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    holding = python + go
    print(*holding, sep="\n")
    known = f"{count} packages of Python" if count else "no package of Python (no data here)"
    print(f"{len(holding)} advisories hold, of Go's modules (database of {date}) and {known}")
    return 1 if holding else 0


if __name__ == "__main__":
    sys.exit(main())
