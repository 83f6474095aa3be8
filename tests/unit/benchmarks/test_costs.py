"""The table of costs: what stands in a cell, and that what is compared can be started."""

from __future__ import annotations

from pathlib import Path

from benchmarks import costs, services
from benchmarks.catalog import MANY
from benchmarks.measure import Measurement, Results


def measured(p50_ms: float, server_cpu_s: float) -> list[Measurement]:
    return [Measurement(1000, 1.0, p50_ms, p50_ms, server_cpu_s, 0)]


def test_a_cost_compares_services_with_different_names():
    folder = Path(services.__file__).parent
    rows = [*costs.costs()]
    cases = [case for row in rows for case in (row.case, row.less) if case is not None]

    assert all((folder / f"{case.command[0]}.py").is_file() for case in cases)
    assert len({case.name for case in cases}) == len(
        {(*case.command, case.transport, case.path) for case in cases}
    )


def test_a_cost_is_a_difference_by_its_hops():
    (cost,) = [cost for cost in costs.costs() if cost.what == "an Op more, fused"]
    results = Results(
        {
            ("echo", MANY): measured(1.0, 0.1),
            ("chain", MANY): measured(2.0, 0.3),
            ("echo", 1): measured(0.1, 0.1),
            ("chain", 1): measured(0.3, 0.1),
        }
    )
    results.instructions.update({"echo": 100_000.0, "chain": 180_000.0})

    assert [*costs.cells(cost, results)] == ["50.0", "50", "20,000"]


def test_the_cost_of_an_unmeasured_case_is_empty():
    (cost,) = [cost for cost in costs.costs() if cost.what == "an Op more, fused"]

    assert [*costs.cells(cost, Results())] == ["", "", ""]
