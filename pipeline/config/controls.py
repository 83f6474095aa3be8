"""Controls of sequences, checked: arrays that say what a request is in its sequence."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

from msgspec import Struct

from pipeline.config.sequences import ControlConfig, ControlValuesConfig
from pipeline.errors import ConfigError

_PAIRS = {"int32_false_true": "INT32", "fp32_false_true": "FP32", "bool_false_true": "BOOL"}
_OF_IDS = ("UINT64", "INT64", "UINT32", "INT32", "STRING")


class Kind(enum.Enum):
    """Kinds of controls, by Triton's names."""

    START = "CONTROL_SEQUENCE_START"
    END = "CONTROL_SEQUENCE_END"
    READY = "CONTROL_SEQUENCE_READY"
    CORRID = "CONTROL_SEQUENCE_CORRID"


class Control(Struct, frozen=True):
    """One control of an Op.

    Args:
        name: by which `process` is fed it.
        datatype: of its array, in Triton's words without "TYPE_".
        values: what stands for False and for True; empty for the id.
    """

    name: str
    kind: Kind
    datatype: str
    values: tuple[int | float | bool, ...] = ()


def controls_of(op_name: str, configs: Sequence[ControlConfig]) -> tuple[Control, ...]:
    """Return the controls that an Op's configuration has.

    Raises:
        ConfigError: the first thing that is wrong, in Triton's words.
    """
    controls: list[Control] = []
    names: set[str] = set()
    for config in configs:
        if not config.name:
            raise ConfigError(f"sequence batching control tensor must have a name for {op_name}")
        if config.name in names:
            raise ConfigError(_serves_several(config.name, op_name))
        names.add(config.name)
        found = [_control(config.name, kind, said, op_name) for kind, said in _said(config)]
        if not found:
            raise ConfigError(
                f"sequence batching control tensor '{config.name}' must specify a kind for "
                f"{op_name}: start, end, ready or corrid"
            )
        controls += found
        for control in found:
            if sum(each.kind is control.kind for each in controls) > 1:
                raise ConfigError(
                    f"sequence batching specifies multiple {control.kind.value} tensors for "
                    f"{op_name}"
                )
        if len(found) > 1:
            raise ConfigError(_serves_several(config.name, op_name))
    return tuple(controls)


def _serves_several(name: str, op_name: str) -> str:
    return (
        f"sequence batching control tensor '{name}' is specified for multiple control kinds for "
        f"{op_name}"
    )


def _said(config: ControlConfig) -> Iterator[tuple[Kind, ControlValuesConfig]]:
    for said in (config, *config.control):
        if said.kind is not None:
            short = said.kind.removeprefix("CONTROL_SEQUENCE_").upper()
            yield Kind[short], said


def _control(name: str, kind: Kind, said: ControlValuesConfig, op_name: str) -> Control:
    given = {pair: getattr(said, pair) for pair in _PAIRS if getattr(said, pair)}
    alternatives = "'int32_false_true', 'fp32_false_true'"
    if kind is Kind.CORRID:
        if given:
            raise ConfigError(
                f"sequence batching must not specify either {alternatives} or 'bool_false_true' "
                f"for {kind.value} for {op_name}"
            )
        return Control(name, kind, _datatype_of_id(kind, said.data_type, op_name))
    if not given:
        raise ConfigError(
            f"sequence batching must specify either {alternatives} or 'bool_false_true' for "
            f"{kind.value} for {op_name}"
        )
    if len(given) > 1:
        raise ConfigError(
            f"sequence batching specifies more than one from {alternatives} and 'bool_false_true' "
            f"for {kind.value} for {op_name}"
        )
    ((pair, values),) = given.items()
    if len(values) != 2:
        raise ConfigError(
            f"sequence batching control '{pair}' must have exactly 2 entries for {kind.value} for "
            f"{op_name}"
        )
    return Control(name, kind, _PAIRS[pair], values)


def _datatype_of_id(kind: Kind, given: str, op_name: str) -> str:
    datatype = given.removeprefix("TYPE_")
    datatype = "STRING" if datatype == "BYTES" else datatype
    if datatype not in _OF_IDS:
        raise ConfigError(
            f"unexpected data type for control {kind.value} for {op_name}. Allowed data types are "
            "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )
    return datatype
