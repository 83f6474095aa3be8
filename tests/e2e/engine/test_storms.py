"""Random graphs and faults on real servers."""

from __future__ import annotations

import pytest
from fuzz import real
from fuzz.case import REQUEST, Case, OpSpec, RequestSpec
from fuzz.mutants import REAL_MUTANTS

_SEED = 20_000
_REAL_CASES = 6
_FILES = Case(
    (OpSpec("a", (REQUEST,), workers="process"),),
    tuple(
        RequestSpec(number, door="api", bulk=200_000, delays_s={"a": (0.02, 0.0, 0.0)})
        for number in range(1, 9)
    ),
)
_BESIDE = tuple(RequestSpec(number, door=door) for number, door in ((2, "api"), (3, "grpc")))
_TWO = Case(
    (OpSpec("a", (REQUEST,)),),
    (RequestSpec(1, door="api"),),
    siblings=(Case((OpSpec("b", (REQUEST,)),), _BESIDE),),
)
SHOWN_BY = {
    "a_body_is_freed_while_it_is_read": _FILES,
    "a_body_is_never_freed": _FILES,
    "messages_come_to_the_first_pipeline": _TWO,
    "paths_lead_to_the_last_pipeline": _TWO,
}


def test_cases_on_real_servers_end_as_the_model_predicts():
    """`python -m fuzz --engine real` does the same; what may be the machine's slowness is left."""
    runner = real.Runner()
    results = {}
    for seed in range(_SEED, _SEED + _REAL_CASES):
        requests, findings = runner.run(seed, _REAL_CASES)
        findings = [finding for finding in findings if not real.may_be_slowness(finding)]
        assert requests or findings
        if findings:
            results[seed] = findings
    runner.close()
    assert not results, "python -m fuzz --engine real --seed SEED --cases 1 shows each again"


@pytest.mark.parametrize("name", sorted(REAL_MUTANTS))
def test_the_fuzzer_reports_a_mutant_of_a_real_server(name):
    assert real.run(SHOWN_BY[name]) == []
    with REAL_MUTANTS[name]():
        assert real.run(SHOWN_BY[name])
