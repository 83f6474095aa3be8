"""A short run of `fuzz.parsers`, and proof that it is not blind."""

from __future__ import annotations

import json

import pytest
from fuzz import parsers


@pytest.mark.parametrize("seed", range(len(parsers.PARSERS)))
def test_only_errors_of_the_parser_come(seed):
    assert parsers.run(seed) == [], f"python -m fuzz.parsers --cases 1 --seed {seed}"


def test_a_parser_that_lets_other_errors_pass_is_found():
    careless = {"json": parsers.Parser([b'{"a": 1}'], lambda data: json.loads(data)["a"])}
    assert any("JSONDecodeError" in finding for finding in parsers.run(1, careless))
