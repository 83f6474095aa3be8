"""`make advisories`: which findings hold, and the index of Go's database."""

from __future__ import annotations

import json
import subprocess

from scripts import advisories


class Go:
    """A Go whose database has one entry, and whose checker reports what it is given."""

    def __init__(self, folder, report):
        self.index = {}
        self._folder, self._report = folder, report
        osv = folder / "data" / "osv"
        osv.mkdir(parents=True)
        affected = [{"package": {"name": "stdlib"}}, {"package": {"name": "example.com/m"}}]
        (folder / "info").write_text('{"Time": "2026-11-28T01:02:03Z"}')
        entry = {"id": "GO-1", "modified": "2026-01-01T00:00:00Z", "affected": affected}
        (osv / "GO-1.json").write_text(json.dumps(entry))

    def run(self, *words):
        if words[0] == "mod":
            return json.dumps({"Dir": str(self._folder), "Info": str(self._folder / "info")})
        (database,) = [word.removeprefix("-db=file://") for word in words if "-db=" in word]
        with open(f"{database}/index/modules.json") as file:
            self.index = {row["path"]: row["vulns"] for row in json.load(file)}
        return "\n".join(json.dumps(each, indent=1) for each in self._report)


def finding(**place):
    trace = [{"module": "stdlib", "version": "v1.26.8", **place}]
    return {"finding": {"osv": "GO-1", "fixed_version": "v1.26.10", "trace": trace}}


def test_an_advisory_holds_if_the_gateway_calls_its_function(tmp_path):
    report = [{"config": {}}, finding(), finding(package="net"), finding(function="Read")]
    go = Go(tmp_path, report)
    assert advisories.of_go(go) == (["stdlib v1.26.8: GO-1, mended in v1.26.10"], "2026-11-28")
    row = [{"id": "GO-1", "modified": "2026-01-01T00:00:00Z"}]
    assert go.index == {"stdlib": row, "example.com/m": row}


def test_a_checker_without_a_report_is_an_error(monkeypatch, capsys):
    answers(monkeypatch, "", "No module named pip_audit")
    assert advisories.main() == 1
    assert "No module named pip_audit" in capsys.readouterr().err


def test_a_package_that_the_index_does_not_know_is_not_counted(monkeypatch):
    unknown = {"name": "a", "skip_reason": "Dependency not found on PyPI"}
    vulnerable = {"name": "b", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
    answers(monkeypatch, json.dumps({"dependencies": [unknown, vulnerable]}))
    assert advisories.of_python() == (["b 1: PYSEC-1, mended in 2"], 1)


def answers(monkeypatch, report, errors=""):
    done = subprocess.CompletedProcess([], 1, report, errors)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
