"""Settings of traces: those of a model over those of all, and whose turn it is."""

from __future__ import annotations

import pytest

from pipeline.config.schema import RequestTracesConfig
from pipeline.errors import ConfigError
from pipeline.observe.traces.traces import TraceRegister, TraceSampler

ON = RequestTracesConfig(file="f", level=("TIMESTAMPS",), rate=1)


def choices(sampler, requests):
    return [sampler.is_next() for _ in range(requests)]


def test_every_so_many_th_request_is_traced_until_there_are_enough():
    sampler = TraceSampler(RequestTracesConfig(file="f", level=("TIMESTAMPS",), rate=3, count=2))
    assert choices(sampler, 10) == [False, False, True] * 2 + [False] * 4
    assert sampler.settings.count == 0
    assert sampler.is_off


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (RequestTracesConfig(file="f"), "tracing is disabled"),
        (RequestTracesConfig(file="f", level=("TENSORS",), rate=0), "sample rate must be non-zero"),
        (RequestTracesConfig(level=("TENSORS",)), "trace file name is not given"),
    ],
)
def test_invalid_settings_trace_no_request(settings, fault):
    assert settings.fault == fault
    assert choices(TraceSampler(settings), 3) == [False] * 3


def test_a_model_inherits_settings_that_it_does_not_have():
    register = TraceRegister(ON)
    register.change("m", {"rate": 12, "log_frequency": 34})
    register.change("", {"rate": 56, "count": 78, "level": ()})
    assert register.sampler("m").settings == RequestTracesConfig("f", (), 12, 78, 34)
    assert register.sampler("other").settings == RequestTracesConfig("f", (), 56, 78, 0)
    register.change("", {"rate": None, "count": None})
    assert register.sampler().settings == RequestTracesConfig("f", (), 1, -1, 0)
    assert register.sampler("m").settings == RequestTracesConfig("f", (), 12, -1, 34)
    register.change("m", {"rate": None, "level": None})
    assert register.sampler("m").settings == RequestTracesConfig("f", (), 1, -1, 34)
    register.change("m", {"log_frequency": None})
    assert register.sampler("m") is register.sampler()


def test_a_refused_change_has_no_effect():
    register = TraceRegister(ON)
    with pytest.raises(ConfigError, match="sample rate must be non-zero"):
        register.change("m", {"rate": 0})
    assert register.sampler("m") is register.sampler()


def test_replaced_settings_are_returned():
    register = TraceRegister(ON)
    first = register.sampler()
    assert register.change("m", {"rate": 2}) == []
    of_model = register.sampler("m")
    assert register.change("", {"level": ()}) == [first, of_model]
    assert first.is_over
    assert of_model.is_over
    assert register.is_off


def test_a_file_is_full_by_the_frequency_and_with_the_last_trace():
    often = TraceSampler(RequestTracesConfig("f", ("TIMESTAMPS",), 1, -1, 2))
    choices(often, 5)
    assert [often.is_file_full() for _ in range(5)] == [False, True, False, True, False]
    few = TraceSampler(RequestTracesConfig("f", ("TIMESTAMPS",), 1, 2))
    assert choices(few, 2) == [True, True]
    assert [few.is_file_full() for _ in range(2)] == [False, True]
