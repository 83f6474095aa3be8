"""Settings of traces in the words of v2."""

from __future__ import annotations

import pytest

from pipeline.config.schema import RequestTracesConfig
from pipeline.frontends.v2.errors import V2Error
from pipeline.frontends.v2.trace_settings import changes_of, changes_of_json, shown


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        ({}, {}),
        ({"trace_level": ["OFF"]}, {"level": ()}),
        ({"trace_level": ["TENSORS", "TIMESTAMPS"]}, {"level": ("TIMESTAMPS", "TENSORS")}),
        ({"trace_level": ["other"]}, {}),
        ({"trace_level": []}, {}),
        ({"trace_level": None, "trace_count": None}, {"level": None, "count": None}),
        ({"trace_rate": "12", "log_frequency": " 3x"}, {"rate": 12, "log_frequency": 3}),
        ({"trace_rate": "-1", "trace_count": "-1"}, {"rate": 2**32 - 1, "count": -1}),
        ({"unknown": 1}, {}),
    ],
)
def test_changes(said, changes):
    assert changes_of_json(said) == changes


def test_a_setting_of_a_message_without_a_value_is_cleared():
    assert changes_of({"trace_level": [], "trace_rate": ()}) == {"level": None, "rate": None}


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"trace_file": None}, "trace file location can not be updated through network protocol"),
        ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified"),
        ({"trace_level": "OFF"}, "attempt to access JSON non-array as array"),
        ({"trace_rate": 5}, "attempt to access JSON non-string as string"),
        ({"trace_rate": "x"}, "Unable to parse 'trace_rate', got: x"),
        ({"trace_count": "-2"}, "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
        (
            {"log_frequency": "10000000000"},
            "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], "
            "got: 10000000000",
        ),
        (
            {"trace_count": "10000000000"},
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], "
            "got: 10000000000",
        ),
    ],
)
def test_an_invalid_setting_is_refused(said, text):
    with pytest.raises(V2Error) as error:
        changes_of_json(said)
    assert str(error.value) == text


def test_several_values_of_one_setting_are_refused():
    with pytest.raises(V2Error, match="expect only 1 value for 'trace_rate'"):
        changes_of({"trace_rate": ["1", "2"]})


def test_settings_are_shown_in_tritons_format():
    settings = RequestTracesConfig("f", ("TENSORS",), 5, -1, 2)
    assert shown(settings) == {
        "trace_level": ["TENSORS"],
        "trace_rate": "5",
        "trace_count": "-1",
        "log_frequency": "2",
        "trace_file": "f",
        "trace_mode": "triton",
    }
    assert shown(RequestTracesConfig())["trace_level"] == ["OFF"]
