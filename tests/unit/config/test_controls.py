"""Controls of sequences are read in both forms, and errors in them have Triton's texts."""

from __future__ import annotations

import msgspec
import pytest

from pipeline.config.sequences import Control, ControlConfig, Kind, controls_of
from pipeline.errors import ConfigError


def controls(*configs):
    return controls_of("m", msgspec.convert(configs, tuple[ControlConfig, ...]))


def nested(name, *said):
    return {"name": name, "control": said}


def test_both_forms_are_equal():
    short = controls(
        {"name": "S", "kind": "start", "int32_false_true": [0, 1]},
        {"name": "I", "kind": "corrid", "data_type": "UINT64"},
    )
    long = controls(
        nested("S", {"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}),
        nested("I", {"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64"}),
    )
    assert short == long
    assert short == (
        Control("S", Kind.START, "INT32", (0, 1)),
        Control("I", Kind.CORRID, "UINT64"),
    )


@pytest.mark.parametrize(
    ("pair", "datatype"),
    [("int32_false_true", "INT32"), ("fp32_false_true", "FP32"), ("bool_false_true", "BOOL")],
)
def test_each_pair_has_its_type(pair, datatype):
    values = [False, True] if datatype == "BOOL" else [0, 1]
    (control,) = controls({"name": "E", "kind": "end", pair: values})
    assert (control.datatype, control.values) == (datatype, tuple(values))


PAIR = {"int32_false_true": [0, 1]}
EITHER = "either 'int32_false_true', 'fp32_false_true' or 'bool_false_true'"
WRONG = {
    "sequence batching control tensor must have a name for m": [{"kind": "start", **PAIR}],
    "sequence batching control tensor 'S' is specified for multiple control kinds for m": [
        {"name": "S", "kind": "start", **PAIR},
        {"name": "S", "kind": "end", **PAIR},
    ],
    "sequence batching control tensor 'T' is specified for multiple control kinds for m": [
        nested("T", {"kind": "start", **PAIR}, {"kind": "end", **PAIR})
    ],
    "sequence batching specifies multiple CONTROL_SEQUENCE_END tensors for m": [
        {"name": "E", "kind": "end", **PAIR},
        {"name": "F", "kind": "end", **PAIR},
    ],
    f"sequence batching must specify {EITHER} for CONTROL_SEQUENCE_READY for m": [
        {"name": "R", "kind": "ready"}
    ],
    "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
    "'bool_false_true' for CONTROL_SEQUENCE_START for m": [
        {"name": "S", "kind": "start", **PAIR, "fp32_false_true": [0, 1]}
    ],
    "sequence batching control 'fp32_false_true' must have exactly 2 entries for "
    "CONTROL_SEQUENCE_START for m": [{"name": "S", "kind": "start", "fp32_false_true": [1]}],
    f"sequence batching must not specify {EITHER} for CONTROL_SEQUENCE_CORRID for m": [
        {"name": "I", "kind": "corrid", "data_type": "UINT64", **PAIR}
    ],
    "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are "
    "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING": [
        {"name": "I", "kind": "corrid", "data_type": "FP32"}
    ],
    "sequence batching control tensor 'X' must specify a kind for m: start, end, ready or corrid": [
        {"name": "X", **PAIR}
    ],
}


@pytest.mark.parametrize("text", WRONG)
def test_an_invalid_control_is_refused_with_tritons_message(text):
    with pytest.raises(ConfigError) as refusal:
        controls(*WRONG[text])
    assert str(refusal.value) == text
