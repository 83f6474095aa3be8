"""Some random requests to both edges, the same every time: see tests/fuzz/edge.py."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Iterator

import pytest
from fuzz.edge import Heard, Ports, difference, edges, run
from fuzz.edge_cases import HttpCase
from raw_http import Answer

pytestmark = [pytest.mark.usefixtures("gateway_binary")]

CASES = range(7_000_000, 7_000_150)


@pytest.fixture(scope="module")
def ports(gateway_binary, module_logs) -> Iterator[Ports]:
    with edges() as result:
        yield result


def test_both_edges_answer_alike(ports):
    result = asyncio.run(run(ports, CASES, math.inf))
    assert result.findings == []
    kinds = {"HTTP/1.1", "HTTP/1.1, wounded", "HTTP/2", "gRPC"}
    assert all(result.played[kind] for kind in kinds), result.played


def test_the_fuzzer_reports_an_edge_with_other_answers(ports):
    """The port of the embedded gRPC does not speak HTTP: every answer there differs."""
    wrong = dataclasses.replace(ports, gateway=ports.door_grpc)
    assert asyncio.run(run(wrong, CASES, math.inf, stops=True)).findings


CASE = HttpCase("POST", "/conf/echo", (), b"{}")
ANSWER = Answer(200, {"content-type": "application/json"}, b'{"err_no": 0}')


@pytest.mark.parametrize(
    "other",
    [
        Answer(400, ANSWER.headers, ANSWER.body),
        Answer(200, {"content-type": "text/plain"}, ANSWER.body),
        Answer(200, ANSWER.headers, b'{"err_no": 1}'),
        Answer(0, {}, b"noise"),
    ],
)
def test_different_answers_are_reported(other):
    ours = Heard((ANSWER,), True)
    assert difference(ours, Heard((ANSWER,), True), CASE) == ""
    assert difference(ours, Heard((other,), True), CASE)
    assert difference(ours, Heard((), True), CASE)
    assert difference(ours, Heard((ANSWER,), False), CASE)
