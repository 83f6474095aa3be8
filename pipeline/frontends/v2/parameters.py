"""Parameters of a request: the protocol's own, and those for hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from pipeline.data import RequestInfo
from pipeline.frontends.v2.errors import invalid
from pipeline.proto.v2.codec import Parameters

_MICROS = 1e-6
_LONGEST_ID = 128  # characters
WANTS_FINAL = "triton_enable_empty_final_response"  # parameter of a request in a stream
ERRORS_END = "triton_grpc_error"  # key in a stream's metadata
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "sequence_id": ((int, str), "an unsigned 64-bit integer or a string"),
    "sequence_start": ((bool,), "a boolean"),
    "sequence_end": ((bool,), "a boolean"),
    "priority": ((int,), "an unsigned 64-bit integer"),
    "timeout": ((int,), "an unsigned 64-bit integer"),
}
"""The protocol's own names, with what they may hold. Sequences are for Ops that have `sequence`
configured; these, and priorities, for hooks that ask for their context."""

_TRITONS: dict[type, str] = {
    bool: "non-boolean as boolean",
    int: "non-unsigned-integer as unsigned-integer",
    str: "non-string as string",
}

OF_SEQUENCES: Mapping[str, int | bool] = MappingProxyType(
    {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
)
"""Those that say to which sequence a request belongs, as none does."""

_RESERVED = frozenset({*_KINDS, "headers", "binary_data_output"})
_OF_INFO = (*OF_SEQUENCES, "priority")


def timeout_of(parameters: Mapping[str, object]) -> float | None:
    """Return the parameter `timeout`, which is in microseconds, in seconds; None: no limit.

    Raises V2Error as `check_parameters` does.
    """
    check_parameters(parameters)
    micros = parameters.get("timeout", 0)
    assert isinstance(micros, int)
    return micros * _MICROS if micros else None


def check_parameters(parameters: Mapping[str, object]) -> None:
    """Raise V2Error for parameters that a request may not have.

    These are: a parameter of the protocol with a value of another kind, a reserved name, and a
    sequence id that is too long.
    """
    for name, value in parameters.items():
        if name in _KINDS:
            _check_kind(name, value)
        elif name.startswith("triton_") and (name != WANTS_FINAL or not isinstance(value, bool)):
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should "
                "not be specified.",
            )


def _check_forwarded(headers: Mapping[str, str]) -> None:
    """Raise V2Error for a forwarded header that has the name of a parameter of the protocol."""
    for name in headers:
        if name in _RESERVED or (name.startswith("triton_") and name != ERRORS_END):
            raise invalid(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")


def info_of(
    request_id: str,
    parameters: Parameters,
    headers: Mapping[str, str],
    outputs: Sequence[str] = (),
) -> RequestInfo:
    """Return the request info; `timeout_of` has checked the parameters.

    `outputs`: the outputs that it asks for; empty: all. Raises V2Error for a reserved header.
    """
    own_parameters = {name: parameters[name] for name in _OF_INFO if name in parameters}
    id = own_parameters.get("sequence_id")
    if isinstance(id, int) and id < 0:
        own_parameters["sequence_id"] = id + 2**64
    if headers:
        _check_forwarded(headers)
    outputs = tuple(outputs)
    info = RequestInfo(id=request_id, parameters=parameters, headers=headers, outputs=outputs)
    return msgspec.structs.replace(info, **own_parameters) if own_parameters else info


def _check_kind(name: str, value: object) -> None:
    kinds, expected = _KINDS[name]
    fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    # A message may have a 64-bit number in the field for signed numbers.
    is_negative = name in ("timeout", "priority") and isinstance(value, int) and value < 0
    is_long = isinstance(value, int) and not -(2**63) <= value < 2**64
    if not fits or is_negative or is_long:
        unable = f"Unable to parse '{name}': attempt to access JSON {_TRITONS[kinds[-1]]}"
        ours = f"parameter '{name}' must be {expected}, found {value!r}"
        raise invalid(f"{unable}: {ours}")
    if name == "sequence_id" and isinstance(value, str) and len(value) > _LONGEST_ID:
        limit = f"string correlation ID cannot exceed {_LONGEST_ID} characters"
        raise invalid(f"{limit}: '{name}' has {len(value)}")
