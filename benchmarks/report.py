"""Medians, ratios and verdicts as markdown, and and the marks between which a page has them."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import statistics
import sysconfig
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from benchmarks import NotMeasuredError
from benchmarks.catalog import INSTRUCTIONS, Target
from benchmarks.measure import Measurement, Plan, Results

BEGIN = "<!-- benchmarks, {}: written by `python -m benchmarks --write` -->"
END = "<!-- benchmarks: end -->"

_PACKAGES = ("grpcio", "uvicorn", "uvloop", "orjson", "numpy", "onnxruntime", "mosec")
_UNITS = {
    "per_s": "requests/s",
    "p50_ms": "p50 ms",
    "p50_us": "p50 us",
    "p99_ms": "p99 ms",
    "server_ms": "server CPU ms",
    INSTRUCTIONS: "instructions",
}


def markdown(results: Results, plan: Plan, targets: Sequence[Target]) -> str:
    """The whole report: where and how, every case, every target."""
    parts = [_setting(plan), _figures(results), _verdicts(results, targets)]
    return "\n\n".join(part for part in parts if part) + "\n"


def write(report: str, path: Path, begins: str) -> None:
    """Put the report between the two marks in `path`; raises NotMeasuredError without marks."""
    text = path.read_text(encoding="utf-8") if path.exists() else f"{begins}\n{END}\n"
    head, begin, rest = text.partition(begins)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise NotMeasuredError(f"{path} has no lines {begins!r} and {END!r} to write between")
    path.write_text(f"{head}{begin}\n{report}{end}{tail}", encoding="utf-8")


def _setting(plan: Plan) -> str:
    versions = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    return (
        f"{machine()}; {versions}.\n\n"
        f"Medians of {plan.repeats} rounds of {plan.seconds:g} s in turns; `a / b`: by the number "
        "of clients. The load generator shares the cores."
    )


def machine() -> str:
    """The date, and what this was measured on."""
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores ({_cpu_model()}), "
        f"{platform.system()} {platform.release()}, {_interpreter()}"
    )


def _interpreter() -> str:
    is_optimised = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    build = "with" if is_optimised else "without"
    return f"CPython {platform.python_version()} (built {build} --enable-optimizations)"


def _figures(results: Results) -> str:
    """One row for each service, its figures by the number of clients."""
    header = (
        *("service", "clients", "requests/s", "p50 ms", "p99 ms", "CPU ms", "RSS MiB"),
        *(("instructions",) if results.instructions else ()),
    )
    by_service: dict[str, list[int]] = {}
    for name, clients in results.rounds:
        by_service.setdefault(name, []).append(clients)
    rows: list[tuple[str, ...]] = []
    for name, counts in by_service.items():
        measured = [results.rounds[name, clients] for clients in counts]
        rows.append(
            (
                name,
                " / ".join(map(str, counts)),
                _by_clients(measured, "per_s", ",.0f"),
                _by_clients(measured, "p50_ms", ".2f"),
                _by_clients(measured, "p99_ms", ".2f"),
                _by_clients(measured, "server_ms", ".3f"),
                f"{max(_median(rounds, 'rss_mib') for rounds in measured):.0f}",
                *([_number(results.instructions.get(name, math.nan), ",.0f")] * (len(header) - 7)),
            )
        )
    rows += [(name, "", "not measured: " + why) for name, why in results.not_measured.items()]
    return table(header, rows)


def _by_clients(measured: Iterable[Sequence[Measurement]], figure: str, form: str) -> str:
    return " / ".join(format(_median(rounds, figure), form) for rounds in measured)


def _number(value: float | str, form: str) -> str:
    """Nothing, where there is none."""
    return "" if isinstance(value, str) or math.isnan(value) else format(value, form)


def _verdicts(results: Results, targets: Iterable[Target]) -> str:
    rows = []
    for target in targets:
        by_round = ratios(results, target)
        if by_round:
            middle = statistics.median(by_round)
            verdict = _verdict(results, target, middle)
            spread = f"{min(by_round):.2f} to {max(by_round):.2f}"
            rows.append((*_described(target), f"{middle:.2f}", spread, verdict))
    header = ("what", "against", "target", "found", "rounds", "verdict")
    return table(header, rows) if rows else ""


def _described(target: Target) -> tuple[str, str, str]:
    unit = _UNITS[target.figure]
    against = target.base if isinstance(target.base, str) else f"{target.base:,.0f} {unit}"
    if target.base == 1.0:
        against = ""
    if target.hops:
        against = f"less {against}" + (f", by {target.hops} hops" if target.hops > 1 else "")
    limit = f">= {target.at_least:g}" if target.at_least else f"<= {target.at_most:g}"
    clients = "" if target.figure == INSTRUCTIONS else f" at {target.clients:,}"
    return f"{target.case}, {unit}{clients}", against, limit


def _verdict(results: Results, target: Target, value: float) -> str:
    if _is_reached(target, value):
        return "reached"
    ceiling = _ceiling(results, target)
    if ceiling is None or _is_reached(target, ceiling):
        return "**missed**"
    return f"out of reach: {target.ceiling} has {ceiling:.2f}"


def _ceiling(results: Results, target: Target) -> float | None:
    """Return the result for the case that no service can beat."""
    if target.ceiling is None:
        return None
    bare = ratios(results, dataclasses.replace(target, case=target.ceiling))
    return statistics.median(bare) if bare else None


def _is_reached(target: Target, value: float) -> bool:
    if target.at_least is not None:
        return value >= target.at_least
    return target.at_most is None or value <= target.at_most


def ratios(results: Results, target: Target) -> list[float]:
    """The figure over its base, for each round; empty where one side was not measured.

    With hops it is the figure less its base, for each of them.
    """
    ours = _values(results, target.case, target)
    if isinstance(target.base, str):
        theirs = _values(results, target.base, target)
    else:
        theirs = [target.base] * len(ours)
    pairs = zip(ours, theirs, strict=False)
    if target.hops:
        return [(our - their) / target.hops for our, their in pairs]
    return [our / their for our, their in pairs]


def _values(results: Results, case: str, target: Target) -> list[float]:
    if target.figure == INSTRUCTIONS:
        count = results.instructions.get(case)
        return [count] if isinstance(count, float) else []
    rounds = results.rounds.get((case, target.clients), [])
    return [getattr(measurement, target.figure) for measurement in rounds]


def _median(rounds: Sequence[Measurement], figure: str) -> float:
    values: list[float] = [getattr(measurement, figure) for measurement in rounds]
    return statistics.median(values)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of markdown; short rows are filled up."""

    def line(cells: Sequence[str]) -> str:
        padded = [*cells, *[""] * (len(header) - len(cells))]
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in padded) + " |"

    rule = "|" + "---|" * len(header)
    return "\n".join([line(header), rule, *map(line, rows)])


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
