"""SlotStates: the arrays that a worker keeps for each of its sequences, from step to step.

They stay in the worker: an array that `process` returned is fed to the next step unchanged. States
are copied only if requests are merged that were not adjacent before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.config.sequences import InitialStateConfig, StateConfig, datatype
from pipeline.data import SequenceStep
from pipeline.errors import InitError, PackageError, PayloadTypeError
from pipeline.proto.v2.raw import DATATYPES, raw_to_array, with_text

FOLDER = "initial_state"
"""The folder next to a model that has the files of initial states."""

_TEXT = DATATYPES["BYTES"]
_LEAST_SHARED = 256  # number of rows, see SlotStates._copy_idle_rows


class StateSpec(NamedTuple):
    """One state that an Op declares.

    Args:
        dims: of one request; -1: of any size.
        axis: the batch axis of its array; None: the array has none.
        initial: the array of one request at the first step of a sequence.
        is_one_buffer: whether `process` writes the next state into the array that it is fed.
    """

    input_name: str
    output_name: str
    dtype: np.dtype[Any]
    dims: tuple[int, ...]
    axis: int | None
    initial: np.ndarray
    is_one_buffer: bool

    def checked(self, op_name: str, value: Any, requests: int) -> np.ndarray:
        """Return this state from a result of `process` for so many requests, in its dtype.

        Raises:
            PayloadTypeError: it has another shape, or a dtype that cannot be cast safely.
        """
        array = np.asarray(value)
        dims = list(self.dims)
        if self.axis is not None:
            dims.insert(self.axis, requests)
        shape = array.shape
        if len(shape) != len(dims) or any(
            dim not in (-1, size) for dim, size in zip(dims, shape, strict=True)
        ):
            raise PayloadTypeError(
                f"process of Op {op_name!r} returned state {self.output_name!r} of shape "
                f"{list(shape)}, declared for {requests} requests is {dims}"
            )
        if array.dtype == self.dtype:
            return array
        if self.dtype == _TEXT and array.dtype.kind in "SUT":
            return array.astype(object)
        cast = np.can_cast(array.dtype, self.dtype, "same_kind") and array.astype(self.dtype)
        is_float = array.dtype.kind in "fc"
        if cast is False or not (is_float or np.array_equal(cast, array)):
            raise PayloadTypeError(
                f"process of Op {op_name!r} returned state {self.output_name!r} of dtype "
                f"{array.dtype}, declared is {self.dtype}"
            )
        return cast


class StateRow(NamedTuple):
    """One request's part of an array that may hold several; `place` is along its axis."""

    array: np.ndarray
    place: int


class SlotStates:
    """States of the sequences at one copy of an Op, by their slots.

    Args:
        op_name: for errors.
        specs: of the states that the Op declares.
    """

    def __init__(self, op_name: str, specs: Sequence[StateSpec]) -> None:
        self.specs: Sequence[StateSpec] = specs
        self._op_name = op_name
        self._kept: dict[int, dict[str, StateRow]] = {}  # by slot and input name
        self._ids: dict[int, int | str] = {}
        self._shared = 0  # rows of batches that were kept since `_copy_idle_rows`

    def begin(self, steps: Iterable[SequenceStep]) -> None:
        """Drop the states of earlier sequences in the slots of sequences that begin."""
        for step in steps:
            if step.start or self._ids.get(step.slot) != step.id:
                self._kept.pop(step.slot, None)
                self._ids[step.slot] = step.id

    def form(self, slot: int) -> Hashable:
        """Return a key that is equal for sequences whose next steps can be made in one call."""
        if any(spec.axis is None for spec in self.specs):
            return slot
        kept = self._kept.get(slot, {})
        return tuple(
            _without(kept[spec.input_name].array.shape, spec.axis)
            if spec.input_name in kept
            else _without(spec.initial.shape, spec.axis)
            for spec in self.specs
        )

    def feed(self, slots: Sequence[int | None]) -> dict[str, np.ndarray]:
        """Return the arrays for a call with these rows, by input name; None: a filler.

        Arrays that `process` may not write into are read-only.
        """
        arrays = {}
        for spec in self.specs:
            rows = [None if slot is None else self._row(spec, slot) for slot in slots]
            array = _joined(spec, _filled(spec, rows))
            if not spec.is_one_buffer:
                array = array.view()
                array.flags.writeable = False
            arrays[spec.input_name] = array
        return arrays

    def _row(self, spec: StateSpec, slot: int) -> StateRow:
        kept = self._kept.get(slot, {}).get(spec.input_name)
        if kept is not None:
            return kept
        return StateRow(spec.initial.copy() if spec.is_one_buffer else spec.initial, 0)

    def returned(self, result: Mapping[str, Any], requests: int) -> dict[str, np.ndarray]:
        """Return, by input name, the states in a result for so many requests.

        Raises:
            PayloadTypeError: a state does not have the declared shape or dtype.
        """
        return {
            spec.input_name: spec.checked(self._op_name, result[spec.output_name], requests)
            for spec in self.specs
            if spec.output_name in result
        }

    def keep(self, slots: Sequence[int | None], arrays: Mapping[str, np.ndarray]) -> None:
        """Keep the next states of the sequences in these slots; None: a filler."""
        for place, slot in enumerate(slots):
            if slot is not None:
                rows = {name: StateRow(array, place) for name, array in arrays.items()}
                self._kept[slot] = {**self._kept.get(slot, {}), **rows}
        if len(slots) > 1:
            self._shared += len(slots)
            if self._shared > max(_LEAST_SHARED, 2 * len(self._kept)):
                self._copy_idle_rows()

    def _copy_idle_rows(self) -> None:
        """Copy rows out of arrays of which less than half is still used.

        Otherwise an idle sequence would keep the whole batch of its last step alive.
        """
        self._shared = 0
        used = Counter(id(row.array) for kept in self._kept.values() for row in kept.values())
        for spec in self.specs:
            if spec.axis is None:
                continue
            for slot, kept in self._kept.items():
                row = kept.get(spec.input_name)
                if row is not None and 2 * used[id(row.array)] < row.array.shape[spec.axis]:
                    own = _cut(row.array, spec.axis, row.place)
                    self._kept[slot] = {**kept, spec.input_name: StateRow(own.copy(), 0)}

    def taken_over(self) -> SlotStates:
        """Return a copy with the same states; later changes here do not affect it."""
        states = SlotStates(self._op_name, self.specs)
        states._kept, states._ids = dict(self._kept), dict(self._ids)
        return states

    def copy(self, slot: int) -> dict[str, np.ndarray]:
        """Return the states of the sequence in this slot; nothing is written into them later."""
        kept = self._kept.get(slot, {})
        return {
            spec.input_name: _one(spec, kept[spec.input_name])
            for spec in self.specs
            if spec.input_name in kept
        }

    def restore(self, slot: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Give the sequence in this slot the states that `copy` returned elsewhere."""
        self._kept[slot] = {
            spec.input_name: StateRow(
                arrays[spec.input_name].copy() if spec.is_one_buffer else arrays[spec.input_name], 0
            )
            for spec in self.specs
            if spec.input_name in arrays
        }

    def drop(self, slot: int) -> None:
        """Forget a sequence that has ended."""
        self._kept.pop(slot, None)
        self._ids.pop(slot, None)


def _without(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return shape if axis is None else shape[:axis] + shape[axis + 1 :]


def _filled(spec: StateSpec, rows: Sequence[StateRow | None]) -> list[StateRow]:
    """Return the rows, with a row of zeros of the same shape for each filler."""
    known = [row for row in rows if row is not None]
    if len(known) == len(rows):
        return known
    assert spec.axis is not None, "without a batch axis a sequence is alone in its call"
    like = _cut(known[0].array, spec.axis, known[0].place)
    empty = np.full(like.shape, "", object) if spec.dtype == _TEXT else np.zeros_like(like)
    return [StateRow(empty, 0) if row is None else row for row in rows]


def _joined(spec: StateSpec, rows: Sequence[StateRow]) -> np.ndarray:
    """Return one array of the rows; without a copy if they are adjacent in one array."""
    first, axis = rows[0], spec.axis
    if axis is None:
        return first.array
    is_one = all(
        row.array is first.array and row.place == first.place + index
        for index, row in enumerate(rows)
    )
    if is_one:
        return _cut(first.array, axis, first.place, len(rows))
    return np.concatenate([_cut(row.array, axis, row.place) for row in rows], axis)


def _one(spec: StateSpec, row: StateRow) -> np.ndarray:
    """Return the array of one request."""
    array = row.array if spec.axis is None else _cut(row.array, spec.axis, row.place)
    return array.copy() if spec.is_one_buffer else np.ascontiguousarray(array)


def _cut(array: np.ndarray, axis: int, place: int, count: int = 1) -> np.ndarray:
    if array.shape[axis] == count:
        return array
    return array[(slice(None),) * axis + (slice(place, place + count),)]


# Declared -----------------------------------------------------------------------------------


def specs_of(states: Iterable[StateConfig], folders: Sequence[Path]) -> list[StateSpec]:
    """Return the states that an Op declares.

    Args:
        folders: searched for the files of initial states, in this order.

    Raises:
        InitError: a file is missing, or does not hold the state.
    """
    return [_spec(state, folders) for state in states]


def _spec(state: StateConfig, folders: Sequence[Path]) -> StateSpec:
    dtype = DATATYPES[datatype(state.data_type)]
    initial_state = (
        state.initial_state[0] if state.initial_state else InitialStateConfig(zero_data=True)
    )
    dims = initial_state.dims if initial_state.dims is not None else state.dims
    shape = tuple(1 if dim == -1 else dim for dim in dims)
    if initial_state.data_file is None:
        initial = np.full(shape, "", object) if dtype == _TEXT else np.zeros(shape, dtype)
    else:
        initial = _read(initial_state.data_file, folders, datatype(state.data_type), shape)
    axis = None if state.batch_axis == -1 else state.batch_axis
    return StateSpec(
        state.input_name,
        state.output_name,
        dtype,
        state.dims,
        axis,
        initial if axis is None else np.expand_dims(initial, axis),
        state.use_same_buffer_for_input_output,
    )


def _read(name: str, folders: Sequence[Path], kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array in a file: its elements in C order, little-endian, as in v2."""
    path = next((at for folder in folders if (at := folder / name).is_file()), None)
    if path is None:
        searched = " and ".join(map(str, folders))
        raise InitError(f"initial_state: data_file {name} is not in {searched}")
    data = path.read_bytes()
    if kind != "BYTES":
        size = math.prod(shape) * DATATYPES[kind].itemsize
        if len(data) < size:
            raise InitError(
                f"initial_state setting expects {size} bytes, but the data provided from {name} "
                f"only has {len(data)} bytes."
            )
        data = data[:size]
    try:
        return with_text(raw_to_array(kind, shape, data))
    except PackageError as error:
        raise InitError(f"initial_state: data_file {name}: {error}") from error
