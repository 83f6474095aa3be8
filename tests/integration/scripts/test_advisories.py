"""`make advisories`: which findings hold, and the index of Go's database."""

from __future__ import annotations

import json

from scripts import advisories


class Go:
    """A Go whose database has one entry, and whose checker reports what it is given."""

    def __init__(self, folder, report):
        self.index = {}
        self._folder, self._report = folder, report
        osv = folder / "data" / "osv"
        osv.mkdir(parents=True)
        affected = [{"package": {"name": "stdlib"}}, {"package": {"name": "example.com/m"}}]
        entry = {"id": "GO-1", "modified": "2026-01-01T00:00:00Z", "affected": affected}
        (osv / "GO-1.json").write_text(json.dumps(entry))

    def run(self, *words):
        if words[0] == "mod":
            return json.dumps({"Dir": str(self._folder)})
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
    assert advisories.of_go(go) == ["stdlib v1.26.8: GO-1, mended in v1.26.10"]
    row = [{"id": "GO-1", "modified": "2026-01-01T00:00:00Z"}]
    assert go.index == {"stdlib": row, "example.com/m": row}
